//! `vram-budget import` and `explain` as a person calls them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::io::Write;
use std::process::{Command, Stdio};

const FORMATS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/formats");

fn run(args: &[&str], stdin: &[u8]) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vram-budget"))
        .args(args)
        .current_dir(FORMATS)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that stops early closes its end.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_document_is_the_same_from_a_file_from_stdin_compressed_and_from_itself() {
    let file = "oom-10-pytorch-2.2-other-process.txt";
    let text = std::fs::read(format!("{FORMATS}/{file}")).unwrap();
    let (code, document, _) = run(&["import", file], b"");
    assert_eq!(code, 0);
    assert_eq!(run(&["import", "-"], &text), (0, document.clone(), String::new()), "without a name");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&text).unwrap();
    assert_eq!(run(&["import", "-"], &gzip.finish().unwrap()).1, document, "compressed");
    assert_eq!(run(&["import", "-"], document.as_bytes()).1, document, "a fixed point");
    let wide: Vec<u8> = String::from_utf8(text).unwrap().encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(run(&["import", "-"], &[&[0xff, 0xfe], wide.as_slice()].concat()).1, document, "from PowerShell");
}

#[test]
fn several_files_are_one_document_a_line_and_a_bad_one_hides_none() {
    let files =
        ["import", "oom-04-pytorch-1.4-reserved.txt", "snap-06-malicious-global.pickle", "smi-06-query-gpu.csv"];
    let (code, out, err) = run(&files, b"");
    assert_eq!((code, out.lines().count()), (4, 2));
    assert!(err.contains("snap-06-malicious-global.pickle: this is a pickle"), "{err}");
    let (_, again, _) = run(&["import", "-"], out.as_bytes());
    assert_eq!(again, out);
}

#[test]
fn an_explanation_reads_as_a_person_would_say_it() {
    let (code, out, err) = run(&["explain", "oom-10-pytorch-2.2-other-process.txt", "oom-17-truncated.txt"], b"");
    assert_eq!((code, err), (0, String::new()));
    insta::assert_snapshot!(out);
}

#[test]
fn ranks_that_differ_are_said() {
    let text = |rank: u32, gib: &str| {
        format!(
            "[rank{rank}]: CUDA out of memory. Tried to allocate 2.00 MiB (GPU {rank}; 23.64 GiB total capacity; {gib} GiB \
             already allocated; 1.00 MiB free; 23.00 GiB reserved in total by PyTorch)\n"
        )
    };
    let log = text(0, "20.00") + &text(1, "22.50");
    let (_, out, _) = run(&["explain", "-"], log.as_bytes());
    assert!(out.contains("The ranks hold 20.0 GiB to 22.5 GiB"), "{out}");
}

#[test]
fn runs_become_one_measurement_with_their_spread() {
    let run_of = |peak: u64| {
        format!(
            "{{\"base\": 1000000, \"forward_delta\": 5, \"backward_delta\": 6, \"step_delta\": 7, \"peak\": {peak}}}"
        )
    };
    let folder = std::env::temp_dir().join(format!("vram-budget-runs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let files: Vec<String> = [9_000_000, 2_000_000, 3_000_000]
        .iter()
        .enumerate()
        .map(|(at, peak)| {
            let path = folder.join(at.to_string());
            std::fs::write(&path, run_of(*peak)).unwrap();
            path.to_string_lossy().into_owned()
        })
        .collect();
    let mut args = vec!["explain", "--runs", "--warm-up", "1"];
    args.extend(files.iter().map(String::as_str));
    let (code, out, _) = run(&args, b"");
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(code, 0);
    assert!(out.contains("The mean of 2 runs; the same figure differs by 977 KiB at most."), "{out}");
}

#[test]
fn what_is_no_measurement_is_refused_with_what_would_be_read() {
    let (code, out, err) = run(&["import", "-"], b"Lorem ipsum dolor sit amet.");
    assert_eq!((code, out.as_str()), (4, ""));
    assert!(err.contains("stdin: not a format that is read here; expected an out-of-memory message"), "{err}");
    let (code, _, err) = run(&["import", "smi-07-query-gpu-nounits.csv"], b"");
    assert!(code == 4 && err.contains("without a header"), "{err}");
    let (code, _, err) = run(&["import", "no-such-file"], b"");
    assert_eq!((code, err.contains("no-such-file")), (1, true));
}

/// The measurement's own part: the plan inside of it has a schema of its own.
#[test]
fn the_committed_schema_is_the_programs() {
    let (code, out, _) = run(&["schema", "measurement"], b"");
    assert_eq!(code, 0);
    let own = |text: &str| {
        let mut schema: serde_json::Value = serde_json::from_str(text).unwrap();
        let definitions = schema["$defs"].take();
        let names = [
            "Backend",
            "Buffer",
            "Environment",
            "Failure",
            "FailureKind",
            "FormatId",
            "Gpu",
            "Process",
            "Producer",
            "Reading",
            "ReadingName",
            "Scope",
            "Series",
            "Source",
            "TierName",
        ];
        let definitions = names.map(|name| definitions[name].clone());
        assert!(definitions.iter().all(|definition| !definition.is_null()), "{names:?}");
        (schema, definitions)
    };
    let committed = include_str!("../docs/measurement.schema.json");
    assert_eq!(own(&out), own(committed), "vram-budget schema measurement > docs/measurement.schema.json");
}

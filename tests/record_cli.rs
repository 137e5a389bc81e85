//! `vram-budget record` as a shell calls it, with commands that need no PyTorch.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use vram_budget::measure::{EndedHow, Imported, Measurement, ReadingName, import};

const LINES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/recordings/plain.jsonl");
/// A command that leaves what the hook would have written, but for the end.
const TRAIN: &str = "grep -v '\"t\":\"end\"' \"$LINES\" > \"$VRAM_BUDGET_RECORD_DIR/process-here-1.jsonl\"";

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("record").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn record(folder: &Path, options: &[&str], command: &[&str]) -> Command {
    let mut run = Command::new(env!("CARGO_BIN_EXE_vram-budget"));
    run.arg("record").args(options).arg("--").args(command).current_dir(folder).env("LINES", LINES);
    for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "JOB_COMPLETION_INDEX", "PET_NODE_RANK"]
    {
        run.env_remove(name);
    }
    run
}

fn shell(folder: &Path, script: &str) -> Output {
    record(folder, &["--out", "out.json"], &["sh", "-c", script]).output().unwrap()
}

fn document(path: &Path) -> Measurement {
    let Imported::Measurement { measurement, .. } = import(&std::fs::read_to_string(path).unwrap()).unwrap() else {
        panic!("a document")
    };
    *measurement
}

fn peak(document: &Measurement) -> Option<i64> {
    document.bytes(ReadingName::MaxAllocated)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_command_keeps_its_streams_and_its_exit_code() {
    let folder = folder("code");
    let output = shell(&folder, &format!("{TRAIN}; echo out; echo err >&2; exit 7"));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "out\n");
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("err\n"));
    let found = document(&folder.join("out.json"));
    assert_eq!(peak(&found), Some(764_236_800));
    let ended = found.run.unwrap().ended;
    assert_eq!((ended.how, ended.code), (EndedHow::Exited, Some(7)));
    assert_eq!(names(&folder), ["out.json"], "nothing else stays");
}

#[test]
fn stdout_is_the_document_where_it_goes_there() {
    let folder = folder("stdout");
    let output = record(&folder, &["--out", "-"], &["sh", "-c", &format!("{TRAIN}; echo hello")]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(import(&text).is_ok(), "{text}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("hello"));
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn a_command_that_cannot_run_is_told_apart() {
    let folder = folder("cannot");
    let code = |command: &[&str]| record(&folder, &[], command).output().unwrap().status.code();
    assert_eq!(code(&["no-such-command"]), Some(127));
    std::fs::write(folder.join("text"), "no program").unwrap();
    assert_eq!(code(&["./text"]), Some(126));
    assert_eq!(names(&folder), ["text"]);
}

#[test]
fn a_directory_that_cannot_be_written_to_is_told_before_the_command_runs() {
    let folder = folder("nowhere");
    let output = record(&folder, &["--out", "/proc/out.json"], &["touch", "ran"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/proc/out.run"));
    assert_eq!(names(&folder), [""; 0], "it did not run");
}

#[test]
fn a_training_that_is_killed_leaves_what_was_measured() {
    let folder = folder("killed");
    let output = shell(&folder, &format!("{TRAIN}; kill -9 $$"));
    assert_eq!(output.status.code(), Some(137));
    let found = document(&folder.join("out.json"));
    assert_eq!(peak(&found), Some(764_236_800));
    let run = found.run.unwrap();
    assert_eq!((run.steps, run.ended.how, run.ended.signal), (4, EndedHow::Signalled, Some(9)));
}

/// Waits until the file is there.
fn until(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start(folder: &Path, script: &str) -> Child {
    record(folder, &["--out", "out.json"], &["sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn send(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_companion_that_is_killed_leaves_the_run_to_merge() {
    let folder = folder("companion");
    let mut child = start(&folder, &format!("{TRAIN}; echo $$ > pid; sleep 60"));
    until(&folder.join("pid"));
    send(&child, "-9");
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    // The command runs on: a recorder that dies takes nothing with it.
    let pid = std::fs::read_to_string(folder.join("pid")).unwrap();
    assert!(Command::new("kill").args(["-0", pid.trim()]).status().unwrap().success());
    let merged = Command::new(env!("CARGO_BIN_EXE_vram-budget"))
        .args(["merge", "out.run", "--out", "found.json"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
    let found = document(&folder.join("found.json"));
    assert_eq!(peak(&found), Some(764_236_800));
    assert_eq!(found.run.unwrap().ended.how, EndedHow::Unknown);
    Command::new("kill").args(["-9", pid.trim()]).status().unwrap();
}

#[test]
fn signals_reach_the_command_and_the_document_says_so() {
    let folder = folder("interrupts");
    // A command that tidies up at the first interrupt, and is ended by the second.
    let script = format!("{TRAIN}; trap 'touch once; trap - INT' INT; touch ready; while :; do sleep 0.1; done");
    let mut child = start(&folder, &script);
    until(&folder.join("ready"));
    send(&child, "-INT");
    until(&folder.join("once"));
    send(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let run = document(&folder.join("out.json")).run.unwrap();
    assert_eq!((run.ended.how, run.ended.signal), (EndedHow::Signalled, Some(2)));

    let folder = self::folder("term");
    let mut child = start(&folder, &format!("{TRAIN}; trap 'exit 3' TERM; touch ready; while :; do sleep 0.1; done"));
    until(&folder.join("ready"));
    send(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert_eq!(document(&folder.join("out.json")).run.unwrap().ended.code, Some(3));
}

#[test]
fn a_command_that_ignores_interrupts_ends_at_the_third() {
    let folder = folder("stubborn");
    let mut child = start(&folder, &format!("{TRAIN}; trap '' INT; touch ready; while :; do sleep 0.1; done"));
    until(&folder.join("ready"));
    for _ in 0..3 {
        send(&child, "-INT");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert_eq!(peak(&document(&folder.join("out.json"))), Some(764_236_800));
}

#[test]
fn a_document_that_cannot_be_written_leaves_the_run_to_merge() {
    let folder = folder("unwritable");
    // Something takes the document's place while the command runs: as with a full disk, only the end finds out.
    let output = shell(&folder, &format!("{TRAIN}; mkdir -p out.json/in"));
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("vram-budget merge") && said.contains("out.run"), "{said}");
    assert_eq!(names(&folder), ["out.json", "out.run"]);
}

#[test]
fn a_command_without_training_says_that_nothing_was_seen() {
    let folder = folder("nothing");
    assert_eq!(record(&folder, &[], &["true"]).output().unwrap().status.code(), Some(0));
    let run = document(&folder.join("vram-true-1.json")).run.unwrap();
    assert!(run.notes[0].contains("no training step was seen"), "{run:?}");
}

#[test]
fn ranks_that_a_launcher_starts_one_by_one_have_documents_of_their_own() {
    let folder = folder("ranks");
    for rank in ["0", "1"] {
        let mut run = record(&folder, &["--out", "out.json"], &["sh", "-c", TRAIN]);
        assert!(run.env("SLURM_PROCID", rank).env("SLURM_STEP_NUM_TASKS", "2").output().unwrap().status.success());
    }
    assert_eq!(names(&folder), ["out.rank0.json", "out.rank1.json"]);
}

/// By tag, each step's value.
type Scalars = std::collections::BTreeMap<String, Vec<(u64, f64)>>;

/// What a line of the hook's says of a step, in the units of its scalars.
#[expect(clippy::cast_possible_truncation, reason = "scalars of 32 bits")]
fn scalars(line: &serde_json::Value) -> Vec<(&'static str, f64)> {
    let gib = |bytes: &serde_json::Value| bytes.as_f64().unwrap() / f64::from(1 << 30);
    let peak = gib(&line["peaks"][0]).max(gib(&line["update"][1]));
    let seconds = line["seconds"].as_f64().unwrap();
    [
        ("memory/max_allocated (GiB)", peak),
        ("memory/reserved (GiB)", gib(&line["update"][2])),
        ("memory/inactive_split (GiB)", gib(&line["update"][4])),
        ("throughput/steps_per_second", 1.0 / seconds),
        ("throughput/tokens_per_second", line["tokens"].as_f64().unwrap() / seconds),
    ]
    .map(|(tag, value)| (tag, f64::from(value as f32)))
    .into()
}

/// `plain.tensorboard.json` is what TensorBoard's own reader found in `plain.tfevents` (`make test-torch`).
#[test]
fn the_event_file_is_the_one_that_tensorboard_has_read() {
    let folder = folder("tensorboard");
    let kept = LINES.trim_end_matches("jsonl");
    let mut run = record(&folder, &["--out", "out.json", "--tensorboard", "events"], &["sh", "-c", TRAIN]);
    assert!(run.output().unwrap().status.success());
    let [file] = <[String; 1]>::try_from(names(&folder.join("events"))).unwrap();
    let written = std::fs::read(folder.join("events").join(file)).unwrap();
    assert_eq!(written, std::fs::read(format!("{kept}tfevents")).unwrap());
    let mut expected = Scalars::new();
    for line in std::fs::read_to_string(LINES).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        if line["t"] == "step" {
            for (tag, value) in scalars(&line) {
                expected.entry(tag.into()).or_default().push((line["n"].as_u64().unwrap(), value));
            }
        }
    }
    let read: Scalars = serde_json::from_slice(&std::fs::read(format!("{kept}tensorboard.json")).unwrap()).unwrap();
    assert_eq!(read, expected);
}

#[test]
fn output_that_nobody_reads_is_no_failure() {
    let folder = folder("pipe");
    let mut child = record(&folder, &["--out", "-"], &["true"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    let mut other = start(&folder, "exit 0");
    other.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!((other.wait().unwrap().code(), rest.as_str()), (Some(0), ""));
}

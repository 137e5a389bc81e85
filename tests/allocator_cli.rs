//! `vram-budget replay` as a person and a pipe meet it.
#![cfg(feature = "companion")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/allocator/traces/{name}.json.gz"))
}

fn unpacked(name: &str) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(trace(name)).unwrap()).read_to_string(&mut text).unwrap();
    text
}

fn replay(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vram-budget"));
    command.arg("replay").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that stops early closes its input: no failure of the test.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[track_caller]
fn text(args: &[&str], input: &str) -> String {
    let done = replay(args, input);
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// What stderr says about an input that is rejected.
#[track_caller]
fn rejected(args: &[&str], input: &str) -> String {
    let done = replay(args, input);
    assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(4), &[][..]));
    String::from_utf8(done.stderr).unwrap()
}

#[test]
fn json_has_the_recordings_own_checkpoints() {
    for name in ["micro-private-pool", "real-qwen2-fixed", "variant-streams-0--exp-roundup4"] {
        let recorded: Value = serde_json::from_str(&unpacked(name)).unwrap();
        let found: Value = serde_json::from_str(&text(&["--json", trace(name).to_str().unwrap()], "")).unwrap();
        assert_eq!(found["peaks"], recorded["peaks"]);
        for (found, recorded) in
            found["checkpoints"].as_array().unwrap().iter().zip(recorded["checkpoints"].as_array().unwrap())
        {
            for (field, value) in recorded.as_object().unwrap() {
                // Recordings list segments by address, the replay by age.
                let sorted = |v: &Value| {
                    let mut all: Vec<_> = v.as_array().into_iter().flatten().map(Value::to_string).collect();
                    all.sort();
                    if v.is_array() { all } else { vec![v.to_string()] }
                };
                assert_eq!(sorted(&found[field]), sorted(value), "{name} {field}");
            }
        }
        let last = found["checkpoints"].as_array().unwrap().last().unwrap();
        assert_eq!(found["final"]["reserved"], last["reserved"]);
        assert!(found["final"]["segments"].is_array());
    }
}

#[test]
fn text_has_a_row_for_each_checkpoint_the_end_and_the_peak() {
    let plain = unpacked("micro-oom-plain");
    let expected = "\
micro-oom-plain: 2 events, PyTorch 2.15
device 100 MiB (104857600 B), settings default

 after event       allocated       requested          active        reserved  inactive split segments retries  OOMs
           0        94371840        94371840        94371840        94371840               0        1       0     0
           1        94371840        94371840        94371840        94371840               0        1       1     1
         end        94371840        94371840        94371840        94371840               0        1       1     1
        peak        94371840        94371840        94371840        94371840               0

first out of memory at event 1: 20.0 MiB (20971520 B) asked for, 20.0 MiB (20971520 B) tried; \
90.0 MiB (94371840 B) allocated, 90.0 MiB (94371840 B) reserved
";
    // Packed or not, from a file or a pipe.
    assert_eq!(text(&["-"], &plain), expected);
    assert_eq!(text(&[trace("micro-oom-plain").to_str().unwrap()], ""), expected);
    // On a device that is large enough, nothing fails.
    let unlimited = text(&["-", "--total-mib", "unlimited"], &plain);
    assert!(unlimited.contains("device unlimited") && !unlimited.contains("out of memory"), "{unlimited}");
}

#[test]
fn differences_from_the_recording_are_printed() {
    let wrong = unpacked("micro-oom-plain").replace(r#""reserved":94371840"#, r#""reserved":94371841"#);
    let found = text(&["-"], &wrong);
    assert!(found.ends_with(
        "\n2 figures differ from the recording:
  after event 0: reserved recorded 94371841, replayed 94371840
  after event 1: reserved recorded 94371841, replayed 94371840
"
    ));
    // Under other settings they are what was asked for.
    assert!(!text(&["-", "--alloc-conf", "expandable_segments:True"], &wrong).contains("differ"));
}

#[test]
fn what_is_wrong_is_said_and_nothing_else() {
    let plain = unpacked("micro-oom-plain");
    let cases = [
        (&["-"][..], r#"{"events":[{"op":"free","id":"x"}]}"#, "error: -: event 0: `id`: \"x\" was never allocated\n"),
        (&["-"], "nonsense", "error: -: expected ident at line 1 column 2\n"),
        (
            &["-", "--alloc-conf", "max_split:1,expandable_segments:yes"],
            &plain,
            "error: settings \"max_split:1,expandable_segments:yes\" under PyTorch 2.15: `max_split` is not an \
             allocator setting; did you mean `max_split_size_mb`?; `expandable_segments` takes `True` or `False`, \
             not `yes`\n",
        ),
        (&["-", "--pytorch", "1.13"], &plain, "error: PyTorch 1.13: rules are known from 2.1 on\n"),
    ];
    for (args, input, message) in cases {
        assert_eq!(rejected(args, input), message);
    }
    let between = text(&["-", "--pytorch", "2.13"], &plain);
    assert!(between.contains("rules checked on PyTorch 2.12 and 2.15, not on 2.13"), "{between}");
    assert_eq!(replay(&["-", "--total-mib", "-1"], &plain).status.code(), Some(2));
}

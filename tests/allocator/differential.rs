//! Fresh random scripts, answered by a second implementation in Python.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vram_budget::allocator::trace::{Moment, Report, Trace, replay};

use crate::{data, scripts};

/// How many scripts; `ALLOCATOR_SCRIPTS` asks for more, `ALLOCATOR_SEED` for others.
const SCRIPTS: u64 = 300;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |n| n.parse().expect("a number"))
}

/// Appends a checkpoint after each event.
fn checked_trace(script: &Value) -> Trace {
    let mut trace = script.clone();
    let events = script["events"].as_array().unwrap().len();
    trace["checkpoints"] = (0..events).map(|n| json!({"after_event": n})).collect();
    Trace::from_json(&trace.to_string()).unwrap()
}

#[test]
fn a_second_implementation_gives_the_same_answers() {
    let python = Command::new("python3").arg("--version").stdout(Stdio::null()).status();
    if !python.is_ok_and(|status| status.success()) {
        println!("skipped: the second implementation is in Python, and there is no python3 here");
        return;
    }
    let seed = number("ALLOCATOR_SEED", 1);
    let seeds = seed * 1_000_000..seed * 1_000_000 + number("ALLOCATOR_SCRIPTS", SCRIPTS);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("allocator-scripts-{seed}.jsonl"));
    let mut file = File::create(&path).unwrap();
    for seed in seeds.clone() {
        writeln!(file, "{}", scripts::script(seed)).unwrap();
    }
    drop(file);

    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/allocator/answers.py");
    let mut python = Command::new("python3")
        // Leaves no bytecode in the source tree.
        .arg("-B")
        .arg(tool)
        .stdin(File::open(&path).unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = BufReader::new(python.stdout.take().unwrap()).lines();
    let mut ooms = 0;
    for seed in seeds {
        let answer: Value = serde_json::from_str(&answers.next().expect("an answer").unwrap()).unwrap();
        ooms += compare(seed, &answer);
    }
    assert!(python.wait().unwrap().success());
    assert!(ooms > 0, "the scripts reach out of memory");
}

/// Compares one script; returns its number of failures.
fn compare(seed: u64, answer: &Value) -> usize {
    let script = scripts::script(seed);
    let about = format!("seed {seed}: {} \"{}\"", script["version"], script["alloc_conf"]);
    let trace = checked_trace(&script);
    let config = data::recorded_config(&trace, script["version"].as_str().unwrap().parse().unwrap());
    let found = serde_json::to_value(Report::new(&trace, &config, "").unwrap()).unwrap();
    let expected = answer["figures"].as_array().unwrap();
    for (found, expected) in found["checkpoints"].as_array().unwrap().iter().zip(expected) {
        let figures = ["allocated", "requested", "active", "reserved", "inactive_split", "retries", "ooms"];
        let figures: Value = figures.iter().map(|f| found[f].clone()).collect();
        assert_eq!(&figures, expected, "{about} after event {}", found["after_event"]);
    }
    let segments = &data::older_names(&found["final"])["segments"];
    assert_eq!(segments, &answer["segments"], "{about}");

    let mut ooms = Vec::new();
    replay(&trace, &config, |moment, _| {
        if let Moment::OutOfMemory(event, oom) = moment {
            let figures = json!({
                "tried": oom.tried, "free": oom.free, "allocated": oom.allocated, "reserved": oom.reserved
            });
            ooms.push(json!([event, figures]));
        }
    })
    .unwrap();
    assert_eq!(&Value::from(ooms.clone()), &answer["ooms"], "{about}");
    ooms.len()
}

//! Real training scripts under `record`: needs PyTorch, and takes minutes (`make test-torch`).
//!
//! `VRAM_BUDGET_PYTHON` is a Python with torch, transformers, peft, accelerate and torchvision (deepspeed, lightning,
//! liger-kernel and tensorboard where they are installed) on a machine with a GPU. `VRAM_BUDGET_PHANTOM` is a directory whose `run.sh` runs `$PY` with a
//! stand-in for the driver, where there is no GPU. `VRAM_BUDGET_FIXTURES=1` writes what the hook wrote into
//! `tests/data/recordings/`, which `tests/recordings.rs` checks without PyTorch.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods, clippy::print_stderr)]

mod recorded;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use recorded::{Expect, bars, only_document};
use vram_budget::measure::{EndedHow, Measurement, ReadingName};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn python() -> String {
    std::env::var("VRAM_BUDGET_PYTHON").expect("VRAM_BUDGET_PYTHON: the Python to test with")
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("torch").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The words that run a script.
fn script(path: &str) -> Vec<String> {
    match std::env::var("VRAM_BUDGET_PHANTOM") {
        Ok(phantom) => vec![format!("{phantom}/run.sh"), path.into()],
        Err(_) => vec![python(), path.into()],
    }
}

fn command(program: &str, folder: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    let site = format!("{ROOT}/tests/torch/site");
    let more = std::env::var("PYTHONPATH").map_or_else(|_| site.clone(), |more| format!("{site}:{more}"));
    command.current_dir(folder).env("PYTHONPATH", more).env("PY", python()).env("PYTHONDONTWRITEBYTECODE", "1");
    if matches!(name, "torchtitan_style" | "deepspeed_zero") {
        for (key, value) in [
            ("BACKEND", "fake"),
            ("WORLD_SIZE", "4"),
            ("RANK", "0"),
            ("LOCAL_RANK", "0"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", "29511"),
            ("DS_ACCELERATOR", "cuda"),
        ] {
            command.env(key, value);
        }
    }
    command
}

/// Runs a script of the tests, or an example, under `record`, as `words` say.
fn recorded_run(name: &str, words: &[String]) -> (Output, PathBuf) {
    let folder = folder(name);
    let mut run = command(env!("CARGO_BIN_EXE_vram-budget"), &folder, name);
    run.args(["record", "--out", "out.json", "--"]).args(words).env("PHANTOM_TOTAL_MB", "2000");
    (run.output().unwrap(), folder)
}

fn installed(package: &str, what: &str) -> bool {
    let ask = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)");
    let found = Command::new(python()).args(["-c", &ask]).status().unwrap().success();
    if !found {
        eprintln!("{what}: left out, {package} is not installed");
    }
    found
}

#[test]
#[ignore = "needs PyTorch: make test-torch"]
fn a_disk_that_fills_up_ends_the_recording_and_not_the_training() {
    // A file that may not grow beyond a few blocks refuses what a full disk does; Python gets an error, not a signal.
    let limited = ["sh", "-c", "ulimit -f 8; exec \"$@\"", "sh"].map(str::to_owned);
    let words: Vec<String> = limited.into_iter().chain(script(&format!("{ROOT}/tests/torch/many_steps.py"))).collect();
    let (output, folder) = recorded_run("full", &words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"trained\n"[..]), "{said}");
    assert!(said.contains("no more is recorded of process"), "{said}");
    let run = only_document(&folder).unwrap().run.unwrap();
    assert!((1..40).contains(&run.steps), "what was measured before it counts: {}", run.steps);
    assert!(run.notes.iter().any(|note| note.contains("cut off")), "{:?}", run.notes);
}

#[test]
#[ignore = "needs PyTorch: make test-torch"]
fn the_reader_of_tensorboard_finds_what_was_written() {
    if !installed("tensorboard", "the event file") {
        return;
    }
    let recordings = format!("{ROOT}/tests/data/recordings");
    let folder = folder("tensorboard");
    let copy = "cp \"$LINES\" \"$VRAM_BUDGET_RECORD_DIR/process-here-1.jsonl\"";
    let recorded = command(env!("CARGO_BIN_EXE_vram-budget"), &folder, "tensorboard")
        .args(["record", "--out", "out.json", "--tensorboard", "events", "--", "sh", "-c", copy])
        .env("LINES", format!("{recordings}/plain.jsonl"))
        .status();
    assert!(recorded.unwrap().success());
    let reader = format!("{ROOT}/tests/torch/read_tensorboard.py");
    let read = command(&python(), &folder, "tensorboard").args([&reader, "events"]).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let kept = format!("{recordings}/plain.tensorboard.json");
    if std::env::var_os("VRAM_BUDGET_FIXTURES").is_some() {
        std::fs::write(&kept, &read.stdout).unwrap();
        let file = std::fs::read_dir(folder.join("events")).unwrap().next().unwrap().unwrap();
        std::fs::copy(file.path(), format!("{recordings}/plain.tfevents")).unwrap();
    }
    assert_eq!(read.stdout, std::fs::read(kept).unwrap(), "tags, steps and values");
}

#[test]
#[ignore = "needs PyTorch: make test-torch"]
fn an_error_in_the_hook_is_noted_and_the_training_goes_on() {
    let (output, folder) = recorded_run("hook_error", &script(&format!("{ROOT}/tests/torch/hook_error.py")));
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"trained\n"[..]));
    let run = only_document(&folder).unwrap().run.unwrap();
    assert_eq!(run.steps, 1, "what was measured before it counts");
    assert!(run.notes.iter().any(|note| note.contains("the hook failed") && note.contains("odd")), "{:?}", run.notes);
}

#[test]
#[ignore = "needs PyTorch: make test-torch"]
fn where_memory_runs_out_message_instant_and_snapshot_are_kept() {
    let (output, folder) = recorded_run("out_of_memory", &script(&format!("{ROOT}/tests/torch/out_of_memory.py")));
    assert_eq!(output.status.code(), Some(1), "the training's own code");
    assert!(String::from_utf8_lossy(&output.stderr).contains("CUDA out of memory"), "and its own message");
    let found = only_document(&folder).unwrap();
    assert_eq!(found.failure.as_ref().unwrap().kind, vram_budget::measure::FailureKind::OutOfMemory);
    assert!(found.bytes("tried".parse::<ReadingName>().unwrap()).is_some_and(|bytes| bytes > 0));
    let run = found.run.unwrap();
    assert!(run.ended.error.unwrap().starts_with("OutOfMemoryError"));
    assert!(run.notes.iter().any(|note| note.starts_with("memory ran out in step")), "{:?}", run.notes);
    assert!(folder.join("out.pickle").metadata().unwrap().len() > 1000);
}

#[test]
#[ignore = "needs PyTorch: make test-torch"]
fn ranks_of_torchrun_merge() {
    let torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"].map(str::to_owned);
    let words: Vec<String> =
        [python()].into_iter().chain(torchrun).chain([format!("{ROOT}/examples/ddp_cpu.py")]).collect();
    let (output, folder) = recorded_run("torchrun", &words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = only_document(&folder).unwrap().run.unwrap();
    assert_eq!((run.world_size, run.steps), (Some(2), 4));
    assert_eq!(run.ranks.iter().map(|part| (part.rank, part.steps)).collect::<Vec<_>>(), [(0, 4), (1, 4)]);
    assert!(run.missing_ranks.is_empty() && run.clock_skew_ms.is_some_and(|skew| skew < 1000), "{run:?}");
    assert!(folder.join("out.rank1.json").exists());
}

/// Runs an example under `record`; the document, and what the script read by itself.
fn record(name: &str, options: &[&str]) -> (Output, Option<Measurement>, Vec<(String, i64, i64)>) {
    let folder = folder(name);
    let mut run = command(env!("CARGO_BIN_EXE_vram-budget"), &folder, name);
    run.arg("record").args(["--out", "out.json"]).args(options).arg("--").env("READINGS", folder.join("recorded.json"));
    // The lines as the hook wrote them are kept beside the document.
    let keep = "\"$@\"; code=$?; cp \"$VRAM_BUDGET_RECORD_DIR\"/process-*.jsonl lines.jsonl 2>/dev/null; exit $code";
    run.args(["sh", "-c", keep, "sh"]).args(script(&format!("{ROOT}/examples/{name}.py")));
    let output = run.output().unwrap();
    let lines = folder.join("lines.jsonl");
    if std::env::var_os("VRAM_BUDGET_FIXTURES").is_some() && lines.exists() && options.is_empty() {
        let text = std::fs::read_to_string(&lines).unwrap();
        let kept: String = text.lines().map(|line| format!("{}\n", recorded::anonymous(line))).collect();
        std::fs::write(format!("{ROOT}/tests/data/recordings/{name}.jsonl"), kept).unwrap();
    }
    let read = readings(&folder.join("recorded.json"));
    (output, only_document(&folder), read)
}

fn readings(path: &Path) -> Vec<(String, i64, i64)> {
    std::fs::read_to_string(path).map_or_else(|_| Vec::new(), |text| serde_json::from_str(&text).unwrap())
}

/// What the script reads without `record` is what it reads with it; and the document says the same of each instant.
fn check(name: &str, expect: Expect) {
    let (output, document, read) = record(name, &[]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {err}");
    let document = document.unwrap_or_else(|| panic!("{name}: no document: {err}"));
    let run = document.run.clone().unwrap();
    assert_eq!((run.ended.how, run.ended.code), (EndedHow::Exited, Some(0)), "{name}");
    assert!(run.steps >= 3, "{name}: {run:?}");
    eprintln!("{name}: {:?} s a step, notes {:?}", run.step_seconds, run.notes);

    if !read.is_empty() {
        let alone = folder(&format!("{name}-alone"));
        let words = script(&format!("{ROOT}/examples/{name}.py"));
        let path = alone.join("read.json");
        let run = command(&words[0], &alone, name).args(&words[1..]).env("READINGS", &path).output().unwrap();
        assert!(run.status.success(), "{name}: {}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(readings(&path), read, "{name}: what the script reads is not changed");
        instants(name, &document, &read);
    }
    bars(name, &document, expect);
}

/// Compares the script's own readings with the document's, instant by instant: equal but for a scalar or a small batch of labels
/// that lie between the two places where they are read.
fn instants(name: &str, document: &Measurement, read: &[(String, i64, i64)]) {
    let (mut step, mut seen, mut compared) = (0, Vec::new(), 0);
    for (at, allocated, peak) in read {
        if at == "base" {
            step += 1;
            seen.clear();
        }
        let which = ["first", "steady"].get(step - 1);
        let Some(which) = which.filter(|_| !seen.contains(at)) else { continue };
        seen.push(at.clone());
        let of: &[(&str, i64)] = match at.as_str() {
            "base" => &[("base", *allocated)],
            "forward" => &[("forward_end", *allocated), ("forward_peak", *peak)],
            "backward" => &[("backward_end", *allocated), ("backward_peak", *peak)],
            "update" => &[("after_step", *allocated), ("step_peak", *peak)],
            _ => &[],
        };
        for (reading, bytes) in of {
            let reading = format!("{which}.{reading}");
            let found = document.bytes(reading.parse::<ReadingName>().unwrap());
            assert!(
                found.is_some_and(|found| (found - bytes).abs() <= 512),
                "{name}: {reading}: {found:?}, the script {bytes}"
            );
            compared += 1;
        }
    }
    assert!(compared >= 6, "{name}: {compared} instants");
}

#[test]
#[ignore = "needs PyTorch: make test-torch"]
fn scripts_of_every_style_are_measured_and_predicted() {
    for (name, expect) in recorded::EXAMPLES {
        let needs = match name {
            "deepspeed_zero" => Some("deepspeed"),
            "liger" => Some("liger_kernel"),
            "lightning_loop" => Some("lightning"),
            _ => None,
        };
        if needs.is_none_or(|package| installed(package, name)) {
            check(name, expect);
        }
    }
}

//! `vram-budget reconcile` as a person calls it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use vram_budget::measure::{Case, Figure, Measurement, Reading, ReadingName};
use vram_budget::plan::Plan;
use vram_budget::recipe::Precision;

fn run(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vram-budget"))
        .args(args)
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A file of these tests, named as `name`.
fn file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A recorded step of GPT-2 and its plan.
fn recorded() -> (Plan, Measurement) {
    let table = include_str!("data/training-steps/cases.jsonl");
    let line = table
        .lines()
        .find(|line| line.contains("\"id\":\"gpt2_L4_sm80_amp_bf16_sdpa_nock_adamw-foreach_fullft_b2s512"))
        .unwrap();
    let case = Case::read(line).unwrap();
    (case.plan.unwrap(), Measurement { id: Some("gpt2".into()), ..Measurement::new(case.readings) })
}

#[test]
fn the_hidden_recipe_is_named() {
    let (mut plan, measurement) = recorded();
    plan.recipe.precision = Some(Precision::PureBf16);
    file("reconcile-plan.json", &serde_json::to_string(&plan).unwrap());
    file("reconcile-measured.json", &serde_json::to_string(&measurement).unwrap());
    let (code, out, err) = run(&["reconcile", "reconcile-plan.json", "reconcile-measured.json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    insta::assert_snapshot!(out);
    let (_, same, _) = run(&["reconcile", "--plan", "reconcile-plan.json", "reconcile-measured.json"]);
    assert_eq!(same, out);
    let (_, right, _) =
        run(&["reconcile", "reconcile-plan.json", "reconcile-measured.json", "--precision", "amp_bf16"]);
    assert!(right.contains("as predicted"), "{right}");
    let (_, json, _) = run(&["reconcile", "reconcile-plan.json", "reconcile-measured.json", "--json"]);
    let document: Value = serde_json::from_str(&json).unwrap();
    let first = &document["measurements"][0]["hypotheses"][0];
    assert_eq!(first["suspect"]["change"]["precision"], "amp_bf16");
    let other = &document["measurements"][0]["hypotheses"][1];
    assert_eq!(other["suspect"]["change"]["precision"], "amp_fp16", "which predicts the same");
    let share = |one: &Value| one["confidence"].as_f64().unwrap();
    assert!(share(first) < 0.5 && (share(first) - share(other)).abs() < 0.01, "they share the confidence");
    let adopted: Plan = serde_json::from_value(first["plan"].clone()).unwrap();
    assert_eq!(adopted.recipe.precision, Some(Precision::AmpBf16), "one step to adopt it");
}

#[test]
fn what_nothing_explains_is_said() {
    let (plan, mut measurement) = recorded();
    let odd = measurement.readings.iter_mut().filter(|reading| reading.name.to_string().ends_with("backward_peak"));
    for reading in odd {
        reading.figure = vram_budget::measure::Figure::Bytes(reading.bytes().unwrap() + 1_400_000_000);
    }
    file("odd-plan.json", &serde_json::to_string(&plan).unwrap());
    file("odd-measured.json", &serde_json::to_string(&measurement).unwrap());
    let (code, out, _) = run(&["reconcile", "odd-plan.json", "odd-measured.json"]);
    assert_eq!(code, 0);
    assert!(out.contains("Nothing we know explains 1.3"), "{out}");
    assert!(!out.contains("high confidence"), "{out}");
}

/// A plan is fitted to what three runs show of the process, is used by `estimate`, and gives its calibration back.
#[test]
fn a_plan_is_calibrated_and_used() {
    let (plan, measurement) = recorded();
    let plan_text = serde_json::to_string(&plan).unwrap();
    file("calibrate-plan.json", &plan_text);
    let process: ReadingName = "process".parse().unwrap();
    let reserved = measurement.bytes(ReadingName::MaxReserved).unwrap();
    for (run, context) in [(1, 690_i64), (2, 700), (3, 712)] {
        let mut seen = measurement.clone();
        seen.readings.push(Reading::new(process, process.tier(), Figure::Bytes(reserved + (context << 20))));
        file(&format!("calibrate-{run}.json"), &serde_json::to_string(&seen).unwrap());
    }
    let files = ["calibrate-1.json", "calibrate-2.json", "calibrate-3.json"];
    let (code, calibrated, said) = run(&[&["calibrate", "calibrate-plan.json"], &files[..]].concat());
    assert_eq!(code, 0, "{said}");
    insta::assert_snapshot!(said);
    file("calibrated.json", &calibrated);
    let (_, text, _) = run(&["estimate", "--plan", "calibrated.json"]);
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("Allocated peak")).take(7).collect();
    insta::assert_snapshot!(lines.join("\n"));
    let (_, json, _) = run(&["estimate", "--plan", "calibrated.json", "--json"]);
    let document: Value = serde_json::from_str(&json).unwrap();
    let [low, high] = [0, 1].map(|at| document["intervals"]["process"][at].as_i64().unwrap());
    assert!(low < reserved + (690 << 20) && high > reserved + (712 << 20), "{low} to {high}");
    assert_eq!(document["plan"]["calibration"]["measurements"], 3);
    let (_, before, _) = run(&["calibrate", "--plan", "calibrated.json", "--remove"]);
    assert_eq!(serde_json::from_str::<Value>(&before).unwrap(), serde_json::from_str::<Value>(&plan_text).unwrap());
    let (code, _, err) = run(&["calibrate", "gpt2"]);
    assert!(code == 4 && err.contains("no measurement"), "{err}");
}

#[test]
fn files_are_asked_for_and_must_be_measurements() {
    let (code, _, err) = run(&["reconcile", "gpt2"]);
    assert!(code == 4 && err.contains("no measurement"), "{err}");
    let path = file("no-measurement.txt", "Lorem ipsum dolor sit amet.");
    let (code, _, err) = run(&["reconcile", "gpt2", path.to_str().unwrap()]);
    assert!(code == 4 && err.contains("not a format"), "{err}");
}

//! `vram-budget compare` as a person calls it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

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
fn file(name: &str, text: &str) {
    std::fs::write(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name), text).unwrap();
}

/// Several runs of one configuration, one a line: their peaks in GB and samples a second.
fn runs(id: &str, all: &[(u64, f64)]) -> String {
    let run = |&(peak, speed): &(u64, f64)| {
        json!({
            "format": "vram-budget-measurement",
            "version": 3,
            "id": id,
            "readings": [{ "name": "max_allocated", "tier": "allocated", "bytes": peak * 1_000_000_000 }],
            "run": { "steps": 50, "samples_per_step": 32, "step_seconds": 32.0 / speed },
        })
    };
    all.iter().map(|one| run(one).to_string() + "\n").collect()
}

/// The articles' example (A9): three configurations, three runs each after a cold one.
#[test]
fn the_articles_ladder_is_put_side_by_side() {
    file("a9-fp32.json", &runs("FP32", &[(70, 40.0), (60, 100.0), (60, 100.0), (60, 100.0)]));
    file("a9-amp.json", &runs("AMP", &[(55, 40.0), (45, 130.0), (44, 128.0), (46, 132.0)]));
    file("a9-ckpt.json", &runs("AMP and checkpointing", &[(35, 20.0), (30, 90.0), (30, 90.0), (30, 90.0)]));
    let args = ["compare", "gpt2", "a9-fp32.json", "a9-amp.json", "a9-ckpt.json", "--warm-up", "1"];
    let (code, out, err) = run(&args);
    assert_eq!((code, err.as_str()), (0, ""));
    insta::assert_snapshot!(out);
    let (_, json, _) = run(&[&args[..], &["--json"]].concat());
    let document: Value = serde_json::from_str(&json).unwrap();
    let found = &document["comparison"];
    assert_eq!(found["entries"][2]["name"], "AMP");
    assert_eq!((&found["fastest"], &found["fastest_grown"]), (&json!(2), &json!(3)), "AMP; checkpointing, grown");
    assert_eq!(found["entries"][3]["micro_batch"]["to"], 2);
}

/// A plan's file and a measurement of a job that it names stand beside the plan, on the plan's card.
#[test]
fn plans_and_measured_jobs_stand_on_the_plans_card() {
    let plan = json!({ "version": 1, "model": { "preset": "gpt2" },
                       "recipe": { "precision": "amp_bf16", "micro_batch": 4, "seq_len": 512 } });
    file("side-plan.json", &plan.to_string());
    let (_, out, _) = run(&["estimate", "--plan", "side-plan.json", "--json"]);
    let estimate: Value = serde_json::from_str(&out).unwrap();
    let peak = estimate["tiers"]["allocated"]["peak_bytes"].as_u64().unwrap();
    let mut measured: Value = serde_json::from_str(runs("measured", &[(1, 20.0)]).trim()).unwrap();
    measured["plan"] = plan;
    measured["readings"][0]["bytes"] = (peak + 100_000_000).into();
    let reserved = json!({ "name": "max_reserved", "tier": "reserved", "bytes": peak + 400_000_000 });
    measured["readings"].as_array_mut().unwrap().push(reserved);
    file("side-measured.json", &measured.to_string());
    let (code, out, err) =
        run(&["compare", "gpt2", "side-plan.json", "side-measured.json", "--gpu", "RTX 4090", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let document: Value = serde_json::from_str(&out).unwrap();
    let [own, plan, measured] = [0, 1, 2].map(|at| &document["comparison"]["entries"][at]);
    assert!([own, plan, measured].iter().all(|entry| entry["verdict"] == "fits"), "{out}");
    assert_eq!((&plan["peak"], &plan["name"]), (&json!(peak), &json!("side-plan")));
    assert_eq!((&measured["predicted"], &measured["peak"]), (&json!(peak), &json!(peak + 100_000_000)));
    let to = |entry: &Value| entry["micro_batch"]["to"].as_u64().unwrap();
    assert!(to(plan) > 4 && to(measured) <= to(plan) && to(measured) > 4, "{} {}", to(plan), to(measured));
    file("side-wrong.json", &json!({ "version": 1, "model": { "preset": "gpt2" }, "recipy": {} }).to_string());
    let (code, _, err) = run(&["compare", "gpt2", "side-wrong.json"]);
    assert!(code == 4 && err.contains("not a plan") && err.contains("recipy"), "{err}");
}

/// Three batches of a model that is not known: the fourth is predicted, labelled, with interval and range; what cannot be known
/// is refused.
#[test]
fn an_unknown_model_is_predicted_from_its_measurements() {
    // Forward keeps 2 MB a token, the loss takes 0.5 MB more, the optimizer's step is as high as it is.
    for (batch, name) in [(2, "unknown-a.json"), (4, "unknown-b.json"), (6, "unknown-c.json")] {
        let tokens = batch * 1024_u64;
        let reading = |name: &str, bytes: u64| json!({ "name": name, "tier": "allocated", "bytes": bytes });
        let document = json!({
            "format": "vram-budget-measurement",
            "version": 3,
            "readings": [
                reading("steady.forward_peak", 8_000_000_000 + tokens * 2_000_000),
                reading("steady.backward_peak", 8_000_000_000 + tokens * 2_500_000),
                reading("steady.step_peak", 14_000_000_000),
            ],
        });
        file(name, &document.to_string());
    }
    let files = ["2x1024=unknown-a.json", "4x1024=unknown-b.json", "6x1024=unknown-c.json"];
    let (code, out, err) = run(&[&["empirical"], &files[..], &["--micro-batch", "8"]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    insta::assert_snapshot!(out);
    let (_, json, _) = run(&[&["empirical"], &files[..], &["-b", "5", "--json"]].concat());
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["predicted"]["peak"]["bytes"], 8_000_000_000 + 5 * 1024 * 2_500_000_u64);
    assert_eq!(document["predicted"]["peak"]["within_range"], true);
    let (_, room, _) = run(&[&["empirical"], &files[..], &["-s", "1024", "--room", "30 GB"]].concat());
    assert!(room.contains("Micro-batch 8 of 1024"), "{room}");
    let (code, _, err) = run(&[&["empirical"], &files[..], &["-b", "4", "-s", "2048"]].concat());
    assert!(code == 4 && err.contains("grows with the sequence"), "{err}");
    let (code, _, err) = run(&["empirical", "unknown-a.json"]);
    assert!(code == 4 && err.contains("4x1024=unknown-a.json"), "{err}");
    let (code, _, err) = run(&["empirical", files[0]]);
    assert!(code == 4 && err.contains("nothing to fit"), "{err}");
}

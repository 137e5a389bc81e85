//! The families that the first table of measured steps does not have, against steps of their own; and the repetition of
//! a layer against all layers written out.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_precision_loss,
    clippy::disallowed_methods
)]

use std::fs;
use std::path::Path;

use vram_budget::allocator::Config;
use vram_budget::estimate::{Job, estimate};
use vram_budget::measure::{Case, Figure, ReadingName};
use vram_budget::model::ModelSource;
use vram_budget::step::readings::Readings;
use vram_budget::step::replay::replay;
use vram_budget::step::train::{Steps, walk, walk_literally};

fn lines(wanted: impl Fn(&str) -> bool) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/training-steps");
    let mut names: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.retain(|name| wanted(name));
    let read = |name: &String| fs::read_to_string(folder.join(name)).unwrap();
    names.iter().map(read).flat_map(|text| text.lines().map(|l| Case::read(l).unwrap()).collect::<Vec<_>>()).collect()
}

/// Which of a case's peaks are off by more than 0.3 % (allocated) or 1.5 % (reserved).
fn misses(case: &Case, readings: &Readings) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, ours, most) in [
        (ReadingName::MaxAllocated, readings.max_allocated, 0.003),
        // Gemma 3 makes its two rotary tables in the order of a Python set of strings, which varies from run to run;
        // small models' addresses, and so what stays reserved, depend on it.
        (ReadingName::MaxReserved, readings.max_reserved, if case.family == "gemma3_text" { 0.03 } else { 0.015 }),
    ] {
        let Figure::Bytes(measured) = case.readings.iter().find(|r| r.name == name).unwrap().figure else {
            panic!("{} has bytes", case.id)
        };
        let off = (ours.as_f64() - measured as f64) / measured as f64;
        if off.abs() > most {
            wrong.push(format!("{} {name:?} {:+.2} %", case.id, 100.0 * off));
        }
    }
    wrong
}

#[test]
fn further_families_are_predicted() {
    let mut wrong = Vec::new();
    for case in lines(|name| name.starts_with("further-")) {
        let Ok(plan) = &case.plan else { panic!("{}: {:?}", case.id, case.plan) };
        let readings = estimate(plan).unwrap().readings.unwrap();
        wrong.extend(misses(&case, &readings));
    }
    assert!(wrong.is_empty(), "{} figures:\n{}", wrong.len(), wrong.join("\n"));
}

/// The drawn steps whose tables stand in `docs/accuracy.md`, under the rules that came out of them.
#[test]
fn fresh_steps_are_predicted() {
    let mut wrong = Vec::new();
    let mut predicted = 0;
    for case in lines(|name| name.starts_with("fresh-")) {
        let Ok(plan) = &case.plan else { continue };
        if case.out_of_memory {
            continue;
        }
        let Ok(estimate) = estimate(plan) else { continue };
        predicted += 1;
        wrong.extend(misses(&case, &estimate.readings.unwrap()));
    }
    assert!(wrong.is_empty(), "{} figures:\n{}", wrong.len(), wrong.join("\n"));
    assert!(predicted > 700, "{predicted}");
}

#[test]
fn repeating_a_layer_tells_the_same_as_writing_all_out() {
    const DEEP: u64 = 7;
    let mut seen: Vec<(String, Option<_>, Option<_>)> = Vec::new();
    for case in lines(|name| name == "cases.jsonl" || name.starts_with("further-")) {
        let Ok(mut plan) = case.plan else { continue };
        let kind = (case.family, plan.recipe.attention, plan.recipe.precision);
        if seen.contains(&kind) {
            continue;
        }
        plan.recipe.micro_batch = 1;
        plan.recipe.seq_len = plan.recipe.seq_len.min(128);
        plan.recipe.lora = None;
        let ModelSource::Config(config) = &mut plan.model else { panic!("a case has a config") };
        for name in ["num_hidden_layers", "n_layer"] {
            if config.contains_key(name) {
                config.insert(name.into(), DEEP.into());
            }
        }
        config.remove("layer_types");
        let Ok(job) = Job::of(&plan) else { continue };
        seen.push(kind);
        let precision = plan.recipe.precision.unwrap_or(vram_budget::recipe::Precision::AmpBf16);
        let model = job.model.as_ref();
        let steps = Steps::FirstAndSteady;
        let config = Config { alloc_conf: job.alloc_conf.clone(), ..Config::new(plan.framework.pytorch) };
        let short = walk(model, &plan, precision, job.device, steps).unwrap();
        let long = walk_literally(model, &plan, precision, job.device, steps).unwrap();
        let figures = |w| {
            let r = replay(w, &config).unwrap();
            (r.max_requested, r.max_allocated, r.max_reserved, r.optimizer_state)
        };
        assert_eq!(figures(&short), figures(&long), "{:?}", seen.last());
    }
    assert!(seen.len() > 20, "{}", seen.len());
}

/// Parameters, in order, have the names and sizes that transformers 5.24 gives them (`named_parameters()` of models made
/// from the same configs).
#[test]
fn parameters_have_the_names_that_transformers_gives_them() {
    #[derive(serde::Deserialize)]
    struct Recorded {
        model: serde_json::Map<String, serde_json::Value>,
        parameters: Vec<(String, Vec<u64>)>,
    }
    for line in include_str!("data/parameter-names.jsonl").lines() {
        let recorded: Recorded = serde_json::from_str(line).unwrap();
        let model = vram_budget::model::read_config(&recorded.model).unwrap().model;
        let sizes = model.parameters().into_iter().map(|p| p.shape.dims().iter().map(|d| d.n).collect());
        let ours: Vec<(String, Vec<u64>)> = model.parameter_names().into_iter().zip(sizes).collect();
        assert_eq!(ours, recorded.parameters, "{:?}", recorded.model);
        assert_eq!(model.parameters().len(), recorded.parameters.len());
    }
}

/// What Liger has no kernel for, or none that is modelled here, is refused by name.
#[test]
fn absent_kernels_of_liger_are_refused() {
    use vram_budget::recipe::LigerKernel;
    let of = |preset: &str, kernels: &[LigerKernel]| {
        let plan: vram_budget::plan::Plan = serde_json::from_value(serde_json::json!({
            "version": 1, "model": { "preset": preset }, "recipe": { "liger": kernels },
            "machine": { "gpu": { "catalogue": "H100 SXM5 80GB" } }
        }))
        .unwrap();
        Job::of(&plan).map(drop).map_err(|issues| issues.into_iter().map(|i| i.field).collect::<Vec<_>>())
    };
    assert_eq!(of("llama-3.1-8b", &LigerKernel::DEFAULT), Ok(()));
    assert_eq!(of("llama-3.1-8b", &LigerKernel::ALL), Err(vec!["recipe.liger".to_owned()]));
    assert_eq!(of("mixtral-8x7b", &LigerKernel::DEFAULT), Err(vec!["recipe.liger".to_owned()]));
    assert_eq!(of("mixtral-8x7b", &[LigerKernel::RmsNorm]), Ok(()));
    assert_eq!(of("gpt2", &LigerKernel::DEFAULT).unwrap_err().len(), 4);
}

/// Padding is modelled where attention has no window; elsewhere, and beside what says it otherwise, it is refused.
#[test]
fn padding_that_is_not_modelled_is_refused() {
    let of = |preset: &str, recipe: serde_json::Value| {
        let plan: vram_budget::plan::Plan = serde_json::from_value(serde_json::json!({
            "version": 1, "model": { "preset": preset }, "recipe": recipe,
            "machine": { "gpu": { "catalogue": "H100 SXM5 80GB" } }
        }))
        .unwrap();
        Job::of(&plan).map(drop).map_err(|issues| issues.into_iter().map(|i| i.field).collect::<Vec<_>>())
    };
    let refused = Err(vec!["recipe.padded".to_owned()]);
    assert_eq!(of("llama-3.1-8b", serde_json::json!({ "padded": true })), Ok(()));
    assert_eq!(of("gpt2", serde_json::json!({ "padded": true })), refused);
    for recipe in [
        serde_json::json!({ "padded": true, "packed": [300, 212] }),
        serde_json::json!({ "padded": true, "sdpa_backend": "math" }),
        serde_json::json!({ "padded": true, "attention": "flash_attention_2" }),
    ] {
        assert_eq!(of("llama-3.1-8b", recipe), refused);
    }
}

/// What peft 0.21 refuses of adapters on experts is refused, with its reason.
#[test]
fn adapters_that_peft_refuses_on_experts_are_refused() {
    let of = |preset: &str, lora: serde_json::Value| {
        let plan: vram_budget::plan::Plan = serde_json::from_value(serde_json::json!({
            "version": 1, "model": { "preset": preset }, "recipe": { "lora": lora },
            "machine": { "gpu": { "catalogue": "H100 SXM5 80GB" } }
        }))
        .unwrap();
        let told = |issue| format!("{issue:?}");
        Job::of(&plan).map(drop).map_err(|issues| issues.into_iter().map(told).collect::<Vec<_>>().join("; "))
    };
    let mixtral = |targets: serde_json::Value| of("mixtral-8x7b", serde_json::json!({ "r": 8, "targets": targets }));
    assert_eq!(mixtral("all-linear".into()), Ok(()));
    assert_eq!(mixtral(["q_proj", "w1", "w2", "w3", "gate"].into()), Ok(()));
    let alone = mixtral(["w1", "w2"].into()).unwrap_err();
    assert!(alone.contains("w3 too") && alone.contains("fused into gate_up_proj"), "{alone}");
    assert!(mixtral(["gate_proj"].into()).unwrap_err().contains("UnknownName"));
    let dropped = serde_json::json!({ "r": 8, "targets": "all-linear", "dropout": 0.1 });
    assert!(of("mixtral-8x7b", dropped).unwrap_err().contains("lora_dropout != 0"));
    let dora = serde_json::json!({ "r": 8, "targets": ["w2"], "use_dora": true });
    assert!(of("mixtral-8x7b", dora).unwrap_err().contains("use_dora=True"));
    let named = |names: serde_json::Value| serde_json::json!({ "r": 8, "targets": [], "target_parameters": names });
    assert_eq!(of("gpt-oss-20b", named(["mlp.experts.gate_up_proj", "experts.down_proj"].into())), Ok(()));
    let unknown = of("gpt-oss-20b", named(["experts.up_proj"].into())).unwrap_err();
    assert!(unknown.contains("UnknownName") && unknown.contains("experts.down_proj"), "{unknown}");
    assert!(of("llama-3.1-8b", named(["q_proj.weight"].into())).unwrap_err().contains("NotModelled"));
    // A matrix's layers that are not targeted are as they were.
    assert_eq!(of("qwen3-30b-a3b", serde_json::json!({ "r": 8, "targets": ["q_proj"], "dropout": 0.1 })), Ok(()));
}

/// Packed sequences are one row whose lengths add up; what cannot be given such a row is refused.
#[test]
fn packed_sequences_are_one_row() {
    let of = |preset: &str, recipe: serde_json::Value| {
        let plan: vram_budget::plan::Plan = serde_json::from_value(serde_json::json!({
            "version": 1, "model": { "preset": preset }, "recipe": recipe,
            "machine": { "gpu": { "catalogue": "H100 SXM5 80GB" } }
        }))
        .unwrap();
        Job::of(&plan).map(drop).map_err(|issues| issues.into_iter().map(|i| i.field).collect::<Vec<_>>())
    };
    let recipe =
        |lengths: &[u64], rows: u64| serde_json::json!({ "packed": lengths, "seq_len": 512, "micro_batch": rows });
    assert_eq!(of("llama-3.1-8b", recipe(&[300, 212], 1)), Ok(()));
    assert_eq!(of("llama-3.1-8b", recipe(&[300, 200], 1)), Err(vec!["recipe.packed".to_owned()]));
    assert_eq!(of("llama-3.1-8b", recipe(&[512, 0], 1)), Err(vec!["recipe.packed".to_owned()]));
    assert_eq!(of("llama-3.1-8b", recipe(&[300, 212], 2)), Err(vec!["recipe.micro_batch".to_owned()]));
    assert_eq!(of("bert-large-uncased", recipe(&[300, 212], 1)), Err(vec!["recipe.packed".to_owned()]));
}

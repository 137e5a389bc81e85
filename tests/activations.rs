//! What autograd keeps for backward, per layer, against what `saved_tensors_hooks` collected from the real classes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use serde::Deserialize;
use serde_json::{Value, json};
use vram_budget::estimate::Job;
use vram_budget::issue::Issue;
use vram_budget::measure::Case;
use vram_budget::model::ModelSource;
use vram_budget::step::log::{Event, Mark};

/// Seeds and offsets of random numbers, per layer, in bytes.
const SCALARS: i64 = 96;

/// Here the hooks, on a fake device, saw keys and values repeated for every query head before memory-efficient attention.
/// Recorded steps of PyTorch 2.15 over its real dispatch keep them unrepeated: `llama3.2-1b_L2` and `_L4` with `fp32_sdpa_nock`
/// in the measured cases differ by 205 661 184 B per layer, which leaves no room for the 12 MiB more. The steps count.
const OVERRULED: [&str; 1] = ["llama, fp32, sdpa"];

#[derive(Deserialize)]
struct Check {
    id: String,
    case: Value,
    /// Requested bytes, without parameters.
    saved_bytes_per_layer: i64,
    /// The low-precision copies of weights that autocast keeps until backward.
    cast_weight_bytes_per_layer: i64,
}

/// What a forward pass of `layers` layers leaves behind, in requested bytes.
fn kept(check: &Check, layers: u64) -> Result<i64, Vec<Issue>> {
    let line = json!({ "id": check.id, "case": check.case, "result": {} }).to_string();
    let mut plan = Case::read(&line).unwrap().plan?;
    let ModelSource::Config(config) = &mut plan.model else { panic!("a check has a config") };
    for name in ["num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"] {
        if config.contains_key(name) {
            config.insert(name.into(), layers.into());
        }
    }
    // The cache of keys and values, which the model's output holds, is not autograd's.
    config.insert("use_cache".into(), false.into());
    let walk = Job::of(&plan)?.walk_steady(&plan, plan.recipe.precision.unwrap())?;
    assert_eq!(walk.repeats, 0, "so few layers are all written out");
    let size = |id: u32| i64::try_from(walk.tensors[id as usize].bytes.get()).unwrap();
    let mut live = 0;
    let mut before = 0;
    for event in walk.events {
        match event {
            Event::Alloc(id) => live += size(id),
            Event::Free(id) => live -= size(id),
            Event::Mark(Mark::Inputs) => before = live,
            Event::Mark(Mark::ForwardEnd) => return Ok(live - before),
            _ => {}
        }
    }
    panic!("{}: forward ends", check.id)
}

#[test]
fn a_layer_keeps_what_the_hooks_saw() {
    let mut wrong = Vec::new();
    for line in include_str!("data/saved-activations/checks.jsonl").lines() {
        let check: Check = serde_json::from_str(line).unwrap();
        let ours = match (kept(&check, 3), kept(&check, 2)) {
            (Ok(three), Ok(two)) => three - two,
            (Err(refused), _) | (_, Err(refused)) => {
                wrong.push(format!("{}: {refused:?}", check.id));
                continue;
            }
        };
        let seen = check.saved_bytes_per_layer + check.cast_weight_bytes_per_layer;
        let agrees = (ours - seen).abs() <= SCALARS;
        if agrees == OVERRULED.contains(&check.id.as_str()) {
            wrong.push(format!("{}: {ours}, seen {seen}: {:+}", check.id, ours - seen));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

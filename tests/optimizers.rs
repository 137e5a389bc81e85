//! Optimizers against measured steps: states to the byte, and the peak that the step's temporaries make.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use vram_budget::estimate::estimate;
use vram_budget::measure::{Case, Figure, ReadingName, StepReading, Which};
use vram_budget::recipe::OptimizerName;

/// Two quantization maps of 256 FP32 codes.
const MAPS: u64 = 2048;

fn bytes(case: &Case, name: ReadingName) -> Option<u64> {
    match case.readings.iter().find(|r| r.name == name)?.figure {
        Figure::Bytes(bytes) => u64::try_from(bytes).ok(),
        _ => None,
    }
}

#[test]
fn states_and_step_peaks_are_as_measured() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    let tables = [
        include_str!("data/training-steps/cases.jsonl"),
        include_str!("data/training-steps/recipes.jsonl"),
        include_str!("data/training-steps/fresh-31.jsonl"),
        include_str!("data/training-steps/fresh-32.jsonl"),
    ];
    for line in tables.into_iter().flat_map(str::lines) {
        let case = Case::read(line).unwrap();
        let Ok(plan) = &case.plan else { continue };
        if case.out_of_memory {
            continue;
        }
        let optimizer = plan.recipe.optimizer;
        let Ok(estimate) = estimate(plan) else { continue };
        let readings = estimate.readings.unwrap();
        let steady = readings.steady().unwrap();
        *seen.entry(format!("{:?}", optimizer.name)).or_default() += 1;
        let state = bytes(&case, ReadingName::OptimizerState).unwrap();
        // The plain cases' sum counts bitsandbytes' two shared maps, of 2 KiB together, once for each tensor that uses
        // them; that of GaLore counts the view of a projection, not all singular vectors, which the view keeps alive.
        let shared = if optimizer.name == OptimizerName::AdamW8bit { MAPS } else { u64::MAX };
        let comparable = optimizer.name != OptimizerName::GaLoreAdamW;
        let counted_again = state.checked_sub(readings.optimizer_state.get());
        if comparable && counted_again.is_none_or(|n| n % shared != 0 || n / MAPS > 1000) {
            wrong.push(format!("{}: {} B of state, measured {state}", case.id, readings.optimizer_state.get()));
        }
        let host = bytes(&case, ReadingName::OptimizerStateHost).unwrap_or(0);
        // Step counters of `torch.optim` lie on the host too and are not counted.
        if optimizer.name.is_paged() && readings.optimizer_state_host.get() != host {
            wrong.push(format!("{}: {} B paged, measured {host}", case.id, readings.optimizer_state_host.get()));
        }
        let peak = bytes(&case, ReadingName::Step(Which::Steady, StepReading::StepPeak)).unwrap();
        if steady.step_peak.get().abs_diff(peak) * 1000 > peak * 3 {
            wrong.push(format!("{}: step peak {:#}, measured {peak} B", case.id, steady.step_peak));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for name in OptimizerName::ALL {
        assert!(seen.contains_key(&format!("{name:?}")), "{name:?} has no measured step: {seen:?}");
    }
    for (name, least) in [
        (OptimizerName::AdamW, 250),
        (OptimizerName::Adam, 1),
        (OptimizerName::Sgd, 20),
        (OptimizerName::Adafactor, 25),
        (OptimizerName::AdafactorHf, 4),
        (OptimizerName::AdamW8bit, 3),
    ] {
        let name = format!("{name:?}");
        assert!(seen.get(&name).is_some_and(|n| *n >= least), "{name}: {:?}", seen.get(&name));
    }
}

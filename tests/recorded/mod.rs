//! What is expected of the examples' recordings, with PyTorch and without.
#![allow(dead_code)]

use std::path::Path;

use vram_budget::measure::{Imported, Measurement, import};
use vram_budget::reconcile::{compare, predict};

/// What a recording says of its job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expect {
    /// A plan, from which the engine predicts the job within the bars.
    Plan,
    /// No plan, and this among the reasons.
    NoPlan(&'static str),
}

/// The examples: one script a style.
pub(crate) const EXAMPLES: [(&str, Expect); 20] = [
    ("plain", Expect::Plan),
    ("variables", Expect::Plan),
    ("amp_fp16", Expect::Plan),
    ("bf16_autocast", Expect::Plan),
    ("padded", Expect::Plan),
    ("padded_accumulate", Expect::Plan),
    ("liger", Expect::Plan),
    ("accumulate", Expect::Plan),
    ("lora", Expect::Plan),
    ("trainer", Expect::Plan),
    ("trainer_lora", Expect::Plan),
    ("accelerate_loop", Expect::Plan),
    ("torchtune_style", Expect::Plan),
    ("torchtitan_style", Expect::Plan),
    ("deepspeed_zero", Expect::Plan),
    ("vision", Expect::Plan),
    ("gan", Expect::NoPlan("several models, each with its optimizer: Adam, Adam")),
    ("two_optimizers", Expect::NoPlan("several optimizers: AdamW, SGD")),
    ("groups", Expect::NoPlan("3 groups of parameters, which the optimizer steps one after another")),
    ("lightning_loop", Expect::Plan),
];

/// Allocated is predicted within 1 %, reserved within 3 %.
const ALLOCATED: f64 = 0.01;
const RESERVED: f64 = 0.03;

/// Nothing is typed in: the plan is the document's own.
#[track_caller]
pub(crate) fn bars(name: &str, document: &Measurement, expect: Expect) {
    let notes = document.run.as_ref().map(|run| run.notes.join("; ")).unwrap_or_default();
    let plan = match expect {
        Expect::NoPlan(why) => {
            assert!(document.plan.is_none() && notes.contains(why), "{name}: {notes}");
            return;
        }
        Expect::Plan => document.plan.as_ref().unwrap_or_else(|| panic!("{name}: no plan: {notes}")),
    };
    let prediction = predict(plan).unwrap_or_else(|issues| panic!("{name}: {issues:?}"));
    // Batches of many lengths leave gaps in the cache, which no step alone shows.
    let differ = notes.contains("the batches differ in size");
    let mut compared = 0;
    for row in compare(&prediction, document) {
        let reading = row.name.to_string();
        // The loop's variables are alive after `zero_grad()`, and the batch is read off the model's arguments alone.
        if reading.ends_with("after_zero_grad") || reading.ends_with("inputs") || (differ && reading == "max_reserved")
        {
            continue;
        }
        if let Some(share) = row.share {
            let bar = if reading == "max_reserved" { RESERVED } else { ALLOCATED };
            assert!(share.abs() <= bar, "{name}: {row:?}");
            compared += 1;
        }
    }
    let least = if differ { 5 } else { 12 };
    assert!(compared >= least, "{name}: only {compared} figures compared");
}

/// The only document of a folder: that of one process.
pub(crate) fn only_document(folder: &Path) -> Option<Measurement> {
    let path = ["out.json", "out.rank0.json"].iter().map(|name| folder.join(name)).find(|path| path.exists())?;
    let Imported::Measurement { measurement, .. } = import(&std::fs::read_to_string(path).unwrap()).unwrap() else {
        panic!("a document")
    };
    Some(*measurement)
}

/// A line of the hook's without the place where it ran.
pub(crate) fn anonymous(line: &str) -> String {
    let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
    for (key, value) in [("host", "machine".into()), ("argv", serde_json::json!(["example.py"]))] {
        if line.get(key).is_some() {
            line[key] = value;
        }
    }
    line.to_string()
}

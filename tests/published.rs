//! What others have published of their runs against what is predicted for them: coverage and errors by source.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// Source, metric, the least that is predicted of its rows in per cent, the largest median error in per cent.
const BARS: &[(&str, &str, u32, f64)] = &[
    ("SimuMax", "allocated", 90, 5.0),
    ("SimuMax", "reserved", 90, 10.0),
    ("Megatron-LM", "allocated", 60, 5.0),
    // 15 of its 20 predicted rows are compiled, 10 of them with FP8, and walked as eager steps.
    ("torchtitan", "reserved", 70, 12.0),
    ("torchtune", "active", 70, 10.0),
    ("transformers", "nvidia_smi", 100, 10.0),
    ("torchao", "allocated", 10, 5.0),
];

fn rows() -> Vec<Value> {
    let done = Command::new(env!("CARGO_BIN_EXE_vram-budget"))
        .args(["validate", "--published", "--json", "tests/data/published/rows.jsonl"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn sources_are_covered_and_their_medians_hold() {
    let mut errors: BTreeMap<(String, String), Vec<Option<f64>>> = BTreeMap::new();
    for row in rows() {
        let of = |key: &str| row[key].as_str().unwrap().to_owned();
        // A row has a prediction or a reason why there is none.
        assert_ne!(row["error"].is_null(), row["refused"].is_null(), "{}", row["id"]);
        if let Some(why) = row["refused"].as_str() {
            assert!(!why.is_empty() && !why.starts_with("not a plan"), "{}: {why}", row["id"]);
        }
        errors.entry((of("source"), of("metric"))).or_default().push(row["error"].as_f64().map(f64::abs));
    }
    // Each tier over all sources.
    for metric in ["reserved", "nvidia_smi"] {
        let of =
            errors.iter().filter(|((_, of), _)| of == metric).flat_map(|(_, errors)| errors.iter().copied().flatten());
        let mut known: Vec<f64> = of.collect();
        known.sort_by(f64::total_cmp);
        assert!(known[known.len() / 2] <= 10.0, "{metric}: {known:?}");
    }
    for (source, metric, coverage, median) in BARS {
        let of = &errors[&((*source).to_owned(), (*metric).to_owned())];
        let mut known: Vec<f64> = of.iter().copied().flatten().collect();
        known.sort_by(f64::total_cmp);
        assert!(100 * known.len() >= *coverage as usize * of.len(), "{source}: {} of {}", known.len(), of.len());
        assert!(known[(known.len() - 1) / 2] <= *median, "{source} {metric}: {known:?}");
    }
}

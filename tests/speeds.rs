//! Published speeds against the command that predicts them.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

use std::process::Command;

use serde_json::Value;
use vram_budget::plan::Plan;
use vram_budget::throughput::{Work, rough};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/published/throughput.csv");

fn speeds(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_vram-budget"))
        .args(["validate", "--throughput", FILE])
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Sources that figures of `efficiency.json` were taken from, as the command names them.
const TAKEN_FROM: [&str; 6] = ["mpt", "titan", "simumax", "qwen1", "mcore", "stas"];

/// Rows whose published figure `tests/data/published/README.md` says cannot be: BERT over 512 tokens faster a token than over
/// 128, and more than a card's peak.
fn hard_to_believe(id: &str) -> bool {
    let table = std::fs::read_to_string(FILE).unwrap();
    let row = table.lines().find(|line| line.starts_with(&format!("{id},"))).unwrap();
    id == "llmc-005" || (id.starts_with("dle-") && row.contains("BERT") && row.contains(",512,"))
}

/// At least 80 % of the rows of transformers are predicted, with a median error of at most 15 %, also of the sources that no
/// figure was taken from; of all, nine of ten within 35 %. Of those sources alone fewer are, which the command's table shows. In
/// the interval that every estimate is given with lie nine of ten of all, and nine of ten of those sources' rows that can be
/// believed (`tests/data/published/README.md`).
#[test]
fn published_speeds_are_predicted() {
    let rows: Vec<Value> = speeds(&["--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 504);
    let rows: Vec<_> = rows.iter().filter(|row| row["class"] == "transformer").collect();
    assert!(rows.len() > 400);
    let alone = |row: &&&Value| !TAKEN_FROM.contains(&row["source"].as_str().unwrap());
    let checked: Vec<_> = rows.iter().filter(alone).copied().collect();
    for rows in [&rows, &checked] {
        let mut errors: Vec<f64> = rows.iter().filter_map(|row| row["error"].as_f64()).map(f64::abs).collect();
        assert!(errors.len() * 10 >= rows.len() * 8, "{} of {}", errors.len(), rows.len());
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() / 2] <= 15.0, "{}", errors[errors.len() / 2]);
    }
    let errors: Vec<f64> = rows.iter().filter_map(|row| row["error"].as_f64()).collect();
    let within = errors.iter().filter(|error| error.abs() <= 35.0).count();
    assert!(within * 10 >= errors.len() * 9, "{within} of {}", errors.len());
    let believed: Vec<_> =
        checked.iter().filter(|row| !hard_to_believe(row["id"].as_str().unwrap())).copied().collect();
    assert_eq!(checked.len() - believed.len(), 16);
    for rows in [&rows, &believed] {
        let factor = |row: &&&Value| Some(row["published_seconds"].as_f64()? / row["predicted_seconds"].as_f64()?);
        let factors: Vec<f64> = rows.iter().filter_map(|row| factor(&row)).collect();
        let inside = factors.iter().filter(|f| (0.72..=1.4).contains(*f)).count();
        assert!(inside * 10 >= factors.len() * 9, "{inside} of {}", factors.len());
    }
}

/// Of the pairs of a source that differ by more than 10 %, at least 85 % are predicted in the right order.
#[test]
fn published_speeds_are_ranked() {
    let table = speeds(&[]);
    for sum in ["all ", "checked alone "] {
        let line = table.lines().find(|line| line.starts_with(sum)).unwrap();
        let ordered: f64 = line.split_whitespace().last().unwrap().trim_end_matches('%').parse().unwrap();
        assert!(ordered >= 85.0, "{line}");
    }
}

/// What a plan of Megatron-LM says of its speed, against what was published of the same runs.
#[test]
fn plans_of_megatron_say_what_their_rows_do() {
    let table: Vec<Value> = speeds(&["--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows = std::fs::read_to_string(FILE.replace("throughput.csv", "rows.jsonl")).unwrap();
    let mut errors = Vec::new();
    for row in rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let of_table = table
            .iter()
            .find(|of| of["id"] == row["id"] && of["predicted_seconds"].is_number() && of["class"] == "transformer");
        let Some(of_table) = of_table.filter(|_| row["plan"]["parallel"]["data"]["megatron"].is_object()) else {
            continue;
        };
        let plan: Plan = serde_json::from_value(row["plan"].clone()).unwrap();
        let work = Work::of(&plan).unwrap();
        // Megatron-LM's own layers, and stages that hold unlike numbers of them, are not estimated.
        let Some(speed) = rough(&work, &plan.recipe, &plan.hardware().unwrap()) else { continue };
        let published = of_table["published_seconds"].as_f64().unwrap();
        let error = (speed.likely_seconds.0 / published - 1.0) * 100.0;
        errors.push((error.abs(), row["id"].to_string()));
    }
    assert!(errors.len() >= 29, "{errors:?}");
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(errors[errors.len() / 2].0 <= 15.0, "{errors:?}");
    // Of Megatron-LM's own functional tests, which are small, five are farther off, as in the table.
    assert!(errors.iter().all(|(error, id)| *error <= 35.0 || id.contains("mcore")), "{errors:?}");
}

/// Sources that no figure was taken from, whose rows agree that they are off.
const OFF: [&str; 3] = ["ao", "bridge", "internevo"];

/// The efficiency that half of a source's rows of one card say, judged on the other half: nowhere is the median more than 0.2
/// points worse, and of a source that no figure was taken from and whose rows agree it falls by half.
#[test]
fn published_speeds_are_calibrated() {
    let table = speeds(&[]);
    let rows: Vec<&str> = table.lines().skip_while(|line| !line.starts_with("efficiency fitted")).skip(2).collect();
    assert!(rows.len() >= 18, "{table}");
    let (mut inside, mut held) = (0, 0);
    for row in &rows {
        let cells: Vec<&str> = row.split_whitespace().rev().collect();
        let [lies, of] = [0, 1].map(|at| cells[0].split('/').nth(at).unwrap().parse::<usize>().unwrap());
        let [after, before] = [1, 2].map(|at| cells[at].parse::<f64>().unwrap());
        (inside, held) = (inside + lies, held + of);
        assert!(after <= before + 0.2, "{row}");
        if OFF.contains(&row.split_whitespace().next().unwrap()) {
            assert!(after <= 0.5 * before, "{row}");
        }
    }
    assert!(inside * 100 >= 85 * held && inside * 100 <= 97 * held, "{inside} of {held}");
}

//! Every measured case that is not refused, against what was measured.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use vram_budget::estimate::estimate;
use vram_budget::measure::{Case, Figure, ReadingName};
use vram_budget::units::Bytes;

/// The figures that a user plans with.
const FIGURES: [ReadingName; 2] = [ReadingName::MaxAllocated, ReadingName::MaxReserved];

/// What people run beside plain training (`recipes.jsonl`, and fresh steps with adapters), where it is not refused: no allocated peak is more than 8 % off,
/// and nine in ten of them are right to the byte.
#[test]
fn every_recipe_that_is_not_refused_is_predicted() {
    let (mut predicted, mut exact, mut wrong) = (0, 0, Vec::new());
    let tables = [include_str!("data/training-steps/recipes.jsonl"), include_str!("data/training-steps/fresh-3.jsonl")];
    for line in tables.into_iter().flat_map(str::lines) {
        let case = Case::read(line).unwrap();
        let Ok(plan) = &case.plan else { continue };
        if case.out_of_memory {
            continue;
        }
        let Ok(estimate) = estimate(plan) else { continue };
        let ours = estimate.readings.unwrap().max_allocated;
        let of_case = |r: &&vram_budget::measure::Reading| r.name == ReadingName::MaxAllocated;
        let Figure::Bytes(measured) = case.readings.iter().find(of_case).unwrap().figure else { panic!() };
        let measured = Bytes(u64::try_from(measured).unwrap());
        predicted += 1;
        exact += usize::from(ours == measured);
        if (ours.as_f64() - measured.as_f64()).abs() / measured.as_f64() > 0.08 {
            wrong.push(format!("{} {ours:#} measured {measured:#}", case.id));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(predicted >= RECIPES, "{predicted} predicted");
    assert!(exact * 10 >= predicted * 9, "{exact} of {predicted} to the byte");
}

/// Steps under older versions of transformers (`versions.jsonl`): allocated peaks right to 0.1 %, reserved ones to 1.5 %, and
/// nine in ten allocated peaks within 4 KiB, which is what buffers of a few numbers come to.
#[test]
fn older_versions_are_predicted() {
    let (mut wrong, mut near, mut all) = (Vec::new(), 0, 0);
    for line in include_str!("data/training-steps/versions.jsonl").lines() {
        let case = Case::read(line).unwrap();
        let readings = estimate(case.plan.as_ref().unwrap()).unwrap().readings.unwrap();
        all += 1;
        for (name, ours, most) in [
            (ReadingName::MaxAllocated, readings.max_allocated, 0.001),
            (ReadingName::MaxReserved, readings.max_reserved, 0.015),
        ] {
            let Figure::Bytes(measured) = case.readings.iter().find(|r| r.name == name).unwrap().figure else {
                panic!()
            };
            let off = (ours.as_f64() - measured as f64).abs();
            near += usize::from(name == ReadingName::MaxAllocated && off <= 4096.0);
            if off > most * measured as f64 {
                wrong.push(format!("{} {name:?} {ours:#} measured {measured}", case.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(near * 10 >= all * 9, "{near} of {all}");
}

/// So many of the recipes are modelled, at least.
const RECIPES: usize = 173 + 78;

/// Allocated peaks are right to 0.3 %, reserved ones to 1.5 %, for every case of every family and recipe that is
/// modelled. A case beyond that is a rule that is missing: refuse it or find the rule.
#[test]
fn every_case_that_is_not_refused_is_predicted() {
    let mut predicted: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut wrong = Vec::new();
    let tables = [
        include_str!("data/training-steps/cases.jsonl"),
        include_str!("data/training-steps/workspace-kept.jsonl"),
        include_str!("data/training-steps/fresh-31.jsonl"),
        include_str!("data/training-steps/fresh-32.jsonl"),
        include_str!("data/training-steps/fresh-33.jsonl"),
    ];
    for line in tables.into_iter().flat_map(str::lines) {
        let case = Case::read(line).unwrap();
        let Ok(plan) = &case.plan else { continue };
        if case.out_of_memory {
            continue;
        }
        let Ok(estimate) = estimate(plan) else { continue };
        let readings = estimate.readings.unwrap();
        let mut exact = true;
        for name in FIGURES {
            let Figure::Bytes(measured) = case.readings.iter().find(|r| r.name == name).unwrap().figure else {
                panic!()
            };
            let measured = Bytes(u64::try_from(measured).unwrap());
            let (ours, most) = match name {
                ReadingName::MaxAllocated => (readings.max_allocated, 0.003),
                _ => (readings.max_reserved, 0.015),
            };
            exact &= ours == measured;
            let error = (ours.as_f64() - measured.as_f64()).abs() / measured.as_f64();
            if error > most {
                wrong.push(format!("{} {name:?} {ours:#} measured {measured:#}", case.id));
            }
        }
        let seen = predicted.entry(case.family).or_default();
        seen.0 += 1;
        seen.1 += usize::from(exact);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (family, least) in [
        ("llama", 130),
        ("mistral", 38),
        ("qwen2", 60),
        ("qwen3", 52),
        ("gpt2", 60),
        ("bert", 60),
        ("vit", 62),
        ("t5", 52),
    ] {
        let (cases, exact) = predicted[family];
        assert!(cases >= least, "{family}: {cases} predicted");
        assert!(exact * 100 >= cases * 98, "{family}: {exact} of {cases} to the byte");
    }
}

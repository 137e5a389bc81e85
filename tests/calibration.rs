//! Calibration: fitted on half of a set of runs that hide something, judged on the other half.
//!
//! The sets are made of the recorded steps (`tests/data/training-steps`), whose figures are what PyTorch's own allocator said.
//! What a recorded step has no figure of is added to its readings here, the same true value in every run of a set with a
//! scatter of its own: what the driver shows of the process is what was reserved and a context; what it shows of the card is
//! that and what another process holds. Workspace mode and versions are hidden by giving the plan those of today.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::disallowed_methods)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures of tests")]

use std::io::Read;

use serde_json::{Value, json};
use vram_budget::calibration::{Calibration, Fitted, Quantity, within};
use vram_budget::measure::{Case, Figure, Measurement, Reading, ReadingName, Reported, StepReading, Which};
use vram_budget::plan::{Framework, Plan, Version};
use vram_budget::recipe::Precision;
use vram_budget::reconcile::{Change, Fit, Prediction, Why, calibrate, predict_with_driver};
use vram_budget::units::{Bytes, MIB};

const CASES: &str = include_str!("data/training-steps/cases.jsonl");
const KEPT: &str = include_str!("data/training-steps/workspace-kept.jsonl");
const VERSIONS: &str = include_str!("data/training-steps/versions.jsonl");
const PYTORCH: &str = include_str!("data/training-steps/pytorch.jsonl");
const DISTRIBUTED: &str = include_str!("data/distributed-steps/cases.jsonl");
const PROCESS: ReadingName = ReadingName::Reported(Reported::Process);
const USED: ReadingName = ReadingName::Reported(Reported::Used);

/// Numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    /// Between 0 and 1.
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Near zero, with a standard deviation of one: the sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

/// Every `stride`-th recorded step of a table.
fn recorded(table: &str, stride: usize) -> Vec<(Plan, Measurement)> {
    let cases = table.lines().step_by(stride).map(|line| Case::read(line).unwrap());
    let cases = cases.filter(|case| !case.out_of_memory);
    cases.filter_map(|case| Some((case.plan.ok()?, Measurement::new(case.readings)))).collect()
}

/// A figure of the driver's: what was reserved, and `beside` MiB of it.
fn seen(measurement: &mut Measurement, name: ReadingName, beside: f64) {
    let bytes = measurement.bytes(ReadingName::MaxReserved).unwrap() + (beside * MIB as f64).round() as i64;
    measurement.readings.push(Reading::new(name, name.tier(), Figure::Bytes(bytes)));
}

/// Errors of held figures in percent, sorted, without and with what was fitted on the other half; how many lie within.
struct Judged {
    before: Vec<f64>,
    after: Vec<f64>,
    within: usize,
}

impl Judged {
    fn medians(&self) -> (f64, f64) {
        (self.before[self.before.len() / 2], self.after[self.after.len() / 2])
    }

    /// The median falls by half at the least.
    fn helps(&self, what: &str) {
        let (before, after) = self.medians();
        println!("{what}: median {before:.3} % to {after:.3} %, {} of {} within", self.within, self.after.len());
        assert!(after <= 0.5 * before, "{what}: {before} to {after}");
    }
}

/// Fits every second run and holds the others against it.
fn judge(runs: &[(Plan, Measurement)], name: ReadingName) -> Judged {
    judge_all(runs, name, &[name])
}

/// The same of the mean error of several figures.
fn judge_all(runs: &[(Plan, Measurement)], name: ReadingName, names: &[ReadingName]) -> Judged {
    let fit = calibrate(&runs.iter().step_by(2).cloned().collect::<Vec<_>>());
    hold(&fit, runs.iter().skip(1).step_by(2), name, names)
}

/// Holds runs against a fit to others.
fn hold<'a>(
    fit: &Fit,
    held: impl Iterator<Item = &'a (Plan, Measurement)>,
    name: ReadingName,
    names: &[ReadingName],
) -> Judged {
    let mut judged = Judged { before: Vec::new(), after: Vec::new(), within: 0 };
    for (plan, measurement) in held {
        let measured = measurement.bytes(name).unwrap();
        let error = |predicted: &Prediction| {
            let of = |name: &ReadingName| {
                let (predicted, measured) = (predicted.0.get(name)?, measurement.bytes(*name)?);
                Some((predicted - measured).abs() as f64 / measured as f64 * 100.0)
            };
            let all: Vec<f64> = names.iter().filter_map(of).collect();
            all.iter().sum::<f64>() / all.len() as f64
        };
        let adopted = fit.adopt(plan);
        let (before, after) = (predict_with_driver(plan).unwrap(), predict_with_driver(&adopted).unwrap());
        let bytes = |name| Bytes(after.0[&name] as u64);
        let peaks = [ReadingName::MaxAllocated, ReadingName::MaxReserved].map(bytes);
        judged.before.push(error(&before));
        judged.after.push(error(&after));
        let [low, high] = within(&adopted, name.tier(), bytes(name), peaks).unwrap();
        judged.within += usize::from((low.get()..=high.get()).contains(&(measured as u64)));
    }
    judged.before.sort_by(f64::total_cmp);
    judged.after.sort_by(f64::total_cmp);
    judged
}

/// A hidden context, and another process.
#[test]
fn what_lies_outside_of_the_allocator_is_fitted() {
    let (mut covered, mut all) = (0, 0);
    let base = recorded(CASES, 13);
    for (seed, context, scatter, others) in
        [(1, 310.0, 12.0, None), (2, 870.0, 30.0, None), (3, 1450.0, 45.0, None), (4, 520.0, 5.0, Some(3072.0))]
    {
        let mut random = Random(seed);
        let mut runs = base.clone();
        for (_, measurement) in &mut runs {
            let context = context + scatter * random.normal();
            seen(measurement, PROCESS, context);
            if let Some(others) = others {
                seen(measurement, USED, context + others + 80.0 * random.normal());
            }
        }
        let judged = judge(&runs, if others.is_some() { USED } else { PROCESS });
        judged.helps(&format!("context of {context} MiB, others {others:?}"));
        covered += judged.within;
        all += judged.after.len();
    }
    println!("{covered} of {all} within the interval of 90 %");
    assert!(covered * 100 >= 85 * all && covered * 100 <= 97 * all, "{covered} of {all}");
}

/// A hidden workspace mode, and hidden versions of transformers, are found as what they are.
#[test]
fn settings_are_fitted_as_settings() {
    let mut kept = recorded(KEPT, 3);
    kept.iter_mut().for_each(|(plan, _)| plan.framework.cublas_workspace_kept = None);
    judge(&kept, ReadingName::MaxAllocated).helps("workspaces");
    let versions = recorded(VERSIONS, 1);
    let peaks = [StepReading::ForwardPeak, StepReading::BackwardPeak, StepReading::StepPeak];
    let peaks = peaks.map(|peak| ReadingName::Step(Which::Steady, peak));
    let mut differ = 0;
    for minor in [45, 48, 53] {
        let version = Version(4, minor);
        let of_version = |run: &&(Plan, Measurement)| run.0.framework.transformers == version;
        let mut runs: Vec<_> = versions.iter().filter(of_version).cloned().collect();
        runs.iter_mut().for_each(|(plan, _)| plan.framework.transformers = Version(5, 24));
        let judged = judge_all(&runs, ReadingName::MaxAllocated, &peaks);
        let (before, after) = judged.medians();
        // No rule has changed since that more than a few of the steps show.
        if before < 0.01 {
            println!("transformers {version}: nothing to fit, median {before:.4} % to {after:.4} %");
            assert!(after <= before + 0.01, "{version}: {before} to {after}");
            continue;
        }
        judged.helps(&format!("transformers {version}"));
        differ += 1;
    }
    assert!(differ >= 2, "{differ}");
}

/// Holds every second step of a release of PyTorch against a fit to the others; the plans are given the newest release. The
/// share of held figures that lie in their interval.
fn release(version: Version, stride: usize) -> [usize; 2] {
    let mut runs = recorded(PYTORCH, 1);
    runs.retain(|(plan, _)| plan.framework.pytorch == version);
    let mut runs: Vec<_> = runs.into_iter().step_by(stride).collect();
    runs.iter_mut().for_each(|(plan, _)| plan.framework.pytorch = Framework::default().pytorch);
    let fit = calibrate(&runs.iter().step_by(2).cloned().collect::<Vec<_>>());
    println!("PyTorch {version}: {:?}", fit.settings);
    let peaks = [StepReading::ForwardPeak, StepReading::BackwardPeak, StepReading::StepPeak];
    let peaks = peaks.map(|peak| ReadingName::Step(Which::Steady, peak));
    let mut covered = [0; 2];
    for (name, names) in
        [(ReadingName::MaxAllocated, &peaks[..]), (ReadingName::MaxReserved, &[ReadingName::MaxReserved])]
    {
        let judged = hold(&fit, runs.iter().skip(1).step_by(2), name, names);
        judged.helps(&format!("PyTorch {version}: {name}"));
        covered = [covered[0] + judged.within, covered[1] + judged.after.len()];
    }
    covered
}

/// A hidden release of PyTorch, which changes what is allocated and the order in which blocks are taken.
#[test]
fn a_release_of_pytorch_is_fitted() {
    release(Version(2, 11), 7);
}

/// Every release that was recorded, and every step of it.
#[test]
#[ignore = "minutes"]
fn every_release_of_pytorch_is_fitted() {
    let all = [6, 9, 11, 12, 14].map(|minor| release(Version(2, minor), 1));
    let [within, of] = [0, 1].map(|at| all.iter().map(|one| one[at]).sum::<usize>());
    println!("{within} of {of} within the interval of 90 %");
    assert!(within * 100 >= 85 * of, "{within} of {of}");
}

/// Hidden communicators beside a hidden context: the recorded steps of one rank of several, with what a driver would show of the
/// process, its scatter drawn from the seeds below. The context is told by processes that are alone.
#[test]
fn communicators_are_fitted() {
    let (mut covered, mut all) = (0, 0);
    let ranks: Vec<_> = recorded(DISTRIBUTED, 5)
        .into_iter()
        .filter(|(plan, _)| {
            predict_with_driver(plan).is_ok() && plan.hardware().is_ok_and(|h| h.communicators.is_some())
        })
        .collect();
    for (seed, communicators, scatter) in [(6, 240.0, 12.0), (7, 1_150.0, 40.0), (8, 2_000.0, 60.0)] {
        let mut random = Random(seed);
        let mut alone = recorded(CASES, 60);
        let mut ranks = ranks.clone();
        for (_, measurement) in &mut alone {
            seen(measurement, PROCESS, 640.0 + 8.0 * random.normal());
        }
        for (_, measurement) in &mut ranks {
            seen(measurement, PROCESS, 640.0 + 8.0 * random.normal() + communicators + scatter * random.normal());
        }
        let fit = calibrate(&alone.into_iter().chain(ranks.iter().step_by(2).cloned()).collect::<Vec<_>>());
        let judged = hold(&fit, ranks.iter().skip(1).step_by(2), PROCESS, &[PROCESS]);
        judged.helps(&format!("communicators of {communicators} MiB"));
        covered += judged.within;
        all += judged.after.len();
    }
    println!("{covered} of {all} within the interval of 90 %");
    assert!(covered * 100 >= 85 * all && covered * 100 <= 97 * all, "{covered} of {all}");
}

/// Where there is nothing to fit, nothing is made worse.
#[test]
fn nothing_to_fit_changes_nothing() {
    let mut runs = recorded(CASES, 40);
    for (plan, measurement) in &mut runs {
        let context = plan.hardware().unwrap().context.unwrap().bytes;
        seen(measurement, PROCESS, context.as_f64() / MIB as f64);
    }
    for name in [ReadingName::MaxAllocated, ReadingName::MaxReserved, PROCESS] {
        let (before, after) = judge(&runs, name).medians();
        println!("{name}: median {before:.3} % to {after:.3} %");
        assert!(after <= before + 0.2, "{name}: {before} to {after}");
    }
}

/// Tensors that are kept beside the step: as many bytes more in every figure of a level.
#[test]
fn what_is_kept_beside_the_step_is_fitted() {
    let mut random = Random(5);
    let mut runs = recorded(CASES, 20);
    for (plan, measurement) in &mut runs {
        let kept = ((700.0 + 20.0 * random.normal()) * MIB as f64) as i64;
        let more = Plan { calibration: Some(beside(plan, kept)), ..plan.clone() };
        let (less, more) = (predict_with_driver(plan).unwrap(), predict_with_driver(&more).unwrap());
        for reading in &mut measurement.readings {
            let raised = more.0.get(&reading.name).zip(less.0.get(&reading.name)).map(|(more, less)| more - less);
            reading.figure = Figure::Bytes(reading.bytes().unwrap() + raised.unwrap_or(0));
        }
    }
    for name in [ReadingName::MaxAllocated, ReadingName::MaxReserved] {
        let judged = judge(&runs, name);
        judged.helps(&format!("kept beside: {name}"));
        let all = judged.after.len();
        assert!(judged.within * 100 >= 80 * all, "{} of {all}", judged.within);
    }
}

/// A calibration of one quantity alone.
fn beside(plan: &Plan, bytes: i64) -> Calibration {
    let value = bytes as f64;
    Calibration {
        measurements: 1,
        quantities: vec![Quantity { of: Fitted::Overhead, value, low: value, high: value }],
        machine: plan.machine.clone(),
        framework: plan.framework.clone(),
    }
}

/// Recorded loops over batches of many lengths (`tests/data/fragmentation`), each held against a plan of its longest length
/// alone: what is reserved beyond it after 30 steps is the fragmentation that is hidden.
#[test]
fn the_fragmentation_of_loops_is_fitted() {
    let models: Value = serde_json::from_str(include_str!("data/fragmentation/models.json")).unwrap();
    let mut text = String::new();
    let packed = &include_bytes!("data/fragmentation/loops.json.gz")[..];
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    let loops: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut runs = Vec::new();
    // Lengths in a random order, and a cache that is kept.
    let varies = |name: &str| name.contains("seed") && !name.contains("empty1");
    for row in loops.iter().filter(|row| row["conf"] == "") {
        let name = row["name"].as_str().unwrap();
        if !varies(name) {
            continue;
        }
        let steps = row["curve"].as_array().unwrap();
        let most = |key: &str| steps.iter().map(|step| step[key].as_i64().unwrap()).max().unwrap();
        let plan = json!({
            "version": 1,
            "model": { "config": models["models"][row["model"].as_str().unwrap()] },
            "recipe": { "precision": "amp_bf16", "attention": "sdpa",
                        "checkpointing": if name.contains("ckpt") { "full" } else { "none" },
                        "optimizer": { "name": "adamw", "impl": "foreach" },
                        "micro_batch": row["batch"], "seq_len": most("seq"), "zero_grad": "none" },
            "machine": { "gpu": { "custom": { "name": "sm 80", "memory_bytes": 80_u64 << 30,
                                              "compute_capability": "8.0" } } },
        });
        let reading = |name: ReadingName, key| Reading::new(name, name.tier(), Figure::Bytes(most(key)));
        let readings = vec![
            reading(ReadingName::MaxAllocated, "peak_allocated"),
            reading(ReadingName::MaxReserved, "peak_reserved"),
        ];
        runs.push((serde_json::from_value(plan).unwrap(), Measurement::new(readings)));
    }
    assert_eq!(runs.len(), 20);
    let judged = judge(&runs, ReadingName::MaxReserved);
    judged.helps("loops");
    assert!(judged.within * 10 >= judged.after.len() * 8);
}

/// A wrong recipe is said to be one: no quantity hides it.
#[test]
fn a_wrong_recipe_is_not_hidden() {
    let line = CASES.lines().find(|line| line.contains("gpt2_L4_sm80_amp_bf16_sdpa_nock_adamw-foreach_fullft_b2s512"));
    let (mut plan, measurement) = recorded(line.unwrap(), 1).remove(0);
    plan.recipe.precision = Some(Precision::PureBf16);
    let fit = calibrate(&[(plan.clone(), measurement)]);
    assert_eq!(fit.left_out[0].why, Why::Recipe(Change::Precision(Precision::AmpBf16)));
    assert!(fit.settings.is_empty() && fit.quantities.is_empty(), "{fit:?}");
    // Two batches of which the peak alone is known, off by different amounts.
    let alone = |micro_batch: u64| {
        let mut truth = plan.clone();
        truth.recipe.precision = Some(Precision::AmpBf16);
        truth.recipe.micro_batch = micro_batch;
        let name = ReadingName::MaxAllocated;
        let peak = predict_with_driver(&truth).unwrap().0[&name];
        truth.recipe.precision = Some(Precision::PureBf16);
        (truth, Measurement::new(vec![Reading::new(name, name.tier(), Figure::Bytes(peak))]))
    };
    let batches = [2, 8, 16].map(alone);
    let fit = calibrate(&batches);
    assert!(fit.quantities.is_empty() && !fit.left_out.is_empty(), "{fit:?}");
}

/// The calibration is part of the document, is read again, and is taken away without a trace.
#[test]
fn a_calibration_is_visible_and_removable() {
    let (mut plan, mut measurement) = recorded(CASES, 1000).remove(0);
    plan.framework = Framework { idle_experts: false, ..plan.framework };
    plan.machine.context_bytes = Some(Bytes::mib(200));
    seen(&mut measurement, PROCESS, 700.0);
    let fit = calibrate(&[(plan.clone(), measurement)]);
    let adopted = fit.adopt(&plan);
    assert_eq!(adopted.hardware().unwrap().context.unwrap().bytes, Bytes::mib(700), "what was given gives way");
    let text = serde_json::to_string(&adopted).unwrap();
    assert!(text.contains("\"calibration\""));
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), adopted);
    assert_eq!(adopted.without_calibration(), plan);
    assert!(!serde_json::to_string(&plan).unwrap().contains("calibration"), "documents without one are as they were");
    // What is given after that is given; another card has a context of its own.
    let mut given = adopted.clone();
    given.machine.context_bytes = Some(Bytes::mib(300));
    assert_eq!(given.hardware().unwrap().context.unwrap().bytes, Bytes::mib(300));
    let mut elsewhere = adopted;
    elsewhere.machine.gpu = Some(vram_budget::machine::GpuChoice::Catalogue("RTX 4090".into()));
    let catalogue = Plan { calibration: None, ..elsewhere.clone() };
    assert_eq!(elsewhere.hardware(), catalogue.hardware());
}

#[test]
fn versions_that_were_fitted_are_taken_back_too() {
    let mut kept = recorded(KEPT, 20);
    kept.iter_mut().for_each(|(plan, _)| plan.framework.cublas_workspace_kept = None);
    let fit = calibrate(&kept);
    assert_eq!(fit.settings, [Change::WorkspaceKept(true)]);
    let plan = &kept[0].0;
    let adopted = fit.adopt(plan);
    assert!(adopted.framework.workspace_kept());
    assert_eq!(adopted.without_calibration(), *plan);
}

#[test]
fn quantities_out_of_bounds_are_refused() {
    let (plan, _) = recorded(CASES, 1000).remove(0);
    let with = |quantities: &[(Fitted, f64, f64, f64)]| {
        let quantity = |&(of, value, low, high)| Quantity { of, value, low, high };
        Calibration { quantities: quantities.iter().map(quantity).collect(), ..beside(&plan, 0) }
    };
    assert_eq!(with(&[(Fitted::Fragmentation, 0.2, 0.1, 0.3)]).issues(), []);
    for wrong in [
        with(&[(Fitted::Fragmentation, 0.7, 0.1, 0.8)]),
        with(&[(Fitted::Context, 1e12, 1e12, 1e12)]),
        with(&[(Fitted::Overhead, 5.0, 6.0, 7.0)]),
        with(&[(Fitted::Overhead, f64::NAN, 0.0, 1.0)]),
        with(&[(Fitted::Overhead, 5.0, 4.0, 7.0), (Fitted::Overhead, 5.0, 4.0, 7.0)]),
    ] {
        assert_eq!(wrong.issues().len(), 1, "{wrong:?}");
        let plan = Plan { calibration: Some(wrong), ..plan.clone() };
        assert!(vram_budget::decide::decide(&plan).is_err());
    }
}

//! Steps of one rank of several, against what was measured, and their laws.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use vram_budget::bill::{Instant, Part};
use vram_budget::decide::decide;
use vram_budget::estimate::{Job, Transfer, Way, estimate, quick, ranks, transfers};
use vram_budget::issue::{Issue, IssueKind};
use vram_budget::measure::{Case, Figure, ReadingName};
use vram_budget::model::ModelSource;
use vram_budget::plan::Plan;
use vram_budget::recipe::parallel::{
    DataParallel, Ddp, DeepSpeed, Dp, Fsdp1, Fsdp2, Offload, OffloadDevice, Parallel, TensorParallel,
};
use vram_budget::recipe::{Precision, Recipe};
use vram_budget::reconcile::predict;

const CASES: &str = include_str!("data/distributed-steps/cases.jsonl");
const ZERO: &str = include_str!("data/distributed-steps/zero.jsonl");

/// A case's kind, what it ran, and its allocated and reserved peak.
fn cases() -> impl Iterator<Item = (Case, Plan, [f64; 2])> {
    cases_of(CASES).chain(cases_of(ZERO))
}

fn cases_of(table: &'static str) -> impl Iterator<Item = (Case, Plan, [f64; 2])> {
    table.lines().filter_map(|line| {
        let case = Case::read(line).unwrap();
        let plan = case.plan.clone().ok()?;
        let peak = |name: ReadingName| match case.readings.iter().find(|r| r.name == name)?.figure {
            Figure::Bytes(bytes) => Some(bytes as f64),
            _ => None,
        };
        let peaks = [peak(ReadingName::MaxAllocated)?, peak(ReadingName::MaxReserved)?];
        Some((case, plan, peaks))
    })
}

/// The value that a share of the sorted errors does not exceed.
fn quantile(errors: &mut [f64], percent: usize) -> f64 {
    errors.sort_by(f64::total_cmp);
    errors[(errors.len() * percent).div_ceil(100).max(1) - 1]
}

/// The bars: allocated peak median 1 %, 95th percentile 3 %, worst 6 %; reserved median 3 %, 95th percentile 10 %.
#[test]
fn peaks_are_as_measured() {
    let mut errors: BTreeMap<String, [Vec<f64>; 2]> = BTreeMap::new();
    for (case, plan, measured) in cases() {
        let Ok(found) = estimate(&plan) else { continue };
        let readings = found.readings.unwrap();
        let ours = [readings.max_allocated, readings.max_reserved].map(|bytes| bytes.as_f64());
        for (figure, errors) in errors.entry(case.family).or_default().iter_mut().enumerate() {
            errors.push((ours[figure] - measured[figure]).abs() / measured[figure] * 100.0);
        }
    }
    for (kind, [allocated, reserved]) in &mut errors {
        assert!(quantile(allocated, 50) <= 1.0, "{kind}");
        assert!(quantile(allocated, 95) <= 3.0, "{kind}");
        assert!(quantile(allocated, 100) <= 6.0, "{kind}");
        assert!(quantile(reserved, 50) <= 3.0, "{kind}");
        assert!(quantile(reserved, 95) <= 10.0, "{kind}");
    }
    let counts: Vec<(&str, usize)> = errors.iter().map(|(kind, [e, _])| (kind.as_str(), e.len())).collect();
    assert_eq!(
        counts,
        [
            ("ddp", 26),
            ("fsdp1", 42),
            ("fsdp2", 53),
            ("hsdp", 2),
            ("none", 4),
            ("tp", 11),
            ("tp+fsdp2", 2),
            ("zero0", 1),
            ("zero1", 9),
            ("zero2", 8),
            ("zero3", 12)
        ]
    );
}

/// What a reading is not exact in, of which case.
const INEXACT: [(&str, &str); 5] = [
    // A segment of the small pool too few (2 MiB): GPT-2 under FSDP1 with gradients that are not reduced.
    ("fsdp1_gpt2_bfbf_w8_ga4_nosync", "max_reserved"),
    ("fsdp1_gpt2_bfbf_w8_ga4_nosync_lazy", "max_reserved"),
    ("fsdp1_tied_gpt2_nosync", "max_reserved"),
    // A few scalars of the step.
    ("ds_gpt2_z3_fp32_w8", "steady.step_peak"),
    // 0.2 %: which of two blocks a gather's buffer takes.
    ("ds_llama2-7b_z3_bf16_w8_ckpt_hfauto", "max_reserved"),
];

/// Every other reading is as measured, to the byte.
#[test]
fn readings_are_exact() {
    let mut seen = 0;
    let further = include_str!("data/distributed-steps/further.jsonl");
    for (case, plan, _) in cases().chain(cases_of(further)) {
        let Ok(prediction) = predict(&plan) else { continue };
        for reading in &case.readings {
            let (Figure::Bytes(measured), Some(ours)) = (&reading.figure, prediction.0.get(&reading.name)) else {
                continue;
            };
            // A parameter of ZeRO's stage 3 that is not in use says that it is empty.
            let empty = case.family == "zero3" && reading.name == ReadingName::Params;
            if !empty && !INEXACT.contains(&(case.id.as_str(), reading.name.to_string().as_str())) {
                assert_eq!(ours, measured, "{} {}", case.id, reading.name);
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 170 + 35);
}

/// Under `CPUOffloadPolicy` the GPU is as recorded, to the byte; the shards are in host memory, with as much of gradients and two
/// moments, and pinning rounds each up.
#[test]
fn shards_in_host_memory_are_as_recorded() {
    let mut seen = 0;
    for (case, mut plan, _) in cases_of(include_str!("data/distributed-steps/offload.jsonl")) {
        let prediction = predict(&plan).unwrap();
        let held = |plan: &Plan| estimate(plan).unwrap().readings.unwrap().offload.unwrap();
        let unpinned = held(&plan);
        for reading in &case.readings {
            let (Figure::Bytes(measured), Some(ours)) = (&reading.figure, prediction.0.get(&reading.name)) else {
                continue;
            };
            let ours = if reading.name == ReadingName::Params { unpinned.weights.get().cast_signed() } else { *ours };
            assert_eq!(ours, *measured, "{} {}", case.id, reading.name);
        }
        let tensors = Job::of(&plan).unwrap().model.parameters().len() as u64;
        assert_eq!(unpinned.gradients, unpinned.weights, "{}", case.id);
        assert_eq!(unpinned.states.get(), 2 * unpinned.weights.get() + 4 * tensors, "{}", case.id);
        assert_eq!(unpinned.held.get(), 4 * unpinned.weights.get() + 4 * tensors, "{}", case.id);
        let gathers = unpinned.to_device.get() / plan.recipe.grad_accum;
        assert!((unpinned.weights.get()..=2 * unpinned.weights.get()).contains(&gathers), "{}", case.id);
        let DataParallel::Fsdp2(options) = &mut plan.parallel.data else { panic!("{}", case.id) };
        let reductions = if options.no_sync { 1 } else { plan.recipe.grad_accum };
        assert_eq!(unpinned.to_host.get(), unpinned.weights.get() * reductions, "{}", case.id);
        options.pin_memory = true;
        let pinned = held(&plan);
        assert!(pinned.held > unpinned.held && pinned.held.get() < 2 * unpinned.held.get(), "{}", case.id);
        seen += 1;
    }
    assert_eq!(seen, 10);
}

/// Under FSDP1's `CPUOffload` the GPU is as recorded, to the byte, and so is what lies in host memory, before it is pinned.
#[test]
fn fsdp1_in_host_memory_is_as_recorded() {
    let table = include_str!("data/distributed-steps/offload-fsdp1.jsonl");
    let mut seen = 0;
    for ((case, plan, _), line) in cases_of(table).zip(table.lines()) {
        let prediction = predict(&plan).unwrap();
        let of = estimate(&plan).unwrap().readings.unwrap().offload.unwrap();
        for reading in case.readings.iter().filter(|reading| reading.name != ReadingName::Params) {
            if let (Figure::Bytes(measured), Some(ours)) = (&reading.figure, prediction.0.get(&reading.name)) {
                assert_eq!(ours, measured, "{} {}", case.id, reading.name);
            }
        }
        let raw: serde_json::Value = serde_json::from_str(line).unwrap();
        let measured = raw["result"]["host_bytes"].as_u64().unwrap();
        let parts = of.weights.get() + of.gradients.get() + of.states.get();
        assert!(measured.abs_diff(parts) <= 4096, "{}: {measured} in host memory, {parts}", case.id);
        assert!(of.held.get() >= parts && of.held.get() < 2 * parts, "{}", case.id);
        let gathers = of.to_device.get() / plan.recipe.grad_accum;
        assert!((of.weights.get()..=2 * of.weights.get()).contains(&gathers), "{}", case.id);
        assert_eq!(of.to_host, of.weights, "{}: reduced once a step", case.id);
        seen += 1;
    }
    assert_eq!(seen, 14);
}

/// What a reading of `offload-zero.jsonl` is off by, of which case and reading: rules that hold without offloading too.
fn off_by(case: &str, reading: &ReadingName) -> i64 {
    match (case, reading.to_string().as_str()) {
        // A segment of the small pool on a stream beside.
        (_, "max_reserved") if case.contains("_z3_") => 2 << 20,
        // Padding of the flat buffer.
        ("dso_llama_z2_bf16_ckpt_w3", "params" | "max_allocated") => 512,
        ("dso_llama_z2_bf16_ckpt_w3", name) if name.ends_with("peak") => 512,
        _ => 0,
    }
}

/// With `offload_optimizer` and `offload_param` the GPU is as recorded, to the byte but for what is said; in host memory lies what
/// was found there, and pinning rounds it up.
#[test]
fn zero_in_host_memory_is_as_recorded() {
    let table = include_str!("data/distributed-steps/offload-zero.jsonl");
    let mut seen = 0;
    for ((case, mut plan, _), line) in cases_of(table).zip(table.lines()) {
        let prediction = predict(&plan).unwrap();
        for reading in &case.readings {
            let (Figure::Bytes(measured), Some(ours)) = (&reading.figure, prediction.0.get(&reading.name)) else {
                continue;
            };
            // A parameter of ZeRO's stage 3 that is not in use says that it is empty.
            if case.family != "zero3" || reading.name != ReadingName::Params {
                let over = ours - measured;
                assert!((0..=off_by(&case.id, &reading.name)).contains(&over), "{} {}: {over}", case.id, reading.name);
            }
        }
        let raw: serde_json::Value = serde_json::from_str(line).unwrap();
        let measured = raw["result"]["host_bytes"].as_u64().unwrap();
        let held = |plan: &Plan, pinned: bool| {
            let mut plan = plan.clone();
            let DataParallel::DeepSpeed(options) = &mut plan.parallel.data else { panic!("no engine") };
            options.offload_optimizer.pin_memory = pinned;
            estimate(&plan).unwrap().readings.unwrap().offload.unwrap()
        };
        let (unpinned, pinned) = (held(&plan, false), held(&plan, true));
        let parts = unpinned.weights.get() + unpinned.gradients.get() + unpinned.states.get();
        assert!(measured.abs_diff(parts) <= 4096, "{}: {measured} in host memory, {parts}", case.id);
        assert!(pinned.held >= unpinned.held && pinned.held.get() < 2 * parts + 8192, "{}", case.id);
        // What a step copies does not depend on what is pinned, and grows with its micro-batches.
        assert_eq!((pinned.to_device, pinned.to_host), (unpinned.to_device, unpinned.to_host));
        plan.recipe.grad_accum += 1;
        let more = held(&plan, false);
        assert!(more.to_host >= unpinned.to_host && more.to_device >= unpinned.to_device, "{}", case.id);
        seen += 1;
    }
    assert_eq!(seen, 30);
}

/// What lies on a disk takes buffers in host memory and no less on the GPU; no verdict says that it fits. What DeepSpeed refuses or
/// is not modelled is refused by name.
#[test]
fn what_lies_on_a_disk_takes_no_less_of_the_gpu() {
    let (_, mut plan, _) = cases_of(include_str!("data/distributed-steps/offload-zero.jsonl"))
        .find(|(case, ..)| case.id == "dsp_llama_z3_bf16_both")
        .unwrap();
    // What is below 1 MiB is not written.
    plan.parallel.world_size = 2;
    let of = |optimizer: OffloadDevice, param: OffloadDevice, max_in_cpu: u64| {
        let mut plan = plan.clone();
        let DataParallel::DeepSpeed(options) = &mut plan.parallel.data else { panic!("no engine") };
        options.offload_optimizer.device = optimizer;
        options.offload_param = Offload { device: param, max_in_cpu, ..options.offload_param };
        plan
    };
    let read = |plan: &Plan| estimate(plan).unwrap().readings.unwrap();
    let (cpu, nvme) = (OffloadDevice::Cpu, OffloadDevice::Nvme);
    let on_host = read(&of(cpu, cpu, 0));
    let states = read(&of(nvme, cpu, 0));
    assert!(states.max_allocated >= on_host.max_allocated);
    let (before, after) = (on_host.offload.unwrap(), states.offload.unwrap());
    // Masters and two moments, read and written; the buffers are as large as all of it, as it is one sub-group.
    assert!(after.on_disk.get() >= 3 * 4 * (before.states.get() / 8) && after.from_disk == after.to_disk);
    assert!(after.held > after.weights && after.on_disk.get() <= 16 * (before.states.get() / 8) + 4096);
    let params = read(&of(nvme, nvme, 0)).offload.unwrap();
    assert!(params.on_disk > after.on_disk && params.from_disk > after.from_disk);
    // Five buffers of 100,000,000 elements.
    assert!(params.held.get() > 1_000_000_000);
    // Where all of it fits in host memory it stays there.
    assert_eq!(read(&of(nvme, nvme, 1_000_000_000)).offload, read(&of(nvme, cpu, 0)).offload);
    assert!(decide(&of(nvme, nvme, 0)).unwrap().throughput.is_none());
    for (optimizer, param, stage) in [
        (nvme, OffloadDevice::None, 2),
        (OffloadDevice::None, nvme, 3),
        (cpu, nvme, 2),
        (cpu, cpu, 1),
        (cpu, OffloadDevice::None, 0),
    ] {
        let mut plan = of(optimizer, param, 0);
        let DataParallel::DeepSpeed(options) = &mut plan.parallel.data else { panic!("no engine") };
        options.stage = stage;
        assert!(quick(&plan).is_err(), "{optimizer:?} {param:?} {stage}");
    }
    let mut plan = of(nvme, nvme, 0);
    let DataParallel::DeepSpeed(options) = &mut plan.parallel.data else { panic!("no engine") };
    options.offload_param.buffer_size = 1000;
    assert!(quick(&plan).is_err(), "a buffer that is too small");
}

/// Documents that say whether it is offloaded, and DeepSpeed's own sections.
#[test]
fn offloading_is_read_as_it_was_written_before() {
    let read = |text: &str| serde_json::from_str::<DeepSpeed>(text).unwrap().offload_optimizer;
    let to = |device: OffloadDevice| Offload { device, ..Offload::default() };
    assert_eq!(read(r#"{"offload_optimizer": false}"#), to(OffloadDevice::None));
    assert_eq!(read(r#"{"offload_optimizer": true}"#), to(OffloadDevice::Cpu));
    assert_eq!(read(r#"{"offload_optimizer": {"device": "nvme"}}"#), to(OffloadDevice::Nvme));
    assert_eq!(read("{}"), to(OffloadDevice::None));
}

/// What the second GPU of a process is off by: its part of the batch and of the model's buffers, which come and go with a forward.
const OF_BATCH: u64 = 64 * 1024;

/// The first GPU of a process under `nn.DataParallel` is as recorded, to the byte; of the second both peaks, but for its batch.
#[test]
fn data_parallel_is_as_recorded() {
    let mut seen = 0;
    for (case, plan, measured) in cases_of(include_str!("data/distributed-steps/data-parallel.jsonl")) {
        let prediction = predict(&plan).unwrap();
        let DataParallel::Dp(Dp { gpu }) = plan.parallel.data else { panic!("{}", case.id) };
        if gpu == 0 {
            for reading in &case.readings {
                let (Figure::Bytes(measured), Some(ours)) = (&reading.figure, prediction.0.get(&reading.name)) else {
                    continue;
                };
                assert_eq!(ours, measured, "{} {}", case.id, reading.name);
            }
        }
        for (name, measured) in [ReadingName::MaxAllocated, ReadingName::MaxReserved].into_iter().zip(measured) {
            let ours = prediction.0[&name].unsigned_abs() as f64;
            assert!((ours - measured).abs() <= OF_BATCH as f64, "{} {name}: {ours}, {measured}", case.id);
        }
        seen += 1;
    }
    assert_eq!(seen, 34);
}

/// Over one GPU `nn.DataParallel` calls the model; over several the first holds more than any other.
#[test]
fn the_first_gpu_of_a_process_binds() {
    let of = |world_size: u64, data: DataParallel| {
        plan(64, 4, 128, 300, Parallel { world_size, data, ..Parallel::default() })
    };
    let dp = DataParallel::Dp(Dp::default());
    assert_eq!(quick(&of(1, dp.clone())).unwrap().bill, quick(&of(1, DataParallel::None)).unwrap().bill);
    let of_all = ranks(&of(4, dp)).unwrap();
    assert_eq!(of_all.len(), 4);
    assert!(of_all[1..].iter().all(|other| other.peak_bytes < of_all[0].peak_bytes));
    assert!(of_all[1..].iter().all(|other| other.parts.get(Part::States).get() == 0));
    let outside = of(2, DataParallel::Dp(Dp { gpu: 2 }));
    assert_eq!(quick(&outside).unwrap_err()[0].field, "parallel.data.dp.gpu");
}

/// What the optimizer holds on each rank at a stage of ZeRO.
fn states(plan: &Plan, stage: u64, ranks: u64) -> u64 {
    let mut plan = plan.clone();
    plan.parallel.world_size = ranks;
    if let DataParallel::DeepSpeed(options) = &mut plan.parallel.data {
        options.stage = stage;
    }
    quick(&plan).unwrap().bill.column(Instant::Step).parts.get(Part::States).get()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// A higher stage never raises what the optimizer holds on a rank, but for the padding: of the whole to an even number of
    /// elements per rank, or of every parameter to one.
    #[test]
    fn a_higher_stage_holds_no_more(ranks in 2u64..200) {
        let (_, plan, _) = cases().find(|(case, ..)| case.id == "ds_gpt2_z1_bf16_w8").unwrap();
        let held: Vec<u64> = (0..4).map(|stage| states(&plan, stage, ranks)).collect();
        let tensors = 148;
        for (lower, higher) in held.iter().zip(&held[1..]) {
            prop_assert!(*higher <= lower + 12 * tensors, "{ranks} ranks: {held:?}");
        }
        // Each tensor that is stepped has a counter.
        prop_assert!(held[1] * ranks + 4 * tensors >= held[0]);
    }
}

/// A document without a layout is one GPU, and says nothing of it when it is written.
#[test]
fn a_layout_is_one_gpu_unless_said() {
    let (_, plan, _) = cases().find(|(case, ..)| case.family == "none").unwrap();
    let mut text = serde_json::to_value(&plan).unwrap();
    assert!(text.get("parallel").is_none());
    text["parallel"] = serde_json::json!({ "world_size": 1 });
    assert_eq!(quick(&serde_json::from_value(text).unwrap()), quick(&plan));
}

fn plan(hidden: u64, heads: u64, mlp: u64, vocabulary: u64, parallel: Parallel) -> Plan {
    let config = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": mlp, "num_hidden_layers": 3, "num_attention_heads": heads, "max_position_embeddings": 512
    });
    let serde_json::Value::Object(config) = config else { unreachable!("a config is an object") };
    Plan {
        version: vram_budget::plan::PLAN_VERSION,
        model: ModelSource::Config(config),
        recipe: Recipe { precision: Some(Precision::Fp32), seq_len: 16, ..Recipe::default() },
        parallel,
        machine: Default::default(),
        framework: Default::default(),
        policy: Default::default(),
        calibration: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// FSDP over ranks sums to the whole plus padding, and its states are twice that; DDP holds the whole on every rank.
    #[test]
    fn shards_sum_to_the_whole_plus_padding(
        heads in 1..5u64,
        mlp in 1..200u64,
        vocabulary in 2..300u64,
        ranks in 2..17u64,
    ) {
        let of = |data: DataParallel| {
            let parallel = Parallel { world_size: ranks, data, ..Parallel::default() };
            plan(heads * 16, heads, mlp, vocabulary, parallel)
        };
        let read = |plan: &Plan, name: ReadingName| predict(plan).unwrap().0[&name].unsigned_abs();
        let sharded = of(DataParallel::Fsdp2(Fsdp2::default()));
        let model = Job::of(&sharded).unwrap().model;
        let (mut whole, mut padded) = (0, 0);
        for p in model.parameters() {
            let n = p.shape.numel().unwrap();
            let first = p.shape.dims()[0].n;
            whole += 4 * n;
            padded += 4 * n / first * first.div_ceil(ranks) * ranks;
        }
        prop_assert_eq!(read(&sharded, ReadingName::Params) * ranks, padded);
        prop_assert_eq!(read(&sharded, ReadingName::OptimizerState) * ranks, 2 * padded);
        let flat = read(&of(DataParallel::Fsdp1(Fsdp1::default())), ReadingName::Params) * ranks;
        prop_assert!(whole <= flat && flat <= whole + 4 * 4 * (4 * 16 + ranks), "{} {}", whole, flat);
        prop_assert_eq!(read(&of(DataParallel::Ddp(Ddp::default())), ReadingName::Params), whole);
    }

    /// Tensor-parallel and data-parallel ranks together hold every split parameter once, and each norm once per
    /// tensor-parallel rank.
    #[test]
    fn tensor_and_data_parallel_ranks_conserve_parameters(
        (tp, dp) in (1..4u32, 1..3u32).prop_map(|(t, d)| (1 << t, 1 << d)),
        heads in 1..3u64,
        mlp in 1..9u64,
        vocabulary in 1..9u64,
    ) {
        let each = tp * dp;
        let tensor = TensorParallel { size: tp, sequence_parallel: true, loss_parallel: true };
        let hidden = heads * tp * 16;
        let of = |parallel: Parallel| plan(hidden, heads * tp, mlp * each, vocabulary * each, parallel);
        let params = |plan: &Plan| predict(plan).unwrap().0[&ReadingName::Params].unsigned_abs();
        let one = params(&of(Parallel::default()));
        let norms = 4 * hidden * 7;
        let split = of(Parallel { world_size: tp, tensor: tensor.clone(), ..Parallel::default() });
        prop_assert_eq!(params(&split) * tp, one + (tp - 1) * norms);
        let data = DataParallel::Fsdp2(Fsdp2::default());
        let both = of(Parallel { world_size: each, tensor, data, ..Parallel::default() });
        prop_assert_eq!(params(&both) * each, one + (tp - 1) * norms);
    }
}

/// Nodes are full ones, one process has one, and links carry something.
#[test]
fn a_cluster_that_cannot_be_is_refused_by_field() {
    let of = |world_size: u64, gpus: u64| Parallel {
        world_size,
        data: DataParallel::Ddp(Ddp::default()),
        gpus_per_node: Some(gpus),
        ..Parallel::default()
    };
    let fields = |of: &Parallel| of.issues().into_iter().map(|issue| issue.field).collect::<Vec<_>>();
    for (world, gpus, ranks) in [(8, 1, 1), (8, 4, 4), (8, 8, 8), (8, 16, 8), (6, 8, 6), (72, 72, 72)] {
        assert_eq!((fields(&of(world, gpus)), of(world, gpus).ranks_of_node()), (vec![], ranks));
    }
    let kind = IssueKind::NotDivisible { value: 12, by_field: "parallel.gpus_per_node".into(), by: 8 };
    assert_eq!(of(12, 8).issues(), [Issue::new("parallel.world_size", kind)]);
    assert_eq!(fields(&of(8, 0)), ["parallel.gpus_per_node"]);
    let dp = Parallel { data: DataParallel::Dp(Dp::default()), ..of(8, 4) };
    assert_eq!(fields(&dp), ["parallel.gpus_per_node"]);
    assert_eq!(fields(&Parallel { gpus_per_node: Some(8), ..dp }), [""; 0]);
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9] {
        let (network_gbps, link_gbps) = (Some(wrong), Some(wrong));
        let fields = fields(&Parallel { network_gbps, link_gbps, ..of(8, 4) });
        assert_eq!(fields, ["parallel.network_gbps", "parallel.link_gbps"], "{wrong}");
    }
    // On one GPU they say nothing, and no document loses them.
    let one = Parallel { gpus_per_node: Some(4), link_gbps: Some(300.0), ..Parallel::default() };
    assert!(one.is_single() && one.issues().is_empty());
    let said = plan(64, 4, 128, 300, one);
    assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&said).unwrap()).unwrap(), said);
    assert_eq!(quick(&said).unwrap().bill, quick(&plan(64, 4, 128, 300, Parallel::default())).unwrap().bill);
}

/// A node's host has what each of its ranks keeps there.
#[test]
fn the_host_of_a_node_holds_its_ranks() {
    let offload = Offload { device: OffloadDevice::Cpu, ..Offload::default() };
    let zero3 = DeepSpeed { stage: 3, offload_optimizer: offload, ..DeepSpeed::default() };
    let data = DataParallel::DeepSpeed(zero3);
    for (gpus_per_node, ranks) in [(None, 8), (Some(1), 1), (Some(2), 2), (Some(4), 4), (Some(8), 8), (Some(16), 16)] {
        let parallel = Parallel { world_size: 16, data: data.clone(), gpus_per_node, ..Parallel::default() };
        let mut plan = plan(64, 4, 128, 300, parallel);
        plan.recipe.precision = Some(Precision::PureBf16);
        let readings = estimate(&plan).unwrap().readings.unwrap();
        let all = transfers(&plan, &readings).unwrap();
        assert_eq!(all.ranks_of_node, ranks);
        assert!(!all.held.is_zero());
        assert_eq!(all.node_in_step().get(), ranks * (all.held.get() + all.in_step.get()));
    }
}

/// What saving and loading take is as recorded: on the GPU to the byte but for what is said, in host memory, and in files.
#[test]
fn saving_and_loading_are_as_recorded() {
    let table = include_str!("data/distributed-steps/transfers.jsonl");
    let [mut saved, mut loaded, mut made] = [0; 3];
    for line in table.lines() {
        let raw: serde_json::Value = serde_json::from_str(line).unwrap();
        let (id, result) = (raw["id"].as_str().unwrap(), &raw["result"]);
        let mut bare = raw.clone();
        let layout = bare["case"]["parallel"].as_object_mut().unwrap();
        let how = layout.remove("load").map_or(String::new(), |how| how.as_str().unwrap().to_owned());
        let first = layout.remove("rank").is_none();
        let [all_read, _] = ["all_read", "to_empty"].map(|key| layout.remove(key).is_some());
        let case = Case::read(&bare.to_string()).unwrap();
        let mut plan = case.plan.clone().unwrap_or_else(|found| panic!("{id}: {found:?}"));
        if let (DataParallel::DeepSpeed(options), true) = (&mut plan.parallel.data, how == "init") {
            options.zero_init = true;
        }
        let readings = estimate(&plan).unwrap_or_else(|found| panic!("{id}: {found:?}")).readings.unwrap();
        let all = transfers(&plan, &readings).unwrap();
        let find =
            |ways: &[Transfer], way: Way| *ways.iter().find(|of| of.way == way).unwrap_or_else(|| panic!("{id}"));
        if how.is_empty() {
            saved += saving_is_as_recorded(id, &plan, result, first, &|way| find(&all.saving, way));
            continue;
        }
        let way = match how.as_str() {
            "each" => Way::EachRank,
            "init" => Way::ZeroInit,
            _ => Way::Broadcast,
        };
        // What takes more than the steps is a phase of the job, with blocks as they are allocated, but for the buffers' and padding.
        if let Some(load) = readings.load {
            let measured = result["device"].as_u64().unwrap();
            assert!(load.max_allocated.get().abs_diff(measured) <= 2048, "{id}: {}, {measured}", load.max_allocated);
            made += 1;
        }
        let ours = find(&all.loading, way).device.get();
        let mut measured = result["device_requested"].as_u64().unwrap();
        if all_read {
            // A second copy of the shards, where each rank distributes what it read.
            measured -= readings.params.get();
        }
        // The model's buffers, which are counted though some are moved later.
        let over = 256;
        let zero3 = case.family == "zero3" && way == Way::EachRank;
        if zero3 {
            // Its buckets are there too when the engine has been made.
            assert!(ours <= measured, "{id}: {ours}, {measured}");
        } else {
            assert!((0..=over).contains(&(ours.cast_signed() - measured.cast_signed())), "{id}: {ours}, {measured}");
        }
        loaded += 1;
    }
    assert_eq!([saved, loaded, made], [43, 26, 2]);
}

/// How many ways of a case were compared.
fn saving_is_as_recorded(
    id: &str,
    plan: &Plan,
    result: &serde_json::Value,
    first: bool,
    find: &dyn Fn(Way) -> Transfer,
) -> usize {
    let saves = result["saves"].as_array().unwrap();
    let named = |name: &str| saves.iter().find(|of| of["way"].as_str() == Some(name));
    let bytes = |of: &serde_json::Value, key: &str| of[key].as_u64().unwrap();
    let both = |model: &str, states: &str, key: &str| {
        [named(model), named(states)].into_iter().flatten().map(|of| bytes(of, key)).max()
    };
    let mut seen = 0;
    let mut device = |way: Way, measured: u64, under: u64| {
        let ours = find(way).device.get();
        assert!((measured..=measured + under).contains(&ours), "{id} {way:?}: {ours}, {measured}");
        seen += 1;
    };
    let host_is = |way: Way, measured: u64| {
        let of = find(way);
        let ours = if first { of.host_first } else { of.host_others }.get();
        // Tensors of less than 4 KiB were not counted.
        assert!(ours.abs_diff(measured) <= 256 << 10, "{id} {way:?}: {ours} in host memory, {measured}");
    };
    let of_files = |of: &serde_json::Value, key: &str| {
        let files = of["files"].as_array().unwrap().iter();
        files.map(|file| bytes(file, key)).max().unwrap_or(0)
    };
    match &plan.parallel.data {
        DataParallel::Ddp(_) => {
            device(Way::RankZero, both("model", "optim", "device_requested").unwrap(), 0);
            host_is(Way::RankZero, bytes(named("save_pretrained").unwrap(), "host_peak"));
            let files = ["model", "optim"].map(|name| of_files(named(name).unwrap(), "bytes"));
            assert!(find(Way::RankZero).written.get().abs_diff(files.iter().sum()) < 1024, "{id}");
        }
        DataParallel::DeepSpeed(options) => {
            let of = named("checkpoint").unwrap();
            // Four scalars; an offloaded parameter's persistent parts.
            device(Way::SaveCheckpoint, 0, 0);
            assert!(bytes(of, "device_requested") <= 4096, "{id}");
            host_is(Way::SaveCheckpoint, of_files(of, "largest_from_device"));
            if options.stage == 3 {
                // Small parameters that stay gathered are freed first.
                let of = named("consolidated").unwrap();
                device(Way::Gather16Bit, bytes(of, "device_requested"), 512 << 10);
                let held = if options.offload_param.is_on() { bytes(of, "host_peak") } else { bytes(of, "host_state") };
                let ours = find(Way::Gather16Bit).host_first.get();
                assert!(!first || held.abs_diff(ours) < 1024 || options.offload_param.is_on() && held > ours, "{id}");
            }
        }
        data => {
            let fsdp1 = matches!(data, DataParallel::Fsdp1(_));
            let replicas = matches!(data, DataParallel::Fsdp1(of) if of.replicas > 1);
            let [model, states] =
                if fsdp1 { ["full_all.model", "full_all.optim"] } else { ["full.model", "full.optim"] };
            device(Way::FullStateDict, both(model, states, "device_requested").unwrap(), 0);
            let unsharded = named("full.model").is_some_and(|of| fsdp1 && bytes(of, "host_state") == 0);
            let whole = ["full.model", "full.optim"].map(|name| bytes(named(name).unwrap(), "host_state"));
            if !unsharded || !first {
                host_is(Way::FullStateDict, whole.iter().sum());
            }
            if let (true, Some(measured)) =
                (fsdp1 && !replicas && !unsharded, both("sharded_cpu.model", "sharded_cpu.optim", "device_requested"))
            {
                device(Way::Sharded, measured, 0);
                let shards = ["sharded_cpu.model", "sharded_cpu.optim"];
                host_is(Way::Sharded, shards.map(|name| bytes(named(name).unwrap(), "host_state")).iter().sum());
            }
        }
    }
    seen
}

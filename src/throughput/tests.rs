//! Laws of a step's time.

use proptest::prelude::*;

use super::link::Group;
use super::*;
use crate::machine::{GpuChoice, Machine};
use crate::model::{ModelSource, presets};
use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, Ddp, DeepSpeed, Fsdp2, TensorParallel};
use crate::recipe::{Attention, Checkpointing, Lora, Precision};

fn hardware(gpu: &str) -> Hardware {
    Machine { gpu: Some(GpuChoice::Catalogue(gpu.into())), ..Machine::default() }.resolve().unwrap()
}

fn plan(preset: &str) -> Plan {
    let mut plan = crate::view::example();
    plan.model = ModelSource::Preset(preset.into());
    plan.recipe = Recipe { precision: Some(Precision::PureBf16), seq_len: 2048, ..Recipe::default() };
    plan
}

fn seconds(plan: &Plan, gpu: &str) -> f64 {
    rough(&Work::of(plan).unwrap(), &plan.recipe, &hardware(gpu)).unwrap().likely_seconds.0
}

/// The products, the head and what is looked up are all of a model's parameters but norms and biases.
#[test]
#[expect(clippy::cast_precision_loss, reason = "counts of parameters")]
fn every_preset_has_its_products() {
    let mut seen = 0;
    for preset in presets() {
        let plan = plan(&preset.name);
        let Some(work) = Work::of(&plan) else { continue };
        let net = &work.net;
        let held = net.products.iter().map(Product::parameters).sum::<f64>() + net.head() + net.looked_up;
        let parameters =
            crate::estimate::parameter_count(crate::estimate::read_model(&plan.model).unwrap().model.as_ref()) as f64;
        assert!((held / parameters - 1.0).abs() < 0.01, "{}: {held} of {parameters}", preset.name);
        assert!(net.inner >= net.layers * net.hidden / 2.0, "{}: {}", preset.name, net.inner);
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn what_is_run_again_costs_and_what_is_frozen_saves() {
    let now = plan("llama-3.1-8b");
    let with = |change: &dyn Fn(&mut Recipe)| {
        let mut plan = now.clone();
        change(&mut plan.recipe);
        seconds(&plan, "A100 SXM4 80GB")
    };
    let plain = with(&|_| {});
    let full = with(&|r| r.checkpointing = Checkpointing::Full);
    let selective = with(&|r| r.checkpointing = Checkpointing::Selective);
    assert!(plain < selective && selective < full, "{plain} {selective} {full}");
    // A third more work, the optimizer and the host aside.
    assert!((1.15..1.36).contains(&(full / plain)), "{}", full / plain);
    assert!(with(&|r| r.lora = Some(Lora::new(16, vec!["all-linear".into()]))) < plain);
    assert!(with(&|r| r.attention = Some(Attention::Eager)) > plain);
    assert!(with(&|r| r.compile = true) < plain);
}

/// A pipeline of p stages idles p − 1 of its m + p − 1 slots.
#[test]
fn the_bubble_is_as_long_as_the_stages_are_many() {
    let mut plan = plan("llama-2-7b");
    plan.recipe.grad_accum = 8;
    plan.parallel.world_size = 4;
    plan.parallel.pipeline = 4;
    let work = Work::of(&plan).unwrap();
    let speed = rough(&work, &plan.recipe, &hardware("A100 SXM4 80GB")).unwrap();
    let of = |part| speed.parts.iter().find(|p| p.part == part).map_or(0.0, |p| p.seconds);
    let working = of(Share::Products) + of(Share::Attention) + of(Share::Pointwise);
    let idle = of(Share::Pipeline) / working;
    assert!((3.0 / 8.0..3.3 / 8.0).contains(&idle), "{idle}");
}

#[test]
fn an_all_reduce_over_two_nodes_is_slower_than_in_one() {
    for gpu in ["A100 SXM4 80GB", "H100 SXM5 80GB", "V100 SXM2 32GB", "MI300X 192GB"] {
        let card = Card::of(&hardware(gpu), Compute::Fp16).unwrap();
        let of = |gpus_per_node, network_gbps, link_gbps| {
            let layout = Layout { world: 8, data: 8, gpus_per_node, network_gbps, link_gbps, ..Layout::default() };
            Group::of(&layout, 8, 1).reduce(&card, &layout, 1e9)
        };
        let one = of(8, None, None);
        assert!(of(4, None, None) > one, "{gpu}");
        assert_eq!(of(8, Some(1.0), None), one, "{gpu}: nothing leaves the node");
        assert!(of(8, None, Some(20.0)) > one, "{gpu}");
        // Two GPUs of each node send twice what one does.
        let [alone, two] = [1, 2].map(|gpus| of(gpus, Some(2.0), None));
        assert!(alone > 1.9 * two && two > one, "{gpu}: {alone} {two} {one}");
    }
}

#[test]
fn a_measured_step_replaces_the_estimate() {
    let plan = plan("llama-3.2-1b");
    let speed = rough(&Work::of(&plan).unwrap(), &plan.recipe, &hardware("H100 SXM5 80GB")).unwrap();
    let factor = 2.0 / speed.likely_seconds.0;
    let parts = |speed: &Throughput| speed.parts.iter().map(|p| p.seconds).sum::<f64>();
    assert!((parts(&speed) / speed.likely_seconds.0 - 1.0).abs() < 1e-9, "the parts add up");
    let measured = speed.calibrated(factor);
    assert!((measured.likely_seconds.0 - 2.0).abs() < 1e-9);
    assert!((measured.tokens_per_second.low - 1024.0).abs() < 1e-6, "2048 tokens in 2 s");
    assert!((parts(&measured) - 2.0).abs() < 1e-9);
    let budget = measured.budget(1_000_000);
    assert_eq!(budget.steps, 489);
    assert!((budget.gpu_hours.low - 1e6 / 1024.0 / 3600.0).abs() < 1e-9);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// A slower link, in a node or between nodes, never makes a step shorter.
    #[test]
    fn slower_links_make_no_step_shorter(
        layout in 0_usize..6,
        gpus_per_node in prop::sample::select(vec![None, Some(1), Some(2), Some(4), Some(8), Some(16)]),
        network in 0.01_f64..500.0,
        link in 0.01_f64..2000.0,
        slower in (0.01_f64..=1.0, 0.01_f64..=1.0),
    ) {
        let mut plan = plan("llama-3.2-1b");
        let parallel = &mut plan.parallel;
        (parallel.world_size, parallel.gpus_per_node) = (16, gpus_per_node);
        let zero = |stage| DataParallel::DeepSpeed(DeepSpeed { stage, ..DeepSpeed::default() });
        let fsdp = |replicas| DataParallel::Fsdp2(Fsdp2 { replicas, ..Fsdp2::default() });
        parallel.data = match layout {
            0 => DataParallel::Ddp(Ddp::default()),
            1..4 => zero(layout as u64),
            _ => fsdp(if layout == 4 { 4 } else { 1 }),
        };
        if layout == 5 {
            parallel.tensor = TensorParallel { size: 4, sequence_parallel: true, ..TensorParallel::default() };
        }
        let mut with = |network, link| {
            (plan.parallel.network_gbps, plan.parallel.link_gbps) = (Some(network), Some(link));
            seconds(&plan, "H100 SXM5 80GB")
        };
        let now = with(network, link);
        for slow in [with(network * slower.0, link), with(network, link * slower.1)] {
            prop_assert!(slow >= now * (1.0 - 1e-12), "{slow} {now}");
        }
    }

    /// More tokens at once are never slower a token, and more work never takes less time.
    #[test]
    fn larger_micro_batches_are_no_slower_a_token(batch in 1_u64..16, sequence in 7_u32..12, gpu in 0_usize..4) {
        let gpu = ["A100 SXM4 80GB", "H100 SXM5 80GB", "RTX 4090 24GB", "V100 SXM2 32GB"][gpu];
        let mut plan = plan("llama-3.2-1b");
        plan.recipe.precision = Some(Precision::PureFp16);
        plan.recipe.seq_len = 1 << sequence;
        plan.recipe.micro_batch = batch;
        let once = seconds(&plan, gpu);
        plan.recipe.micro_batch = 2 * batch;
        let twice = seconds(&plan, gpu);
        prop_assert!(twice > once * 0.999 && twice < once * 2.05, "{once} {twice}");
    }
}

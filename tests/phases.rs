//! The phase that needs the most memory is the one that is judged and named.
#![allow(missing_docs, clippy::unwrap_used)]

use vram_budget::bill::{Instant, Part};
use vram_budget::decide::{Decision, Deliberation, Reason, VerdictKind};
use vram_budget::estimate::{Peak, PhaseOnCard, binding_phase, phases};
use vram_budget::machine::{CustomGpu, GpuChoice, Machine};
use vram_budget::model::ModelSource;
use vram_budget::plan::{Framework, PLAN_VERSION, Plan, Policy};
use vram_budget::recipe::{Checkpointing, Ema, LigerKernel, Method, Precision, Recipe};
use vram_budget::step::log::Phase;
use vram_budget::text::Locale;
use vram_budget::units::Bytes;
use vram_budget::view::answer::Answer;

/// `recipe` on a card that gives `memory` bytes to the allocator.
fn plan(recipe: &Recipe, memory: u64) -> Plan {
    let gpu = CustomGpu { name: "card".into(), memory_bytes: Bytes(memory), compute_capability: Some("8.0".into()) };
    Plan {
        version: PLAN_VERSION,
        model: ModelSource::Preset(if recipe.ema.is_some() { "tinyllama-1.1b" } else { "qwen2.5-0.5b" }.into()),
        recipe: recipe.clone(),
        parallel: Default::default(),
        machine: Machine {
            gpu: Some(GpuChoice::Custom(gpu)),
            mig_slice_bytes: None,
            in_use_bytes: Some(Bytes::ZERO),
            context_bytes: Some(Bytes::ZERO),
            communicator_bytes: None,
        },
        framework: Framework::default(),
        policy: Policy::default(),
        calibration: None,
    }
}

fn lora() -> Recipe {
    Recipe {
        precision: Some(Precision::PureBf16),
        seq_len: 1024,
        checkpointing: Checkpointing::Full,
        lora: serde_json::from_str(r#"{"r": 8, "targets": ["q_proj"]}"#).unwrap(),
        ..Recipe::default()
    }
}

/// Jobs, and the phase in which each needs the most.
fn jobs() -> Vec<(Phase, Recipe)> {
    // Liger's fused loss runs in training alone: an evaluation makes the logits.
    let evaluated = Recipe { eval_after: true, liger: LigerKernel::DEFAULT.to_vec(), micro_batch: 2, ..lora() };
    let mut generated = Recipe { grad_accum: 16, seq_len: 2048, ..lora() };
    generated.method = Some(Method::Grpo(Default::default()));
    // The largest table is cast while all gradients are there.
    let averaged = Recipe {
        precision: Some(Precision::PureBf16),
        seq_len: 16,
        micro_batch: 1,
        ema: Some(Ema::Float32),
        optimizer: serde_json::from_str(r#"{"name": "sgd", "impl": "fused"}"#).unwrap(),
        ..Recipe::default()
    };
    vec![
        (Phase::Evaluation, evaluated),
        (Phase::Generation, generated),
        (Phase::Average, averaged),
        (Phase::Update, lora()),
    ]
}

/// What is decided about `plan`, its remedies not priced.
fn decided(plan: &Plan) -> Decision {
    let mut deliberation = Deliberation::of(plan);
    core::iter::repeat_with(|| deliberation.refine(usize::MAX)).find_map(|decided| decided).unwrap().unwrap()
}

fn phases_of(plan: &Plan, decision: &Decision) -> Vec<PhaseOnCard> {
    phases(plan, decision.estimate.readings.as_ref().unwrap())
}

#[test]
fn a_verdict_is_about_the_phase_that_needs_the_most() {
    for (phase, recipe) in jobs() {
        let roomy = plan(&recipe, 80 << 30);
        let decision = decided(&roomy);
        let all = phases_of(&roomy, &decision);
        let most = binding_phase(&all).unwrap();
        assert_eq!(most.readings.phase, phase);
        let expected =
            if phase == Phase::Update { Peak::Step(decision.estimate.bill.binding) } else { Peak::Phase(phase) };
        assert_eq!(decision.estimate.peak(), expected);
        let numbers = decision.verdict.numbers;
        assert_eq!(numbers.allocated, most.allocated(), "{phase:?}");
        assert!(numbers.reserved.unwrap() >= all.iter().map(PhaseOnCard::reserved).max().unwrap(), "{phase:?}");
        assert_eq!(decision.verdict.kind, VerdictKind::Fits);
        // One page less than that phase allocates: whatever the step takes, the job fails.
        let short = decided(&plan(&recipe, (most.allocated().get() - 1) & !0x1f_ffff));
        assert_eq!(short.verdict.kind, VerdictKind::DoesNotFit, "{phase:?}");
        // Between what that phase allocates and what all reserves only a replay tells, and it names the phase where it fails.
        let between = decided(&plan(&recipe, most.allocated().get().next_multiple_of(2 << 20)));
        assert_ne!(between.verdict.kind, VerdictKind::Fits);
        if let Reason::RunsOut { phase: failed, .. } = between.verdict.reason {
            assert_eq!(failed, Some(phase).filter(|phase| *phase != Phase::Update));
        }
    }
}

#[test]
fn the_answer_adds_up_to_the_phase_that_binds() {
    let text = Locale::En.text();
    for (phase, recipe) in jobs() {
        let plan = plan(&recipe, 80 << 30);
        let decision = decided(&plan);
        let parts = decision.estimate.peak_parts();
        if phase != Phase::Update {
            let most = *binding_phase(&phases_of(&plan, &decision)).unwrap();
            assert_eq!(parts.total(), most.readings.held.into_iter().sum());
            // The bill's last column goes up to the end of the step, the average's update with it.
            let of_step = decision.estimate.bill.columns.iter().map(|c| c.parts.total()).max().unwrap();
            assert!(parts.total() > of_step || (phase == Phase::Average && parts.total() == of_step));
        }
        assert!(parts.total() <= decision.verdict.numbers.allocated);
        assert!(decision.estimate.tiers.requested.peak_bytes >= parts.total());
        let answer = Answer::new(&plan, &decision, None, text);
        let said = decision.estimate.peak().said(text);
        assert!(answer.because.iter().any(|sentence| sentence.contains(said)), "{:?}", answer.because);
        assert!(answer.sums_head.eq_ignore_ascii_case(said));
        let of = |part: Part| answer.sums.iter().find(|row| row.name == text.part(part)).unwrap().exact;
        for part in Part::ALL {
            assert_eq!(of(part), Some(parts.get(part)), "{phase:?} {part:?}");
        }
        let foot = answer.sums.iter().position(|row| row.sum).unwrap();
        let above: Bytes = answer.sums[..foot].iter().map(|row| row.exact.unwrap()).sum();
        assert_eq!(Some(above), answer.sums[foot].exact, "{phase:?}");
    }
}

#[test]
fn a_phase_that_binds_leaves_no_instant_of_the_step_marked() {
    for (phase, recipe) in jobs() {
        let decision = decided(&plan(&recipe, 80 << 30));
        let table = vram_budget::view::bill::BillTable::new(&decision, None, Locale::En.text());
        let marked: Vec<Instant> = table.columns.iter().filter(|(.., binds)| *binds).map(|(at, ..)| *at).collect();
        assert_eq!(marked.is_empty(), phase != Phase::Update);
    }
}

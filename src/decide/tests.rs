//! Decisions over made-up walks: the rules are tested apart from the engine's figures.

use super::*;
use crate::bill::{Bill, Column, Instant, Part, PartBytes, Provenance, ProvenanceKind, Sources, Tier, Tiers};
use crate::estimate::Estimate;
use crate::issue::{Issue, IssueKind};
use crate::machine::{CustomGpu, GpuChoice, Machine};
use crate::model::ModelSource;
use crate::plan::{Framework, PLAN_VERSION, Plan, Policy};
use crate::recipe::parallel::{DataParallel, Ddp, DeepSpeed, Fsdp1};
use crate::recipe::{
    Attention, Checkpointing, LigerKernel, Lora, OptimizerImpl, Precision, QuantKind, Quantization, Recipe,
};
use crate::units::{Bytes, GIB};

fn gib(n: u64) -> Bytes {
    Bytes(n * GIB)
}

fn made_up() -> Provenance {
    Provenance { kind: ProvenanceKind::Modelled, source: "made up by a test".into() }
}

fn tier(bytes: Bytes) -> Tier {
    Tier { peak_bytes: bytes, provenance: made_up() }
}

/// A walk whose five parts are the same at every instant.
fn estimate(parts: [u64; 5], reserved: Option<u64>) -> Estimate {
    let parts = PartBytes(parts.map(gib));
    let column = |instant| Column { instant, parts, tensors: Vec::new() };
    let tiers = Tiers {
        requested: tier(parts.total()),
        allocated: tier(parts.total()),
        reserved: reserved.map(|r| tier(gib(r))),
        process: None,
        host: None,
    };
    let bill = Bill {
        columns: Instant::ALL.into_iter().map(column).collect(),
        binding: Instant::Backward,
        symbols: Vec::new(),
        kinds: Vec::new(),
        sources: Sources { weights: made_up(), states: made_up(), autograd: made_up() },
    };
    Estimate {
        bill,
        tiers,
        binding: None,
        timeline: Vec::new(),
        readings: None,
        on_card: None,
        notes: Vec::new(),
        parameters: 0,
    }
}

/// A card of `memory` GiB with a context of 1 GiB and nothing else on it.
fn plan(memory: u64) -> Plan {
    Plan {
        version: PLAN_VERSION,
        model: ModelSource::Preset("llama-2-7b".into()),
        recipe: Recipe::default(),
        parallel: Default::default(),
        machine: Machine {
            gpu: Some(GpuChoice::Custom(CustomGpu {
                name: "card".into(),
                memory_bytes: gib(memory),
                compute_capability: Some("8.0".into()),
            })),
            mig_slice_bytes: None,
            in_use_bytes: Some(Bytes::ZERO),
            context_bytes: Some(gib(1)),
            communicator_bytes: None,
        },
        framework: Framework::default(),
        policy: Policy::default(),
        calibration: None,
    }
}

/// 20 GiB allocated (4 + 4 + 4 + 6 + 2), `reserved` on top.
fn walked(reserved: Option<u64>) -> impl Fn(&Plan) -> Result<Estimate, Vec<Issue>> {
    move |_| Ok(estimate([4, 4, 4, 6, 2], reserved))
}

#[track_caller]
fn verdict(plan: &Plan, reserved: Option<u64>) -> (VerdictKind, Reason) {
    let verdict = decide_with(plan, &walked(reserved)).unwrap().verdict;
    (verdict.kind, verdict.reason)
}

#[test]
fn fits_quotes_the_process_figure_and_keeps_the_margin() {
    // 22 reserved + 1 context of 30: 7 left, 3 is the margin.
    let room = Reason::RoomBeyondMargin { free: gib(7), margin: gib(3) };
    assert_eq!(verdict(&plan(30), Some(22)), (VerdictKind::Fits, room));
    // 26 + 1 of 30: exactly the margin.
    assert_eq!(verdict(&plan(30), Some(26)).0, VerdictKind::Fits);
    // 27 + 1 of 30: 2 left, less than 3.
    let inside = Reason::InsideMargin { free: gib(2), margin: gib(3) };
    assert_eq!(verdict(&plan(30), Some(27)), (VerdictKind::Tight, inside));
}

#[test]
fn between_allocated_and_reserved_it_is_tight_and_beyond_allocated_it_does_not_fit() {
    // 24 + 1 of 22: over by 3 with cache; 20 + 1 without.
    assert_eq!(verdict(&plan(22), Some(24)), (VerdictKind::Tight, Reason::OnlyByFreeingCache { over: gib(3) }));
    // 20 + 1 of 21: exactly full without cache.
    assert_eq!(verdict(&plan(21), Some(24)).0, VerdictKind::Tight);
    assert_eq!(verdict(&plan(20), Some(24)), (VerdictKind::DoesNotFit, Reason::AllocatedExceeds { missing: gib(1) }));
}

#[test]
fn memory_in_use_counts() {
    let mut plan = plan(30);
    plan.machine.in_use_bytes = Some(gib(9));
    assert_eq!(verdict(&plan, Some(21)).0, VerdictKind::Tight);
    plan.machine.in_use_bytes = Some(gib(10));
    assert_eq!(verdict(&plan, Some(21)), (VerdictKind::DoesNotFit, Reason::AllocatedExceeds { missing: gib(1) }));
}

#[test]
fn what_is_not_known_is_named() {
    let cannot = |fact| (VerdictKind::CannotTell, Reason::Unknown(fact));
    let mut no_gpu = plan(30);
    no_gpu.machine = Machine::default();
    assert_eq!(verdict(&no_gpu, Some(22)), cannot(Fact::Gpu));

    let mut no_capacity = plan(30);
    no_capacity.machine.gpu = Some(GpuChoice::Catalogue("GB300 288GB".into()));
    assert_eq!(verdict(&no_capacity, Some(22)), cannot(Fact::Capacity));

    let mut no_context = plan(30);
    no_context.machine.gpu = Some(GpuChoice::Catalogue("MI300X 192GB".into()));
    no_context.machine.context_bytes = None;
    assert_eq!(verdict(&no_context, Some(22)), cannot(Fact::Context));

    assert_eq!(verdict(&plan(300), None), cannot(Fact::Reserved));
    // What is known is enough to say no.
    assert_eq!(verdict(&plan(20), None).0, VerdictKind::DoesNotFit);

    let mut rule = plan(300);
    rule.recipe.precision = Some(Precision::RuleOfThumb);
    assert_eq!(verdict(&rule, Some(22)), cannot(Fact::RealRecipe));
}

#[test]
fn communicators_count_beside_the_context() {
    let mut many = plan(30);
    many.parallel.world_size = 2;
    many.parallel.data = DataParallel::Ddp(Ddp::default());
    many.machine.communicator_bytes = Some(gib(2));
    // 22 reserved, 1 + 2 beside it, of 30: 5 left.
    let room = Reason::RoomBeyondMargin { free: gib(5), margin: gib(3) };
    assert_eq!(verdict(&many, Some(22)), (VerdictKind::Fits, room));
    many.machine.communicator_bytes = None;
    let decision = decide_with(&many, &walked(Some(22))).unwrap();
    assert!(decision.caveats.iter().any(|caveat| matches!(caveat, Caveat::CommunicatorsAssumed { .. })));
    let numbers = decision.verdict.numbers;
    assert_eq!(numbers.context, Some(gib(1)), "a row of its own");
    assert!(numbers.communicators > Some(Bytes::ZERO));
    assert!(
        numbers.usable < numbers.capacity.map(|all| all.saturating_sub(gib(1))),
        "both are kept from the allocator"
    );
}

#[test]
fn what_depends_on_how_far_the_gpu_lags_never_fits() {
    let zero3 = DataParallel::DeepSpeed(DeepSpeed { stage: 3, ..DeepSpeed::default() });
    for data in [DataParallel::Fsdp1(Fsdp1::default()), zero3] {
        let mut plan = plan(300);
        plan.parallel.world_size = 8;
        plan.parallel.data = data;
        assert_eq!(verdict(&plan, Some(22)), (VerdictKind::CannotTell, Reason::Unknown(Fact::DeviceLag)));
        plan.machine.gpu = self::plan(20).machine.gpu;
        assert_eq!(verdict(&plan, Some(22)).0, VerdictKind::DoesNotFit);
    }
}

#[test]
fn what_was_only_read_never_fits() {
    let mut plan = plan(300);
    plan.recipe.float8_te = Some(crate::recipe::Float8Scaling::Delayed);
    assert_eq!(verdict(&plan, Some(22)), (VerdictKind::CannotTell, Reason::Unknown(Fact::Unmeasured)));
    plan.machine.gpu = self::plan(20).machine.gpu;
    assert_eq!(verdict(&plan, Some(22)).0, VerdictKind::DoesNotFit);
}

#[test]
fn an_unknown_precision_decides_nothing_where_the_candidates_differ() {
    let walk = |plan: &Plan| match plan.recipe.precision {
        Some(Precision::PureBf16) => Ok(estimate([2, 2, 4, 1, 1], Some(10))),
        Some(_) => Ok(estimate([4, 4, 8, 3, 1], Some(20))),
        None => panic!("a candidate has a precision"),
    };
    let mut unknown = plan(16);
    unknown.recipe.precision = None;
    let decision = decide_with(&unknown, &walk).unwrap();
    assert_eq!(decision.verdict.kind, VerdictKind::CannotTell);
    assert_eq!(decision.verdict.reason, Reason::Unknown(Fact::Precision));
    assert_eq!(decision.estimate.tiers.allocated.peak_bytes, gib(20), "the dearest is shown");
    let candidates = decision.caveats.iter().find_map(|c| match c {
        Caveat::PrecisionNotGiven { candidates } => Some(candidates.clone()),
        _ => None,
    });
    let candidates = candidates.unwrap();
    assert_eq!(candidates.len(), 5);
    assert_eq!(candidates.last().unwrap().precision, Precision::PureBf16);
    assert_eq!(candidates.last().unwrap().verdict, VerdictKind::Fits);

    // On a card where all agree, the answer does not need it.
    let mut large = plan(80);
    large.recipe.precision = None;
    assert_eq!(decide_with(&large, &walk).unwrap().verdict.kind, VerdictKind::Fits);
}

#[test]
fn bf16_without_hardware_is_a_caveat() {
    let mut old = plan(30);
    old.machine.gpu = Some(GpuChoice::Catalogue("V100 SXM2 32GB".into()));
    let decision = decide_with(&old, &walked(Some(22))).unwrap();
    assert!(decision.caveats.contains(&Caveat::Bf16Emulated { gpu: "V100 SXM2 32GB".into() }));
    old.recipe.precision = Some(Precision::AmpFp16);
    let decision = decide_with(&old, &walked(Some(22))).unwrap();
    assert!(!decision.caveats.iter().any(|c| matches!(c, Caveat::Bf16Emulated { .. })));
}

#[test]
fn assumptions_are_said_and_what_the_user_states_is_not_one() {
    let stated = decide_with(&plan(30), &walked(Some(22))).unwrap();
    assert_eq!(stated.caveats, []);
    let mut assumed = plan(30);
    assumed.machine = Machine { gpu: Some(GpuChoice::Catalogue("A30".into())), ..Machine::default() };
    let caveats = decide_with(&assumed, &walked(Some(22))).unwrap().caveats;
    assert!(matches!(
        caveats[..],
        [Caveat::InUseNotGiven, Caveat::CapacityAssumed { .. }, Caveat::ContextAssumed { .. }]
    ));
}

fn step(decision: &Decision, question: Question) -> &TreeStep {
    decision.tree.iter().find(|s| s.question == question).unwrap()
}

#[test]
fn the_tree_compares_each_figure_with_its_threshold() {
    let status = |memory| {
        let decision = decide_with(&plan(memory), &walked(Some(22))).unwrap();
        decision.tree.iter().map(|s| s.status).collect::<Vec<_>>()
    };
    // Rigid 12 of 11: impossible.
    assert_eq!(status(11)[0], Status::Stop);
    // 12 of 14: 86 %; activations 6 of 14 − 1 − 12: more than is left.
    assert_eq!(status(14)[..2], [Status::Attention, Status::Stop]);
    // 12 of 24: 50 %; 6 of 24 − 1 − 12 = 11: 55 %; 22 + 1 of 24: 4 % free.
    assert_eq!(status(24)[..3], [Status::Pass, Status::Attention, Status::Attention]);
    assert_eq!(status(40)[..3], [Status::Pass, Status::Pass, Status::Pass]);
    // No speed without the peak of the card.
    assert_eq!(status(40)[3], Status::Waits);

    let decision = decide_with(&plan(24), &walked(Some(22))).unwrap();
    let rigid = &step(&decision, Question::Rigid).figure;
    assert_eq!((rigid.value, rigid.threshold), (Some(0.5), Some(0.8)));
    let activations = &step(&decision, Question::Activations).figure;
    assert_eq!((activations.part, activations.whole), (Some(gib(6)), Some(gib(11))));
    let margin = &step(&decision, Question::Margin).figure;
    assert!((margin.value.unwrap() - 1.0 / 24.0).abs() < 1e-12);
}

#[test]
fn the_rule_of_thumb_says_nothing_of_activations() {
    let mut rule = plan(300);
    rule.recipe.precision = Some(Precision::RuleOfThumb);
    let decision = decide_with(&rule, &walked(None)).unwrap();
    let statuses: Vec<_> = decision.tree.iter().map(|s| s.status).collect();
    assert_eq!(statuses, [Status::Pass, Status::Waits, Status::Waits, Status::Waits]);
    assert_eq!(step(&decision, Question::Activations).figure.part, None);
    assert!(decision.caveats.iter().any(|c| matches!(c, Caveat::RuleOfThumb { .. })));
}

#[test]
fn a_tree_without_a_card_waits() {
    let mut no_gpu = plan(30);
    no_gpu.machine = Machine::default();
    let decision = decide_with(&no_gpu, &walked(Some(22))).unwrap();
    assert!(decision.tree.iter().all(|s| s.status == Status::Waits));
}

#[test]
fn thresholds_are_the_plans() {
    let mut strict = plan(40);
    strict.policy = Policy { rigid_share: 0.2, activation_share: 0.1, margin_low: 0.5, margin_high: 0.5 };
    let decision = decide_with(&strict, &walked(Some(22))).unwrap();
    let statuses: Vec<_> = decision.tree.iter().take(3).map(|s| s.status).collect();
    assert_eq!(statuses, [Status::Attention; 3]);
    assert_eq!(decision.verdict.kind, VerdictKind::Tight);
    strict.policy.margin_low = 1.5;
    strict.version = 9;
    let fields: Vec<_> = decide_with(&strict, &walked(Some(22))).unwrap_err().into_iter().map(|i| i.field).collect();
    assert_eq!(fields, ["version", "policy.margin_low"]);
    strict.version = PLAN_VERSION;
    strict.policy.margin_low = 0.6;
    let issues = decide_with(&strict, &walked(Some(22))).unwrap_err();
    assert_eq!(issues[0].field, "policy.margin_low", "the low margin is above the high one");
}

/// A walk that answers to the remedies: checkpointing takes 5 GiB, fused 2, half the micro-batch half the activations,
/// adapters 8, over 4-bit weights 11.
fn responsive(plan: &Plan) -> Result<Estimate, Vec<Issue>> {
    let recipe = &plan.recipe;
    let activations = if recipe.checkpointing == Checkpointing::Full { 1 } else { 6 } * recipe.micro_batch;
    let temporary = if recipe.optimizer.implementation == Some(OptimizerImpl::Fused) { 0 } else { 2 };
    let rigid = match (&recipe.lora, &recipe.quantization) {
        (_, Some(_)) => [1, 0, 0],
        (Some(_), None) => [4, 0, 0],
        _ if recipe.precision == Some(Precision::PureBf16) => [2, 2, 2],
        _ => [4, 4, 4],
    };
    let parts = [rigid[0], rigid[1], rigid[2], activations, temporary];
    Ok(estimate(parts, Some(parts.iter().sum())))
}

#[test]
fn remedies_are_priced_by_walking_again_and_ordered() {
    let mut over = plan(20);
    over.recipe.micro_batch = 2;
    let decision = decide_with(&over, &responsive).unwrap();
    assert_eq!(decision.verdict.kind, VerdictKind::DoesNotFit);
    let (help, rest): (Vec<_>, Vec<_>) =
        decision.remedies.iter().partition(|r| r.saves() || r.verdict == VerdictKind::Fits);
    let found: Vec<_> = help.iter().map(|r| (r.id, r.saved_bytes / (1 << 30), r.verdict)).collect();
    assert_eq!(
        found,
        [
            (RemedyId::Checkpointing, 10, VerdictKind::Fits),
            (RemedyId::SmallerMicroBatch, 6, VerdictKind::DoesNotFit),
            (RemedyId::FusedOptimizer, 2, VerdictKind::DoesNotFit),
            (RemedyId::Qlora, 11, VerdictKind::Fits),
            (RemedyId::Lora, 8, VerdictKind::Tight),
            (RemedyId::PureBf16, 6, VerdictKind::DoesNotFit),
            (RemedyId::LargerGpu, 0, VerdictKind::Fits),
        ]
    );
    assert!(rest.iter().all(|r| r.saved_bytes == 0 && r.saved_at == [0; 4]), "what does nothing says nothing");
    assert_eq!(help[0].saved_at, [10 << 30; 4], "the made-up walk is the same at every instant");
    let smaller = decision.remedies.iter().find(|r| r.id == RemedyId::SmallerMicroBatch).unwrap();
    assert_eq!((smaller.plan.recipe.micro_batch, smaller.plan.recipe.grad_accum), (1, 2), "the same tokens");
    let ids = |question| -> Vec<_> {
        step(&decision, question).remedies.iter().map(|at| decision.remedies[*at].id).collect()
    };
    assert_eq!(ids(Question::Rigid), [RemedyId::Qlora, RemedyId::Lora, RemedyId::PureBf16, RemedyId::LargerGpu]);
    assert_eq!(
        ids(Question::Activations),
        [RemedyId::Checkpointing, RemedyId::SmallerMicroBatch, RemedyId::PureBf16, RemedyId::LargerGpu]
    );
}

fn advised(plan: &Plan, walk: Walk<'_>) -> (Decision, Advice) {
    let decision = decide_with(plan, walk).unwrap();
    let advice = advise_with(plan, &decision, walk);
    (decision, advice)
}

fn ids(way: &Way) -> Vec<RemedyId> {
    way.steps.iter().map(|step| step.id).collect()
}

#[test]
fn the_training_stays_as_it_is_where_that_is_enough() {
    let mut over = plan(20);
    over.recipe.micro_batch = 2;
    let (decision, advice) = advised(&over, &responsive);
    assert_eq!(advice.outcome, Outcome::Change);
    assert_eq!(advice.ways[0].effect, Effect::SameTraining);
    assert_eq!(ids(&advice.ways[0]), [RemedyId::Checkpointing], "nothing that is not needed");
    assert!(advice.ways.len() > 1 && advice.ways.iter().all(|way| way.verdict.kind == VerdictKind::Fits));
    let why = |id| advice.declined(decision.remedies.iter().find(|r| r.id == id).unwrap());
    assert_eq!(why(RemedyId::Checkpointing), None, "it is what is recommended");
    assert_eq!(why(RemedyId::FusedOptimizer), Some(Declined::NotEnough));
    assert_eq!(why(RemedyId::ExpandableSegments), Some(Declined::SavesNothing));
    assert_eq!(why(RemedyId::Qlora), Some(Declined::ChangesTraining));
    assert_eq!(why(RemedyId::LargerGpu), Some(Declined::OtherHardware));
}

#[test]
fn the_training_changes_where_it_must_and_hardware_where_nothing_else_does() {
    // 12 rigid, and the least of the rest is 1.
    let (_, advice) = advised(&plan(14), &responsive);
    assert_eq!((advice.outcome, advice.ways[0].effect), (Outcome::Change, Effect::ChangesTraining));
    assert_eq!(ids(&advice.ways[0])[0], RemedyId::PureBf16, "the least that is changed");
    let (_, advice) = advised(&plan(2), &responsive);
    assert_eq!(advice.ways.iter().map(|way| ids(way)[0]).collect::<Vec<_>>(), [RemedyId::LargerGpu]);
    assert_eq!(advice.outcome, Outcome::Change);
}

#[test]
fn what_fits_stays_and_what_is_not_known_is_asked_for() {
    let (decision, advice) = advised(&plan(80), &responsive);
    assert_eq!((advice.outcome, &advice.ways[..]), (Outcome::Keep, &[][..]));
    assert!(decision.remedies.iter().filter(|r| r.saves()).all(|r| advice.declined(r).is_none()));
    let mut no_gpu = plan(30);
    no_gpu.machine = Machine::default();
    assert_eq!(advised(&no_gpu, &responsive).1.outcome, Outcome::Find(Fact::Gpu));
    // A GPU whose memory nothing exceeds is none that is sold.
    let huge = |plan: &Plan| responsive(plan).map(|_| estimate([4000, 0, 0, 0, 0], Some(4000)));
    let (_, nothing) = advised(&plan(24), &huge);
    assert_eq!((nothing.outcome, nothing.ways.len()), (Outcome::Nothing, 0));
}

#[test]
fn the_micro_batch_shrinks_only_as_far_as_it_must() {
    let mut over = plan(40);
    over.recipe.micro_batch = 12;
    let decision = decide_with(&over, &responsive).unwrap();
    let smaller = decision.remedies.iter().find(|r| r.id == RemedyId::SmallerMicroBatch).unwrap();
    // 12 + 6 × 3 + 2 + 1 of 40 leaves 7, beyond the margin of 4; 4 would leave 1.
    assert_eq!((smaller.plan.recipe.micro_batch, smaller.plan.recipe.grad_accum), (3, 4));
    assert_eq!(smaller.verdict, VerdictKind::Fits);
}

#[test]
fn a_remedy_in_place_is_not_offered_again() {
    let mut done = plan(20);
    done.recipe.checkpointing = Checkpointing::Full;
    done.recipe.optimizer = crate::recipe::Optimizer {
        name: crate::recipe::OptimizerName::AdamW8bit,
        in_backward: true,
        ..crate::recipe::Optimizer::default()
    };
    done.recipe.attention = Some(Attention::Sdpa);
    done.recipe.liger = LigerKernel::DEFAULT.into();
    done.recipe.precision = Some(Precision::PureBf16);
    done.recipe.seq_len = 200;
    done.recipe.lora = Some(Lora::new(16, vec!["q_proj".into()]));
    done.recipe.quantization =
        Some(Quantization { kind: QuantKind::Nf4, double_quant: true, compute_dtype: None, prepare: true });
    done.framework.alloc_conf = Some("expandable_segments:True".into());
    let decision = decide_with(&done, &responsive).unwrap();
    let ids: Vec<_> = decision.remedies.iter().map(|r| r.id).collect();
    let further = [RemedyId::OffloadActivations, RemedyId::NoCheckpointing];
    let hardware = [RemedyId::TensorParallel, RemedyId::MoreGpus, RemedyId::LargerGpu];
    assert_eq!(ids, [&further[..], &hardware].concat());
}

#[test]
fn a_change_that_cannot_be_walked_is_no_remedy() {
    let walk = |plan: &Plan| match plan.recipe.checkpointing {
        Checkpointing::None => responsive(plan),
        _ => Err(vec![Issue::new("recipe.checkpointing", IssueKind::NotModelled { what: "this".into() })]),
    };
    let decision = decide_with(&plan(20), &walk).unwrap();
    assert!(decision.remedies.iter().all(|r| r.id != RemedyId::Checkpointing));
}

#[test]
fn issues_of_the_walk_and_of_the_machine_come_together() {
    let mut wrong = plan(20);
    wrong.machine.gpu = Some(GpuChoice::Catalogue("RTX 9999".into()));
    let walk = |_: &Plan| Err(vec![Issue::new("recipe.micro_batch", IssueKind::TooLarge)]);
    let fields: Vec<_> = decide_with(&wrong, &walk).unwrap_err().into_iter().map(|i| i.field).collect();
    assert_eq!(fields, ["machine.gpu", "recipe.micro_batch"]);
}

#[test]
fn every_part_is_counted_once_in_the_rigid_figure() {
    let decision = decide_with(&plan(40), &walked(Some(22))).unwrap();
    let pieces = &step(&decision, Question::Rigid).figure.pieces;
    assert_eq!(
        pieces[..3],
        [(Piece::Weights, Some(gib(4))), (Piece::Gradients, Some(gib(4))), (Piece::States, Some(gib(4)))]
    );
    assert_eq!(decision.estimate.bill.column(Instant::Step).parts.get(Part::States), gib(4));
}

mod laws {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A larger card never turns a better verdict into a worse one, and *fits* never holds more than the card.
        #[test]
        fn a_larger_card_is_never_worse(memory in 1_u64..200, more in 0_u64..100, reserved in 20_u64..60) {
            let rank = |kind| match kind {
                VerdictKind::DoesNotFit => 0,
                VerdictKind::Tight => 1,
                VerdictKind::Fits => 2,
                VerdictKind::CannotTell => panic!("everything is known"),
            };
            let small = verdict(&plan(memory), Some(reserved));
            let large = verdict(&plan(memory + more), Some(reserved));
            prop_assert!(rank(small.0) <= rank(large.0));
            if small.0 == VerdictKind::Fits {
                prop_assert!(reserved < memory);
            }
        }
    }
}

//! The end of the decision tree (A11): what to run, two other ways, and why not the rest.
//!
//! A way is a chain of remedies, each priced by walking on from the plan before it. Ways that leave the training as it is come
//! first and of them the fastest; then those that change it, least first; then other hardware.

use serde::{Deserialize, Serialize};

use crate::decide::decision::{Before, Eyes, Situated, Walk, price_one};
use crate::decide::remedy::rule;
use crate::decide::{Decision, Effect, Fact, PricedRemedy, Reason, RemedyId, Verdict, VerdictKind};
use crate::order::sort_short_by;
use crate::plan::Plan;
use crate::throughput::Throughput;

/// How many ways are given: one to recommend, two others.
const WAYS: usize = 3;
/// A shorter step is worth a change from this share on.
const WORTH: f64 = 0.03;

/// What is recommended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// What to do.
    pub outcome: Outcome,
    /// The recommended way first, then the others; all fit.
    pub ways: Vec<Way>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It fits, and nothing that leaves the training as it is makes it faster.
    Keep,
    /// It fits; the first way is faster.
    Faster,
    /// The first way makes it fit.
    Change,
    /// No way that is known makes it fit.
    Nothing,
    /// This fact has to be found first.
    Find(Fact),
}

/// A chain of remedies that ends in a plan that fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// What else it changes: the most of its remedies.
    pub effect: Effect,
    /// The remedies in order, each priced against the plan before it.
    pub steps: Vec<PricedRemedy>,
    /// The plan at the end.
    pub plan: Plan,
    /// Its verdict.
    pub verdict: Verdict,
    /// Its speed. `None`: not known.
    pub throughput: Option<Throughput>,
}

/// Why a remedy is not what is recommended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Declined {
    /// It saves nothing at the instant that binds.
    SavesNothing,
    /// Alone it is not enough.
    NotEnough,
    /// It would do, and is slower.
    Slower,
    /// It would do, and is no better.
    NoBetter,
    /// It would do, and changes the training, which is not needed.
    ChangesTraining,
    /// It would do, on other hardware, which is not needed.
    OtherHardware,
}

impl Declined {
    /// Every reason, those that end the question first.
    pub const ALL: [Self; 6] =
        [Self::SavesNothing, Self::NotEnough, Self::Slower, Self::NoBetter, Self::ChangesTraining, Self::OtherHardware];
}

impl Advice {
    /// Why `remedy` is not recommended. `None`: it is, or there is nothing to compare.
    #[must_use]
    pub fn declined(&self, remedy: &PricedRemedy) -> Option<Declined> {
        let best = self.ways.first().filter(|best| best.steps.iter().all(|step| step.id != remedy.id));
        if remedy.verdict != VerdictKind::Fits {
            let chosen = best.is_none() && !self.ways.is_empty();
            let why = if remedy.saves() { Declined::NotEnough } else { Declined::SavesNothing };
            return (!chosen).then_some(why);
        }
        let best = best?;
        let speed = |of: &Option<Throughput>| of.as_ref().map(Throughput::per_token);
        Some(match remedy.effect {
            effect if effect <= best.effect => match speed(&remedy.throughput).zip(speed(&best.throughput)) {
                Some((remedy, best)) if remedy > best => Declined::Slower,
                _ => Declined::NoBetter,
            },
            Effect::OtherHardware => Declined::OtherHardware,
            _ => Declined::ChangesTraining,
        })
    }
}

/// A way to try: what it begins with, if it needs that, and what may follow, in order.
pub(super) struct Route {
    effect: Effect,
    head: Option<RemedyId>,
    then: &'static [&'static [RemedyId]],
}

/// What costs no time, or saves some.
const FREE: &[RemedyId] = &[
    RemedyId::DropOutputs,
    RemedyId::FreeGradients,
    RemedyId::SdpaAttention,
    RemedyId::FusedOptimizer,
    RemedyId::ForloopOptimizer,
    RemedyId::GradientBuckets,
    RemedyId::SequenceParallel,
    RemedyId::ShardMore,
    RemedyId::FusedLoss,
    RemedyId::ExpandableSegments,
];
const BATCH: &[RemedyId] = &[RemedyId::SmallerMicroBatch];
const SELECTIVE: &[RemedyId] = &[RemedyId::SelectiveCheckpointing, RemedyId::SmallerMicroBatch];
const CHECKPOINTED: &[RemedyId] = &[RemedyId::Checkpointing, RemedyId::SmallerMicroBatch];
/// What costs most, or asks for most.
const LAST: &[RemedyId] = &[
    RemedyId::OptimizerInBackward,
    RemedyId::PrecomputeReference,
    RemedyId::OffloadActivations,
    RemedyId::PagedOptimizer,
];
/// What makes a plan that fits faster.
const SPEED: &[RemedyId] =
    &[RemedyId::SdpaAttention, RemedyId::FusedOptimizer, RemedyId::NoCheckpointing, RemedyId::LargerMicroBatch];

const fn same(then: &'static [&'static [RemedyId]]) -> Route {
    Route { effect: Effect::SameTraining, head: None, then }
}

const fn with(effect: Effect, head: RemedyId, then: &'static [&'static [RemedyId]]) -> Route {
    Route { effect, head: Some(head), then }
}

const NARROW: &[RemedyId] = &[RemedyId::EightBitOptimizer];
const EVERYTHING: &[&[RemedyId]] = &[FREE, CHECKPOINTED, &[RemedyId::OptimizerInBackward]];

/// The ways that are tried, by what they change and then in the order of preference.
const ROUTES: &[Route] = &[
    same(&[FREE, BATCH, LAST]),
    same(&[FREE, SELECTIVE, LAST]),
    same(&[FREE, CHECKPOINTED, LAST]),
    with(Effect::ChangesTraining, RemedyId::Autocast, EVERYTHING),
    with(Effect::ChangesTraining, RemedyId::EightBitOptimizer, EVERYTHING),
    with(Effect::ChangesTraining, RemedyId::PureBf16, &[FREE, CHECKPOINTED, NARROW, &[RemedyId::OptimizerInBackward]]),
    with(Effect::ChangesTraining, RemedyId::Lora, EVERYTHING),
    with(Effect::ChangesTraining, RemedyId::Qlora, EVERYTHING),
    with(Effect::OtherHardware, RemedyId::MoreGpus, EVERYTHING),
    with(Effect::OtherHardware, RemedyId::TensorParallel, EVERYTHING),
    with(Effect::OtherHardware, RemedyId::LargerGpu, EVERYTHING),
];

/// The ways found so far, and which to try next.
#[derive(Clone, Debug, Default)]
pub(super) struct Ways {
    next: usize,
    found: Vec<Way>,
}

impl Ways {
    /// The next route that is worth trying; none where enough was found.
    pub(super) fn route(&mut self) -> Option<&'static Route> {
        let same = self.count(Effect::SameTraining);
        while let Some(route) = ROUTES.get(self.next) {
            let most = match route.effect {
                Effect::SameTraining => WAYS,
                Effect::ChangesTraining if same == 0 => 2,
                _ => usize::from(self.found.len() < WAYS),
            };
            if self.count(route.effect) < most {
                return Some(route);
            }
            self.next += 1;
        }
        None
    }

    fn count(&self, effect: Effect) -> usize {
        self.found.iter().filter(|way| way.effect == effect).count()
    }

    /// Takes what a route came to, and goes on to the next.
    pub(super) fn take(&mut self, way: Option<Way>) {
        self.next += 1;
        self.found.extend(way.filter(|way| self.found.iter().all(|other| other.plan != way.plan)));
    }

    /// The recommended way and two others: of another effect where there are any.
    fn best(mut self) -> Vec<Way> {
        let time = |way: &Way| {
            let known = way.throughput.as_ref().filter(|_| way.effect == Effect::SameTraining);
            known.map_or(f64::INFINITY, Throughput::per_token)
        };
        sort_short_by(&mut self.found, |a, b| a.effect.cmp(&b.effect).then(time(a).total_cmp(&time(b))).is_lt());
        let Some(first) = self.found.first().map(|way| way.effect) else { return self.found };
        let mut seen = vec![first];
        let (mut other, mut like): (Vec<Way>, Vec<Way>) = self.found.split_off(1).into_iter().partition(|way| {
            let new = !seen.contains(&way.effect);
            seen.push(way.effect);
            new
        });
        self.found.append(&mut other);
        self.found.append(&mut like);
        self.found.truncate(WAYS);
        self.found
    }
}

/// What the decision by itself says of what to do; none where ways are to be looked for.
pub(super) fn outright(verdict: &Verdict) -> Option<Advice> {
    match verdict.reason {
        Reason::Unknown(fact) => Some(Advice { outcome: Outcome::Find(fact), ways: Vec::new() }),
        _ => None,
    }
}

/// The advice from the ways that were found.
pub(super) fn advice(ways: Ways) -> Advice {
    let ways = ways.best();
    let outcome = if ways.is_empty() { Outcome::Nothing } else { Outcome::Change };
    Advice { outcome, ways }
}

/// The advice about a plan that fits.
pub(super) fn faster(plan: &Plan, eyes: Eyes<'_>) -> Advice {
    let steps = sped_up(plan, Vec::new(), eyes);
    let way = finished(plan, steps, eyes.whole);
    Advice { outcome: if way.is_some() { Outcome::Faster } else { Outcome::Keep }, ways: way.into_iter().collect() }
}

/// Goes a route from `plan` on. None: it does not end in a plan that fits.
pub(super) fn travel(route: &Route, plan: &Plan, eyes: Eyes<'_>) -> Option<Way> {
    let start = Situated::of(plan, eyes.rough).ok()?.verdict.kind;
    let mut steps = Vec::new();
    if let Some(head) = route.head {
        steps.push(step(plan, head, eyes)?);
    }
    loop {
        let before = steps.len();
        for id in route.then.iter().copied().flatten() {
            let (now, verdict) = match steps.last() {
                Some(PricedRemedy { verdict: VerdictKind::Fits, .. }) => break,
                Some(last) => (&last.plan, last.verdict),
                None => (plan, start),
            };
            let Some(remedy) = step(now, *id, eyes) else { continue };
            let helps = remedy.saves() || remedy.verdict.rank() < verdict.rank();
            if helps && remedy.verdict != VerdictKind::CannotTell {
                steps.push(remedy);
            }
        }
        match steps.last() {
            Some(last) if last.verdict == VerdictKind::Fits => break,
            _ if steps.len() == before => return None,
            _ => {}
        }
    }
    let steps = trimmed(plan, steps, eyes);
    finished(plan, sped_up(plan, steps, eyes), eyes.whole)
}

/// A remedy on `plan`, priced.
fn step(plan: &Plan, id: RemedyId, eyes: Eyes<'_>) -> Option<PricedRemedy> {
    // It is chosen by what the plan reserves.
    let walk = if id == RemedyId::LargerGpu { eyes.whole } else { eyes.rough };
    let now = Situated::of(plan, walk).ok()?;
    let before = Before::of(&now.runs.dearest().estimate, &now.verdict, now.throughput());
    price_one(rule(id)?, plan, &now.hardware, &before, walk)
}

/// Remedies one after the other. None: one of them does not apply, or it does not fit in the end.
fn chain(plan: &Plan, ids: &[RemedyId], eyes: Eyes<'_>) -> Option<Vec<PricedRemedy>> {
    let mut steps: Vec<PricedRemedy> = Vec::new();
    for id in ids {
        let now = steps.last().map_or(plan, |last| &last.plan);
        steps.push(step(now, *id, eyes)?);
    }
    steps.last().is_some_and(|last| last.verdict == VerdictKind::Fits).then_some(steps)
}

/// The chain without what it does not need, the last first; a smaller micro-batch last, so that it is no smaller than it must
/// be. What only makes it faster stays, unless it changes more than that.
fn trimmed(plan: &Plan, mut steps: Vec<PricedRemedy>, eyes: Eyes<'_>) -> Vec<PricedRemedy> {
    let ids = |steps: &[PricedRemedy], skipped: usize, again: Option<RemedyId>| {
        let rest = steps.iter().enumerate().filter(|(at, _)| *at != skipped).map(|(_, step)| step.id);
        rest.chain(again).collect::<Vec<_>>()
    };
    let smaller = steps.iter().position(|step| step.id == RemedyId::SmallerMicroBatch);
    if let Some(at) = smaller.filter(|at| at + 1 < steps.len()) {
        let last = ids(&steps, at, Some(RemedyId::SmallerMicroBatch));
        let without = ids(&steps, at, None);
        let better = chain(plan, &last, eyes).or_else(|| chain(plan, &without, eyes));
        steps = better.unwrap_or(steps);
    }
    for at in (0..steps.len()).rev() {
        if let Some(shorter) = chain(plan, &ids(&steps, at, None), eyes)
            && (steps[at].effect != Effect::SameTraining || no_slower(&shorter, &steps))
        {
            steps = shorter;
        }
    }
    steps
}

/// Whether a chain ends in a plan that is as fast, or nothing is known of it.
fn no_slower(a: &[PricedRemedy], b: &[PricedRemedy]) -> bool {
    let time = |steps: &[PricedRemedy]| Some(steps.last()?.throughput.as_ref()?.per_token());
    time(a).zip(time(b)).is_none_or(|(a, b)| a <= b * (1.0 + WORTH))
}

/// The chain with what makes its end faster and still fits.
fn sped_up(plan: &Plan, mut steps: Vec<PricedRemedy>, eyes: Eyes<'_>) -> Vec<PricedRemedy> {
    for id in SPEED {
        // The largest that fits already.
        let largest = *id == RemedyId::LargerMicroBatch && steps.iter().any(|s| s.id == RemedyId::SmallerMicroBatch);
        if largest || steps.iter().any(|step| step.id == *id) {
            continue;
        }
        let now = steps.last().map_or(plan, |last| &last.plan);
        let faster = step(now, *id, eyes);
        let faster = faster.filter(|r| r.verdict == VerdictKind::Fits && r.time.is_some_and(|time| time <= -WORTH));
        steps.extend(faster);
    }
    steps
}

/// A chain as a way, every price from whole walks. None: it has no remedy.
fn finished(plan: &Plan, steps: Vec<PricedRemedy>, walk: Walk<'_>) -> Option<Way> {
    let ids: Vec<RemedyId> = steps.iter().map(|step| step.id).collect();
    let steps = chain(plan, &ids, Eyes { rough: walk, whole: walk })?;
    let plan = steps.last()?.plan.clone();
    let end = Situated::of(&plan, walk).ok()?;
    let effect = steps.iter().map(|step| step.effect).max()?;
    let (verdict, throughput) = (end.verdict.clone(), end.throughput());
    Some(Way { effect, steps, verdict, throughput, plan: plan.clone() })
}

impl Decision {
    /// Scales every speed of the advice by what the estimate was off.
    pub(super) fn advised_throughputs(&mut self) -> impl Iterator<Item = &mut Option<Throughput>> {
        let ways = self.advice.iter_mut().flat_map(|advice| &mut advice.ways);
        ways.flat_map(|way| way.steps.iter_mut().map(|step| &mut step.throughput).chain([&mut way.throughput]))
    }
}

//! From a plan to a decision, by walking the plan and, for each remedy, the plan with the change.

use core::cell::RefCell;

use serde::{Deserialize, Serialize};

use crate::bill::{Bill, Instant, ProvenanceKind};
use crate::calibration::{Calibration, Fitted, Quantity};
use crate::decide::advice::{self, Advice};
use crate::decide::remedy::{RULES, Rule, Situation};
use crate::decide::verdict::{Fact, Reason, judge};
use crate::decide::{Caveat, PricedRemedy, TreeStep, Verdict, VerdictKind, tree};
use crate::estimate::{self, Estimate, Note, Slices, read_model};
use crate::issue::{Issue, IssueKind};
use crate::machine::Hardware;
use crate::model::Model;
use crate::order::{sort_short_by, sort_short_by_key};
use crate::plan::{PLAN_VERSION, Plan};
use crate::recipe::Precision;
use crate::recipe::parallel::DataParallel;
use crate::rule_of_thumb::{self, Thumb};
use crate::step::load::unquantized_experts;
use crate::throughput::{self, Range, Throughput, Work};
use crate::units::Bytes;

/// Everything that follows from a plan: its estimate, the verdict, the tree, the remedies.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The walk's results; where the precision is not given, the dearest candidate's.
    pub estimate: Estimate,
    /// The answer.
    pub verdict: Verdict,
    /// What a reader should know beside it.
    pub caveats: Vec<Caveat>,
    /// The four questions, in order.
    pub tree: Vec<TreeStep>,
    /// Every applicable remedy: those that leave the training as it is first, then by what they achieve.
    pub remedies: Vec<PricedRemedy>,
    /// The rough speed; `None`: not known.
    pub throughput: Option<Throughput>,
    /// What to run; `None`: not worked out, see [`advise`] and [`Deliberation::advise`].
    pub advice: Option<Advice>,
}

impl Decision {
    /// The decision with a step's seconds as the user measured them: every speed is scaled by what the estimate was off.
    #[must_use]
    pub fn with_measured_step(mut self, seconds: f64) -> Self {
        let Some(factor) = self.throughput.as_ref().map(|speed| seconds / speed.likely_seconds.0) else { return self };
        let all = self.tree.iter_mut().map(|step| &mut step.throughput);
        let all = all.chain(self.remedies.iter_mut().map(|remedy| &mut remedy.throughput));
        for speed in all.chain([&mut self.throughput]) {
            *speed = speed.take().map(|speed| speed.calibrated(factor));
        }
        for speed in self.advised_throughputs() {
            *speed = speed.take().map(|speed| speed.calibrated(factor));
        }
        self
    }

    /// Whether the allocator's replay is still to come: see [`quick`].
    #[must_use]
    pub fn awaits_replay(&self) -> bool {
        self.estimate.notes.contains(&Note::NotReplayed)
    }
}

/// One precision recipe that the user may be using.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Which.
    pub precision: Precision,
    /// Its verdict.
    pub verdict: VerdictKind,
    /// Its allocated peak.
    pub allocated: Bytes,
}

/// A way to walk a plan, such as [`estimate`], one that remembers, or one made up by a test.
pub type Walk<'a> = &'a dyn Fn(&Plan) -> Result<Estimate, Vec<Issue>>;

/// What the walk alone says about `plan`, without the allocator's replay and without remedies: for a front end that
/// answers at every keystroke. It says *does not fit* where that is certain, and never *fits*: see [`Deliberation`] for
/// the rest.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn quick(plan: &Plan) -> Result<Decision, Vec<Issue>> {
    Ok(Situated::of(plan, &estimate::quick)?.decision(Vec::new()))
}

/// Decides about `plan`.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn decide(plan: &Plan) -> Result<Decision, Vec<Issue>> {
    decide_with(plan, &estimate::estimate)
}

/// [`decide`] with another way to walk a plan.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn decide_with(plan: &Plan, walk: Walk<'_>) -> Result<Decision, Vec<Issue>> {
    let situated = Situated::of(plan, walk)?;
    let remedies = price(&situated, walk);
    Ok(situated.decision(remedies))
}

/// A plan with its walks on its hardware.
pub(super) struct Situated<'a> {
    plan: &'a Plan,
    pub(super) hardware: Hardware,
    pub(super) runs: Runs,
    pub(super) verdict: Verdict,
}

impl<'a> Situated<'a> {
    pub(super) fn of(plan: &'a Plan, walk: Walk<'_>) -> Result<Self, Vec<Issue>> {
        let mut issues = document_issues(plan);
        let hardware = plan.hardware().map_err(|found| issues.extend(found)).ok();
        let runs = Runs::of(plan, walk).map_err(|found| issues.extend(found)).ok();
        let (Some(hardware), Some(runs), true) = (hardware, runs, issues.is_empty()) else {
            return Err(distinct(issues));
        };
        let verdict = runs.verdict(plan, &hardware);
        Ok(Self { plan, hardware, runs, verdict })
    }

    pub(super) fn throughput(&self) -> Option<Throughput> {
        let run = self.runs.dearest();
        let speed = throughput::rough(&work_of(&run.plan)?, &run.plan.recipe, &self.hardware)?;
        Some(match run.plan.fitted(Fitted::Efficiency) {
            Some(Quantity { value, low, high, .. }) => speed.reaching(*value, Range { low: *low, high: *high }),
            None => speed,
        })
    }

    fn decision(self, remedies: Vec<PricedRemedy>) -> Decision {
        let throughput = self.throughput();
        let mut caveats = caveats(self.plan, &self.hardware);
        if self.plan.recipe.precision == Some(Precision::RuleOfThumb) {
            caveats.insert(0, rule_of_thumb(self.plan, self.runs.dearest().estimate.parameters));
        }
        if let Some(candidates) = self.runs.candidates(&self.hardware) {
            caveats.push(Caveat::PrecisionNotGiven { candidates });
        }
        let Self { plan, runs, verdict, .. } = self;
        let estimate = runs.into_dearest();
        let tree = tree::steps(&plan.policy_in_force(), &estimate, &verdict, throughput.as_ref(), &remedies);
        Decision { estimate, verdict, caveats, tree, remedies, throughput, advice: None }
    }
}

/// The work of a plan whose speed can be estimated: what several models and phases take is not modelled, and `nn.DataParallel`
/// waits for copies and for Python's threads.
pub(crate) fn work_of(plan: &Plan) -> Option<Work> {
    // Nor is what a disk takes known.
    let apart = matches!(plan.parallel.data, DataParallel::Dp(_)) || plan.parallel.data.is_on_disk();
    (plan.recipe.method.is_none() && !apart).then(|| Work::of(plan)).flatten()
}

/// One walk of a plan whose precision is known.
pub(super) struct Run {
    plan: Plan,
    pub(super) estimate: Estimate,
}

impl Run {
    fn verdict(&self, hardware: &Hardware) -> Verdict {
        judge(&self.estimate.tiers, hardware, &self.plan).with_replay(self.estimate.on_card.as_ref())
    }
}

/// The walks of a plan: one, or one per candidate where the precision is not known. The dearest first.
pub(super) struct Runs(Vec<Run>);

impl Runs {
    fn of(plan: &Plan, walk: Walk<'_>) -> Result<Self, Vec<Issue>> {
        let candidates = match plan.recipe.precision {
            Some(given) => vec![given],
            // FP16 without a scaler is nothing that one does without knowing.
            None => {
                let guessed = |p: &Precision| {
                    !matches!(p, Precision::RuleOfThumb | Precision::PureFp16 | Precision::Bf16Autocast)
                };
                Precision::ALL.into_iter().filter(guessed).collect()
            }
        };
        let mut runs = Vec::new();
        for precision in candidates {
            let mut plan = plan.clone();
            plan.recipe.precision = Some(precision);
            runs.push(Run { estimate: walk(&plan)?, plan });
        }
        sort_short_by_key(&mut runs, |run| core::cmp::Reverse(run.estimate.tiers.allocated.peak_bytes));
        Ok(Self(runs))
    }

    pub(super) fn dearest(&self) -> &Run {
        &self.0[0]
    }

    fn into_dearest(mut self) -> Estimate {
        self.0.swap_remove(0).estimate
    }

    /// The candidates' common verdict; where they differ, the precision is the fact that would decide.
    fn verdict(&self, plan: &Plan, hardware: &Hardware) -> Verdict {
        let of_dearest = self.dearest().verdict(hardware);
        let differ = self.0.iter().any(|run| run.verdict(hardware).kind != of_dearest.kind);
        if plan.recipe.precision.is_none() && differ {
            let (kind, reason) = (VerdictKind::CannotTell, Reason::Unknown(Fact::Precision));
            return Verdict { kind, reason, numbers: of_dearest.numbers };
        }
        of_dearest
    }

    /// The candidates, where the precision was not given.
    fn candidates(&self, hardware: &Hardware) -> Option<Vec<Candidate>> {
        let candidate = |run: &Run| {
            Some(Candidate {
                precision: run.plan.recipe.precision?,
                verdict: run.verdict(hardware).kind,
                allocated: run.estimate.tiers.allocated.peak_bytes,
            })
        };
        (self.0.len() > 1).then(|| self.0.iter().filter_map(candidate).collect())
    }
}

/// Walks the plan once more for each remedy that applies. A plan that cannot be walked with the change is no remedy.
fn price(now: &Situated<'_>, walk: Walk<'_>) -> Vec<PricedRemedy> {
    let walked = Known::default();
    let walk_once = |plan: &Plan| walked.walk(plan, walk);
    let before = Before::of(&now.runs.dearest().estimate, &now.verdict, now.throughput());
    let one = |rule| price_one(rule, now.plan, &now.hardware, &before, &walk_once);
    in_order(RULES.iter().filter_map(one).collect())
}

/// Walks that are done: a remedy that searches walks some plans that are then priced.
#[derive(Default)]
struct Known(RefCell<Vec<Walked>>);

type Walked = (Plan, Result<Estimate, Vec<Issue>>);

impl Known {
    fn walk(&self, plan: &Plan, walk: Walk<'_>) -> Result<Estimate, Vec<Issue>> {
        if let Some((_, known)) = self.0.borrow().iter().find(|(of, _)| of == plan) {
            return known.clone();
        }
        let result = walk(plan);
        self.0.borrow_mut().push((plan.clone(), result.clone()));
        result
    }
}

/// Two ways to walk: one that need not go on where a plan is refuted, and a whole one.
#[derive(Clone, Copy)]
pub(super) struct Eyes<'a> {
    pub(super) rough: Walk<'a>,
    pub(super) whole: Walk<'a>,
}

/// What the walk alone says of `plan`, where that refutes it; none where the replay has to tell.
fn refuted(plan: &Plan) -> Option<Estimate> {
    let quick = estimate::quick(plan).ok()?;
    let verdict = judge(&quick.tiers, &plan.hardware().ok()?, plan);
    (verdict.kind == VerdictKind::DoesNotFit).then_some(quick)
}

/// What is recommended about `plan`, about which `decision` was made.
#[must_use]
pub fn advise(plan: &Plan, decision: &Decision) -> Advice {
    let (rough, whole) = (Known::default(), Known::default());
    let whole = |plan: &Plan| whole.walk(plan, &estimate::estimate);
    let rough = |plan: &Plan| rough.walk(plan, &|plan| refuted(plan).map_or_else(|| whole(plan), Ok));
    advise_by(plan, decision, Eyes { rough: &rough, whole: &whole })
}

/// [`advise`] with another way to walk a plan.
#[must_use]
pub fn advise_with(plan: &Plan, decision: &Decision, walk: Walk<'_>) -> Advice {
    let known = Known::default();
    let walk = |plan: &Plan| known.walk(plan, walk);
    advise_by(plan, decision, Eyes { rough: &walk, whole: &walk })
}

fn advise_by(plan: &Plan, decision: &Decision, eyes: Eyes<'_>) -> Advice {
    if let Some(outright) = advice::outright(&decision.verdict) {
        return outright;
    }
    if decision.verdict.kind == VerdictKind::Fits {
        return advice::faster(plan, eyes);
    }
    let mut ways = advice::Ways::default();
    while let Some(route) = ways.route() {
        ways.take(advice::travel(route, plan, eyes));
    }
    advice::advice(ways)
}

/// What a remedy is held against.
pub(super) struct Before<'a> {
    estimate: &'a Estimate,
    verdict: &'a Verdict,
    throughput: Option<Throughput>,
}

impl<'a> Before<'a> {
    pub(super) const fn of(estimate: &'a Estimate, verdict: &'a Verdict, throughput: Option<Throughput>) -> Self {
        Self { estimate, verdict, throughput }
    }
}

pub(super) fn price_one(
    rule: &Rule,
    plan: &Plan,
    hardware: &Hardware,
    before: &Before<'_>,
    walk: Walk<'_>,
) -> Option<PricedRemedy> {
    let verdict_of = |plan: &Plan| Situated::of(plan, walk).ok().map(|changed| changed.verdict.kind);
    let tiers = &before.estimate.tiers;
    let situation = Situation { plan, hardware, tiers, verdict: before.verdict.kind, verdict_of: &verdict_of };
    let plan = (rule.change)(&situation)?;
    let changed = Situated::of(&plan, walk).ok()?;
    let (now, after) = (before.verdict.numbers, changed.verdict.numbers);
    let estimate = &changed.runs.dearest().estimate;
    let bill = &estimate.bill;
    let at = |estimate: &Bill, instant| estimate.column(instant).parts.total();
    let throughput = changed.throughput().filter(|_| rule.id.is_timed());
    Some(PricedRemedy {
        id: rule.id,
        effect: rule.effect,
        helps: rule.helps.to_vec(),
        peak_bytes: after.allocated,
        saved_bytes: difference(now.allocated, after.allocated),
        saved_process_bytes: now.process.zip(after.process).map(|(b, a)| difference(b, a)),
        saved_at: Instant::ALL.map(|instant| difference(at(&before.estimate.bill, instant), at(bill, instant))),
        binding: estimate.peak(),
        time: before
            .throughput
            .as_ref()
            .zip(throughput.as_ref())
            .map(|(now, then)| then.per_token() / now.per_token() - 1.0),
        verdict: changed.verdict.kind,
        throughput,
        plan: plan.clone(),
    })
}

/// As the articles have it (A7): those that leave the training as it is first, then what is stable, what is fast, what saves.
fn in_order(mut priced: Vec<PricedRemedy>) -> Vec<PricedRemedy> {
    let time = |r: &PricedRemedy| r.time.filter(|_| r.verdict == VerdictKind::Fits).unwrap_or(f64::INFINITY);
    sort_short_by(&mut priced, |a, b| {
        let stable = (a.effect, a.verdict.rank()).cmp(&(b.effect, b.verdict.rank()));
        stable.then(time(a).total_cmp(&time(b))).then(b.saved_bytes.cmp(&a.saved_bytes)).is_lt()
    });
    priced
}

/// A decision in slices, for a front end that must draw and listen in between.
#[derive(Debug)]
pub struct Deliberation {
    plan: Plan,
    walks: Walks,
    /// The next remedy to price.
    next: usize,
    priced: Vec<PricedRemedy>,
    ways: advice::Ways,
}

impl Deliberation {
    /// The decision about `plan`, not begun.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let (walks, ways) = (Walks::default(), advice::Ways::default());
        Self { plan: plan.clone(), walks, next: 0, priced: Vec::new(), ways }
    }

    /// Goes on by a slice of at most `events` of a replay. The decision without its remedies, once it is reached; or
    /// every issue of the plan.
    pub fn refine(&mut self, events: usize) -> Option<Result<Decision, Vec<Issue>>> {
        let plan = &self.plan;
        self.walks.attempt(events, |walk| Ok(Situated::of(plan, walk)?.decision(Vec::new())))
    }

    /// Goes on by such a slice to price the remedies of the `decision` that was reached. True once all are priced.
    pub fn price(&mut self, decision: &Decision, events: usize) -> bool {
        let (Some(rule), Ok(hardware)) = (RULES.get(self.next), self.plan.hardware()) else { return true };
        let before = Before::of(&decision.estimate, &decision.verdict, decision.throughput.clone());
        let plan = &self.plan;
        let priced = self.walks.attempt(events, |walk| price_one(rule, plan, &hardware, &before, walk));
        if let Some(priced) = priced {
            self.priced.extend(priced);
            self.next += 1;
        }
        self.next == RULES.len()
    }

    /// Goes on by such a slice to find what to recommend; the advice, once it is there.
    pub fn advise(&mut self, decision: &Decision, events: usize) -> Option<Advice> {
        if let Some(outright) = advice::outright(&decision.verdict) {
            return Some(outright);
        }
        let plan = &self.plan;
        if decision.verdict.kind == VerdictKind::Fits {
            return self.walks.attempt_roughly(events, |eyes| advice::faster(plan, eyes));
        }
        let Some(route) = self.ways.route() else { return Some(advice::advice(core::mem::take(&mut self.ways))) };
        if let Some(way) = self.walks.attempt_roughly(events, |eyes| advice::travel(route, plan, eyes)) {
            self.ways.take(way);
        }
        None
    }

    /// The decision with the remedies priced so far.
    #[must_use]
    pub fn with_remedies(&self, mut decision: Decision) -> Decision {
        decision.remedies = in_order(self.priced.clone());
        decision.tree = tree::steps(
            &self.plan.policy_in_force(),
            &decision.estimate,
            &decision.verdict,
            decision.throughput.as_ref(),
            &decision.remedies,
        );
        decision
    }
}

/// Walks that are done, and the one in hand.
#[derive(Debug, Default)]
struct Walks {
    done: Vec<Walked>,
    /// What the walk alone says of plans that it refutes; none of the others.
    refuted: Vec<(Plan, Option<Estimate>)>,
    in_hand: Option<Slices>,
}

impl Walks {
    /// What `made` comes to. `None`: a walk that it asks for is not done yet; a slice of that is what this call did.
    fn attempt<T>(&mut self, events: usize, made: impl FnOnce(Walk<'_>) -> T) -> Option<T> {
        self.attempt_roughly(events, |eyes| made(eyes.whole))
    }

    /// The same for what need not go on where a plan is refuted.
    fn attempt_roughly<T>(&mut self, events: usize, made: impl FnOnce(Eyes<'_>) -> T) -> Option<T> {
        if let Some(slices) = &mut self.in_hand {
            if let Some(result) = slices.advance(events).transpose() {
                self.done.push((slices.plan().clone(), result));
                self.in_hand = None;
            }
            return None;
        }
        let wanted = RefCell::new(None);
        let whole = |plan: &Plan| match self.done.iter().find(|(of, _)| of == plan) {
            Some((_, known)) => known.clone(),
            None => {
                wanted.borrow_mut().get_or_insert_with(|| (plan.clone(), true));
                Err(Vec::new())
            }
        };
        let rough = |plan: &Plan| match self.refuted.iter().find(|(of, _)| of == plan) {
            Some((_, Some(known))) => Ok(known.clone()),
            Some((_, None)) => whole(plan),
            None => {
                wanted.borrow_mut().get_or_insert_with(|| (plan.clone(), false));
                Err(Vec::new())
            }
        };
        let made = made(Eyes { rough: &rough, whole: &whole });
        match wanted.into_inner() {
            None => return Some(made),
            Some((plan, false)) => {
                let refuted = refuted(&plan);
                self.refuted.push((plan, refuted));
            }
            Some((plan, true)) => match Slices::of(&plan) {
                Ok(slices) => self.in_hand = Some(slices),
                Err(issues) => self.done.push((plan, Err(issues))),
            },
        }
        None
    }
}

fn difference(before: Bytes, after: Bytes) -> i64 {
    i64::try_from(before.0).unwrap_or(i64::MAX).saturating_sub(i64::try_from(after.0).unwrap_or(i64::MAX))
}

/// What the rule says beside its figures, and what it stands against.
fn rule_of_thumb(plan: &Plan, parameters: u64) -> Caveat {
    let dimensions = read_model(&plan.model).ok().map(|read| read.model).filter(|m| m.counts_tokens());
    let recipe = &plan.recipe;
    let symbol = |of: &dyn Model, name: &str| {
        of.symbols(recipe).iter().find(|(symbol, _)| *symbol == name).map(|(_, value)| *value)
    };
    let adapters = dimensions.as_ref().and_then(|m| Thumb::of(plan, m.as_ref()).adapters);
    Caveat::RuleOfThumb {
        trained: adapters.unwrap_or(parameters),
        attention: dimensions.as_ref().and_then(|m| {
            rule_of_thumb::attention_matrix(recipe.micro_batch, symbol(m.as_ref(), "a")?, recipe.seq_len)
        }),
        intermediate: dimensions
            .as_ref()
            .and_then(|m| rule_of_thumb::intermediate(recipe.micro_batch, recipe.seq_len, m.dimensions().hidden)),
    }
}

fn caveats(plan: &Plan, hardware: &Hardware) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    let uses_bf16 = matches!(
        plan.recipe.precision,
        Some(Precision::AmpBf16 | Precision::PureBf16 | Precision::Bf16Autocast | Precision::Bf16Master)
    );
    if let (Some(gpu), Some(false), true) = (&hardware.name, hardware.bf16, uses_bf16) {
        caveats.push(Caveat::Bf16Emulated { gpu: gpu.clone() });
    }
    if plan.recipe.quantization.is_some()
        && let Ok(read) = read_model(&plan.model)
        && let Some((bytes, each, prepared)) = unquantized_experts(read.model.as_ref(), &plan.recipe)
    {
        caveats.push(Caveat::ExpertsNotQuantized { bytes, bits: each * 8, prepared });
    }
    if hardware.name.is_some() && hardware.in_use.is_none() {
        caveats.push(Caveat::InUseNotGiven);
    }
    // What the user stated is no assumption of ours.
    let is_custom = matches!(plan.machine.gpu, Some(crate::machine::GpuChoice::Custom(_)));
    if let Some(capacity) = &hardware.capacity
        && capacity.provenance.kind == ProvenanceKind::Assumed
        && !is_custom
        && plan.machine.mig_slice_bytes.is_none()
    {
        let (bytes, provenance) = (capacity.bytes, capacity.provenance.clone());
        caveats.push(Caveat::CapacityAssumed { bytes, provenance });
    }
    if let Some(context) = &hardware.context
        && context.provenance.kind == ProvenanceKind::Assumed
        && plan.machine.context_bytes.is_none()
    {
        let (bytes, provenance) = (context.bytes, context.provenance.clone());
        caveats.push(Caveat::ContextAssumed { bytes, provenance });
    }
    if let Some(communicators) = &hardware.communicators
        && communicators.provenance.kind == ProvenanceKind::Assumed
        && plan.machine.communicator_bytes.is_none()
    {
        let (bytes, provenance) = (communicators.bytes, communicators.provenance.clone());
        caveats.push(Caveat::CommunicatorsAssumed { bytes, provenance });
    }
    caveats
}

/// What is wrong with the parts of a plan that no walk looks at.
fn document_issues(plan: &Plan) -> Vec<Issue> {
    let mut issues = Vec::new();
    if plan.version != PLAN_VERSION {
        let version = u64::from(PLAN_VERSION);
        let kind = IssueKind::OutOfRange { min: version, max: version, found: plan.version.to_string() };
        issues.push(Issue::new("version", kind));
    }
    issues.extend(plan.calibration.iter().flat_map(Calibration::issues));
    let policy = &plan.policy;
    let mut shares = true;
    for (field, share) in [
        ("policy.rigid_share", policy.rigid_share),
        ("policy.activation_share", policy.activation_share),
        ("policy.margin_low", policy.margin_low),
        ("policy.margin_high", policy.margin_high),
    ] {
        if !(0.0..=1.0).contains(&share) {
            let expected = "a share from 0 to 1".into();
            issues.push(Issue::new(field, IssueKind::NotA { expected, found: share.to_string() }));
            shares = false;
        }
    }
    if shares && policy.margin_low > policy.margin_high {
        let expected = format!("at most policy.margin_high, {}", policy.margin_high);
        let found = policy.margin_low.to_string();
        issues.push(Issue::new("policy.margin_low", IssueKind::NotA { expected, found }));
    }
    issues
}

/// Issues in order, each once: the walk and the machine may both look at a field.
fn distinct(issues: Vec<Issue>) -> Vec<Issue> {
    let mut distinct: Vec<Issue> = Vec::new();
    for issue in issues {
        if !distinct.contains(&issue) {
            distinct.push(issue);
        }
    }
    distinct
}

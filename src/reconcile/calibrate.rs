//! Fits a plan's [`Calibration`] to measurements.
//!
//! First what is no quantity: whether another workspace mode or other versions explain the figures, by walking again. Then the
//! quantities, from the tensors outwards: what is allocated beside the step, what is reserved beyond one shape, what the
//! process holds beside its allocator, what others hold, what speed is reached. Each is the middle of what the measurements
//! say, and none is fitted to figures that another recipe explains.

use crate::calibration::{Calibration, Fitted, Quantity};
use crate::decide::work_of;
use crate::issue::Issue;
use crate::measure::{Measurement, ReadingName, Reported, TierName};
use crate::order::sort_short_by;
use crate::plan::{Framework, Plan};
use crate::reconcile::hypothesis::outside::{PROCESS, USED, is_level};
use crate::reconcile::hypothesis::score::{Evidence, evidence, misfit};
use crate::reconcile::{Change, Prediction, Reconciliation, Search, Suspect, candidates, predict};
use crate::throughput::rough;
use crate::units::MIB;

/// What measurements say, not yet part of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// How many measurements it rests on.
    pub measurements: u64,
    /// Another workspace mode and other versions that they fit, each at most once.
    pub settings: Vec<Change>,
    /// The quantities.
    pub quantities: Vec<Quantity>,
    /// What was not used, or not for everything.
    pub left_out: Vec<LeftOut>,
}

/// A measurement that was not used, or not for what is allocated.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// Its place among the measurements.
    pub at: usize,
    /// Why.
    pub why: Why,
}

/// Why a measurement was left out.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// Its plan cannot be walked.
    Refused(Vec<Issue>),
    /// Its figures fit another recipe, which no quantity may hide.
    Recipe(Change),
    /// Its figures are off by different amounts at different instants: no quantity does that.
    Unexplained,
    /// It has one figure, which is off: what is kept beside the step and a wrong recipe look alike.
    OneFigure,
}

/// Another setting must explain so much of the misfit.
const LEAST_EXPLAINED: f64 = 0.5;
/// And so much of it in each run, in shares of its figures.
const LEAST_MISFIT: f64 = 0.005;
/// Settings are tried on so many runs whose figures are furthest off, and on as many as this of those that fit best.
const TRIED: [usize; 2] = [8, 4];
/// So many runs of those that nothing fits are held against other recipes.
const SEARCHED: usize = 3;
/// What is kept beside a step is the same at every instant: up to so large a share of it.
const CONSTANT: f64 = 0.1;
/// Where one measurement alone says it, the interval is so wide to each side, as a share.
const OF_ONE: f64 = 0.2;
/// What a replay of one shape's steps may be off by in the share that is unused.
const UNUSED: f64 = 0.015;
/// Half of what drivers count in.
const HALF_MIB: f64 = MIB as f64 / 2.0;
/// From so many measurements on, the interval is read off them.
const MANY: usize = 19;
/// Student's t, one-sided 95 %, for one degree of freedom and more.
const T: [f64; MANY - 2] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753, 1.746,
    1.740,
];

/// A run whose plan was walked.
struct Sample<'a> {
    at: usize,
    plan: Plan,
    measurement: &'a Measurement,
    prediction: Prediction,
    /// How far allocated figures are off at the instants of the step, where that is the same everywhere; 0 included.
    beside: Option<f64>,
}

/// The job that was measured: the plan's, or the one that the document names, on the plan's machine and versions.
#[must_use]
pub fn job_of(plan: &Plan, measurement: &Measurement) -> Plan {
    let Some(own) = &measurement.plan else { return plan.clone() };
    let framework = Framework { alloc_conf: own.framework.alloc_conf.clone(), ..plan.framework.clone() };
    Plan { machine: plan.machine.clone(), framework, ..own.clone() }
}

/// Fits `runs`, each a plan and what was measured of it.
#[must_use]
pub fn calibrate(runs: &[(Plan, Measurement)]) -> Fit {
    let mut left_out = Vec::new();
    let mut samples = Vec::new();
    for (at, (plan, measurement)) in runs.iter().enumerate() {
        let plan = plan.without_calibration();
        match predict(&plan) {
            Ok(prediction) => samples.push(Sample { at, plan, measurement, prediction, beside: None }),
            Err(issues) => left_out.push(LeftOut { at, why: Why::Refused(issues) }),
        }
    }
    let settings = settings(&mut samples);
    left_out.extend(beside(&mut samples));
    let mut quantities: Vec<Quantity> = Vec::new();
    for of in Fitted::ALL {
        let values = samples.iter().filter_map(|sample| sample.says(of, &quantities)).collect();
        let noise = match of {
            Fitted::Overhead => median(&mut samples.iter().map(Sample::noise).collect::<Vec<f64>>()).unwrap_or(0.0),
            Fitted::Fragmentation => UNUSED,
            Fitted::Efficiency => 0.0,
            _ => HALF_MIB,
        };
        quantities.extend(quantity(of, values, noise));
    }
    let measurements = samples.len() as u64;
    Fit { measurements, settings, quantities, left_out }
}

impl Fit {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.quantities.is_empty()
    }

    /// `plan` with the calibration as a part of it. What the plan states of a quantity that was fitted gives way to it, and
    /// comes back when the calibration is taken away.
    #[must_use]
    pub fn adopt(&self, plan: &Plan) -> Plan {
        let plan = plan.without_calibration();
        let (machine, framework) = (plan.machine.clone(), plan.framework.clone());
        let mut adopted = self.settings.iter().fold(plan, |plan, change| change.apply(&plan).unwrap_or(plan));
        for quantity in &self.quantities {
            match quantity.of {
                Fitted::Context => adopted.machine.context_bytes = None,
                Fitted::Communicators => adopted.machine.communicator_bytes = None,
                Fitted::InUse => adopted.machine.in_use_bytes = None,
                Fitted::Overhead | Fitted::Fragmentation | Fitted::Efficiency => {}
            }
        }
        let (measurements, quantities) = (self.measurements, self.quantities.clone());
        Plan { calibration: Some(Calibration { measurements, quantities, machine, framework }), ..adopted }
    }
}

/// Finds the settings that explain the figures better than the plans' own, over all of them, and puts them into the plans.
fn settings(samples: &mut [Sample<'_>]) -> Vec<Change> {
    let mut found: Vec<Change> = Vec::new();
    loop {
        let mut order: Vec<(f64, usize)> = samples
            .iter()
            .enumerate()
            .map(|(at, sample)| (misfit(&sample.evidence(), &sample.prediction), at))
            .collect();
        sort_short_by(&mut order, |a, b| a.0 > b.0);
        let [worst, best] = TRIED;
        let rest = order.split_off(order.len().min(worst));
        order.extend(rest.into_iter().rev().take(best));
        let as_planned: f64 = order.iter().map(|(misfit, _)| misfit).sum();
        let tried: Vec<&Sample<'_>> = order.iter().filter_map(|(_, at)| samples.get(*at)).collect();
        let mut all: Vec<Change> = Vec::new();
        for change in tried.iter().flat_map(|sample| sample.settings()) {
            let again = found.iter().any(|known| core::mem::discriminant(known) == core::mem::discriminant(&change));
            if !again && !all.contains(&change) {
                all.push(change);
            }
        }
        let enough = (LEAST_EXPLAINED * as_planned).max(LEAST_MISFIT * float(tried.len()));
        let mut best: Option<(f64, Change)> = None;
        for change in all.into_iter().filter(|_| as_planned > enough) {
            let most = best.map_or(as_planned - enough, |(misfit, _)| misfit);
            let mut left = 0.0;
            // A setting under which a plan cannot be walked is none.
            let possible = tried.iter().all(|sample| {
                left += sample.misfit_with(change).unwrap_or(f64::INFINITY);
                left < most
            });
            if possible {
                best = Some((left, change));
            }
        }
        // A setting must not stand for a recipe that fits better.
        let worst = tried.first();
        let Some((_, change)) = best.filter(|(_, change)| worst.is_some_and(|worst| worst.supports(*change))) else {
            return found;
        };
        found.push(change);
        for sample in samples.iter_mut() {
            let Some(plan) = change.apply(&sample.plan) else { continue };
            let Ok(prediction) = predict(&plan) else { continue };
            (sample.plan, sample.prediction) = (plan, prediction);
        }
    }
}

/// Says of each run what is allocated beside its step; which are of no use for that, and why.
fn beside(samples: &mut [Sample<'_>]) -> Vec<LeftOut> {
    let mut left_out = Vec::new();
    // Of runs with one figure, only that they all are off by as much tells what is kept from a wrong recipe.
    let mut alone: Vec<f64> = samples.iter().filter_map(Sample::one_figure).collect();
    let common = median(&mut alone).filter(|common| {
        let agree = alone.iter().filter(|off| (**off - common).abs() <= CONSTANT * common.abs()).count();
        alone.len() > 1 && agree * 4 >= alone.len() * 3
    });
    let mut searched = 0;
    for sample in samples {
        let levels = sample.levels();
        let mut off: Vec<f64> = levels.iter().map(|one| -signed(one.off(&sample.prediction))).collect();
        let Some(middle) = median(&mut off) else { continue };
        let same = |one: &Evidence| {
            let off = -signed(one.off(&sample.prediction)) - middle;
            off.abs() <= CONSTANT * middle.abs() + 2.0 * one.tolerance
        };
        let differs = |common: f64, tolerance: f64| (middle - common).abs() > CONSTANT * common.abs() + 2.0 * tolerance;
        let one_figure = levels.len() == 1 && levels.iter().any(|one| differs(common.unwrap_or(0.0), one.tolerance));
        if levels.iter().all(same) && !one_figure {
            sample.beside = Some(middle);
            continue;
        }
        searched += 1;
        let recipe = (searched <= SEARCHED).then(|| sample.recipe()).flatten();
        let why = recipe.map_or(if one_figure { Why::OneFigure } else { Why::Unexplained }, Why::Recipe);
        left_out.push(LeftOut { at: sample.at, why });
    }
    left_out
}

impl Sample<'_> {
    fn evidence(&self) -> Vec<Evidence> {
        evidence(self.measurement, &self.prediction)
    }

    /// Allocated figures that count everything alive at an instant.
    fn levels(&self) -> Vec<Evidence> {
        let mut all = self.evidence();
        all.retain(|one| one.name.tier() == TierName::Allocated && is_level(one.name));
        all
    }

    /// What a right prediction of the peak may be off by.
    fn noise(&self) -> f64 {
        self.levels().iter().map(|one| one.tolerance).fold(0.0, f64::max)
    }

    /// Settings that may be others than the plan says.
    fn settings(&self) -> Vec<Change> {
        let mut all = candidates(&self.plan);
        all.retain(|c| matches!(c, Change::WorkspaceKept(_) | Change::Pytorch(_) | Change::Transformers(_)));
        all
    }

    fn misfit_with(&self, change: Change) -> Option<f64> {
        let Some(plan) = change.apply(&self.plan) else { return Some(misfit(&self.evidence(), &self.prediction)) };
        Some(misfit(&self.evidence(), &predict(&plan).ok()?))
    }

    /// The recipe that the figures fit better than the plan's.
    fn recipe(&self) -> Option<Change> {
        let found = self.reconciled()?;
        let first = found.hypotheses.first().filter(|one| one.explained >= LEAST_EXPLAINED)?;
        match first.suspect {
            Suspect::Change(change) => Some(change),
            _ => None,
        }
    }

    /// How far its figure is off, where it has one alone.
    fn one_figure(&self) -> Option<f64> {
        match self.levels().as_slice() {
            [one] => Some(-signed(one.off(&self.prediction))),
            _ => None,
        }
    }

    /// Whether the run fits no other change better than this one.
    fn supports(&self, change: Change) -> bool {
        let evidence = self.evidence();
        let found = self.reconciled();
        let best = found.iter().flat_map(|found| &found.hypotheses).find_map(|one| match one.suspect {
            Suspect::Change(_) => Some(misfit(&evidence, &predict(one.plan.as_ref()?).ok()?)),
            _ => None,
        });
        let own = self.misfit_with(change);
        own.is_some_and(|own| best.is_none_or(|best| own <= best + LEAST_MISFIT))
    }

    fn reconciled(&self) -> Option<Reconciliation> {
        let mut search = Search::of(&self.plan, self.measurement).ok()?;
        while !search.advance() {}
        Some(search.found())
    }

    /// Whether what is allocated is as predicted or off by the same everywhere, or is not known.
    fn is_sound(&self) -> bool {
        self.beside.is_some() || self.levels().is_empty()
    }

    fn measured(&self, name: ReadingName) -> Option<f64> {
        self.measurement.bytes(name).map(signed)
    }

    fn predicted(&self, name: ReadingName) -> Option<f64> {
        self.prediction.0.get(&name).copied().map(signed)
    }

    /// What is reserved: measured, or predicted with what is fitted already.
    fn reserved(&self, fitted: &[Quantity]) -> Option<f64> {
        let measured = [ReadingName::Reported(Reported::Reserved), ReadingName::MaxReserved];
        measured.into_iter().find_map(|name| self.measured(name)).or_else(|| {
            let overhead = value(fitted, Fitted::Overhead);
            let [allocated, reserved] = [
                self.predicted(ReadingName::MaxAllocated)? + overhead,
                self.predicted(ReadingName::MaxReserved)? + overhead,
            ];
            let used = allocated / reserved - value(fitted, Fitted::Fragmentation);
            (used > 0.0).then_some(allocated / used)
        })
    }

    /// What the measurement says about a quantity, those before it fitted already.
    fn says(&self, of: Fitted, fitted: &[Quantity]) -> Option<f64> {
        match of {
            // A wrong recipe has other shares and another speed.
            Fitted::Fragmentation | Fitted::Efficiency if !self.is_sound() => None,
            Fitted::Overhead => self.beside,
            Fitted::Fragmentation => {
                let overhead = value(fitted, Fitted::Overhead);
                let predicted = |name| Some(self.predicted(name)? + overhead);
                let allocated =
                    self.measured(ReadingName::MaxAllocated).or_else(|| predicted(ReadingName::MaxAllocated))?;
                let used = allocated / self.measured(ReadingName::MaxReserved).filter(|reserved| *reserved > 0.0)?;
                Some(predicted(ReadingName::MaxAllocated)? / predicted(ReadingName::MaxReserved)? - used)
            }
            Fitted::Context => {
                let alone = self.plan.hardware().ok()?.communicators.is_none();
                self.outside(fitted).filter(|_| alone)
            }
            Fitted::Communicators => {
                let hardware = self.plan.hardware().ok()?;
                hardware.communicators.as_ref()?;
                let context = fitted.iter().find(|one| one.of == Fitted::Context).map(|one| one.value);
                let context = context.or_else(|| Some(hardware.context?.bytes.as_f64()))?;
                Some(self.outside(fitted)? - context)
            }
            Fitted::InUse => {
                let process = self.measured(PROCESS).or_else(|| {
                    let hardware = self.plan.hardware().ok()?;
                    let context = fitted.iter().find(|one| one.of == Fitted::Context).map(|one| one.value);
                    Some(self.reserved(fitted)? + context.or_else(|| Some(hardware.outside()?.as_f64()))?)
                })?;
                Some(self.measured(USED)? - process)
            }
            Fitted::Efficiency => {
                let measured = self.measurement.run.as_ref()?.step_seconds.filter(|seconds| *seconds > 0.0)?;
                let hardware = self.plan.hardware().ok()?;
                Some(rough(&work_of(&self.plan)?, &self.plan.recipe, &hardware)?.likely_seconds.0 / measured)
            }
        }
    }

    /// What the process holds outside of PyTorch's allocator.
    fn outside(&self, fitted: &[Quantity]) -> Option<f64> {
        let told = self.measured(ReadingName::Reported(Reported::NonTorch));
        told.or_else(|| Some(self.measured(PROCESS)? - self.reserved(fitted)?))
    }
}

fn value(fitted: &[Quantity], of: Fitted) -> f64 {
    fitted.iter().find(|one| one.of == of).map_or(0.0, |one| one.value)
}

/// The efficiency that runs say, each the most likely seconds of its step as a share of those measured; what [`calibrate`] makes
/// of them. `None`: they say nothing, or nothing that is within bounds.
#[must_use]
pub fn efficiency(shares: Vec<f64>) -> Option<Quantity> {
    quantity(Fitted::Efficiency, shares, 0.0)
}

/// The middle of what the measurements say, and the interval of a further one. `None`: they say nothing, or nothing that is
/// within bounds.
fn quantity(of: Fitted, mut values: Vec<f64>, noise: f64) -> Option<Quantity> {
    values.retain(|value| value.is_finite());
    let mut value = median(&mut values)?;
    let count = values.len();
    let n = float(count);
    // What lies beyond the middle in one of twenty.
    let scatter = || {
        let deviation = (values.iter().map(|one| (one - value).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        T.get(count.min(MANY - 1).checked_sub(2)?).map(|t| t * deviation)
    };
    let [mut low, mut high] = if count == 1 {
        let side = (OF_ONE * value.abs()).max(noise);
        [value - side, value + side]
    } else if count < MANY {
        let side = scatter()? * (1.0 + 1.0 / n).sqrt();
        [value - side, value + side]
    } else {
        // One in twenty lies beyond each end.
        let beyond = (count + 1) / 20;
        [*values.get(beyond.checked_sub(1)?)?, *values.get(count.checked_sub(beyond)?)?]
    };
    // Runs that scatter around what is assumed say no other.
    if of == Fitted::Efficiency && count > 1 && (value - 1.0).abs() <= scatter()? / n.sqrt() {
        value = 1.0;
        (low, high) = (low.min(1.0), high.max(1.0));
    }
    let may_be_nothing = matches!(of, Fitted::Overhead | Fitted::Fragmentation);
    // Three in four must show it.
    let shown = values.iter().filter(|one| **one * value.signum() > 0.0).count() * 4 >= count * 3;
    if may_be_nothing && (value.abs() <= noise || !shown) {
        value = 0.0;
        (low, high) = (low.min(0.0), high.max(0.0));
    }
    // Measurements that agree say no more than a walk or a driver's table can. What is reserved follows no such rule: most
    // replays are right to the byte.
    if of != Fitted::Fragmentation {
        (low, high) = (low.min(value - noise), high.max(value + noise));
    }
    let [least, most] = of.bounds();
    (least..=most).contains(&value).then_some(Quantity { of, value, low, high })
}

/// The middle; sorts.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = values.get(half).copied()?;
    Some(if values.len() % 2 == 1 { upper } else { upper.midpoint(*values.get(half.checked_sub(1)?)?) })
}

#[expect(clippy::cast_precision_loss, reason = "bytes below 2⁵³")]
const fn signed(bytes: i64) -> f64 {
    bytes as f64
}

#[expect(clippy::cast_precision_loss, reason = "a count")]
const fn float(count: usize) -> f64 {
    count as f64
}

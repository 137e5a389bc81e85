//! What explains the difference between a prediction and a measurement: the plan is walked again with one change at a
//! time, and what each change predicts is held against the figures.
//!
//! A hypothesis is as good as the figures it fits. Several that predict the same figures share the confidence, few figures
//! allow little of it, and where none fits, the answer is that nothing known explains them.

mod change;
pub(super) mod outside;
pub(super) mod score;

use core::cmp::Ordering;

use serde::{Deserialize, Serialize};

pub use change::{Change, candidates};

use crate::issue::Issue;
use crate::measure::{Measurement, ReadingName};
use crate::order::sort_short_by;
use crate::plan::Plan;
use crate::reconcile::{Prediction, predict};
use crate::units::Bytes;
use score::{Evidence, evidence, misfit, off};

/// What may explain a difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Suspect {
    /// The run was another one than the plan says.
    Change(Change),
    /// The process holds as much outside of PyTorch's allocator: context, communicators, libraries.
    Outside {
        /// How much.
        bytes: Bytes,
    },
    /// Other processes hold as much of the card.
    OtherProcesses {
        /// How much.
        bytes: Bytes,
    },
    /// The allocator has reserved more than one step of one shape needs.
    Fragmentation {
        /// How much more.
        bytes: Bytes,
    },
    /// Tensors that are no part of the step are alive at every instant.
    Holder {
        /// How much they hold.
        bytes: Bytes,
    },
}

/// How far a hypothesis can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// It explains something; so may others, or nothing that is known.
    Possible,
    /// Likelier than everything else together.
    Likely,
    /// It fits, and nothing else that is known does.
    High,
}

/// One explanation and what speaks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// What it is.
    pub suspect: Suspect,
    /// The plan with it: what one click adopts. `None`: it is no matter of the plan.
    pub plan: Option<Plan>,
    /// How much of the residual it explains, from 0 to 1, over all figures.
    pub explained: f64,
    /// What it leaves of the figure that is furthest off: predicted less measured.
    pub left: i64,
    /// Figures that it makes worse.
    pub contradicts: Vec<ReadingName>,
    /// How likely it is, from 0 to 1: shared among those that fit as well, and with what is not known.
    pub confidence: f64,
}

/// A measurement against a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconciliation {
    /// How many figures were compared.
    pub compared: usize,
    /// The figure that is furthest off, in bytes: its name, predicted, measured. `None`: each is as predicted.
    pub residual: Option<(ReadingName, i64, i64)>,
    /// What explains some of it, the best supported first. Of those that predict the same, the commonest first.
    pub hypotheses: Vec<Hypothesis>,
}

/// The confidence from which a hypothesis is called likely.
const LIKELY: f64 = 0.5;
/// The confidence from which it is called high.
const HIGH: f64 = 0.9;
/// By how much all figures together are off, in shares, where a hypothesis counts for 1 ÷ e of one that fits.
const SPREAD: f64 = 0.005;
/// By how much they are off where what is not known explains them as well.
const UNKNOWN: f64 = 0.02;
/// A hypothesis that explains less is not said.
const LEAST_EXPLAINED: f64 = 0.05;
/// Of the figure that is furthest off, a smaller part than one in so many is no remainder.
const LEAST_LEFT: u64 = 100;
/// How many are kept.
const MOST: usize = 8;
/// How many are said.
const SAID: usize = 4;
/// One that is less likely than the best by this factor is not said.
const LEAST_SAID: f64 = 0.1;

impl Hypothesis {
    /// The confidence in a word.
    #[must_use]
    pub fn certainty(&self) -> Certainty {
        match self.confidence {
            c if c >= HIGH => Certainty::High,
            c if c >= LIKELY => Certainty::Likely,
            _ => Certainty::Possible,
        }
    }
}

impl Reconciliation {
    /// What is worth saying of the hypotheses: the best one, and those that are not much less likely.
    pub fn worth_saying(&self) -> impl Iterator<Item = &Hypothesis> {
        let best = self.hypotheses.first().map_or(0.0, |best| best.confidence);
        self.hypotheses.iter().filter(move |one| one.confidence >= best * LEAST_SAID).take(SAID)
    }

    /// What the best hypothesis leaves of the figure that is furthest off, in bytes: predicted less measured. `None`: nothing
    /// that a right prediction could not be off by too.
    #[must_use]
    pub fn unexplained(&self) -> Option<i64> {
        let (_, predicted, measured) = self.residual?;
        let left = self.hypotheses.first().map_or(predicted.saturating_sub(measured), |best| best.left);
        (left.unsigned_abs() > measured.unsigned_abs() / LEAST_LEFT).then_some(left)
    }
}

/// Explains what `measurement` differs from `plan` by.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn reconcile(plan: &Plan, measurement: &Measurement) -> Result<Reconciliation, Vec<Issue>> {
    let mut search = Search::of(plan, measurement)?;
    while !search.advance() {}
    Ok(search.found())
}

/// A reconciliation in slices of one walk, for a front end that must draw and listen in between.
#[derive(Debug)]
pub struct Search {
    plan: Plan,
    as_planned: Prediction,
    evidence: Vec<Evidence>,
    /// Candidates that are not walked yet, the last first.
    todo: Vec<Change>,
    tried: Vec<Tried>,
}

/// A suspect and what it predicts.
#[derive(Debug)]
struct Tried {
    suspect: Suspect,
    plan: Option<Plan>,
    prediction: Prediction,
}

impl Search {
    /// A search that has walked the plan alone.
    ///
    /// # Errors
    /// Every issue of the plan, one per field.
    pub fn of(plan: &Plan, measurement: &Measurement) -> Result<Self, Vec<Issue>> {
        let mut as_planned = predict(plan)?;
        outside::extend(&mut as_planned, plan);
        let evidence = evidence(measurement, &as_planned);
        let mut search = Self { plan: plan.clone(), as_planned, evidence, todo: Vec::new(), tried: Vec::new() };
        if misfit(&search.evidence, &search.as_planned) > 0.0 {
            search.tried = outside::suspects(plan, &search.as_planned, &search.evidence);
            search.todo = candidates(plan);
            search.todo.extend(said(plan, measurement));
            search.todo.reverse();
        }
        Ok(search)
    }

    /// Walks the next candidate. True once there is none left.
    pub fn advance(&mut self) -> bool {
        let Some(change) = self.todo.pop() else { return true };
        let plan = change.apply(&self.plan);
        // A plan that cannot be walked is no explanation.
        let walked = plan.and_then(|plan| Some((predict(&plan).ok()?, plan)));
        if let Some((mut prediction, plan)) = walked {
            outside::extend(&mut prediction, &plan);
            self.tried.push(Tried { suspect: Suspect::Change(change), plan: Some(plan), prediction });
        }
        self.todo.is_empty()
    }

    /// What has been found so far.
    #[must_use]
    pub fn found(&self) -> Reconciliation {
        let furthest = self.evidence.iter().max_by_key(|one| one.off(&self.as_planned).unsigned_abs());
        let as_planned = misfit(&self.evidence, &self.as_planned);
        let compared = self.evidence.len();
        let Some(furthest) = furthest.filter(|_| as_planned > 0.0) else {
            return Reconciliation { compared, residual: None, hypotheses: Vec::new() };
        };
        let misfits: Vec<f64> = self.tried.iter().map(|one| misfit(&self.evidence, &one.prediction)).collect();
        // What weighs against a hypothesis beside the others: that the plan is right, and that it is none of these.
        let others = weight(as_planned) + misfits.iter().map(|misfit| weight(*misfit)).sum::<f64>();
        let mut hypotheses: Vec<(f64, Hypothesis)> = self
            .tried
            .iter()
            .zip(misfits)
            .map(|(tried, misfit)| {
                (misfit, self.judge(tried, weight(misfit) / (others + self.unknown(tried)), furthest))
            })
            .filter(|(misfit, one)| *misfit < as_planned && one.explained >= LEAST_EXPLAINED)
            .collect();
        sort_short_by(&mut hypotheses, |(a, of_a), (b, of_b)| {
            a.total_cmp(b).then(of_b.explained.total_cmp(&of_a.explained)) == Ordering::Less
        });
        hypotheses.truncate(MOST);
        let residual =
            self.as_planned.0.get(&furthest.name).map(|predicted| (furthest.name, *predicted, furthest.bytes));
        Reconciliation { compared, residual, hypotheses: hypotheses.into_iter().map(|(_, one)| one).collect() }
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    fn judge(&self, tried: &Tried, confidence: f64, furthest: &Evidence) -> Hypothesis {
        let before = off(&self.evidence, &self.as_planned).max(1) as f64;
        let after = off(&self.evidence, &tried.prediction) as f64;
        let worse = |one: &&Evidence| one.misfit(&tried.prediction) > one.misfit(&self.as_planned);
        Hypothesis {
            suspect: tried.suspect,
            plan: tried.plan.clone(),
            explained: (1.0 - after / before).clamp(0.0, 1.0),
            left: furthest.off(&tried.prediction),
            contradicts: self.evidence.iter().filter(worse).map(|one| one.name).collect(),
            confidence,
        }
    }

    /// The weight of what is not known: large where few figures tell a hypothesis from the plan, for any may then fit by
    /// chance. One that was fitted to the figures themselves has one the less.
    fn unknown(&self, tried: &Tried) -> f64 {
        let telling = self
            .evidence
            .iter()
            .filter(|one| (one.misfit(&tried.prediction) - one.misfit(&self.as_planned)).abs() > SPREAD);
        let fitted = usize::from(!matches!(tried.suspect, Suspect::Change(_)));
        let count = i32::try_from(telling.count().saturating_sub(fitted)).unwrap_or(i32::MAX);
        weight(UNKNOWN) + 0.5_f64.powi(count)
    }
}

fn weight(misfit: f64) -> f64 {
    (-misfit / SPREAD).exp()
}

/// What the measurement itself says about the versions, where the plan says otherwise.
fn said(plan: &Plan, measurement: &Measurement) -> Vec<Change> {
    let Some(environment) = &measurement.environment else { return Vec::new() };
    let version = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
    let all = [
        version(&environment.pytorch).map(Change::Pytorch),
        version(&environment.transformers).map(Change::Transformers),
    ];
    all.into_iter().flatten().filter(|change| change.apply(plan).is_some()).collect()
}

//! The requested peak of many plans from few walks.
//!
//! Plans that differ in their optimizer alone have the same forward and backward; the optimizer adds its states to them,
//! and its step takes the same whatever batch went before, beside what that batch has left. So one walk gives the plans of
//! a group, and one walk an optimizer what it adds. An optimizer that steps in backward, and a plan over several GPUs, is walked
//! each time.

use crate::bill::{Instant, Peaks, peaks};
use crate::estimate::Job;
use crate::plan::Plan;
use crate::recipe::{Optimizer, Precision};

/// What an optimizer adds to the one that was walked, in bytes.
#[derive(Clone, Copy, Debug)]
struct Added {
    /// To each instant before its step: states.
    states: i128,
    /// To what was alive when its step began.
    step: i128,
}

/// What is known of the optimizers on one layout and one kind of device.
#[derive(Debug)]
pub(super) struct Fast {
    /// The optimizer that is walked for a group.
    walked: usize,
    /// What each adds; none: it is walked each time.
    added: Vec<Option<Added>>,
}

/// The peaks of a steady step of `plan`; none where it is refused.
fn walk(plan: &Plan) -> Option<Peaks> {
    let job = Job::of(plan).ok()?;
    let precision = plan.recipe.precision.filter(|p| *p != Precision::RuleOfThumb)?;
    Some(peaks(&job.walk_steady(plan, precision).ok()?))
}

const STEP: usize = Instant::Step as usize;

impl Fast {
    /// Learns what each of `optimizers` adds, from `plan` with each of them. None where no optimizer can be walked for the
    /// others.
    pub(super) fn of(plan: &mut Plan, optimizers: &[Optimizer]) -> Option<Self> {
        // What wraps a model may step its optimizer otherwise.
        if !plan.parallel.is_single() {
            return None;
        }
        let mut with = |optimizer: &Optimizer| {
            plan.recipe.optimizer = *optimizer;
            walk(plan)
        };
        let walks: Vec<Option<Peaks>> = optimizers.iter().map(&mut with).collect();
        let alone = |at: usize| optimizers[at].in_backward;
        let walked = (0..optimizers.len()).find(|at| !alone(*at) && walks[*at].is_some())?;
        let reference = walks[walked]?;
        let difference = |a: u64, b: u64| i128::from(a) - i128::from(b);
        let added = |at: usize| {
            let peaks = walks[at].filter(|_| !alone(at))?;
            let states = difference(peaks.before_step, reference.before_step);
            Some(Added { states, step: difference(peaks.of[STEP], reference.before_step) })
        };
        Some(Self { walked, added: (0..optimizers.len()).map(added).collect() })
    }

    /// The requested peaks of `plan` with each of `optimizers`; none where it is refused.
    pub(super) fn requested(&self, plan: &mut Plan, optimizers: &[Optimizer]) -> Vec<Option<u64>> {
        plan.recipe.optimizer = optimizers[self.walked];
        let group = walk(plan);
        let mut one = |(at, optimizer): (usize, &Optimizer)| {
            plan.recipe.optimizer = *optimizer;
            let (Some(added), Some(group)) = (self.added[at], group) else { return requested(plan) };
            if !plan.recipe.issues().is_empty() {
                return None;
            }
            let before = group.of[..STEP].iter().copied().max().unwrap_or_default();
            let before = i128::from(before) + added.states;
            u64::try_from(before.max(i128::from(group.before_step) + added.step)).ok()
        };
        optimizers.iter().enumerate().map(&mut one).collect()
    }
}

/// The requested peak of `plan`, walked for itself.
fn requested(plan: &Plan) -> Option<u64> {
    Some(walk(plan)?.most())
}

/// The requested peaks of `plan` with each of `optimizers`, each walked for itself.
pub(super) fn each(plan: &mut Plan, optimizers: &[Optimizer]) -> Vec<Option<u64>> {
    let one = |optimizer: &Optimizer| {
        plan.recipe.optimizer = *optimizer;
        requested(plan)
    };
    optimizers.iter().map(one).collect()
}

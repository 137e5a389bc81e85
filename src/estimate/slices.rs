//! An estimate in slices, for a front end that must draw and listen in between.

use super::{
    Estimate, Job, OnCard, Thumb, binding_phase, parted, phases, quick_of, rule_of_thumb, tiers, too_large,
    usable_beside,
};
use crate::allocator::Config;
use crate::issue::Issue;
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::step::readings::Readings;
use crate::step::replay::{Failure, Replay};
use crate::step::train::{TooLarge, Walk};
use crate::units::Bytes;

/// An [`super::estimate`] that is not finished.
#[derive(Debug)]
pub struct Slices {
    plan: Plan,
    job: Job,
    precision: Precision,
    config: Config,
    /// The replay in hand; none before the first slice.
    replay: Option<(Walk, Replay)>,
    /// What the replay without a limit read, and the card's limit: then the replay is the one on the card.
    read: Option<(Readings, Bytes)>,
}

impl Slices {
    /// The estimate of `plan`, not begun.
    ///
    /// # Errors
    /// Every issue of the plan, one per field.
    pub fn of(plan: &Plan) -> Result<Self, Vec<Issue>> {
        let job = Job::of(plan)?;
        let config = job.config(plan);
        let precision = plan.recipe.precision.unwrap_or(Precision::AmpBf16);
        Ok(Self { plan: plan.clone(), job, precision, config, replay: None, read: None })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// All that is left of it at once.
    ///
    /// # Errors
    /// Every issue of the plan, one per field.
    pub fn finish(mut self) -> Result<Estimate, Vec<Issue>> {
        loop {
            if let Some(estimate) = self.advance(usize::MAX)? {
                return Ok(estimate);
            }
        }
    }

    /// Goes on by one slice: the walk, or `events` of a replay. The estimate, once nothing is left.
    ///
    /// # Errors
    /// Every issue of the plan, one per field.
    pub fn advance(&mut self, events: usize) -> Result<Option<Estimate>, Vec<Issue>> {
        if self.precision == Precision::RuleOfThumb {
            return Ok(Some(rule_of_thumb(Thumb::of(&self.plan, self.job.model.as_ref()))));
        }
        let Some((walk, mut replay)) = self.replay.take() else {
            let walk = self.job.walk_short(&self.plan, self.precision)?;
            let replay = Replay::new(&walk, &self.config);
            self.replay = Some((walk, replay));
            return Ok(None);
        };
        let advanced = replay.advance(&walk, events);
        if matches!(advanced, Ok(false)) {
            self.replay = Some((walk, replay));
            return Ok(None);
        }
        if let Some((readings, usable_bytes)) = self.read.take() {
            return self.whole(readings, Some(outcome(usable_bytes, advanced))).map(Some);
        }
        // Without a limit nothing can fail, save a request beyond what PyTorch itself accepts.
        advanced.map_err(|_| too_large(TooLarge))?;
        let readings = parted(replay.finish(), &walk, &self.plan, &self.job, self.precision);
        let limit = usable_beside(&self.plan, &self.job.hardware);
        let Some(usable_bytes) = limit.filter(|usable| readings.highest_reserved() > *usable) else {
            let on_card = limit.map(|usable_bytes| OnCard::Completes { usable_bytes });
            return self.whole(readings, on_card).map(Some);
        };
        // What is reserved without a limit is more than the card has: only a replay on it can tell.
        let limited = Config { total_bytes: Some(usable_bytes), ..self.config.clone() };
        let replay = Replay::new(&walk, &limited);
        self.replay = Some((walk, replay));
        self.read = Some((readings, usable_bytes));
        Ok(None)
    }

    fn whole(&self, readings: Readings, on_card: Option<OnCard>) -> Result<Estimate, Vec<Issue>> {
        let quick = quick_of(&self.plan, &self.job, self.precision)?;
        let phases = phases(&self.plan, &readings);
        let tiers = tiers(&readings, &phases, &self.job.hardware, &self.plan);
        let binding = binding_phase(&phases).copied();
        Ok(Estimate { tiers, binding, readings: Some(readings), on_card, ..quick })
    }
}

/// What a replay on a card with `usable_bytes` says.
fn outcome(usable_bytes: Bytes, result: Result<bool, Box<Failure>>) -> OnCard {
    match result {
        Ok(_) => OnCard::Completes { usable_bytes },
        Err(failure) => OnCard::RunsOut {
            usable_bytes,
            step: failure.step.map_or(0, |s| s + 1),
            instant: failure.instant,
            phase: failure.phase,
            tried: failure.error.tried,
        },
    }
}

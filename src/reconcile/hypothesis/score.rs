//! How well a prediction fits what was measured.

use crate::measure::{Figure, Measurement, ReadingName, TierName};
use crate::reconcile::{Prediction, tier_of};

/// How far a walk may be off in an allocated figure, as a share of it: see `docs/accuracy.md`.
const ALLOCATED: f64 = 0.001;
/// The same of a reserved figure, which depends on the order of freed blocks.
const RESERVED: f64 = 0.015;
/// What a figure is at least measured against, as a share of the highest: a small one that is off by its own size means
/// nothing.
const LEAST_LEVEL: f64 = 0.01;
/// The same of a difference between two instants, which may be near zero by chance.
const LEAST_DELTA: f64 = 0.05;

/// One measured figure that a plan predicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::reconcile) struct Evidence {
    pub(in crate::reconcile) name: ReadingName,
    pub(in crate::reconcile) bytes: i64,
    /// What a printed figure can stand for.
    range: [i64; 2],
    /// What a deviation is a share of.
    level: f64,
    /// What a right prediction may be off by.
    pub(in crate::reconcile) tolerance: f64,
}

/// The figures of `measurement` that `prediction` has too.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
pub(in crate::reconcile) fn evidence(measurement: &Measurement, prediction: &Prediction) -> Vec<Evidence> {
    let comparable = measurement.readings.iter().filter_map(|reading| match reading.figure {
        Figure::Bytes(bytes) if reading.tier == tier_of(reading.name) && prediction.0.contains_key(&reading.name) => {
            Some((reading, bytes))
        }
        _ => None,
    });
    let highest = comparable.clone().map(|(_, bytes)| bytes).max().unwrap_or(0) as f64;
    comparable
        .map(|(reading, bytes)| {
            let least = if reading.name.is_delta() { LEAST_DELTA } else { LEAST_LEVEL };
            let level = (bytes.unsigned_abs() as f64).max(least * highest).max(1.0);
            let share = if tier_of(reading.name) >= TierName::Reserved { RESERVED } else { ALLOCATED };
            let range = reading.range.unwrap_or([bytes, bytes]);
            Evidence { name: reading.name, bytes, range, level, tolerance: share * level }
        })
        .collect()
}

impl Evidence {
    /// Bytes between the prediction and what the printed figure can stand for.
    pub(in crate::reconcile) fn off(&self, prediction: &Prediction) -> i64 {
        let Some(predicted) = prediction.0.get(&self.name) else { return self.bytes };
        let [least, most] = self.range;
        predicted.saturating_sub(*predicted.clamp(&least, &most))
    }

    /// The same as a share, what a right prediction may be off by left out; at most 1.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub(in crate::reconcile) fn misfit(&self, prediction: &Prediction) -> f64 {
        let off = self.off(prediction).unsigned_abs() as f64;
        ((off - self.tolerance) / self.level).clamp(0.0, 1.0)
    }
}

/// The sum of the figures' misfits: 0 where every one is as predicted.
pub(in crate::reconcile) fn misfit(evidence: &[Evidence], prediction: &Prediction) -> f64 {
    evidence.iter().map(|one| one.misfit(prediction)).sum()
}

/// Bytes that all figures together are off by.
pub(in crate::reconcile) fn off(evidence: &[Evidence], prediction: &Prediction) -> i128 {
    evidence.iter().map(|one| i128::from(one.off(prediction).unsigned_abs())).sum()
}

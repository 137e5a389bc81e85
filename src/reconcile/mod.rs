//! Prediction against measurement, figure by figure.

mod calibrate;
mod comparison;
mod diagnosis;
pub mod empirical;
mod hypothesis;
mod prediction;
mod trend;

use serde::{Deserialize, Serialize};

pub use calibrate::{Fit, LeftOut, Why, calibrate, efficiency, job_of};
pub use comparison::{Comparing, Comparison, Configuration, Entry, Grown, side_by_side};
pub use diagnosis::{Symptom, diagnose};
pub use hypothesis::{Certainty, Change, Hypothesis, Reconciliation, Search, Suspect, candidates, reconcile};
pub use prediction::{Prediction, predict, predict_with_driver};
pub use trend::{LEAK, Trend, leak, trend};

use crate::measure::{Figure, Measurement, ReadingName, TierName};

/// One figure, predicted and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which figure.
    pub name: ReadingName,
    /// Which tier was measured.
    pub tier: TierName,
    /// `None`: not predicted.
    pub predicted: Option<i64>,
    /// `None`: not measured; `unavailable` says why.
    pub measured: Option<i64>,
    /// Why there is no measured figure.
    pub unavailable: Option<String>,
    /// Predicted less measured.
    pub difference: Option<i64>,
    /// The difference as a share of what was measured. `None` for deltas, of which a share means nothing.
    pub share: Option<f64>,
}

/// A row for each measured reading, in the order of a run. Readings of a tier that is not the prediction's stay
/// without a prediction: unlike things are not compared.
#[must_use]
pub fn compare(prediction: &Prediction, measurement: &Measurement) -> Vec<Row> {
    let mut rows: Vec<Row> = measurement
        .readings
        .iter()
        .map(|reading| {
            let predicted = prediction.0.get(&reading.name).copied().filter(|_| reading.tier == tier_of(reading.name));
            let (measured, unavailable) = match &reading.figure {
                Figure::Bytes(bytes) => (Some(*bytes), None),
                Figure::Unavailable(reason) => (None, Some(reason.clone())),
            };
            let difference = predicted.zip(measured).and_then(|(p, m)| p.checked_sub(m));
            let share = difference.zip(measured).and_then(|(d, m)| share_of(d, m)).filter(|_| !reading.name.is_delta());
            Row { name: reading.name, tier: reading.tier, predicted, measured, unavailable, difference, share }
        })
        .collect();
    crate::order::sort_short_by_key(&mut rows, |row| (row.name, row.tier));
    rows
}

/// The tier that a prediction of this reading is about.
#[must_use]
pub const fn tier_of(name: ReadingName) -> TierName {
    name.tier()
}

/// `difference ÷ measured`; `None` where nothing was measured.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn share_of(difference: i64, measured: i64) -> Option<f64> {
    (measured > 0).then(|| difference as f64 / measured as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::measure::{Reading, StepReading, Which};

    fn reading(name: &str, tier: TierName, figure: Figure) -> Reading {
        Reading::new(name.parse().unwrap(), tier, figure)
    }

    #[test]
    fn each_measured_figure_gets_a_row() {
        let base = ReadingName::Step(Which::First, StepReading::Base);
        let delta = ReadingName::Step(Which::First, StepReading::ForwardDelta);
        let prediction = Prediction(BTreeMap::from([(base, 110), (delta, 5), (ReadingName::MaxReserved, 300)]));
        let measurement = Measurement::new(vec![
            reading("max_reserved", TierName::Reserved, Figure::Unavailable("not recorded".into())),
            reading("first.base", TierName::Allocated, Figure::Bytes(100)),
            reading("first.forward_delta", TierName::Allocated, Figure::Bytes(10)),
            reading("first.peak", TierName::Allocated, Figure::Bytes(7)),
            reading("first.base", TierName::Process, Figure::Bytes(500)),
        ]);
        let rows = compare(&prediction, &measurement);
        let told: Vec<_> =
            rows.iter().map(|r| (r.name.to_string(), r.predicted, r.measured, r.difference, r.share)).collect();
        assert_eq!(
            told,
            [
                ("first.base".into(), Some(110), Some(100), Some(10), Some(0.1)),
                ("first.base".into(), None, Some(500), None, None),
                ("first.forward_delta".into(), Some(5), Some(10), Some(-5), None),
                ("first.peak".into(), None, Some(7), None, None),
                ("max_reserved".into(), Some(300), None, None, None),
            ]
        );
        assert_eq!(rows[4].unavailable.as_deref(), Some("not recorded"));
    }

    #[test]
    fn a_measured_zero_has_a_difference_and_no_share() {
        let prediction = Prediction(BTreeMap::from([(ReadingName::OptimizerState, 4)]));
        let zero = reading("optimizer_state", TierName::Allocated, Figure::Bytes(0));
        let rows = compare(&prediction, &Measurement::new(vec![zero]));
        assert_eq!((rows[0].difference, rows[0].share), (Some(4), None));
    }
}

//! Predicted against measured.

use crate::decide::Decision;
use crate::measure::{self, Figure, Imported, Measurement, TierName, Unit};
use crate::reconcile::{Prediction, compare};
use crate::text::{Catalogue, Label, Msg};
use crate::units::{Bytes, GIB};
use crate::view::Measured;
use crate::view::number::signed_gib;

/// The script's output of a real run, to try: GPT-2 under autocast, PyTorch 2.15.
pub const EXAMPLE_SCRIPT: &str = include_str!("examples/script.json");
/// A measurement document of the same run.
pub const EXAMPLE_DOCUMENT: &str = include_str!("examples/measurement.json");

/// The comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// What the text was read as.
    pub read_as: String,
    /// The rows.
    pub rows: Vec<Row>,
    /// Whether the measurement names the job that it measured.
    pub has_plan: bool,
}

/// One reading.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was read.
    pub name: String,
    /// Predicted, GiB.
    pub predicted: String,
    /// Measured, GiB, or why there is no figure.
    pub measured: String,
    /// The difference, GiB, and its share of the measured figure where that means something.
    pub difference: String,
    /// The exact bytes: predicted, measured, difference.
    pub exact: [Option<i64>; 3],
}

impl Comparison {
    /// The comparison of the last measurement with `decision`; `None` without a measurement.
    #[must_use]
    pub fn new(measured: &Measured, decision: Option<&Decision>, text: &dyn Catalogue) -> Option<Self> {
        let measurement = measured.taken.as_deref()?;
        let readings = decision.and_then(|decision| decision.estimate.readings.as_ref());
        let refining = decision.is_some_and(Decision::awaits_replay);
        let unknown = text.label(if refining { Label::Refining } else { Label::NotKnown });
        let prediction = readings.map(Prediction::from).unwrap_or_default();
        let rows = compare(&prediction, measurement)
            .into_iter()
            .map(|row| Row {
                name: match row.tier {
                    // What the table's head says.
                    TierName::Allocated => text.reading(row.name),
                    tier => format!("{}, {}", text.reading(row.name), text.tier(tier).to_ascii_lowercase()),
                },
                predicted: row.predicted.map_or_else(|| unknown.into(), plain),
                measured: match (row.measured, &row.unavailable) {
                    (Some(bytes), _) => plain(bytes),
                    (None, Some(why)) => format!("{}: {why}", text.label(Label::NotKnown)),
                    (None, None) => text.label(Label::NotKnown).into(),
                },
                difference: row.difference.map_or_else(String::new, |bytes| difference(bytes, row.share)),
                exact: [row.predicted, row.measured, row.difference],
            })
            .collect();
        Some(Self { read_as: read_as(measurement, measured, text), rows, has_plan: measurement.plan.is_some() })
    }
}

fn read_as(measurement: &Measurement, measured: &Measured, text: &dyn Catalogue) -> String {
    let producer = measurement.producer.as_ref().map(|p| match &p.version {
        Some(version) => format!("{} {version}", p.name),
        None => p.name.clone(),
    });
    text.say(&Msg::ReadBack {
        readings: measurement.readings.len(),
        unit: measured.unit,
        producer: producer.as_deref(),
        id: measurement.id.as_deref(),
    })
}

/// GiB without a sign unless it is negative.
fn plain(bytes: i64) -> String {
    let signed = signed_gib(bytes);
    signed.strip_prefix('+').map(str::to_owned).unwrap_or(signed)
}

/// Half of 0.01 GiB.
const HALF_A_HUNDREDTH: u64 = GIB / 200;

/// The difference, with its share of the measured figure where that means something.
fn difference(bytes: i64, share: Option<f64>) -> String {
    let gib = match bytes.unsigned_abs() {
        // Less than the table's last decimal, and not nothing.
        few @ 1..HALF_A_HUNDREDTH => format!("{}{}", if bytes < 0 { '−' } else { '+' }, Bytes(few)),
        _ => signed_gib(bytes),
    };
    match share {
        Some(share) if share.abs() >= 0.000_5 => {
            let sign = if share < 0.0 { "−" } else { "+" };
            format!("{gib} ({sign}{:.1}\u{a0}%)", share.abs() * 100.0)
        }
        _ => gib,
    }
}

/// The units to choose from, each with the peak that it would mean.
#[must_use]
pub fn unit_options(units: &[Unit], pasted: &str, text: &dyn Catalogue) -> Vec<(Unit, String)> {
    units
        .iter()
        .map(|&unit| {
            let peak = match measure::import_in(pasted, unit) {
                Ok(Imported::Measurement { measurement, .. }) => measurement
                    .readings
                    .iter()
                    .filter_map(|reading| match reading.figure {
                        Figure::Bytes(bytes) => u64::try_from(bytes).ok(),
                        Figure::Unavailable(_) => None,
                    })
                    .max(),
                _ => None,
            };
            let label = match peak {
                Some(peak) => text.say(&Msg::UnitOption { unit, peak: &Bytes(peak).to_string() }),
                None => unit.symbol().into(),
            };
            (unit, label)
        })
        .collect()
}

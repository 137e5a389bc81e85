//! Predicted against measured.

use crate::measure::explain::{causes, facts, facts_together};
use crate::measure::{Figure, FormatId, Imported, Measurement, ReadingName, TierName, Unit};
use crate::reconcile::{Prediction, compare};
use crate::text::{Catalogue, Label, Msg, ReportCatalogue};
use crate::units::{Bytes, GIB};
use crate::view::number::signed_gib;
use crate::view::study::MOST;
use crate::view::{Measured, Shown, read};

/// PyTorch's message of a full card, to try.
pub const EXAMPLE_OOM: &str = include_str!("examples/oom.txt");
/// The script's output of a real run, to try: GPT-2 under autocast, PyTorch 2.15.
pub const EXAMPLE_SCRIPT: &str = include_str!("examples/script.json");
/// A measurement document of the same run.
pub const EXAMPLE_DOCUMENT: &str = include_str!("examples/measurement.json");

/// What a text says.
#[derive(Clone, Debug, PartialEq)]
pub struct Understood {
    /// How many measurements it holds.
    pub all: usize,
    /// The last of them, one at least.
    pub reports: Vec<Report>,
    /// What they say together.
    pub together: Vec<String>,
    /// Whether it is one measurement that names the job that it measured.
    pub has_plan: bool,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What it was read as.
    pub read_as: String,
    /// Why memory ran out, with the figures that say so, the likeliest first.
    pub causes: Vec<String>,
    /// What to try first.
    pub first: Option<&'static str>,
    /// What else is worth knowing.
    pub facts: Vec<String>,
    /// Its figures of a run, beside the predicted ones.
    pub rows: Vec<Row>,
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

impl Understood {
    /// What the last text says, beside what is predicted; `None` without one.
    #[must_use]
    pub fn new(
        measured: &Measured,
        shown: Option<&Shown>,
        text: &dyn Catalogue,
        words: &dyn ReportCatalogue,
    ) -> Option<Self> {
        (!measured.taken.is_empty()).then(|| Self::of(measured, shown, text, words))
    }

    /// Out of line: the first answer is drawn without it.
    #[inline(never)]
    fn of(measured: &Measured, shown: Option<&Shown>, text: &dyn Catalogue, words: &dyn ReportCatalogue) -> Self {
        let taken = &*measured.taken;
        let report = |measurement: &Measurement| {
            let causes = causes(measurement);
            // Our own documents say who measured, and have nothing to explain.
            let own = measurement.source.as_ref().is_none_or(|source| source.format == FormatId::Document);
            Report {
                read_as: if own { read_as(measurement, measured, text) } else { words.read_back(measurement) },
                first: causes.first().map(|cause| words.advice(cause)),
                causes: causes.iter().map(|cause| words.cause(cause)).collect(),
                facts: facts(measurement).iter().map(|fact| words.fact(fact)).collect(),
                rows: rows(measurement, shown, text),
            }
        };
        Self {
            all: taken.len(),
            reports: taken[taken.len().saturating_sub(MOST)..].iter().map(report).collect(),
            together: facts_together(taken).iter().map(|fact| words.fact(fact)).collect(),
            has_plan: matches!(taken, [Measurement { plan: Some(_), .. }]),
        }
    }
}

/// The figures of a run beside the predicted ones. What a tool reports of one instant is no figure of a step.
fn rows(measurement: &Measurement, shown: Option<&Shown>, text: &dyn Catalogue) -> Vec<Row> {
    let readings = shown.and_then(|shown| Some((shown.plan(), shown.decision().estimate.readings.as_ref()?)));
    let refining = shown.is_some_and(|shown| shown.decision().awaits_replay());
    let unknown = text.label(if refining { Label::Refining } else { Label::NotKnown });
    let prediction = readings.map(|(plan, readings)| Prediction::of(plan, readings)).unwrap_or_default();
    compare(&prediction, measurement)
        .into_iter()
        .filter(|row| !matches!(row.name, ReadingName::Reported(_) | ReadingName::Stat(_) | ReadingName::Tracked(_)))
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
        .collect()
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
            let found = read(pasted, Some(unit)).unwrap_or_default();
            let readings = found.iter().flat_map(|one| match one {
                Imported::Measurement { measurement, .. } => measurement.readings.as_slice(),
                Imported::WhichUnit { .. } => &[],
            });
            let peak = readings
                .filter_map(|reading| match reading.figure {
                    Figure::Bytes(bytes) => u64::try_from(bytes).ok(),
                    Figure::Unavailable(_) => None,
                })
                .max();
            let label = match peak {
                Some(peak) => text.say(&Msg::UnitOption { unit, peak: &Bytes(peak).to_string() }),
                None => unit.symbol().into(),
            };
            (unit, label)
        })
        .collect()
}

//! The output of the articles' measuring script: one JSON object of five figures of a step,
//! `{"base": …, "forward_delta": …, "backward_delta": …, "step_delta": …, "peak": …}`, in bytes.
//!
//! The script prints bytes, but people divide before they paste. Figures that are no plausible byte counts are not
//! guessed at: the reader asks for the unit.

use serde_json::{Map, Number, Value};

use crate::issue::{Issue, IssueKind};
use crate::measure::format::document::malformed;
use crate::measure::format::{Format, FormatId, Read};
use crate::measure::{Figure, ImportError, Measurement, Reading, ReadingName, StepReading, TierName, Unit, Which};
use crate::units::MAX_DOCUMENT_BYTES;

pub(super) const FORMAT: Format = Format {
    id: FormatId::Script,
    expected: "the script's output ({\"base\": …, \"forward_delta\": …, \"backward_delta\": …, \"step_delta\": …, \"peak\": …}, in bytes)",
    recognises,
    read,
};

/// The script's keys and what they are. `peak` was reset before the step, so it is the step's own.
const FIELDS: [(&str, StepReading); 5] = [
    ("base", StepReading::Base),
    ("forward_delta", StepReading::ForwardDelta),
    ("backward_delta", StepReading::BackwardDelta),
    ("step_delta", StepReading::StepDelta),
    ("peak", StepReading::Peak),
];

/// At least two of the keys, at the top level where the text is JSON: other documents may well have a `peak`.
fn recognises(text: &str) -> bool {
    let text = text.trim_start();
    let known = |key: &str| FIELDS.iter().any(|(known, _)| *known == key);
    text.starts_with('{')
        && match object(text) {
            Ok(object) => object.keys().filter(|key| known(key)).count() >= 2,
            Err(_) => FIELDS.iter().filter(|(key, _)| text.contains(*key)).count() >= 2,
        }
}

/// The text as a JSON object. Python prints a dictionary with single quotes; the keys have none of their own.
fn object(text: &str) -> Result<Map<String, Value>, serde_json::Error> {
    if text.contains('"') { serde_json::from_str(text) } else { serde_json::from_str(&text.replace('\'', "\"")) }
}

/// A peak below this is not a training step in bytes: PyTorch's allocator hands out 2 MiB at the least.
const LEAST_PEAK_BYTES: f64 = 1e6;
/// Growth of `optimizer.step()` below this is rounding, not states.
const GROWTH_BYTES: i64 = 1 << 20;
/// A peak below this is too small for MB and MiB and reads as GB or GiB: no card has a terabyte, and no model trains
/// in a megabyte.
const MOST_PEAK_GB: f64 = 1024.0;

fn read(text: &str, unit: Option<Unit>) -> Result<Read, ImportError> {
    let object = object(text).map_err(|e| malformed(&e))?;
    // Further keys are none of ours: a script may print its step number too.
    let mut issues = Vec::new();
    let mut figures = Vec::new();
    for (key, reading) in FIELDS {
        match object.get(key) {
            None => issues.push(Issue::new(key, IssueKind::Missing { expected: "a number of bytes".into() })),
            Some(Value::Number(number)) => figures.push((key, reading, number.clone())),
            Some(other) => {
                let found = other.to_string().chars().take(40).collect();
                issues.push(Issue::new(key, IssueKind::NotA { expected: "a number of bytes".into(), found }));
            }
        }
    }
    if !issues.is_empty() {
        return Err(ImportError::Fields(issues));
    }
    let unit = match unit {
        Some(unit) => unit,
        None => match plausible_units(&figures) {
            units if units == [Unit::B] => Unit::B,
            units => return Ok(Read::WhichUnit(units)),
        },
    };
    let which = which_step(&figures, unit);
    let mut readings = Vec::new();
    for (key, reading, number) in figures {
        let limit = i64::try_from(MAX_DOCUMENT_BYTES).unwrap_or(i64::MAX);
        let lowest = if reading.is_delta() { -limit } else { 0 };
        match in_bytes(&number, unit).filter(|bytes| (lowest..=limit).contains(bytes)) {
            Some(bytes) => readings.push(Reading::new(
                ReadingName::Step(which, reading),
                TierName::Allocated,
                Figure::Bytes(bytes),
            )),
            None => issues.push(Issue::new(
                key,
                IssueKind::OutOfRange { min: 0, max: MAX_DOCUMENT_BYTES, found: number.to_string() },
            )),
        }
    }
    if issues.is_empty() {
        Ok(Read::Measurement(Box::new(Measurement::new(readings))))
    } else {
        Err(ImportError::Fields(issues))
    }
}

/// The first step grows by the optimizer's states; a later one does not grow. An optimizer without states makes no
/// difference between them.
fn which_step(figures: &[(&str, StepReading, Number)], unit: Unit) -> Which {
    let grows = |(_, reading, number): &(&str, StepReading, Number)| {
        *reading == StepReading::StepDelta && in_bytes(number, unit).is_some_and(|bytes| bytes >= GROWTH_BYTES)
    };
    if figures.iter().any(grows) { Which::First } else { Which::Steady }
}

/// The units in which the figures could be written, the likeliest first. Only whole figures with a peak of at least a
/// megabyte are bytes beyond doubt.
fn plausible_units(figures: &[(&str, StepReading, Number)]) -> Vec<Unit> {
    let whole =
        figures.iter().all(|(_, _, n)| n.is_i64() || n.is_u64() || n.as_f64().is_some_and(|x| x.fract() == 0.0));
    let peak = figures.iter().filter_map(|(_, _, n)| n.as_f64()).fold(0.0, |a: f64, b| a.max(b.abs()));
    if peak >= LEAST_PEAK_BYTES && whole {
        vec![Unit::B]
    } else if peak < MOST_PEAK_GB {
        vec![Unit::GiB, Unit::GB, Unit::MiB, Unit::MB]
    } else {
        vec![Unit::MiB, Unit::MB]
    }
}

/// The figure in bytes, to the nearest byte; `None` past what an `i64` holds.
fn in_bytes(number: &Number, unit: Unit) -> Option<i64> {
    if let Some(whole) = number.as_i64() {
        return whole.checked_mul(i64::try_from(unit.bytes()).ok()?);
    }
    #[expect(clippy::cast_precision_loss, reason = "units are far below 2⁵³")]
    let bytes = (number.as_f64()? * unit.bytes() as f64).round();
    #[expect(clippy::cast_possible_truncation, reason = "range checked in the same expression")]
    (bytes.abs() < 9e15).then_some(bytes as i64)
}

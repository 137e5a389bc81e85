//! Our own measurement document.

use serde::Deserialize;
use serde_json::error::Category;

use crate::measure::document::{MEASUREMENT_FORMAT, MEASUREMENT_VERSION};
use crate::measure::format::{Format, FormatId, Read};
use crate::measure::{ImportError, Measurement, Unit};

pub(super) const FORMAT: Format = Format {
    id: FormatId::Document,
    expected: "a vram-budget measurement document (JSON with \"format\": \"vram-budget-measurement\")",
    recognises: |text| text.trim_start().starts_with('{') && text.contains(MEASUREMENT_FORMAT),
    read,
};

/// The part of a document that every version has.
#[derive(Deserialize)]
struct Head {
    version: u64,
}

fn read(text: &str, _: Option<Unit>) -> Result<Read, ImportError> {
    // The version first: a newer document may well have fields that are unknown here, and its version says why.
    let head: Head = serde_json::from_str(text).map_err(|e| malformed(&e))?;
    if head.version > u64::from(MEASUREMENT_VERSION) {
        return Err(ImportError::TooNew { found: head.version, newest: MEASUREMENT_VERSION });
    }
    let measurement: Measurement = serde_json::from_str(text).map_err(|e| malformed(&e))?;
    let refused = |message| ImportError::Malformed { line: 1, column: 0, message };
    if measurement.format != MEASUREMENT_FORMAT {
        return Err(refused(format!("expected \"format\": \"{MEASUREMENT_FORMAT}\"")));
    }
    // One upgrader a version.
    let measurement = match measurement.version {
        1 => measurement.upgrade_1().map_err(|field| refused(format!("version 1 has no `{field}`")))?,
        2 => measurement.upgrade_2().map_err(|field| refused(format!("version 2 has no `{field}`")))?,
        MEASUREMENT_VERSION => measurement,
        other => return Err(refused(format!("expected \"version\" 1 to {MEASUREMENT_VERSION}, found {other}"))),
    };
    Ok(Read::Measurement(Box::new(measurement)))
}

/// A JSON error with its place.
pub(super) fn malformed(error: &serde_json::Error) -> ImportError {
    let (line, column) = (error.line() as u64, error.column() as u64);
    let text = error.to_string();
    // serde_json appends the place, which is said separately.
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message).to_owned();
    let message = match error.classify() {
        Category::Eof => format!("the text ends too early: {message}"),
        _ => message,
    };
    ImportError::Malformed { line, column, message }
}

//! The formats that are read, in the order they are tried. One file per format: a row here, and the registry finds it.

mod document;
mod script;

use serde::{Deserialize, Serialize};

use crate::measure::{ImportError, Measurement, Unit};

/// The longest text that is read from a clipboard or a field: 32 MiB.
pub const MAX_TEXT: usize = 32 << 20;

/// A format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FormatId {
    /// Our measurement document.
    Document,
    /// The output of the articles' measuring script.
    Script,
}

/// What a text was understood as.
#[derive(Clone, Debug, PartialEq)]
pub enum Imported {
    /// A measurement.
    Measurement {
        /// The format it was in.
        format: FormatId,
        /// What it says.
        measurement: Box<Measurement>,
    },
    /// A measurement whose unit is not clear: ask, then [`import_in`].
    WhichUnit {
        /// The format it is in.
        format: FormatId,
        /// Units that make sense of the figures, the likeliest first.
        candidates: Vec<Unit>,
    },
}

/// One format.
struct Format {
    id: FormatId,
    /// What the format is, as the end of "expected …".
    expected: &'static str,
    /// Whether the text is in this format, by its content alone. Cheap, and right even where the rest is malformed.
    recognises: fn(&str) -> bool,
    /// Reads it, in `unit` where the format leaves the unit open.
    read: fn(&str, Option<Unit>) -> Result<Read, ImportError>,
}

/// What a format's reader found.
enum Read {
    Measurement(Box<Measurement>),
    WhichUnit(Vec<Unit>),
}

const FORMATS: [Format; 2] = [document::FORMAT, script::FORMAT];

/// Reads a text as whatever it is, by its content.
///
/// # Errors
/// [`ImportError`]: what was expected, and where the text departs from it.
pub fn import(text: &str) -> Result<Imported, ImportError> {
    read(text, None)
}

/// [`import`], with the answer to [`Imported::WhichUnit`].
///
/// # Errors
/// [`ImportError`], as for [`import`].
pub fn import_in(text: &str, unit: Unit) -> Result<Imported, ImportError> {
    read(text, Some(unit))
}

fn read(text: &str, unit: Option<Unit>) -> Result<Imported, ImportError> {
    if text.len() > MAX_TEXT {
        return Err(ImportError::TooLarge { bytes: text.len() as u64, limit: MAX_TEXT as u64 });
    }
    let Some(format) = FORMATS.iter().find(|f| (f.recognises)(text)) else {
        return Err(ImportError::NotThisFormat { expected: FORMATS.iter().map(|f| f.expected.to_owned()).collect() });
    };
    Ok(match (format.read)(text, unit)? {
        Read::Measurement(measurement) => Imported::Measurement { format: format.id, measurement },
        Read::WhichUnit(candidates) => Imported::WhichUnit { format: format.id, candidates },
    })
}

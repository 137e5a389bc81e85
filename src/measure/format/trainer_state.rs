//! Hugging Face's `trainer_state.json`: what was logged, by step.

use crate::measure::format::literal::Literal;
use crate::measure::format::series::{SeriesSet, meaning};
use crate::measure::format::tracker::Figures;
use crate::measure::{FormatId, ImportError, Measurement, Source, Unit};

/// Whether the value is one.
pub(super) fn recognises(value: &Literal) -> bool {
    value.get("log_history").is_some()
}

/// Reads it.
///
/// # Errors
/// When nothing of memory was logged.
pub(super) fn read(value: &Literal, asked: Option<Unit>) -> Result<Measurement, ImportError> {
    let mut set = SeriesSet::new(asked);
    let mut memory = Figures::default();
    for (count, entry) in (0..).zip(value.get("log_history").map_or(&[][..], Literal::items)) {
        let step = entry.get("step").and_then(Literal::whole).unwrap_or(count);
        memory.dictionary(entry);
        for (key, figure) in entry.entries() {
            if let (Some(meaning), Some(written)) = (meaning(key), figure.number()) {
                set.add(key, meaning, step, written);
            }
        }
    }
    let unclear = set.unclear;
    let series = set.measurement(FormatId::TrainerState, None);
    let readings = memory.readings();
    match series {
        Some(series) => Ok(memory.beside(series)),
        None if !readings.is_empty() => {
            Ok(Measurement { readings, ..Measurement::of(Source::new(FormatId::TrainerState)) })
        }
        None => {
            let message = if unclear {
                "its figures of memory name no unit: say which"
            } else {
                "a trainer's state in which nothing of memory was logged"
            };
            Err(ImportError::Malformed { line: 1, column: 0, message: message.into() })
        }
    }
}

//! Predicted against measured.

use std::io::{self, Write};
use std::path::Path;

use vram_budget::decide::Decision;
use vram_budget::measure::{Options, Unit};
use vram_budget::plan::Plan;
use vram_budget::reconcile::{Prediction, Row, compare};
use vram_budget::units::Bytes;

use crate::exit::Rejected;
use crate::input;

/// The rows for the measurement in `path`, whatever text it is in.
pub(super) fn rows(plan: &Plan, decision: &Decision, path: &Path, unit: Option<Unit>) -> anyhow::Result<Vec<Row>> {
    let measurements = crate::import::read(path, &Options { unit, ..Options::default() })?;
    let [measurement] = measurements.as_slice() else {
        let reason = format!("it holds {} measurements, and one is compared", measurements.len());
        return Err(Rejected::because(input::name(path), reason).into());
    };
    let readings = decision.estimate.readings.as_ref();
    let prediction = readings.map(|readings| Prediction::of(plan, readings)).unwrap_or_default();
    Ok(compare(&prediction, measurement))
}

pub(super) fn print(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nMeasured                 predicted      measured    difference")?;
    for row in rows {
        let size = |bytes: Option<i64>| bytes.map_or_else(|| "not known".to_owned(), signed);
        let share = row
            .share
            .map(|s| format!("  {}{:.1} %", if s < 0.0 { "−" } else { "+" }, s.abs() * 100.0))
            .unwrap_or_default();
        write!(out, "{:<20} {:>13} {:>13}", row.name.to_string(), size(row.predicted), size(row.measured))?;
        match (row.difference, &row.unavailable) {
            (Some(difference), _) => writeln!(out, " {:>13}{share}", signed(difference))?,
            (None, Some(reason)) => writeln!(out, "  {reason}")?,
            (None, None) => writeln!(out)?,
        }
    }
    Ok(())
}

/// A byte count with its sign, in three digits.
fn signed(bytes: i64) -> String {
    let size = Bytes(bytes.unsigned_abs());
    if bytes < 0 { format!("−{size}") } else { size.to_string() }
}

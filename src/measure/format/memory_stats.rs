//! `torch.cuda.memory_stats()`, as JSON or as Python prints it, flat or nested.

use crate::measure::format::literal::Literal;
use crate::measure::format::text::exact;
use crate::measure::{FormatId, ImportError, Measurement, ReadingName, Source};
use crate::units::MAX_DOCUMENT_BYTES;

/// Whether the value is one: PyTorch's own names are in it.
pub(super) fn recognises(value: &Literal) -> bool {
    value.get("allocated_bytes.all.current").is_some()
        || value.get("reserved_bytes.all.current").is_some()
        || value
            .get("allocated_bytes")
            .is_some_and(|bytes| bytes.get("all").is_some_and(|all| all.get("current").is_some()))
}

/// Reads it. Figures that are not known here are left out: PyTorch adds some with each version.
///
/// # Errors
/// The name of a figure that is no whole number of bytes.
pub(super) fn read(value: &Literal) -> Result<Measurement, ImportError> {
    let mut stats = Measurement::of(Source::new(FormatId::MemoryStats));
    add(&mut stats, "", value, 0)?;
    Ok(stats)
}

fn add(stats: &mut Measurement, name: &str, value: &Literal, depth: u32) -> Result<(), ImportError> {
    for (key, value) in value.entries() {
        let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        // The breakdown by private pool has keys of its own.
        if name.starts_with("reserved_bytes_by_private_pools") || depth > 3 {
            continue;
        }
        let Literal::Number(written) = value else {
            add(stats, &name, value, depth + 1)?;
            continue;
        };
        let whole = value.whole().filter(|whole| whole.unsigned_abs() <= MAX_DOCUMENT_BYTES);
        match (ReadingName::of_stat(&name), whole) {
            (Some(reading), Some(bytes)) if bytes >= 0 => stats.readings.push(exact(reading, bytes)),
            (Some(_), _) => {
                let message =
                    format!("`{name}`: expected a whole number of bytes, found {}", super::smi_table::printed(written));
                return Err(ImportError::Malformed { line: 1, column: 0, message });
            }
            // −1 stands for no limit: a limit that is not there.
            (None, Some(-1)) if name == "max_split_size" => {}
            (None, Some(count)) => {
                stats.counts.insert(name, count);
            }
            (None, None) => {}
        }
    }
    Ok(())
}

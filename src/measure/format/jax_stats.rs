//! JAX's `device.memory_stats()`, as JSON or as Python prints it, of one device or of several. Source:
//! `jaxlib/py_device.cc`, which hands on `tsl::AllocatorStats`; on GPUs those are the BFC allocator's
//! (`xla/tsl/framework/bfc_allocator.cc`).
//!
//! `bytes_in_use` are whole chunks of 256 bytes, `bytes_limit` is what the allocator may take (three quarters of the card
//! by default), `pool_bytes` what it has taken: with preallocation all of the limit at once. −1 is a
//! figure that the platform does not have. `bytes_reserved` and `largest_free_block_bytes` are left out: the BFC allocator
//! sets neither, and what TPUs count in them is not documented.

use crate::measure::format::literal::Literal;
use crate::measure::format::smi_table::printed;
use crate::measure::format::text::{exact, unavailable};
use crate::measure::{FormatId, ImportError, Measurement, ReadingName, Reported, Source};
use crate::units::MAX_DOCUMENT_BYTES;

const NAMES: [(&str, ReadingName); 6] = [
    ("bytes_in_use", ReadingName::Reported(Reported::Allocated)),
    ("peak_bytes_in_use", ReadingName::MaxAllocated),
    ("largest_alloc_size", ReadingName::Reported(Reported::Largest)),
    ("bytes_limit", ReadingName::Reported(Reported::Allowed)),
    ("pool_bytes", ReadingName::Reported(Reported::Reserved)),
    ("peak_pool_bytes", ReadingName::MaxReserved),
];

/// Whether the value is one device's.
pub(super) fn recognises(value: &Literal) -> bool {
    value.get("bytes_in_use").is_some()
        && ["peak_bytes_in_use", "bytes_limit", "num_allocs"].iter().any(|key| value.get(key).is_some())
}

/// The devices of a text that is one device's, a list of them, or a dictionary by device; none for anything else.
pub(super) fn devices(value: &Literal) -> Vec<(Option<u32>, &Literal)> {
    if recognises(value) {
        return vec![(None, value)];
    }
    // `cuda:1`, `TFRT_GPU_1`, `1`: the number at the end.
    let number = |key: &str| key.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    let list = (0..).map(Some).zip(value.items());
    let named = value.entries().iter().map(|(key, value)| (number(key), value));
    list.chain(named).filter(|(_, value)| recognises(value)).collect()
}

/// Reads one device's.
///
/// # Errors
/// The name of a figure that is no whole number of bytes.
pub(super) fn read(value: &Literal, device: Option<u32>) -> Result<Measurement, ImportError> {
    let mut stats = Measurement::of(Source { device, ..Source::new(FormatId::JaxStats) });
    for (key, name) in NAMES {
        let Some(figure) = value.get(key).filter(|figure| **figure != Literal::Null) else { continue };
        match figure.whole() {
            Some(-1) => stats.readings.push(unavailable(name, "the platform does not report it")),
            Some(bytes) if (0..=MAX_DOCUMENT_BYTES.cast_signed()).contains(&bytes) => {
                stats.readings.push(exact(name, bytes));
            }
            _ => {
                let found = figure.number().map_or_else(|| "none".into(), printed);
                let message = format!("`{key}`: expected a whole number of bytes, found {found}");
                return Err(ImportError::Malformed { line: 1, column: 0, message });
            }
        }
    }
    let allocs = value.get("num_allocs").and_then(Literal::whole).filter(|count| *count >= 0);
    stats.counts.extend(allocs.map(|count| ("num_allocs".to_owned(), count)));
    Ok(stats)
}

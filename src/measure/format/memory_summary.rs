//! The table of `torch.cuda.memory_summary()`, of every version since 1.4, also printed on one line. Its figures are
//! rounded down. Source: `torch/cuda/memory.py`.

use crate::measure::format::text::{Cursor, Found, Line, LineReader, Size, Units, squeeze};
use crate::measure::{Figure, FormatId, Measurement, Reading, ReadingName, Source, Stat};

/// The rows, and what `memory_stats()` calls them; the second half are counts.
const ROWS: [(&str, &str); 11] = [
    ("Allocated memory", "allocated_bytes"),
    ("Active memory", "active_bytes"),
    ("Requested memory", "requested_bytes"),
    ("GPU reserved memory", "reserved_bytes"),
    ("Non-releasable memory", "inactive_split_bytes"),
    ("Allocations", "allocation"),
    ("Active allocs", "active"),
    ("GPU reserved segments", "segment"),
    ("Non-releasable allocs", "inactive_split"),
    ("Oversize allocations", "oversize_allocations"),
    ("Oversize GPU segments", "oversize_segments"),
];

/// See the module.
#[derive(Default)]
pub(super) struct MemorySummary {
    table: Option<(u64, Measurement)>,
    /// The row that is read: its name, its pool, and how many figures it has so far.
    row: Option<(&'static str, &'static str, usize)>,
}

impl LineReader for MemorySummary {
    fn line(&mut self, line: &Line<'_>, found: &mut Found) {
        if self.table.is_none() && !line.text.contains("memory summary, device ID ") {
            return;
        }
        if !line.text.contains('|') && !line.text.trim().is_empty() {
            self.finish(found);
            return;
        }
        for cell in line.text.split('|').map(str::trim) {
            self.cell(cell, line, found);
        }
    }

    fn finish(&mut self, found: &mut Found) {
        self.row = None;
        found.extend(self.table.take().filter(|(_, table)| !table.readings.is_empty()));
    }
}

impl MemorySummary {
    fn cell(&mut self, cell: &str, line: &Line<'_>, found: &mut Found) {
        if let Some((_, device)) = cell.split_once("memory summary, device ID ") {
            self.finish(found);
            let mut source = Source::new(FormatId::MemorySummary);
            source.device = device.parse().ok();
            source.rank = line.rank;
            self.table = Some((line.number, Measurement::of(source)));
            return;
        }
        let Some((_, table)) = &mut self.table else { return };
        let count = |label: &str| cell.strip_prefix(label).and_then(|count| count.trim().parse().ok());
        if let Some(ooms) = count("CUDA OOMs:") {
            table.counts.insert("num_ooms".into(), ooms);
        } else if let Some(retries) = count("cudaMalloc retries:") {
            table.counts.insert("num_alloc_retries".into(), retries);
        } else if let Some((_, name)) = ROWS.into_iter().find(|(row, _)| *row == cell) {
            // Oversize blocks have no pools.
            self.row = Some((name, if name.starts_with("oversize") { "" } else { "all." }, 0));
        } else if let Some((name, ..)) = self.row.filter(|_| cell.starts_with("from ")) {
            self.row = Some((name, if cell.contains("large") { "large_pool." } else { "small_pool." }, 0));
        } else if let Some((name, pool, at @ 0..4)) = self.row
            && cell.starts_with(|c: char| c.is_ascii_digit())
        {
            self.row = Some((name, pool, at + 1));
            let key = format!("{name}.{pool}{}", Stat::METRICS[at]);
            if !name.ends_with("_bytes") {
                table.counts.extend(counted(cell).map(|count| (key, count)));
            } else if let (Some(name), Some(bytes)) = (ReadingName::of_stat(&key), floored(cell)) {
                let mut reading = Reading::new(name, name.tier(), Figure::Bytes(bytes[0]));
                reading.range = (bytes[0] < bytes[1]).then_some(bytes);
                table.readings.push(reading);
            }
        }
    }
}

/// `25640 MB`: the least and the most that it stands for.
fn floored(cell: &str) -> Option<[i64; 2]> {
    let mut squeezed = String::new();
    squeeze(cell, &mut squeezed);
    let mut cursor = Cursor::new(&squeezed);
    let Size::Known(bytes, within) = cursor.size(Units::AnyBinary)? else { return None };
    // Half of the last digit either way is a whole unit upwards.
    Some([bytes, bytes.checked_add(if within == 0 { 0 } else { within * 2 - 1 })?])
}

/// `2109 K`.
fn counted(cell: &str) -> Option<i64> {
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let scale = match unit.trim() {
        "" => 1,
        "K" => 1_000,
        "M" => 1_000_000,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(scale)
}

//! JAX's message, and the list of buffers that XLA prints with it.

use crate::measure::format::messages::Kind;
use crate::measure::format::text::{Cursor, Size, Units, exact, floor};
use crate::measure::{Buffer, Failure, FailureKind, FormatId, Measurement, ReadingName, Reported, Source};

pub(super) const KIND: Kind = Kind { id: FormatId::XlaOom, marks: &["RESOURCE_EXHAUSTED:Outofmemory"], read };

/// The most buffers that are kept: XLA lists the largest first.
const MOST_BUFFERS: usize = 64;

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let mut cursor = Cursor::new(&text[at..]);
    cursor.eat("RESOURCE_EXHAUSTED:Outofmemory");
    let known = cursor.eat("whiletryingtoallocate") || cursor.eat("allocating");
    let mut message = Measurement::of(Source::new(FormatId::XlaOom));
    if known && let Some(bytes) = cursor.bytes() {
        message.readings.push(exact(ReadingName::Reported(Reported::Tried), bytes));
    }
    // The next message of the same process has its own list.
    let end = cursor.rest.find("RESOURCE_EXHAUSTED:").unwrap_or(cursor.rest.len());
    let own = &cursor.rest[..end];
    if let Some((_, stats)) = own.split_once("BufferAssignmentstats:") {
        let (stats, buffers) = stats.split_once("Peakbuffers:").unwrap_or((stats, ""));
        let fields = [
            ("parameterallocation:", Reported::XlaParameter),
            ("constantallocation:", Reported::XlaConstant),
            ("maybe_live_outallocation:", Reported::XlaLiveOut),
            ("preallocatedtempallocation:", Reported::XlaTemp),
            ("totalallocation:", Reported::XlaTotal),
            ("totalfragmentation:", Reported::XlaFragmentation),
        ];
        for (label, name) in fields {
            let size = stats.split_once(label).and_then(|(_, rest)| Cursor::new(rest).size(Units::AnyBinary));
            message.readings.extend(size.map(|size| size.reading(ReadingName::Reported(name))));
        }
        message.buffers = buffers_of(buffers);
    }
    message.failure = Some(Failure::new(FailureKind::OutOfMemory));
    Some((message, text.len() - cursor.rest.len() + if own.contains("BufferAssignment") { end } else { 0 }))
}

/// `Buffer 1: Size: 1.50GiB … Shape: f32[128,1024,3072] =====`.
fn buffers_of(text: &str) -> Vec<Buffer> {
    text.split("Size:")
        .skip(1)
        .take(MOST_BUFFERS)
        .filter_map(|entry| {
            let Size::Known(bytes, within) = Cursor::new(entry).size(Units::AnyBinary)? else { return None };
            let (_, shape) = entry.split_once("Shape:").or_else(|| entry.split_once("Subshape:"))?;
            let shape = shape.split("===").next().unwrap_or(shape);
            let shape = shape[..floor(shape, 200)].to_owned();
            let within = u64::try_from(within).ok().filter(|within| *within > 0);
            Some(Buffer { shape, bytes: u64::try_from(bytes).ok()?, within })
        })
        .collect()
}

//! JAX's message, and the list of buffers that XLA prints with it.

use crate::measure::format::messages::Kind;
use crate::measure::format::text::{Cursor, Size, Units, floor};
use crate::measure::{Buffer, Failure, FailureKind, FormatId, Measurement, ReadingName, Reported, Source};

pub(super) const KIND: Kind = Kind {
    id: FormatId::XlaOom,
    marks: &[
        "RESOURCE_EXHAUSTED:Outofmemory",
        "Resourceexhausted:Outofmemory",
        "xhausted:Failedtoallocaterequestfor",
        "EXHAUSTED:Failedtoallocaterequestfor",
        "Ranoutofmemoryinmemoryspace",
    ],
    read,
};

/// The most buffers that are kept: XLA lists the largest first.
const MOST_BUFFERS: usize = 64;

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let mut cursor = Cursor::new(&text[at..]);
    if cursor.eat("Ranoutofmemoryinmemoryspace") {
        return compiled(cursor, text);
    }
    cursor.up_to(":")?;
    let mut message = Measurement::of(Source::new(FormatId::XlaOom));
    let known = if cursor.eat("Outofmemory") {
        cursor.eat("whiletryingtoallocate") || cursor.eat("allocating")
    } else {
        cursor.eat("Failedtoallocaterequestfor")
    };
    // A number alone is of bytes; newer versions print a size, some with the bytes behind it.
    let tried =
        known.then(|| cursor.size(Units::AnyBinary).or_else(|| Some(Size::Known(cursor.bytes()?, 0)))).flatten();
    let behind = cursor.rest.strip_prefix('(').map(Cursor::new).and_then(|mut behind| behind.size(Units::AnyBinary));
    if let Some(tried) = behind.or(tried) {
        message.readings.push(tried.reading(ReadingName::Reported(Reported::Tried)));
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

/// A compiler's message: `Ran out of memory in memory space hbm. Used 17.52G of 15.48G hbm.`, and its largest allocations.
fn compiled(mut cursor: Cursor<'_>, text: &str) -> Option<(Measurement, usize)> {
    let space = cursor.up_to(".Used")?;
    if space.len() > 20 {
        return None;
    }
    let mut message = Measurement::of(Source::new(FormatId::XlaOom));
    for (name, ends) in [(Reported::XlaTotal, "of"), (Reported::Allowed, space)] {
        message.readings.push(letters(cursor.up_to(ends)?)?.reading(ReadingName::Reported(name)));
    }
    let end = cursor.rest.find("Ranoutofmemoryinmemoryspace").unwrap_or(cursor.rest.len());
    message.buffers = buffers_of(&cursor.rest[..end]);
    message.failure = Some(Failure::new(FailureKind::OutOfMemory));
    Some((message, text.len() - cursor.rest.len()))
}

/// `17.52G`: powers of two, written with one letter.
fn letters(written: &str) -> Option<Size> {
    let unit = match written.chars().next_back()? {
        'B' => 1,
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        'T' => 1 << 40,
        _ => return None,
    };
    Size::of(&written[..written.len() - 1], unit)
}

/// `Buffer 1: Size: 1.50GiB … Shape: f32[128,1024,3072] =====`.
fn buffers_of(text: &str) -> Vec<Buffer> {
    text.split("Size:")
        .skip(1)
        .take(MOST_BUFFERS)
        .filter_map(|entry| {
            let printed = |mut cursor: Cursor<'_>| cursor.size(Units::AnyBinary);
            let size = printed(Cursor::new(entry)).or_else(|| letters(entry.split("Operator:").next()?));
            let Size::Known(bytes, within) = size? else { return None };
            let (_, shape) = entry.split_once("Shape:").or_else(|| entry.split_once("Subshape:"))?;
            let ends = ["===", "Unpaddedsize:", "Extramemory", "XLAlabel:"];
            let end = ends.into_iter().filter_map(|end| shape.find(end)).min().unwrap_or(shape.len());
            let shape = &shape[..end];
            let shape = shape[..floor(shape, 200)].to_owned();
            let within = u64::try_from(within).ok().filter(|within| *within > 0);
            Some(Buffer { shape, bytes: u64::try_from(bytes).ok()?, within })
        })
        .collect()
}

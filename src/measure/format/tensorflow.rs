//! TensorFlow's messages: the tensor that did not fit, the allocator's complaint, and its statistics.

use crate::measure::format::messages::Kind;
use crate::measure::format::text::{Cursor, Size, Units, exact, floor};
use crate::measure::{Failure, FailureKind, FormatId, Measurement, ReadingName, Reported, Source};
use crate::units::Bytes;

pub(super) const KIND: Kind = Kind {
    id: FormatId::TensorflowOom,
    marks: &["OOMwhenallocatingtensorwithshape[", "ranoutofmemorytryingtoallocate", "failedtoallocate", "Stats:Limit:"],
    read,
};

/// Bytes of TensorFlow's element types.
const TYPES: [(&str, u64); 12] = [
    ("float", 4),
    ("half", 2),
    ("bfloat16", 2),
    ("double", 8),
    ("int64", 8),
    ("int32", 4),
    ("int16", 2),
    ("int8", 1),
    ("uint8", 1),
    ("bool", 1),
    ("complex64", 8),
    ("complex128", 16),
];

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let mut cursor = Cursor::new(&text[at..]);
    let mut message = Measurement::of(Source::new(FormatId::TensorflowOom));
    let mut what = None;
    let tried = ReadingName::Reported(Reported::Tried);
    if cursor.eat("OOMwhenallocatingtensorwithshape[") {
        let shape = cursor.up_to("]")?;
        let dims: Option<Vec<u64>> = shape.split(',').map(|dim| dim.parse().ok()).collect();
        let mut dims = dims?;
        what = Some(format!("[{shape}]"));
        if cursor.eat("andtype") {
            let (name, size) = TYPES
                .into_iter()
                .filter(|(name, _)| cursor.rest.starts_with(name))
                .max_by_key(|(name, _)| name.len())?;
            cursor.eat(name);
            dims.push(size);
            let bytes = Bytes::product(&dims).and_then(|bytes| i64::try_from(bytes.get()).ok());
            message.readings.extend(bytes.map(|bytes| exact(tried, bytes)));
            what = Some(format!("{name}[{shape}]"));
        }
        let place = &cursor.rest[..floor(cursor.rest, 120)];
        message.source.as_mut()?.device = gpu(place, "device:GPU:");
    } else if cursor.eat("ranoutofmemorytryingtoallocate") {
        let size = cursor.size(Units::AnyBinary)?;
        let rest = &cursor.rest[..floor(cursor.rest, 300)];
        // A trial allocation, after which it goes on.
        if rest.contains("isnotafailure") {
            return None;
        }
        let rounded = rest.strip_prefix("(roundedto").and_then(|rest| Cursor::new(rest).bytes());
        message.readings.push(rounded.map_or_else(|| size.reading(tried), |bytes| exact(tried, bytes)));
        let head = &text[floor(text, at.saturating_sub(40))..at];
        message.source.as_mut()?.device = gpu(head, "GPU_");
    } else if cursor.eat("failedtoallocatememory[Op:") {
        // What runs without a graph names the operation alone.
        what = Some(cursor.up_to("]")?.chars().take(80).collect());
        message.source.as_mut()?.device = gpu(&text[floor(text, at.saturating_sub(60))..at], "device:GPU:");
    } else if cursor.eat("failedtoallocate") {
        // 32.00M (33554432 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY
        let (_, rest) = cursor.rest[..floor(cursor.rest, 40)].split_once('(')?;
        let Size::Known(bytes, _) = Cursor::new(rest).size(Units::Binary)? else { return None };
        if cursor.up_to("CUDA_ERROR_OUT_OF_MEMORY")?.len() > 100 {
            return None;
        }
        message.readings.push(exact(tried, bytes));
    } else {
        cursor.eat("Stats:");
        let mut number = |label: &str| {
            if !cursor.eat(label) {
                return None;
            }
            cursor.bytes()
        };
        let limit = number("Limit:")?;
        let readings = [
            (ReadingName::Reported(Reported::Allowed), Some(limit)),
            (ReadingName::Reported(Reported::Allocated), number("InUse:")),
            (ReadingName::MaxAllocated, number("MaxInUse:")),
        ];
        let count = number("NumAllocs:");
        let largest = (ReadingName::Reported(Reported::Largest), number("MaxAllocSize:"));
        let readings = readings.into_iter().chain([largest]);
        message.readings.extend(readings.filter_map(|(name, bytes)| Some(exact(name, bytes?))));
        message.counts.extend(count.map(|count| ("NumAllocs".to_owned(), count)));
    }
    message.failure = Some(Failure { what, ..Failure::new(FailureKind::OutOfMemory) });
    Some((message, text.len() - cursor.rest.len()))
}

/// The GPU's number behind `mark`.
fn gpu(text: &str, mark: &str) -> Option<u32> {
    let (_, rest) = text.rsplit_once(mark)?;
    Cursor::new(rest).number().and_then(|number| u32::try_from(number).ok())
}

//! NCCL's warning that its own buffers did not fit: `HOST:PID:TID [DEV] FILE:LINE NCCL WARN Cuda failure 2 'out of
//! memory'`, `… Failed to CUDA calloc N bytes`, and PyTorch's error that follows.

use crate::measure::format::messages::Kind;
use crate::measure::format::text::{Cursor, exact, floor};
use crate::measure::{Failure, FailureKind, FormatId, Measurement, ReadingName, Reported, Source};

pub(super) const KIND: Kind = Kind {
    id: FormatId::NcclOom,
    marks: &[
        "NCCLWARNCudafailure",
        "NCCLWARNFailedtoCUDA",
        "NCCLerrorin:",
        "FailedtoCUDAcalloc",
        "Lasterror:Cudafailure",
    ],
    read,
};

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let mut source = Source::new(FormatId::NcclOom);
    // node7:71204:71466 [3] include/alloc.h:178
    let head = &text[floor(text, at.saturating_sub(100))..at];
    source.device = head
        .rsplit_once(']')
        .and_then(|(before, file)| (file.len() < 60).then_some(before))
        .and_then(|before| before.rsplit_once('['))
        .and_then(|(_, number)| number.parse().ok());
    let here = &text[at..at + floor(&text[at..], 400)];
    let mut message = Measurement::of(source);
    let size = here.split_once("FailedtoCUDAcalloc").and_then(|(before, size)| {
        let bytes = Cursor::new(size).number().and_then(|bytes| i64::try_from(bytes).ok())?;
        Some((before.len() + "FailedtoCUDAcalloc".len(), bytes))
    });
    let full = here.contains("'outofmemory'");
    if !full && size.is_none() {
        return None;
    }
    let mut end = at + 1;
    if let Some((len, bytes)) = size.filter(|(_, bytes)| *bytes < 1 << 53) {
        message.readings.push(exact(ReadingName::Reported(Reported::Tried), bytes));
        end = at + len;
    }
    message.failure = Some(Failure::new(FailureKind::Nccl));
    Some((message, end))
}

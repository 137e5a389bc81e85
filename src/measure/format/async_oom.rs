//! PyTorch's message with the backend `cudaMallocAsync`. Source: `c10/cuda/CUDAMallocAsyncAllocator.cpp`.

use crate::measure::format::messages::Kind;
use crate::measure::format::text::{Cursor, Size, Units, floor};
use crate::measure::{Backend, Failure, FailureKind, FormatId, Measurement, ReadingName, Reported, Source};

pub(super) const KIND: Kind = Kind { id: FormatId::AsyncOom, marks: &["wouldexceedallowedmemory.(outofmemory)"], read };

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let head = &text[floor(text, at.saturating_sub(120))..at];
    let mut cursor = Cursor::new(&text[at..]);
    cursor.eat("wouldexceedallowedmemory.(outofmemory)");
    let mut source = Source::new(FormatId::AsyncOom);
    source.device = head.rsplit("Allocationondevice").next().and_then(|number| number.parse().ok());
    let from = if head.contains("torch.OutOfMemoryError:") { "2.4" } else { "1.13" };
    source.pytorch_from = Some(from.into());
    let mut message = Measurement::of(source);
    let fields = [
        ("Currentlyallocated:", Reported::Allocated),
        ("Requested:", Reported::Tried),
        ("Devicelimit:", Reported::Total),
        ("Free(accordingtoCUDA):", Reported::Free),
        ("PyTorchlimit(setbyuser-suppliedmemoryfraction):", Reported::Allowed),
    ];
    let mut complete = true;
    for (label, name) in fields {
        let size = if cursor.eat(label) { cursor.size(Units::Binary) } else { None };
        complete &= size.is_some();
        match size {
            // What it prints when nobody set a limit.
            Some(Size::NotAvailable) if name == Reported::Allowed => {}
            Some(size) => message.readings.push(size.reading(ReadingName::Reported(name))),
            None => {}
        }
    }
    message.source.as_mut()?.cut = !complete;
    message.failure = Some(Failure { backend: Some(Backend::Cuda), ..Failure::new(FailureKind::OutOfMemory) });
    Some((message, text.len() - cursor.rest.len()))
}

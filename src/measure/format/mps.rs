//! PyTorch's message on Apple's GPUs. Source: `aten/src/ATen/mps/MPSAllocator.mm`. It wrote GB for powers of two up to
//! 2.6 and writes GiB since.

use crate::measure::format::messages::Kind;
use crate::measure::format::text::{Cursor, Units, floor};
use crate::measure::{Backend, Failure, FailureKind, FormatId, Measurement, ReadingName, Reported, Source};

pub(super) const KIND: Kind = Kind { id: FormatId::MpsOom, marks: &["MPSbackendoutofmemory(MPSallocated:"], read };

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let mut cursor = Cursor::new(&text[at..]);
    let mut message = Measurement::of(Source::new(FormatId::MpsOom));
    let fields = [
        ("MPSbackendoutofmemory(MPSallocated:", Reported::Allocated),
        (",otherallocations:", Reported::Other),
        (",maxallowed:", Reported::Allowed),
        (").Triedtoallocate", Reported::Tried),
    ];
    for (label, name) in fields {
        if !cursor.eat(label) {
            break;
        }
        let Some(size) = cursor.size(Units::AnyBinary) else { break };
        message.readings.push(size.reading(ReadingName::Reported(name)));
    }
    let binary = text[at..at + floor(&text[at..], 160)].contains("iB");
    let source = message.source.as_mut()?;
    source.cut = message.readings.len() < fields.len();
    source.pytorch_from = Some(if binary { "2.7" } else { "1.12" }.into());
    source.pytorch_to = (!binary).then(|| "2.6".into());
    message.failure = Some(Failure { backend: Some(Backend::Mps), ..Failure::new(FailureKind::OutOfMemory) });
    (!message.readings.is_empty()).then(|| (message, text.len() - cursor.rest.len()))
}

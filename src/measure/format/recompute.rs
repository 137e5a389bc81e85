//! Checkpointing that ran a layer again otherwise than in forward (`torch.utils.checkpoint`, `CheckpointError`, since 2.1):
//! other metadata, or another number of tensors.

use crate::measure::format::messages::Kind;
use crate::measure::format::text::floor;
use crate::measure::{Failure, FailureKind, FormatId, Measurement, Source};

pub(super) const KIND: Kind = Kind {
    id: FormatId::Recomputation,
    marks: &[
        "Recomputedvaluesforthefollowingtensorshavedifferentmetadata",
        "Adifferentnumberoftensorswassavedduringtheoriginalforwardandrecomputation",
    ],
    read,
};

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let here = &text[at..at + floor(&text[at..], 2000)];
    // "saved metadata: {'shape': …, 'dtype': torch.bfloat16, …}", then "recomputed metadata: …".
    let dtype = |part: &str| {
        let named = part.split_once("'dtype':torch.")?.1;
        Some(named[..named.find(|c: char| !c.is_ascii_alphanumeric())?].to_owned())
    };
    let differ = here.split_once("recomputedmetadata:").and_then(|(saved, again)| {
        let (saved, again) = (dtype(saved)?, dtype(again)?);
        (saved != again).then(|| format!("{saved} in forward, {again} when run again"))
    });
    let mut message = Measurement::of(Source::new(FormatId::Recomputation));
    message.failure = Some(Failure { what: differ, ..Failure::new(FailureKind::Recomputation) });
    Some((message, at + 1))
}

//! What is said of a recording of the allocator. A catalogue of its own: the page's first program has no use for it.

use crate::snapshot::{NotReplayed, NotTried};
use crate::text::Locale;
use crate::units::Bytes;

/// Something that is said of a recording.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "a name says what it is")]
pub enum Said<'a> {
    Head { device: u32, devices: usize, segments: usize, entries: usize },
    // What a device's memory is, as the end of a row.
    Reserved,
    Allocated,
    Waiting,
    Rounding,
    Free,
    SplitFree,
    // Who holds it.
    HeldNow,
    HeldAtPeak { entry: Option<usize>, requested: Bytes },
    NotTold,
    Blocks(u64),
    NoStack,
    // The peak beside a prediction.
    Beside(&'static str),
    Recorded,
    Predicted,
    OtherPlaces(usize),
    // The replay.
    WhatIf,
    NotReplayed(NotReplayed),
    Older(usize),
    Emptied(usize),
    Capacity(Bytes),
    Limited,
    AsRecorded(&'a str),
    Settings(&'a str),
    NotTried(&'a NotTried),
    Differs,
    FailsAsRecorded,
    DoesNotFail,
    FailsAt(usize),
    // The heads of the tables.
    Place,
    SettingsHead,
    AtMostAllocated,
    AtMostReserved,
    Ratio,
    AtEnd,
}

/// What one language says of a recording.
pub trait RecordingCatalogue: Sync {
    /// The words.
    fn say(&self, said: &Said<'_>) -> String;
}

impl Locale {
    /// Its words for recordings.
    #[must_use]
    pub fn recording(self) -> &'static dyn RecordingCatalogue {
        match self {
            Self::En => &English,
        }
    }
}

struct English;

impl RecordingCatalogue for English {
    fn say(&self, said: &Said<'_>) -> String {
        match *said {
            Said::Head { device, devices, segments, entries } => {
                let of = if devices == 1 { String::new() } else { format!(" of {devices}") };
                format!(
                    "A recording of PyTorch’s allocator: device {device}{of}, {segments} segments, {entries} entries in its trace."
                )
            }
            Said::Older(count) => {
                format!("{count} blocks are older than the trace; other settings lay them out anew.")
            }
            Said::Emptied(count) => {
                format!("The cache was given back {count} times, taken as calls of empty_cache.")
            }
            Said::HeldAtPeak { entry, requested } => match entry {
                Some(entry) => format!("At the peak of the trace, entry {entry}: {requested} asked for"),
                None => format!("At the peak of the trace, before its first entry: {requested} asked for"),
            },
            Said::Beside(instant) => format!(
                "Beside the predicted peak ({instant}). Gradients are made by the engine's own threads, whose memory no stack tells."
            ),
            Said::Blocks(1) => "1 block".into(),
            Said::Blocks(count) => format!("{count} blocks"),
            Said::OtherPlaces(count) => format!("in {count} other places"),
            Said::Capacity(bytes) => format!("The device can give {bytes} to the allocator."),
            Said::AsRecorded("") => "as recorded: defaults".into(),
            Said::AsRecorded(conf) => format!("as recorded: {conf}"),
            Said::Settings("") => "defaults".into(),
            Said::Settings(conf) => conf.into(),
            Said::NotTried(NotTried::Settings(issues)) => {
                issues.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
            }
            Said::FailsAt(entry) => format!("runs out of memory at entry {entry}"),
            _ => plain(said).into(),
        }
    }
}

/// What has no figures in it.
fn plain(said: &Said<'_>) -> &'static str {
    match said {
        Said::Reserved => "reserved",
        Said::Allocated => "allocated",
        Said::Waiting => "freed, and waiting for another stream",
        Said::Rounding => "lost to rounding",
        Said::Free => "free in segments",
        Said::SplitFree => "of that in segments that something keeps alive",
        Said::HeldNow => "Allocated now",
        Said::NotTold => "not told by its stack",
        Said::NoStack => "no stack",
        Said::Recorded => "recorded",
        Said::Predicted => "predicted",
        Said::WhatIf => "Under other settings",
        Said::NotReplayed(NotReplayed::NoTrace) => {
            "Not replayed: nothing was recorded (torch.cuda.memory._record_memory_history)."
        }
        Said::NotReplayed(NotReplayed::PrivatePools) => {
            "Not replayed: it has private pools (CUDA graphs, MemPool), and does not say of which pool the segments were that it gave back."
        }
        Said::NotReplayed(NotReplayed::Inconsistent) => "Not replayed: its trace and its segments do not fit together.",
        Said::Limited => {
            "The recorded failure was not the device’s, which had room: a memory fraction, or another limit."
        }
        Said::NotTried(_) => "its segments are not such as these settings make",
        Said::Differs => "differs from the recording: other versions or settings",
        Said::FailsAsRecorded => "runs out of memory at the same entry",
        Said::DoesNotFail => "does not run out of memory there",
        Said::Place => "Where in the program",
        Said::SettingsHead => "PYTORCH_CUDA_ALLOC_CONF",
        Said::AtMostAllocated => "Allocated, peak",
        Said::AtMostReserved => "Reserved, peak",
        Said::Ratio => "Ratio",
        Said::AtEnd => "Reserved, end",
        Said::Head { .. }
        | Said::HeldAtPeak { .. }
        | Said::Beside(_)
        | Said::Blocks(_)
        | Said::OtherPlaces(_)
        | Said::Older(_)
        | Said::Emptied(_)
        | Said::Capacity(_)
        | Said::AsRecorded(_)
        | Said::Settings(_)
        | Said::FailsAt(_) => "",
    }
}

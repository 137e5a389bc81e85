//! Recorded allocator events, and their replay under any configuration. The format is described in `docs/replay.md`.

mod read;
mod replay;
mod report;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use replay::{Moment, Outcome, replay};
pub use report::{Difference, Figures, PeakFigures, Report, SegmentListing};

use crate::plan::Version;
use crate::units::Bytes;

/// A recorded run: what a program asked of the allocator, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// What it is called.
    pub name: String,
    /// `PYTORCH_CUDA_ALLOC_CONF` of the recording; empty if it was unset.
    pub alloc_conf: String,
    /// The size of the device. `None`: not given, and taken as without limit.
    pub total: Option<Bytes>,
    /// The PyTorch version that recorded it.
    pub pytorch: Option<Version>,
    /// What happened.
    pub events: Vec<Event>,
    /// Where the recording has figures, in order.
    pub checkpoints: Vec<Checkpoint>,
    /// How many slots the events use.
    pub(super) slots: u32,
}

/// A live allocation's number within its trace: dense, and used again after a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub(super) u32);

/// One thing that a program did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Asked for memory.
    Alloc {
        /// The allocation.
        slot: Slot,
        /// Bytes asked for.
        bytes: u64,
        /// The stream.
        stream: u32,
    },
    /// Freed an allocation.
    Free {
        /// The allocation.
        slot: Slot,
    },
    /// Used an allocation on another stream.
    RecordStream {
        /// The allocation.
        slot: Slot,
        /// The other stream.
        stream: u32,
    },
    /// Called `torch.cuda.empty_cache`.
    EmptyCache,
    /// From here on, events on other streams have not finished (true) or have (false).
    EventsPending(bool),
    /// Called `torch.cuda.set_per_process_memory_fraction`.
    SetFraction(f64),
    /// Began to allocate in a private pool.
    BeginPool(u64),
    /// Ended that.
    EndPool(u64),
    /// Released a private pool.
    ReleasePool(u64),
}

/// A point of the recording that has figures, or where figures are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The event right before it.
    pub after_event: usize,
    /// Whether segments are listed there.
    pub segments: bool,
    /// What the recording says.
    pub recorded: RecordedFigures,
}

/// A recording's figures; `None` where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedFigures {
    /// `memory_allocated`.
    pub allocated: Option<Bytes>,
    /// Bytes asked for, of active blocks.
    pub requested: Option<Bytes>,
    /// Allocated, or freed and waiting for another stream.
    pub active: Option<Bytes>,
    /// `memory_reserved`.
    pub reserved: Option<Bytes>,
    /// Free blocks in segments that are in use.
    pub inactive_split: Option<Bytes>,
}

impl Trace {
    /// Asks for figures after every `n`-th event too.
    pub fn check_every(&mut self, n: core::num::NonZeroUsize) {
        let known = self.checkpoints.len();
        let every = (n.get() - 1..self.events.len()).step_by(n.get());
        for after_event in every {
            if self.checkpoints[..known].binary_search_by_key(&after_event, |c| c.after_event).is_err() {
                let recorded = RecordedFigures::default();
                self.checkpoints.push(Checkpoint { after_event, segments: false, recorded });
            }
        }
        self.checkpoints.sort_by_key(|c| c.after_event);
    }
}

/// Why a trace cannot be read or replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Not JSON, or not an object of the expected shape.
    #[error("{problem}")]
    Json {
        /// What is wrong, and at which line and column.
        problem: String,
    },
    /// A field of the trace itself.
    #[error("`{field}`: {problem}")]
    Field {
        /// Its name.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// An event.
    #[error("event {index}: `{field}`: {problem}")]
    Event {
        /// Its index, from 0.
        index: usize,
        /// The field of it.
        field: String,
        /// What is wrong.
        problem: String,
    },
}

impl TraceError {
    /// The index of the event that is wrong, if it is one.
    #[must_use]
    pub fn event(&self) -> Option<usize> {
        match self {
            Self::Event { index, .. } => Some(*index),
            _ => None,
        }
    }
}

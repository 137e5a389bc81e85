//! Recordings of the allocator: what `torch.cuda.memory._dump_snapshot()` wrote, read without running anything of it.
//!
//! ```text
//! bytes, in pieces ─► pickle machine (an allow-list) ─► store (shared values by number) ─► recording
//!                                       recording ─► totals, who holds what, the peak ─► replayed under other settings
//! ```

mod error;
mod history;
mod holders;
mod json;
mod pickle;
mod recording;
mod replay;
mod store;
mod what_if;

pub use error::{Problem, SnapshotError};
pub use history::{Failure, History, NotReplayed};
pub use holders::{Holder, Peak, Place, beside, by_part};
use pickle::Machine;
pub use recording::{Action, Block, Entry, Frame, Frames, Segment, Snapshot, Totals};
pub use replay::Replayed;
pub use what_if::{Given, NotTried, Tried, WhatIf};

/// The most memory that reading takes, unless the caller says otherwise.
pub const MOST_BYTES: usize = 3 << 30;

/// A recording that is being read, in pieces of any size: a front end can show how far it is, and stop.
#[derive(Clone, Debug)]
pub struct Reader(Machine);

impl Reader {
    /// Before the first byte of a file of `total` bytes, where that is known. Reading takes `most_bytes` of memory at
    /// most, then it fails.
    #[must_use]
    pub fn new(total: Option<u64>, most_bytes: usize) -> Self {
        Self(Machine::new(total, most_bytes))
    }

    /// Goes on with the next piece of the file.
    ///
    /// # Errors
    /// What is wrong with the file, and at which byte.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), SnapshotError> {
        self.0.push(piece)
    }

    /// How many bytes have been understood.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset()
    }

    /// Whether the recording has ended; what follows is ignored.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.0.result.is_some()
    }

    /// The protocol of the pickle.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.0.protocol
    }

    /// Makes sense of what was read.
    ///
    /// # Errors
    /// The file ended too early, or holds something else.
    pub fn finish(self) -> Result<Snapshot, SnapshotError> {
        let top = self.0.end()?;
        Snapshot::of(self.0.store, top)
    }
}

/// Reads a whole recording.
///
/// # Errors
/// What is wrong with it, and at which byte.
pub fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    let mut reader = Reader::new(Some(bytes.len() as u64), MOST_BYTES);
    reader.push(bytes)?;
    reader.finish()
}

/// Reads a recording that was dumped as JSON.
///
/// # Errors
/// What is wrong with it.
pub fn read_json(text: &str) -> Result<Snapshot, SnapshotError> {
    let (store, top) = json::read(text, MOST_BYTES)?;
    Snapshot::of(store, top)
}

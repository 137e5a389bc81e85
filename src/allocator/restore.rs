//! An allocator in the middle of a program: segments and blocks as a recording lists them.

use super::block::NIL;
use super::pool::{DEFAULT_LARGE, DEFAULT_SMALL};
use super::{Allocator, BlockId, MAX_REQUEST};

/// A part of a segment that is to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// Handed out: its size, and what was asked for.
    Allocated(u64, u64),
    /// Free.
    Free(u64),
    /// Of an address range: without memory behind it.
    Unmapped(u64),
}

impl Restored {
    const fn size(self) -> u64 {
        match self {
            Self::Allocated(size, _) | Self::Free(size) | Self::Unmapped(size) => size,
        }
    }
}

impl Allocator {
    /// Adds a segment of `stream`, or an address range where segments are expandable, with these parts from its start on.
    /// While a private pool is active, it is that pool's. The blocks handed out in it, in order. `None`, and the allocator is of no use any more: the device has not the room,
    /// or a segment has unmapped parts.
    pub fn restore(&mut self, small: bool, stream: u32, parts: &[Restored]) -> Option<Vec<BlockId>> {
        let pool = match self.private.current() {
            None if small => DEFAULT_SMALL,
            None => DEFAULT_LARGE,
            Some(private) => private.pool(small),
        };
        let set = self.set_of(pool, stream);
        let expandable = self.sets[set as usize].expandable;
        let mut total = 0_u64;
        let mut mapped = 0_u64;
        for part in parts {
            total = total.checked_add(part.size())?;
            if !matches!(part, Restored::Unmapped(_)) {
                mapped = mapped.checked_add(part.size())?;
            }
        }
        if (mapped < total && !expandable) || mapped > MAX_REQUEST || !self.device.take(mapped) {
            return None;
        }
        let number = self.segments_made.checked_add(1)?;
        self.segments_made = number;
        self.tallies.reserved.add(mapped);
        self.private.count_growth(self.pools[pool as usize].owner, 1);
        if !expandable {
            self.tallies.segments.add(1);
        }
        let mut parts = parts.to_vec();
        if expandable {
            // The rest of the range.
            let capacity = self.device.capacity();
            let range =
                (capacity + capacity / 8).next_multiple_of(self.pools[self.sets[set as usize].pool as usize].page);
            parts.push(Restored::Unmapped(range.checked_sub(total)?));
        }
        let (mut offset, mut left, mut out) = (0, NIL, Vec::new());
        let several = parts.len() > 1;
        for part in parts.into_iter().filter(|part| part.size() > 0) {
            let is_mapped = !matches!(part, Restored::Unmapped(_));
            let block = self.blocks.add(set, number, offset, part.size(), is_mapped);
            if left != NIL {
                self.blocks.link_after(block, left);
            }
            (left, offset) = (block, offset + part.size());
            match part {
                Restored::Allocated(size, requested) => {
                    self.blocks[block].allocated = true;
                    self.blocks[block].requested = requested;
                    self.tallies.allocated.add(size);
                    self.tallies.active.add(size);
                    self.tallies.requested.add(requested);
                    out.push(BlockId(block));
                }
                Restored::Free(size) => {
                    self.put_free(block);
                    if several && !expandable {
                        self.tallies.inactive_split.add(size);
                    }
                }
                Restored::Unmapped(_) => self.put_unmapped(block),
            }
        }
        Some(out)
    }
}

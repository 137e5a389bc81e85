//! What happens when no free block fits: grow, and give cached memory back until that works.

use super::{Allocator, OutOfMemory, round};

impl Allocator {
    /// An idle block of at least `size` bytes, in no free set.
    #[cold]
    pub(super) fn grow_or_give_back(&mut self, set: u32, size: u64, requested: u64) -> Result<u32, OutOfMemory> {
        let segment = round::segment_size(size, &self.conf);
        if self.gc_armed() {
            self.collect_garbage();
        }
        if let Some(block) = self.grow(set, size, segment) {
            return Ok(block);
        }
        if self.release_oversize(set, size)
            && let Some(block) = self.grow(set, size, segment)
        {
            return Ok(block);
        }
        if !self.flush_is_blocked() {
            self.release_all();
            self.tallies.retries += 1;
            if let Some(block) = self.grow(set, size, segment) {
                return Ok(block);
            }
        }
        self.tallies.ooms += 1;
        Err(self.describe_failure(requested, segment))
    }

    /// A new segment, or more pages of a range; nothing if the limit or the device does not allow it.
    fn grow(&mut self, set: u32, size: u64, segment: u64) -> Option<u32> {
        if self.limit.is_some_and(|limit| self.tallies.reserved.current() + segment > limit) {
            return None;
        }
        let (pool, expandable) = (self.sets[set as usize].pool, self.sets[set as usize].expandable);
        let block = if expandable {
            self.grow_expandable(set, size)?
        } else {
            let number = self.segments_made.checked_add(1)?;
            if !self.device.take(segment) {
                return None;
            }
            self.segments_made = number;
            self.tallies.reserved.add(segment);
            self.tallies.segments.add(1);
            self.blocks.add(set, number, 0, segment, true)
        };
        self.private.count_growth(self.pools[pool as usize].owner, 1);
        Some(block)
    }
}

//! The hot path of an allocation: round, find the best fit, split.

use super::block::{BlockId, NIL};
use super::pool::{DEFAULT_LARGE, DEFAULT_SMALL};
use super::{Allocator, MAX_REQUEST, MIN_BLOCK, OutOfMemory, SMALL_SIZE, round};

impl Allocator {
    /// Allocates `requested` bytes for work on `stream`. Zero bytes get [`BlockId::NULL`] and are not counted.
    ///
    /// # Errors
    /// The device (or the memory fraction) has no room, even after everything that can be given back was; or more than
    /// [`MAX_REQUEST`] bytes were asked for, which PyTorch refuses without counting it.
    pub fn malloc(&mut self, requested: u64, stream: u32) -> Result<BlockId, OutOfMemory> {
        if requested == 0 {
            return Ok(BlockId::NULL);
        }
        if requested > MAX_REQUEST {
            return Err(self.describe_failure(requested, requested));
        }
        self.poll_events();
        let size = round::block_size(requested, &self.conf, &self.rules);
        let pool = match self.private.current() {
            None if size <= SMALL_SIZE => DEFAULT_SMALL,
            None => DEFAULT_LARGE,
            Some(private) => private.pool(size <= SMALL_SIZE),
        };
        let set = self.set_of(pool, stream);
        let block = match self.search(set, size) {
            Some(block) => block,
            None => self.grow_or_give_back(set, size, requested)?,
        };
        Ok(BlockId(self.hand_out(block, size, requested)))
    }

    /// Takes the best fitting free block out of its set.
    #[inline]
    fn search(&mut self, set: u32, size: u64) -> Option<u32> {
        if self.gc_armed() {
            self.pools[self.sets[set as usize].pool as usize].searches += 1;
        }
        let here = &self.sets[set as usize];
        let mut at = here.free.at_least(size);
        let mut found = here.free.get(at)?;
        if here.expandable {
            // Interior holes before the growing tail: go on while the next one, with what could be mapped right behind
            // it, reaches less far.
            let mut reach = self.reach(found.block);
            loop {
                let next = here.free.next(at);
                let Some(candidate) = here.free.get(next) else { break };
                let candidate_reach = self.reach(candidate.block);
                if candidate_reach >= reach {
                    break;
                }
                (at, found, reach) = (next, candidate, candidate_reach);
            }
        }
        if let Some(oversize) = self.conf.max_split_size {
            let refused = if size < oversize {
                found.size >= oversize
            } else {
                found.size >= size.saturating_add(self.conf.max_non_split_rounding)
            };
            if refused {
                return None;
            }
        }
        self.sets[set as usize].free.take(at);
        Some(found.block)
    }

    /// The block's size and that of the unmapped range right behind it.
    fn reach(&self, block: u32) -> u64 {
        let b = &self.blocks[block];
        let behind =
            if b.next == NIL { 0 } else { Some(&self.blocks[b.next]).filter(|n| !n.mapped).map_or(0, |n| n.size) };
        b.size + behind
    }

    /// Makes an idle block, in no free set, an allocated one of `size` bytes if it may be split.
    #[inline]
    fn hand_out(&mut self, whole: u32, size: u64, requested: u64) -> u32 {
        let b = &self.blocks[whole];
        let set = &self.sets[b.set as usize];
        let (left, was_split, classic) = (b.size - size, b.is_split(), !set.expandable);
        let split = if set.small || self.conf.expandable_segments {
            left >= MIN_BLOCK
        } else {
            left > SMALL_SIZE && self.conf.max_split_size.is_none_or(|oversize| size < oversize)
        };
        let block = if split {
            // The front is handed out, in a record of its own; the rest keeps its record.
            let front = self.blocks.add(b.set, b.segment, b.offset, size, true);
            self.blocks.link_before(front, whole);
            let rest = &mut self.blocks[whole];
            rest.offset += size;
            rest.size = left;
            self.put_free(whole);
            front
        } else {
            whole
        };
        if classic {
            match (split, was_split) {
                (true, true) => self.tallies.inactive_split.sub(size),
                (true, false) => self.tallies.inactive_split.add(left),
                (false, true) => self.tallies.inactive_split.sub(size + left),
                (false, false) => {}
            }
        }
        let b = &mut self.blocks[block];
        b.allocated = true;
        b.requested = requested;
        let size = b.size;
        self.tallies.allocated.add(size);
        self.tallies.active.add(size);
        self.tallies.requested.add(requested);
        block
    }
}

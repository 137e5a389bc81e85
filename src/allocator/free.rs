//! Freeing: back to the free set, merged with free neighbours.

use super::Allocator;
use super::block::{BlockId, NIL};

impl Allocator {
    /// Frees a block that [`Self::malloc`] returned and that was not freed since. Freeing twice is an error of the
    /// caller, which debug builds catch. [`BlockId::NULL`] is ignored, as PyTorch does.
    pub fn free(&mut self, id: BlockId) {
        if id == BlockId::NULL {
            return;
        }
        let block = &mut self.blocks[id.0];
        debug_assert!(block.allocated && !block.vacant, "a block is freed once");
        block.allocated = false;
        let (size, used_elsewhere) = (block.size, block.used_elsewhere);
        self.tallies.allocated.sub(size);
        if used_elsewhere {
            self.wait_for_streams(id.0);
        } else {
            self.recycle(id.0);
        }
    }

    /// The size and requested size of an allocated block.
    #[must_use]
    pub fn sizes(&self, id: BlockId) -> (u64, u64) {
        if id == BlockId::NULL {
            return (0, 0);
        }
        (self.blocks[id.0].size, self.blocks[id.0].requested)
    }

    /// A freed block that nothing uses any more becomes available.
    #[inline]
    pub(super) fn recycle(&mut self, block: u32) {
        let b = &self.blocks[block];
        let (size, requested, prev, next, set) = (b.size, b.requested, b.prev, b.next, b.set);
        let merged = self.merge(block, prev) + self.merge(block, next);
        self.put_free(block);
        if !self.sets[set as usize].expandable {
            let split = if self.blocks[block].is_split() { size + merged } else { 0 };
            // One net change, as PyTorch counts it: the peak must not see the parts.
            if split >= merged {
                self.tallies.inactive_split.add(split - merged);
            } else {
                self.tallies.inactive_split.sub(merged - split);
            }
        }
        self.tallies.active.sub(size);
        self.tallies.requested.sub(requested);
    }

    /// Merges the neighbour `src` into `dst`, which is in no set, if both are idle and mapped (or unmapped) alike.
    /// Returns the bytes gained.
    #[inline]
    pub(super) fn merge(&mut self, dst: u32, src: u32) -> u64 {
        if src == NIL {
            return 0;
        }
        let s = &self.blocks[src];
        if !s.is_idle() || s.mapped != self.blocks[dst].mapped {
            return 0;
        }
        let (size, offset, prev, next, mapped) = (s.size, s.offset, s.prev, s.next, s.mapped);
        if mapped {
            self.take_free(src);
        } else {
            self.take_unmapped(src);
        }
        let d = &mut self.blocks[dst];
        d.size += size;
        if d.prev == src {
            d.offset = offset;
            d.prev = prev;
            if prev != NIL {
                self.blocks[prev].next = dst;
            }
        } else {
            d.next = next;
            if next != NIL {
                self.blocks[next].prev = dst;
            }
        }
        self.blocks.remove(src);
        size
    }
}

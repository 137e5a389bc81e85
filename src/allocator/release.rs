//! Giving cached memory back to the device.

use super::Allocator;
use super::pool::{DEFAULT_LARGE, DEFAULT_SMALL};

impl Allocator {
    /// `torch.cuda.empty_cache`: gives back every whole free segment and every wholly free page.
    pub fn empty_cache(&mut self) {
        self.release_all();
    }

    pub(super) fn release_all(&mut self) {
        if !self.flush_is_blocked() {
            self.finish_events();
            self.release_pool_memory(DEFAULT_LARGE);
            self.release_pool_memory(DEFAULT_SMALL);
        }
        for index in self.private.released() {
            for small in [true, false] {
                self.release_pool_memory(self.private.get(index).pool(small));
            }
            self.private.forget_if_empty(index);
        }
    }

    fn release_pool_memory(&mut self, pool: u32) {
        let sets: Vec<u32> = self.pools[pool as usize].streams.values().copied().collect();
        for set in sets {
            let free: Vec<u32> = self.sets[set as usize].free.iter().map(|e| e.block).collect();
            for block in free {
                if self.sets[set as usize].expandable {
                    self.unmap(block);
                } else if !self.blocks[block].is_split() {
                    self.release_segment(block);
                }
            }
        }
    }

    /// Gives back the classic segment that consists of this one free block.
    pub(super) fn release_segment(&mut self, block: u32) {
        self.take_free(block);
        let (size, set) = (self.blocks[block].size, self.blocks[block].set);
        self.device.give_back(size);
        self.tallies.reserved.sub(size);
        self.tallies.segments.sub(1);
        let pool = self.sets[set as usize].pool;
        self.private.count_growth(self.pools[pool as usize].owner, -1);
        self.blocks.remove(block);
    }

    /// With `max_split_size` set: gives back the smallest sufficient oversize segment, or oversize segments from the
    /// largest downwards. True if that freed as much as is needed; what was freed stays freed otherwise.
    pub(super) fn release_oversize(&mut self, set: u32, size: u64) -> bool {
        let Some(oversize) = self.conf.max_split_size else { return false };
        let here = &self.sets[set as usize];
        if here.expandable {
            return false;
        }
        let want = size.max(oversize);
        let mut at = here.free.at_least(want);
        if let Some(enough) = here.free.get(at).filter(|e| !self.blocks[e.block].is_split()) {
            self.release_segment(enough.block);
            return true;
        }
        let (mut freed, mut victims) = (0, Vec::new());
        while freed < want
            && let Some(before) = here.free.prev(at)
            && let Some(entry) = here.free.get(before).filter(|e| e.size >= oversize)
        {
            at = before;
            // Oversize blocks are never split, except where expandable segments do not reach private pools.
            if !self.blocks[entry.block].is_split() {
                freed += entry.size;
                victims.push(entry.block);
            }
        }
        for block in victims {
            self.release_segment(block);
        }
        freed >= want
    }
}

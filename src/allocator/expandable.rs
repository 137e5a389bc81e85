//! Expandable segments: an address range per (pool, stream) in which pages are mapped as needed.

use super::Allocator;
use super::block::NIL;

impl Allocator {
    /// An idle block of at least `size` bytes, in no free set: a free one extended by mapping what is behind it, or
    /// newly mapped. If the device lacks room for a step, the pages of earlier steps stay, as free memory.
    pub(super) fn grow_expandable(&mut self, set: u32, size: u64) -> Option<u32> {
        let mut candidate = self.find_room(set, size)?;
        if !self.blocks[candidate].mapped {
            let first = self.blocks[candidate].size.min(size);
            if !self.map(candidate, first) {
                return None;
            }
        }
        while self.blocks[candidate].size < size {
            let missing = size - self.blocks[candidate].size;
            let behind = self.blocks[candidate].next;
            if behind == NIL {
                return None;
            }
            let step = missing.min(self.blocks[behind].size);
            if !self.map(behind, step) {
                return None;
            }
            // Mapping merged the candidate into it.
            candidate = behind;
        }
        self.take_free(candidate);
        Some(candidate)
    }

    /// Where `size` bytes fit, at the lowest address: a free block with unmapped range behind it, an unmapped range,
    /// or else a new address range.
    fn find_room(&mut self, set: u32, size: u64) -> Option<u32> {
        for &unmapped in &self.sets[set as usize].unmapped {
            let before = self.blocks[unmapped].prev;
            let start = if before != NIL && self.blocks[before].is_idle() { before } else { unmapped };
            let (mut room, mut at) = (0, start);
            while room < size && at != NIL && self.blocks[at].is_idle() {
                room += self.blocks[at].size;
                at = self.blocks[at].next;
            }
            if room >= size {
                return Some(start);
            }
        }
        let page = self.pools[self.sets[set as usize].pool as usize].page;
        let capacity = self.device.capacity();
        let range = (capacity + capacity / 8).next_multiple_of(page);
        if range == 0 || (self.rules.rejects_over_reserve && size > range) {
            return None;
        }
        let number = self.segments_made.checked_add(1)?;
        self.segments_made = number;
        let block = self.blocks.add(set, number, 0, range, false);
        self.put_unmapped(block);
        Some(block)
    }

    /// Maps the first `size` bytes of an unmapped block, in whole pages, and puts the piece into the free set, merged
    /// with its free neighbours. False and nothing mapped if the device lacks the room.
    fn map(&mut self, block: u32, size: u64) -> bool {
        let (set, segment, offset, whole) = {
            let b = &self.blocks[block];
            (b.set, b.segment, b.offset, b.size)
        };
        let bytes = size.next_multiple_of(self.pools[self.sets[set as usize].pool as usize].page);
        if !self.device.take(bytes) {
            return false;
        }
        self.tallies.reserved.add(bytes);
        self.take_unmapped(block);
        self.blocks[block].mapped = true;
        if bytes < whole {
            let rest = self.blocks.add(set, segment, offset + bytes, whole - bytes, false);
            self.blocks.link_after(rest, block);
            self.blocks[block].size = bytes;
            self.put_unmapped(rest);
        }
        self.merge(block, self.blocks[block].prev);
        self.merge(block, self.blocks[block].next);
        self.put_free(block);
        true
    }

    /// Unmaps the pages that lie wholly in a free block; what is before and after them stays free. A range with
    /// nothing mapped is dropped.
    pub(super) fn unmap(&mut self, block: u32) {
        let (set, segment, offset, size) = {
            let b = &self.blocks[block];
            (b.set, b.segment, b.offset, b.size)
        };
        let pool = self.sets[set as usize].pool;
        let page = self.pools[pool as usize].page;
        let end = offset + size;
        let (low, high) = (offset.next_multiple_of(page), end - end % page);
        if low >= high {
            return;
        }
        self.take_free(block);
        if offset < low {
            let before = self.blocks.add(set, segment, offset, low - offset, true);
            self.blocks.link_before(before, block);
            self.put_free(before);
        }
        if high < end {
            let after = self.blocks.add(set, segment, high, end - high, true);
            self.blocks.link_after(after, block);
            self.put_free(after);
        }
        let b = &mut self.blocks[block];
        (b.offset, b.size, b.mapped) = (low, high - low, false);
        self.device.give_back(high - low);
        self.tallies.reserved.sub(high - low);
        self.private.count_growth(self.pools[pool as usize].owner, -1);
        self.merge(block, self.blocks[block].prev);
        self.merge(block, self.blocks[block].next);
        if self.blocks[block].is_split() {
            self.put_unmapped(block);
        } else {
            self.blocks.remove(block);
        }
    }

    pub(super) fn put_unmapped(&mut self, block: u32) {
        let index = self.unmapped_index(block);
        self.sets[self.blocks[block].set as usize].unmapped.insert(index, block);
    }

    pub(super) fn take_unmapped(&mut self, block: u32) {
        let index = self.unmapped_index(block);
        let unmapped = &mut self.sets[self.blocks[block].set as usize].unmapped;
        debug_assert_eq!(unmapped.get(index), Some(&block), "an unmapped block is on its list");
        unmapped.remove(index);
    }

    /// Where in the list of unmapped parts, by address, the block is or belongs.
    fn unmapped_index(&self, block: u32) -> usize {
        let place = |b: u32| (self.blocks[b].segment, self.blocks[b].offset);
        self.sets[self.blocks[block].set as usize].unmapped.partition_point(|&other| place(other) < place(block))
    }
}

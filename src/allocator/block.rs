//! Blocks, in an arena: links are indices, and the records of merged blocks are used again.

/// "No block" in a link.
pub(super) const NIL: u32 = u32::MAX;

/// A block that [`super::Allocator::malloc`] handed out. Meaningful for that allocator and its clones only, until the
/// block is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId(pub(super) u32);

impl BlockId {
    /// What a request for zero bytes gets: PyTorch returns a null pointer and counts nothing.
    pub const NULL: Self = Self(NIL);
}

/// A contiguous piece of a segment.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) size: u64,
    /// What the caller asked for; meaningful while the block is active.
    pub(super) requested: u64,
    /// Bytes from the start of the segment or address range.
    pub(super) offset: u64,
    /// Creation number of this record, which orders blocks of one size in PyTorch 2.12.
    pub(super) record: u64,
    /// The pool's count of searches when the block became free: its age, for garbage collection.
    pub(super) searches_when_freed: u64,
    /// Creation number of the segment or range.
    pub(super) segment: u32,
    /// The (pool, stream) that it belongs to for ever.
    pub(super) set: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Unfinished events of other streams: freed, but not reusable yet.
    pub(super) events: u32,
    pub(super) allocated: bool,
    /// False for a part of an expandable segment's address range without memory behind it.
    pub(super) mapped: bool,
    /// Other streams used it since it was handed out.
    pub(super) used_elsewhere: bool,
    /// This record is on the arena's list of unused ones.
    pub(super) vacant: bool,
}

impl Block {
    /// Shares its segment with another block.
    pub(super) fn is_split(&self) -> bool {
        self.prev != NIL || self.next != NIL
    }

    /// Neither allocated nor waited for: in a free set, or unmapped.
    pub(super) fn is_idle(&self) -> bool {
        !self.allocated && self.events == 0
    }
}

/// All block records.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    records_made: u64,
}

impl Arena {
    /// A new idle block without neighbours.
    pub(super) fn add(&mut self, set: u32, segment: u32, offset: u64, size: u64, mapped: bool) -> u32 {
        self.records_made += 1;
        let block = Block {
            size,
            requested: 0,
            offset,
            record: self.records_made,
            searches_when_freed: 0,
            segment,
            set,
            prev: NIL,
            next: NIL,
            events: 0,
            allocated: false,
            mapped,
            used_elsewhere: false,
            vacant: false,
        };
        if let Some(index) = self.vacant.pop() {
            self[index] = block;
            return index;
        }
        // 2³² live blocks would need 256 GiB here; `NIL` is never reached.
        let index = u32::try_from(self.blocks.len()).unwrap_or(NIL);
        self.blocks.push(block);
        index
    }

    /// Gives the record back.
    pub(super) fn remove(&mut self, index: u32) {
        self[index].vacant = true;
        self.vacant.push(index);
    }

    /// Links `left` in front of `right`, between it and its left neighbour.
    pub(super) fn link_before(&mut self, left: u32, right: u32) {
        let prev = self[right].prev;
        self[left].prev = prev;
        self[left].next = right;
        self[right].prev = left;
        if prev != NIL {
            self[prev].next = left;
        }
    }

    /// Links `right` behind `left`, between it and its right neighbour.
    pub(super) fn link_after(&mut self, right: u32, left: u32) {
        let next = self[left].next;
        self[right].next = next;
        self[right].prev = left;
        self[left].next = right;
        if next != NIL {
            self[next].prev = right;
        }
    }

    /// The live records, in no meaningful order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(|b| !b.vacant)
    }
}

impl core::ops::Index<u32> for Arena {
    type Output = Block;
    #[inline]
    fn index(&self, index: u32) -> &Block {
        &self.blocks[index as usize]
    }
}

impl core::ops::IndexMut<u32> for Arena {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.blocks[index as usize]
    }
}

//! What `torch.cuda.memory_snapshot` lists: segments and the blocks in them.

use super::Allocator;
use super::block::{Block, NIL};

/// A block's state in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Handed out.
    Allocated,
    /// Freed, and waiting for another stream.
    PendingFree,
    /// Free.
    Inactive,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// Bytes.
    pub size: u64,
    /// Its state.
    pub state: BlockState,
    /// Bytes asked for; 0 for a free block.
    pub requested: u64,
}

/// A segment, or with expandable segments a contiguous mapped part of an address range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Part of an expandable segment.
    pub expandable: bool,
    /// The stream whose requests it serves.
    pub stream: u32,
    /// In the small pool.
    pub small: bool,
    /// The private pool it belongs to. `None`: the default pool.
    pub private_pool: Option<u64>,
    /// Its blocks, lowest address first.
    pub blocks: Vec<BlockView>,
}

impl SegmentView {
    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.blocks.iter().map(|b| b.size).sum()
    }
}

impl Allocator {
    /// All segments, oldest first; mapped parts of expandable segments before classic ones.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentView> {
        let mut heads: Vec<_> = self.heads().collect();
        heads.sort_unstable_by_key(|b| (!self.sets[b.set as usize].expandable, b.segment, b.offset));
        heads
            .into_iter()
            .map(|head| {
                let set = &self.sets[head.set as usize];
                let next = |b: &&Block| Some(b.next).filter(|&n| n != NIL).map(|n| &self.blocks[n]);
                let blocks = core::iter::successors(Some(head), next).take_while(|b| b.mapped);
                SegmentView {
                    expandable: set.expandable,
                    stream: set.stream,
                    small: set.small,
                    private_pool: self.pools[set.pool as usize].owner.map(|owner| self.private.get(owner).id),
                    blocks: blocks.map(view).collect(),
                }
            })
            .collect()
    }

    /// How many [`Self::segments`] there are.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.heads().count()
    }

    /// The first block of each segment or mapped part.
    fn heads(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(|b| b.mapped && (b.prev == NIL || !self.blocks[b.prev].mapped))
    }

    /// Bytes of free blocks in private pools.
    pub(super) fn free_in_private_pools(&self) -> u64 {
        let private = self.sets.iter().filter(|s| self.pools[s.pool as usize].owner.is_some());
        private.flat_map(|s| s.free.iter()).map(|e| e.size).sum()
    }
}

fn view(block: &Block) -> BlockView {
    let (state, requested) = match (block.allocated, block.events) {
        (true, _) => (BlockState::Allocated, block.requested),
        (false, 0) => (BlockState::Inactive, 0),
        (false, _) => (BlockState::PendingFree, block.requested),
    };
    BlockView { size: block.size, state, requested }
}

//! Pools and, in each, the free blocks of each stream.

use std::collections::BTreeMap;

use super::conf::AllocConf;
use super::free_set::{Entry, FreeSet};
use super::{Allocator, SMALL_BUFFER};

/// The small or the large pool, of everybody or of one private pool.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) small: bool,
    /// Index of the private pool it belongs to. `None`: the default pool.
    pub(super) owner: Option<u32>,
    /// Whether it grows by pages of an address range instead of by segments.
    pub(super) expandable: bool,
    /// Page size, if it is expandable.
    pub(super) page: u64,
    /// Searches made in it while garbage collection is armed.
    pub(super) searches: u64,
    /// Index of each stream's set.
    pub(super) streams: BTreeMap<u32, u32>,
}

impl Pool {
    pub(super) fn new(small: bool, owner: Option<u32>, expandable: bool, conf: &AllocConf) -> Self {
        let page = if small { SMALL_BUFFER } else { conf.large_segment_size };
        Self { small, owner, expandable, page, searches: 0, streams: BTreeMap::new() }
    }
}

/// The free blocks of one stream in one pool. A block never leaves its set's pool and stream.
#[derive(Clone, Debug)]
pub(super) struct StreamSet {
    pub(super) pool: u32,
    pub(super) stream: u32,
    pub(super) small: bool,
    pub(super) expandable: bool,
    pub(super) free: FreeSet,
    /// Unmapped parts of address ranges, lowest address first.
    pub(super) unmapped: Vec<u32>,
}

/// Index of the default pool for small blocks; the large one follows.
pub(super) const DEFAULT_SMALL: u32 = 0;
/// Index of the default pool for large blocks.
pub(super) const DEFAULT_LARGE: u32 = 1;

impl Allocator {
    /// The set of `stream` in `pool`, made on first use.
    #[inline]
    pub(super) fn set_of(&mut self, pool: u32, stream: u32) -> u32 {
        let here = &mut self.pools[pool as usize];
        if let Some(&set) = here.streams.get(&stream) {
            return set;
        }
        // One set per (pool, stream) that ever asked for memory: fewer than blocks, which are u32 too.
        let set = u32::try_from(self.sets.len()).unwrap_or(u32::MAX);
        here.streams.insert(stream, set);
        self.sets.push(StreamSet {
            pool,
            stream,
            small: here.small,
            expandable: here.expandable,
            free: FreeSet::default(),
            unmapped: Vec::new(),
        });
        set
    }

    /// The block's entry in its free set.
    #[inline]
    pub(super) fn entry(&self, block: u32) -> Entry {
        let b = &self.blocks[block];
        if self.rules.ties_by_record {
            Entry { size: b.size, segment: 0, block, place: b.record }
        } else {
            Entry { size: b.size, segment: b.segment, block, place: b.offset }
        }
    }

    /// Puts an idle mapped block into its free set.
    #[inline]
    pub(super) fn put_free(&mut self, block: u32) {
        let set = self.blocks[block].set as usize;
        if self.conf.garbage_collection_threshold.is_some() {
            self.blocks[block].searches_when_freed = self.pools[self.sets[set].pool as usize].searches;
        }
        let entry = self.entry(block);
        self.sets[set].free.insert(entry);
    }

    /// Takes a block out of its free set.
    #[inline]
    pub(super) fn take_free(&mut self, block: u32) {
        let entry = self.entry(block);
        self.sets[self.blocks[block].set as usize].free.remove(&entry);
    }
}

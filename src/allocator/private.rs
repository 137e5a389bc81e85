//! Private pools (`torch.cuda.MemPool`, the pools of CUDA graphs): their memory serves only requests made while they
//! are active, and is given back only once they are released.

use std::collections::BTreeMap;

use super::Allocator;
use super::pool::Pool;

/// A misuse of private pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrivatePoolError {
    /// It was not begun, or was ended already.
    #[error("private pool {0} is not active")]
    NotActive(u64),
    /// It was not begun, or was released as often as it was begun.
    #[error("private pool {0} is not in use")]
    NotInUse(u64),
}

/// One private pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrivatePool {
    pub(super) id: u64,
    /// Index of its small pool; the large one follows.
    small: u32,
    uses: u64,
    /// Segments and growths, less what was given back. Like PyTorch's own count it can go below zero with expandable
    /// segments, where a growth of several pages counts once and each unmapped piece counts once.
    segments: i64,
}

impl PrivatePool {
    /// Index of its small or large pool.
    pub(super) fn pool(&self, small: bool) -> u32 {
        if small { self.small } else { self.small + 1 }
    }
}

/// All private pools.
#[derive(Clone, Debug, Default)]
pub(super) struct PrivatePools {
    pools: Vec<PrivatePool>,
    by_id: BTreeMap<u64, u32>,
    /// Those that requests go to; the last one wins.
    active: Vec<u32>,
    /// Those that no one uses any more: their memory can be given back.
    released: Vec<u32>,
}

impl PrivatePools {
    /// The pool that requests go to.
    #[inline]
    pub(super) fn current(&self) -> Option<&PrivatePool> {
        self.active.last().map(|&index| self.get(index))
    }

    pub(super) fn get(&self, index: u32) -> &PrivatePool {
        &self.pools[index as usize]
    }

    pub(super) fn released(&self) -> Vec<u32> {
        self.released.clone()
    }

    /// Counts a segment or growth of the pool, if there is one.
    pub(super) fn count_growth(&mut self, owner: Option<u32>, change: i64) {
        if let Some(index) = owner {
            self.pools[index as usize].segments += change;
        }
    }

    pub(super) fn forget_if_empty(&mut self, index: u32) {
        if self.get(index).segments == 0 {
            self.released.retain(|&i| i != index);
        }
    }
}

impl Allocator {
    /// Requests go to the private pool `id` from here on.
    pub fn begin_pool(&mut self, id: u64) {
        let index = match self.private.by_id.get(&id) {
            Some(&index) => index,
            None => self.add_private_pool(id),
        };
        self.private.pools[index as usize].uses += 1;
        self.private.active.push(index);
    }

    fn add_private_pool(&mut self, id: u64) -> u32 {
        // Two pools each: fewer than u32 holds, as each takes an event to begin.
        let index = u32::try_from(self.private.pools.len()).unwrap_or(u32::MAX);
        let small = u32::try_from(self.pools.len()).unwrap_or(u32::MAX);
        let expandable = self.conf.expandable_segments && self.rules.expandable_in_private_pools;
        for is_small in [true, false] {
            self.pools.push(Pool::new(is_small, Some(index), expandable, &self.conf));
        }
        self.private.pools.push(PrivatePool { id, small, uses: 0, segments: 0 });
        self.private.by_id.insert(id, index);
        index
    }

    /// Requests no longer go to the private pool `id`.
    ///
    /// # Errors
    /// It is not active.
    pub fn end_pool(&mut self, id: u64) -> Result<(), PrivatePoolError> {
        let index = self.private.by_id.get(&id);
        let place = self.private.active.iter().position(|i| Some(i) == index);
        let place = place.ok_or(PrivatePoolError::NotActive(id))?;
        self.private.active.remove(place);
        Ok(())
    }

    /// One user of the private pool `id` is done with it. After the last one, its free memory can be given back.
    ///
    /// # Errors
    /// Nothing uses it.
    pub fn release_pool(&mut self, id: u64) -> Result<(), PrivatePoolError> {
        let index = *self.private.by_id.get(&id).ok_or(PrivatePoolError::NotInUse(id))?;
        let pool = &mut self.private.pools[index as usize];
        pool.uses = pool.uses.checked_sub(1).ok_or(PrivatePoolError::NotInUse(id))?;
        if pool.uses == 0 && !self.private.released.contains(&index) {
            self.private.released.push(index);
        }
        Ok(())
    }

    /// Up to 2.14 an active private pool blocks event polling, the flush and most of `empty_cache`.
    #[inline]
    pub(super) fn flush_is_blocked(&self) -> bool {
        self.rules.private_pool_blocks_flush && !self.private.active.is_empty()
    }
}

//! Garbage collection: before growing, old free segments are given back while more than a share of the limit is held.

use super::Allocator;
use super::pool::DEFAULT_LARGE;

impl Allocator {
    /// Only with a memory fraction in force and a threshold set.
    #[inline]
    pub(super) fn gc_armed(&self) -> bool {
        self.limit.is_some() && self.conf.garbage_collection_threshold.is_some()
    }

    /// Gives back whole free segments of the default large pool, those of at least average age in each round, until
    /// reserved is down to the threshold.
    pub(super) fn collect_garbage(&mut self) {
        let (Some(limit), Some(threshold)) = (self.limit, self.conf.garbage_collection_threshold) else { return };
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "PyTorch computes the threshold in double precision and truncates"
        )]
        let threshold = (threshold * limit as f64) as u64;
        let Some(target) = self.tallies.reserved.current().checked_sub(threshold).filter(|&t| t > 0) else { return };

        let pool = &self.pools[DEFAULT_LARGE as usize];
        if pool.expandable {
            return;
        }
        let mut candidates: Vec<(u32, u64)> = pool
            .streams
            .values()
            .flat_map(|&set| self.sets[set as usize].free.iter())
            .map(|e| (e.block, &self.blocks[e.block]))
            .filter(|(_, b)| !b.is_split())
            .map(|(block, b)| (block, pool.searches - b.searches_when_freed))
            .collect();
        let mut freed = 0;
        while freed < target && !candidates.is_empty() {
            let total: u128 = candidates.iter().map(|&(_, age)| u128::from(age)).sum();
            let count = candidates.len() as u128;
            let (old, young) = candidates.into_iter().partition(|&(_, age)| u128::from(age) * count >= total);
            candidates = young;
            let old: Vec<(u32, u64)> = old;
            for (block, _) in old {
                freed += self.blocks[block].size;
                self.release_segment(block);
            }
        }
    }
}

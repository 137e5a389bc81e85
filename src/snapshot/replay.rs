//! A recorded trace under its own settings, and under others.

use super::history::{Ask, History};
use crate::allocator::{Allocator, BlockId, Config, OutOfMemory};
use crate::units::Bytes;

/// What a replay of a trace found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The most allocated at once.
    pub peak_allocated: Bytes,
    /// The most reserved at once.
    pub peak_reserved: Bytes,
    /// Reserved and allocated at the end.
    pub reserved: Bytes,
    /// Allocated at the end.
    pub allocated: Bytes,
    /// Free blocks in segments that are in use, at the end.
    pub inactive_split: Bytes,
    /// Times that the cache was given back to make room.
    pub retries: u64,
    /// The first request that failed: the trace's entry, and the error.
    pub failed: Option<(usize, OutOfMemory)>,
    /// What becomes of the request that failed when it was recorded. `None`: none did, or an earlier one failed here.
    pub recorded_failure_fails: Option<bool>,
}

impl History {
    /// What the device can give to the allocator, as the recorded failure tells: what it had free, and what was reserved.
    /// `None`: nothing failed, or some limit other than the device did it.
    #[must_use]
    pub fn capacity(&self) -> Option<Bytes> {
        let failure = self.failure.filter(|failure| !failure.limited)?;
        let total = failure.device_free.checked_add(failure.reserved)?;
        // Requests that were served show that there was more, at another time.
        Some(total.max(self.peak_reserved))
    }

    /// Replays the trace under `config`. With `as_recorded` the segments that were there when it begins are restored; else
    /// what was alive then is laid out anew, as `config` would have it. `None`: they cannot be restored under `config`.
    #[must_use]
    pub fn replay(&self, config: &Config, as_recorded: bool) -> Option<Replayed> {
        let mut allocator = Allocator::new(config);
        let mut blocks = vec![BlockId::NULL; self.numbers as usize];
        let mut out = Replayed::default();
        let mut request = |allocator: &mut Allocator, entry: usize, bytes: u64, stream: u32, pool: u64| {
            inside(allocator, pool, |allocator| allocator.malloc(bytes, stream)).unwrap_or_else(|error| {
                out.failed = out.failed.or(Some((entry, error)));
                BlockId::NULL
            })
        };
        for segment in &self.begins {
            if as_recorded {
                if segment.expandable != config.alloc_conf.expandable_segments {
                    return None;
                }
                let restore =
                    |allocator: &mut Allocator| allocator.restore(segment.small, segment.stream, &segment.parts);
                let restored = inside(&mut allocator, segment.pool, restore)?;
                for (number, block) in segment.numbers.iter().zip(restored) {
                    *blocks.get_mut(*number as usize)? = block;
                }
                continue;
            }
            let held = segment.parts.iter().filter_map(|part| match part {
                crate::allocator::Restored::Allocated(_, requested) => Some(*requested),
                _ => None,
            });
            for (number, requested) in segment.numbers.iter().zip(held) {
                *blocks.get_mut(*number as usize)? =
                    request(&mut allocator, 0, requested, segment.stream, segment.pool);
            }
        }
        let mut recorded = None;
        for (ask, entry) in self.asks.iter().zip(&self.entries) {
            let entry = *entry as usize;
            match *ask {
                Ask::Alloc(number, bytes, stream, pool) => {
                    *blocks.get_mut(number as usize)? = request(&mut allocator, entry, bytes, stream, pool);
                }
                Ask::Free(number) => {
                    allocator.free(core::mem::replace(blocks.get_mut(number as usize)?, BlockId::NULL));
                }
                Ask::EmptyCache => allocator.empty_cache(),
                // It was begun once for each request.
                Ask::Release(pool) => while allocator.release_pool(pool).is_ok() {},
                Ask::Fail(bytes, stream, pool) => {
                    let block = request(&mut allocator, entry, bytes, stream, pool);
                    if recorded.is_none() {
                        recorded = Some((entry, block == BlockId::NULL));
                    }
                    // Nothing tells what the program would have done with it.
                    allocator.free(block);
                }
            }
        }
        let stats = allocator.stats();
        out.recorded_failure_fails =
            recorded.filter(|(at, _)| out.failed.is_none_or(|(first, _)| first >= *at)).map(|(_, fails)| fails);
        Some(Replayed {
            peak_allocated: stats.allocated.peak,
            peak_reserved: stats.reserved.peak,
            reserved: stats.reserved.current,
            allocated: stats.allocated.current,
            inactive_split: stats.inactive_split.current,
            retries: stats.num_alloc_retries,
            ..out
        })
    }
}

/// Does something while requests go to a private pool; 0: to none. Nothing tells when a program leaves its pool, so it is
/// left after each request; nothing else is asked for meanwhile.
fn inside<T>(allocator: &mut Allocator, pool: u64, what: impl FnOnce(&mut Allocator) -> T) -> T {
    if pool == 0 {
        return what(allocator);
    }
    allocator.begin_pool(pool);
    let out = what(allocator);
    let _ = allocator.end_pool(pool);
    out
}

//! The counters that `torch.cuda.memory_stats` shows.

use crate::units::Bytes;

/// A byte statistic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Now.
    pub current: Bytes,
    /// The most since the start or the last reset.
    pub peak: Bytes,
}

/// A counting statistic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Now.
    pub current: u64,
    /// The most since the start or the last reset.
    pub peak: u64,
}

/// What `torch.cuda.memory_stats` shows, over all pools. Peaks of different statistics are not simultaneous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes that callers asked for, of active blocks (`requested_bytes`).
    pub requested: Gauge,
    /// Whole sizes of blocks handed out and not freed (`memory_allocated`).
    pub allocated: Gauge,
    /// Allocated, and freed but still in use by another stream (`active_bytes`).
    pub active: Gauge,
    /// Taken from the device: segments and mapped pages (`memory_reserved`).
    pub reserved: Gauge,
    /// Free blocks that share a classic segment with another block (`inactive_split_bytes`).
    pub inactive_split: Gauge,
    /// Segments from cudaMalloc; expandable segments are not counted (`segment`).
    pub segments: Count,
    /// Times that the whole cache was given back to make room (`num_alloc_retries`).
    pub num_alloc_retries: u64,
    /// Out-of-memory errors (`num_ooms`).
    pub num_ooms: u64,
}

/// One running figure and its peak.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    current: u64,
    peak: u64,
}

impl Tally {
    #[inline]
    pub(super) fn add(&mut self, n: u64) {
        self.current += n;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(super) fn sub(&mut self, n: u64) {
        self.current -= n;
    }

    pub(super) fn current(&self) -> u64 {
        self.current
    }

    fn gauge(self) -> Gauge {
        Gauge { current: Bytes(self.current), peak: Bytes(self.peak) }
    }
}

/// The counters while they run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tallies {
    pub(super) requested: Tally,
    pub(super) allocated: Tally,
    pub(super) active: Tally,
    pub(super) reserved: Tally,
    pub(super) inactive_split: Tally,
    pub(super) segments: Tally,
    pub(super) retries: u64,
    pub(super) ooms: u64,
}

impl Tallies {
    pub(super) fn stats(&self) -> Stats {
        Stats {
            requested: self.requested.gauge(),
            allocated: self.allocated.gauge(),
            active: self.active.gauge(),
            reserved: self.reserved.gauge(),
            inactive_split: self.inactive_split.gauge(),
            segments: Count { current: self.segments.current, peak: self.segments.peak },
            num_alloc_retries: self.retries,
            num_ooms: self.ooms,
        }
    }

    pub(super) fn reset_peaks(&mut self) {
        let all = [
            &mut self.requested,
            &mut self.allocated,
            &mut self.active,
            &mut self.reserved,
            &mut self.inactive_split,
            &mut self.segments,
        ];
        for tally in all {
            tally.peak = tally.current;
        }
    }
}

//! What segments are taken from: a capacity in the driver's 2 MiB pages.

use super::SMALL_BUFFER;
use crate::units::Bytes;

/// Stands for "without limit": far beyond any device, and small enough that sums of it stay within `u64`.
const UNLIMITED: u64 = 1 << 62;

/// A device of limited or unlimited size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    total: Option<u64>,
    capacity: u64,
    used: u64,
}

impl Device {
    /// A device that nothing has been taken from.
    pub(super) fn new(total: Option<Bytes>) -> Self {
        let total = total.map(Bytes::get);
        Self { total, capacity: total.unwrap_or(UNLIMITED).min(UNLIMITED), used: 0 }
    }

    /// Its size, if it has one.
    pub(super) fn total(&self) -> Option<u64> {
        self.total
    }

    /// The size to compute address ranges from: a stand-in where there is no limit.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What the driver would report as free.
    pub(super) fn free(&self) -> Option<u64> {
        self.total.map(|_| self.capacity - self.used)
    }

    /// Takes `bytes`, in whole pages; false and nothing taken if they are not there.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let pages = bytes.next_multiple_of(SMALL_BUFFER);
        let fits = pages <= self.capacity - self.used;
        if fits {
            self.used += pages;
        }
        fits
    }

    /// Gives back what [`Self::take`] took.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.used -= bytes.next_multiple_of(SMALL_BUFFER);
    }
}

//! What an out-of-memory error knows, without its words.

use serde::{Deserialize, Serialize};

use super::Allocator;
use crate::units::Bytes;

/// The allocator could not serve a request, after it gave back all it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("out of memory: {requested} asked for, {tried} tried, {allocated} allocated, {reserved} reserved")]
pub struct OutOfMemory {
    /// What the caller asked for.
    pub requested: Bytes,
    /// What was asked of the device, the text's "Tried to allocate": a whole segment, not the request.
    pub tried: Bytes,
    /// The device's size. `None`: without limit, so the request itself is absurd.
    pub total: Option<Bytes>,
    /// What of it is not taken.
    pub free: Option<Bytes>,
    /// `memory_allocated` at the failure.
    pub allocated: Bytes,
    /// `memory_reserved` at the failure.
    pub reserved: Bytes,
    /// The limit that a memory fraction sets (the text's "allowed").
    pub allowed: Option<Bytes>,
    /// Free bytes in private pools, which the texts from 2.4 on count as allocated ("in private pools").
    pub free_in_private_pools: Bytes,
}

impl OutOfMemory {
    /// Reserved and not allocated: at this point, memory that could not be given back.
    #[must_use]
    pub fn reserved_unallocated(&self) -> Bytes {
        self.reserved.saturating_sub(self.allocated)
    }
}

impl Allocator {
    /// Describes a failure at this point.
    #[cold]
    pub(super) fn describe_failure(&self, requested: u64, tried: u64) -> OutOfMemory {
        OutOfMemory {
            requested: Bytes(requested),
            tried: Bytes(tried),
            total: self.device.total().map(Bytes),
            free: self.device.free().map(Bytes),
            allocated: Bytes(self.tallies.allocated.current()),
            reserved: Bytes(self.tallies.reserved.current()),
            allowed: self.limit.map(Bytes),
            free_in_private_pools: Bytes(self.free_in_private_pools()),
        }
    }
}

//! Blocks that other streams use: freed, they wait for these streams' events.

use std::collections::{BTreeMap, BTreeSet};

use super::Allocator;
use super::block::BlockId;

/// What is known about work on other streams.
#[derive(Clone, Debug, Default)]
pub(super) struct CrossStream {
    /// Streams that used a live block, other than its own.
    uses: BTreeMap<u32, BTreeSet<u32>>,
    /// The block of each recorded event, oldest first.
    pending: Vec<u32>,
    /// Recorded events have not finished, until told otherwise.
    unfinished: bool,
    /// Of these the first so many have.
    passed: usize,
}

impl Allocator {
    /// `Tensor.record_stream`: `stream` uses the block too, so that once freed it waits for that stream. Nothing on the
    /// block's own stream.
    pub fn record_stream(&mut self, id: BlockId, stream: u32) {
        if id == BlockId::NULL {
            return;
        }
        let block = &mut self.blocks[id.0];
        debug_assert!(block.allocated && !block.vacant, "a live block");
        if self.sets[block.set as usize].stream != stream {
            block.used_elsewhere = true;
            self.cross_stream.uses.entry(id.0).or_default().insert(stream);
        }
    }

    /// Whether the events that frees record have not finished yet when the next allocation asks. Initially they have.
    pub fn set_events_pending(&mut self, pending: bool) {
        self.cross_stream.unfinished = pending;
    }

    /// The host has waited for the device: every event has passed, and the next allocation finds it so.
    pub fn finish_pending(&mut self) {
        self.cross_stream.passed = self.cross_stream.pending.len();
    }

    /// The freed block waits for every other stream that used it.
    pub(super) fn wait_for_streams(&mut self, block: u32) {
        let uses = self.cross_stream.uses.remove(&block).unwrap_or_default();
        let b = &mut self.blocks[block];
        b.used_elsewhere = false;
        for _ in uses {
            b.events += 1;
            self.cross_stream.pending.push(block);
        }
    }

    /// Every allocation first takes back the blocks whose events have finished.
    #[inline]
    pub(super) fn poll_events(&mut self) {
        if !self.cross_stream.pending.is_empty() && !self.flush_is_blocked() {
            let all = self.cross_stream.pending.len();
            self.finish_first(if self.cross_stream.unfinished { self.cross_stream.passed } else { all });
        }
    }

    /// Waits for all events.
    pub(super) fn finish_events(&mut self) {
        self.finish_first(self.cross_stream.pending.len());
    }

    fn finish_first(&mut self, n: usize) {
        self.cross_stream.passed = 0;
        let rest = self.cross_stream.pending.split_off(n);
        for block in core::mem::replace(&mut self.cross_stream.pending, rest) {
            let b = &mut self.blocks[block];
            b.events -= 1;
            if b.events == 0 {
                self.recycle(block);
            }
        }
    }
}

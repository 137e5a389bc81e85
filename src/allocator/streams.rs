//! Blocks that other streams use: freed, they wait for these streams' events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Allocator;
use super::block::BlockId;

/// What is known about work on other streams.
#[derive(Clone, Debug, Default)]
pub(super) struct CrossStream {
    /// Streams that used a live block, other than its own.
    uses: BTreeMap<u32, BTreeSet<u32>>,
    /// Recorded events, oldest first: the block, the stream, and which of that stream's events it is.
    pending: Vec<(u32, u32, u32)>,
    /// Recorded events have not finished, until told otherwise.
    unfinished: bool,
    /// Of these so many of each stream have.
    passed: Clock,
    /// What each stream comes after.
    clocks: BTreeMap<u32, Clock>,
    /// What comes before each event that the host will wait for, oldest first.
    awaited: VecDeque<Clock>,
}

/// How many of each stream's events lie in the past of a moment.
#[derive(Clone, Debug, Default)]
struct Clock(Vec<(u32, u32)>);

impl Clock {
    fn of(&mut self, stream: u32) -> &mut u32 {
        let at = self.0.iter().position(|(s, _)| *s == stream).unwrap_or_else(|| {
            self.0.push((stream, 0));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// What lies in the past of `other` does so here.
    fn join(&mut self, other: &Self) {
        for (stream, events) in &other.0 {
            let own = self.of(*stream);
            *own = (*own).max(*events);
        }
    }
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
        let CrossStream { clocks, passed, .. } = &mut self.cross_stream;
        clocks.values().for_each(|clock| passed.join(clock));
    }

    /// `Stream.wait_stream`: what `stream` does from here on comes after what `other` has in hand. The host does not wait.
    pub fn wait_stream(&mut self, stream: u32, other: u32) {
        let clocks = &mut self.cross_stream.clocks;
        if let Some(other) = clocks.get(&other).cloned() {
            clocks.entry(stream).or_default().join(&other);
        }
    }

    /// `stream` records an event that the host will wait for.
    pub fn record_event(&mut self, stream: u32) {
        let clock = self.cross_stream.clocks.get(&stream).cloned().unwrap_or_default();
        self.cross_stream.awaited.push_back(clock);
    }

    /// The host waits for the oldest of its events where there are `n` or more: all that comes before it has passed.
    pub fn await_oldest_of(&mut self, n: usize) {
        if self.cross_stream.awaited.len() >= n
            && let Some(clock) = self.cross_stream.awaited.pop_front()
        {
            self.cross_stream.passed.join(&clock);
        }
    }

    /// The freed block waits for every other stream that used it.
    pub(super) fn wait_for_streams(&mut self, block: u32) {
        let uses = self.cross_stream.uses.remove(&block).unwrap_or_default();
        let b = &mut self.blocks[block];
        b.used_elsewhere = false;
        for stream in uses {
            b.events += 1;
            let event = self.cross_stream.clocks.entry(stream).or_default().of(stream);
            *event += 1;
            self.cross_stream.pending.push((block, stream, *event));
        }
    }

    /// Every allocation first takes back the blocks whose events have finished.
    #[inline]
    pub(super) fn poll_events(&mut self) {
        if !self.cross_stream.pending.is_empty() && !self.flush_is_blocked() {
            self.finish_passed(self.cross_stream.unfinished);
        }
    }

    /// Waits for all events.
    pub(super) fn finish_events(&mut self) {
        self.finish_passed(false);
    }

    /// Takes back blocks, oldest event first: those alone whose events are known to have passed, or all.
    fn finish_passed(&mut self, known: bool) {
        let CrossStream { pending, passed, .. } = &mut self.cross_stream;
        let finished: Vec<_> = pending.extract_if(.., |(_, stream, at)| !known || *at <= *passed.of(*stream)).collect();
        for (block, ..) in finished {
            let b = &mut self.blocks[block];
            b.events -= 1;
            if b.events == 0 {
                self.recycle(block);
            }
        }
    }
}

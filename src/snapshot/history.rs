//! A device's trace as a program that can be run again: what was alive when it begins, and what was asked for since.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};

use super::recording::{Action, Entry, Snapshot};
use crate::allocator::{BlockState, MIN_BLOCK, Restored, SMALL_BUFFER, SMALL_SIZE};
use crate::units::Bytes;

/// Why a recording is not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReplayed {
    /// Nothing was recorded.
    NoTrace,
    /// It has private pools (CUDA graphs, `MemPool`), gave segments back, and does not say of which pool they were.
    PrivatePools,
    /// The trace and the state at its end do not fit together.
    Inconsistent,
}

/// One thing that the program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Asked for memory: a number that is free, bytes, a stream's number, a private pool or 0.
    Alloc(u32, u64, u32, u64),
    /// A number's block can be used again.
    Free(u32),
    /// Gave the cache back.
    EmptyCache,
    /// No one uses this private pool any more.
    Release(u64),
    /// Asked for so much on a stream, of a private pool or 0, and got nothing.
    Fail(u64, u32, u64),
}

/// A segment when the trace begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begins {
    pub(super) small: bool,
    pub(super) expandable: bool,
    pub(super) stream: u32,
    pub(super) pool: u64,
    pub(super) parts: Vec<Restored>,
    /// The numbers of the blocks handed out.
    pub(super) numbers: Vec<u32>,
}

/// A trace to be run again.
#[derive(Clone, Debug)]
pub struct History {
    pub(super) begins: Vec<Begins>,
    pub(super) asks: Vec<Ask>,
    /// By ask: the entry it stands for.
    pub(super) entries: Vec<u32>,
    pub(super) numbers: u32,
    /// Blocks that were alive before the trace begins.
    pub older_blocks: usize,
    /// Times that segments were given back, other than right before a failure.
    pub emptied: usize,
    /// The first failure that was recorded.
    pub failure: Option<Failure>,
    /// The most that was reserved, by the recorded segments.
    pub peak_reserved: Bytes,
}

/// A recorded failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The entry's index.
    pub entry: usize,
    /// Bytes asked for, rounded.
    pub size: Bytes,
    /// What the device had free.
    pub device_free: Bytes,
    /// Reserved at the time.
    pub reserved: Bytes,
    /// Whether the device had room for it, so that some limit was in force.
    pub limited: bool,
}

#[derive(Clone, Copy)]
struct Live {
    requested: u64,
    /// Where it is known.
    size: Option<u64>,
}

#[derive(Clone, Copy)]
struct Span {
    size: u64,
    stream: i64,
    small: bool,
    pool: u64,
}

/// The private pools of a trace's entries, where it does not say them: by the segments at its end.
struct Pools(Vec<(u64, u64, u64)>);

impl Pools {
    fn of(&self, entry: &Entry) -> u64 {
        let here = || self.0.iter().find(|(start, end, _)| (*start..*end).contains(&entry.address));
        entry.pool.unwrap_or_else(|| here().map_or(0, |(.., pool)| *pool))
    }
}

/// Mapped memory: classic segments by address, and mapped parts of address ranges.
#[derive(Default)]
struct Spans {
    classic: BTreeMap<u64, Span>,
    mapped: BTreeMap<u64, Span>,
}

impl Spans {
    /// Adds mapped pages, joined with what they touch.
    fn map(&mut self, mut address: u64, mut span: Span) -> Option<()> {
        let alike = |other: &Span| (other.stream, other.small, other.pool) == (span.stream, span.small, span.pool);
        if let Some((&before, left)) = self.mapped.range(..address).next_back()
            && before.checked_add(left.size)? == address
            && alike(left)
        {
            (address, span.size) = (before, left.size.checked_add(span.size)?);
        }
        let end = address.checked_add(span.size)?;
        if let Some(right) = self.mapped.get(&end).copied().filter(alike) {
            self.mapped.remove(&end);
            span.size = span.size.checked_add(right.size)?;
        }
        self.mapped.insert(address, span);
        Some(())
    }

    /// Takes mapped pages away.
    fn unmap(&mut self, address: u64, size: u64) -> Option<()> {
        let (&start, &span) = self.mapped.range(..=address).next_back()?;
        let (end, gone) = (start.checked_add(span.size)?, address.checked_add(size)?);
        if gone > end {
            return None;
        }
        self.mapped.remove(&start);
        if start < address {
            self.mapped.insert(start, Span { size: address - start, ..span });
        }
        if gone < end {
            self.mapped.insert(gone, Span { size: end - gone, ..span });
        }
        Some(())
    }
}

impl History {
    /// The history of a device.
    ///
    /// # Errors
    /// Why there is none.
    pub fn of(snapshot: &Snapshot, device: u32) -> Result<Self, NotReplayed> {
        let trace = snapshot.trace(device);
        if trace.is_empty() {
            return Err(NotReplayed::NoTrace);
        }
        let private = snapshot.segments_of(device).filter(|(segment, _)| segment.pool != 0);
        let pools =
            Pools(private.map(|(of, _)| (of.address, of.address.saturating_add(of.size), of.pool)).collect::<Vec<_>>());
        // What was given back is not among the segments at the end.
        let gone = |entry: &Entry| matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap);
        if !pools.0.is_empty() && trace.iter().any(|entry| entry.pool.is_none() && gone(entry)) {
            return Err(NotReplayed::PrivatePools);
        }
        let (spans, live) = before(snapshot, device, trace, &pools).ok_or(NotReplayed::Inconsistent)?;
        Self::from_start(trace, &spans, live, &pools).ok_or(NotReplayed::Inconsistent)
    }

    fn from_start(trace: &[Entry], spans: &Spans, live: BTreeMap<u64, Live>, pools: &Pools) -> Option<Self> {
        let mut streams = BTreeMap::from([(0, 0)]);
        let mut stream = |handle: i64| {
            let next = u32::try_from(streams.len()).unwrap_or(u32::MAX);
            *streams.entry(handle).or_insert(next)
        };
        let asked: BTreeSet<u64> = trace.iter().filter(|e| e.action == Action::Alloc).map(|e| e.address).collect();
        let mut held: BTreeMap<u64, u32> = BTreeMap::new();
        let mut numbers = 0_u32;
        let older_blocks = live.len();
        let mut begins = Vec::new();
        let mut known = live;
        let mut add = |start: u64, spans: &[(u64, Span)], expandable: bool| -> Option<()> {
            let (mut parts, mut here, mut at) = (Vec::new(), Vec::new(), start);
            let (_, first) = *spans.first()?;
            for (address, span) in spans {
                if *address > at {
                    parts.push(Restored::Unmapped(address - at));
                    at = *address;
                }
                let end = address.checked_add(span.size)?;
                let inside: Vec<(u64, Live)> = known.range(*address..end).map(|(a, l)| (*a, *l)).collect();
                for (n, (place, block)) in inside.iter().enumerate() {
                    if *place < at {
                        return None;
                    }
                    if *place > at {
                        parts.push(Restored::Free(place - at));
                    }
                    let next = inside.get(n + 1).map_or(end, |(next, _)| *next);
                    let size = match block.size {
                        Some(size) => size,
                        None => size_of_block(*place, block.requested, next, span.small || expandable, &asked)?,
                    };
                    at = place.checked_add(size).filter(|at| *at <= next)?;
                    parts.push(Restored::Allocated(size, block.requested));
                    here.push(numbers);
                    held.insert(*place, numbers);
                    numbers += 1;
                    known.remove(place);
                }
                if at < end {
                    parts.push(Restored::Free(end - at));
                    at = end;
                }
            }
            let (stream, pool) = (stream(first.stream), first.pool);
            begins.push(Begins { small: first.small, expandable, stream, pool, parts, numbers: here });
            Some(())
        };
        for (address, span) in &spans.classic {
            add(*address, &[(*address, *span)], false)?;
        }
        // One address range per stream and pool.
        let mut ranges: BTreeMap<(u64, bool, i64), Vec<(u64, Span)>> = BTreeMap::new();
        for (address, span) in &spans.mapped {
            ranges.entry((span.pool, span.small, span.stream)).or_default().push((*address, *span));
        }
        for range in ranges.values() {
            add(range.first()?.0, range, true)?;
        }
        // A block outside of all segments.
        if !known.is_empty() {
            return None;
        }
        let mut history = Self {
            begins,
            asks: Vec::with_capacity(trace.len()),
            entries: Vec::with_capacity(trace.len()),
            numbers,
            older_blocks,
            emptied: 0,
            failure: None,
            peak_reserved: Bytes::ZERO,
        };
        let sum = |spans: &BTreeMap<u64, Span>| spans.values().try_fold(0_u64, |sum, span| sum.checked_add(span.size));
        let mut reserved = sum(&spans.classic)?.checked_add(sum(&spans.mapped)?)?;
        history.peak_reserved = Bytes(reserved);
        let mut vacant: Vec<u32> = Vec::new();
        // Segments were given back since the last request.
        let mut given_back = false;
        for (index, entry) in trace.iter().enumerate() {
            let ask = |ask: Ask, history: &mut Self| {
                history.asks.push(ask);
                history.entries.push(u32::try_from(index).unwrap_or(u32::MAX));
            };
            match entry.action {
                Action::SegmentAlloc | Action::SegmentMap => {
                    reserved = reserved.checked_add(entry.size)?;
                    history.peak_reserved = history.peak_reserved.max(Bytes(reserved));
                }
                Action::SegmentFree | Action::SegmentUnmap => {
                    reserved = reserved.checked_sub(entry.size)?;
                    given_back = true;
                    // A private pool's segments are given back once no one uses it.
                    let pool = pools.of(entry);
                    if pool != 0 && history.asks.last() != Some(&Ask::Release(pool)) {
                        ask(Ask::Release(pool), &mut history);
                    }
                }
                Action::Alloc => {
                    if core::mem::take(&mut given_back) {
                        history.emptied += 1;
                        ask(Ask::EmptyCache, &mut history);
                    }
                    let number = vacant.pop().unwrap_or_else(|| {
                        history.numbers = history.numbers.saturating_add(1);
                        history.numbers - 1
                    });
                    if held.insert(entry.address, number).is_some() {
                        return None;
                    }
                    ask(Ask::Alloc(number, entry.size, stream(entry.stream), pools.of(entry)), &mut history);
                }
                Action::FreeCompleted => {
                    if core::mem::take(&mut given_back) {
                        history.emptied += 1;
                        ask(Ask::EmptyCache, &mut history);
                    }
                    let number = held.remove(&entry.address)?;
                    vacant.push(number);
                    ask(Ask::Free(number), &mut history);
                }
                Action::OutOfMemory => {
                    given_back = false;
                    let (size, device_free) = (Bytes(entry.size), Bytes(entry.address));
                    let limited = device_free >= size;
                    let failure = Failure { entry: index, size, device_free, reserved: Bytes(reserved), limited };
                    history.failure = history.failure.or(Some(failure));
                    ask(Ask::Fail(entry.size, stream(entry.stream), entry.pool.unwrap_or(0)), &mut history);
                }
                Action::FreeRequested | Action::Snapshot | Action::Other => {}
            }
        }
        if given_back {
            history.emptied += 1;
            history.asks.push(Ask::EmptyCache);
            history.entries.push(u32::try_from(trace.len()).unwrap_or(u32::MAX));
        }
        Some(history)
    }
}

/// The size of a block that was alive before the trace and is not at its end: what was asked for, rounded; and what was
/// left of its segment, where that was not worth a block of its own.
fn size_of_block(place: u64, requested: u64, next: u64, splits_all: bool, asked: &BTreeSet<u64>) -> Option<u64> {
    let rounded = requested.max(1).checked_next_multiple_of(MIN_BLOCK)?;
    let end = place.checked_add(rounded)?;
    if end > next {
        return None;
    }
    if splits_all || end == next {
        return Some(rounded);
    }
    if next - end <= SMALL_SIZE {
        return Some(next - place);
    }
    // Up to 1 MiB may belong to the block: a request that is served in there shows where the free rest begins.
    let within = (Bound::Excluded(end), Bound::Included(end.checked_add(SMALL_SIZE)?));
    match (asked.contains(&end), asked.range(within).next()) {
        (false, Some(begins)) => Some(begins - place),
        _ => Some(rounded),
    }
}

/// Segments and live blocks when the trace begins: those at its end, and what the trace did taken back.
fn before(snapshot: &Snapshot, device: u32, trace: &[Entry], pools: &Pools) -> Option<(Spans, BTreeMap<u64, Live>)> {
    let (mut spans, mut live) = (Spans::default(), BTreeMap::new());
    for (segment, blocks) in snapshot.segments_of(device) {
        let span = Span { size: segment.size, stream: segment.stream, small: segment.small, pool: segment.pool };
        if segment.expandable {
            spans.map(segment.address, span)?;
        } else if spans.classic.insert(segment.address, span).is_some() {
            return None;
        }
        for block in blocks.iter().filter(|block| block.state != BlockState::Inactive) {
            let requested = block.requested.unwrap_or(block.size);
            live.insert(block.address, Live { requested, size: Some(block.size) });
        }
    }
    for entry in trace.iter().rev() {
        let span =
            Span { size: entry.size, stream: entry.stream, small: entry.size == SMALL_BUFFER, pool: pools.of(entry) };
        match entry.action {
            Action::Alloc => {
                live.remove(&entry.address)?;
            }
            Action::FreeCompleted => {
                let freed = Live { requested: entry.size, size: None };
                if live.insert(entry.address, freed).is_some() {
                    return None;
                }
            }
            Action::SegmentAlloc => {
                spans.classic.remove(&entry.address)?;
            }
            Action::SegmentFree => {
                if spans.classic.insert(entry.address, span).is_some() {
                    return None;
                }
            }
            Action::SegmentMap => spans.unmap(entry.address, entry.size)?,
            Action::SegmentUnmap => spans.map(entry.address, span)?,
            Action::FreeRequested | Action::Snapshot | Action::OutOfMemory | Action::Other => {}
        }
    }
    Some((spans, live))
}

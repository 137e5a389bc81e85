//! What a replay found, in the format in which traces carry it: a report's checkpoints compare with a recording's.

use serde::{Serialize, Serializer};

use super::{Checkpoint, Moment, Outcome, RecordedFigures, Trace, TraceError, replay};
use crate::allocator::{Allocator, BlockState, Config, OutOfMemory, SegmentView};
use crate::plan::Version;
use crate::units::Bytes;

/// Blocks listed over all checkpoints, after which segments are only counted: it bounds a report's memory.
const MAX_LISTED_BLOCKS: usize = 8_000_000;

/// A replay, for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The trace's name.
    pub name: String,
    /// The PyTorch version whose rules were used.
    pub pytorch: Version,
    /// The settings that were used.
    pub alloc_conf: String,
    /// The device's size. `None`: without limit.
    pub total_bytes: Option<Bytes>,
    /// Number of events.
    pub events: usize,
    /// The first allocation that failed.
    pub first_oom: Option<FirstOom>,
    /// Where the trace has checkpoints.
    pub checkpoints: Vec<Figures>,
    /// After the last event.
    #[serde(rename = "final")]
    pub last: Figures,
    /// The most of each figure, not all at one time.
    pub peaks: PeakFigures,
}

/// The first allocation that failed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FirstOom {
    /// Index of the event.
    pub event: usize,
    /// The error's figures.
    #[serde(flatten)]
    pub error: OutOfMemory,
}

/// The state at one point.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The event right before it. `None`: the end of a trace without events.
    pub after_event: Option<usize>,
    /// `memory_allocated`.
    pub allocated: Bytes,
    /// Bytes asked for, of active blocks.
    pub requested: Bytes,
    /// Allocated, or freed and waiting for another stream.
    pub active: Bytes,
    /// `memory_reserved`.
    pub reserved: Bytes,
    /// Free blocks in segments that are in use.
    pub inactive_split: Bytes,
    /// Times that the whole cache was given back to make room.
    pub retries: u64,
    /// Out-of-memory errors.
    pub ooms: u64,
    /// Number of segments; of expandable ones, of contiguous mapped parts.
    pub num_segments: usize,
    /// The segments, where they are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<Vec<SegmentListing>>,
}

impl Figures {
    fn new(after_event: Option<usize>, allocator: &Allocator) -> Self {
        let stats = allocator.stats();
        Self {
            after_event,
            allocated: stats.allocated.current,
            requested: stats.requested.current,
            active: stats.active.current,
            reserved: stats.reserved.current,
            inactive_split: stats.inactive_split.current,
            retries: stats.num_alloc_retries,
            ooms: stats.num_ooms,
            num_segments: allocator.segment_count(),
            segments: None,
        }
    }
}

/// The most of each figure.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PeakFigures {
    /// Of `memory_allocated`.
    pub allocated: Bytes,
    /// Of active bytes.
    pub active: Bytes,
    /// Of `memory_reserved`.
    pub reserved: Bytes,
    /// Of requested bytes.
    pub requested: Bytes,
    /// Of inactive split bytes.
    pub inactive_split: Bytes,
}

/// A segment as traces write it: `[size, expandable, [[size, "A" | "P" | "F", requested], ...], {...}]`.
#[derive(Clone, Debug)]
pub struct SegmentListing(pub SegmentView);

impl Serialize for SegmentListing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Place {
            stream: u32,
            pool: &'static str,
            private_pool: u64,
        }
        let SegmentView { expandable, stream, small, private_pool, ref blocks } = self.0;
        let blocks: Vec<_> = blocks
            .iter()
            .map(|b| {
                let state = match b.state {
                    BlockState::Allocated => "A",
                    BlockState::PendingFree => "P",
                    BlockState::Inactive => "F",
                };
                (b.size, state, b.requested)
            })
            .collect();
        let pool = if small { "small" } else { "large" };
        let place = Place { stream, pool, private_pool: private_pool.unwrap_or(0) };
        (self.0.size(), expandable, blocks, place).serialize(serializer)
    }
}

impl Report {
    /// Replays `trace` and writes down what its checkpoints ask for.
    ///
    /// # Errors
    /// As [`replay`].
    pub fn new(trace: &Trace, config: &Config, alloc_conf: &str) -> Result<Self, TraceError> {
        let mut checkpoints = Vec::new();
        let mut budget = MAX_LISTED_BLOCKS;
        let mut list = |figures: &mut Figures, allocator: &Allocator| {
            let segments = allocator.segments();
            let blocks = segments.iter().map(|s| s.blocks.len()).sum::<usize>();
            if let Some(left) = budget.checked_sub(blocks) {
                budget = left;
                figures.segments = Some(segments.into_iter().map(SegmentListing).collect());
            }
        };
        let outcome = replay(trace, config, |moment, allocator| {
            if let Moment::Checkpoint(Checkpoint { after_event, segments, .. }) = moment {
                let mut figures = Figures::new(Some(after_event), allocator);
                if segments {
                    list(&mut figures, allocator);
                }
                checkpoints.push(figures);
            }
        })?;
        let Outcome { allocator, first_oom } = outcome;
        let mut last = Figures::new(trace.events.len().checked_sub(1), &allocator);
        list(&mut last, &allocator);
        let stats = allocator.stats();
        Ok(Self {
            name: trace.name.clone(),
            pytorch: config.version,
            alloc_conf: alloc_conf.into(),
            total_bytes: config.total_bytes,
            events: trace.events.len(),
            first_oom: first_oom.map(|(event, error)| FirstOom { event, error }),
            checkpoints,
            last,
            peaks: PeakFigures {
                allocated: stats.allocated.peak,
                active: stats.active.peak,
                reserved: stats.reserved.peak,
                requested: stats.requested.peak,
                inactive_split: stats.inactive_split.peak,
            },
        })
    }
}

/// A figure that a replay and the recording disagree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Where.
    pub after_event: usize,
    /// The figure's name.
    pub figure: &'static str,
    /// What the recording says.
    pub recorded: Bytes,
    /// What the replay found.
    pub replayed: Bytes,
}

impl Report {
    /// Where this replay of `trace` and its recording disagree. Under the settings, device and version of the
    /// recording that is a wrong rule or a recording that is not whole; under others it is what they change.
    #[must_use]
    pub fn differences(&self, trace: &Trace) -> Vec<Difference> {
        let at = |found: &Figures, Checkpoint { after_event, recorded, .. }: Checkpoint| {
            let RecordedFigures { allocated, requested, active, reserved, inactive_split } = recorded;
            let pairs = [
                ("allocated", allocated, found.allocated),
                ("requested", requested, found.requested),
                ("active", active, found.active),
                ("reserved", reserved, found.reserved),
                ("inactive_split", inactive_split, found.inactive_split),
            ];
            pairs.into_iter().filter_map(move |(figure, recorded, replayed)| {
                let recorded = recorded.filter(|&r| r != replayed)?;
                Some(Difference { after_event, figure, recorded, replayed })
            })
        };
        self.checkpoints.iter().zip(&trace.checkpoints).flat_map(|(found, &checkpoint)| at(found, checkpoint)).collect()
    }
}

//! Drives an [`Allocator`] with a trace's events.

use super::{Checkpoint, Event, Trace, TraceError};
use crate::allocator::{Allocator, BlockId, Config, OutOfMemory, PrivatePoolError};

/// A point of a replay that one may want to look at.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    /// The trace has a checkpoint here.
    Checkpoint(Checkpoint),
    /// This event's allocation failed; the replay goes on, and ignores what the trace does with it.
    OutOfMemory(usize, OutOfMemory),
}

/// What a replay left behind.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The allocator after the last event.
    pub allocator: Allocator,
    /// The first event that ran out of memory.
    pub first_oom: Option<(usize, OutOfMemory)>,
}

/// Replays `trace` under `config`, whatever it was recorded under.
///
/// # Errors
/// An event that misuses private pools.
pub fn replay(
    trace: &Trace,
    config: &Config,
    mut visit: impl FnMut(Moment, &Allocator),
) -> Result<Outcome, TraceError> {
    let mut allocator = Allocator::new(config);
    let mut slots = vec![BlockId::NULL; trace.slots as usize];
    let mut checkpoints = trace.checkpoints.iter().copied().peekable();
    let mut first_oom = None;
    for (index, &event) in trace.events.iter().enumerate() {
        let pool_error =
            |e: PrivatePoolError| TraceError::Event { index, field: "pool".into(), problem: e.to_string() };
        match event {
            Event::Alloc { slot, bytes, stream } => {
                let block = allocator.malloc(bytes, stream).unwrap_or_else(|oom| {
                    first_oom = first_oom.or(Some((index, oom)));
                    visit(Moment::OutOfMemory(index, oom), &allocator);
                    BlockId::NULL
                });
                slots[slot.0 as usize] = block;
            }
            Event::Free { slot } => allocator.free(core::mem::replace(&mut slots[slot.0 as usize], BlockId::NULL)),
            Event::RecordStream { slot, stream } => allocator.record_stream(slots[slot.0 as usize], stream),
            Event::EmptyCache => allocator.empty_cache(),
            Event::EventsPending(pending) => allocator.set_events_pending(pending),
            Event::SetFraction(fraction) => allocator.set_fraction(fraction),
            Event::BeginPool(id) => allocator.begin_pool(id),
            Event::EndPool(id) => allocator.end_pool(id).map_err(pool_error)?,
            Event::ReleasePool(id) => allocator.release_pool(id).map_err(pool_error)?,
        }
        while let Some(checkpoint) = checkpoints.next_if(|c| c.after_event == index) {
            visit(Moment::Checkpoint(checkpoint), &allocator);
        }
    }
    Ok(Outcome { allocator, first_oom })
}

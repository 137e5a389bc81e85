//! The list of tensor lifetimes that everything is read off.

use core::cell::{Cell, RefCell};

use serde::{Deserialize, Serialize};

use crate::allocator::Allocator;
use crate::bill::{Instant, Part};
use crate::step::shape::{Dim, MAX_RANK, Shape};
use crate::units::{Bytes, MAX_DOCUMENT_BYTES};

/// What happened, in the framework's order. Numbers index [`Log::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A storage was allocated.
    Alloc(u32),
    /// Its last reference went away.
    Free(u32),
    /// The storage serves another part from here on: an output becomes an activation when backward saves it, a
    /// gradient in flight becomes a parameter's gradient.
    Becomes(u32, Part),
    /// The following events belong to this column of the bill.
    Enter(Instant),
    /// A reading is taken here.
    Mark(Mark),
    /// The following events belong to this layer, counted from 1; 0 is outside the layers.
    Layer(u32),
    /// `torch.cuda.empty_cache()`: free segments go back to the driver.
    EmptyCache,
    /// The stream uses the storage, which after it is freed waits for that stream (`Tensor.record_stream`).
    Uses(u32, Stream),
    /// What the host or a stream waits for.
    Sync(Sync),
}

/// What orders streams and the host among each other. It matters only to events on a device that lags behind its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// The host waits for the device: every event has passed.
    Device,
    /// The first stream waits for what the second has in hand (`Stream.wait_stream`); the host does not.
    Wait(Stream, Stream),
    /// The stream records an event that the host will wait for (`_FreeEventQueue.enqueue`).
    Record(Stream),
    /// The host waits for the oldest of them if there are two or more (`_FreeEventQueue.dequeue_if_needed`).
    Await,
}

impl Sync {
    /// Tells the allocator of it.
    pub(crate) fn apply(self, allocator: &mut Allocator) {
        match self {
            Self::Device => allocator.finish_pending(),
            Self::Wait(stream, other) => allocator.wait_stream(stream as u32, other as u32),
            Self::Record(stream) => allocator.record_event(stream as u32),
            Self::Await => allocator.await_oldest_of(2),
        }
    }
}

/// A CUDA stream. Memory that was freed on one is reused on that one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// The one on which the model runs.
    #[default]
    Default,
    /// Parameters are copied together on it before they are gathered.
    CopyIn,
    /// Parameters are gathered on it.
    AllGather,
    /// Gradients are reduced and scattered on it.
    ReduceScatter,
    /// Gradients are reduced over replicas on it.
    AllReduce,
}

impl Event {
    /// The storage that it is about.
    #[must_use]
    pub const fn storage(self) -> Option<u32> {
        match self {
            Self::Alloc(id) | Self::Free(id) | Self::Becomes(id, _) | Self::Uses(id, _) => Some(id),
            Self::Enter(_) | Self::Mark(_) | Self::Layer(_) | Self::EmptyCache | Self::Sync(_) => None,
        }
    }

    /// The same event about storage `id`.
    pub(crate) const fn about(self, id: u32) -> Self {
        match self {
            Self::Alloc(_) => Self::Alloc(id),
            Self::Free(_) => Self::Free(id),
            Self::Becomes(_, part) => Self::Becomes(id, part),
            Self::Uses(_, stream) => Self::Uses(id, stream),
            other => other,
        }
    }
}

/// Where a loop would read `memory_allocated` and reset its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `from_pretrained` has returned.
    Loaded,
    /// The cache is empty after it.
    LoadedAndEmptied,
    /// What is not quantised has been taken to FP32.
    Prepared,
    /// Model and optimizer exist, the cache is empty.
    Base,
    /// A step begins.
    Step,
    /// A micro-batch begins.
    MicroBatch,
    /// The batch is on the device.
    Inputs,
    /// Forward is over: loss in hand.
    ForwardEnd,
    /// Backward is over.
    BackwardEnd,
    /// Gradients are clipped; the optimizer's own peak counts from before the clipping.
    ClipEnd,
    /// `optimizer.step()` is over.
    StepEnd,
    /// The averaged copy of the weights is updated.
    EmaEnd,
    /// Gradients are dropped, the loop's variables too.
    ZeroGradEnd,
    /// An evaluation begins.
    Evaluation,
    /// Its loss and outputs are there.
    EvaluationEnd,
    /// What follows belongs to this phase.
    Phase(Phase),
}

/// A phase of a job: what it does between two points at which something else holds memory. In order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The weights come onto the device.
    Load,
    /// What is not quantised is taken to FP32.
    Prepare,
    /// Completions are generated.
    Generation,
    /// The policy scores what it generated, before it changes.
    OldLogProbs,
    /// The reference scores.
    Reference,
    /// The reward model scores.
    Reward,
    /// The critic values.
    Values,
    /// Forward, backward and the optimizer step.
    Update,
    /// The averaged copy of the weights is brought up to date.
    Average,
    /// A batch without gradients.
    Evaluation,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Load,
        Self::Prepare,
        Self::Generation,
        Self::OldLogProbs,
        Self::Reference,
        Self::Reward,
        Self::Values,
        Self::Update,
        Self::Average,
        Self::Evaluation,
    ];

    /// The name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Prepare => "prepare",
            Self::Generation => "generation",
            Self::OldLogProbs => "old_log_probs",
            Self::Reference => "reference",
            Self::Reward => "reward",
            Self::Values => "values",
            Self::Update => "update",
            Self::Average => "average",
            Self::Evaluation => "evaluation",
        }
    }
}

/// One storage: its size and what it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorInfo {
    /// Requested bytes.
    pub bytes: Bytes,
    /// Bytes per element.
    pub element: u64,
    /// The sizes it was allocated with, for the formula.
    pub dims: [Dim; MAX_RANK],
    /// The part at allocation.
    pub part: Part,
    /// The layer it was allocated in, counted from 1; 0 is outside the layers.
    pub layer: u32,
    /// The module: `attention`, `mlp`, `loss`.
    pub scope: &'static str,
    /// The operation: `matmul`, `softmax`, `grad of mul`.
    pub op: &'static str,
    /// The stream it is allocated on.
    pub stream: Stream,
}

/// What a storage belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Belongs {
    pub(crate) part: Part,
    pub(crate) layer: u32,
    pub(crate) scope: &'static str,
    pub(crate) stream: Stream,
}

/// Set beside the count of shares while a storage has no memory.
const ABSENT: u32 = 1 << 31;

/// The log of a walk.
#[derive(Debug)]
pub struct Log {
    events: RefCell<Vec<Event>>,
    tensors: RefCell<Vec<TensorInfo>>,
    /// How many share each storage.
    shares: RefCell<Vec<u32>>,
    overflow: Cell<bool>,
    host: RefCell<Host>,
}

/// What is kept in host memory, by layer, and when it was the most.
#[derive(Debug, Default)]
struct Host {
    now: Vec<u64>,
    most: Vec<u64>,
}

impl Default for Log {
    /// With room for a few layers.
    fn default() -> Self {
        Self {
            events: RefCell::new(Vec::with_capacity(2048)),
            tensors: RefCell::new(Vec::with_capacity(1024)),
            shares: RefCell::new(Vec::with_capacity(1024)),
            overflow: Cell::default(),
            host: RefCell::default(),
        }
    }
}

impl Log {
    /// Notes an allocation and returns its number; [`Log::register`] says more.
    pub(crate) fn alloc(&self, shape: &Shape, element: u64, of: Belongs, op: &'static str) -> u32 {
        let id = self.add(shape, element, of, op, 1);
        self.push(Event::Alloc(id));
        id
    }

    /// Notes a storage that has no memory yet, and returns its number. A size past 2⁵³ bytes sets [`Log::overflowed`] and counts as zero.
    pub(crate) fn register(&self, shape: &Shape, element: u64, of: Belongs, op: &'static str) -> u32 {
        self.add(shape, element, of, op, 1 | ABSENT)
    }

    fn add(&self, shape: &Shape, element: u64, of: Belongs, op: &'static str, shares: u32) -> u32 {
        let Belongs { part, layer, scope, stream } = of;
        let bytes = shape.numel().and_then(|n| n.checked_mul(element)).filter(|&b| b <= MAX_DOCUMENT_BYTES);
        if bytes.is_none() {
            self.overflow.set(true);
        }
        let dims = *shape.padded_dims();
        let mut tensors = self.tensors.borrow_mut();
        let Ok(id) = u32::try_from(tensors.len()) else {
            self.overflow.set(true);
            return 0;
        };
        tensors.push(TensorInfo { bytes: Bytes(bytes.unwrap_or(0)), element, dims, part, layer, scope, op, stream });
        self.shares.borrow_mut().push(shares);
        id
    }

    /// Storage `id` has memory from here on (`UntypedStorage.resize_`).
    pub(crate) fn provide(&self, id: u32) {
        if let Some(shares) = self.shares.borrow_mut().get_mut(id as usize)
            && *shares & ABSENT != 0
        {
            *shares &= !ABSENT;
            self.push(Event::Alloc(id));
        }
    }

    /// Storage `id` gives its memory back, and may get it again.
    pub(crate) fn withdraw(&self, id: u32) {
        if let Some(shares) = self.shares.borrow_mut().get_mut(id as usize)
            && *shares & ABSENT == 0
        {
            *shares |= ABSENT;
            self.push(Event::Free(id));
        }
    }

    /// How many share storage `id`.
    pub(crate) fn shares(&self, id: u32) -> u32 {
        self.shares.borrow().get(id as usize).copied().unwrap_or_default() & !ABSENT
    }

    /// Storage `id` has another share.
    pub(crate) fn share(&self, id: u32) {
        if let Some(shares) = self.shares.borrow_mut().get_mut(id as usize) {
            *shares += 1;
        }
    }

    /// Storage `id` has one share less; without any it is freed.
    pub(crate) fn unshare(&self, id: u32) {
        if let Some(shares) = self.shares.borrow_mut().get_mut(id as usize) {
            if *shares & !ABSENT > 0 {
                *shares -= 1;
            }
            if *shares == 0 {
                self.push(Event::Free(id));
            }
        }
    }

    /// `bytes` of a layer's go to host memory.
    pub(crate) fn keep_on_host(&self, layer: u32, bytes: u64) {
        let mut host = self.host.borrow_mut();
        let at = layer as usize;
        if host.now.len() <= at {
            host.now.resize(at + 1, 0);
        }
        if let Some(kept) = host.now.get_mut(at) {
            *kept = kept.saturating_add(bytes);
        }
        if host.now.iter().sum::<u64>() > host.most.iter().sum() {
            host.most = host.now.clone();
        }
    }

    /// They are let go.
    pub(crate) fn leave_host(&self, layer: u32, bytes: u64) {
        if let Some(kept) = self.host.borrow_mut().now.get_mut(layer as usize) {
            *kept = kept.saturating_sub(bytes);
        }
    }

    /// What was kept in host memory when that was the most, by layer.
    pub(crate) fn take_host(&self) -> Vec<u64> {
        core::mem::take(&mut self.host.borrow_mut().most)
    }

    pub(crate) fn push(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }

    /// Whether some size exceeded what the arithmetic carries; the events are then meaningless.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflow.get()
    }

    pub(crate) fn take(&self) -> (Vec<Event>, Vec<TensorInfo>) {
        (self.events.take(), self.tensors.take())
    }
}

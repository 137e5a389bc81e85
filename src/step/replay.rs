//! The walk through the caching allocator: allocated and reserved memory, and whether a device of a size suffices.

use crate::allocator::{Allocator, BlockId, Config, OutOfMemory};
use crate::bill::{Instant, Part};
use crate::step::actors;
use crate::step::load::{QUANT_MAP, QUANT_STATE};
use crate::step::log::{Event, Mark, Phase, TensorInfo};
use crate::step::parallel::BUCKETS;
use crate::step::readings::{
    EvalReadings, Holder, LoadReadings, MicroReadings, PhaseReadings, PrepareReadings, Readings, StepReadings,
};
use crate::step::repeat::{Cursor, copies, storages};
use crate::step::train::Walk;
use crate::units::Bytes;

/// The walk ran out of memory on a device of limited size.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// In which step; none while the model was built.
    pub step: Option<u32>,
    /// In which column of the bill.
    pub instant: Instant,
    /// In which phase, if in another one than the training step.
    pub phase: Option<Phase>,
    /// The allocator's error.
    pub error: OutOfMemory,
}

/// Replays `walk` on an allocator of `config`.
///
/// # Errors
/// [`Failure`] where the device is too small.
pub fn replay(walk: &Walk, config: &Config) -> Result<Readings, Box<Failure>> {
    let mut run = Replay::new(walk, config);
    while !run.advance(walk, usize::MAX)? {}
    Ok(run.finish())
}

/// A replay that can pause between two events, for a front end that must not stand still.
#[derive(Debug)]
pub struct Replay {
    /// How far it has come.
    cursor: Cursor,
    allocator: Allocator,
    /// By storage, every layer written out.
    blocks: Vec<BlockId>,
    parts: Vec<Option<Part>>,
    /// Requested bytes per holder, and in all.
    live: [u64; 7],
    total: u64,
    /// The phase, and when in it the most was requested: how much, and by whom.
    phase: Option<Phase>,
    most: (u64, [u64; 7]),
    /// The peak of allocated memory before the phase began, since the last reset.
    carried: Bytes,
    /// What the optimizer holds itself: no master weights, scaler or averaged copy.
    optimizer_state: Bytes,
    /// Of gradients what is no parameter's `grad`.
    buckets: Bytes,
    out: Readings,
    instant: Instant,
    /// Allocated at the end of the last phase.
    last: Bytes,
}

impl Replay {
    /// A replay of `walk` before its first event.
    #[must_use]
    pub fn new(walk: &Walk, config: &Config) -> Self {
        let storages = storages(walk);
        Self {
            cursor: Cursor::of(walk),
            allocator: Allocator::new(config),
            blocks: vec![BlockId::NULL; storages],
            parts: vec![None; storages],
            live: [0; 7],
            total: 0,
            phase: walk.events.contains(&Event::Mark(Mark::Loaded)).then_some(Phase::Load),
            most: (0, [0; 7]),
            carried: Bytes::ZERO,
            optimizer_state: Bytes::ZERO,
            buckets: Bytes::ZERO,
            out: Readings { on_host: walk.on_host, ..Readings::default() },
            instant: Instant::Forward,
            last: Bytes::ZERO,
        }
    }

    /// Replays the next `events` of `walk`, which is the one it was made for. True once none is left.
    ///
    /// # Errors
    /// [`Failure`] where the device is too small; the replay is then over.
    pub fn advance(&mut self, walk: &Walk, events: usize) -> Result<bool, Box<Failure>> {
        for _ in 0..events {
            let Some((short, event)) = self.cursor.next(walk) else { return Ok(true) };
            self.apply(walk, short, event)?;
        }
        Ok(false)
    }

    /// What was read, once no event is left.
    #[must_use]
    pub fn finish(mut self) -> Readings {
        self.note();
        let stats = self.allocator.stats();
        if self.out.load.is_none() {
            self.made();
        }
        self.out.phases.sort_by_key(|p| p.phase);
        self.out.segments = stats.segments.current;
        self.out.num_alloc_retries = stats.num_alloc_retries;
        self.out
    }

    /// What making the model and wrapping it took counts as its loading, where that is more than its steps take.
    fn made(&mut self) {
        let out = &mut self.out;
        let Some(at) = out.phases.iter().position(|p| p.phase == Phase::Load) else { return };
        let PhaseReadings { allocated, reserved, .. } = out.phases[at];
        if allocated <= out.max_allocated && reserved <= out.max_reserved {
            out.phases.remove(at);
            return;
        }
        out.load = Some(LoadReadings {
            allocated: out.base,
            reserved: out.base_reserved,
            max_allocated: allocated,
            max_reserved: reserved,
        });
    }

    /// `short` is the number in the walk of the storage that the event is about.
    fn apply(&mut self, walk: &Walk, short: u32, event: Event) -> Result<(), Box<Failure>> {
        match event {
            Event::Alloc(id) => {
                let (at, info) = (id as usize, &walk.tensors[short as usize]);
                self.serves(at, info, Some(info.part));
                // Nothing is taken for zero bytes.
                self.blocks[at] = self.allocator.malloc(info.bytes.get(), info.stream as u32).map_err(|error| {
                    let step = u32::try_from(self.out.steps.len()).ok().and_then(|n| n.checked_sub(1));
                    let phase = self.phase.filter(|phase| *phase != Phase::Update);
                    Box::new(Failure { step, instant: self.instant, phase, error })
                })?;
            }
            Event::Free(id) => {
                let at = id as usize;
                self.serves(at, &walk.tensors[short as usize], None);
                self.allocator.free(core::mem::replace(&mut self.blocks[at], BlockId::NULL));
            }
            Event::Becomes(id, part) => self.serves(id as usize, &walk.tensors[short as usize], Some(part)),
            Event::Enter(instant) => self.instant = instant,
            Event::Layer(_) => {}
            Event::EmptyCache => self.allocator.empty_cache(),
            Event::Uses(id, stream) => self.allocator.record_stream(self.blocks[id as usize], stream as u32),
            Event::Sync(sync) => sync.apply(&mut self.allocator),
            Event::Mark(mark) => self.read(walk, mark),
        }
        Ok(())
    }

    /// Storage `at` serves `part` from here on.
    fn serves(&mut self, at: usize, info: &TensorInfo, part: Option<Part>) {
        let before = core::mem::replace(&mut self.parts[at], part);
        let of_optimizer = |part: Part| part == Part::States && info.scope == "optimizer";
        if let Some(part) = before {
            self.live[holder(part, info) as usize] -= info.bytes.get();
            self.total -= info.bytes.get();
            if of_optimizer(part) {
                self.optimizer_state = self.optimizer_state - info.bytes;
            }
            if info.scope == BUCKETS {
                self.buckets = self.buckets - info.bytes;
            }
        }
        if let Some(part) = part {
            self.live[holder(part, info) as usize] += info.bytes.get();
            self.total += info.bytes.get();
            if self.total > self.most.0 {
                self.most = (self.total, self.live);
            }
            if of_optimizer(part) {
                self.optimizer_state += info.bytes;
            }
            if info.scope == BUCKETS {
                self.buckets += info.bytes;
            }
        }
    }

    /// The peak of allocated memory since the last reset; keeps the run's and the phase's maxima.
    fn note(&mut self) -> Bytes {
        self.settle();
        let stats = self.allocator.stats();
        let out = &mut self.out;
        out.max_requested = out.max_requested.max(stats.requested.peak);
        out.max_allocated = out.max_allocated.max(stats.allocated.peak);
        out.max_reserved = out.max_reserved.max(stats.reserved.peak);
        out.inactive_split_max = out.inactive_split_max.max(stats.inactive_split.peak);
        stats.allocated.peak.max(self.carried)
    }

    fn reset(&mut self) {
        self.note();
        self.carried = Bytes::ZERO;
        self.allocator.reset_peaks();
    }

    /// Keeps the phase's maxima.
    fn settle(&mut self) {
        let Some(phase) = self.phase else { return };
        let stats = self.allocator.stats();
        let (allocated, reserved) = (stats.allocated.peak, stats.reserved.peak);
        let all = &mut self.out.phases;
        let at = all.iter().position(|p| p.phase == phase).unwrap_or_else(|| {
            all.push(PhaseReadings { phase, allocated, reserved, held: [Bytes::ZERO; 7] });
            all.len() - 1
        });
        if let Some(kept) = all.get_mut(at) {
            kept.allocated = kept.allocated.max(allocated);
            kept.reserved = kept.reserved.max(reserved);
            if self.most.0 > kept.held.iter().map(|b| b.get()).sum() {
                kept.held = self.most.1.map(Bytes);
            }
        }
        self.most = (0, [0; 7]);
    }

    /// What follows belongs to another phase, if to one that is told apart.
    fn turn_to(&mut self, phase: Option<Phase>) {
        self.phase = phase;
        self.most = (self.total, self.live);
    }

    fn read(&mut self, walk: &Walk, mark: Mark) {
        let now = self.allocator.stats().allocated.current;
        let held = |live: &[u64; 7], p: Holder| Bytes(live[p as usize]);
        match mark {
            Mark::Loaded => {
                self.phase = Some(Phase::Load);
                self.settle();
                let stats = self.allocator.stats();
                // A reference is loaded after the policy.
                let before = self.out.load.unwrap_or_default();
                self.out.load = Some(LoadReadings {
                    allocated: now,
                    reserved: stats.reserved.current,
                    max_allocated: before.max_allocated.max(stats.allocated.peak),
                    max_reserved: before.max_reserved.max(stats.reserved.peak),
                });
            }
            Mark::LoadedAndEmptied => {
                self.allocator.reset_peaks();
                self.last = now;
                self.turn_to(Some(Phase::Prepare));
            }
            Mark::Prepared => {
                self.settle();
                self.turn_to(Some(Phase::Load));
                let peak = self.allocator.stats().allocated.peak;
                self.out.prepare = Some(PrepareReadings { delta: difference(now, self.last), peak });
            }
            Mark::Base => {
                if self.out.load.is_none() && self.phase == Some(Phase::Load) {
                    self.settle();
                }
                // Loading's own peaks are apart; what came after counts.
                self.turn_to(None);
                if self.out.load.is_some() {
                    self.note();
                }
                self.allocator.reset_peaks();
                let bytes = |t: &TensorInfo| t.bytes.get() * copies(walk, t);
                let apart = |op: &str| walk.tensors.iter().filter(|t| t.op == op).map(bytes).sum();
                self.out.quant_state = Bytes(apart(QUANT_STATE));
                let states = self.out.quant_state.get() + apart(QUANT_MAP);
                self.out.params = held(&self.live, Holder::Weights).saturating_sub(Bytes(states));
                self.out.base = now;
                self.out.base_reserved = self.allocator.stats().reserved.current;
            }
            Mark::Step => {
                self.reset();
                self.turn_to(Some(Phase::Update));
                self.out.steps.push(StepReadings { base: now, ..StepReadings::default() });
            }
            Mark::MicroBatch => {
                self.reset();
                self.last = now;
                self.micro(|m| m.push(MicroReadings { base: now, ..MicroReadings::default() }));
            }
            Mark::Inputs => self.micro(|m| on_last(m, |m| m.inputs = difference(now, m.base))),
            Mark::ForwardEnd => {
                let peak = self.note();
                self.reset();
                self.last = now;
                self.micro(|m| {
                    on_last(m, |m| {
                        m.forward_delta = difference(now, m.base);
                        m.forward_peak = peak;
                    });
                });
            }
            Mark::BackwardEnd => {
                let (peak, before) = (self.note(), self.last);
                self.reset();
                self.last = now;
                self.micro(|m| {
                    on_last(m, |m| {
                        m.backward_delta = difference(now, before);
                        m.backward_peak = peak;
                        m.after_backward = now;
                    });
                });
            }
            Mark::ClipEnd => {}
            Mark::Phase(phase) => {
                self.carried = self.note();
                self.allocator.reset_peaks();
                self.turn_to(Some(phase));
            }
            Mark::StepEnd => {
                let (peak, before) = (self.note(), self.last);
                let grads = held(&self.live, Holder::Gradients) - self.buckets;
                self.out.optimizer_state = self.optimizer_state;
                self.step(|s| {
                    s.step_peak = peak;
                    s.step_delta = difference(now, before);
                    s.after_step = now;
                    s.grads = grads;
                });
                self.reset();
            }
            Mark::EmaEnd => {
                let peak = self.note();
                self.step(|s| s.ema_peak = Some(peak));
            }
            Mark::Evaluation => {
                self.reset();
                self.turn_to(Some(Phase::Evaluation));
                self.out.eval = Some(EvalReadings { base: now, ..EvalReadings::default() });
            }
            Mark::EvaluationEnd => {
                let (peak, reserved) = (self.note(), self.allocator.stats().reserved.current);
                if let Some(eval) = &mut self.out.eval {
                    *eval = EvalReadings { delta: difference(now, eval.base), peak, reserved, ..*eval };
                }
            }
            Mark::ZeroGradEnd => {
                let stats = self.allocator.stats();
                self.step(|s| {
                    s.after_zero_grad = now;
                    s.reserved_end = stats.reserved.current;
                    s.inactive_split_end = stats.inactive_split.current;
                    close_micro(s);
                });
            }
        }
    }

    fn step(&mut self, change: impl FnOnce(&mut StepReadings)) {
        if let Some(step) = self.out.steps.last_mut() {
            change(step);
        }
    }

    fn micro(&mut self, change: impl FnOnce(&mut Vec<MicroReadings>)) {
        self.step(|s| change(&mut s.micro));
    }
}

fn on_last(micro: &mut [MicroReadings], change: impl FnOnce(&mut MicroReadings)) {
    if let Some(last) = micro.last_mut() {
        change(last);
    }
}

/// The step's own forward and backward are those of its first micro-batch; a single one is not listed.
fn close_micro(s: &mut StepReadings) {
    if let Some(first) = s.micro.first() {
        s.inputs = Bytes(u64::try_from(first.inputs).unwrap_or(0));
        s.forward_delta = first.forward_delta;
        s.forward_peak = first.forward_peak;
        s.backward_delta = first.backward_delta;
        s.backward_peak = first.backward_peak;
    }
    if s.micro.len() == 1 {
        s.micro.clear();
    }
}

/// Whose a tensor is.
fn holder(part: Part, info: &TensorInfo) -> Holder {
    match part {
        Part::Weights if actors::OTHERS.contains(&info.op) => Holder::OtherModels,
        Part::Weights => Holder::Weights,
        Part::States => Holder::States,
        Part::Gradients => Holder::Gradients,
        Part::Activations if info.op == actors::CACHE => Holder::Cache,
        Part::Activations => Holder::Activations,
        Part::Temporary => Holder::Temporary,
    }
}

/// `a - b`; sizes stay far below 2⁶³.
fn difference(a: Bytes, b: Bytes) -> i64 {
    i64::try_from(i128::from(a.get()) - i128::from(b.get())).unwrap_or(0)
}

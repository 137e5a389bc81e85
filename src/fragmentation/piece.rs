//! A walk cut where steps and micro-batches begin, so that those of different lengths can follow one another.
//!
//! Whatever its length, a step of one recipe runs the same program: what is alive where a piece begins is the same list of
//! tensors, in the order in which they were allocated. So the pieces of walks at different lengths join at these points.

use crate::step::log::{Event, Mark, Phase, Stream, Sync};
use crate::step::repeat::expand;
use crate::step::train::Walk;

/// One thing that a piece asks of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// So many bytes on a stream, for the next number.
    Alloc(u64, Stream),
    /// The block of this number is freed.
    Free(u32),
    /// Another stream uses the block of this number.
    Uses(u32, Stream),
    /// A stream or the host waits.
    Sync(Sync),
}

/// A stretch of a walk between two points at which pieces join. What was alive when it began has the first numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) ops: Vec<Op>,
    /// Bytes of what was alive when it began.
    pub(super) inputs: Vec<u64>,
    /// The numbers of what is alive when it ends, in the order in which the next piece expects them.
    pub(super) keeps: Vec<u32>,
}

/// A step in pieces: its micro-batches, as many as were walked, and the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) micro_batches: Vec<Piece>,
    pub(super) update: Piece,
}

impl Step {
    /// How much it asks of the allocator.
    pub(super) fn ops(&self) -> usize {
        self.micro_batches.iter().chain([&self.update]).map(|piece| piece.ops.len()).sum()
    }
}

/// A walk of a first and a steady step in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pieces {
    /// Until the first step begins.
    pub(super) build: Piece,
    pub(super) first: Step,
    pub(super) steady: Step,
}

impl Pieces {
    /// Cuts `walk`, whose own emptying of the cache before the first step, a measurement's, is left out. `None`: the steady step leaves other tensors behind than it found, so that no further one can follow.
    pub(super) fn of(walk: &Walk) -> Option<Self> {
        let walk = expand(walk);
        let mut cutter = Cutter::new(&walk);
        let (mut build, mut steps, mut step) = (None, Vec::new(), Step::default());
        // What the step found.
        let mut found = Vec::new();
        for event in &walk.events {
            match *event {
                Event::Alloc(id) => cutter.alloc(id),
                Event::Free(id) => cutter.free(id),
                Event::Uses(id, stream) => cutter.ops.push(Op::Uses(cutter.numbers[id as usize], stream)),
                Event::Sync(sync) => cutter.ops.push(Op::Sync(sync)),
                // Generation and scoring have lengths of their own.
                Event::Mark(Mark::Phase(phase)) if (Phase::Generation..Phase::Update).contains(&phase) => return None,
                Event::Mark(Mark::Step) if build.is_none() => build = Some(cutter.cut(cutter.alive())),
                Event::Mark(Mark::BackwardEnd) => step.micro_batches.push(cutter.cut(cutter.alive())),
                Event::Mark(Mark::ZeroGradEnd) => {
                    // The first step adds states; what the second one leaves is what it begins with the next time.
                    let left = if steps.is_empty() { cutter.alive() } else { cutter.again(&found)? };
                    step.update = cutter.cut(left);
                    steps.push(core::mem::take(&mut step));
                    found.clone_from(&cutter.inputs);
                }
                _ => {}
            }
        }
        let [first, steady] = <[Step; 2]>::try_from(steps).ok()?;
        Some(Self { build: build?, first, steady })
    }
}

struct Cutter<'a> {
    walk: &'a Walk,
    /// By the walk's numbers.
    alive: Vec<bool>,
    /// A storage's number in the piece, by the walk's.
    numbers: Vec<u32>,
    /// What was alive when the piece began, by the walk's numbers.
    inputs: Vec<u32>,
    next: u32,
    ops: Vec<Op>,
}

impl<'a> Cutter<'a> {
    fn new(walk: &'a Walk) -> Self {
        let storages = walk.tensors.len();
        let (alive, numbers) = (vec![false; storages], vec![0; storages]);
        Self { walk, alive, numbers, inputs: Vec::new(), next: 0, ops: Vec::new() }
    }

    fn bytes(&self, id: u32) -> u64 {
        self.walk.tensors[id as usize].bytes.get()
    }

    fn alloc(&mut self, id: u32) {
        self.alive[id as usize] = true;
        self.numbers[id as usize] = self.next;
        self.next += 1;
        self.ops.push(Op::Alloc(self.bytes(id), self.walk.tensors[id as usize].stream));
    }

    fn free(&mut self, id: u32) {
        self.alive[id as usize] = false;
        self.ops.push(Op::Free(self.numbers[id as usize]));
    }

    /// What is alive, oldest first.
    fn alive(&self) -> Vec<u32> {
        (0..).zip(&self.alive).filter(|(_, alive)| **alive).map(|(id, _)| id).collect()
    }

    /// What is alive, in the order of `found`: what was freed is replaced by the oldest newcomer of its size.
    fn again(&self, found: &[u32]) -> Option<Vec<u32>> {
        let mut new = self.alive();
        if new == found {
            return Some(new);
        }
        new.retain(|id| !found.contains(id));
        let mut of = |&id: &u32| {
            if self.alive[id as usize] {
                return Some(id);
            }
            let at = new.iter().position(|n| self.bytes(*n) == self.bytes(id))?;
            Some(new.remove(at))
        };
        let left = found.iter().map(&mut of).collect();
        if new.is_empty() { left } else { None }
    }

    /// Ends the piece: `left` is alive, and the next one begins with it.
    fn cut(&mut self, left: Vec<u32>) -> Piece {
        let keeps = left.iter().map(|id| self.numbers[*id as usize]).collect();
        let inputs = self.inputs.iter().map(|id| self.bytes(*id)).collect();
        for (number, id) in (0..).zip(&left) {
            self.numbers[*id as usize] = number;
        }
        self.next = u32::try_from(left.len()).unwrap_or(u32::MAX);
        self.inputs = left;
        Piece { ops: core::mem::take(&mut self.ops), inputs, keeps }
    }
}

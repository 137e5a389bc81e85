//! A training loop over batches of many lengths, on one allocator.

use std::collections::{BTreeMap, BTreeSet};

use super::piece::{Op, Piece, Pieces, Step};
use crate::allocator::{Allocator, BlockId, Config, OutOfMemory};
use crate::estimate::Job;
use crate::issue::{Issue, IssueKind};
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::units::Bytes;

/// The most that all walked lengths together ask of the allocator: it bounds a program's memory.
const MAX_OPS: usize = 1 << 25;

/// A training loop's steps, each with the padded lengths of its micro-batches, walked once for each length.
#[derive(Clone, Debug)]
pub struct Program {
    build: Piece,
    /// Of the first step, by length.
    first: BTreeMap<u64, Step>,
    /// Of every further one.
    steady: BTreeMap<u64, Step>,
    steps: Vec<Vec<u64>>,
}

/// A [`Program`] that is being made, one length after the other: a front end can show how far it is, and stop.
#[derive(Clone, Debug)]
pub struct Walks {
    program: Program,
    plan: Plan,
    precision: Precision,
    /// What further lengths may ask of the allocator.
    left: usize,
    /// Lengths that are not walked yet, the next one last.
    todo: Vec<u64>,
}

impl Walks {
    /// Before the first length of `steps`, as [`Program::new`].
    ///
    /// # Errors
    /// [`IssueKind::NotModelled`] where there is nothing to walk.
    pub fn new(plan: &Plan, steps: Vec<Vec<u64>>) -> Result<Self, Vec<Issue>> {
        let precision = match plan.recipe.precision {
            Some(Precision::RuleOfThumb) => return Err(vec![not_modelled("steps of the rule of thumb")]),
            precision => precision.unwrap_or(Precision::AmpBf16),
        };
        let mut plan = plan.clone();
        plan.recipe.eval_after = false;
        let most = steps.iter().map(Vec::len).max().unwrap_or_default();
        plan.recipe.grad_accum = u64::try_from(most).unwrap_or(u64::MAX);
        let mut known = BTreeSet::new();
        let mut todo: Vec<u64> = steps.iter().flatten().copied().filter(|length| known.insert(*length)).collect();
        todo.reverse();
        let program = Program { build: Piece::default(), first: BTreeMap::new(), steady: BTreeMap::new(), steps };
        Ok(Self { program, plan, precision, left: MAX_OPS, todo })
    }

    /// How many lengths are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.todo.len()
    }

    /// Walks the next length, where there is one.
    ///
    /// # Errors
    /// Every issue of the plan at this length; [`IssueKind::NotModelled`] where steps of this recipe do not follow one
    /// another; [`IssueKind::TooLarge`] where all lengths together ask too much.
    pub fn walk(&mut self) -> Result<(), Vec<Issue>> {
        let Some(length) = self.todo.pop() else { return Ok(()) };
        self.plan.recipe.seq_len = length;
        let walk = Job::of(&self.plan)?.walk_short(&self.plan, self.precision)?;
        let pieces = Pieces::of(&walk).ok_or_else(|| vec![not_modelled("a run of many steps of this recipe")])?;
        let Pieces { build, first, steady } = pieces;
        let left = self.left.checked_sub(steady.ops());
        self.left = left.ok_or_else(|| vec![Issue::new("lengths", IssueKind::TooLarge)])?;
        let program = &mut self.program;
        if program.steps.first().is_some_and(|lengths| lengths.contains(&length)) {
            if program.first.is_empty() {
                program.build = build;
            }
            program.first.insert(length, first);
        }
        program.steady.insert(length, steady);
        Ok(())
    }

    /// The program, once all lengths are walked.
    ///
    /// # Errors
    /// As [`Program::new`].
    pub fn finish(mut self) -> Result<Program, Vec<Issue>> {
        while self.left() > 0 {
            self.walk()?;
        }
        if self.program.joins() {
            Ok(self.program)
        } else {
            Err(vec![not_modelled("steps of different lengths of this recipe")])
        }
    }
}

impl Program {
    /// Walks `plan` at every length in `steps`: of each step, its micro-batches' padded lengths. What the plan says of
    /// lengths, of the number of micro-batches and of an evaluation after the steps is not looked at.
    ///
    /// # Errors
    /// Every issue of the plan at some length; [`IssueKind::NotModelled`] where steps of this recipe do not follow one
    /// another, or there is no step.
    pub fn new(plan: &Plan, steps: Vec<Vec<u64>>) -> Result<Self, Vec<Issue>> {
        Walks::new(plan, steps)?.finish()
    }

    /// The steps, each with the padded lengths of its micro-batches.
    #[must_use]
    pub fn steps(&self) -> &[Vec<u64>] {
        &self.steps
    }

    /// Whether every piece finds what any other that may come before it leaves.
    fn joins(&self) -> bool {
        let Some(any) = self.steady.values().next() else { return false };
        let found = |step: &Step| step.micro_batches.first().map(|piece| piece.inputs.clone());
        let counts = |step: &Step| {
            let micro = step.micro_batches.iter().flat_map(|piece| [piece.inputs.len(), piece.keeps.len()]);
            micro.chain([step.update.inputs.len(), step.update.keeps.len()]).collect::<Vec<_>>()
        };
        let steady_alike = self.steady.values().all(|step| found(step) == found(any) && counts(step) == counts(any));
        let first_alike = self.first.values().all(|step| {
            step.micro_batches.first().is_some_and(|piece| piece.inputs.len() == self.build.keeps.len())
                && step.update.keeps.len() == any.update.keeps.len()
                && self.first.values().all(|other| counts(other) == counts(step))
        });
        steady_alike && first_alike
    }
}

fn not_modelled(what: &str) -> Issue {
    Issue::new("lengths", IssueKind::NotModelled { what: what.into() })
}

/// What one step read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepFigures {
    /// The most allocated at once in it.
    pub peak_allocated: Bytes,
    /// The most reserved at once in it.
    pub peak_reserved: Bytes,
    /// Allocated at its end.
    pub allocated: Bytes,
    /// Reserved at its end.
    pub reserved: Bytes,
    /// Free blocks in segments that are in use, at its end.
    pub inactive_split: Bytes,
    /// Times so far that the cache was given back to make room.
    pub retries: u64,
}

/// A [`Program`] on one allocator, step by step.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    program: &'a Program,
    allocator: Allocator,
    empty_cache: bool,
    at: usize,
    /// What is alive between pieces.
    live: Vec<BlockId>,
    /// By the piece's numbers.
    blocks: Vec<BlockId>,
}

impl<'a> Run<'a> {
    /// Before the model is built. With `empty_cache`, the loop calls `torch.cuda.empty_cache()` after every step.
    #[must_use]
    pub fn new(program: &'a Program, config: &Config, empty_cache: bool) -> Self {
        let allocator = Allocator::new(config);
        Self { program, allocator, empty_cache, at: 0, live: Vec::new(), blocks: Vec::new() }
    }

    /// The next step, the first one after the model is built; `None` once there is no other.
    ///
    /// # Errors
    /// The step ran out of memory. The run is then over.
    pub fn step(&mut self) -> Result<Option<StepFigures>, OutOfMemory> {
        let program = self.program;
        let Some(lengths) = program.steps.get(self.at) else { return Ok(None) };
        let of = if self.at == 0 { &program.first } else { &program.steady };
        if self.at == 0 {
            self.play(&program.build)?;
        }
        self.at += 1;
        self.allocator.reset_peaks();
        let mut last = None;
        for (n, step) in lengths.iter().filter_map(|length| of.get(length)).enumerate() {
            // From the last walked one on, micro-batches are alike.
            if let Some(piece) = step.micro_batches.get(n).or(step.micro_batches.last()) {
                self.play(piece)?;
            }
            last = Some(step);
        }
        if let Some(step) = last {
            self.play(&step.update)?;
        }
        let peaks = self.allocator.stats();
        if self.empty_cache {
            self.allocator.empty_cache();
        }
        let now = self.allocator.stats();
        Ok(Some(StepFigures {
            peak_allocated: peaks.allocated.peak,
            peak_reserved: peaks.reserved.peak,
            allocated: now.allocated.current,
            reserved: now.reserved.current,
            inactive_split: now.inactive_split.current,
            retries: now.num_alloc_retries,
        }))
    }

    /// Which step ran out of memory, counted from 1; 0 while the model was built.
    #[must_use]
    pub fn step_in_hand(&self) -> usize {
        self.at
    }

    fn play(&mut self, piece: &Piece) -> Result<(), OutOfMemory> {
        self.blocks.clear();
        self.blocks.append(&mut self.live);
        for op in &piece.ops {
            match *op {
                Op::Alloc(bytes, stream) => self.blocks.push(self.allocator.malloc(bytes, stream as u32)?),
                Op::Uses(number, stream) => {
                    if let Some(block) = self.blocks.get(number as usize) {
                        self.allocator.record_stream(*block, stream as u32);
                    }
                }
                Op::Sync(sync) => sync.apply(&mut self.allocator),
                Op::Free(number) => {
                    if let Some(block) = self.blocks.get_mut(number as usize) {
                        self.allocator.free(core::mem::replace(block, BlockId::NULL));
                    }
                }
            }
        }
        let kept = piece.keeps.iter().map(|number| self.blocks.get(*number as usize).copied().unwrap_or(BlockId::NULL));
        self.live.extend(kept);
        Ok(())
    }
}

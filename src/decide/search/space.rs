//! What a search may vary, and the plans that this gives.

use crate::machine::{GpuChoice, Machine};
use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, Ddp, DeepSpeed, Fsdp1, Fsdp2};
use crate::recipe::{Checkpointing, FloatName, MAX_GRAD_ACCUM, Optimizer, OptimizerName, Parallel, Precision};

/// What every plan of a search has in common: how much is learned from in one step of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Sequences, of all ranks: the global batch.
    Sequences(u64),
    /// Tokens, of all ranks.
    Tokens(u64),
}

impl Target {
    /// The global batch of `plan` as it is.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let recipe = &plan.recipe;
        let all = recipe.micro_batch.saturating_mul(recipe.grad_accum);
        Self::Sequences(all.saturating_mul(plan.parallel.data_ranks().max(1)))
    }

    /// The micro-batches that a rank accumulates, where that comes out even.
    fn accumulation(self, micro_batch: u64, seq_len: u64, ranks: u64) -> Option<u64> {
        let (all, one) = match self {
            Self::Sequences(all) => (all, Some(micro_batch)),
            Self::Tokens(all) => (all, micro_batch.checked_mul(seq_len)),
        };
        let one = one?.checked_mul(ranks.max(1))?;
        (one > 0 && all.is_multiple_of(one)).then_some(all / one).filter(|n| (1..=MAX_GRAD_ACCUM).contains(n))
    }
}

/// What may vary. Every list has the plan's own choice alone, unless more is asked for; the plans are all combinations that
/// give the target.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// Sequences per micro-batch.
    pub micro_batches: Vec<u64>,
    /// Tokens per sequence.
    pub seq_lens: Vec<u64>,
    /// Checkpointing.
    pub checkpointing: Vec<Checkpointing>,
    /// Optimizers and their implementations.
    pub optimizers: Vec<Optimizer>,
    /// Layouts over GPUs.
    pub layouts: Vec<Parallel>,
    /// Machines.
    pub machines: Vec<Machine>,
    /// What a step learns from.
    pub target: Target,
}

impl Space {
    /// `plan` alone.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let recipe = &plan.recipe;
        Self {
            micro_batches: vec![recipe.micro_batch],
            seq_lens: vec![recipe.seq_len],
            checkpointing: vec![recipe.checkpointing],
            optimizers: vec![recipe.optimizer],
            layouts: vec![plan.parallel.clone()],
            machines: vec![plan.machine.clone()],
            target: Target::of(plan),
        }
    }

    /// What is tried around `plan` where nothing else is asked for: every micro-batch, three levels of checkpointing, the
    /// optimizer in all its implementations.
    #[must_use]
    pub fn around(plan: &Plan) -> Self {
        let mut space = Self::of(plan);
        space.every_micro_batch();
        space.checkpointing = vec![Checkpointing::None, Checkpointing::Selective, Checkpointing::Full];
        space.every_implementation(plan.recipe.optimizer, &[plan.recipe.optimizer.name]);
        space
    }

    /// Tries these optimizers, each in all its implementations, all else as of `own`.
    pub fn every_implementation(&mut self, own: Optimizer, names: &[OptimizerName]) {
        self.optimizers.clear();
        for &name in names {
            let with = |implementation| Optimizer { name, implementation, ..own };
            match name.implementations() {
                [] => self.optimizers.push(with(None)),
                all => self.optimizers.extend(all.iter().map(|one| with(Some(*one)))),
            }
        }
    }

    /// Tries cards of the catalogue too. What others hold and what was said of a context belongs to the plan's own card.
    pub fn add_gpus(&mut self, names: impl IntoIterator<Item = String>) {
        let machine = |name| Machine { gpu: Some(GpuChoice::Catalogue(name)), ..Machine::default() };
        self.machines.extend(names.into_iter().map(machine));
    }

    /// The ways to spread the job over `ranks` GPUs by data parallelism alone, with their defaults.
    pub fn every_layout(&mut self, ranks: u64, precision: Option<Precision>) {
        let dtype = match precision {
            Some(Precision::Fp32) => FloatName::Float32,
            Some(Precision::PureFp16) => FloatName::Float16,
            _ => FloatName::Bfloat16,
        };
        let zero = |stage| DataParallel::DeepSpeed(DeepSpeed { stage, dtype, ..DeepSpeed::default() });
        let data = [
            DataParallel::Ddp(Ddp::default()),
            zero(1),
            zero(2),
            zero(3),
            DataParallel::Fsdp1(Fsdp1::default()),
            DataParallel::Fsdp2(Fsdp2::default()),
        ];
        let cluster = self.layouts.first().map_or_else(Parallel::default, |own| Parallel::default().in_cluster_of(own));
        self.layouts = data.map(|data| Parallel { world_size: ranks, data, ..cluster.clone() }).into();
    }

    /// Every way to accumulate to the target: the micro-batches that are powers of two.
    pub fn every_micro_batch(&mut self) {
        let (Target::Sequences(most) | Target::Tokens(most)) = self.target;
        let most = most.min(crate::recipe::MAX_MICRO_BATCH);
        self.micro_batches =
            core::iter::successors(Some(1u64), |n| n.checked_mul(2)).take_while(|n| *n <= most).collect();
    }

    pub(super) fn groups(&self) -> usize {
        self.micro_batches.len() * self.seq_lens.len() * self.checkpointing.len() * self.layouts.len()
    }

    /// The plans of a group: all that differ in optimizer and machine alone. None where the target does not come out.
    pub(super) fn group(&self, at: usize) -> Option<Group> {
        let (at, micro_batch) = split(at, self.micro_batches.len());
        let (at, checkpointing) = split(at, self.checkpointing.len());
        let (layout, seq_len) = split(at, self.seq_lens.len());
        let (b, s) = (self.micro_batches[micro_batch], self.seq_lens[seq_len]);
        let grad_accum = self.target.accumulation(b, s, self.layouts[layout].data_ranks())?;
        let checkpointing = self.checkpointing[checkpointing];
        Some(Group { micro_batch: b, seq_len: s, grad_accum, checkpointing, layout })
    }

    /// Makes `plan` the one of `group` with an optimizer and a machine.
    pub(super) fn apply(&self, plan: &mut Plan, group: &Group, [optimizer, machine]: [usize; 2]) {
        let recipe = &mut plan.recipe;
        recipe.micro_batch = group.micro_batch;
        recipe.seq_len = group.seq_len;
        recipe.grad_accum = group.grad_accum;
        recipe.checkpointing = group.checkpointing;
        recipe.optimizer = self.optimizers[optimizer];
        plan.parallel.clone_from(&self.layouts[group.layout]);
        plan.machine.clone_from(&self.machines[machine]);
    }
}

fn split(at: usize, len: usize) -> (usize, usize) {
    (at / len, at % len)
}

/// What the plans of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Group {
    pub(super) micro_batch: u64,
    pub(super) seq_len: u64,
    pub(super) grad_accum: u64,
    pub(super) checkpointing: Checkpointing,
    pub(super) layout: usize,
}

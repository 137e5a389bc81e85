//! Every rank of a pipeline, or GPU of a process: what each holds at its own peak, and which one holds the most.

use serde::Serialize;

use super::Job;
use crate::bill::{self, Instant, PartBytes};
use crate::issue::Issue;
use crate::model::family::Gpt;
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::recipe::parallel::{DataParallel, Dp, Megatron, Parallel};
use crate::step::megatron::stage;
use crate::units::Bytes;

/// What a pipeline rank, or a GPU under `nn.DataParallel`, holds, in requested bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankEstimate {
    /// The rank, from 0.
    pub rank: u64,
    /// Layers on it.
    pub layers: u64,
    /// Whether the input embedding is on it.
    pub embedding: bool,
    /// Whether the head and the loss are on it.
    pub head: bool,
    /// Micro-batches that are between forward and backward at once, counted for each chunk that they are in.
    pub in_flight: u64,
    /// The instant of its peak.
    pub instant: Instant,
    /// What it holds then.
    pub parts: PartBytes,
    /// The sum.
    pub peak_bytes: Bytes,
}

/// How many ranks are listed at each end of a pipeline, and how many GPUs of a process.
const MAX_LISTED: u64 = 32;

/// Every rank of the plan's pipeline, or GPU of its process, by its rules alone: no allocator is replayed. Empty for a plan whose
/// ranks are alike.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn ranks(plan: &Plan) -> Result<Vec<RankEstimate>, Vec<Issue>> {
    let Some(mut walk) = RankWalk::of(plan)? else { return Ok(Vec::new()) };
    while !walk.advance()? {}
    Ok(walk.found)
}

/// Whether ranks of the plan hold more than others, so that a table of them says something.
#[must_use]
pub fn ranks_differ(plan: &Plan) -> bool {
    let of = &plan.parallel;
    let pipeline = matches!(of.data, DataParallel::Megatron(_)) && of.pipeline > 1;
    plan.recipe.precision != Some(Precision::RuleOfThumb)
        && (pipeline || matches!(of.data, DataParallel::Dp(_)) && of.world_size > 1)
}

/// The ranks of a plan in hand, one walked after the other.
#[derive(Debug)]
pub struct RankWalk {
    plan: Plan,
    job: Job,
    /// What a pipeline cuts; `None`: the GPUs of a process, those beside the first alike.
    pipeline: Option<(Gpt, Megatron)>,
    /// Ranks to walk, the last one first.
    left: Vec<u64>,
    found: Vec<RankEstimate>,
}

impl RankWalk {
    /// The ranks of `plan`, none walked yet. `None`: they are alike.
    ///
    /// # Errors
    /// Every issue of the plan, one per field.
    pub fn of(plan: &Plan) -> Result<Option<Self>, Vec<Issue>> {
        if plan.recipe.precision == Some(Precision::RuleOfThumb) {
            return Ok(None);
        }
        let (job, pipeline, left) = match &plan.parallel.data {
            DataParallel::Megatron(options) => {
                let job = Job::of(plan)?;
                let Some(gpt) = job.model.megatron() else { return Ok(None) };
                // Between its ends a long pipeline is listed no further.
                let stages = plan.parallel.pipeline;
                let listed = |rank: &u64| *rank < MAX_LISTED || stages - rank <= MAX_LISTED;
                (job, Some((gpt, options.clone())), (0..stages).filter(listed).rev().collect())
            }
            DataParallel::Dp(_) if plan.parallel.world_size > 1 => (Job::of(plan)?, None, vec![1, 0]),
            _ => return Ok(None),
        };
        Ok(Some(Self { plan: plan.clone(), job, pipeline, left, found: Vec::new() }))
    }

    /// Walks the next rank. True once none is left.
    ///
    /// # Errors
    /// Every issue of the plan, one per field.
    pub fn advance(&mut self) -> Result<bool, Vec<Issue>> {
        if let Some(rank) = self.left.pop() {
            let of = match &self.pipeline {
                Some((gpt, options)) => self.stage(gpt, options, rank)?,
                None => self.gpu(rank)?,
            };
            self.found.push(of);
        }
        if self.left.is_empty() && self.pipeline.is_none() && self.found.len() == 2 {
            let others = 2..self.plan.parallel.world_size.min(MAX_LISTED);
            let like = self.found[1].clone();
            self.found.extend(others.map(|rank| RankEstimate { rank, ..like.clone() }));
        }
        Ok(self.left.is_empty())
    }

    /// How many ranks are walked, and of how many.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        (self.found.len(), self.found.len() + self.left.len())
    }

    /// Those walked.
    #[must_use]
    pub fn ranks(&self) -> &[RankEstimate] {
        &self.found
    }

    /// What a rank with `data` holds at its peak.
    fn peak(&self, data: DataParallel, unnamed: Precision) -> Result<(Plan, Instant, PartBytes), Vec<Issue>> {
        let Self { plan, job, .. } = self;
        let plan = Plan { parallel: Parallel { data, ..plan.parallel.clone() }, ..plan.clone() };
        let walk = job.walk_steady(&plan, plan.recipe.precision.unwrap_or(unnamed))?;
        let (bill, _) = bill::bill(&walk, job.model.symbols(&plan.recipe), super::sources(&plan));
        let parts = bill.column(bill.binding).parts;
        Ok((plan, bill.binding, parts))
    }

    fn gpu(&self, rank: u64) -> Result<RankEstimate, Vec<Issue>> {
        let (_, instant, parts) = self.peak(DataParallel::Dp(Dp { gpu: rank }), Precision::AmpBf16)?;
        let layers = self.job.model.layers();
        let peak_bytes = parts.total();
        Ok(RankEstimate { rank, layers, embedding: true, head: true, in_flight: 1, instant, parts, peak_bytes })
    }

    fn stage(&self, gpt: &Gpt, options: &Megatron, rank: u64) -> Result<RankEstimate, Vec<Issue>> {
        let data = DataParallel::Megatron(Megatron { rank: Some(rank), ..options.clone() });
        let (plan, instant, parts) = self.peak(data, Precision::Bf16Master)?;
        let (layers, in_flight) = stage(gpt, &plan, rank);
        Ok(RankEstimate {
            rank,
            layers,
            embedding: rank == 0,
            head: rank + 1 == plan.parallel.pipeline,
            in_flight,
            instant,
            parts,
            peak_bytes: parts.total(),
        })
    }
}

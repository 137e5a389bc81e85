//! Every rank of a pipeline, or GPU of a process: what each holds at its own peak, and which one holds the most.

use serde::Serialize;

use super::Job;
use crate::bill::{self, Instant, PartBytes};
use crate::issue::Issue;
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
    if plan.recipe.precision == Some(Precision::RuleOfThumb) {
        return Ok(Vec::new());
    }
    match &plan.parallel.data {
        DataParallel::Megatron(options) => pipeline(plan, options),
        DataParallel::Dp(_) if plan.parallel.world_size > 1 => gpus(plan),
        _ => Ok(Vec::new()),
    }
}

/// What `data` holds at its peak, one of the plan's ranks.
fn peak(
    job: &Job,
    plan: &Plan,
    data: DataParallel,
    precision: Precision,
) -> Result<(Plan, Instant, PartBytes), Vec<Issue>> {
    let plan = Plan { parallel: Parallel { data, ..plan.parallel.clone() }, ..plan.clone() };
    let walk = job.walk_steady(&plan, precision)?;
    let (bill, _) = bill::bill(&walk, job.model.symbols(&plan.recipe), super::sources(&plan));
    let parts = bill.column(bill.binding).parts;
    Ok((plan, bill.binding, parts))
}

/// The GPUs of a process: those beside the first are alike.
fn gpus(plan: &Plan) -> Result<Vec<RankEstimate>, Vec<Issue>> {
    let job = Job::of(plan)?;
    let precision = plan.recipe.precision.unwrap_or(Precision::AmpBf16);
    let of = |rank: u64| -> Result<RankEstimate, Vec<Issue>> {
        let (_, instant, parts) = peak(&job, plan, DataParallel::Dp(Dp { gpu: rank }), precision)?;
        let layers = job.model.layers();
        let peak_bytes = parts.total();
        Ok(RankEstimate { rank, layers, embedding: true, head: true, in_flight: 1, instant, parts, peak_bytes })
    };
    let (first, second) = (of(0)?, of(1)?);
    let others = (1..plan.parallel.world_size.min(MAX_LISTED)).map(|rank| RankEstimate { rank, ..second.clone() });
    Ok(core::iter::once(first).chain(others).collect())
}

fn pipeline(plan: &Plan, options: &Megatron) -> Result<Vec<RankEstimate>, Vec<Issue>> {
    let job = Job::of(plan)?;
    let Some(gpt) = job.model.megatron() else { return Ok(Vec::new()) };
    let precision = plan.recipe.precision.unwrap_or(Precision::Bf16Master);
    let of = |rank: u64| {
        let data = DataParallel::Megatron(Megatron { rank: Some(rank), ..options.clone() });
        let (plan, instant, parts) = peak(&job, plan, data, precision)?;
        let (layers, in_flight) = stage(&gpt, &plan, rank);
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
    };
    // Between its ends a long pipeline is listed no further.
    let stages = plan.parallel.pipeline;
    (0..stages).filter(|rank| *rank < MAX_LISTED || stages - rank <= MAX_LISTED).map(of).collect()
}

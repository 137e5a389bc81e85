//! Every rank of a pipeline: what each holds at its own peak, and which one holds the most.

use serde::Serialize;

use super::Job;
use crate::bill::{self, Instant, PartBytes};
use crate::issue::Issue;
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::recipe::parallel::{DataParallel, Megatron, Parallel};
use crate::step::megatron::stage;
use crate::units::Bytes;

/// What a pipeline rank holds, in requested bytes.
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

/// How many ranks are listed at each end of a pipeline.
const MAX_LISTED: u64 = 32;

/// Every rank of the plan's pipeline, by its rules alone: no allocator is replayed. Empty for a plan without a pipeline of
/// ranks that differ.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn ranks(plan: &Plan) -> Result<Vec<RankEstimate>, Vec<Issue>> {
    let DataParallel::Megatron(options) = &plan.parallel.data else { return Ok(Vec::new()) };
    let job = Job::of(plan)?;
    let Some(gpt) = job.model.megatron() else { return Ok(Vec::new()) };
    let precision = plan.recipe.precision.unwrap_or(Precision::Bf16Master);
    if precision == Precision::RuleOfThumb {
        return Ok(Vec::new());
    }
    let of = |rank: u64| {
        let options = Megatron { rank: Some(rank), ..options.clone() };
        let parallel = Parallel { data: DataParallel::Megatron(options), ..plan.parallel.clone() };
        let plan = Plan { parallel, ..plan.clone() };
        let walk = job.walk_steady(&plan, precision)?;
        let (bill, _) = bill::bill(&walk, job.model.symbols(&plan.recipe), super::sources(&plan));
        let parts = bill.column(bill.binding).parts;
        let (layers, in_flight) = stage(&gpt, &plan, rank);
        Ok(RankEstimate {
            rank,
            layers,
            embedding: rank == 0,
            head: rank + 1 == plan.parallel.pipeline,
            in_flight,
            instant: bill.binding,
            parts,
            peak_bytes: parts.total(),
        })
    };
    // Between its ends a long pipeline is listed no further.
    let stages = plan.parallel.pipeline;
    (0..stages).filter(|rank| *rank < MAX_LISTED || stages - rank <= MAX_LISTED).map(of).collect()
}

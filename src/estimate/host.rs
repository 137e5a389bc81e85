//! What a job keeps in the host's memory, and what a checkpoint writes.

use crate::bill::{Tier, modelled};
use crate::model::Model;
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::step::adapters::trained_shapes;
use crate::step::readings::{CheckpointReadings, Readings};
use crate::step::shape::Shape;
use crate::units::Bytes;

/// The largest shard of a checkpoint (`max_shard_size="50GB"`, transformers 5.24).
const MAX_SHARD: u64 = 50_000_000_000;

/// What a checkpoint of `plan`, whose steps read `readings`, writes and copies. None where weights and states are spread over
/// ranks, FP32 masters are kept apart, or an optimizer for each weight steps in backward.
pub(super) fn checkpoint(model: &dyn Model, plan: &Plan, readings: &Readings) -> Option<CheckpointReadings> {
    let recipe = &plan.recipe;
    if !plan.parallel.is_single() || recipe.precision == Some(Precision::Bf16Master) || recipe.optimizer.in_backward {
        return None;
    }
    // Of adapters what is trained is what is saved, and a gradient is of its parameter's sizes and type.
    let weights = if recipe.lora.is_some() { readings.steady()?.grads } else { readings.params };
    let states = Bytes(readings.optimizer_state.get().saturating_add(readings.optimizer_state_host.get()));
    // One state of the largest parameter, in FP32 at most.
    let trained = trained_shapes(model, recipe);
    let largest = trained.iter().filter_map(Shape::numel).max().unwrap_or(0).saturating_mul(4).min(states.get());
    Some(CheckpointReadings { weights, states, copied: Bytes(weights.get().min(MAX_SHARD).max(largest)) })
}

/// The host's tier: what is kept there all along, and the most that is there for a while.
pub(super) fn tier(readings: &Readings) -> Tier {
    let copied = readings.checkpoint.map(|of| of.copied).unwrap_or_default();
    let peak = readings.optimizer_state_host.get().saturating_add(readings.on_host.get().max(copied.get()));
    let source = match readings.checkpoint {
        Some(_) => {
            "paged states, activations in host memory, copies while a checkpoint is saved; not Python, its libraries, the mapped checkpoint"
        }
        None => {
            "paged states, activations in host memory; saving is not modelled for this plan; not Python, its libraries, the mapped checkpoint"
        }
    };
    Tier { peak_bytes: Bytes(peak), provenance: modelled(source) }
}

//! What a job keeps in the host's memory, and what a checkpoint writes.

use crate::bill::{Tier, modelled};
use crate::model::Model;
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::recipe::parallel::{DataParallel, Fsdp2};
use crate::step::adapters::trained_shapes;
use crate::step::readings::{CheckpointReadings, Readings};
use crate::step::shape::Shape;
use crate::step::train::weights_dtype;
use crate::units::Bytes;

use super::offload::shard_elements;

/// The largest shard of a checkpoint (`max_shard_size="50GB"`, transformers 5.24).
const MAX_SHARD: u64 = 50_000_000_000;

/// What a checkpoint of `plan`, whose steps read `readings`, writes and copies. None where weights and states are spread over
/// ranks in another way than FSDP2's, FP32 masters are kept apart, or an optimizer for each weight steps in backward.
pub(super) fn checkpoint(model: &dyn Model, plan: &Plan, readings: &Readings) -> Option<CheckpointReadings> {
    if let DataParallel::Fsdp2(options) = &plan.parallel.data {
        return sharded(model, plan, options, readings);
    }
    // What all ranks hold is rank 0's to write.
    let alike = matches!(plan.parallel.data, DataParallel::None | DataParallel::Ddp(_) | DataParallel::Dp(_));
    if !alike || plan.parallel.tensor.size > 1 {
        return None;
    }
    whole(model, plan, readings)
}

/// What one process holds whole, as it is written.
pub(super) fn whole(model: &dyn Model, plan: &Plan, readings: &Readings) -> Option<CheckpointReadings> {
    let recipe = &plan.recipe;
    if recipe.precision == Some(Precision::Bf16Master) || recipe.optimizer.in_backward {
        return None;
    }
    // Of adapters what is trained is what is saved, and a gradient is of its parameter's sizes and type.
    let weights = if recipe.lora.is_some() { readings.steady()?.grads } else { readings.params };
    let states = Bytes(readings.optimizer_state.get().saturating_add(readings.optimizer_state_host.get()));
    // One state of the largest parameter, in FP32 at most.
    let trained = trained_shapes(model, recipe);
    let largest = trained.iter().filter_map(Shape::numel).max().unwrap_or(0).saturating_mul(4).min(states.get());
    Some(CheckpointReadings {
        weights,
        states,
        copied: Bytes(weights.get().min(MAX_SHARD).max(largest)),
        gathered: None,
    })
}

/// What a writer copies ahead of its file (`per_thread_copy_ahead`, torch/distributed/checkpoint/filesystem.py, 2.15).
const COPIED_AHEAD: u64 = 10_000_000;

/// The most that a rank copies at once of shards, the largest of so many bytes, to write `written`.
pub(super) fn copied_of_shards(largest: u64, written: u64) -> u64 {
    largest.saturating_add(COPIED_AHEAD).min(written)
}

/// Of FSDP2's shards: each rank writes its own, copying them one after another (`torch.distributed.checkpoint.save`), or rank
/// 0 gathers them all (`StateDictOptions(full_state_dict=True, cpu_offload=True)`, `state_dict.py`).
#[inline(never)]
fn sharded(model: &dyn Model, plan: &Plan, options: &Fsdp2, readings: &Readings) -> Option<CheckpointReadings> {
    if plan.parallel.tensor.size > 1 {
        return None;
    }
    let shards = (plan.parallel.data_ranks() / options.replicas.max(1)).max(1);
    let element = weights_dtype(plan.recipe.precision?).bytes();
    let largest =
        model.parameters().iter().map(|p| shard_elements(&p.shape, shards).saturating_mul(element)).max().unwrap_or(0);
    let on_device = (readings.params, readings.optimizer_state);
    let (weights, states) = readings.offload.map_or(on_device, |of| (of.weights, of.states));
    let written = weights.get().saturating_add(states.get());
    let whole = super::parameter_count(model).saturating_mul(element);
    Some(CheckpointReadings {
        weights,
        states,
        copied: Bytes(copied_of_shards(largest, written)),
        gathered: Some(Bytes(whole.saturating_add(states.get().saturating_mul(shards)))),
    })
}

/// The host's tier: what is kept there all along, and the most that is there for a while.
pub(super) fn tier(readings: &Readings) -> Tier {
    let copied = readings.checkpoint.map(|of| of.copied).unwrap_or_default();
    let by_layout = readings.offload.map(|of| of.held).unwrap_or_default();
    let all_along = readings.optimizer_state_host.get().saturating_add(by_layout.get());
    let peak = all_along.saturating_add(readings.on_host.get().max(copied.get()));
    let source = match readings.checkpoint {
        Some(_) => {
            "what the layout keeps there, paged states, activations in host memory, copies while a checkpoint is saved; not Python, its libraries, the mapped checkpoint, what an optimizer on the CPU takes for a moment"
        }
        None => {
            "what the layout keeps there, paged states, activations in host memory; without saving, whose ways are listed apart; not Python, its libraries, the mapped checkpoint"
        }
    };
    Tier { peak_bytes: Bytes(peak), provenance: modelled(source) }
}

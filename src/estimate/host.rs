//! What a job keeps in the host's memory, and what a checkpoint writes.

use crate::bill::{Tier, modelled};
use crate::model::Model;
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::recipe::optimizer::OptimizerName;
use crate::recipe::parallel::{DataParallel, Fsdp2, Reshard, Wrap};
use crate::step::adapters::trained_shapes;
use crate::step::load::layer_of;
use crate::step::readings::{CheckpointReadings, OffloadReadings, Readings};
use crate::step::shape::Shape;
use crate::step::train::weights_dtype;
use crate::units::Bytes;

/// The largest shard of a checkpoint (`max_shard_size="50GB"`, transformers 5.24).
const MAX_SHARD: u64 = 50_000_000_000;

/// What a checkpoint of `plan`, whose steps read `readings`, writes and copies. None where weights and states are spread over
/// ranks in another way than FSDP2's, FP32 masters are kept apart, or an optimizer for each weight steps in backward.
pub(super) fn checkpoint(model: &dyn Model, plan: &Plan, readings: &Readings) -> Option<CheckpointReadings> {
    let recipe = &plan.recipe;
    if let DataParallel::Fsdp2(options) = &plan.parallel.data {
        return sharded(model, plan, options, readings);
    }
    if !plan.parallel.is_single() || recipe.precision == Some(Precision::Bf16Master) || recipe.optimizer.in_backward {
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

/// Of FSDP2's shards: each rank writes its own, copying them one after another (`torch.distributed.checkpoint.save`), or rank
/// 0 gathers them all (`StateDictOptions(full_state_dict=True, cpu_offload=True)`, `state_dict.py`).
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
        copied: Bytes(largest.saturating_add(COPIED_AHEAD).min(written)),
        gathered: Some(Bytes(whole.saturating_add(states.get().saturating_mul(shards)))),
    })
}

/// Elements of a rank's shard: it is of the first dimension, and the last ones are padded.
fn shard_elements(shape: &Shape, shards: u64) -> u64 {
    let rows = shape.dims().first().map_or(1, |rows| rows.n.max(1));
    (shape.numel().unwrap_or(0) / rows).saturating_mul(rows.div_ceil(shards))
}

/// What FSDP2 keeps in host memory under `CPUOffloadPolicy`, and copies (`_fsdp_param.py`, `_fsdp_collectives.py`, 2.15): each
/// gather copies the shards to the device, each reduction the gradients back, in the parameters' own dtype.
pub(super) fn offload(model: &dyn Model, plan: &Plan) -> Option<OffloadReadings> {
    let DataParallel::Fsdp2(options) = &plan.parallel.data else { return None };
    if !options.offload_cpu {
        return None;
    }
    let shards = (plan.parallel.data_ranks() / options.replicas.max(1)).max(1);
    let element = weights_dtype(plan.recipe.precision?).bytes();
    let optimizer = &plan.recipe.optimizer;
    let moments = match optimizer.name {
        OptimizerName::Sgd => u64::from(optimizer.momentum > 0.0),
        _ => 2 + u64::from(optimizer.amsgrad),
    };
    let counter = if optimizer.name == OptimizerName::Sgd { 0 } else { 4 };
    let accumulated = plan.recipe.grad_accum;
    let mut all = OffloadReadings::default();
    let [mut weights, mut states, mut held, mut copied] = [0u64; 4];
    for (p, name) in model.parameters().iter().zip(model.parameter_names()) {
        let bytes = shard_elements(&p.shape, shards).saturating_mul(element);
        // Backward gathers again what was freed after forward.
        let freed = match (options.wrap, layer_of(&name)) {
            (Wrap::LayersAndEnds, 0) if p.lookup_only => options.reshard_after_forward == Reshard::Always,
            (Wrap::LayersAndEnds, 0) => false,
            (Wrap::Root, _) | (_, 0) => options.root_reshard_after_forward == Some(true),
            _ => options.reshard_after_forward == Reshard::Always,
        };
        let of_states = bytes.saturating_mul(moments).saturating_add(counter);
        // The allocator of pinned memory rounds up to a power of two (`CachingHostAllocator.h`).
        let block = if options.pin_memory { bytes.checked_next_power_of_two().unwrap_or(bytes) } else { bytes };
        weights = weights.saturating_add(bytes);
        states = states.saturating_add(of_states);
        held = held.saturating_add(block.saturating_mul(2)).saturating_add(of_states);
        copied = copied.saturating_add(bytes.saturating_mul(1 + u64::from(freed)));
    }
    let reductions = if options.no_sync { 1 } else { accumulated };
    (all.weights, all.gradients, all.states, all.held) = (Bytes(weights), Bytes(weights), Bytes(states), Bytes(held));
    all.to_device = Bytes(copied.saturating_mul(accumulated));
    all.to_host = Bytes(weights.saturating_mul(reductions));
    Some(all)
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
            "paged states, activations in host memory; saving is not modelled for this plan; not Python, its libraries, the mapped checkpoint"
        }
    };
    Tier { peak_bytes: Bytes(peak), provenance: modelled(source) }
}

//! What a rank keeps in host memory by its layout, and copies there and back in a step.

use crate::model::Model;
use crate::plan::Plan;
use crate::recipe::optimizer::OptimizerName;
use crate::recipe::parallel::{DataParallel, DeepSpeed, Fsdp1, Fsdp2, Reshard, Wrap};
use crate::step::load::layer_of;
use crate::step::log::{Event, Mark};
use crate::step::parallel::{FROM_HOST, LEAST_SWAPPED, SWAPPED_BY, part_of_all, shards_of_units, sub_groups};
use crate::step::readings::OffloadReadings;
use crate::step::shape::Shape;
use crate::step::tensor::Dtype;
use crate::step::train::{Walk, weights_dtype};
use crate::units::Bytes;

/// Of a plan whose steps are `walk`. `None`: it keeps nothing there.
pub(super) fn offload(model: &dyn Model, plan: &Plan, walk: &Walk) -> Option<OffloadReadings> {
    match &plan.parallel.data {
        DataParallel::Fsdp2(options) if options.offload_cpu => fsdp2(model, plan, options),
        DataParallel::Fsdp1(options) if options.offload_cpu => fsdp1(model, plan, options, walk),
        DataParallel::DeepSpeed(options) if options.offload_optimizer.is_on() || options.offload_param.is_on() => {
            Some(if options.stage == 3 {
                zero3(model, plan, options, from_host(walk, plan.recipe.grad_accum))
            } else {
                zero(model, plan, options)
            })
        }
        _ => None,
    }
}

/// States of a parameter's size that the optimizer keeps.
pub(super) fn moments(plan: &Plan) -> u64 {
    let optimizer = &plan.recipe.optimizer;
    match optimizer.name {
        OptimizerName::Sgd => u64::from(optimizer.momentum > 0.0),
        _ => 2 + u64::from(optimizer.amsgrad),
    }
}

/// What so many bytes take: the allocator of pinned memory rounds up to a power of two (`CachingHostAllocator.h`).
pub(super) fn block(bytes: u64, pinned: bool) -> u64 {
    if pinned { bytes.checked_next_power_of_two().unwrap_or(bytes) } else { bytes }
}

fn sum(parts: &[u64]) -> Bytes {
    Bytes(parts.iter().fold(0, |all, of| u64::saturating_add(all, *of)))
}

/// Under ZeRO's stages 1 and 2 (`stage_1_and_2.py`, DeepSpeed 0.19): this rank's part in FP32 and in the engine's dtype, its
/// gradient in FP32, a buffer for the largest parameter, and with stage 2 sums of earlier micro-batches. What it updates goes to
/// the host in FP32, and comes back in the engine's dtype.
#[inline(never)]
fn zero(model: &dyn Model, plan: &Plan, options: &DeepSpeed) -> OffloadReadings {
    let element = Dtype::from(options.dtype).bytes();
    let numels: Vec<u64> = model.parameters().iter().filter_map(|p| p.shape.numel()).collect();
    let (all, largest) = (numels.iter().sum::<u64>(), numels.iter().max().copied().unwrap_or(0));
    let part = part_of_all(all, plan.parallel.data_ranks());
    let times = |elements: u64, bytes: u64| elements.saturating_mul(bytes);
    // Micro-batches of stage 1 are summed on the GPU.
    let sums = options.stage == 2 && plan.recipe.grad_accum > 1;
    let pinned = options.offload_optimizer.pin_memory;
    let [mut start, mut summed, mut summed_held] = [0u64; 3];
    for n in numels {
        if sums && start < part {
            summed = summed.saturating_add(times(n, element));
            summed_held = summed_held.saturating_add(block(times(n, element), pinned));
        }
        start = start.saturating_add(n);
    }
    let (wide, narrow, through) = (times(part, 4), times(part, element), times(largest, element));
    let states = times(wide, moments(plan));
    let held = |bytes: u64| block(bytes, pinned);
    OffloadReadings {
        weights: sum(&[wide, narrow]),
        gradients: sum(&[wide, through, summed]),
        states: Bytes(states),
        held: sum(&[held(wide), held(wide), held(narrow), held(through), summed_held, states]),
        to_device: sum(&[narrow, times(summed, plan.recipe.grad_accum.saturating_sub(1))]),
        to_host: sum(&[times(part.min(all), 4), times(summed, plan.recipe.grad_accum)]),
        ..OffloadReadings::default()
    }
}

/// Under stage 3 (`stage3.py`): FP32 masters and gradients, and the gradients of micro-batches in the engine's dtype, each of
/// which goes to the host and comes back; this rank's parts of the parameters, always pinned, which come with each gather
/// (`gathered`).
#[inline(never)]
fn zero3(model: &dyn Model, plan: &Plan, options: &DeepSpeed, gathered: Gathered) -> OffloadReadings {
    let element = Dtype::from(options.dtype).bytes();
    let ranks = plan.parallel.data_ranks().max(1);
    let parts: Vec<u64> = model.parameters().iter().filter_map(|p| Some(p.shape.numel()?.div_ceil(ranks))).collect();
    let part: u64 = parts.iter().sum();
    let (states_on, params_on) = (options.offload_optimizer.is_on(), options.offload_param.is_on());
    let of = |on: bool, bytes: u64| if on { part.saturating_mul(bytes) } else { 0 };
    let pinned = options.offload_optimizer.pin_memory;
    let (wide, narrow, shards) = (of(states_on, 4), of(states_on, element), of(params_on, element));
    let states = wide.saturating_mul(moments(plan));
    let each_batch = narrow.saturating_mul(plan.recipe.grad_accum);
    let mut all = OffloadReadings {
        weights: sum(&[wide, shards]),
        gradients: sum(&[wide, narrow]),
        states: Bytes(states),
        held: sum(&[wide, block(wide, pinned), block(narrow, pinned), block(shards, true), states]),
        // What is updated on the host is cast there, what is updated on the GPU too.
        to_device: sum(&[gathered.all, each_batch, of(states_on && !params_on, element)]),
        to_host: sum(&[each_batch, wide, of(params_on && !states_on, 4)]),
        ..OffloadReadings::default()
    };
    let mut held = all.held.get();
    if options.offload_optimizer.is_on_disk() {
        // Masters, moments and gradients of sub-groups that are large enough; buffers for the largest of them.
        let groups = sub_groups(&parts, options.sub_group_size);
        let aligned = |n: u64| n.div_ceil(SWAPPED_BY).saturating_mul(SWAPPED_BY * 4);
        let swapped = groups.iter().map(|(n, _)| *n).filter(|n| n.saturating_mul(4) >= LEAST_SWAPPED);
        let (kinds, largest) = (1 + moments(plan), groups.iter().map(|(n, _)| aligned(*n)).max().unwrap_or(0));
        let (on_disk, off_host) =
            swapped.fold((0u64, 0u64), |(disk, host), n| (disk.saturating_add(aligned(n)), host.saturating_add(n * 4)));
        let gradients: u64 =
            parts.iter().filter(|n| *n * 4 >= LEAST_SWAPPED).map(|n| n / SWAPPED_BY * SWAPPED_BY * 4).sum();
        let gradients = gradients.min(off_host);
        let moved = on_disk.saturating_mul(kinds).saturating_add(gradients);
        held = held.saturating_sub(off_host.saturating_mul(1 + kinds));
        held = held.saturating_add(largest.saturating_mul(options.offload_optimizer.buffer_count.unwrap_or(4)));
        for to in [&mut all.on_disk, &mut all.from_disk, &mut all.to_disk] {
            *to = Bytes(to.get().saturating_add(moved));
        }
    }
    let on_disk = options.offload_param;
    // Where all fits below `max_in_cpu`, it is read once and stays in host memory.
    if on_disk.is_on_disk() && part > on_disk.max_in_cpu {
        let swapped = parts.iter().map(|n| n.saturating_mul(element)).filter(|bytes| *bytes >= LEAST_SWAPPED);
        let swapped = swapped.fold(0u64, u64::saturating_add);
        let buffers = on_disk.buffer_size.saturating_mul(on_disk.buffer_count.unwrap_or(5)).saturating_mul(element);
        // What is written at once after a step has room for whole parameters of a sub-group (`reserve_partitioned_swap_space`).
        let largest = sub_groups(&parts, options.sub_group_size).iter().map(|(n, _)| *n).max().unwrap_or(0);
        let room = largest.saturating_mul(ranks).saturating_mul(element);
        let flat = block(on_disk.max_in_cpu.saturating_mul(element), true);
        held = held.saturating_sub(block(shards, true)).saturating_add(shards.saturating_sub(swapped));
        held = held.saturating_add(buffers).saturating_add(room).saturating_add(flat);
        all.on_disk = sum(&[all.on_disk.get(), swapped]);
        all.from_disk = sum(&[all.from_disk.get(), gathered.large]);
        all.to_disk = sum(&[all.to_disk.get(), swapped]);
    }
    all.held = Bytes(held);
    all
}

/// Under FSDP1's `CPUOffload` (`_flat_param.py`, 2.15): each unit's shard and its gradient, pinned, in the parameters' own dtype.
#[inline(never)]
fn fsdp1(model: &dyn Model, plan: &Plan, options: &Fsdp1, walk: &Walk) -> Option<OffloadReadings> {
    let dtype = weights_dtype(plan.recipe.precision?);
    let [mut weights, mut pinned] = [0u64; 2];
    for part in shards_of_units(model, plan, options, dtype) {
        let bytes = part.saturating_mul(dtype.bytes());
        weights = weights.saturating_add(bytes);
        pinned = pinned.saturating_add(block(bytes, true));
    }
    let states = weights.saturating_mul(moments(plan));
    let reductions = if options.no_sync { 1 } else { plan.recipe.grad_accum };
    Some(OffloadReadings {
        weights: Bytes(weights),
        gradients: Bytes(weights),
        states: Bytes(states),
        held: sum(&[pinned, pinned, states]),
        to_device: Bytes(from_host(walk, plan.recipe.grad_accum).all),
        to_host: sum(&[weights.saturating_mul(reductions)]),
        ..OffloadReadings::default()
    })
}

/// Bytes of parameters that a step copies from the host for its gathers, with all its micro-batches.
#[derive(Clone, Copy, Debug, Default)]
struct Gathered {
    all: u64,
    /// Of parts that are large enough to lie on a disk.
    large: u64,
}

fn from_host(walk: &Walk, micro_batches: u64) -> Gathered {
    // Of the last step: what comes with each micro-batch.
    let mut batches: Vec<Gathered> = Vec::new();
    for event in &walk.events {
        match event {
            Event::Mark(Mark::Step) => batches.clear(),
            Event::Mark(Mark::MicroBatch) => batches.push(Gathered::default()),
            Event::Alloc(id) => {
                let copied = walk.tensors.get(*id as usize).filter(|of| of.op == FROM_HOST);
                if let (Some(of), Some(batch)) = (copied, batches.last_mut()) {
                    let bytes = of.bytes.get();
                    batch.all = batch.all.saturating_add(bytes);
                    batch.large = batch.large.saturating_add(if bytes >= LEAST_SWAPPED { bytes } else { 0 });
                }
            }
            _ => {}
        }
    }
    // Those that are not walked are like the second.
    let further = micro_batches.saturating_sub(u64::try_from(batches.len()).unwrap_or(u64::MAX));
    let alike = batches.get(1).copied().unwrap_or_default();
    let total =
        |of: fn(&Gathered) -> u64| batches.iter().map(of).fold(of(&alike).saturating_mul(further), u64::saturating_add);
    Gathered { all: total(|of| of.all), large: total(|of| of.large) }
}

/// Elements of a rank's shard: it is of the first dimension, and the last ones are padded.
pub(super) fn shard_elements(shape: &Shape, shards: u64) -> u64 {
    let rows = shape.dims().first().map_or(1, |rows| rows.n.max(1));
    (shape.numel().unwrap_or(0) / rows).saturating_mul(rows.div_ceil(shards))
}

/// What FSDP2 keeps in host memory under `CPUOffloadPolicy`, and copies (`_fsdp_param.py`, `_fsdp_collectives.py`, 2.15): each
/// gather copies the shards to the device, each reduction the gradients back, in the parameters' own dtype.
#[inline(never)]
fn fsdp2(model: &dyn Model, plan: &Plan, options: &Fsdp2) -> Option<OffloadReadings> {
    let shards = (plan.parallel.data_ranks() / options.replicas.max(1)).max(1);
    let element = weights_dtype(plan.recipe.precision?).bytes();
    let moments = moments(plan);
    let counter = if plan.recipe.optimizer.name == OptimizerName::Sgd { 0 } else { 4 };
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
        let block = block(bytes, options.pin_memory);
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

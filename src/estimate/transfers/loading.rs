//! Ways to load the model.

use super::{Facts, Transfer, Way};
use crate::recipe::parallel::{DataParallel, DeepSpeed, Fsdp1, Fsdp2, ShardingStrategy, Wrap};
use crate::step::parallel::{part_of_all, shards_of_units};
use crate::step::train::weights_dtype;
use crate::units::Bytes;

/// Those of a plan; `refuse` is told what is not modelled.
pub(super) fn ways(facts: &Facts<'_>, refuse: &mut dyn FnMut(&str)) -> Vec<Transfer> {
    let parallel = &facts.plan.parallel;
    match &parallel.data {
        DataParallel::Megatron(_) => {
            refuse("loading of Megatron-LM's checkpoints");
            Vec::new()
        }
        _ if parallel.tensor.size > 1 => {
            refuse("loading of tensor-parallel weights");
            Vec::new()
        }
        _ if crate::step::load::loads(&facts.plan.recipe) => {
            refuse("host memory while quantised or loaded weights come to the GPU");
            Vec::new()
        }
        DataParallel::None => each_rank(facts, facts.bytes(facts.whole()).saturating_add(facts.buffers)),
        DataParallel::Dp(options) if options.gpu == 0 => {
            each_rank(facts, facts.bytes(facts.whole()).saturating_add(facts.buffers))
        }
        DataParallel::Dp(_) => Vec::new(),
        DataParallel::Ddp(_) => each_rank(facts, ddp(facts)),
        DataParallel::Fsdp1(options) => fsdp1(facts, options, refuse),
        DataParallel::Fsdp2(options) => fsdp2(facts, options, refuse),
        DataParallel::DeepSpeed(options) => deepspeed(facts, options),
    }
}

fn loaded(way: Way, device: u64, [first, others, mapped]: [u64; 3]) -> Transfer {
    let [device, host_first, host_others, host_mapped] = [device, first, others, mapped].map(Bytes);
    Transfer { way, device, host_first, host_others, host_mapped, written: Bytes::ZERO }
}

/// Every rank reads it: copies of its own where they are cast or of a pickled file; a safetensors file in the dtype that is
/// asked for stays mapped (`safe_open`, transformers 5.24).
fn each_rank(facts: &Facts<'_>, device: u64) -> Vec<Transfer> {
    let whole = facts.bytes(facts.whole());
    vec![loaded(Way::EachRank, device, [whole, whole, 0]), loaded(Way::EachRankMapped, device, [0, 0, whole])]
}

/// DDP broadcasts rank 0's states in buckets of 250 MiB, two in flight (`_sync_module_states`,
/// `torch/csrc/distributed/c10d/comm.cpp`, 2.15).
fn ddp(facts: &Facts<'_>) -> u64 {
    /// Bytes after which a bucket is closed.
    const BUCKET: u64 = 250 << 20;
    let [mut bucket, mut last, mut most] = [0u64; 3];
    for bytes in facts.parameters.iter().map(|p| facts.bytes(p.numel)).chain([facts.buffers]) {
        bucket = bucket.saturating_add(bytes);
        most = most.max(last.saturating_add(bucket));
        if bucket >= BUCKET {
            (last, bucket) = (bucket, 0);
        }
    }
    let whole = facts.bytes(facts.whole());
    // Then its own buckets for gradients are made.
    whole.saturating_add(facts.buffers).saturating_add(most.max(whole))
}

/// A unit is moved to the GPU, joined into one flat parameter, and cut: layers first, the root last (`_flat_param.py`).
fn fsdp1(facts: &Facts<'_>, options: &Fsdp1, refuse: &mut dyn FnMut(&str)) -> Vec<Transfer> {
    let Some(precision) = facts.plan.recipe.precision else { return Vec::new() };
    if facts.tied() > 0 || options.strategy == ShardingStrategy::NoShard || options.offload_cpu {
        refuse("loading for FSDP1 over tied weights, without shards, or with shards in host memory");
        return Vec::new();
    }
    let shards = (facts.ranks / options.replicas.max(1)).max(1);
    let parts = shards_of_units(facts.model, facts.plan, options, weights_dtype(precision));
    let groups = facts.groups(shards);
    let in_order = parts.iter().skip(1).chain(parts.first());
    let [mut held, mut most] = [0u64; 2];
    for (part, [whole, _]) in in_order.zip(&groups) {
        held = held.saturating_add(*part);
        most = most.max(held.saturating_add(*whole).saturating_add(part.saturating_mul(shards)));
    }
    let device = facts.bytes(most).saturating_add(facts.buffers);
    let mut ways = each_rank(facts, device);
    let whole = facts.bytes(facts.whole());
    ways.push(loaded(Way::Broadcast, device, [whole, 0, 0]));
    ways
}

/// Each rank's model in host memory: a group is moved to the GPU and cut, parameter by parameter (`_fsdp_param_group.py`).
/// Broadcast: each parameter is there whole, beside all shards (`_broadcast_tensors`).
fn fsdp2(facts: &Facts<'_>, options: &Fsdp2, refuse: &mut dyn FnMut(&str)) -> Vec<Transfer> {
    if options.offload_cpu || options.wrap == Wrap::LayersAndEnds {
        refuse("loading for FSDP2 with shards in host memory, or with groups for the embedding and the head");
        return Vec::new();
    }
    let shards = (facts.ranks / options.replicas.max(1)).max(1);
    let groups = match options.wrap {
        Wrap::Root => vec![[facts.whole(), facts.sum(|p| Facts::chunk(p, shards))]],
        _ => facts.groups(shards),
    };
    let [mut held, mut most] = [0u64; 2];
    for [whole, chunks] in groups {
        held = held.saturating_add(chunks);
        most = most.max(held.saturating_add(whole));
    }
    let mut ways = each_rank(facts, facts.bytes(most).saturating_add(facts.buffers));
    // A tied head is distributed by itself.
    let one = held.saturating_add(facts.most(|p| p.numel)).saturating_add(facts.tied().div_ceil(shards));
    let broadcast = facts.bytes(one).saturating_add(facts.buffers);
    ways.push(loaded(Way::Broadcast, broadcast, [facts.bytes(facts.whole()), 0, 0]));
    ways
}

/// ZeRO: the whole model is moved to each GPU, where it is joined below stage 3 (`stage_1_and_2.py`), and cut at stage 3. Under
/// `zero.Init` each parameter is there whole beside the parts, and again while rank 0 loads it, whose file is mapped
/// (`transformers/integrations/deepspeed.py`, 5.24).
fn deepspeed(facts: &Facts<'_>, options: &DeepSpeed) -> Vec<Transfer> {
    let (whole, ranks) = (facts.whole(), facts.ranks);
    let with_buffers = |elements: u64| facts.bytes(elements).saturating_add(facts.buffers);
    let flat = part_of_all(whole, ranks).saturating_mul(ranks);
    if options.stage < 3 {
        // Joined with its padding, which is made first.
        return each_rank(facts, with_buffers(if options.stage > 0 { flat.saturating_mul(2) } else { whole }));
    }
    let part = |n: u64| n.div_ceil(ranks);
    let held = if options.offload_param.is_on() { 0 } else { facts.sum(|p| part(p.numel)) };
    if !options.zero_init {
        return each_rank(facts, with_buffers(whole.saturating_add(held)));
    }
    let gathered = facts.most(|p| part(p.numel).saturating_mul(ranks));
    // A head is made before it is tied.
    let head = part(facts.tied());
    vec![loaded(
        Way::ZeroInit,
        with_buffers(held.saturating_add(head).saturating_add(gathered)),
        [0, 0, facts.bytes(whole)],
    )]
}

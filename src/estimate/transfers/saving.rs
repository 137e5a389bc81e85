//! Ways to save a checkpoint.

use super::{Facts, One, Transfer, Way, host};
use crate::recipe::parallel::{DataParallel, DeepSpeed, Fsdp1, Fsdp2, ShardingStrategy};
use crate::step::parallel::{part_of_all, shards_of_units};
use crate::step::train::weights_dtype;
use crate::units::Bytes;

/// Those of a plan; `refuse` is told what is not modelled.
pub(super) fn ways(facts: &Facts<'_>, refuse: &mut dyn FnMut(&str)) -> Vec<Transfer> {
    match &facts.plan.parallel.data {
        DataParallel::Megatron(_) => {
            refuse("Megatron-LM's distributed checkpoints");
            Vec::new()
        }
        DataParallel::Fsdp1(options) => fsdp1(facts, options, refuse),
        DataParallel::Fsdp2(options) => state_dicts(facts, Some(options)),
        DataParallel::DeepSpeed(options) => deepspeed(facts, options, refuse),
        DataParallel::None if facts.plan.parallel.tensor.size > 1 => state_dicts(facts, None),
        DataParallel::None | DataParallel::Ddp(_) | DataParallel::Dp(_) => rank_zero(facts, refuse),
    }
}

/// What all ranks hold is written by rank 0, as by one GPU.
fn rank_zero(facts: &Facts<'_>, refuse: &mut dyn FnMut(&str)) -> Vec<Transfer> {
    let Some(of) = host::whole(facts.model, facts.plan, facts.readings) else {
        refuse("a checkpoint of FP32 master weights, or of an optimizer in backward");
        return Vec::new();
    };
    let written = Bytes(of.weights.get().saturating_add(of.states.get()));
    vec![transfer(Way::RankZero, [0, of.copied.get(), 0], written)]
}

/// Of bytes on the device, in host memory on the first rank, and there on each other rank.
fn transfer(way: Way, [device, first, others]: [u64; 3], written: Bytes) -> Transfer {
    let [device, host_first, host_others] = [device, first, others].map(Bytes);
    Transfer { way, device, host_first, host_others, host_mapped: Bytes::ZERO, written }
}

/// What is written of shards: weights with their states, each once, a tied head by itself.
fn once(facts: &Facts<'_>) -> u64 {
    let weights = facts.bytes(facts.whole());
    let states = weights.saturating_mul(facts.moments);
    weights.saturating_add(states).saturating_add(facts.bytes(facts.tied()))
}

/// FSDP2 and tensor parallelism (`torch/distributed/checkpoint/state_dict.py`, `_state_dict_utils.py`). A full state dict
/// gathers one DTensor after the other on the GPU, on every rank, of which rank 0 copies it to the host (`_iterate_state_dict`); a
/// shard that lies in host memory comes to the GPU first. Of shards each rank copies one tensor at a time.
fn state_dicts(facts: &Facts<'_>, fsdp2: Option<&Fsdp2>) -> Vec<Transfer> {
    let tensor = facts.plan.parallel.tensor.size.max(1);
    let replicas = fsdp2.map_or(1, |options| options.replicas.max(1));
    let shards = (facts.ranks / replicas).max(1);
    let on_host = fsdp2.is_some_and(|options| options.offload_cpu);
    let gathered = |p: &One| {
        let padded = Facts::chunk(p, shards).saturating_mul(shards);
        let beside = if tensor == 1 || p.rows == p.numel {
            0
        } else if shards > 1 {
            // Over one dimension of ranks after the other.
            p.numel / if p.by_columns { tensor.min(shards) } else { tensor }
        } else if p.by_columns {
            // Parts of a row are joined from what was gathered.
            p.numel
        } else {
            0
        };
        let copied = if on_host { Facts::chunk(p, shards) } else { 0 };
        padded.saturating_add(beside).saturating_add(copied)
    };
    let local = |p: &One| Facts::chunk(p, shards) / if p.rows < p.numel { tensor } else { 1 };
    let all = once(facts);
    let copied = host::copied_of_shards(facts.bytes(facts.most(local)), all);
    vec![
        transfer(Way::FullStateDict, [facts.bytes(facts.most(gathered)), all, 0], Bytes(all)),
        transfer(Way::Sharded, [0, copied, copied], Bytes(all)),
    ]
}

/// FSDP1 (`_state_dict_utils.py`, `_optim_utils.py`): each unit is gathered in the parameters' own dtype. Its states are gathered
/// one after the other into one buffer beside two copies of this rank's part (`_allgather_orig_param_states`), those of flat
/// parameters into a buffer each (`_communicate_optim_state`). The root's parameters stay gathered while the layers'
/// are, on the host where they go there.
fn fsdp1(facts: &Facts<'_>, options: &Fsdp1, refuse: &mut dyn FnMut(&str)) -> Vec<Transfer> {
    let Some(precision) = facts.plan.recipe.precision else { return Vec::new() };
    if facts.tied() > 0 {
        refuse("saving of FSDP1 over tied weights");
        return Vec::new();
    }
    if options.strategy == ShardingStrategy::NoShard {
        return unsharded(facts, options, refuse);
    }
    let shards = (facts.ranks / options.replicas.max(1)).max(1);
    // The root's first.
    let units = shards_of_units(facts.model, facts.plan, options, weights_dtype(precision));
    let on_host = |part: u64| if options.offload_cpu { part } else { 0 };
    let unit = |part: u64| part.saturating_mul(shards).saturating_add(on_host(part));
    let buffers = if options.use_orig_params { shards.saturating_add(2) } else { shards.saturating_mul(facts.moments) };
    let states = |part: u64| part.saturating_mul(buffers).saturating_add(on_host(part).saturating_mul(facts.moments));
    let most = |of: &dyn Fn(u64) -> u64| units.iter().map(|part| of(*part)).max().unwrap_or(0);
    let of_states = if facts.moments > 0 { most(&states) } else { 0 };
    let full = most(&unit).max(of_states);

    let whole = facts.bytes(facts.whole());
    let all = once(facts);
    let root = units.first().map_or(0, |part| part.saturating_mul(shards));
    // The root's flat parameter is on the host until its own are copied out of it.
    let first = whole.saturating_add(facts.bytes(root)).max(all);
    let mut ways = vec![transfer(Way::FullStateDict, [facts.bytes(full), first, 0], Bytes(all))];

    if options.replicas > 1 {
        refuse("SHARDED_STATE_DICT and LOCAL_STATE_DICT of replicas of shards");
        return ways;
    }
    let chunks = facts.sum(|p| Facts::chunk(p, shards));
    let chunk_of = |root: bool| {
        let own = facts.parameters.iter().filter(move |p| (p.layer == 0) == root);
        own.map(|p| Facts::chunk(p, shards)).max().unwrap_or(0)
    };
    let layer = units.iter().skip(1).map(|part| unit(*part)).max().unwrap_or(0);
    // Chunks of flat parameters' states go to the host together.
    let in_chunks = groups_of_states(facts, &units, shards).filter(|_| !options.use_orig_params).unwrap_or(of_states);
    let beside = layer.saturating_add(chunk_of(false)).max(chunk_of(true));
    let sharded = unit(units.first().copied().unwrap_or(0)).saturating_add(beside).max(in_chunks);
    let host = facts.bytes(chunks).saturating_mul(1 + facts.moments);
    ways.push(transfer(Way::Sharded, [facts.bytes(sharded), host, host], Bytes(all)));

    let parts = units.iter().copied().fold(0, u64::saturating_add);
    let local = facts.bytes(most(&|part| part));
    let written = facts.bytes(parts).saturating_mul(1 + facts.moments).saturating_mul(shards);
    ways.push(transfer(Way::Local, [0, local, local], Bytes(written)));
    ways
}

/// The most of a unit's gathered states with their chunks, in elements.
fn groups_of_states(facts: &Facts<'_>, units: &[u64], shards: u64) -> Option<u64> {
    let in_order = units.iter().skip(1).chain(units.first());
    let of = |(part, [_, chunks]): (&u64, [u64; 2])| part.saturating_mul(shards).saturating_add(chunks);
    in_order.zip(facts.groups(shards)).map(of).max().map(|of| of.saturating_mul(facts.moments))
}

/// Without shards the original parameters are copied on the GPU, and stay there whatever `offload_to_cpu` says
/// (`_full_post_state_dict_hook`); the optimizer's states are its own (`_gather_all_orig_param_state`).
fn unsharded(facts: &Facts<'_>, options: &Fsdp1, refuse: &mut dyn FnMut(&str)) -> Vec<Transfer> {
    if !options.use_orig_params || options.offload_cpu {
        refuse("state dicts of FSDP1's flat parameters without shards");
        return Vec::new();
    }
    let whole = facts.bytes(facts.whole());
    let largest = facts.bytes(facts.most(|p| p.numel));
    vec![transfer(Way::FullStateDict, [whole, largest, 0], Bytes(once(facts)))]
}

/// DeepSpeed (`engine.py`): each rank writes its parts of masters and states, one storage at a time (`torch.save`). Below stage 3
/// rank 0 writes the weights too, which are one storage; at stage 3 nobody does, unless they are gathered module by module.
fn deepspeed(facts: &Facts<'_>, options: &DeepSpeed, refuse: &mut dyn FnMut(&str)) -> Vec<Transfer> {
    if options.stage == 0 {
        refuse("checkpoints of a DeepSpeed engine without ZeRO");
        return Vec::new();
    }
    if options.offload_optimizer.is_on_disk() || options.offload_param.is_on_disk() {
        refuse("checkpoints of what lies on a disk");
        return Vec::new();
    }
    let ranks = facts.ranks;
    let part = match options.stage {
        3 => facts.sum(|p| p.numel.div_ceil(ranks)),
        _ => part_of_all(facts.whole(), ranks),
    };
    let masters = part.saturating_mul(4);
    let states = masters.saturating_mul(1 + facts.moments).saturating_mul(ranks);
    // What lies in host memory is written from there.
    let copied = if options.offload_optimizer.is_on() {
        0
    } else if options.stage == 3 {
        masters.min(options.sub_group_size.saturating_mul(4).max(facts.most(|p| p.numel.div_ceil(ranks)) * 4))
    } else {
        masters
    };
    if options.stage < 3 {
        let flat = facts.bytes(part.saturating_mul(ranks));
        let written = Bytes(states.saturating_add(flat));
        return vec![transfer(Way::SaveCheckpoint, [0, flat.max(copied), copied], written)];
    }
    // Each module's own parameters, padded to the ranks; what lies in host memory is copied to be gathered.
    // Those that stay gathered are freed first.
    let mut largest = 0u64;
    for p in &facts.parameters {
        let own = facts.parameters.iter().filter(|of| of.module == p.module);
        let parts = own.map(|of| of.numel.div_ceil(ranks)).fold(0, u64::saturating_add);
        let copied = if options.offload_param.is_on() { parts } else { 0 };
        largest = largest.max(parts.saturating_mul(ranks).saturating_add(copied));
    }
    let weights = facts.bytes(facts.whole());
    let gathered = [facts.bytes(largest), weights, 0];
    vec![
        transfer(Way::SaveCheckpoint, [0, copied, copied], Bytes(states)),
        transfer(Way::Gather16Bit, gathered, Bytes(weights)),
    ]
}

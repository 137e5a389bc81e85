//! How ranks share a step, as far as its time depends on it.

use crate::recipe::Parallel;
use crate::recipe::parallel::{DataParallel, DeepSpeed, Fsdp1, Fsdp2, GPUS_PER_NODE, Reshard, ShardingStrategy};

/// What data-parallel ranks share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shard {
    /// Nothing: gradients are reduced.
    #[default]
    Nothing,
    /// Optimizer states (ZeRO-1).
    Optimizer,
    /// States and gradients (ZeRO-2), which are reduced in every micro-batch.
    Gradients,
    /// Everything; parameters are gathered once a micro-batch (`SHARD_GRAD_OP`).
    Kept,
    /// Everything; parameters are gathered in forward and in backward (ZeRO-3, `FULL_SHARD`).
    Everything,
}

/// How ranks share a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Ranks in all.
    pub world: u64,
    /// Data-parallel ranks.
    pub data: u64,
    /// Ranks that share each layer's matrices.
    pub tensor: u64,
    /// Pipeline stages.
    pub pipeline: u64,
    /// Chunks of layers on each stage (interleaved schedule).
    pub chunks: u64,
    /// Ranks that share each sequence.
    pub context: u64,
    /// Ranks that share the experts.
    pub expert: u64,
    /// What data-parallel ranks share.
    pub shard: Shard,
    /// Data-parallel ranks that share it; the others hold copies (hybrid sharding).
    pub shard_ranks: u64,
    /// Whether gradients are reduced while backward goes on.
    pub overlaps: bool,
    /// Whether tensor parallelism hides half of its communication behind products (asynchronous TP).
    pub async_tensor: bool,
    /// Bytes of a gradient's element as it is reduced. `None`: those of the weights.
    pub reduce_width: Option<f64>,
    /// Whether DeepSpeed's hooks surround each module (stage 3).
    pub hooks: bool,
    /// Whether the optimizer runs on the host.
    pub optimizer_on_host: bool,
    /// Whether parameters come from host memory.
    pub parameters_on_host: bool,
    /// GPUs of a node.
    pub gpus_per_node: u64,
    /// GB/s in one direction from a node to the network, for each GPU of it. `None`: the generation's usual.
    pub network_gbps: Option<f64>,
    /// GB/s in one direction between the GPUs of a node, for each of them. `None`: the card's own link.
    pub link_gbps: Option<f64>,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            world: 1,
            data: 1,
            tensor: 1,
            pipeline: 1,
            chunks: 1,
            context: 1,
            expert: 1,
            shard: Shard::Nothing,
            shard_ranks: 1,
            overlaps: true,
            async_tensor: false,
            reduce_width: None,
            hooks: false,
            optimizer_on_host: false,
            parameters_on_host: false,
            gpus_per_node: GPUS_PER_NODE,
            network_gbps: None,
            link_gbps: None,
        }
    }
}

impl Layout {
    /// A plan's layout, on its nodes.
    #[must_use]
    pub fn of(parallel: &Parallel) -> Self {
        let data = parallel.data_ranks().max(1);
        let base = Self {
            world: parallel.world_size.max(1),
            data,
            tensor: parallel.tensor.size.max(1),
            pipeline: parallel.pipeline.max(1),
            context: parallel.context.max(1),
            expert: parallel.expert.max(1),
            shard_ranks: data,
            gpus_per_node: parallel.gpus_per_node.unwrap_or(GPUS_PER_NODE).max(1),
            network_gbps: parallel.network_gbps,
            link_gbps: parallel.link_gbps,
            ..Self::default()
        };
        let within = |replicas: u64| (data / replicas.max(1)).max(1);
        let wide = |wide: bool| wide.then_some(4.0);
        match &parallel.data {
            // Not estimated ([`crate::decide`]).
            DataParallel::None | DataParallel::Dp(_) => base,
            DataParallel::Ddp(ddp) => Self { reduce_width: ddp.bf16_compress.then_some(2.0), ..base },
            DataParallel::Fsdp1(Fsdp1 { strategy, replicas, mixed_precision, offload_cpu, .. }) => Self {
                shard: match strategy {
                    ShardingStrategy::NoShard => Shard::Nothing,
                    ShardingStrategy::ShardGradOp | ShardingStrategy::HybridShardZero2 => Shard::Kept,
                    ShardingStrategy::FullShard | ShardingStrategy::HybridShard => Shard::Everything,
                },
                shard_ranks: within(*replicas),
                reduce_width: wide(mixed_precision.reduce == Some(crate::recipe::FloatName::Float32)),
                optimizer_on_host: *offload_cpu,
                parameters_on_host: *offload_cpu,
                ..base
            },
            DataParallel::Fsdp2(Fsdp2 { replicas, reshard_after_forward, mixed_precision, offload_cpu, .. }) => Self {
                shard: if *reshard_after_forward == Reshard::Never { Shard::Kept } else { Shard::Everything },
                shard_ranks: within(*replicas),
                reduce_width: wide(mixed_precision.reduce == Some(crate::recipe::FloatName::Float32)),
                optimizer_on_host: *offload_cpu,
                parameters_on_host: *offload_cpu,
                ..base
            },
            DataParallel::Megatron(megatron) => Self {
                shard: if megatron.use_distributed_optimizer { Shard::Optimizer } else { Shard::Nothing },
                chunks: megatron.virtual_pipeline.max(1),
                overlaps: false,
                reduce_width: Some(4.0),
                ..base
            },
            DataParallel::DeepSpeed(DeepSpeed { stage, overlap_comm, offload_optimizer, offload_param, .. }) => Self {
                shard: match stage {
                    0 => Shard::Nothing,
                    1 => Shard::Optimizer,
                    2 => Shard::Gradients,
                    _ => Shard::Everything,
                },
                overlaps: overlap_comm.unwrap_or(*stage == 3),
                hooks: *stage == 3,
                optimizer_on_host: offload_optimizer.is_on(),
                parameters_on_host: offload_param.is_on(),
                ..base
            },
        }
    }
}

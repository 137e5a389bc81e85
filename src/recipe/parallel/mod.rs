//! How the job is spread over GPUs: the data-parallel wrapper, and the other ways to split a model. Everything that follows
//! is about one rank, rank 0, which holds the largest shard.

mod checks;
mod data;
mod megatron;

use serde::{Deserialize, Serialize};

pub use data::{
    DataParallel, Ddp, DeepSpeed, Dp, Fsdp1, Fsdp2, InitDevice, MixedPrecision, Offload, OffloadDevice, Prefetch,
    Reshard, ShardingStrategy, Wrap,
};

pub use megatron::{ContextCommunication, Megatron, MegatronAttention, MegatronLoss, MegatronRecompute};

/// The most ranks.
pub const MAX_RANKS: u64 = 1 << 20;

/// GPUs of a node where nothing else is said.
pub const GPUS_PER_NODE: u64 = 8;

/// How the job is spread over GPUs. The default is one GPU without any wrapper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Parallel {
    /// Ranks in all: the product of every way to split below and the data-parallel ranks.
    pub world_size: u64,
    /// What wraps the model over the data-parallel ranks.
    pub data: DataParallel,
    /// Tensor parallelism.
    pub tensor: TensorParallel,
    /// Pipeline stages.
    pub pipeline: u64,
    /// Ranks that share each sequence.
    pub context: u64,
    /// Ranks that share the experts.
    pub expert: u64,
    /// GPUs of a node. `None`: [`GPUS_PER_NODE`], or all where they are fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<u64>,
    /// GB/s (10⁹ bytes) in one direction from a node to the network, for each GPU of it. `None`: the GPU generation's usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_gbps: Option<f64>,
    /// GB/s in one direction between the GPUs of a node, for each of them. `None`: the card's own link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    /// Whether the device is so slow that no event has passed before the host waits for it, as in some recorded steps. No
    /// job is like that, so no document says it.
    #[serde(skip)]
    pub slow_device: bool,
}

impl Default for Parallel {
    fn default() -> Self {
        Self {
            world_size: 1,
            data: DataParallel::None,
            tensor: TensorParallel::default(),
            pipeline: 1,
            context: 1,
            expert: 1,
            gpus_per_node: None,
            network_gbps: None,
            link_gbps: None,
            slow_device: false,
        }
    }
}

impl Parallel {
    /// Whether it is one GPU without a wrapper, in whatever cluster.
    #[must_use]
    pub fn is_single(&self) -> bool {
        *self == Self { slow_device: self.slow_device, ..Self::default().in_cluster_of(self) }
    }

    /// Whether a document says it without a word.
    pub(crate) fn is_unsaid(&self) -> bool {
        *self == Self { slow_device: self.slow_device, ..Self::default() }
    }

    /// The same layout on `other`'s nodes and links.
    #[must_use]
    pub fn in_cluster_of(self, other: &Self) -> Self {
        let Self { gpus_per_node, network_gbps, link_gbps, .. } = *other;
        Self { gpus_per_node, network_gbps, link_gbps, ..self }
    }

    /// Ranks on a node.
    #[must_use]
    pub fn ranks_of_node(&self) -> u64 {
        self.gpus_per_node.unwrap_or(GPUS_PER_NODE).clamp(1, self.world_size.max(1))
    }

    /// The data-parallel ranks: what is left of the world after every other way to split.
    #[must_use]
    pub fn data_ranks(&self) -> u64 {
        let model = self.tensor.size.saturating_mul(self.pipeline).saturating_mul(self.context).max(1);
        self.world_size / model
    }
}

/// DTensor's tensor parallelism as transformers' models are usually split: column by column, then row by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TensorParallel {
    /// Ranks that share each layer's matrices.
    pub size: u64,
    /// Whether norms and residuals are split along the sequence (`SequenceParallel`).
    pub sequence_parallel: bool,
    /// Whether the loss is computed over logits split along the vocabulary (`loss_parallel`).
    pub loss_parallel: bool,
}

impl Default for TensorParallel {
    fn default() -> Self {
        Self { size: 1, sequence_parallel: false, loss_parallel: false }
    }
}

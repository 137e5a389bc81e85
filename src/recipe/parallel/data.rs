//! The wrappers that data-parallel ranks run, with their own options and defaults.

use serde::{Deserialize, Serialize};

use crate::recipe::parallel::Megatron;
use crate::recipe::{FloatName, Precision};

/// What wraps the model over the data-parallel ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DataParallel {
    /// Nothing.
    #[default]
    None,
    /// `torch.nn.parallel.DistributedDataParallel`.
    Ddp(Ddp),
    /// `torch.nn.DataParallel`: one process for all GPUs.
    Dp(Dp),
    /// `torch.distributed.fsdp.FullyShardedDataParallel`.
    Fsdp1(Fsdp1),
    /// `torch.distributed.fsdp.fully_shard`; with replicas, hybrid sharding (HSDP).
    Fsdp2(Fsdp2),
    /// A DeepSpeed engine with ZeRO.
    DeepSpeed(DeepSpeed),
    /// Megatron-LM core, which splits the model itself too.
    Megatron(Megatron),
}

impl DataParallel {
    /// Whether memory that is in use on another stream comes back when an event has passed (`record_stream`), so that
    /// what is reserved depends on how far the device lags behind: FSDP1, ZeRO-3, and ZeRO's gradients that go to the host while
    /// others are computed.
    #[must_use]
    pub const fn waits_on_events(&self) -> bool {
        match self {
            Self::Fsdp1(_) => true,
            Self::DeepSpeed(of) => {
                of.stage == 3 || (of.offload_optimizer.is_on() && matches!(of.overlap_comm, Some(true)))
            }
            _ => false,
        }
    }

    /// Whether some of what a rank holds lies on a disk.
    #[must_use]
    pub const fn is_on_disk(&self) -> bool {
        matches!(self, Self::DeepSpeed(of) if of.offload_optimizer.is_on_disk() || of.offload_param.is_on_disk())
    }

    /// The name in documents.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ddp(_) => "ddp",
            Self::Dp(_) => "dp",
            Self::Fsdp1(_) => "fsdp1",
            Self::Fsdp2(_) => "fsdp2",
            Self::DeepSpeed(_) => "deepspeed",
            Self::Megatron(_) => "megatron",
        }
    }
}

/// Which part of a job under `torch.nn.DataParallel` is looked at. The micro-batch is that of one GPU: the loop's is as many
/// times as large as there are GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Dp {
    /// The GPU, from 0. The first holds the model, the gradients, the optimizer's states and all outputs; the others are alike.
    pub gpu: u64,
}

/// Options of DDP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Ddp {
    /// Whether gradients are views into the buckets instead of copies beside them.
    pub gradient_as_bucket_view: bool,
    /// The size of a bucket in MiB, from the second step on.
    pub bucket_cap_mb: u64,
    /// Whether the graph is said to be the same in every step.
    pub static_graph: bool,
    /// Whether parameters without a gradient are looked for.
    pub find_unused_parameters: bool,
    /// Whether gradients are reduced after the last micro-batch alone (`no_sync`).
    pub no_sync: bool,
    /// Whether buckets are reduced in BF16 (`bf16_compress_hook`).
    pub bf16_compress: bool,
}

impl Default for Ddp {
    fn default() -> Self {
        Self {
            gradient_as_bucket_view: false,
            bucket_cap_mb: 25,
            static_graph: false,
            find_unused_parameters: false,
            no_sync: false,
            bf16_compress: false,
        }
    }
}

/// The dtypes that a wrapper computes and reduces in; `None`: the parameters' own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct MixedPrecision {
    /// Gathered parameters.
    pub param: Option<FloatName>,
    /// Gradients while they are reduced.
    pub reduce: Option<FloatName>,
    /// A module's output (FSDP2), buffers (FSDP1).
    pub output: Option<FloatName>,
}

/// Where the model is made before it is sharded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum InitDevice {
    /// On no device; its shards are allocated when it has been wrapped.
    #[default]
    Meta,
    /// Whole on each GPU.
    Cuda,
}

/// Which modules get a group of parameters of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Wrap {
    /// Each layer, and the model for the rest.
    #[default]
    Layers,
    /// Each layer, the embedding, and the last norm with the head.
    LayersAndEnds,
    /// The model as a whole.
    Root,
}

/// What happens to a layer's gathered parameters after its forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Reshard {
    /// They are freed and gathered again in backward.
    #[default]
    Always,
    /// They stay until backward has used them.
    Never,
    /// One part in so many stays.
    To(u64),
}

/// Options of `fully_shard`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Fsdp2 {
    /// Copies of the sharded model; more than one is hybrid sharding.
    pub replicas: u64,
    /// What happens to a layer's gathered parameters after its forward.
    pub reshard_after_forward: Reshard,
    /// The same for the root's own. `None`: they stay.
    pub root_reshard_after_forward: Option<bool>,
    /// Whether gathered parameters are freed after backward.
    pub reshard_after_backward: bool,
    /// The dtypes.
    pub mixed_precision: MixedPrecision,
    /// Which modules are groups of their own.
    pub wrap: Wrap,
    /// Whether gradients are reduced after the last micro-batch alone (`set_requires_gradient_sync`).
    pub no_sync: bool,
    /// Whether checkpointed layers are wrapped in `checkpoint_wrapper` before they are sharded, as torchtitan does, and not
    /// checkpointed by transformers' own code inside the sharded layer.
    pub checkpoint_wrapper: bool,
    /// Where the model is made.
    pub init: InitDevice,
    /// Whether shards, their gradients and what the optimizer holds lie in host memory (`CPUOffloadPolicy`).
    pub offload_cpu: bool,
    /// Whether those shards and gradients are in pinned memory.
    pub pin_memory: bool,
}

impl Default for Fsdp2 {
    fn default() -> Self {
        Self {
            replicas: 1,
            reshard_after_forward: Reshard::Always,
            root_reshard_after_forward: None,
            reshard_after_backward: true,
            mixed_precision: MixedPrecision::default(),
            wrap: Wrap::Layers,
            no_sync: false,
            checkpoint_wrapper: false,
            init: InitDevice::Meta,
            offload_cpu: false,
            pin_memory: true,
        }
    }
}

/// What FSDP1 shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ShardingStrategy {
    /// Everything; gathered parameters are freed after forward.
    #[default]
    FullShard,
    /// Everything; gathered parameters stay until backward.
    ShardGradOp,
    /// Nothing.
    NoShard,
    /// `FULL_SHARD` within each replica.
    HybridShard,
    /// `SHARD_GRAD_OP` within each replica.
    #[serde(rename = "_HYBRID_SHARD_ZERO2")]
    HybridShardZero2,
}

/// When FSDP1 gathers the next parameters in backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Prefetch {
    /// Before the current layer's gradients are computed.
    #[default]
    BackwardPre,
    /// After it.
    BackwardPost,
    /// When they are needed.
    None,
}

/// Options of FSDP1; each layer is a unit, and the model for the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Fsdp1 {
    /// What is sharded.
    pub strategy: ShardingStrategy,
    /// Copies of the sharded model, with the hybrid strategies.
    pub replicas: u64,
    /// The dtypes.
    pub mixed_precision: MixedPrecision,
    /// Whether the optimizer sees the original parameters and not the flat ones.
    pub use_orig_params: bool,
    /// Whether the host waits so that at most two gathers are in flight.
    pub limit_all_gathers: bool,
    /// When the next parameters are gathered in backward.
    pub backward_prefetch: Prefetch,
    /// Whether the next parameters are gathered early in forward.
    pub forward_prefetch: bool,
    /// Whether gradients are reduced after the last micro-batch alone (`no_sync`).
    pub no_sync: bool,
    /// As [`Fsdp2::checkpoint_wrapper`].
    pub checkpoint_wrapper: bool,
    /// Where the model is made.
    pub init: InitDevice,
    /// Whether shards lie in host memory (`CPUOffload`).
    pub offload_cpu: bool,
}

impl Default for Fsdp1 {
    fn default() -> Self {
        Self {
            strategy: ShardingStrategy::FullShard,
            replicas: 1,
            mixed_precision: MixedPrecision::default(),
            use_orig_params: true,
            limit_all_gathers: true,
            backward_prefetch: Prefetch::BackwardPre,
            forward_prefetch: false,
            no_sync: false,
            checkpoint_wrapper: false,
            init: InitDevice::Meta,
            offload_cpu: false,
        }
    }
}

/// Options of a DeepSpeed engine; sizes are in elements, and the defaults those of its `zero_optimization` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DeepSpeed {
    /// ZeRO's stage, 0 to 3.
    pub stage: u64,
    /// What the engine trains in.
    pub dtype: FloatName,
    /// Elements of gradients that are reduced at once.
    pub reduce_bucket_size: u64,
    /// Elements of parameters that are gathered at once.
    pub allgather_bucket_size: u64,
    /// Whether reducing overlaps with backward. `None`: with stage 3 alone.
    pub overlap_comm: Option<bool>,
    /// Whether gradients are copied into one buffer as they come.
    pub contiguous_gradients: bool,
    /// Stage 3: elements that are gathered ahead.
    pub stage3_prefetch_bucket_size: u64,
    /// Stage 3: parameters of at most so many elements are not sharded.
    pub stage3_param_persistence_threshold: u64,
    /// Stage 3: elements of gathered parameters that may live at once.
    pub stage3_max_live_parameters: u64,
    /// Stage 3: parameters used again within so many elements are not released.
    pub stage3_max_reuse_distance: u64,
    /// Stage 3: elements that the optimizer steps at once.
    pub sub_group_size: u64,
    /// Whether the model is made under `zero.Init`, sharded from the start.
    pub zero_init: bool,
    /// Where what the optimizer holds lies, which the CPU then steps (stages 1 to 3).
    #[serde(deserialize_with = "device_or_whether")]
    #[cfg_attr(feature = "schema", schemars(with = "Offload"))]
    pub offload_optimizer: Offload,
    /// Where this rank's parts of the parameters lie (stage 3).
    #[serde(deserialize_with = "device_or_whether")]
    #[cfg_attr(feature = "schema", schemars(with = "Offload"))]
    pub offload_param: Offload,
}

/// Where DeepSpeed puts what it takes off the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OffloadDevice {
    /// It stays on the GPU.
    #[default]
    None,
    /// Host memory.
    Cpu,
    /// A disk, through buffers in host memory.
    Nvme,
}

/// DeepSpeed's sections `offload_optimizer` and `offload_param`, with their defaults; sizes are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Offload {
    /// Where it lies.
    pub device: OffloadDevice,
    /// Whether host memory is pinned.
    pub pin_memory: bool,
    /// NVMe: buffers in host memory. `None`: 4 of the optimizer's, 5 of parameters.
    pub buffer_count: Option<u64>,
    /// NVMe, parameters: elements of a buffer.
    pub buffer_size: u64,
    /// NVMe, parameters: elements that stay in host memory.
    pub max_in_cpu: u64,
}

impl Default for Offload {
    fn default() -> Self {
        Self {
            device: OffloadDevice::None,
            pin_memory: true,
            buffer_count: None,
            buffer_size: 100_000_000,
            max_in_cpu: 1_000_000_000,
        }
    }
}

impl Offload {
    /// Whether it leaves the GPU.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        !matches!(self.device, OffloadDevice::None)
    }

    /// Whether it lies on a disk.
    #[must_use]
    pub const fn is_on_disk(&self) -> bool {
        matches!(self.device, OffloadDevice::Nvme)
    }
}

/// Documents of before 0.1 said whether it lies in host memory.
fn device_or_whether<'de, D: serde::Deserializer<'de>>(document: D) -> Result<Offload, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Whether(bool),
        Device(Offload),
    }
    Ok(match Written::deserialize(document)? {
        Written::Whether(on) => {
            let device = if on { OffloadDevice::Cpu } else { OffloadDevice::None };
            Offload { device, ..Offload::default() }
        }
        Written::Device(offload) => offload,
    })
}

impl Default for DeepSpeed {
    fn default() -> Self {
        Self {
            stage: 0,
            dtype: FloatName::Bfloat16,
            reduce_bucket_size: 500_000_000,
            allgather_bucket_size: 500_000_000,
            overlap_comm: None,
            contiguous_gradients: true,
            stage3_prefetch_bucket_size: 50_000_000,
            stage3_param_persistence_threshold: 100_000,
            stage3_max_live_parameters: 1_000_000_000,
            stage3_max_reuse_distance: 1_000_000_000,
            sub_group_size: 1_000_000_000,
            zero_init: false,
            offload_optimizer: Offload::default(),
            offload_param: Offload::default(),
        }
    }
}

impl DeepSpeed {
    /// The precision that computes in the engine's dtype, and keeps the model's own weights in it.
    #[must_use]
    pub const fn precision(&self) -> Precision {
        match self.dtype {
            FloatName::Bfloat16 => Precision::PureBf16,
            FloatName::Float16 => Precision::PureFp16,
            FloatName::Float32 => Precision::Fp32,
        }
    }
}

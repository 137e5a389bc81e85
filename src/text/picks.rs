//! Words for the lists of [`Pick`].

use super::en::English;
use crate::step::readings::OffloadReadings;
use crate::view::number::gib;
use crate::view::{Alternative, Pick};

/// Words for lists and their alternatives.
pub trait PickCatalogue: Sync {
    /// A list's label: `Several GPUs`.
    fn pick(&self, pick: Pick) -> &'static str;
    /// What it is about, as a sentence.
    fn pick_meaning(&self, pick: Pick) -> &'static str;
    /// An alternative, as an option of the list.
    fn alternative(&self, alternative: Alternative) -> &'static str;
    /// What is chosen where the plan has something that the list lacks.
    fn as_in_plan(&self) -> &'static str;
    /// What a rank keeps in host memory, and what passes there and back in a step.
    fn in_host_memory(&self, of: &OffloadReadings) -> String;
    /// The nodes that so many ranks are on, of which each has so many.
    fn nodes(&self, ranks: u64, of_node: u64) -> String;
}

impl PickCatalogue for English {
    fn pick(&self, pick: Pick) -> &'static str {
        match pick {
            Pick::Sharding => "Shared by",
            Pick::Method => "Trained for",
            Pick::Quantizer => "Code of the weights",
            Pick::Float8 => "FP8 products",
            Pick::Kernels => "Fused kernels",
            Pick::Compile => "torch.compile",
            Pick::Loading => "Loading",
            Pick::Average => "Averaged copy (EMA)",
            Pick::Evaluation => "Evaluation",
            Pick::SequenceParallel => "Sequence parallel",
            Pick::DistributedOptimizer => "Distributed optimizer",
            Pick::Batching => "Batches of them",
            Pick::OffloadShards => "Shards",
            Pick::OffloadOptimizer => "ZeRO’s optimizer",
            Pick::OffloadParam => "ZeRO’s parameters",
            Pick::PinMemory => "Pinned host memory",
        }
    }

    fn pick_meaning(&self, pick: Pick) -> &'static str {
        match pick {
            Pick::Sharding => {
                "What of the model each GPU holds: all of it (DDP; nn.DataParallel, whose first GPU holds more), or a shard of the optimizer’s states (ZeRO-1), of the gradients too (ZeRO-2), of everything (FSDP, ZeRO-3)."
            }
            Pick::Method => {
                "Preferences and rewards run two answers at once; GRPO generates, scores and then learns, each a phase with a peak of its own."
            }
            Pick::Quantizer => "How bitsandbytes keeps the frozen weights of linear layers.",
            Pick::Float8 => {
                "Products in 8 bits (Hopper, Ada or newer): torchao casts for each one, with a scale per tensor; Transformer Engine keeps FP8 copies of inputs and weights for backward and is read, not measured."
            }
            Pick::Kernels => "Liger’s kernels hold less for backward; its fused head and loss never holds all logits.",
            Pick::Compile => "Figures are those of the eager step, and no verdict rests on them.",
            Pick::Loading => "from_pretrained can need more while it loads than training starts with.",
            Pick::Average => "A second copy of the weights that follows the first.",
            Pick::Evaluation => "A batch without gradients after the steps, its logits held until the end.",
            Pick::SequenceParallel => {
                "Norms and residuals are split along the sequence over the tensor-parallel ranks."
            }
            Pick::DistributedOptimizer => "Master weights and moments are sharded over the data-parallel ranks.",
            Pick::OffloadShards => {
                "In host memory: shards, their gradients and the optimizer’s states, which the CPU steps; each gather copies them."
            }
            Pick::OffloadOptimizer => {
                "Master weights, gradients and states (offload_optimizer); the CPU steps them. NVMe needs stage 3."
            }
            Pick::OffloadParam => "This rank’s parts of the parameters (offload_param), copied for each gather.",
            Pick::PinMemory => "Pinned memory copies faster; each block takes the next power of two.",
            Pick::Batching => {
                "What a micro-batch’s rows are: each length that differs asks for blocks of its own size."
            }
        }
    }

    fn alternative(&self, alternative: Alternative) -> &'static str {
        match alternative {
            Alternative::NoWrapper => "nothing",
            Alternative::Ddp => "DDP",
            Alternative::Dp => "nn.DataParallel (one process)",
            Alternative::Megatron => "Megatron-LM",
            Alternative::WholeOptimizer => "no",
            Alternative::DistributedOptimizer => "yes",
            Alternative::Fsdp2 => "FSDP2 (fully_shard)",
            Alternative::Fsdp1 => "FSDP1",
            Alternative::Zero1 => "DeepSpeed ZeRO-1",
            Alternative::Zero2 => "DeepSpeed ZeRO-2",
            Alternative::Zero3 => "DeepSpeed ZeRO-3",
            Alternative::NextToken => "the next token",
            Alternative::Dpo => "preferences (DPO)",
            Alternative::DpoPrecomputed => "preferences (DPO), reference computed before",
            Alternative::Reward => "a reward model",
            Alternative::Grpo => "rewards (GRPO)",
            Alternative::GrpoVllm => "rewards (GRPO), vLLM on the same GPU",
            Alternative::Ppo => "rewards (PPO), with a critic, a reference and a reward model",
            Alternative::Nf4Double => "NF4, double quantisation",
            Alternative::Nf4 => "NF4",
            Alternative::Fp4 => "FP4",
            Alternative::Int8 => "LLM.int8()",
            Alternative::NoFloat8 | Alternative::Eager => "no",
            Alternative::Float8 => "torchao float8",
            Alternative::TeDelayed => "Transformer Engine, delayed scaling",
            Alternative::TeCurrent => "Transformer Engine, current scaling",
            Alternative::TeMxfp8 => "Transformer Engine, MXFP8",
            Alternative::NoKernels => "none",
            Alternative::Liger => "Liger",
            Alternative::LigerLoss => "Liger’s head and loss",
            Alternative::Compiled => "yes",
            Alternative::Built => "built on the GPU",
            Alternative::Pretrained => "from_pretrained",
            Alternative::NoAverage => "none",
            Alternative::AverageSame => "AveragedModel",
            Alternative::AverageFloat32 => "FP32",
            Alternative::AverageBfloat16 => "BF16",
            Alternative::NoEvaluation => "none",
            Alternative::Evaluation => "after the steps",
            Alternative::WholeNorms => "no",
            Alternative::SplitNorms => "yes",
            Alternative::PaddedBatches => "as they come, padded to the longest",
            Alternative::BucketedBatches => "grouped by length (group_by_length)",
            Alternative::PackedBatches => "packed: joined and cut",
            Alternative::ShardsOnGpu | Alternative::OptimizerOnGpu | Alternative::ParamOnGpu => "on the GPU",
            Alternative::ShardsOnHost | Alternative::OptimizerOnHost | Alternative::ParamOnHost => "in host memory",
            Alternative::OptimizerOnDisk | Alternative::ParamOnDisk => "on NVMe",
            Alternative::Pinned => "yes",
            Alternative::Pageable => "no",
        }
    }

    fn as_in_plan(&self) -> &'static str {
        "as your plan has it"
    }

    fn in_host_memory(&self, of: &OffloadReadings) -> String {
        let [held, to_device, to_host] = [of.held, of.to_device, of.to_host].map(gib);
        let mut said = format!(
            "Each rank keeps {held} GiB in host memory by the layout; a step copies {to_device} GiB to the GPU and {to_host} GiB back."
        );
        if !of.on_disk.is_zero() {
            let [on_disk, read, written] = [of.on_disk, of.from_disk, of.to_disk].map(gib);
            said += &format!(" {on_disk} GiB lie on its disk: {read} GiB read and {written} GiB written in a step.");
        }
        said
    }

    fn nodes(&self, ranks: u64, of_node: u64) -> String {
        match (ranks.div_ceil(of_node.max(1)), ranks.is_multiple_of(of_node)) {
            (1, _) => format!("1 node with {ranks} GPUs"),
            (nodes, true) => format!("{nodes} nodes with {of_node} GPUs each"),
            (nodes, false) => format!("{nodes} nodes with up to {of_node} GPUs"),
        }
    }
}

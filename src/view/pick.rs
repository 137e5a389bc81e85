//! Lists whose every alternative is a change to the plan: how the job is spread, what is trained for, and what most people
//! leave as it is.

use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, Ddp, DeepSpeed, Dp, Fsdp1, Fsdp2, Megatron, OffloadDevice};
use crate::recipe::{
    Batching, Distribution, Dpo, Ema, Float8Scaling, FloatName, Lengths, LigerKernel, Load, Method, Pairs, Ppo,
    Precision, QuantKind, Reference, Rollout, Vllm,
};

/// A list to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pick {
    /// What wraps the model on several GPUs.
    Sharding,
    /// What is trained for.
    Method,
    /// How frozen weights are coded.
    Quantizer,
    /// Whether products run in FP8.
    Float8,
    /// Fused kernels.
    Kernels,
    /// Whether `torch.compile` runs.
    Compile,
    /// How the model gets onto the device.
    Loading,
    /// An averaged copy of the weights.
    Average,
    /// Whether a batch is evaluated after the steps.
    Evaluation,
    /// Whether tensor parallelism splits norms along the sequence.
    SequenceParallel,
    /// Whether Megatron-LM's optimizer is distributed.
    DistributedOptimizer,
    /// How batches are made of sequences of many lengths.
    Batching,
    /// Whether FSDP's shards lie in host memory.
    OffloadShards,
    /// Where what DeepSpeed's optimizer holds lies.
    OffloadOptimizer,
    /// Where DeepSpeed's parameters lie.
    OffloadParam,
    /// Whether what lies in host memory is pinned.
    PinMemory,
}

/// One alternative of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alternative {
    /// No wrapper.
    NoWrapper,
    /// DDP.
    Ddp,
    /// `nn.DataParallel`.
    Dp,
    /// Megatron-LM core.
    Megatron,
    /// The optimizer's states whole on each rank.
    WholeOptimizer,
    /// The optimizer's states sharded over data-parallel ranks.
    DistributedOptimizer,
    /// `fully_shard`.
    Fsdp2,
    /// `FullyShardedDataParallel`.
    Fsdp1,
    /// DeepSpeed's ZeRO stage 1.
    Zero1,
    /// Stage 2.
    Zero2,
    /// Stage 3.
    Zero3,
    /// The next token.
    NextToken,
    /// Preferences, the reference a second model.
    Dpo,
    /// Preferences, the reference's scores computed before.
    DpoPrecomputed,
    /// A score per sequence.
    Reward,
    /// GRPO, transformers generates.
    Grpo,
    /// GRPO, vLLM generates on the same GPU and sleeps during the update.
    GrpoVllm,
    /// By reinforcement, a critic trained beside the policy.
    Ppo,
    /// NF4, its scale factors quantised too.
    Nf4Double,
    /// NF4.
    Nf4,
    /// FP4.
    Fp4,
    /// LLM.int8().
    Int8,
    /// No products in FP8.
    NoFloat8,
    /// torchao's float8.
    Float8,
    /// Transformer Engine's, by delayed scaling.
    TeDelayed,
    /// Transformer Engine's, by current scaling.
    TeCurrent,
    /// Transformer Engine's MXFP8.
    TeMxfp8,
    /// transformers' own code.
    NoKernels,
    /// What Liger applies unless told otherwise.
    Liger,
    /// Liger's head and loss alone.
    LigerLoss,
    /// Eager.
    Eager,
    /// Compiled.
    Compiled,
    /// Built on the device.
    Built,
    /// `from_pretrained`.
    Pretrained,
    /// No averaged copy.
    NoAverage,
    /// In the model's dtype.
    AverageSame,
    /// In FP32.
    AverageFloat32,
    /// In BF16.
    AverageBfloat16,
    /// No evaluation.
    NoEvaluation,
    /// One batch after the steps.
    Evaluation,
    /// Norms whole on each rank.
    WholeNorms,
    /// Norms split along the sequence.
    SplitNorms,
    /// As they come, padded to the longest.
    PaddedBatches,
    /// Grouped by length.
    BucketedBatches,
    /// Joined and cut.
    PackedBatches,
    /// FSDP's shards on the GPU.
    ShardsOnGpu,
    /// In host memory.
    ShardsOnHost,
    /// The optimizer on the GPU.
    OptimizerOnGpu,
    /// In host memory.
    OptimizerOnHost,
    /// On a disk.
    OptimizerOnDisk,
    /// Parameters on the GPU.
    ParamOnGpu,
    /// In host memory.
    ParamOnHost,
    /// On a disk.
    ParamOnDisk,
    /// Pinned.
    Pinned,
    /// Not pinned.
    Pageable,
}

impl Pick {
    /// Every list.
    pub const ALL: [Self; 16] = [
        Self::Sharding,
        Self::Method,
        Self::Quantizer,
        Self::Float8,
        Self::Kernels,
        Self::Compile,
        Self::Loading,
        Self::Average,
        Self::Evaluation,
        Self::SequenceParallel,
        Self::DistributedOptimizer,
        Self::Batching,
        Self::OffloadShards,
        Self::OffloadOptimizer,
        Self::OffloadParam,
        Self::PinMemory,
    ];

    /// The `id` of its control.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Sharding => "sharding",
            Self::Method => "method",
            Self::Quantizer => "quantizer",
            Self::Float8 => "float8",
            Self::Kernels => "kernels",
            Self::Compile => "compile",
            Self::Loading => "loading",
            Self::Average => "average",
            Self::Evaluation => "evaluation",
            Self::SequenceParallel => "sequence-parallel",
            Self::DistributedOptimizer => "distributed-optimizer",
            Self::Batching => "batching",
            Self::OffloadShards => "offload-shards",
            Self::OffloadOptimizer => "offload-optimizer",
            Self::OffloadParam => "offload-param",
            Self::PinMemory => "pin-memory",
        }
    }

    /// The beginning of the paths of what it changes, by which issues name it.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Sharding => "parallel",
            Self::Method => "recipe.method",
            Self::Quantizer => "recipe.quantization",
            Self::Float8 => "recipe.float8",
            Self::Kernels => "recipe.liger",
            Self::Compile => "recipe.compile",
            Self::Loading => "recipe.load",
            Self::Average => "recipe.ema",
            Self::Evaluation => "recipe.eval_after",
            Self::SequenceParallel => "parallel.tensor.sequence_parallel",
            Self::DistributedOptimizer => "parallel.data.megatron.use_distributed_optimizer",
            Self::Batching => "recipe.lengths",
            // Issues of these stand beside what shards the job.
            Self::OffloadShards => "parallel.data.fsdp.offload_cpu",
            Self::OffloadOptimizer => "parallel.data.deepspeed.offload_optimizer",
            Self::OffloadParam => "parallel.data.deepspeed.offload_param",
            Self::PinMemory => "parallel.data.deepspeed.pin_memory",
        }
    }

    /// Its alternatives, the usual ones first.
    #[must_use]
    pub const fn alternatives(self) -> &'static [Alternative] {
        use Alternative as A;
        match self {
            Self::Sharding => {
                &[A::NoWrapper, A::Ddp, A::Fsdp2, A::Zero1, A::Zero2, A::Zero3, A::Fsdp1, A::Megatron, A::Dp]
            }
            Self::Method => &[A::NextToken, A::Dpo, A::DpoPrecomputed, A::Reward, A::Grpo, A::GrpoVllm, A::Ppo],
            Self::Quantizer => &[A::Nf4Double, A::Nf4, A::Fp4, A::Int8],
            Self::Float8 => &[A::NoFloat8, A::Float8, A::TeDelayed, A::TeCurrent, A::TeMxfp8],
            Self::Kernels => &[A::NoKernels, A::Liger, A::LigerLoss],
            Self::Compile => &[A::Eager, A::Compiled],
            Self::Loading => &[A::Built, A::Pretrained],
            Self::Average => &[A::NoAverage, A::AverageSame, A::AverageFloat32, A::AverageBfloat16],
            Self::Evaluation => &[A::NoEvaluation, A::Evaluation],
            Self::SequenceParallel => &[A::WholeNorms, A::SplitNorms],
            Self::DistributedOptimizer => &[A::WholeOptimizer, A::DistributedOptimizer],
            Self::Batching => &[A::PaddedBatches, A::BucketedBatches, A::PackedBatches],
            Self::OffloadShards => &[A::ShardsOnGpu, A::ShardsOnHost],
            Self::OffloadOptimizer => &[A::OptimizerOnGpu, A::OptimizerOnHost, A::OptimizerOnDisk],
            Self::OffloadParam => &[A::ParamOnGpu, A::ParamOnHost, A::ParamOnDisk],
            Self::PinMemory => &[A::Pinned, A::Pageable],
        }
    }

    /// The alternative that `plan` has; none where it has another one that the list lacks.
    #[must_use]
    pub fn chosen(self, plan: &Plan) -> Option<Alternative> {
        self.alternatives().iter().copied().find(|alternative| {
            let mut made = plan.clone();
            alternative.make(&mut made);
            made == *plan
        })
    }

    /// Whether it has something to say about `plan`.
    #[must_use]
    pub fn applies(self, plan: &Plan) -> bool {
        match self {
            Self::Quantizer => plan.recipe.quantization.is_some(),
            Self::SequenceParallel => plan.parallel.tensor.size > 1,
            Self::DistributedOptimizer => matches!(plan.parallel.data, DataParallel::Megatron(_)),
            Self::OffloadShards => matches!(plan.parallel.data, DataParallel::Fsdp1(_) | DataParallel::Fsdp2(_)),
            Self::OffloadOptimizer => {
                matches!(&plan.parallel.data, DataParallel::DeepSpeed(of) if of.stage > 0 || of.offload_optimizer.is_on())
            }
            Self::OffloadParam => {
                matches!(&plan.parallel.data, DataParallel::DeepSpeed(of) if of.stage == 3 || of.offload_param.is_on())
            }
            // FSDP1 always pins.
            Self::PinMemory => match &plan.parallel.data {
                DataParallel::Fsdp2(of) => of.offload_cpu,
                DataParallel::DeepSpeed(of) => of.offload_optimizer.is_on() || of.offload_param.is_on(),
                _ => false,
            },
            _ => true,
        }
    }
}

impl Alternative {
    /// Makes `plan` one that has it. What else is said of the same thing stays.
    pub fn make(self, plan: &mut Plan) {
        let recipe = &mut plan.recipe;
        let data = &mut plan.parallel.data;
        match self {
            Self::NoWrapper => *data = DataParallel::None,
            Self::Ddp if matches!(data, DataParallel::Ddp(_)) => {}
            Self::Ddp => *data = DataParallel::Ddp(Ddp::default()),
            Self::Dp if matches!(data, DataParallel::Dp(_)) => {}
            Self::Dp => *data = DataParallel::Dp(Dp::default()),
            Self::Megatron if matches!(data, DataParallel::Megatron(_)) => {}
            Self::Megatron => *data = DataParallel::Megatron(Megatron::default()),
            Self::WholeOptimizer | Self::DistributedOptimizer => {
                if let DataParallel::Megatron(of) = data {
                    of.use_distributed_optimizer = self == Self::DistributedOptimizer;
                }
            }
            Self::Fsdp2 if matches!(data, DataParallel::Fsdp2(_)) => {}
            Self::Fsdp2 => *data = DataParallel::Fsdp2(Fsdp2::default()),
            Self::Fsdp1 if matches!(data, DataParallel::Fsdp1(_)) => {}
            Self::Fsdp1 => *data = DataParallel::Fsdp1(Fsdp1::default()),
            Self::Zero1 => zero(plan, 1),
            Self::Zero2 => zero(plan, 2),
            Self::Zero3 => zero(plan, 3),
            Self::NextToken => recipe.method = None,
            Self::Dpo | Self::DpoPrecomputed => {
                let before = match recipe.method {
                    Some(Method::Dpo(of)) => of,
                    _ => Dpo::default(),
                };
                let reference = if self == Self::Dpo { Reference::Model } else { Reference::Precomputed };
                recipe.method = Some(Method::Dpo(Dpo { reference, ..before }));
            }
            Self::Reward if matches!(recipe.method, Some(Method::Reward(_))) => {}
            Self::Reward => recipe.method = Some(Method::Reward(Pairs::default())),
            Self::Grpo | Self::GrpoVllm => {
                let before = match recipe.method {
                    Some(Method::Grpo(of)) => of,
                    _ => Rollout::default(),
                };
                let asleep = Vllm { sleep: true, ..Vllm::default() };
                let vllm = (self == Self::GrpoVllm).then(|| before.vllm.unwrap_or(asleep));
                recipe.method = Some(Method::Grpo(Rollout { vllm, ..before }));
            }
            Self::Ppo if matches!(recipe.method, Some(Method::Ppo(_))) => {}
            Self::Ppo => recipe.method = Some(Method::Ppo(Ppo::default())),
            Self::Nf4Double => quantizer(plan, QuantKind::Nf4, true),
            Self::Nf4 => quantizer(plan, QuantKind::Nf4, false),
            Self::Fp4 => quantizer(plan, QuantKind::Fp4, false),
            Self::Int8 => quantizer(plan, QuantKind::Int8, false),
            Self::NoFloat8 => (recipe.float8, recipe.float8_te) = (false, None),
            Self::Float8 => (recipe.float8, recipe.float8_te) = (true, None),
            Self::TeDelayed => (recipe.float8, recipe.float8_te) = (false, Some(Float8Scaling::Delayed)),
            Self::TeCurrent => (recipe.float8, recipe.float8_te) = (false, Some(Float8Scaling::Current)),
            Self::TeMxfp8 => (recipe.float8, recipe.float8_te) = (false, Some(Float8Scaling::Mxfp8)),
            Self::NoKernels => recipe.liger.clear(),
            Self::Liger => recipe.liger = LigerKernel::DEFAULT.into(),
            Self::LigerLoss => recipe.liger = vec![LigerKernel::FusedLinearCrossEntropy],
            Self::Eager => recipe.compile = false,
            Self::Compiled => recipe.compile = true,
            Self::Built => recipe.load = Load::Init,
            Self::Pretrained => recipe.load = Load::Pretrained,
            Self::NoAverage => recipe.ema = None,
            Self::AverageSame => recipe.ema = Some(Ema::Same),
            Self::AverageFloat32 => recipe.ema = Some(Ema::Float32),
            Self::AverageBfloat16 => recipe.ema = Some(Ema::Bfloat16),
            Self::NoEvaluation => recipe.eval_after = false,
            Self::Evaluation => recipe.eval_after = true,
            Self::WholeNorms => plan.parallel.tensor.sequence_parallel = false,
            Self::SplitNorms => plan.parallel.tensor.sequence_parallel = true,
            Self::PaddedBatches if recipe.lengths.is_none() => {}
            Self::PaddedBatches => batching(plan, Batching::Padded),
            Self::BucketedBatches => batching(plan, Batching::Bucketed),
            Self::PackedBatches => batching(plan, Batching::Packed),
            Self::ShardsOnGpu | Self::ShardsOnHost => {
                if let DataParallel::Fsdp1(Fsdp1 { offload_cpu, .. }) | DataParallel::Fsdp2(Fsdp2 { offload_cpu, .. }) =
                    data
                {
                    *offload_cpu = self == Self::ShardsOnHost;
                }
            }
            Self::OptimizerOnGpu | Self::OptimizerOnHost | Self::OptimizerOnDisk => {
                if let DataParallel::DeepSpeed(of) = data {
                    of.offload_optimizer.device = self.device();
                }
            }
            Self::ParamOnGpu | Self::ParamOnHost | Self::ParamOnDisk => {
                if let DataParallel::DeepSpeed(of) = data {
                    of.offload_param.device = self.device();
                }
            }
            Self::Pinned | Self::Pageable => match data {
                DataParallel::Fsdp2(of) => of.pin_memory = self == Self::Pinned,
                DataParallel::DeepSpeed(of) => {
                    of.offload_optimizer.pin_memory = self == Self::Pinned;
                    of.offload_param.pin_memory = self == Self::Pinned;
                }
                _ => {}
            },
        }
    }
}

impl Alternative {
    /// Where DeepSpeed puts what it is about.
    const fn device(self) -> OffloadDevice {
        match self {
            Self::OptimizerOnHost | Self::ParamOnHost => OffloadDevice::Cpu,
            Self::OptimizerOnDisk | Self::ParamOnDisk => OffloadDevice::Nvme,
            _ => OffloadDevice::None,
        }
    }
}

/// ZeRO's stage; an engine that is new trains in the recipe's dtype.
fn zero(plan: &mut Plan, stage: u64) {
    let dtype = match plan.recipe.precision {
        Some(Precision::Fp32) => FloatName::Float32,
        Some(Precision::AmpFp16 | Precision::PureFp16) => FloatName::Float16,
        _ => FloatName::Bfloat16,
    };
    let before = match &plan.parallel.data {
        DataParallel::DeepSpeed(of) => of.clone(),
        _ => DeepSpeed { dtype, ..DeepSpeed::default() },
    };
    plan.parallel.data = DataParallel::DeepSpeed(DeepSpeed { stage, ..before });
}

/// How batches are made, of sequences of many lengths.
fn batching(plan: &mut Plan, of: Batching) {
    plan.recipe.lengths.get_or_insert_with(|| Lengths::new(Distribution::Fixed)).batching = of;
}

/// The code of weights that are quantised.
fn quantizer(plan: &mut Plan, kind: QuantKind, double_quant: bool) {
    if let Some(of) = &mut plan.recipe.quantization {
        (of.kind, of.double_quant) = (kind, double_quant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{ALL_LINEAR, Lora, Quantization};
    use crate::view::example;

    #[test]
    fn each_alternative_is_the_one_that_is_chosen_after_it() {
        for pick in Pick::ALL {
            for &alternative in pick.alternatives() {
                let mut plan = example();
                plan.recipe.lora = Some(Lora::new(16, vec![ALL_LINEAR.into()]));
                plan.recipe.quantization =
                    Some(Quantization { kind: QuantKind::Nf4, double_quant: true, compute_dtype: None, prepare: true });
                let of = match pick {
                    Pick::DistributedOptimizer => Alternative::Megatron,
                    Pick::OffloadShards => Alternative::Fsdp1,
                    Pick::OffloadOptimizer | Pick::OffloadParam | Pick::PinMemory => Alternative::Zero3,
                    _ => Alternative::NoWrapper,
                };
                of.make(&mut plan);
                alternative.make(&mut plan);
                assert_eq!(pick.chosen(&plan), Some(alternative), "{pick:?}");
            }
        }
    }

    #[test]
    fn what_a_plan_says_beside_the_list_stays() {
        let mut plan = example();
        plan.parallel.data = DataParallel::DeepSpeed(DeepSpeed { reduce_bucket_size: 7, ..DeepSpeed::default() });
        assert_eq!(Pick::Sharding.chosen(&plan), None);
        Alternative::Zero2.make(&mut plan);
        let DataParallel::DeepSpeed(of) = &plan.parallel.data else { panic!() };
        assert_eq!((of.stage, of.reduce_bucket_size), (2, 7));
    }
}

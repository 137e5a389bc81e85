//! What to change, and what each change saves: the plan is walked again with the change, and the difference is the
//! price. One file per remedy.

use serde::{Deserialize, Serialize};

mod adafactor;
mod autocast;
mod checkpointing;
mod chunked_loss;
mod drop_outputs;
mod eight_bit_optimizer;
mod expandable_segments;
mod float8;
mod forloop_optimizer;
mod fp16;
mod free_gradients;
mod freeze_embedding;
mod fused_loss;
mod fused_optimizer;
mod gradient_buckets;
mod half_checkpointing;
mod larger_gpu;
mod larger_micro_batch;
mod liger_kernels;
mod lion_eight_bit;
mod lora;
mod more_gpus;
mod narrow_average;
mod no_checkpointing;
mod offload_activations;
mod optimizer_in_backward;
mod paged_eight_bit;
mod paged_optimizer;
mod precompute_reference;
mod pure_bf16;
mod qlora;
mod sdpa_attention;
mod selective_checkpointing;
mod sequence_parallel;
mod shard_more;
mod shorter_sequence;
mod smaller_micro_batch;
mod tensor_parallel;

use crate::bill::{Instant, Tiers};
use crate::decide::{Question, VerdictKind};
use crate::estimate::Peak;
use crate::machine::Hardware;
use crate::plan::Plan;
use crate::recipe::{Optimizer, OptimizerName};
use crate::throughput::Throughput;
use crate::units::Bytes;

/// The remedies. The message catalogue has a sentence for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemedyId {
    /// `fused=True`: the optimizer's step holds no temporaries.
    FusedOptimizer,
    /// `sdpa` instead of `eager`: no tensors of batch × heads × sequence².
    SdpaAttention,
    /// Activation checkpointing: layers are run again in backward.
    Checkpointing,
    /// All but products and attention is run again in backward.
    SelectiveCheckpointing,
    /// Every other layer is run again in backward.
    HalfCheckpointing,
    /// What is kept for backward lies in host memory.
    OffloadActivations,
    /// Head and cross-entropy as one kernel: no whole logits.
    FusedLoss,
    /// Liger's kernels, the fused loss among them.
    LigerKernels,
    /// Head and cross-entropy in pieces.
    ChunkedLoss,
    /// `foreach=False`: temporaries of the largest tensor alone.
    ForloopOptimizer,
    /// DDP's gradients as views into its buckets.
    GradientBuckets,
    /// The next stage of sharding on the same GPUs.
    ShardMore,
    /// Norms and residuals split along the sequence.
    SequenceParallel,
    /// Each layer's matrices shared by several GPUs.
    TensorParallel,
    /// More GPUs that share the model's state.
    MoreGpus,
    /// A smaller micro-batch and as much more accumulation: the same tokens per step.
    SmallerMicroBatch,
    /// `set_to_none=True`: gradients are freed between steps.
    FreeGradients,
    /// The model's outputs are not kept through backward.
    DropOutputs,
    /// `expandable_segments:True`: less memory reserved and unused.
    ExpandableSegments,
    /// Each gradient is used and freed in backward.
    OptimizerInBackward,
    /// States in managed memory.
    PagedOptimizer,
    /// The reference's scores computed before training (DPO).
    PrecomputeReference,
    /// States of one byte per element.
    EightBitOptimizer,
    /// States of one byte per element, in managed memory.
    PagedEightBit,
    /// Second moments by rows and columns, no first.
    Adafactor,
    /// Lion's one state in one byte per element.
    LionEightBit,
    /// The input embedding not trained.
    FreezeEmbedding,
    /// The averaged copy of the weights in BF16.
    NarrowAverage,
    /// Products of linear layers in FP8: faster.
    Float8,
    /// A larger micro-batch and less accumulation where there is room: faster.
    LargerMicroBatch,
    /// Checkpointing off where there is room: faster.
    NoCheckpointing,
    /// Autocast instead of FP32 products.
    Autocast,
    /// Weights, gradients and states in BF16.
    PureBf16,
    /// Low-rank adapters instead of every weight.
    Lora,
    /// Low-rank adapters over weights in 4 bits.
    Qlora,
    /// FP16 where the hardware has no BF16: faster.
    Fp16,
    /// Half the sequence length: trains on less context.
    ShorterSequence,
    /// The smallest larger card of the catalogue that the job fits.
    LargerGpu,
}

/// What a remedy changes beside the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The same training, perhaps at another speed.
    SameTraining,
    /// Other numerics or other data: the training changes.
    ChangesTraining,
    /// The same job on other hardware.
    OtherHardware,
}

/// A remedy with its price.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PricedRemedy {
    /// Which.
    pub id: RemedyId,
    /// What else it changes.
    pub effect: Effect,
    /// The plan with the change: what *Try* adopts.
    pub plan: Plan,
    /// The allocated peak with the change.
    pub peak_bytes: Bytes,
    /// Bytes by which the allocated peak falls; negative where it rises. Zero: no help at the instant that binds.
    pub saved_bytes: i64,
    /// Bytes by which the process's peak falls. `None`: not known.
    pub saved_process_bytes: Option<i64>,
    /// Bytes by which the tensors' total falls at each instant, in the order of [`Instant::ALL`]; negative where it rises.
    pub saved_at: [i64; Instant::ALL.len()],
    /// Where the peak is with the change.
    pub binding: Peak,
    /// What a token takes longer, as a share: 0.3 is three tenths more, negative is faster. `None`: not known.
    pub time: Option<f64>,
    /// The questions at which it is offered.
    pub helps: Vec<Question>,
    /// The verdict with the change.
    pub verdict: VerdictKind,
    /// The speed with the change, where it can be estimated.
    pub throughput: Option<Throughput>,
}

impl RemedyId {
    /// Whether the throughput knows what the change does to a step's time. It does not know the pieces of a loss, pages that move
    /// to the host, or small updates between the products of backward.
    pub(super) const fn is_timed(self) -> bool {
        !matches!(self, Self::ChunkedLoss | Self::PagedOptimizer | Self::PagedEightBit | Self::OptimizerInBackward)
    }
}

/// A saving below this share of the peak is no reason to change anything.
const LEAST_SAVING: f64 = 0.01;

impl PricedRemedy {
    /// Whether it lowers the allocated peak by enough to matter.
    #[must_use]
    pub fn saves_allocated(&self) -> bool {
        matters(self.saved_bytes, self.peak_bytes)
    }

    /// Whether it lowers what is allocated or what the process holds by enough to matter.
    #[must_use]
    pub fn saves(&self) -> bool {
        self.saves_allocated() || self.saved_process_bytes.is_some_and(|saved| matters(saved, self.peak_bytes))
    }
}

fn matters(saved: i64, peak: Bytes) -> bool {
    u64::try_from(saved).is_ok_and(|saved| saved > 0 && Bytes(saved).as_f64() >= LEAST_SAVING * peak.as_f64())
}

/// One remedy: where it helps, what it changes beside the memory, and the change.
pub(super) struct Rule {
    pub(super) id: RemedyId,
    pub(super) effect: Effect,
    /// The questions at which it is offered.
    pub(super) helps: &'static [Question],
    /// The plan with the change; `None` where the precondition does not hold, such as a change already made.
    pub(super) change: fn(&Situation<'_>) -> Option<Plan>,
}

/// What a remedy may look at.
pub(super) struct Situation<'a> {
    pub(super) plan: &'a Plan,
    pub(super) hardware: &'a Hardware,
    pub(super) tiers: &'a Tiers,
    pub(super) verdict: VerdictKind,
    /// The verdict on another plan; `None` where it cannot be walked.
    pub(super) verdict_of: &'a dyn Fn(&Plan) -> Option<VerdictKind>,
}

impl Situation<'_> {
    /// The plan with a change, where the precondition holds.
    fn with(&self, holds: bool, change: impl FnOnce(&mut Plan)) -> Option<Plan> {
        holds.then(|| {
            let mut plan = self.plan.clone();
            change(&mut plan);
            plan
        })
    }

    /// The plan with another optimizer in the place of plain Adam or AdamW.
    fn in_place_of_adam(&self, name: OptimizerName) -> Option<Plan> {
        let now = self.plan.recipe.optimizer;
        self.with(matches!(now.name, OptimizerName::AdamW | OptimizerName::Adam), |plan| {
            plan.recipe.optimizer = Optimizer { name, in_backward: now.in_backward, ..Optimizer::default() };
        })
    }

    /// The first of `plans` that fits; where none does, the last that can be walked: it saves most.
    fn first_that_fits(&self, plans: impl IntoIterator<Item = Plan>) -> Option<Plan> {
        let mut last = None;
        for plan in plans {
            match (self.verdict_of)(&plan) {
                Some(VerdictKind::Fits) => return Some(plan),
                Some(_) => last = Some(plan),
                None => {}
            }
        }
        last
    }
}

/// The rule of a remedy.
pub(super) fn rule(id: RemedyId) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

/// Every remedy. The order is that of the articles: what costs least first.
pub(super) const RULES: &[Rule] = &[
    fused_optimizer::RULE,
    forloop_optimizer::RULE,
    sdpa_attention::RULE,
    drop_outputs::RULE,
    free_gradients::RULE,
    gradient_buckets::RULE,
    expandable_segments::RULE,
    fused_loss::RULE,
    liger_kernels::RULE,
    chunked_loss::RULE,
    sequence_parallel::RULE,
    shard_more::RULE,
    selective_checkpointing::RULE,
    half_checkpointing::RULE,
    checkpointing::RULE,
    smaller_micro_batch::RULE,
    optimizer_in_backward::RULE,
    offload_activations::RULE,
    precompute_reference::RULE,
    paged_optimizer::RULE,
    no_checkpointing::RULE,
    larger_micro_batch::RULE,
    autocast::RULE,
    eight_bit_optimizer::RULE,
    paged_eight_bit::RULE,
    lion_eight_bit::RULE,
    adafactor::RULE,
    narrow_average::RULE,
    pure_bf16::RULE,
    freeze_embedding::RULE,
    lora::RULE,
    qlora::RULE,
    fp16::RULE,
    float8::RULE,
    shorter_sequence::RULE,
    tensor_parallel::RULE,
    more_gpus::RULE,
    larger_gpu::RULE,
];

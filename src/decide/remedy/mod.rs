//! What to change, and what each change saves: the plan is walked again with the change, and the difference is the
//! price. One file per remedy.

use serde::{Deserialize, Serialize};

mod autocast;
mod checkpointing;
mod drop_outputs;
mod eight_bit_optimizer;
mod expandable_segments;
mod fp16;
mod free_gradients;
mod fused_optimizer;
mod larger_gpu;
mod lora;
mod no_checkpointing;
mod optimizer_in_backward;
mod paged_optimizer;
mod precompute_reference;
mod pure_bf16;
mod qlora;
mod sdpa_attention;
mod shorter_sequence;
mod smaller_micro_batch;

use crate::bill::Tiers;
use crate::decide::{Question, VerdictKind};
use crate::machine::Hardware;
use crate::plan::Plan;
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
    /// The questions at which it is offered.
    pub helps: Vec<Question>,
    /// The verdict with the change.
    pub verdict: VerdictKind,
    /// The speed with the change, where it can be estimated.
    pub throughput: Option<Throughput>,
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
    /// The verdict on another plan; `None` where it cannot be walked.
    pub(super) verdict_of: &'a dyn Fn(&Plan) -> Option<VerdictKind>,
}

/// Every remedy. The order is that of the articles: what costs least first.
pub(super) const RULES: [Rule; 19] = [
    fused_optimizer::RULE,
    sdpa_attention::RULE,
    drop_outputs::RULE,
    free_gradients::RULE,
    expandable_segments::RULE,
    checkpointing::RULE,
    smaller_micro_batch::RULE,
    optimizer_in_backward::RULE,
    precompute_reference::RULE,
    paged_optimizer::RULE,
    no_checkpointing::RULE,
    autocast::RULE,
    eight_bit_optimizer::RULE,
    pure_bf16::RULE,
    lora::RULE,
    qlora::RULE,
    fp16::RULE,
    shorter_sequence::RULE,
    larger_gpu::RULE,
];

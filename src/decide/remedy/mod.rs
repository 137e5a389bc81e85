//! What to change, and what each change saves: the plan is walked again with the change, and the difference is the
//! price. One file per remedy.

use serde::{Deserialize, Serialize};

use crate::decide::VerdictKind;
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
    /// Half the micro-batch, twice the accumulation: the same tokens per step.
    SmallerMicroBatch,
    /// `set_to_none=True`.
    FreeGradients,
    /// Do not keep the model's outputs through backward.
    DropOutputs,
    /// Checkpointing off where there is room: faster.
    NoCheckpointing,
    /// Another precision recipe: changes the numerics.
    PureBf16,
    /// Autocast instead of FP32: changes the numerics.
    Autocast,
    /// FP16 where the hardware has no BF16: changes the numerics.
    Fp16,
    /// Another optimizer with less state: changes the training.
    SgdMomentum,
    /// The smallest larger card of the catalogue that fits.
    LargerGpu,
    /// A shorter sequence: trains on less context.
    ShorterSequence,
}

/// What a remedy changes beside the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The same training, perhaps at another speed.
    SameTraining,
    /// The same job on other hardware.
    OtherHardware,
    /// Other numerics or another optimizer: the training changes.
    ChangesTraining,
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
    /// The verdict with the change.
    pub verdict: VerdictKind,
    /// The speed with the change, where it can be estimated.
    pub throughput: Option<Throughput>,
}

//! What is kept for backward beyond the plain step: activation checkpointing and how the loss is computed.

use serde::{Deserialize, Serialize};

/// Activation checkpointing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Checkpointing {
    /// Every saved tensor is kept.
    #[default]
    None,
    /// Each layer keeps its input and is run again in backward (`torch.utils.checkpoint`, `use_reentrant=False`).
    Full,
    /// The same as an autograd function of its own, with a backward inside the backward (`use_reentrant=True`).
    Reentrant,
    /// As `full`, but the outputs of matrix products and of attention are kept instead of computed again
    /// (`create_selective_checkpoint_contexts`).
    Selective,
    /// As `selective`, of the products without a bias only the first, third, fifth … of each layer: torchtitan's
    /// `selective_ac_option = "op"` (torchtitan/distributed/activation_checkpoint.py).
    SelectiveHalf,
    /// Layers 0, k, 2k, … are run again (`use_reentrant=False`); the others keep every saved tensor.
    Every(u64),
    /// Nothing is run again: what a layer saves, weights included, goes to host memory and comes back in backward
    /// (`torch.autograd.graph.save_on_cpu` around each layer).
    Offload,
    /// As `full`, the layers' inputs in host memory.
    FullOffload,
}

impl Checkpointing {
    /// The modes without a number, in the order they are offered.
    pub const NAMED: [Self; 6] =
        [Self::None, Self::Full, Self::Selective, Self::Reentrant, Self::Offload, Self::FullOffload];

    /// Of how many layers one is run again in backward; none: no layer is.
    #[must_use]
    pub const fn recomputes_one_in(self) -> Option<u64> {
        match self {
            Self::None | Self::Offload => None,
            Self::Full | Self::Selective | Self::SelectiveHalf | Self::Reentrant | Self::FullOffload => Some(1),
            Self::Every(k) => Some(k),
        }
    }
}

/// A kernel of Liger's that runs in the place of what transformers writes in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LigerKernel {
    /// Rotary embeddings, in place.
    Rope,
    /// RMSNorm as one operation.
    RmsNorm,
    /// The product of the MLP's gate and its other half as one operation (SwiGLU, GEGLU).
    #[serde(alias = "geglu")]
    Swiglu,
    /// Cross-entropy over the logits in place.
    CrossEntropy,
    /// Head and cross-entropy in pieces, their gradients in forward: logits are never whole.
    FusedLinearCrossEntropy,
}

impl LigerKernel {
    /// What Liger applies unless told otherwise (`use_liger_kernel`).
    pub const DEFAULT: [Self; 4] = [Self::Rope, Self::RmsNorm, Self::Swiglu, Self::FusedLinearCrossEntropy];
    /// Every kernel.
    pub const ALL: [Self; 5] =
        [Self::Rope, Self::RmsNorm, Self::Swiglu, Self::FusedLinearCrossEntropy, Self::CrossEntropy];

    /// The name in documents and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rope => "rope",
            Self::RmsNorm => "rms_norm",
            Self::Swiglu => "swiglu",
            Self::CrossEntropy => "cross_entropy",
            Self::FusedLinearCrossEntropy => "fused_linear_cross_entropy",
        }
    }
}

/// How the loss of a causal language model is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// As transformers does: the logits of every token at once.
    #[default]
    Hf,
    /// Head and cross-entropy over n pieces of the tokens, each run again in backward: one piece's logits at a time.
    Chunked(u64),
    /// The head over n pieces of each sequence, whose logits are all kept, and the cross-entropy in FP32 piece by piece
    /// (torchtune's `CEWithChunkedOutputLoss`).
    ChunkedOutputs(u64),
    /// The logits and the loss of the last n tokens of each sequence.
    LogitsToKeep(u64),
}

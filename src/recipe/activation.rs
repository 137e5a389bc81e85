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
    /// `torch.nn.functional.linear_cross_entropy` of hidden states and the head's weight (`nn.LinearCrossEntropyLoss`).
    LinearCrossEntropy(LinearCrossEntropy),
}

/// How `linear_cross_entropy` is called: its `LinearCrossEntropyOptions`, whose defaults these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LinearCrossEntropy {
    /// `options=None`: the logits of all rows at once, in the hidden states' dtype.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub reference: bool,
    /// Rows per piece (`batch_chunk_size`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_chunk_size: Option<u64>,
    /// The n of `chunking_method="aspect_ratio:n"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aspect_ratio: Option<u64>,
    /// What is kept in the accumulator's dtype.
    pub acc_policy: AccPolicy,
    /// `acc_dtype=torch.float32`, whatever the hidden states' dtype.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub acc_float32: bool,
}

/// `acc_policy` of `LinearCrossEntropyOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AccPolicy {
    /// `compact`, which half precision accumulates in FP32.
    #[default]
    Auto,
    /// Each piece's part is added to the weight's gradient itself.
    Compact,
    /// Each piece's part of the weight's gradient is a tensor of its own.
    Accurate,
}

impl LinearCrossEntropy {
    /// `LinearCrossEntropyOptions()`.
    pub const AUTO: Self = Self {
        reference: false,
        batch_chunk_size: None,
        aspect_ratio: None,
        acc_policy: AccPolicy::Auto,
        acc_float32: false,
    };

    /// Whether products are added to the weight's gradient itself.
    #[must_use]
    pub(crate) fn is_compact(&self) -> bool {
        self.acc_policy != AccPolicy::Accurate
    }

    /// Whether the accumulator's dtype is chosen by the device.
    #[must_use]
    pub(crate) fn resolves_accumulator(&self) -> bool {
        self.acc_policy == AccPolicy::Auto
    }

    /// Rows of one piece of `n` rows of `h` features and `classes` classes (`_adjust` and `_compute_batch_chunk_size`,
    /// torch/nn/modules/linear_cross_entropy_options.py, read at 2.15).
    #[must_use]
    pub(crate) fn rows(&self, n: u64, h: u64, classes: u64) -> u64 {
        let most = n.max(1);
        if let (Some(size), None) = (self.batch_chunk_size, self.aspect_ratio) {
            return size.clamp(1, most);
        }
        let pieces = classes.div_ceil(h.max(1)).max(1);
        let by_ratio = n.div_ceil(pieces).next_power_of_two() / self.aspect_ratio.unwrap_or(1).max(1);
        let rows = by_ratio.min(n);
        // The most that takes no more than all logits at once.
        let cap = if self.aspect_ratio.is_none() && self.is_compact() {
            match n.saturating_mul(classes) / h.saturating_mul(4).max(1) {
                0 => 1,
                most => 1 << most.ilog2(),
            }
        } else {
            u64::MAX
        };
        rows.min(cap).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `LinearCrossEntropyOptions._adjust` of PyTorch 2.15 answers, called with these sizes and FP32 on `cuda`.
    #[test]
    fn rows_of_a_piece() {
        let auto = LinearCrossEntropy::default();
        let ratio = LinearCrossEntropy { aspect_ratio: Some(3), ..auto };
        let size = LinearCrossEntropy { batch_chunk_size: Some(300), ..auto };
        let accurate = LinearCrossEntropy { acc_policy: AccPolicy::Accurate, ..auto };
        let sizes = [(8192, 4096, 128_256), (777, 512, 32_000), (640, 512, 400), (5, 4096, 4096), (4096, 4096, 1000)];
        let rows = |of: LinearCrossEntropy| sizes.map(|(n, h, v)| of.rows(n, h, v));
        assert_eq!(rows(auto), [256, 16, 64, 1, 128]);
        assert_eq!(rows(ratio), [85, 5, 341, 2, 1365]);
        assert_eq!(rows(size), [300, 300, 300, 5, 300]);
        assert_eq!(rows(accurate), [256, 16, 640, 5, 4096]);
    }

    #[test]
    fn rows_are_chosen_in_one_way() {
        let issues = |batch_chunk_size, aspect_ratio| {
            let options = LinearCrossEntropy { batch_chunk_size, aspect_ratio, ..LinearCrossEntropy::AUTO };
            crate::recipe::Recipe { loss: Loss::LinearCrossEntropy(options), ..Default::default() }.issues().len()
        };
        let found = [issues(None, None), issues(Some(64), None), issues(None, Some(2))];
        assert_eq!(
            (found, issues(Some(0), None), issues(None, Some(65)), issues(Some(64), Some(2))),
            ([0; 3], 1, 1, 1)
        );
    }
}

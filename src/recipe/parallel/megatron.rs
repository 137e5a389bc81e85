//! Megatron-LM core's options that decide memory, named as its arguments; sizes are those of [`super::Parallel`].

use serde::{Deserialize, Serialize};

/// How attention runs in Megatron-LM (`--attention-backend`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MegatronAttention {
    /// A fused kernel of cuDNN, or flash attention: no scores as tensors.
    #[default]
    Fused,
    /// Flash attention: as `fused`, its output laid out once more where a micro-batch has several sequences.
    Flash,
    /// Scores, probabilities and dropped probabilities as tensors.
    Unfused,
}

/// How Megatron-LM computes cross-entropy (`--cross-entropy-loss-fusion`, `--cross-entropy-fusion-impl`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MegatronLoss {
    /// Over FP32 logits, operation by operation.
    #[default]
    Unfused,
    /// Over FP32 logits, compiled.
    Native,
    /// Transformer Engine's kernel, in place over the logits.
    Te,
}

/// What of a pipeline stage is run again in backward (`--recompute-granularity`, `--recompute-method`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MegatronRecompute {
    /// Nothing.
    #[default]
    None,
    /// The core of attention (`selective`, `core_attn`).
    CoreAttention,
    /// So many layers of each stage, one by one (`full`, `block`).
    Block(u64),
    /// Every layer, so many at once (`full`, `uniform`).
    Uniform(u64),
}

/// How ranks of a context-parallel group share keys and values (`--cp-comm-type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ContextCommunication {
    /// In a ring, from rank to rank.
    #[default]
    P2p,
    /// Heads for tokens, all to all.
    A2a,
}

/// Options of Megatron-LM core. A rank holds BF16 weights, FP32 main gradients and, in FP32, master weights and Adam's two
/// moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Megatron {
    /// Whether master weights and moments are sharded over the data-parallel ranks, context-parallel ones among them.
    pub use_distributed_optimizer: bool,
    /// Whether layers are Transformer Engine's and not Megatron-LM's own (`--transformer-impl`).
    pub transformer_engine: bool,
    /// Attention's kernels.
    pub attention_backend: MegatronAttention,
    /// How the loss is computed.
    pub cross_entropy: MegatronLoss,
    /// Whether products of weights' gradients add into the main gradients.
    pub gradient_accumulation_fusion: bool,
    /// Whether bias, dropout and residual are one compiled operation.
    pub bias_dropout_fusion: bool,
    /// The share that dropout drops of hidden states.
    pub hidden_dropout: f64,
    /// The share that dropout drops of attention's probabilities.
    pub attention_dropout: f64,
    /// Model chunks on each pipeline rank, whose schedules interleave.
    pub virtual_pipeline: u64,
    /// Layers of the first stage, if other than the others'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoder_first_pipeline_num_layers: Option<u64>,
    /// Layers of the last stage, if other than the others'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoder_last_pipeline_num_layers: Option<u64>,
    /// Whether the embedding and the loss count as a layer each where layers are dealt out to stages.
    pub account_for_embedding_and_loss_in_pipeline_split: bool,
    /// What is run again.
    pub recompute: MegatronRecompute,
    /// Tensor-parallel ranks that share each expert. `None`: as many as share the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert_tensor_parallel_size: Option<u64>,
    /// How context-parallel ranks share keys and values.
    pub cp_comm_type: ContextCommunication,
    /// Whether a mask of attention comes with the batch (`--no-create-attention-mask-in-dataloader` says no).
    pub create_attention_mask: bool,
    /// The vocabulary is padded to a multiple of this and of the tensor-parallel ranks.
    pub make_vocab_size_divisible_by: u64,
    /// The pipeline rank that is looked at, from 0. `None`: the one that holds the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
}

impl Default for Megatron {
    fn default() -> Self {
        Self {
            use_distributed_optimizer: false,
            transformer_engine: true,
            attention_backend: MegatronAttention::Fused,
            cross_entropy: MegatronLoss::Unfused,
            gradient_accumulation_fusion: true,
            bias_dropout_fusion: true,
            hidden_dropout: 0.1,
            attention_dropout: 0.1,
            virtual_pipeline: 1,
            decoder_first_pipeline_num_layers: None,
            decoder_last_pipeline_num_layers: None,
            account_for_embedding_and_loss_in_pipeline_split: false,
            recompute: MegatronRecompute::None,
            expert_tensor_parallel_size: None,
            cp_comm_type: ContextCommunication::P2p,
            create_attention_mask: true,
            make_vocab_size_divisible_by: 128,
            rank: None,
        }
    }
}

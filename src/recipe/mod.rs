//! How the model is trained: precision, optimizer, attention, checkpointing, batch.

mod activation;
mod adapter;
mod lengths;
mod limits;
mod method;
pub mod optimizer;
pub mod parallel;
mod quantization;

use serde::{Deserialize, Serialize};

pub use activation::{AccPolicy, Checkpointing, LigerKernel, LinearCrossEntropy, Loss};
pub use adapter::{ALL_LINEAR, FloatName, Lora, LoraBias, MAX_LORA_RANK};
pub use lengths::{Batching, Distribution, Lengths};
pub use limits::{MAX_GRAD_ACCUM, MAX_LOSS_CHUNKS, MAX_MICRO_BATCH, MAX_SEQ_LEN};
pub use method::{Dpo, Method, Pairs, Ppo, Reference, Rollout, Vllm};
pub use optimizer::{Optimizer, OptimizerImpl, OptimizerName, ScaleType};
pub use parallel::Parallel;
pub use quantization::{Float8Scaling, Load, QuantKind, Quantization};

/// A training recipe for one GPU. Field names and values are those of the reference cases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// Which dtype holds what. `None`: the user does not know; every candidate is walked and the dearest one shown.
    pub precision: Option<Precision>,
    /// Optimizer and its implementation.
    pub optimizer: Optimizer,
    /// Attention implementation. `None`: what transformers and PyTorch choose by default (`sdpa`, where they have it).
    pub attention: Option<Attention>,
    /// Forces one backend of `sdpa`. `None`: PyTorch chooses by GPU generation, dtype and shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sdpa_backend: Option<SdpaBackend>,
    /// Activation checkpointing.
    pub checkpointing: Checkpointing,
    /// Sequences per micro-batch.
    #[serde(alias = "batch")]
    pub micro_batch: u64,
    /// Tokens per sequence, padding included.
    #[serde(alias = "seq")]
    pub seq_len: u64,
    /// How long the sequences of a run are, for what many steps do to the allocator. `None`: all of `seq_len`. What is said of
    /// one step is said of one at `seq_len`, which none is longer than.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lengths: Option<Lengths>,
    /// Tokens per decoder sequence, of models with an encoder and a decoder. `None`: as `seq_len`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dec_seq: Option<u64>,
    /// Micro-batches per optimizer step.
    pub grad_accum: u64,
    /// Low-rank adapters over frozen weights; `None`: every weight is trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// torchao's float8 training, eager: the products of linear layers, the head's excepted, run in FP8 with a scale per
    /// tensor (`convert_to_float8_training`).
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub float8: bool,
    /// Transformer Engine's FP8 products of linear layers, the head's among them, under its `fp8_autocast` (accelerate's
    /// `convert_model`). Read and not measured: no verdict says that such a step fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float8_te: Option<Float8Scaling>,
    /// `torch.compile` in its default mode. The walk is the eager step's all the same: no verdict rests on it.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub compile: bool,
    /// An averaged copy of the weights, updated after every step; `None`: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<Ema>,
    /// Weights in 4 or 8 bits under the adapters; they are loaded with `from_pretrained`, whatever `load` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<Quantization>,
    /// How the model gets onto the device.
    pub load: Load,
    /// Gradient clipping by norm: the largest norm, or `None`.
    pub clip_grad: Option<f64>,
    /// Whether the model's outputs (logits) stay alive through backward, as when a loop keeps `outputs` in a variable.
    pub keep_outputs: bool,
    /// Whether the loop's variables (the loss, the batch, outputs that are kept) live on until the next step assigns them anew,
    /// as in a script whose loop is in no function.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub keep_variables: bool,
    /// Whether the loop lets go of the loss's graph before the optimizer steps, as transformers' Trainer does, which keeps a
    /// detached loss (`training_step`); else its variable holds the leaves of the graph until the next step.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub detaches_loss: bool,
    /// What `zero_grad` does. `None`: as this PyTorch does by default, which frees the gradients since 2.0.
    pub zero_grad: Option<ZeroGrad>,
    /// How the loss is computed.
    pub loss: Loss,
    /// The lengths of the sequences that one row holds, kept apart by their positions (`DataCollatorWithFlattening`); empty:
    /// every row is a sequence. They add up to `seq_len`, and there is one row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub packed: Vec<u64>,
    /// Whether some sequence of a micro-batch is shorter than `seq_len`: the batch brings an `attention_mask`, and attention
    /// takes a mask of the padding. A method says it itself.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub padded: bool,
    /// Liger's kernels that run (`use_liger_kernel`); empty: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub liger: Vec<LigerKernel>,
    /// Names, or beginnings of names, of parameters that are not trained: `model.embed_tokens`, `model.layers.0`. Under
    /// checkpointing the input embedding's output is then made to need a gradient (`enable_input_require_grads`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// Whether a batch is evaluated after the steps, without gradients, its outputs alive at the end.
    pub eval_after: bool,
    /// Preferences, rewards or reinforcement learning; `None`: the plain step on next tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            precision: Some(Precision::AmpBf16),
            optimizer: Optimizer::default(),
            attention: None,
            sdpa_backend: None,
            checkpointing: Checkpointing::None,
            micro_batch: 1,
            seq_len: 512,
            lengths: None,
            dec_seq: None,
            grad_accum: 1,
            lora: None,
            float8: false,
            float8_te: None,
            compile: false,
            ema: None,
            quantization: None,
            load: Load::Init,
            clip_grad: None,
            keep_outputs: false,
            keep_variables: false,
            detaches_loss: false,
            zero_grad: None,
            loss: Loss::Hf,
            packed: Vec::new(),
            padded: false,
            liger: Vec::new(),
            freeze: Vec::new(),
            eval_after: false,
            method: None,
        }
    }
}

/// Which dtype holds weights, gradients and states, and in which the products run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// FP32 everywhere: 4 + 4 + 8 B per parameter with AdamW.
    Fp32,
    /// `torch.autocast` to BF16 over FP32 weights: 4 + 4 + 8, plus the cast copies of linear weights.
    AmpBf16,
    /// `torch.autocast` to FP16 with a gradient scaler: as `amp_bf16`.
    AmpFp16,
    /// BF16 weights, gradients and states: 2 + 2 + 4.
    PureBf16,
    /// `torch.autocast` to BF16 over BF16 weights, as a Trainer with `bf16=True` runs a model that was loaded in BF16: 2 + 2 + 4.
    /// No weight is cast; what autocast runs in FP32 is.
    Bf16Autocast,
    /// FP16 weights, gradients and states, without a gradient scaler: 2 + 2 + 4.
    PureFp16,
    /// BF16 weights with FP32 master weights and FP32 main gradients, as Megatron-LM: 2 + 4 + 4 + 8.
    Bf16Master,
    /// The articles' rule of thumb, parameters × (2 + 2 + 8): what readers know, not what a framework holds.
    RuleOfThumb,
}

impl Precision {
    /// Every recipe, in the order they are offered.
    pub const ALL: [Self; 8] = [
        Self::AmpBf16,
        Self::PureBf16,
        Self::Bf16Autocast,
        Self::Fp32,
        Self::AmpFp16,
        Self::Bf16Master,
        Self::PureFp16,
        Self::RuleOfThumb,
    ];

    /// The name in documents and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::AmpBf16 => "amp_bf16",
            Self::AmpFp16 => "amp_fp16",
            Self::PureBf16 => "pure_bf16",
            Self::Bf16Autocast => "bf16_autocast",
            Self::PureFp16 => "pure_fp16",
            Self::Bf16Master => "bf16_master",
            Self::RuleOfThumb => "rule_of_thumb",
        }
    }
}

/// Attention implementation (`attn_implementation` in transformers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// `scaled_dot_product_attention`: flash, memory-efficient, cuDNN or math, as PyTorch chooses.
    Sdpa,
    /// Scores and probabilities as tensors of batch × heads × sequence².
    Eager,
    /// The kernels of the package flash-attn.
    #[serde(rename = "flash_attention_2")]
    FlashAttention2,
}

/// A backend of `scaled_dot_product_attention`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SdpaBackend {
    /// Flash attention.
    FlashAttention,
    /// Memory-efficient attention.
    EfficientAttention,
    /// cuDNN attention.
    CudnnAttention,
    /// The composite of products and softmax.
    Math,
}

/// How an averaged copy of the weights (exponential moving average) is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ema {
    /// `torch.optim.swa_utils.AveragedModel`: a copy of the whole model, buffers and frozen weights included.
    Same,
    /// Of the trained weights, in FP32.
    Float32,
    /// Of the trained weights, in BF16.
    Bfloat16,
}

/// What `optimizer.zero_grad` does with gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ZeroGrad {
    /// Frees them (`set_to_none=True`, PyTorch's default since 2.0).
    #[default]
    None,
    /// Keeps and zeroes them.
    Zero,
    /// Frees them between forward and backward, so that they are there during the forward: the closure of Lightning's loops
    /// (`lightning/pytorch/loops/optimization/automatic.py`: `zero_grad` follows `training_step`).
    AfterForward,
}

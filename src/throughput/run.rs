//! How a recipe runs: its dtype, its stack of kernels, what it moves besides.

use super::card::{Compute, Stack, figure};
use super::net::Net;
use super::step::{Again, Run, Trained};
use super::work::{Work, again};
use crate::recipe::parallel::{Megatron, MegatronAttention, MegatronRecompute};
use crate::recipe::{
    Attention, Checkpointing, LigerKernel, Optimizer, OptimizerImpl, OptimizerName, Precision, QuantKind, Recipe,
    SdpaBackend,
};

impl Compute {
    /// What the products of a precision run in. `None`: no framework runs it.
    #[must_use]
    pub const fn of(precision: Precision) -> Option<Self> {
        match precision {
            Precision::Fp32 => Some(Self::Fp32),
            Precision::AmpFp16 | Precision::PureFp16 => Some(Self::Fp16),
            Precision::AmpBf16 | Precision::PureBf16 | Precision::Bf16Autocast | Precision::Bf16Master => {
                Some(Self::Bf16)
            }
            Precision::RuleOfThumb => None,
        }
    }
}

impl Stack {
    /// The stack that a recipe runs: what transformers writes, compiled, or with kernels of Liger's in its place.
    fn of(recipe: &Recipe) -> Option<Self> {
        if recipe.compile {
            return Self::named("compiled");
        }
        let mut stack = Self::named("transformers")?;
        let fused = Self::named("flash")?;
        for kernel in &recipe.liger {
            match kernel {
                LigerKernel::RmsNorm => stack.hidden = fused.hidden,
                LigerKernel::Rope => stack.heads = fused.heads,
                LigerKernel::Swiglu => stack.inner = fused.inner,
                // One pass over the logits writes their gradient in their place.
                LigerKernel::CrossEntropy | LigerKernel::FusedLinearCrossEntropy => stack.vocabulary = 6.0,
            }
        }
        Some(stack)
    }
}

impl Run {
    /// How `recipe` runs. `None`: its precision is not known, or none that a framework runs; or its products are Transformer
    /// Engine's.
    #[must_use]
    pub fn of(work: &Work, recipe: &Recipe) -> Option<Self> {
        match &work.megatron {
            None => Self::of_recipe(work, recipe),
            Some(options) => Self::of_megatron(Self::of_recipe(work, recipe)?, work, options),
        }
    }

    /// What Megatron-LM core runs in the place of a recipe's kernels: Transformer Engine's, its fused Adam over FP32 master
    /// weights, and of a stage again what its own arguments say. `None`: its own layers, which are in no published row, or stages
    /// that hold unlike numbers of layers, of which the slowest sets the pace.
    #[expect(clippy::cast_precision_loss, reason = "a time is no exact figure")]
    fn of_megatron(plain: Self, work: &Work, options: &Megatron) -> Option<Self> {
        let uneven = options.decoder_first_pipeline_num_layers.or(options.decoder_last_pipeline_num_layers).is_some();
        if !options.transformer_engine || uneven {
            return None;
        }
        let a_stage = (work.net.layers / work.layout.pipeline as f64).max(1.0);
        Some(Self {
            stack: Stack::named("transformer-engine")?,
            flash: options.attention_backend != MegatronAttention::Unfused,
            again: match options.recompute {
                MegatronRecompute::None => Again::default(),
                MegatronRecompute::CoreAttention => Again { attention: 1.0, ..Again::default() },
                MegatronRecompute::Block(layers) => Again::layers((layers as f64 / a_stage).min(1.0)),
                MegatronRecompute::Uniform(_) => Again::layers(1.0),
            },
            cast: 0.0,
            // Its products add to the FP32 gradients themselves, which are read and written once.
            accumulate: if options.gradient_accumulation_fusion { 8.0 } else { 12.0 },
            // Gradients are read in FP32, master weights and both moments read and written, BF16 weights written.
            optimizer: 30.0,
            offloaded: 0.0,
            ..plain
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a time is no exact figure")]
    fn of_recipe(work: &Work, recipe: &Recipe) -> Option<Self> {
        let precision = recipe.precision?;
        if recipe.float8_te.is_some() {
            return None;
        }
        let compute = Compute::of(precision)?;
        let net = &work.net;
        let held = net.products.iter().map(super::Product::parameters).sum::<f64>() + net.head() + net.looked_up;
        let [inputs, outputs] = work.adapted.map(|width| width as f64);
        let trained = match work.adapters {
            Some(parameters) => Trained::Adapters { parameters: parameters as f64, inputs, outputs, ends: false },
            None => Trained::Share((work.trained as f64 / held.max(1.0)).min(1.0)),
        };
        let frozen = work.adapters.is_some();
        let master = matches!(precision, Precision::AmpBf16 | Precision::AmpFp16);
        let gradient = match precision {
            _ if frozen => 4.0,
            Precision::PureBf16 | Precision::Bf16Autocast | Precision::PureFp16 => 2.0,
            _ => 4.0,
        };
        let tokens = (recipe.micro_batch * recipe.seq_len) as f64;
        let quantised = recipe.quantization.map(|q| q.kind);
        Some(Self {
            compute,
            float8: recipe.float8.then_some(false),
            stack: Stack::of(recipe)?,
            flash: recipe.attention != Some(Attention::Eager) && recipe.sdpa_backend != Some(SdpaBackend::Math),
            again: again(recipe.checkpointing),
            micro_batch: recipe.micro_batch as f64,
            seq_len: recipe.seq_len as f64,
            accumulation: recipe.grad_accum as f64,
            trained,
            dequantize: match quantised {
                None => 0.0,
                Some(QuantKind::Nf4 | QuantKind::Fp4 | QuantKind::Int8) => figure("dequantize", "bitsandbytes"),
            },
            // Autocast reads each weight and writes it narrower; gradients go the other way.
            cast: match (master, frozen) {
                (true, false) => 12.0,
                (true, true) => 6.0,
                (false, _) => 0.0,
            },
            accumulate: 3.0 * gradient,
            optimizer: optimizer_bytes(&recipe.optimizer, gradient),
            offloaded: offloaded(recipe.checkpointing, net, compute, tokens),
        })
    }

    /// Seconds below which a step's layers cannot be launched, on one rank without a pipeline.
    pub(super) fn launch_seconds(&self, net: &Net) -> f64 {
        let [forward, backward] = self.stack.launch;
        net.layers * self.accumulation * (forward * (1.0 + self.again.pointwise) + backward)
    }
}

/// Bytes a parameter that an update moves: parameters are read and written, gradients read; each state is read and written.
/// The foreach and the for-loop implementations pass over them two to three times.
fn optimizer_bytes(optimizer: &Optimizer, width: f64) -> f64 {
    // States as tensors of the weights' width; one kernel or several.
    let (states, one_kernel) = match optimizer.name {
        OptimizerName::Sgd if optimizer.momentum == 0.0 => (0.0, false),
        // One byte per element of each state; their scales are a few percent of that.
        OptimizerName::AdamW8bit | OptimizerName::PagedAdamW8bit => (2.0 / width, true),
        OptimizerName::Lion8bit | OptimizerName::PagedLion8bit => (1.0 / width, true),
        OptimizerName::AdEmaMix8bit => (3.0 / width, true),
        OptimizerName::AdamW32bit | OptimizerName::PagedAdamW32bit | OptimizerName::AdEmaMix => (8.0 / width, true),
        OptimizerName::Lion => (4.0 / width, true),
        OptimizerName::Sgd | OptimizerName::Adagrad | OptimizerName::RmsProp | OptimizerName::Muon => (1.0, false),
        // Second moments of rows and columns count for nothing; norms and means read the gradient three more times.
        OptimizerName::Adafactor | OptimizerName::AdafactorHf => (1.5, false),
        _ => (2.0, false),
    };
    let once = width * (3.0 + 2.0 * states);
    if one_kernel || optimizer.implementation == Some(OptimizerImpl::Fused) { once } else { 2.5 * once }
}

/// Bytes a token and layer that go to host memory: a layer's input, or all that it saves, its weights included.
fn offloaded(checkpointing: Checkpointing, net: &Net, compute: Compute, tokens: f64) -> f64 {
    let width = compute.width();
    match checkpointing {
        Checkpointing::FullOffload => width * net.hidden,
        Checkpointing::Offload => {
            let saved: f64 = net.products.iter().map(|p| (p.inputs + p.outputs) * p.times).sum();
            let weights: f64 = net.products.iter().map(super::Product::parameters).sum();
            width * (saved + weights / tokens.max(1.0)) / net.layers
        }
        _ => 0.0,
    }
}

//! How long a step takes, roughly: floating-point operations over the hardware's peak times a range of efficiencies,
//! no faster than kernels can be launched, plus the bytes that the optimizer moves.

mod work;

use serde::{Deserialize, Serialize};

pub use work::Work;

use crate::bill::{Provenance, ProvenanceKind};
use crate::machine::{Hardware, Peaks};
use crate::recipe::{OptimizerImpl, OptimizerName, Precision, Recipe};
use crate::units::Seconds;

/// A low and a high figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// The low end.
    pub low: f64,
    /// The high end.
    pub high: f64,
}

impl Range {
    fn times(self, factor: f64) -> Self {
        Self { low: self.low * factor, high: self.high * factor }
    }
}

/// A rough estimate of speed. Always shown as rough, and as a range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Tokens of one optimizer step.
    pub tokens_per_step: u64,
    /// Floating-point operations per token, recomputation included.
    pub flops_per_token: f64,
    /// The formula in symbols: `N` parameters in the matrix products of a token, `A` those of adapters, `L` layers, `q` width
    /// of the queries, `s` sequence.
    pub formula: String,
    /// The same with the numbers in it.
    pub numbers: String,
    /// The hardware's dense peak for the recipe's dtype, FLOP/s.
    pub peak_flops: f64,
    /// Share of the peak that is reached, recomputation counted as work.
    pub efficiency: Range,
    /// Seconds of a step below which kernels cannot be launched.
    pub launch_seconds: Range,
    /// Seconds of the optimizer's step. `None`: the memory bandwidth is not known, and it is left out.
    pub optimizer_seconds: Option<Range>,
    /// Where the efficiency comes from.
    pub provenance: Provenance,
    /// Tokens a second.
    pub tokens_per_second: Range,
    /// Seconds per optimizer step.
    pub step_seconds: (Seconds, Seconds),
}

/// Shares of the best measured matrix product that eager PyTorch reaches over a whole step: 0.4 with autocast and
/// small batches, 0.6 with flash attention and large ones. A judgement from published runs (llm-foundry, torchtitan,
/// torchtune, nanoGPT): 28–50 % of the peak.
const EAGER: Range = Range { low: 0.4, high: 0.6 };
/// The lowest and the highest best matrix product of NVIDIA's cards (stas00/ml-engineering, MAMF tables).
const BEST_PRODUCT: Range = Range { low: 0.73, high: 0.87 };
/// Seconds to launch one operation from Python.
const LAUNCH: Range = Range { low: 5e-6, high: 10e-6 };
/// Operations of one layer, forward and backward.
const LAYER_OPS: (f64, f64) = (60.0, 100.0);
/// The share of the memory bandwidth that an update reaches.
const BANDWIDTH_SHARE: f64 = 0.8;

/// Estimates the speed of `recipe` on `hardware`, where the hardware's peak for the recipe's dtype is known.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a rough figure")]
pub fn rough(work: &Work, recipe: &Recipe, hardware: &Hardware) -> Option<Throughput> {
    let precision = recipe.precision?;
    let peak_flops = peak(precision, hardware.peaks)? * 1e12;
    let recomputes = recipe.checkpointing.recomputes_one_in().is_some();
    let (formula, flops_per_token, numbers) = work.flops_per_token(recipe);
    let micro_tokens = recipe.micro_batch.checked_mul(recipe.seq_len)?;
    let tokens_per_step = micro_tokens.checked_mul(recipe.grad_accum)?;

    let (best, of) = match hardware.matmul_fraction {
        Some(f) => (Range { low: f, high: f }, "this card's best measured matrix product"),
        None => (BEST_PRODUCT, "the best measured matrix products of such cards"),
    };
    let efficiency = Range { low: EAGER.low * best.low, high: EAGER.high * best.high };
    let flops = flops_per_token * tokens_per_step as f64;
    let passes = if recomputes { 2.0 * LAYER_OPS.0 + LAYER_OPS.1 } else { LAYER_OPS.0 + LAYER_OPS.1 };
    let launch_seconds = LAUNCH.times(work.layers as f64 * passes * recipe.grad_accum as f64);
    let optimizer_seconds = hardware.bandwidth_gbps.and_then(|gbps| update(work, recipe, precision, gbps * 1e9));
    let optimizer = optimizer_seconds.unwrap_or(Range { low: 0.0, high: 0.0 });

    let shortest = (flops / (peak_flops * efficiency.high)).max(launch_seconds.low) + optimizer.low;
    let longest = (flops / (peak_flops * efficiency.low)).max(launch_seconds.high) + optimizer.high;
    (shortest > 0.0 && longest.is_finite()).then(|| Throughput {
        tokens_per_step,
        flops_per_token,
        formula,
        numbers,
        peak_flops,
        efficiency,
        launch_seconds,
        optimizer_seconds,
        provenance: Provenance {
            kind: ProvenanceKind::Assumed,
            source: format!(
                "eager PyTorch reaches 0.4 to 0.6 of {of} over a whole step: a judgement from published runs"
            ),
        },
        tokens_per_second: Range { low: tokens_per_step as f64 / longest, high: tokens_per_step as f64 / shortest },
        step_seconds: (Seconds(shortest), Seconds(longest)),
    })
}

/// The peak of the dtype that the products run in, TFLOP/s.
fn peak(precision: Precision, peaks: Peaks) -> Option<f64> {
    match precision {
        Precision::Fp32 => peaks.fp32,
        Precision::AmpFp16 | Precision::PureFp16 => peaks.fp16,
        Precision::AmpBf16 | Precision::PureBf16 | Precision::Bf16Master => peaks.bf16,
        // No framework runs it.
        Precision::RuleOfThumb => None,
    }
}

/// The update reads parameters, gradients and states and writes parameters and states. The foreach and the for-loop
/// implementations pass over them two to three times.
#[expect(clippy::cast_precision_loss, reason = "a rough figure")]
fn update(work: &Work, recipe: &Recipe, precision: Precision, bytes_per_second: f64) -> Option<Range> {
    let width = match precision {
        // Adapters are FP32 whatever lies beneath them.
        _ if recipe.lora.is_some() => 4.0,
        Precision::Fp32 | Precision::AmpBf16 | Precision::AmpFp16 | Precision::Bf16Master => 4.0,
        Precision::PureBf16 | Precision::PureFp16 => 2.0,
        Precision::RuleOfThumb => return None,
    };
    // Parameters are read and written, gradients read; each state is read and written.
    let states = match recipe.optimizer.name {
        OptimizerName::Sgd if recipe.optimizer.momentum == 0.0 => 0.0,
        // One byte per element of each state; their scales are a few percent of that.
        OptimizerName::AdamW8bit | OptimizerName::PagedAdamW8bit => 2.0 / width,
        OptimizerName::Lion8bit | OptimizerName::PagedLion8bit => 1.0 / width,
        OptimizerName::AdEmaMix8bit => 3.0 / width,
        OptimizerName::AdamW32bit | OptimizerName::PagedAdamW32bit | OptimizerName::AdEmaMix => 8.0 / width,
        OptimizerName::Lion => 4.0 / width,
        OptimizerName::Sgd | OptimizerName::Adagrad | OptimizerName::RmsProp | OptimizerName::Muon => 1.0,
        // Second moments of rows and columns count for nothing; norms and means read the gradient three more times.
        OptimizerName::Adafactor | OptimizerName::AdafactorHf => 1.5,
        _ => 2.0,
    };
    let tensors = 3.0 + 2.0 * states;
    let once = work.trained as f64 * width * tensors / (bytes_per_second * BANDWIDTH_SHARE);
    Some(match recipe.optimizer.implementation {
        Some(OptimizerImpl::Fused) => Range { low: once, high: once },
        _ => Range { low: 2.0 * once, high: 3.0 * once },
    })
}

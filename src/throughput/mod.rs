//! How long a step takes: each kernel by its size and what is reached on the card, what ranks say to each other, and what the
//! host does. The figures are published ones, each with its source (`efficiency.json`); the result is a range.

mod card;
mod kernel;
mod layout;
mod link;
mod net;
mod run;
mod step;
#[cfg(test)]
mod tests;
mod work;

use serde::{Deserialize, Serialize};

pub use card::{Card, Compute, Stack};
pub use layout::{Layout, Shard};
pub use net::{Experts, Net, Product};
pub use step::{Again, Run, Share, Times, Trained, time};
pub use work::Work;

use crate::bill::{Provenance, ProvenanceKind};
use crate::machine::Hardware;
use crate::recipe::Recipe;
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

    fn under(self, whole: f64) -> Self {
        Self { low: whole / self.high, high: whole / self.low }
    }
}

/// Seconds of one part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Which.
    pub part: Share,
    /// Seconds.
    pub seconds: f64,
}

/// An estimate of speed, as a range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Tokens of one optimizer step, of all ranks.
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
    /// HFU: share of the peak that is reached, recomputation counted as work, attention as what a causal kernel computes.
    pub efficiency: Range,
    /// MFU: the same of what has to be computed, recomputation not counted, attention counted in full (PaLM's convention).
    pub mfu: Range,
    /// Seconds of a step below which kernels cannot be launched.
    pub launch_seconds: Range,
    /// Seconds of the optimizer's step.
    pub optimizer_seconds: Option<Range>,
    /// Where the figures come from.
    pub provenance: Provenance,
    /// Tokens a second, of all ranks.
    pub tokens_per_second: Range,
    /// Sequences a second, of all ranks.
    pub samples_per_second: Range,
    /// Seconds per optimizer step: the shortest and the longest.
    pub step_seconds: (Seconds, Seconds),
    /// The most likely, of which `parts` add up.
    pub likely_seconds: Seconds,
    /// Its parts, in the order of a step, those that take any time.
    pub parts: Vec<Part>,
    /// Ranks that share the step.
    pub ranks: u64,
}

/// What training over many tokens takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// Tokens.
    pub tokens: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// Days.
    pub days: Range,
    /// Hours of all GPUs together.
    pub gpu_hours: Range,
}

impl Throughput {
    /// The most likely seconds of one token, of all ranks.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a time is no exact figure")]
    pub fn per_token(&self) -> f64 {
        self.likely_seconds.0 / (self.tokens_per_step.max(1) as f64)
    }

    /// What `tokens` take, at full speed throughout.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a time is no exact figure")]
    pub fn budget(&self, tokens: u64) -> Budget {
        let seconds = self.tokens_per_second.under(tokens as f64);
        Budget {
            tokens,
            steps: tokens.div_ceil(self.tokens_per_step.max(1)),
            days: seconds.times(1.0 / 86_400.0),
            gpu_hours: seconds.times(self.ranks as f64 / 3600.0),
        }
    }

    /// The estimate with a factor that a measured step gives: the parts grow alike, and the range narrows to it.
    #[must_use]
    pub fn calibrated(mut self, factor: f64) -> Self {
        let measured = self.likely_seconds.0 * factor;
        let (shortest, longest) = (self.step_seconds.0.0, self.step_seconds.1.0);
        let per_step = self.tokens_per_second.low * longest;
        let samples = self.samples_per_second.low * longest;
        let done = (self.efficiency.low * longest, self.mfu.low * longest);
        let one = |whole: f64| Range { low: whole / measured, high: whole / measured };
        self.tokens_per_second = one(per_step);
        self.samples_per_second = one(samples);
        self.efficiency = one(done.0);
        self.mfu = one(done.1);
        self.step_seconds = (Seconds(measured), Seconds(measured));
        self.likely_seconds = Seconds(measured);
        self.optimizer_seconds = self.optimizer_seconds.map(|range| range.times(measured / shortest.max(1e-12)));
        for part in &mut self.parts {
            part.seconds *= factor;
        }
        self.provenance = Provenance {
            kind: ProvenanceKind::Measured,
            source: "a step that was measured; its parts are the estimate's, scaled to it".into(),
        };
        self
    }
}

impl Throughput {
    /// The estimate where steps reach so large a share of the efficiency that is assumed of kernels, with its interval.
    #[must_use]
    pub fn reaching(self, share: f64, within: Range) -> Self {
        let mut speed = self.calibrated(1.0 / share);
        let Range { low, high } = within.times(1.0 / share);
        let around = |range: Range| Range { low: range.low * low, high: range.high * high };
        speed.tokens_per_second = around(speed.tokens_per_second);
        speed.samples_per_second = around(speed.samples_per_second);
        speed.efficiency = around(speed.efficiency);
        speed.mfu = around(speed.mfu);
        let likely = speed.likely_seconds.0;
        speed.step_seconds = (Seconds(likely / high), Seconds(likely / low.max(1e-3)));
        speed
    }
}

/// The published interval around a prediction, as factors.
fn interval() -> Range {
    Range { low: card::figure("interval", "low"), high: card::figure("interval", "high") }
}

/// Estimates the speed of `recipe` on `hardware`, where the hardware's peak for the recipe's dtype and its bandwidth are
/// known.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a time is no exact figure")]
pub fn rough(work: &Work, recipe: &Recipe, hardware: &Hardware) -> Option<Throughput> {
    let run = Run::of(work, recipe)?;
    let card = Card::of(hardware, run.compute)?;
    let times = time(&work.net, &run, &work.layout, &card);
    let seconds = times.total();
    let (formula, flops_per_token, numbers) = work.flops_per_token(recipe, run.again);
    let samples = recipe.micro_batch.checked_mul(recipe.grad_accum)?.checked_mul(work.layout.data)?;
    let tokens_per_step = samples.checked_mul(recipe.seq_len)?;
    let range = interval().times(seconds);
    let of_peak = |per_token: f64| {
        let done = per_token * tokens_per_step as f64 / (work.layout.world as f64 * card.peak);
        range.under(done)
    };
    let within = |share: Share| interval().times(times.get(share));
    let parts = Share::ALL.into_iter().map(|part| Part { part, seconds: times.get(part) });
    (seconds > 0.0 && seconds.is_finite()).then(|| Throughput {
        tokens_per_step,
        flops_per_token,
        formula,
        numbers,
        peak_flops: card.peak,
        efficiency: of_peak(flops_per_token),
        mfu: of_peak(work.model_flops_per_token(recipe.seq_len)),
        launch_seconds: interval().times(run.launch_seconds(&work.net)),
        optimizer_seconds: Some(within(Share::Optimizer)),
        provenance: Provenance { kind: ProvenanceKind::Assumed, source: card.source.clone() },
        tokens_per_second: range.under(tokens_per_step as f64),
        samples_per_second: range.under(samples as f64),
        step_seconds: (Seconds(range.low), Seconds(range.high)),
        likely_seconds: Seconds(seconds),
        parts: parts.filter(|part| part.seconds > 0.0).collect(),
        ranks: work.layout.world,
    })
}

//! How long a step takes, roughly: floating-point operations over the hardware's peak times a range of efficiencies.

use serde::{Deserialize, Serialize};

use crate::bill::Provenance;
use crate::units::Seconds;

/// A low and a high figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// The low end.
    pub low: f64,
    /// The high end.
    pub high: f64,
}

/// A rough estimate of speed. Always shown as rough, and as a range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Tokens of one optimizer step.
    pub tokens_per_step: u64,
    /// Floating-point operations per token, recomputation included.
    pub flops_per_token: f64,
    /// The formula with the numbers in it.
    pub numbers: String,
    /// The hardware's dense peak for the recipe's dtype, FLOP/s.
    pub peak_flops: f64,
    /// Share of the peak that is reached, recomputation counted as work.
    pub efficiency: Range,
    /// Where the efficiency comes from.
    pub provenance: Provenance,
    /// Tokens a second.
    pub tokens_per_second: Range,
    /// Seconds per optimizer step, shortest.
    pub step_shortest: Seconds,
    /// Seconds per optimizer step, longest.
    pub step_longest: Seconds,
}

//! A model that is not known here: what several measurements of it say about other batches and sequences.
//!
//! What forward keeps is a fixed part and a part per token; under eager attention also one per token and token before it. At
//! the peak some more per token is alive beside it (the loss), unless something fixed is higher: the gradients' end of
//! backward, the optimizer's step. So two or more measurements at different batches or sequences give the fixed parts and the
//! parts per token, and no more is claimed: the range that was measured is part of the answer.

use crate::measure::{Measurement, ReadingName, StepReading, Which};
use crate::recipe::Recipe;
use crate::units::Bytes;

/// What one measurement says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
    /// Tokens of a sequence.
    pub seq_len: u64,
    /// Allocated before the step.
    pub base: f64,
    /// Growth over forward.
    pub forward: f64,
    /// The peak of forward and backward.
    pub peak: f64,
    /// The peak of the optimizer's step; 0 where it was not measured apart.
    pub step: f64,
}

/// A fit to points: labelled *empirical* wherever it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Empirical {
    /// The highest base.
    pub base: f64,
    /// What forward keeps whatever the batch is.
    pub fixed: f64,
    /// What forward keeps for each token.
    pub per_token: f64,
    /// What it keeps for each token and token of its sequence; 0 where the points show none.
    pub per_pair: f64,
    /// What more is alive at the peak for each token.
    pub at_peak: f64,
    /// What the peak is at least, whatever the batch is.
    pub floor: f64,
    /// How far the fit is off at its own points, as a share.
    pub off: f64,
    /// The fewest and the most tokens of a micro-batch that were measured.
    pub tokens: [u64; 2],
    /// The shortest and the longest sequence that was measured.
    pub seq_len: [u64; 2],
    /// How many measurements it rests on.
    pub points: usize,
}

/// A peak that nothing but measurements stand behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmpiricalPeak {
    /// The allocated peak.
    pub bytes: Bytes,
    /// The least that it may be.
    pub low: Bytes,
    /// The most.
    pub high: Bytes,
    /// Whether it lies in the range that was measured.
    pub within_range: bool,
}

/// Why measurements give no model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Fewer than two batches or sequences.
    TooFew,
    /// What forward keeps does not grow with the tokens.
    NoGrowth,
}

/// The least half-width of an interval, as a share: what reruns and rounding make of a figure.
const LEAST_WITHIN: f64 = 0.02;
/// By how much a term must improve the fit to be believed, as a share.
const WORTH_A_TERM: f64 = 0.01;
/// A peak is above what grows with the tokens where it is higher by more than this share.
const ABOVE: f64 = 1.005;

impl Point {
    /// What `measurement` says about a run of `recipe`'s batch and sequence. `None`: it lacks the base, the growth over
    /// forward or the peak.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "bytes below 2⁵³")]
    pub fn of(recipe: &Recipe, measurement: &Measurement) -> Option<Self> {
        // The steady step, or the only one that was measured.
        let of = |reading| {
            let steady = measurement.bytes(ReadingName::Step(Which::Steady, reading));
            let found = steady.or_else(|| measurement.bytes(ReadingName::Step(Which::First, reading)));
            found.map(|bytes| bytes as f64)
        };
        let highest = |names: [StepReading; 2]| names.into_iter().filter_map(&of).reduce(f64::max);
        let whole = || of(StepReading::Peak).or(measurement.bytes(ReadingName::MaxAllocated).map(|bytes| bytes as f64));
        Some(Self {
            micro_batch: recipe.micro_batch,
            seq_len: recipe.seq_len,
            base: of(StepReading::Base).or(measurement.bytes(ReadingName::Base).map(|bytes| bytes as f64))?,
            forward: of(StepReading::ForwardDelta)?,
            peak: highest([StepReading::ForwardPeak, StepReading::BackwardPeak]).or_else(whole)?,
            step: of(StepReading::StepPeak).unwrap_or(0.0),
        })
    }

    const fn tokens(&self) -> u64 {
        self.micro_batch.saturating_mul(self.seq_len)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a fit")]
const fn float(n: u64) -> f64 {
    n as f64
}

/// Fits points of one model and recipe that differ in batch and sequence alone.
///
/// # Errors
/// [`Unfit`], where they say nothing about other batches.
pub fn fit(points: &[Point]) -> Result<Empirical, Unfit> {
    let tokens = |p: &Point| float(p.tokens());
    let pairs = |p: &Point| tokens(p) * float(p.seq_len);
    let (Some(least), Some(most)) = (points.iter().map(Point::tokens).min(), points.iter().map(Point::tokens).max())
    else {
        return Err(Unfit::TooFew);
    };
    if least == most {
        return Err(Unfit::TooFew);
    }
    let forward = |p: &Point| p.forward;
    let lines = [
        line(points, tokens, forward).map(|[fixed, per]| [fixed, per, 0.0]),
        plane(points, tokens, pairs, forward),
        line(points, pairs, forward).map(|[fixed, per]| [fixed, 0.0, per]),
    ];
    let mut best: Option<(f64, [f64; 3])> = None;
    for of in lines.into_iter().flatten().filter(|of| of[1] >= 0.0 && of[2] >= 0.0 && of[1] + of[2] > 0.0) {
        let off = points
            .iter()
            .map(|p| (of[0] + of[1] * tokens(p) + of[2] * pairs(p) - p.forward).abs() / p.peak.max(1.0))
            .fold(0.0, f64::max);
        if best.is_none_or(|(known, _)| off < known - WORTH_A_TERM) {
            best = Some((off, of));
        }
    }
    let (off, [fixed, per_token, per_pair]) = best.ok_or(Unfit::NoGrowth)?;
    let largest = points.iter().max_by_key(|p| p.tokens()).ok_or(Unfit::TooFew)?;
    let at_peak = ((largest.peak - largest.base - largest.forward) / tokens(largest)).max(0.0);
    // Where a peak is above what grows with the tokens, something fixed was higher.
    let fixed_peaks = points.iter().filter(|p| p.peak > ABOVE * (p.base + p.forward + at_peak * tokens(p)));
    let floor = fixed_peaks.map(|p| p.peak).chain(points.iter().map(|p| p.step)).fold(0.0, f64::max);
    let lengths = points.iter().map(|p| p.seq_len);
    Ok(Empirical {
        base: points.iter().map(|p| p.base).fold(0.0, f64::max),
        fixed,
        per_token,
        per_pair,
        at_peak,
        floor,
        off,
        tokens: [least, most],
        seq_len: [lengths.clone().min().unwrap_or(0), lengths.max().unwrap_or(0)],
        points: points.len(),
    })
}

impl Empirical {
    /// The peak of another batch and sequence. `None`: beyond what the arithmetic carries.
    #[must_use]
    pub fn peak(&self, micro_batch: u64, seq_len: u64) -> Option<EmpiricalPeak> {
        let tokens = micro_batch.checked_mul(seq_len)?;
        let grown =
            self.base + self.fixed + self.per_token * float(tokens) + self.per_pair * float(tokens) * float(seq_len);
        let peak = (grown + self.at_peak * float(tokens)).max(self.floor);
        // Beyond the range the interval grows with the distance.
        let [least, most] = self.tokens.map(float);
        let beyond = (float(tokens) / most).max(least / float(tokens).max(1.0)).max(1.0);
        let within = self.off.max(LEAST_WITHIN) * beyond;
        // What is alive at the peak may be less than at the largest point, never less than what forward keeps.
        let low = grown.max(self.floor).min(peak) * (1.0 - within).max(0.0);
        let within_range = (self.tokens[0]..=self.tokens[1]).contains(&tokens)
            && (self.seq_len[0]..=self.seq_len[1]).contains(&seq_len);
        Some(EmpiricalPeak { bytes: whole(peak)?, low: whole(low)?, high: whole(peak * (1.0 + within))?, within_range })
    }
}

/// A count of bytes that a document carries.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2⁵³")]
fn whole(bytes: f64) -> Option<Bytes> {
    (0.0..9e15).contains(&bytes).then(|| Bytes(bytes.round() as u64))
}

/// The least squares of a constant and one term. `None`: the term does not vary.
fn line(points: &[Point], x: impl Fn(&Point) -> f64, y: impl Fn(&Point) -> f64) -> Option<[f64; 2]> {
    let n = float(points.len() as u64);
    let mean = |of: &dyn Fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (mean_x, mean_y) = (mean(&x), mean(&y));
    let spread: f64 = points.iter().map(|p| (x(p) - mean_x).powi(2)).sum();
    let together: f64 = points.iter().map(|p| (x(p) - mean_x) * (y(p) - mean_y)).sum();
    let slope = together / spread;
    slope.is_finite().then_some([mean_y - slope * mean_x, slope])
}

/// The least squares of a constant and two terms. `None`: fewer than three points, or the terms vary together.
fn plane(
    points: &[Point],
    u: impl Fn(&Point) -> f64,
    v: impl Fn(&Point) -> f64,
    y: impl Fn(&Point) -> f64,
) -> Option<[f64; 3]> {
    if points.len() < 3 {
        return None;
    }
    // What of `v` does not follow from `u` explains what `u` leaves of `y`.
    let [v0, vu] = line(points, &u, &v)?;
    let apart = |p: &Point| v(p) - v0 - vu * u(p);
    let spread: f64 = points.iter().map(|p| apart(p).powi(2)).sum();
    let size: f64 = points.iter().map(|p| v(p).powi(2)).sum();
    if spread <= 1e-6 * size {
        return None;
    }
    let [y0, yu] = line(points, &u, &y)?;
    let per_v = points.iter().map(|p| apart(p) * (y(p) - y0 - yu * u(p))).sum::<f64>() / spread;
    Some([y0 - per_v * v0, yu - per_v * vu, per_v])
}

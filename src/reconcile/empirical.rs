//! A model that is not known here: what several measurements of a job say about other batches and sequences of it.
//!
//! At each instant of a step what is allocated is a fixed part and a part for each token; where attention writes its scores
//! out, also one for each token and token of its sequence. Each measured instant is a fit of its own, and the peak is the
//! highest of them. Backward begins with what forward ends with and something for each token beside it (the loss), and ends
//! with every gradient, which is the higher where there are few tokens. No more is claimed: what the measurements cannot tell
//! apart is refused, and the range that they span is a part of the answer.

use serde::Serialize;

use crate::calibration::whole;
use crate::measure::{Measurement, ReadingName, StepReading, TierName, Which};
use crate::recipe::{Attention, Recipe, SdpaBackend};
use crate::units::Bytes;

/// One measurement of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
    /// Tokens of a sequence.
    pub seq_len: u64,
    /// The highest allocated at each instant that was measured, in bytes; of the whole run alone where no instant was.
    pub peaks: Vec<(ReadingName, f64)>,
}

/// What is known of how attention's memory grows with the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// With its length: nothing of the size of the scores is kept.
    Linear,
    /// It may grow with the square.
    Unknown,
}

/// Whether two measurements name jobs that differ in batch and sequence alone, or none.
#[must_use]
pub fn same_job(a: &Measurement, b: &Measurement) -> bool {
    let (Some(a), Some(b)) = (&a.plan, &b.plan) else { return true };
    let recipe = Recipe { micro_batch: b.recipe.micro_batch, seq_len: b.recipe.seq_len, ..a.recipe.clone() };
    a.model == b.model && recipe == b.recipe && a.parallel == b.parallel
}

/// A fit to points: *empirical* wherever it is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Empirical {
    /// Each instant's fit.
    pub instants: Vec<Instant>,
    /// The fewest and the most tokens of a micro-batch that were measured.
    pub tokens: [u64; 2],
    /// The shortest and the longest sequence that was measured.
    pub seq_len: [u64; 2],
    /// How many measurements it rests on.
    pub points: usize,
    /// Whether only the tokens matter, however long a sequence is.
    pub linear: bool,
}

/// An instant's fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instant {
    /// Which figure.
    pub name: ReadingName,
    /// What the measurements fit. Two where they cannot tell whether it grows with the sequence or with its square.
    pub costs: Vec<Costs>,
    /// What it is at least, whatever the batch is.
    pub floor: f64,
    /// How far the fit is off at its own points at most, as a share.
    pub off: f64,
}

/// Bytes by their cause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// Whatever the batch is.
    pub fixed: f64,
    /// For each token.
    pub per_token: f64,
    /// For each token and token of its sequence.
    pub per_pair: f64,
}

/// A peak that nothing but measurements stand behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

/// Why measurements give no fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Fewer than two batches or sequences.
    TooFew,
    /// No figure of what is allocated at its highest is in all of them.
    NoFigure,
}

/// Why a fit says nothing about a batch and a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// How memory grows with the sequence is not known there: attention may write its scores out.
    Sequence,
    /// Too far from what was measured.
    TooFar,
}

/// The least half-width of an interval, as a share: what blocks, reruns and instants that take turns make of a figure.
const LEAST_WITHIN: f64 = 0.02;
/// By how much a term must improve a fit to be believed, as a share.
const WORTH_A_TERM: f64 = 0.005;
/// A figure is above what grows with the tokens where it is higher by more than this.
const ABOVE: f64 = 1.005;
/// So many times what was measured, and as small a part of it, is the furthest that is spoken of.
const FURTHEST: u64 = 2;

/// Instants of a step whose peaks are kept apart.
const INSTANTS: [StepReading; 4] =
    [StepReading::ForwardPeak, StepReading::BackwardPeak, StepReading::StepPeak, StepReading::EmaPeak];

impl Growth {
    /// What a recipe says of it: the fused kernels of attention keep nothing of the size of the scores.
    #[must_use]
    pub fn of(recipe: &Recipe) -> Self {
        let fused = match recipe.attention {
            Some(Attention::FlashAttention2) => true,
            Some(Attention::Sdpa) => matches!(
                recipe.sdpa_backend,
                Some(SdpaBackend::FlashAttention | SdpaBackend::EfficientAttention | SdpaBackend::CudnnAttention)
            ),
            _ => false,
        };
        if fused { Self::Linear } else { Self::Unknown }
    }
}

impl Point {
    /// What `measurement` says of a micro-batch. `None`: it has no peak of what is allocated.
    #[must_use]
    pub fn of(micro_batch: u64, seq_len: u64, measurement: &Measurement) -> Option<Self> {
        let figure = |name: ReadingName| {
            let reading =
                measurement.readings.iter().find(|one| one.name == name && one.tier == TierName::Allocated)?;
            Some((name, signed(reading.bytes()?)))
        };
        let instants = Which::ALL.into_iter().flat_map(|which| INSTANTS.map(|of| ReadingName::Step(which, of)));
        let mut peaks: Vec<(ReadingName, f64)> = instants.filter_map(figure).collect();
        if peaks.is_empty() {
            let whole = Which::ALL.map(|which| ReadingName::Step(which, StepReading::Peak));
            peaks = [ReadingName::MaxAllocated].into_iter().chain(whole).filter_map(figure).take(1).collect();
        }
        (!peaks.is_empty()).then_some(Self { micro_batch, seq_len, peaks })
    }

    const fn tokens(&self) -> u64 {
        self.micro_batch.saturating_mul(self.seq_len)
    }

    fn peak(&self, name: ReadingName) -> Option<f64> {
        self.peaks.iter().find(|(of, _)| *of == name).map(|(_, bytes)| *bytes)
    }
}

/// Fits points of one job that differ in batch and sequence alone.
///
/// # Errors
/// [`Unfit`], where they say nothing about other batches.
pub fn fit(points: &[Point], growth: Growth) -> Result<Empirical, Unfit> {
    let ends = |of: fn(&Point) -> u64| {
        let all = points.iter().map(of);
        Some([all.clone().min()?, all.max()?])
    };
    let (Some(tokens), Some(seq_len)) = (ends(Point::tokens), ends(|point| point.seq_len)) else {
        return Err(Unfit::TooFew);
    };
    if tokens[0] == tokens[1] {
        return Err(Unfit::TooFew);
    }
    let linear = growth == Growth::Linear;
    let names = points.first().into_iter().flat_map(|point| point.peaks.iter().map(|(name, _)| *name));
    let mut instants: Vec<Instant> = Vec::new();
    for name in names {
        let figures: Option<Vec<[f64; 3]>> = points
            .iter()
            .map(|point| {
                let (tokens, seq_len) = (float(point.tokens()), float(point.seq_len));
                Some([tokens, tokens * seq_len, point.peak(name)?])
            })
            .collect();
        let Some(figures) = figures else { continue };
        // Forward comes before backward among the names.
        let forward = match name {
            ReadingName::Step(which, StepReading::BackwardPeak) => {
                instants.iter().find(|one| one.name == ReadingName::Step(which, StepReading::ForwardPeak))
            }
            _ => None,
        };
        let instant = match forward {
            Some(forward) => forward.backward(name, &figures),
            None => Instant::of(name, &figures, linear || seq_len[0] == seq_len[1]),
        };
        instants.push(instant);
    }
    if instants.is_empty() {
        return Err(Unfit::NoFigure);
    }
    Ok(Empirical { instants, tokens, seq_len, points: points.len(), linear })
}

impl Instant {
    /// Fits tokens, tokens times sequence, and bytes.
    fn of(name: ReadingName, figures: &[[f64; 3]], linear: bool) -> Self {
        let off = |costs: &Costs| off(costs, 0.0, figures);
        let line = |x: usize| line(figures, x).filter(|[_, slope]| *slope > 0.0);
        let of_tokens = line(0).map(|[fixed, per_token]| Costs { fixed, per_token, per_pair: 0.0 });
        let of_pairs = line(1).map(|[fixed, per_pair]| Costs { fixed, per_token: 0.0, per_pair });
        let both = plane(figures).filter(|costs| costs.per_token >= 0.0 && costs.per_pair >= 0.0);
        let best = |all: &[Option<Costs>]| {
            let mut best: Option<(f64, Costs)> = None;
            for costs in all.iter().flatten() {
                let off = off(costs);
                if best.is_none_or(|(known, _)| off < known - WORTH_A_TERM) {
                    best = Some((off, *costs));
                }
            }
            best.map(|(_, costs)| costs)
        };
        // Two points fit either growth.
        let costs: Vec<Costs> = if linear {
            best(&[of_tokens]).into_iter().collect()
        } else if figures.len() == 2 {
            of_tokens.into_iter().chain(of_pairs).collect()
        } else {
            best(&[of_tokens, both, of_pairs]).into_iter().collect()
        };
        // What does not grow with the batch is as high as it was at most.
        let highest = figures.iter().map(|[_, _, bytes]| *bytes).fold(0.0, f64::max);
        let flat = Costs { fixed: highest, per_token: 0.0, per_pair: 0.0 };
        let costs = if costs.is_empty() { vec![flat] } else { costs };
        let off = costs.iter().map(off).fold(0.0, f64::max);
        Self { name, costs, floor: 0.0, off }
    }

    /// The fit of backward, where this is forward's.
    fn backward(&self, name: ReadingName, figures: &[[f64; 3]]) -> Self {
        let Some([tokens, pairs, bytes]) = figures.iter().max_by(|a, b| a[0].total_cmp(&b[0])).copied() else {
            return Self { name, ..self.clone() };
        };
        let more = |costs: &Costs| {
            let beside = ((bytes - costs.at(tokens, pairs)) / tokens.max(1.0)).max(0.0);
            Costs { per_token: costs.per_token + beside, ..*costs }
        };
        let costs: Vec<Costs> = self.costs.iter().map(more).collect();
        // Where it is higher than what grows, it is what does not.
        let above = |[t, pairs, bytes]: &&[f64; 3]| costs.iter().all(|costs| *bytes > ABOVE * costs.at(*t, *pairs));
        let floor = figures.iter().filter(above).map(|[_, _, bytes]| *bytes).fold(0.0, f64::max);
        let off = costs.iter().map(|costs| off(costs, floor, figures)).fold(0.0, f64::max);
        Self { name, costs, floor, off }
    }
}

/// How far costs are off at most, as a share.
fn off(costs: &Costs, floor: f64, figures: &[[f64; 3]]) -> f64 {
    let one = |[t, pairs, bytes]: &[f64; 3]| (costs.at(*t, *pairs).max(floor) - bytes).abs() / bytes.max(1.0);
    figures.iter().map(one).fold(0.0, f64::max)
}

impl Costs {
    /// Bytes with so many tokens, and so many of them times tokens of their sequence.
    fn at(&self, tokens: f64, pairs: f64) -> f64 {
        self.fixed + self.per_token * tokens + self.per_pair * pairs
    }
}

impl Empirical {
    /// The instant that is the highest with so much, and what it costs.
    #[must_use]
    pub fn binding(&self, micro_batch: u64, seq_len: u64) -> Option<&Instant> {
        let tokens = float(micro_batch.saturating_mul(seq_len));
        let at = |instant: &&Instant| {
            let grown = instant.costs.first().map_or(0.0, |costs| costs.at(tokens, tokens * float(seq_len)));
            grown.max(instant.floor)
        };
        self.instants.iter().max_by(|a, b| at(a).total_cmp(&at(b)))
    }

    /// How far beyond what was measured is spoken of. A whole run's peak does not say which instant it was: another one may be
    /// the highest beyond.
    fn furthest(&self) -> u64 {
        let instants = |one: &Instant| matches!(one.name, ReadingName::Step(_, of) if INSTANTS.contains(&of));
        if self.instants.iter().all(instants) { FURTHEST } else { 1 }
    }

    /// The peak of another batch and sequence.
    ///
    /// # Errors
    /// [`Beyond`], where the measurements do not say.
    pub fn peak(&self, micro_batch: u64, seq_len: u64) -> Result<EmpiricalPeak, Beyond> {
        let tokens = micro_batch.checked_mul(seq_len).filter(|tokens| *tokens > 0).ok_or(Beyond::TooFar)?;
        let [least, most] = self.tokens;
        let furthest = self.furthest();
        if tokens > most.saturating_mul(furthest) || tokens.saturating_mul(furthest) < least {
            return Err(Beyond::TooFar);
        }
        let [shortest, longest] = self.seq_len;
        let measured = (shortest..=longest).contains(&seq_len);
        if !measured && !self.linear {
            // One length, or two that fit either growth, say nothing about a further one.
            if shortest == longest || self.instants.iter().any(|instant| instant.costs.len() > 1) {
                return Err(Beyond::Sequence);
            }
            if seq_len > longest.saturating_mul(furthest) || seq_len.saturating_mul(furthest) < shortest {
                return Err(Beyond::TooFar);
            }
        }
        let (t, pairs) = (float(tokens), float(tokens) * float(seq_len));
        // Beyond the range the interval grows with the distance.
        let beyond = (t / float(most)).max(float(least) / t).max(1.0);
        let (mut peak, mut low, mut high) = (0.0_f64, 0.0_f64, 0.0_f64);
        for instant in &self.instants {
            let all = instant.costs.iter().map(|costs| costs.at(t, pairs).max(instant.floor));
            let [least, most] = [all.clone().fold(f64::INFINITY, f64::min), all.clone().fold(0.0, f64::max)];
            let within = instant.off.max(LEAST_WITHIN) * beyond;
            // Where either growth fits, it is the fused kernels', which are what is usual.
            peak = peak.max(all.clone().next().unwrap_or(0.0));
            low = low.max(least * (1.0 - within));
            high = high.max(most * (1.0 + within));
        }
        let within_range = measured && (least..=most).contains(&tokens);
        Ok(EmpiricalPeak { bytes: whole(peak), low: whole(low), high: whole(high), within_range })
    }

    /// The largest micro-batch of which even the high end is at most `room`. `None`: none that is spoken of.
    #[must_use]
    pub fn largest(&self, seq_len: u64, room: Bytes) -> Option<(u64, EmpiricalPeak)> {
        let most = self.tokens[1].saturating_mul(self.furthest()) / seq_len.max(1);
        let fits = |n: u64| self.peak(n, seq_len).ok().filter(|peak| peak.high <= room).map(|peak| (n, peak));
        // What is too small to be spoken of is skipped; memory grows with the micro-batch.
        let least = self.tokens[0].div_ceil(self.furthest()).div_ceil(seq_len.max(1)).max(1);
        let mut found = fits(least)?;
        let mut too_much = most.checked_add(1)?;
        while too_much - found.0 > 1 {
            let middle = found.0.midpoint(too_much);
            match fits(middle) {
                Some(more) => found = more,
                None => too_much = middle,
            }
        }
        Some(found)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a fit")]
const fn float(n: u64) -> f64 {
    n as f64
}

#[expect(clippy::cast_precision_loss, reason = "bytes below 2⁵³")]
const fn signed(bytes: i64) -> f64 {
    bytes as f64
}

/// The least squares of a constant and the term at `x`. `None`: the term does not vary.
fn line(figures: &[[f64; 3]], x: usize) -> Option<[f64; 2]> {
    least_squares(figures.iter().filter_map(|figure| Some((*figure.get(x)?, figure[2]))))
}

fn least_squares(points: impl Iterator<Item = (f64, f64)> + Clone) -> Option<[f64; 2]> {
    let n = points.clone().map(|_| 1.0).sum::<f64>();
    let mean_x = points.clone().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = points.clone().map(|(_, y)| y).sum::<f64>() / n;
    let spread: f64 = points.clone().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let slope = points.map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / spread;
    slope.is_finite().then_some([mean_y - slope * mean_x, slope])
}

/// The least squares of a constant and both terms. `None`: fewer than three points, or the terms vary together.
fn plane(figures: &[[f64; 3]]) -> Option<Costs> {
    if figures.len() < 3 {
        return None;
    }
    // What of the pairs does not follow from the tokens explains what the tokens leave of the bytes.
    let [v0, vu] = least_squares(figures.iter().map(|[u, v, _]| (*u, *v)))?;
    let apart = |[u, v, _]: &[f64; 3]| v - v0 - vu * u;
    let spread: f64 = figures.iter().map(|figure| apart(figure).powi(2)).sum();
    let size: f64 = figures.iter().map(|[_, v, _]| v.powi(2)).sum();
    if spread <= 1e-6 * size {
        return None;
    }
    let [y0, yu] = line(figures, 0)?;
    let left = |figure: &[f64; 3]| apart(figure) * (figure[2] - y0 - yu * figure[0]);
    let per_pair = figures.iter().map(left).sum::<f64>() / spread;
    Some(Costs { fixed: y0 - per_pair * v0, per_token: yu - per_pair * vu, per_pair })
}

//! What is wrong with a run, from what its texts say: each row of the articles' troubleshooting (A10, B1, B7) as evidence, a
//! way to check it and a remedy. Figures alone decide; where they do not, nothing is said.

use crate::bill::Instant;
use crate::decide::RemedyId;
use crate::measure::explain::{self, Cause, Fact, causes, facts_together};
use crate::measure::{FailureKind, Measurement, Reading, ReadingName, Reported, Series, StepReading, TierName, Which};
use crate::reconcile::trend::{Trend, leak};
use crate::units::{Bytes, MIB};

/// What is seen, with the figures that show it.
#[derive(Clone, Debug, PartialEq)]
pub enum Symptom {
    /// The process holds more than tensors: context, communicators, the allocator's cache.
    Gap {
        /// What it holds beyond what is allocated.
        gap: Bytes,
        /// How much of that is the allocator's cache, where it is known.
        cached: Option<Bytes>,
    },
    /// Backward's peak lies far above what forward leaves.
    BackwardPeak {
        /// After forward.
        forward: Bytes,
        /// The peak of backward.
        peak: Bytes,
    },
    /// Memory ran out in `optimizer.step()`.
    OutInStep,
    /// Ranks differ by more than 5 %.
    Uneven {
        /// The least allocated.
        least: Bytes,
        /// The most.
        most: Bytes,
    },
    /// The share of reserved memory that is not in use grows.
    FragmentationGrows {
        /// The share at first, from 0 to 1.
        from: f64,
        /// The share in the end.
        to: f64,
        /// Over how many steps.
        steps: u64,
    },
    /// Allocated memory grows by more than a megabyte a step.
    Leak(Trend),
    /// Other processes hold memory of the card.
    OtherProcesses {
        /// How much together.
        held: Bytes,
        /// How many they are.
        count: u32,
    },
    /// Memory ran out in one of the first steps: the job as such does not fit.
    OutAtStart {
        /// The last step that was logged.
        step: u64,
    },
    /// Memory ran out after many steps that fitted.
    OutAfterHours {
        /// The last step that was logged.
        step: u64,
        /// By how much it had grown until then, where figures show it.
        grown: Option<Bytes>,
    },
    /// A limit that someone set, not the card, was reached.
    Limit {
        /// The limit.
        allowed: Option<Bytes>,
        /// What is free on the card.
        free: Option<Bytes>,
    },
    /// The machine's own memory ran out.
    HostOutOfMemory,
    /// Checkpointing ran a layer again otherwise than in forward.
    Recomputation {
        /// Whether the two differ in dtype: autocast was off in one of them.
        autocast: bool,
        /// Both, as the message says it.
        what: Option<String>,
    },
}

/// A gap that is worth a word: half a gigabyte (A2).
const LEAST_GAP: i64 = 500_000_000;
/// Backward's peak is far above forward's end from this on; "up to double" (A10).
const FAR_ABOVE: f64 = 1.2;
/// What another process holds at least.
const LEAST_HELD: u64 = 64 * MIB;
/// By how much the share that is not in use grows at least, and how large it is in the end.
const FRAGMENTATION: [f64; 2] = [0.05, 0.10];
/// Fewer points show no growth.
const LEAST_POINTS: usize = 8;
/// The optimizer has its states after two steps; what runs longer fits as such.
const FIRST_STEPS: i64 = 10;

impl Symptom {
    /// The remedies that apply, where the plan can be walked with them: their price is known.
    #[must_use]
    pub const fn remedies(&self) -> &'static [RemedyId] {
        match self {
            Self::BackwardPeak { .. } => &[RemedyId::Checkpointing, RemedyId::SmallerMicroBatch],
            Self::OutInStep => &[RemedyId::FusedOptimizer, RemedyId::EightBitOptimizer, RemedyId::OptimizerInBackward],
            Self::FragmentationGrows { .. } => &[RemedyId::ExpandableSegments],
            Self::OutAtStart { .. } => &[RemedyId::Checkpointing, RemedyId::SmallerMicroBatch, RemedyId::Lora],
            Self::OutAfterHours { .. } => &[RemedyId::ExpandableSegments],
            _ => &[],
        }
    }
}

/// What the measurements of one run show together, the gravest first.
#[must_use]
pub fn diagnose(measurements: &[Measurement]) -> Vec<Symptom> {
    let mut found = Vec::new();
    for measurement in measurements {
        if let Some(failure) = &measurement.failure {
            match failure.kind {
                FailureKind::Host => found.push(Symptom::HostOutOfMemory),
                FailureKind::Recomputation => {
                    let what = failure.what.clone();
                    found.push(Symptom::Recomputation { autocast: what.is_some(), what });
                }
                _ => {}
            }
            if failure.at == Some(Instant::Step) {
                found.push(Symptom::OutInStep);
            }
        }
        found.extend(causes(measurement).into_iter().filter_map(|cause| match cause {
            Cause::Limit { allowed, free, .. } => Some(Symptom::Limit { allowed, free }),
            Cause::OtherProcesses { held, count } => Some(Symptom::OtherProcesses { held, count }),
            _ => None,
        }));
        found.extend(others(measurement));
        found.extend(measurement.series.iter().filter_map(leak).map(Symptom::Leak));
        found.extend(fragmentation_grows(measurement));
        found.extend(backward_peak(measurement));
    }
    found.extend(when_out(measurements));
    found.extend(facts_together(measurements).into_iter().filter_map(|fact| match fact {
        Fact::Uneven { least, most } => Some(Symptom::Uneven { least, most }),
        _ => None,
    }));
    found.extend(gap(measurements));
    // Several ranks may say the same.
    let mut distinct: Vec<Symptom> = Vec::new();
    for symptom in found {
        let same = |known: &Symptom| core::mem::discriminant(known) == core::mem::discriminant(&symptom);
        if !distinct.iter().any(same) {
            distinct.push(symptom);
        }
    }
    distinct
}

fn size(bytes: i64) -> Option<Bytes> {
    u64::try_from(bytes).ok().map(Bytes)
}

/// Processes that a driver's table lists beside the largest of the same card, which is taken to be the job.
fn others(measurement: &Measurement) -> Option<Symptom> {
    if measurement.failure.is_some() {
        return None;
    }
    let held = |gpu: Option<u32>| {
        let mut held: Vec<u64> = measurement
            .processes
            .iter()
            .filter(|process| process.gpu == gpu && !process.own)
            .filter_map(|process| process.bytes)
            .collect();
        if !measurement.processes.iter().any(|process| process.own) {
            held.sort_unstable();
            held.pop();
        }
        held.retain(|bytes| *bytes >= LEAST_HELD);
        held
    };
    let cards = measurement.processes.iter().map(|process| process.gpu);
    let most = cards.map(held).max_by_key(|held| held.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)))?;
    let count = u32::try_from(most.len()).ok().filter(|count| *count > 0)?;
    Some(Symptom::OtherProcesses { held: Bytes(most.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))), count })
}

/// The share of reserved memory that is not in use, by step, where both are logged.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn fragmentation_grows(measurement: &Measurement) -> Option<Symptom> {
    let of = |tier| measurement.series.iter().find(move |series| series.tier == tier);
    let (allocated, reserved) = (of(TierName::Allocated)?, of(TierName::Reserved)?);
    let warm_up = usize::try_from(reserved.warm_up).ok()?;
    let shares: Vec<(i64, f64)> = reserved
        .points
        .get(warm_up..)?
        .iter()
        .filter_map(|[step, reserved]| {
            let allocated = allocated.points.iter().find(|point| point[0] == *step)?[1];
            (*reserved > 0).then(|| (*step, reserved.saturating_sub(allocated) as f64 / *reserved as f64))
        })
        .collect();
    if shares.len() < LEAST_POINTS {
        return None;
    }
    let quarter = shares.len() / 4;
    let (from, to) = (middle(&shares[..quarter]), middle(&shares[shares.len() - quarter..]));
    let steps = u64::try_from(shares.last()?.0.checked_sub(shares.first()?.0)?).ok()?;
    let [least, end] = FRAGMENTATION;
    (to - from >= least && to >= end).then_some(Symptom::FragmentationGrows { from, to, steps })
}

fn middle(shares: &[(i64, f64)]) -> f64 {
    let mut sorted: Vec<f64> = shares.iter().map(|(_, share)| *share).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Backward's peak against what forward leaves, in the steady step or the only one that was measured.
fn backward_peak(measurement: &Measurement) -> Option<Symptom> {
    Which::ALL.into_iter().rev().find_map(|which| {
        let of = |reading| measurement.bytes(ReadingName::Step(which, reading)).and_then(size);
        let forward = of(StepReading::ForwardEnd).or_else(|| {
            let base = measurement.bytes(ReadingName::Step(which, StepReading::Base))?;
            size(base.checked_add(measurement.bytes(ReadingName::Step(which, StepReading::ForwardDelta))?)?)
        })?;
        // The whole step's peak is backward's where nothing later is as high. The optimizer's temporaries are of the size of
        // the states that its first step makes, at most; where it makes none they are not known.
        let later = of(StepReading::StepPeak).or_else(|| {
            let grown = |reading| measurement.bytes(ReadingName::Step(which, reading));
            let states = grown(StepReading::StepDelta).filter(|states| *states > 0)?;
            let after = i64::try_from(forward.get()).ok()?.checked_add(grown(StepReading::BackwardDelta)?)?;
            size(after.checked_add(states.checked_mul(2)?)?)
        });
        let of_step = || of(StepReading::Peak).filter(|peak| later.is_some_and(|later| *peak > later));
        let peak = of(StepReading::BackwardPeak).or_else(of_step)?;
        (peak.as_f64() >= FAR_ABOVE * forward.as_f64()).then_some(Symptom::BackwardPeak { forward, peak })
    })
}

/// When memory ran out, where the same text has figures by step.
fn when_out(measurements: &[Measurement]) -> Option<Symptom> {
    let out = |m: &&Measurement| m.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::OutOfMemory);
    measurements.iter().find(out)?;
    let series = || measurements.iter().flat_map(|m| &m.series);
    let last = series().filter_map(|series| series.points.last()).map(|point| point[0]).max()?;
    let step = u64::try_from(last).ok()?;
    if last <= FIRST_STEPS {
        return Some(Symptom::OutAtStart { step });
    }
    let grown = series().filter(|s| s.tier <= TierName::Reserved).filter_map(grown).max();
    Some(Symptom::OutAfterHours { step, grown })
}

/// By how much the figure is higher in the end than after the first steps.
fn grown(series: &Series) -> Option<Bytes> {
    let first = series.points.iter().find(|point| point[0] >= FIRST_STEPS.min(2))?;
    size(series.points.last()?[1].checked_sub(first[1])?).filter(|grown| !grown.is_zero())
}

/// What the process holds beyond what is allocated: of one text, or of a driver's table beside another text.
fn gap(measurements: &[Measurement]) -> Option<Symptom> {
    let reported = |name| {
        measurements.iter().find_map(|m| m.readings.iter().find(|r: &&Reading| r.name == name).and_then(Reading::bytes))
    };
    let of = |name| reported(ReadingName::Reported(name));
    let table = || {
        let processes = measurements.iter().flat_map(|m| &m.processes).filter_map(|p| p.bytes);
        let used = measurements.iter().flat_map(|m| &m.gpus).filter_map(|gpu| gpu.used_bytes).map(Bytes::get);
        processes.max().or_else(|| used.max()).and_then(|bytes| i64::try_from(bytes).ok())
    };
    let process = of(Reported::Process).or_else(table)?;
    let allocated = of(Reported::Allocated).or_else(|| reported(ReadingName::MaxAllocated))?;
    let gap = process.checked_sub(allocated).filter(|gap| *gap >= LEAST_GAP)?;
    let reserved = of(Reported::Reserved).or_else(|| reported(ReadingName::MaxReserved));
    let cached = measurements
        .iter()
        .find_map(explain::unallocated)
        .or_else(|| size(reserved?.checked_sub(allocated)?))
        .filter(|cached| i64::try_from(cached.get()).is_ok_and(|cached| cached <= gap));
    Some(Symptom::Gap { gap: size(gap)?, cached })
}

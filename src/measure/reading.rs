//! One figure of a measurement: which instant, which tier, whose memory, how many bytes.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::measure::{Reported, Stat, Tracked};
use crate::step::log::Phase;

/// One figure, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "RawReading", into = "RawReading")]
pub struct Reading {
    /// What was read, and when.
    pub name: ReadingName,
    /// Which of the totals that differ.
    pub tier: TierName,
    /// Whose memory.
    pub scope: Scope,
    /// The figure.
    pub figure: Figure,
    /// The least and the most that the printed figure can stand for; `None`: it is exact.
    pub range: Option<[i64; 2]>,
    /// Each run's figure, where `figure` is their mean; empty for a single run.
    pub runs: Vec<i64>,
}

impl Reading {
    /// An exact figure of one run of one process.
    #[must_use]
    pub const fn new(name: ReadingName, tier: TierName, figure: Figure) -> Self {
        Self { name, tier, scope: Scope::Process, figure, range: None, runs: Vec::new() }
    }

    /// The figure in bytes, where there is one.
    #[must_use]
    pub const fn bytes(&self) -> Option<i64> {
        match self.figure {
            Figure::Bytes(bytes) => Some(bytes),
            Figure::Unavailable(_) => None,
        }
    }

    /// Between the lowest and the highest of several runs; `None` for a single one.
    #[must_use]
    pub fn spread(&self) -> Option<i64> {
        self.runs.iter().max()?.checked_sub(*self.runs.iter().min()?)
    }
}

/// A figure in bytes, or the reason why it is not there. Never a zero for "not available".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Bytes; a difference may be negative.
    Bytes(i64),
    /// Not available, and why.
    Unavailable(String),
}

/// The tiers that readings are kept apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TierName {
    /// The tensors' own bytes.
    Requested,
    /// `torch.cuda.memory_allocated`: whole blocks.
    Allocated,
    /// `torch.cuda.memory_reserved`: segments taken from the driver.
    Reserved,
    /// What the driver attributes to the process: reserved, context, libraries.
    Process,
    /// The card itself, whoever holds it.
    Device,
}

/// Whose memory a figure counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One process on one GPU.
    #[default]
    Process,
    /// Everything on the GPU.
    Device,
    /// The machine's own memory.
    Host,
}

/// A unit in which a producer may have written figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// Bytes.
    B,
    /// 10⁶ bytes.
    MB,
    /// 2²⁰ bytes.
    MiB,
    /// 10⁹ bytes.
    GB,
    /// 2³⁰ bytes.
    GiB,
}

impl Unit {
    /// Every unit, smallest first.
    pub const ALL: [Self; 5] = [Self::B, Self::MB, Self::MiB, Self::GB, Self::GiB];

    /// Bytes in one.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::B => 1,
            Self::MB => 1_000_000,
            Self::MiB => 1 << 20,
            Self::GB => 1_000_000_000,
            Self::GiB => 1 << 30,
        }
    }

    /// The symbol.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::B => "B",
            Self::MB => "MB",
            Self::MiB => "MiB",
            Self::GB => "GB",
            Self::GiB => "GiB",
        }
    }
}

/// Which step a reading belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Which {
    /// The first step, in which the optimizer makes its states.
    First,
    /// A later one.
    Steady,
}

/// What is read at a step. Deltas are between phase ends; peaks are absolute and reset between phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepReading {
    /// Before the step.
    Base,
    /// The batch on the device.
    Inputs,
    /// Growth over the forward, inputs included.
    ForwardDelta,
    /// Highest during the forward.
    ForwardPeak,
    /// After the forward: base + forward delta.
    ForwardEnd,
    /// Growth over the backward.
    BackwardDelta,
    /// Highest during the backward.
    BackwardPeak,
    /// After the backward.
    BackwardEnd,
    /// Growth over `optimizer.step()`.
    StepDelta,
    /// Highest during `optimizer.step()`.
    StepPeak,
    /// After `optimizer.step()`.
    AfterStep,
    /// Highest while the weights' average is updated.
    EmaPeak,
    /// After `zero_grad()`.
    AfterZeroGrad,
    /// The gradients' bytes.
    Grads,
    /// Highest over the whole step.
    Peak,
}

/// What is read at an evaluation after the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EvalReading {
    /// Before it.
    Base,
    /// Growth over it.
    Delta,
    /// Highest during it.
    Peak,
    /// Reserved at its end.
    Reserved,
}

impl EvalReading {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Base, Self::Delta, Self::Peak, Self::Reserved];

    /// The name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Delta => "delta",
            Self::Peak => "peak",
            Self::Reserved => "reserved",
        }
    }
}

/// The name of a reading, as documents write it: `base`, `max_allocated`, `first.forward_peak`, `steady.step_delta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadingName {
    /// Allocated when `from_pretrained` returns.
    LoadAllocated,
    /// Reserved when it returns.
    LoadReserved,
    /// Highest allocated while it loads.
    LoadMaxAllocated,
    /// Highest reserved while it loads.
    LoadMaxReserved,
    /// Growth over `prepare_model_for_kbit_training`.
    PrepareDelta,
    /// Highest allocated during it.
    PreparePeak,
    /// Scales and codes beside quantised weights.
    QuantState,
    /// Parameters' bytes.
    Params,
    /// After the model and the optimizer were made, cache emptied.
    Base,
    /// A reading of one step.
    Step(Which, StepReading),
    /// The optimizer's states.
    OptimizerState,
    /// The optimizer's states in host or managed memory.
    OptimizerStateHost,
    /// A reading of the evaluation after the steps.
    Eval(EvalReading),
    /// Highest during a phase beside the training step, over both steps.
    Phase(Phase),
    /// Highest allocated over the run.
    MaxAllocated,
    /// Highest reserved over the run.
    MaxReserved,
    /// What a tool reports of one instant.
    Reported(Reported),
    /// A figure of the allocator's statistics.
    Stat(Stat),
    /// A figure of transformers' memory tracker.
    Tracked(Tracked),
}

impl Which {
    /// Both, in order.
    pub const ALL: [Self; 2] = [Self::First, Self::Steady];

    /// The name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Steady => "steady",
        }
    }
}

impl StepReading {
    /// All of them, in the order of a step.
    pub const ALL: [Self; 15] = [
        Self::Base,
        Self::Inputs,
        Self::ForwardDelta,
        Self::ForwardPeak,
        Self::ForwardEnd,
        Self::BackwardDelta,
        Self::BackwardPeak,
        Self::BackwardEnd,
        Self::StepDelta,
        Self::StepPeak,
        Self::AfterStep,
        Self::EmaPeak,
        Self::AfterZeroGrad,
        Self::Grads,
        Self::Peak,
    ];

    /// The name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Inputs => "inputs",
            Self::ForwardDelta => "forward_delta",
            Self::ForwardPeak => "forward_peak",
            Self::ForwardEnd => "forward_end",
            Self::BackwardDelta => "backward_delta",
            Self::BackwardPeak => "backward_peak",
            Self::BackwardEnd => "backward_end",
            Self::StepDelta => "step_delta",
            Self::StepPeak => "step_peak",
            Self::AfterStep => "after_step",
            Self::EmaPeak => "ema_peak",
            Self::AfterZeroGrad => "after_zero_grad",
            Self::Grads => "grads",
            Self::Peak => "peak",
        }
    }

    /// Whether the reading is a difference between two instants: it may be negative or near zero, so a percentage of
    /// it means nothing.
    #[must_use]
    pub const fn is_delta(self) -> bool {
        matches!(self, Self::ForwardDelta | Self::BackwardDelta | Self::StepDelta)
    }
}

impl ReadingName {
    /// What is read before the model and the optimizer are made.
    pub const LOADING: [Self; 7] = [
        Self::LoadAllocated,
        Self::LoadReserved,
        Self::LoadMaxAllocated,
        Self::LoadMaxReserved,
        Self::PrepareDelta,
        Self::PreparePeak,
        Self::QuantState,
    ];

    /// The phases that are read by themselves: those beside the training step.
    pub const PHASES: [Phase; 5] =
        [Phase::Generation, Phase::OldLogProbs, Phase::Reference, Phase::Reward, Phase::Values];

    /// Which of the totals it is one of.
    #[must_use]
    pub const fn tier(self) -> TierName {
        match self {
            Self::MaxReserved | Self::LoadReserved | Self::LoadMaxReserved => TierName::Reserved,
            Self::Reported(reported) => reported.tier(),
            Self::Stat(stat) => stat.tier(),
            Self::Tracked(tracked) => tracked.tier(),
            _ => TierName::Allocated,
        }
    }

    /// Every name of what a job measures of itself, in the order of a run.
    pub fn of_runs() -> impl Iterator<Item = Self> {
        let of_steps = Which::ALL.into_iter().flat_map(|w| StepReading::ALL.into_iter().map(move |r| Self::Step(w, r)));
        let of_eval = EvalReading::ALL.into_iter().map(Self::Eval);
        let of_phases = Self::PHASES.into_iter().map(Self::Phase);
        Self::LOADING
            .into_iter()
            .chain([Self::Params, Self::Base])
            .chain(of_steps)
            .chain(of_eval)
            .chain(of_phases)
            .chain([Self::OptimizerState, Self::OptimizerStateHost, Self::MaxAllocated, Self::MaxReserved])
    }

    /// Every name, those of tools' reports last.
    pub fn all() -> impl Iterator<Item = Self> {
        let reported = Reported::ALL.into_iter().map(|(reported, ..)| Self::Reported(reported));
        Self::of_runs()
            .chain(reported)
            .chain(Stat::all().map(Self::Stat).filter(|name| {
                // These have shorter names.
                Self::of_stat(&name.to_string()) == Some(*name)
            }))
            .chain(Tracked::all().map(Self::Tracked))
    }

    /// The name of a figure of `torch.cuda.memory_stats()`, by PyTorch's: `allocated_bytes.all.peak`.
    #[must_use]
    pub fn of_stat(name: &str) -> Option<Self> {
        Some(match name {
            "requested_bytes.all.current" => Self::Reported(Reported::Requested),
            "requested_bytes.all.peak" => Self::Reported(Reported::MaxRequested),
            "allocated_bytes.all.current" => Self::Reported(Reported::Allocated),
            "allocated_bytes.all.peak" => Self::MaxAllocated,
            "active_bytes.all.current" => Self::Reported(Reported::Active),
            "active_bytes.all.peak" => Self::Reported(Reported::MaxActive),
            "inactive_split_bytes.all.current" => Self::Reported(Reported::InactiveSplit),
            "inactive_split_bytes.all.peak" => Self::Reported(Reported::MaxInactiveSplit),
            "reserved_bytes.all.current" => Self::Reported(Reported::Reserved),
            "reserved_bytes.all.peak" => Self::MaxReserved,
            name => Self::Stat(Stat::parse(name)?),
        })
    }

    /// Whether the reading is a difference between two instants.
    #[must_use]
    pub const fn is_delta(self) -> bool {
        match self {
            Self::Step(_, reading) => reading.is_delta(),
            Self::Tracked(tracked) => tracked.is_delta(),
            other => matches!(other, Self::PrepareDelta | Self::Eval(EvalReading::Delta)),
        }
    }
}

impl fmt::Display for ReadingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoadAllocated => f.write_str("load.allocated"),
            Self::LoadReserved => f.write_str("load.reserved"),
            Self::LoadMaxAllocated => f.write_str("load.max_allocated"),
            Self::LoadMaxReserved => f.write_str("load.max_reserved"),
            Self::PrepareDelta => f.write_str("prepare.delta"),
            Self::PreparePeak => f.write_str("prepare.peak"),
            Self::QuantState => f.write_str("quant_state"),
            Self::Params => f.write_str("params"),
            Self::Base => f.write_str("base"),
            Self::Step(which, reading) => write!(f, "{}.{}", which.name(), reading.name()),
            Self::Eval(reading) => write!(f, "eval.{}", reading.name()),
            Self::Phase(phase) => write!(f, "phase.{}", phase.name()),
            Self::OptimizerState => f.write_str("optimizer_state"),
            Self::OptimizerStateHost => f.write_str("optimizer_state_host"),
            Self::MaxAllocated => f.write_str("max_allocated"),
            Self::MaxReserved => f.write_str("max_reserved"),
            Self::Reported(reported) => f.write_str(reported.name()),
            Self::Stat(stat) => {
                let [group, pool, metric] = stat.parts();
                write!(f, "{group}.{pool}.{metric}")
            }
            Self::Tracked(tracked) => tracked.fmt(f),
        }
    }
}

impl FromStr for ReadingName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().find(|name| name.to_string() == text).ok_or_else(|| {
            let found: String = text.chars().take(40).collect();
            format!("`{found}` is not a reading: expected a name such as base, steady.forward_peak or max_allocated")
        })
    }
}

impl Serialize for ReadingName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ReadingName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ReadingName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ReadingName".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names: Vec<String> = Self::all().map(|name| name.to_string()).collect();
        schemars::json_schema!({ "type": "string", "enum": names })
    }
}

/// A reading as the document writes it: exactly one of `bytes` and `unavailable`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct RawReading {
    /// What was read, and when.
    name: ReadingName,
    /// Which of the totals that differ.
    tier: TierName,
    /// Whose memory.
    #[serde(default)]
    scope: Scope,
    /// The figure in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<i64>,
    /// Why there is no figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unavailable: Option<String>,
    /// The least that the printed figure can stand for, where it is not exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    least: Option<i64>,
    /// The most that it can stand for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    most: Option<i64>,
    /// Each run's figure in bytes, where `bytes` is their mean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    runs: Vec<i64>,
}

impl TryFrom<RawReading> for Reading {
    type Error = String;

    fn try_from(raw: RawReading) -> Result<Self, String> {
        const MAX: u64 = crate::units::MAX_DOCUMENT_BYTES;
        let RawReading { name, tier, scope, bytes, unavailable, least, most, runs } = raw;
        let figure = match (bytes, unavailable) {
            (Some(bytes), None) if bytes.unsigned_abs() > MAX => {
                return Err(format!("`{name}`: {bytes} bytes are more than 8 PiB"));
            }
            (Some(bytes), None) if bytes < 0 && !name.is_delta() => {
                return Err(format!("`{name}`: {bytes} bytes, but only a delta can be negative"));
            }
            (Some(bytes), None) => Figure::Bytes(bytes),
            (None, Some(reason)) => Figure::Unavailable(reason),
            _ => return Err(format!("`{name}`: expected either `bytes` or `unavailable` with the reason")),
        };
        let range = match (least, most) {
            (None, None) => None,
            (Some(least), Some(most)) if bytes.is_some_and(|bytes| (least..=most).contains(&bytes)) => {
                Some([least, most])
            }
            _ => return Err(format!("`{name}`: `least` and `most` belong together, around `bytes`")),
        };
        if !runs.is_empty() && bytes.is_none() {
            return Err(format!("`{name}`: `runs` without `bytes`, their mean"));
        }
        if range.into_iter().flatten().chain(runs.iter().copied()).any(|bytes| bytes.unsigned_abs() > MAX) {
            return Err(format!("`{name}`: more than 8 PiB"));
        }
        Ok(Self { name, tier, scope, figure, range, runs })
    }
}

impl From<Reading> for RawReading {
    fn from(reading: Reading) -> Self {
        let Reading { name, tier, scope, figure, range, runs } = reading;
        let (bytes, unavailable) = match figure {
            Figure::Bytes(bytes) => (Some(bytes), None),
            Figure::Unavailable(reason) => (None, Some(reason)),
        };
        Self { name, tier, scope, bytes, unavailable, least: range.map(|r| r[0]), most: range.map(|r| r[1]), runs }
    }
}

//! A training run that was recorded: which rank it is, how far it came, how it ended, what could not be measured.

use serde::{Deserialize, Serialize};

/// What is known of a recorded run beside its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// The process's rank, where a launcher gave it one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Ranks in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// The machine's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Optimizer steps that were seen.
    pub steps: u64,
    /// How it ended.
    pub ended: Ended,
    /// Seconds between the beginnings of steps: the median of the steady ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
    /// Sequences or pictures in a step, all micro-batches together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_step: Option<u64>,
    /// Tokens in a step, all micro-batches together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_step: Option<u64>,
    /// Step and its end in milliseconds since 1970, of the first and the last one: what clocks are compared by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clock: Vec<[i64; 2]>,
    /// What could not be measured, or not be said in the plan, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Each rank's part, where several were merged; the readings are those of the first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankPart>,
    /// Ranks of which nothing was recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_ranks: Vec<u32>,
    /// How far the ranks' clocks differ at most at the end of one step, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<i64>,
}

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Ended {
    /// In which way.
    pub how: EndedHow,
    /// Its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The number of the signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The error that nobody caught.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The ways in which a process ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndedHow {
    /// By itself.
    Exited,
    /// By a signal.
    Signalled,
    /// The recording stops without an end: the process was killed, or runs on.
    #[default]
    Unknown,
}

/// A rank's part of a run of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RankPart {
    /// The rank.
    pub rank: u32,
    /// The machine's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Highest allocated, in bytes; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_allocated: Option<i64>,
    /// Highest reserved, in bytes; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_reserved: Option<i64>,
    /// Optimizer steps that were seen.
    pub steps: u64,
    /// How it ended.
    pub ended: Ended,
}

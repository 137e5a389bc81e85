//! How long the sequences of a run are, and how batches are made of them.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::issue::{Issue, IssueKind};
use crate::units::parse_decimal;

/// The most steps that are replayed.
const MAX_STEPS: u64 = 10_000;
/// The most sequences in all of them, and in a list.
const MAX_SEQUENCES: u64 = 1 << 20;
/// The widest log-normal distribution.
const MAX_SIGMA: f64 = 4.0;

/// The lengths of a run's sequences, in tokens, each cut to the recipe's `seq_len`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Where they come from.
    pub of: Distribution,
    /// How batches are made of them.
    #[serde(default)]
    pub batching: Batching,
    /// Batches are padded to a multiple of this (`pad_to_multiple_of`).
    #[serde(default = "one")]
    pub pad_to_multiple_of: u64,
    /// The step with the longest batch comes first.
    #[serde(default)]
    pub longest_first: bool,
    /// Optimizer steps.
    #[serde(default = "three_hundred")]
    pub steps: u64,
    /// Another seed draws other lengths.
    #[serde(default)]
    pub seed: u64,
}

const fn one() -> u64 {
    1
}

const fn three_hundred() -> u64 {
    300
}

/// Where lengths come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Every sequence has `seq_len` tokens.
    Fixed,
    /// Every length between two is as likely as any other.
    Uniform {
        /// The shortest.
        min: u64,
        /// The longest.
        max: u64,
    },
    /// The logarithm of the length is normally distributed, as unpadded text roughly is.
    LogNormal {
        /// Half of the sequences are shorter.
        median: u64,
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
    /// These, in this order, from the beginning again once they are used up.
    List(Vec<u64>),
}

impl Distribution {
    /// Reads `fixed`, `uniform=64..2048`, `log-normal=512,0.7`, or a list of lengths.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.trim().parse().ok();
        let text = text.trim();
        if text == "fixed" {
            return Some(Self::Fixed);
        }
        if let Some(range) = text.strip_prefix("uniform=") {
            let (min, max) = range.split_once("..")?;
            return Some(Self::Uniform { min: number(min)?, max: number(max)? });
        }
        if let Some(shape) = text.strip_prefix("log-normal=") {
            let (median, sigma) = shape.split_once(',')?;
            return Some(Self::LogNormal { median: number(median)?, sigma: parse_decimal(sigma.trim())? });
        }
        let numbers = text.split(|c: char| matches!(c, ',' | ';') || c.is_whitespace()).filter(|n| !n.is_empty());
        let list: Vec<u64> = numbers.map(number).collect::<Option<_>>()?;
        (!list.is_empty()).then_some(Self::List(list))
    }
}

impl fmt::Display for Distribution {
    /// As [`Distribution::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed => f.write_str("fixed"),
            Self::Uniform { min, max } => write!(f, "uniform={min}..{max}"),
            Self::LogNormal { median, sigma } => write!(f, "log-normal={median},{sigma}"),
            Self::List(list) => {
                for (at, length) in list.iter().enumerate() {
                    write!(f, "{}{length}", if at == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

/// How batches are made of sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Batching {
    /// As the sequences come, each micro-batch padded to its longest one.
    #[default]
    Padded,
    /// As transformers' `group_by_length`: sorted within stretches of at most 50 batches, the longest sequence first.
    Bucketed,
    /// Joined and cut to `seq_len`, so that every row is full.
    Packed,
}

impl Lengths {
    /// Three hundred steps of padded batches.
    #[must_use]
    pub const fn new(of: Distribution) -> Self {
        let (batching, pad_to_multiple_of, longest_first) = (Batching::Padded, one(), false);
        Self { of, batching, pad_to_multiple_of, longest_first, steps: three_hundred(), seed: 0 }
    }

    /// What is wrong with them, in a recipe of `per_step` sequences a step.
    pub(super) fn issues(&self, per_step: Option<u64>) -> Vec<Issue> {
        let mut issues = Vec::new();
        let mut bounded = |field: &str, found: u64, min: u64, max: u64| {
            if !(min..=max).contains(&found) {
                let kind = IssueKind::OutOfRange { min, max, found: found.to_string() };
                issues.push(Issue::new(format!("recipe.lengths.{field}"), kind));
            }
        };
        bounded("steps", self.steps, 1, MAX_STEPS.min(MAX_SEQUENCES / per_step.unwrap_or(MAX_SEQUENCES).max(1)).max(1));
        bounded("pad_to_multiple_of", self.pad_to_multiple_of, 1, super::MAX_SEQ_LEN);
        match &self.of {
            Distribution::Fixed => {}
            Distribution::Uniform { min, max } => {
                bounded("of.uniform.min", *min, 1, *max);
                bounded("of.uniform.max", *max, 1, super::MAX_SEQ_LEN);
            }
            Distribution::LogNormal { median, sigma } => {
                bounded("of.log_normal.median", *median, 1, super::MAX_SEQ_LEN);
                if !(0.0..=MAX_SIGMA).contains(sigma) {
                    let kind = IssueKind::NotA { expected: "a number from 0 to 4".into(), found: sigma.to_string() };
                    issues.push(Issue::new("recipe.lengths.of.log_normal.sigma", kind));
                }
            }
            Distribution::List(list) => {
                bounded("of.list", u64::try_from(list.len()).unwrap_or(u64::MAX), 1, MAX_SEQUENCES);
                if let Some(found) = list.iter().find(|n| !(1..=super::MAX_SEQ_LEN).contains(*n)) {
                    bounded("of.list", *found, 1, super::MAX_SEQ_LEN);
                }
            }
        }
        issues
    }
}

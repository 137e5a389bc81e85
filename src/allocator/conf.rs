//! `PYTORCH_CUDA_ALLOC_CONF` / `PYTORCH_ALLOC_CONF`: what that PyTorch version accepts, and why it refuses the rest.

use serde::{Deserialize, Serialize};

use super::LARGE_BUFFER;
use super::rules::Rules;
use crate::plan::Version;
use crate::units::MIB;

mod keys;
mod parse;

/// Power-of-two intervals of request sizes: [1, 2) MiB, [2, 4) MiB ... [16, 32) GiB, 32 GiB and more.
const INTERVALS: usize = 16;

/// The settings that decide where blocks go.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocConf {
    /// Bytes from which a block is never split. `None`: any block may be split.
    pub max_split_size: Option<u64>,
    /// Bytes by which a block that is never split may exceed the request it serves.
    pub max_non_split_rounding: u64,
    /// Segment size for rounded sizes of 1 to 10 MiB, and page size of large expandable segments.
    pub large_segment_size: u64,
    /// Share of the memory limit above which old free segments are given back. `None`: off.
    pub garbage_collection_threshold: Option<f64>,
    /// Segments that grow by pages.
    pub expandable_segments: bool,
    /// `per_process_memory_fraction`, in force from the start.
    pub per_process_memory_fraction: Option<f64>,
    /// Divisions of each power-of-two interval; 0: sizes are rounded to 512 bytes. `None`: 0 everywhere.
    roundup_power2_divisions: Option<[u32; INTERVALS]>,
}

impl Default for AllocConf {
    /// The variable is not set.
    fn default() -> Self {
        Self {
            max_split_size: None,
            max_non_split_rounding: LARGE_BUFFER,
            large_segment_size: LARGE_BUFFER,
            garbage_collection_threshold: None,
            expandable_segments: false,
            per_process_memory_fraction: None,
            roundup_power2_divisions: None,
        }
    }
}

impl AllocConf {
    /// Reads the variable's text as PyTorch `version` does.
    ///
    /// # Errors
    /// Everything that this version would refuse, and what it accepts but this program does not model.
    pub fn parse(text: &str, version: Version) -> Result<Self, Vec<ConfIssue>> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        parse::parse(text, version, &Rules::of(version))
    }

    /// The divisions of the interval that `n` (not 0) lies in.
    #[inline]
    pub(super) fn divisions_for(&self, n: u64) -> u32 {
        let Some(divisions) = self.roundup_power2_divisions else { return 0 };
        let interval = n.ilog2().saturating_sub(MIB.ilog2()) as usize;
        divisions[interval.min(INTERVALS - 1)]
    }
}

/// One thing that is wrong with the text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfIssue {
    /// The key it is about; the offending piece of text where there is no key.
    pub key: String,
    /// What is wrong.
    pub problem: ConfProblem,
}

/// What can be wrong with the text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ConfProblem {
    /// No version has this key.
    UnknownKey {
        /// The known key that looks most like it, if one does.
        did_you_mean: Option<String>,
    },
    /// This version does not have the key yet.
    NotYet {
        /// The first version known to have it.
        since: Version,
    },
    /// This version does not have the key any more.
    Removed {
        /// The first version without it.
        since: Version,
    },
    /// The text breaks off or has something else in place of this.
    Syntax {
        /// What belongs there.
        expected: String,
        /// What is there; empty at the end of the text.
        found: String,
    },
    /// A value that this version refuses.
    Value {
        /// What it accepts.
        expected: String,
        /// What was found.
        found: String,
    },
    /// PyTorch accepts it, but its effect is not modelled here, so that any figure would be wrong.
    NotModelled,
}

impl core::fmt::Display for ConfIssue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let key = &self.key;
        match &self.problem {
            ConfProblem::UnknownKey { did_you_mean: Some(near) } => {
                write!(f, "`{key}` is not an allocator setting; did you mean `{near}`?")
            }
            ConfProblem::UnknownKey { did_you_mean: None } => write!(f, "`{key}` is not an allocator setting"),
            ConfProblem::NotYet { since } => write!(f, "`{key}` exists from PyTorch {since} on"),
            ConfProblem::Removed { since } => write!(f, "`{key}` was removed in PyTorch {since}"),
            ConfProblem::Syntax { expected, found } if found.is_empty() => {
                write!(f, "`{key}`: the text ends where {expected} belongs")
            }
            ConfProblem::Syntax { expected, found } => write!(f, "`{key}`: `{found}` stands where {expected} belongs"),
            ConfProblem::Value { expected, found } => write!(f, "`{key}` takes {expected}, not `{found}`"),
            ConfProblem::NotModelled => write!(f, "`{key}`: PyTorch accepts this, but its effect is not modelled here"),
        }
    }
}

#[cfg(test)]
mod tests;

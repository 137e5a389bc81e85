//! What a text says beside figures: where it comes from, what failed, who holds the card, how figures went on.

use serde::{Deserialize, Serialize};

use crate::bill::Instant;
use crate::measure::{FormatId, TierName};

/// The text that a measurement was read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Its format.
    pub format: FormatId,
    /// The rank whose text it is, where the log says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The GPU's index, as the process counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    /// The earliest PyTorch that prints such a text, such as `2.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pytorch_from: Option<String>,
    /// The latest; absent: still printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pytorch_to: Option<String>,
    /// What the text calls this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether the text ends in the middle of a sentence.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub cut: bool,
}

impl Source {
    /// A text in `format` of which nothing else is known.
    #[must_use]
    pub const fn new(format: FormatId) -> Self {
        Self { format, rank: None, device: None, pytorch_from: None, pytorch_to: None, label: None, cut: false }
    }
}

/// What an error message says went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// What failed.
    pub kind: FailureKind,
    /// On which kind of device, where the text says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Whether expandable segments were on, where the text says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expandable_segments: Option<bool>,
    /// What was asked for, as the text names it: a status, a tensor's shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// In which phase of the step, where the traceback says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Instant>,
}

impl Failure {
    /// A failure of which nothing else is known.
    #[must_use]
    pub const fn new(kind: FailureKind) -> Self {
        Self { kind, backend: None, expandable_segments: None, what: None, at: None }
    }
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// A framework's allocator got no more from the driver.
    OutOfMemory,
    /// A request of more than an exabyte: a wrong size, not a full card.
    AbsurdRequest,
    /// The request would have passed a limit that someone set, and was refused before the driver was asked.
    OverLimit,
    /// More than the device gives in one piece.
    OverAllocationLimit,
    /// A call of the driver outside of the allocator.
    Driver,
    /// A library's workspace or handle outside of the allocator.
    Library,
    /// NCCL's own buffers.
    Nccl,
    /// An inference server that found too little memory when it started.
    InferenceStart,
    /// The machine's own memory ran out.
    Host,
    /// Checkpointing ran a layer again otherwise than in forward.
    Recomputation,
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// NVIDIA.
    Cuda,
    /// AMD.
    Hip,
    /// Intel.
    Xpu,
    /// Apple.
    Mps,
}

/// A process that holds memory on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its id; absent for the process that wrote the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    /// The GPU's index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Its name, which the tool may have cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it is the measured process itself.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub own: bool,
    /// What it holds, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Why that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// A figure at several steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// What the producer calls it.
    pub name: String,
    /// Which of the totals it is.
    pub tier: TierName,
    /// How many points at the start belong to the warm-up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warm_up: u32,
    /// How many steps each point stands for: it is the highest of them. Absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    /// Step and bytes, in the order of the text.
    pub points: Vec<[i64; 2]>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A buffer that a compiler lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Its shape.
    pub shape: String,
    /// Its size.
    pub bytes: u64,
    /// Half of the last printed digit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<u64>,
}

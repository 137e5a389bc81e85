//! What the job runs on: a GPU from the catalogue or the user's own, memory already in use, the CUDA context.

mod catalogue;
mod communicators;
mod hardware;

use serde::{Deserialize, Serialize};

pub use catalogue::{Gpu, Peaks, assumed_context, find, gpus};
pub(crate) use communicators::assumed_communicators;
pub use communicators::communicators;
pub use hardware::{Capability, Hardware, Sourced};

use crate::units::Bytes;

/// One GPU of a machine, as a plan describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// The GPU. `None`: the user does not know; the bill is computed and the verdict is "cannot tell".
    pub gpu: Option<GpuChoice>,
    /// Memory of the MIG slice, when the job runs in one instead of on the whole card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_slice_bytes: Option<Bytes>,
    /// Memory that other processes already hold. `None`: the user does not know; taken as none, and said so.
    pub in_use_bytes: Option<Bytes>,
    /// The process's CUDA context. `None`: the catalogue's assumption for the GPU's generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_bytes: Option<Bytes>,
    /// What NCCL's communicators take in the process. `None`: an assumption by their number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communicator_bytes: Option<Bytes>,
}

/// A card of the catalogue by name, or the user's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GpuChoice {
    /// The name or an alias of a catalogue row.
    Catalogue(String),
    /// A card that the catalogue lacks.
    Custom(CustomGpu),
}

/// A card that the user describes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CustomGpu {
    /// What the user calls it.
    pub name: String,
    /// The total memory that PyTorch reports for it.
    pub memory_bytes: Bytes,
    /// CUDA compute capability, such as `8.9`. `None`: not known; attention is taken as for 8.0.
    #[serde(default)]
    pub compute_capability: Option<String>,
}

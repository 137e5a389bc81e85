//! The formats that are read, in the order they are tried. One file per format: a row here, and the registry finds it.

mod amd_smi;
mod async_oom;
mod axolotl;
mod csv;
mod cuda_error;
mod deepspeed;
mod document;
mod host;
mod jax_stats;
mod library;
mod literal;
mod memory_stats;
mod memory_summary;
mod messages;
mod mps;
mod nccl;
mod oom;
mod reader;
mod recompute;
mod rocm_smi;
mod script;
mod series;
mod series_lines;
mod smi_q;
mod smi_table;
mod smi_xml;
mod snapshot;
mod tensorboard;
mod tensorflow;
mod text;
mod tracker;
mod trainer_state;
mod vllm;
mod xla;

pub use reader::{Options, Reader, decoded, understand};
pub use tensorboard::masked_crc;

use serde::{Deserialize, Serialize};

use crate::measure::{ImportError, Measurement, Unit};

/// The longest text that is read from a clipboard or a field: 32 MiB.
pub const MAX_TEXT: usize = 32 << 20;

/// A format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FormatId {
    /// Our measurement document.
    Document,
    /// The output of the articles' measuring script.
    Script,
    /// PyTorch's out-of-memory message on CUDA, ROCm and XPU.
    PytorchOom,
    /// PyTorch's message with the backend `cudaMallocAsync`.
    AsyncOom,
    /// PyTorch's message on Apple's GPUs.
    MpsOom,
    /// The driver's own error, without figures.
    CudaError,
    /// A library's failed workspace or handle.
    LibraryOom,
    /// NCCL's failed buffers.
    NcclOom,
    /// The machine's own memory that ran out.
    HostOom,
    /// Checkpointing that ran a layer again otherwise.
    Recomputation,
    /// JAX's message.
    XlaOom,
    /// TensorFlow's messages.
    TensorflowOom,
    /// What vLLM says of memory when it starts.
    Vllm,
    /// DeepSpeed's `see_memory_usage`.
    Deepspeed,
    /// axolotl's line about memory.
    Axolotl,
    /// `nvidia-smi`: table, `-q`, XML and CSV.
    NvidiaSmi,
    /// `rocm-smi`.
    RocmSmi,
    /// `amd-smi`.
    AmdSmi,
    /// `torch.cuda.memory_summary()`.
    MemorySummary,
    /// `torch.cuda.memory_stats()`.
    MemoryStats,
    /// JAX's `device.memory_stats()`.
    JaxStats,
    /// Figures by step: CSV, JSON lines, a trainer's log.
    Series,
    /// Hugging Face's `trainer_state.json`.
    TrainerState,
    /// The memory metrics of Hugging Face's trainer: its table, its results.
    TrainerMemory,
    /// TensorBoard's event files.
    Tensorboard,
}

/// What is read, as ends of "expected …".
const EXPECTED: [&str; 13] = [
    "an out-of-memory message (PyTorch, JAX, TensorFlow, vLLM, NCCL, cuBLAS)",
    "nvidia-smi (table, -q, -q -x, --query-gpu)",
    "rocm-smi",
    "amd-smi",
    "torch.cuda.memory_summary()",
    "memory_stats() of PyTorch or JAX",
    "the memory metrics of a Hugging Face trainer",
    "DeepSpeed's or axolotl's lines about memory",
    "figures by step (CSV, JSON lines, a trainer's log)",
    "trainer_state.json",
    "an event file of TensorBoard",
    document::FORMAT.expected,
    script::FORMAT.expected,
];

/// What a text was understood as.
#[derive(Clone, Debug, PartialEq)]
pub enum Imported {
    /// A measurement.
    Measurement {
        /// The format it was in.
        format: FormatId,
        /// What it says.
        measurement: Box<Measurement>,
    },
    /// A measurement whose unit is not clear: ask, then [`import_in`].
    WhichUnit {
        /// The format it is in.
        format: FormatId,
        /// Units that make sense of the figures, the likeliest first.
        candidates: Vec<Unit>,
    },
}

/// One format.
struct Format {
    id: FormatId,
    /// What the format is, as the end of "expected …".
    expected: &'static str,
    /// Whether the text is in this format, by its content alone. Cheap, and right even where the rest is malformed.
    recognises: fn(&str) -> bool,
    /// Reads it, in `unit` where the format leaves the unit open.
    read: fn(&str, Option<Unit>) -> Result<Read, ImportError>,
}

impl Format {
    fn imported(&self, text: &str, unit: Option<Unit>) -> Result<Imported, ImportError> {
        Ok(match (self.read)(text, unit)? {
            Read::Measurement(measurement) => Imported::Measurement { format: self.id, measurement },
            Read::WhichUnit(candidates) => Imported::WhichUnit { format: self.id, candidates },
        })
    }
}

/// What a format's reader found.
enum Read {
    Measurement(Box<Measurement>),
    WhichUnit(Vec<Unit>),
}

/// What a job writes of itself; [`understand`] reads everything.
const FORMATS: [Format; 2] = [document::FORMAT, script::FORMAT];

/// Reads a text as one of the two documents that a job writes of itself.
///
/// # Errors
/// [`ImportError`]: what was expected, and where the text departs from it.
pub fn import(text: &str) -> Result<Imported, ImportError> {
    read(text, None)
}

/// [`import`], with the answer to [`Imported::WhichUnit`].
///
/// # Errors
/// [`ImportError`], as for [`import`].
pub fn import_in(text: &str, unit: Unit) -> Result<Imported, ImportError> {
    read(text, Some(unit))
}

fn read(text: &str, unit: Option<Unit>) -> Result<Imported, ImportError> {
    if text.len() > MAX_TEXT {
        return Err(ImportError::TooLarge { bytes: text.len() as u64, limit: MAX_TEXT as u64 });
    }
    let Some(format) = FORMATS.iter().find(|f| (f.recognises)(text)) else {
        return Err(ImportError::NotThisFormat { expected: FORMATS.iter().map(|f| f.expected.to_owned()).collect() });
    };
    format.imported(text, unit)
}

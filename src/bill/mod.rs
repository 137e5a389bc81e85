//! The bill: five parts × instants, the binding instant, and the tiers.

mod build;
mod lines;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

pub use build::{MAX_TIMELINE_POINTS, bill, modelled};
pub(crate) use build::{Peaks, peaks};
pub use lines::{Cell, Kind, Line, Tensors};

/// What a byte is for, in order of lifetime, longest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Parameters and buffers.
    Weights,
    /// Optimizer states and master weights.
    States,
    /// Gradients of parameters.
    Gradients,
    /// Tensors kept for backward, cast copies of weights, and the batch.
    Activations,
    /// Everything else: outputs in flight, gradients of activations, workspaces, the optimizer's temporaries.
    Temporary,
}

impl Part {
    /// All five, in order.
    pub const ALL: [Self; 5] = [Self::Weights, Self::States, Self::Gradients, Self::Activations, Self::Temporary];
}

/// The four instants that a bill has a column for: where each phase of the step is at its highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Instant {
    /// The layers' forward, up to the logits.
    Forward,
    /// The loss: its forward and the backward through it, down to the logits' gradient.
    Loss,
    /// The layers' backward.
    Backward,
    /// `optimizer.step()`.
    Step,
}

impl Instant {
    /// All four, in order.
    pub const ALL: [Self; 4] = [Self::Forward, Self::Loss, Self::Backward, Self::Step];
}

/// Bytes per part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartBytes(pub [Bytes; 5]);

impl PartBytes {
    /// The bytes of one part.
    #[must_use]
    pub fn get(&self, part: Part) -> Bytes {
        self.0[part as usize]
    }

    /// The sum of the five.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.0.iter().copied().sum()
    }
}

/// How a figure is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Provenance {
    /// The kind of knowledge.
    pub kind: ProvenanceKind,
    /// Where it comes from: a rule's source, a file, a version.
    pub source: String,
}

/// The four kinds of knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProvenanceKind {
    /// Arithmetic from the configuration.
    Exact,
    /// Rules of a framework version.
    Modelled,
    /// Read from a run.
    Measured,
    /// A constant that the user can change.
    Assumed,
}

/// One column of the bill: the live set at the highest moment of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Which phase.
    pub instant: Instant,
    /// Bytes per part.
    pub parts: PartBytes,
    /// What they are.
    pub tensors: Vec<Tensors>,
}

/// The bill of one steady step.
#[derive(Clone, Debug, PartialEq)]
pub struct Bill {
    /// The columns, in the order of [`Instant::ALL`].
    pub columns: Vec<Column>,
    /// The instant with the highest total.
    pub binding: Instant,
    /// Symbols used by the formulas and their values, such as (`h`, 4096).
    pub symbols: Vec<(&'static str, u64)>,
    /// The kinds of tensors that the columns count.
    pub kinds: Vec<Kind>,
    /// Where the figures come from.
    pub sources: Sources,
}

impl Bill {
    /// The column of `instant`.
    #[must_use]
    pub fn column(&self, instant: Instant) -> &Column {
        &self.columns[instant as usize]
    }
}

/// Where the figures come from, by part.
#[derive(Clone, Debug, PartialEq)]
pub struct Sources {
    /// Parameters and buffers.
    pub weights: Provenance,
    /// Optimizer states.
    pub states: Provenance,
    /// Everything autograd decides.
    pub autograd: Provenance,
}

impl Sources {
    /// Of `part`.
    #[must_use]
    pub const fn of(&self, part: Part) -> &Provenance {
        match part {
            Part::Weights => &self.weights,
            Part::States => &self.states,
            Part::Gradients | Part::Activations | Part::Temporary => &self.autograd,
        }
    }
}

/// One tier's peak over the warm-up and the steady step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// The highest reading.
    pub peak_bytes: Bytes,
    /// How it is known.
    pub provenance: Provenance,
}

/// The tiers, kept apart: what the tensors ask for, what `memory_allocated` shows, what the allocator takes from the
/// driver, what `nvidia-smi` shows. `None`: not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tiers {
    /// The tensors' bytes.
    pub requested: Tier,
    /// Blocks: rounding and unsplit remainders included.
    pub allocated: Tier,
    /// Segments.
    pub reserved: Option<Tier>,
    /// Reserved, the CUDA context and NCCL's communicators.
    pub process: Option<Tier>,
    /// What the job keeps in the host's memory, beside what Python and its libraries take and the pages of files that the
    /// system can take back.
    pub host: Option<Tier>,
}

/// A point of the timeline: the live set after an event, thinned so that a picture can hold it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// Position in the step, counted in events: an order, not a clock.
    pub at: u64,
    /// Which phase.
    pub instant: Instant,
    /// The live set.
    pub parts: PartBytes,
}

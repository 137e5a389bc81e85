//! The decision tree (A11): rigid cost, activations, margin, throughput. It narrows the choice; a measurement confirms.

use serde::{Deserialize, Serialize};

use crate::throughput::Throughput;
use crate::units::Bytes;

/// The questions, in the order they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Do weights, gradients and states leave room on one card?
    Rigid,
    /// Do activations fit in what is left?
    Activations,
    /// Is enough kept free for fragmentation?
    Margin,
    /// How fast is it?
    Throughput,
}

impl Question {
    /// All four, in order.
    pub const ALL: [Self; 4] = [Self::Rigid, Self::Activations, Self::Margin, Self::Throughput];
}

/// How a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Within the threshold.
    Pass,
    /// Past the threshold: look at the remedies.
    Attention,
    /// Impossible as it is.
    Stop,
    /// Waits for a fact that is not known, or for an earlier step.
    Waits,
}

/// The number that a step compares, with its pieces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The share that is compared. `None`: a piece is not known, or nothing is left to take a share of.
    pub value: Option<f64>,
    /// The policy's threshold for it. `None`: the step has none.
    pub threshold: Option<f64>,
    /// What the share is of: `value = part ÷ whole`. `None`: not known.
    pub part: Option<Bytes>,
    /// The denominator. `None`: not known.
    pub whole: Option<Bytes>,
    /// The summands and subtrahends behind `part` and `whole`, by name, in the order of the formula.
    pub pieces: Vec<(Piece, Option<Bytes>)>,
}

/// The names of the quantities in a step's formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// Parameters and buffers.
    Weights,
    /// Gradients.
    Gradients,
    /// Optimizer states.
    States,
    /// Activations at their highest instant.
    Activations,
    /// Reserved memory's peak.
    Reserved,
    /// The process's context.
    Context,
    /// Memory that others hold.
    InUse,
    /// The card.
    Capacity,
}

/// One question answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeStep {
    /// Which question.
    pub question: Question,
    /// How it stands.
    pub status: Status,
    /// The number against the threshold. For throughput, `value` is absent: see [`TreeStep::throughput`].
    pub figure: Figure,
    /// The estimate, at the throughput step where there is one.
    pub throughput: Option<Throughput>,
    /// What helps here: positions in [`crate::decide::Decision::remedies`].
    pub remedies: Vec<usize>,
}

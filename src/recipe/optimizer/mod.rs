//! Optimizers: which states they hold and what a step allocates beside them. One file per optimizer.

mod adam;
mod sgd;

use serde::{Deserialize, Serialize};

use crate::bill::Part;
use crate::step::tape::Tape;
use crate::step::tensor::Tensor;

/// An optimizer, its implementation, and the options that change what it allocates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// Which optimizer.
    pub name: OptimizerName,
    /// Which implementation. `None`: what `torch.optim` chooses on CUDA (`foreach`).
    #[serde(rename = "impl")]
    pub implementation: Option<OptimizerImpl>,
    /// SGD's momentum; 0 holds no state.
    #[serde(skip_serializing_if = "is_zero")]
    pub momentum: f64,
}

fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { name: OptimizerName::AdamW, implementation: None, momentum: 0.0 }
    }
}

/// The optimizers that are modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// `torch.optim.AdamW`: two states in the weights' dtype.
    AdamW,
    /// `torch.optim.Adam`: as AdamW here.
    Adam,
    /// `torch.optim.SGD`: one state with momentum, none without.
    Sgd,
}

impl OptimizerName {
    /// Every optimizer, in the order they are offered.
    pub const ALL: [Self; 3] = [Self::AdamW, Self::Adam, Self::Sgd];
}

/// How `torch.optim` runs a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OptimizerImpl {
    /// Horizontally fused lists of tensors: fast, and one more copy of the parameters for AdamW.
    Foreach,
    /// One kernel: no temporaries.
    Fused,
    /// One tensor at a time: temporaries of the largest tensor.
    Forloop,
}

/// The states of every parameter, in the parameters' order; empty before the first step.
pub(crate) type Slots = Vec<Vec<Tensor>>;

impl Optimizer {
    /// Which implementation runs: `torch.optim` defaults to `foreach` on CUDA
    /// (`_default_to_fused_or_foreach`, torch/optim/optimizer.py).
    #[must_use]
    pub fn implementation(&self) -> OptimizerImpl {
        self.implementation.unwrap_or(OptimizerImpl::Foreach)
    }

    /// Bytes of state per element of a parameter whose states are `width` bytes wide.
    #[must_use]
    pub fn state_bytes_per_parameter(&self, width: u64) -> u64 {
        match self.name {
            OptimizerName::AdamW | OptimizerName::Adam => 2 * width,
            OptimizerName::Sgd if self.momentum != 0.0 => width,
            OptimizerName::Sgd => 0,
        }
    }

    /// Runs one step over `params` on the tape.
    pub(crate) fn step(&self, tape: &Tape, params: &[Tensor], slots: &mut Slots) {
        let how = self.implementation();
        match self.name {
            OptimizerName::AdamW | OptimizerName::Adam => adam::step(tape, params, how, slots),
            OptimizerName::Sgd => sgd::step(tape, params, self.momentum, slots),
        }
    }
}

/// A state of a parameter's sizes and dtype.
fn state_like(tape: &Tape, p: &Tensor, op: &'static str) -> Tensor {
    tape.empty(*p.shape(), p.dtype(), Part::States, op)
}

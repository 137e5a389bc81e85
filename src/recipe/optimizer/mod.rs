//! Optimizers: which states they hold and what a step allocates beside them. One file per optimizer.

mod adafactor;
mod adafactor_hf;
mod adam;
mod adamw8bit;
mod sgd;

use serde::{Deserialize, Serialize};

use crate::bill::Part;
use crate::step::ops::reduce::keepdim;
use crate::step::shape::Shape;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

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
    /// `torch.optim.Adafactor`: a row and a column of each matrix, in the weights' dtype.
    Adafactor,
    /// transformers' `Adafactor` with `scale_parameter=False, relative_step=False`: the same in FP32.
    #[serde(rename = "adafactor_hf")]
    AdafactorHf,
    /// bitsandbytes' `AdamW8bit`: two states of one byte per element, in blocks that share a scale.
    AdamW8bit,
}

impl OptimizerName {
    /// Every optimizer, in the order they are offered.
    pub const ALL: [Self; 6] =
        [Self::AdamW, Self::Adam, Self::Sgd, Self::Adafactor, Self::AdafactorHf, Self::AdamW8bit];

    /// The implementations that its library offers; none where it has but one of its own.
    #[must_use]
    pub const fn implementations(self) -> &'static [OptimizerImpl] {
        match self {
            Self::AdamW | Self::Adam | Self::Sgd => {
                &[OptimizerImpl::Foreach, OptimizerImpl::Fused, OptimizerImpl::Forloop]
            }
            Self::Adafactor => &[OptimizerImpl::Foreach, OptimizerImpl::Forloop],
            Self::AdafactorHf | Self::AdamW8bit => &[],
        }
    }
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
    /// (`_default_to_fused_or_foreach`, torch/optim/optimizer.py), Adafactor to the for-loop
    /// (torch/optim/_adafactor.py). An optimizer with no choice of implementations goes over one tensor at a time.
    #[must_use]
    pub fn implementation(&self) -> OptimizerImpl {
        match self.name {
            OptimizerName::AdafactorHf | OptimizerName::AdamW8bit => OptimizerImpl::Forloop,
            OptimizerName::Adafactor => self.implementation.unwrap_or(OptimizerImpl::Forloop),
            OptimizerName::AdamW | OptimizerName::Adam | OptimizerName::Sgd => {
                self.implementation.unwrap_or(OptimizerImpl::Foreach)
            }
        }
    }

    /// Runs one step over `params` on the tape.
    pub(crate) fn step(&self, tape: &Tape, params: &[Tensor], slots: &mut Slots) {
        let how = self.implementation();
        match self.name {
            OptimizerName::AdamW | OptimizerName::Adam => adam::step(tape, params, how, slots),
            OptimizerName::Sgd => sgd::step(tape, params, self.momentum, slots),
            OptimizerName::Adafactor => adafactor::step(tape, params, how, slots),
            OptimizerName::AdafactorHf => adafactor_hf::step(tape, params, slots),
            OptimizerName::AdamW8bit => adamw8bit::step(tape, params, slots),
        }
    }
}

/// A state of a parameter's sizes and dtype.
fn state_like(tape: &Tape, p: &Tensor, op: &'static str) -> Tensor {
    state_of(tape, *p.shape(), p.dtype(), op)
}

/// A state of its own sizes and dtype.
fn state_of(tape: &Tape, shape: Shape, dtype: Dtype, op: &'static str) -> Tensor {
    tape.empty(shape, dtype, Part::States, op)
}

/// The sizes of Adafactor's row and column of a tensor: factored along its last two dimensions, if it has two.
fn factored(p: &Tensor) -> Option<[Shape; 2]> {
    let last = p.shape().rank().checked_sub(1)?;
    let before = last.checked_sub(1)?;
    Some([last, before].map(|i| keepdim(p.shape(), i)))
}

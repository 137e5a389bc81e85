//! Optimizers: which states they hold and what a step allocates beside them. One file per optimizer.

use serde::{Deserialize, Serialize};

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

//! Optimizers: which states they hold and what a step allocates beside them.

mod adafactor;
mod adafactor_hf;
pub(crate) mod adam_mini;
mod bitsandbytes;
mod came;
mod elementwise;
mod muon;
mod projected;

use serde::{Deserialize, Serialize};

use crate::bill::Part;
use crate::step::ops::reduce::keepdim;
use crate::step::shape::Shape;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Table, Tensor};

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
    /// Momentum of SGD and RMSprop; 0 holds no state for it.
    #[serde(skip_serializing_if = "is_zero")]
    pub momentum: f64,
    /// SGD with Nesterov momentum.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub nesterov: bool,
    /// Adam and AdamW with the largest second moment so far.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub amsgrad: bool,
    /// RMSprop with the mean of the gradient.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub centered: bool,
    /// 8-bit optimizers: FP32 states for the weights of `nn.Embedding`, as the Trainer of transformers asks for.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub embeddings_32bit: bool,
    /// Every weight has an optimizer of its own, stepped by a hook in backward as soon as its gradient is there, which
    /// is then freed.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub in_backward: bool,
    /// Rank of the space that GaLore and APOLLO project matrices to. `None`: 128.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// What APOLLO scales by.
    #[serde(skip_serializing_if = "is_default")]
    pub scale_type: ScaleType,
}

fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

fn is_default(x: &ScaleType) -> bool {
    *x == ScaleType::Channel
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            name: OptimizerName::AdamW,
            implementation: None,
            momentum: 0.0,
            nesterov: false,
            amsgrad: false,
            centered: false,
            embeddings_32bit: false,
            in_backward: false,
            rank: None,
            scale_type: ScaleType::Channel,
        }
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
    /// bitsandbytes' `AdamW32bit`: two FP32 states.
    AdamW32bit,
    /// bitsandbytes' `PagedAdamW8bit`: as `AdamW8bit`, large states in managed memory.
    #[serde(rename = "paged_adamw8bit")]
    PagedAdamW8bit,
    /// bitsandbytes' `PagedAdamW32bit`: as `AdamW32bit`, large states in managed memory.
    #[serde(rename = "paged_adamw32bit")]
    PagedAdamW32bit,
    /// bitsandbytes' `Lion32bit`: one FP32 state.
    Lion,
    /// bitsandbytes' `Lion8bit`: one state of one byte per element.
    Lion8bit,
    /// bitsandbytes' `PagedLion8bit`: as `Lion8bit`, large states in managed memory.
    #[serde(rename = "paged_lion8bit")]
    PagedLion8bit,
    /// bitsandbytes' `AdEMAMix32bit`: two FP32 states.
    AdEmaMix,
    /// bitsandbytes' `AdEMAMix8bit`: three states of one byte per element.
    AdEmaMix8bit,
    /// `torch.optim.Muon` on the matrices inside the layers, `torch.optim.AdamW` on the rest: one state, or two.
    Muon,
    /// schedulefree's `AdamWScheduleFree`: two states in the weights' dtype.
    #[serde(rename = "schedulefree_adamw")]
    ScheduleFreeAdamW,
    /// galore-torch's `GaLoreAdamW`: two states of low rank and a projection for each matrix inside the layers.
    #[serde(rename = "galore_adamw")]
    GaLoreAdamW,
    /// apollo-torch's `APOLLOAdamW`: as GaLore, with random projections.
    #[serde(rename = "apollo_adamw")]
    ApolloAdamW,
    /// `torch.optim.RMSprop`: one state, and one each for momentum and centring.
    RmsProp,
    /// `torch.optim.Adagrad`: one state, made with the optimizer.
    Adagrad,
    /// `torch.optim.NAdam`: two states.
    NAdam,
    /// `torch.optim.RAdam`: two states.
    RAdam,
    /// `torch.optim.Adamax`: two states.
    Adamax,
    /// `torch.optim.Adadelta`: two states.
    Adadelta,
    /// Sophia-G, from its definition: two states.
    Sophia,
    /// CAME, from its definition: a first moment in FP32, rows and columns.
    Came,
    /// Adam-mini, from its definition: a first moment in FP32; second moments of embeddings and the head alone.
    #[serde(rename = "adam_mini")]
    AdamMini,
}

impl OptimizerName {
    /// Every optimizer, in the order they are offered: the common ones first.
    pub const ALL: [Self; 27] = [
        Self::AdamW,
        Self::AdamW8bit,
        Self::PagedAdamW8bit,
        Self::PagedAdamW32bit,
        Self::AdamW32bit,
        Self::Adafactor,
        Self::AdafactorHf,
        Self::Sgd,
        Self::Adam,
        Self::Lion,
        Self::Lion8bit,
        Self::PagedLion8bit,
        Self::Muon,
        Self::ScheduleFreeAdamW,
        Self::GaLoreAdamW,
        Self::ApolloAdamW,
        Self::AdEmaMix,
        Self::AdEmaMix8bit,
        Self::RmsProp,
        Self::Adagrad,
        Self::NAdam,
        Self::RAdam,
        Self::Adamax,
        Self::Adadelta,
        Self::Sophia,
        Self::Came,
        Self::AdamMini,
    ];

    /// The name in documents and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Adam => "adam",
            Self::Sgd => "sgd",
            Self::Adafactor => "adafactor",
            Self::AdafactorHf => "adafactor_hf",
            Self::AdamW8bit => "adamw8bit",
            Self::AdamW32bit => "adamw32bit",
            Self::PagedAdamW8bit => "paged_adamw8bit",
            Self::PagedAdamW32bit => "paged_adamw32bit",
            Self::Lion => "lion",
            Self::Lion8bit => "lion8bit",
            Self::PagedLion8bit => "paged_lion8bit",
            Self::AdEmaMix => "ademamix",
            Self::AdEmaMix8bit => "ademamix8bit",
            Self::Muon => "muon",
            Self::ScheduleFreeAdamW => "schedulefree_adamw",
            Self::GaLoreAdamW => "galore_adamw",
            Self::ApolloAdamW => "apollo_adamw",
            Self::RmsProp => "rmsprop",
            Self::Adagrad => "adagrad",
            Self::NAdam => "nadam",
            Self::RAdam => "radam",
            Self::Adamax => "adamax",
            Self::Adadelta => "adadelta",
            Self::Sophia => "sophia",
            Self::Came => "came",
            Self::AdamMini => "adam_mini",
        }
    }

    /// The implementations that its library offers, the default first; none where it has but one of its own.
    #[must_use]
    pub const fn implementations(self) -> &'static [OptimizerImpl] {
        use OptimizerImpl::{Foreach, Forloop, Fused};
        match self {
            // Muon's own loop goes over one matrix at a time; what is chosen here is its AdamW's.
            Self::AdamW | Self::Adam | Self::Sgd | Self::Adagrad | Self::Muon => &[Foreach, Fused, Forloop],
            Self::RmsProp | Self::NAdam | Self::RAdam | Self::Adamax | Self::Adadelta | Self::ScheduleFreeAdamW => {
                &[Foreach, Forloop]
            }
            Self::Adafactor => &[Forloop, Foreach],
            _ => &[],
        }
    }

    /// Whether it is one of bitsandbytes'.
    #[must_use]
    pub const fn is_of_bitsandbytes(self) -> bool {
        matches!(
            self,
            Self::AdamW8bit
                | Self::AdamW32bit
                | Self::PagedAdamW8bit
                | Self::PagedAdamW32bit
                | Self::Lion
                | Self::Lion8bit
                | Self::PagedLion8bit
                | Self::AdEmaMix
                | Self::AdEmaMix8bit
        )
    }

    /// What its code came with, in words.
    #[must_use]
    pub const fn origin(self) -> &'static str {
        match self {
            _ if self.is_of_bitsandbytes() => "bitsandbytes 0.50",
            Self::AdafactorHf => "transformers",
            Self::ScheduleFreeAdamW => "schedulefree 1.4",
            Self::GaLoreAdamW => "galore-torch 1.0",
            Self::ApolloAdamW => "apollo-torch 1.0",
            Self::Sophia | Self::Came | Self::AdamMini => "its authors' code",
            _ => TORCH,
        }
    }

    /// Whether it is one of `torch.optim`'s.
    #[must_use]
    pub fn is_of_torch(self) -> bool {
        self.origin() == TORCH
    }

    /// Whether it projects matrices to a space of low rank.
    #[must_use]
    pub const fn projects(self) -> bool {
        matches!(self, Self::GaLoreAdamW | Self::ApolloAdamW)
    }

    /// Whether some of its states are of one byte per element.
    #[must_use]
    pub const fn is_8bit(self) -> bool {
        matches!(
            self,
            Self::AdamW8bit | Self::PagedAdamW8bit | Self::Lion8bit | Self::PagedLion8bit | Self::AdEmaMix8bit
        )
    }

    /// Whether its large states lie in managed memory.
    #[must_use]
    pub const fn is_paged(self) -> bool {
        matches!(self, Self::PagedAdamW8bit | Self::PagedAdamW32bit | Self::PagedLion8bit)
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

/// What APOLLO scales the gradient by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ScaleType {
    /// One factor per channel.
    #[default]
    Channel,
    /// One factor per tensor (APOLLO-Mini, of rank 1).
    Tensor,
}

/// The states of every parameter; empty before the first step.
pub(crate) type Slots = Vec<Vec<Tensor>>;

/// Where most optimizers come from.
const TORCH: &str = "torch.optim";

/// The rank of GaLore's and APOLLO's examples.
const DEFAULT_RANK: u64 = 128;

impl Optimizer {
    /// Which implementation runs: `torch.optim` defaults to `foreach` on CUDA
    /// (`_default_to_fused_or_foreach`, torch/optim/optimizer.py), Adafactor to the for-loop
    /// (torch/optim/_adafactor.py). An optimizer with no choice of implementations goes over one tensor at a time.
    #[must_use]
    pub fn implementation(&self) -> OptimizerImpl {
        let offered = self.name.implementations();
        let default = offered.first().copied().unwrap_or(OptimizerImpl::Forloop);
        self.implementation.filter(|chosen| offered.contains(chosen)).unwrap_or(default)
    }

    pub(crate) fn rank(&self) -> u64 {
        self.rank.unwrap_or(DEFAULT_RANK)
    }

    /// Bytes of states in managed memory, for a trained tensor of `n` elements.
    pub(crate) fn paged_bytes(&self, n: u64, embedding: bool) -> u64 {
        bitsandbytes::paged_bytes(self, n, embedding)
    }

    /// Creates what the optimizer's constructor creates on the device: Adagrad's states.
    pub(crate) fn construct(&self, tape: &Tape, params: &[Tensor], slots: &mut Slots) {
        if self.name == OptimizerName::Adagrad {
            elementwise::create_states(tape, self, params, slots);
        }
    }

    /// Creates the states of `params` without a step; whether that can be done.
    pub(crate) fn create_states(&self, tape: &Tape, params: &[Tensor], slots: &mut Slots) -> bool {
        let alone = slots.is_empty() && self.is_elementwise();
        if alone {
            elementwise::create_states(tape, self, params, slots);
        }
        alone
    }

    /// Whether one routine runs it, element by element.
    fn is_elementwise(&self) -> bool {
        use OptimizerName as Name;
        !self.name.is_of_bitsandbytes()
            && !self.name.projects()
            && !matches!(self.name, Name::Adafactor | Name::AdafactorHf | Name::Came | Name::AdamMini | Name::Muon)
    }

    /// Runs one step over `params` on the tape; the first one creates the states.
    pub(crate) fn step(&self, tape: &Tape, params: &[Tensor], slots: &mut Slots) {
        match self.name {
            OptimizerName::Adafactor => adafactor::step(tape, params, self.implementation(), slots),
            OptimizerName::AdafactorHf => adafactor_hf::step(tape, params, slots),
            OptimizerName::Came => came::step(tape, params, slots),
            OptimizerName::AdamMini => adam_mini::step(tape, params, slots),
            OptimizerName::Muon => muon::step(tape, self, params, slots),
            OptimizerName::GaLoreAdamW | OptimizerName::ApolloAdamW => projected::step(tape, self, params, slots),
            _ if self.is_elementwise() => elementwise::step(tape, self, params, slots),
            _ => bitsandbytes::step(tape, self, params, slots),
        }
    }
}

/// Whether it is a matrix inside the layers: no table, no output head, no vector.
fn hidden(p: &Tensor) -> bool {
    p.shape().rank() == 2 && p.leaf().is_none_or(|leaf| leaf.table.get() == Table::No)
}

/// Tensors by dtype, as multi-tensor implementations take them: the group whose first tensor comes last is first
/// (`_group_tensors_by_first_tensors_device_and_dtype`, ATen/native/ForeachUtils.h: an unordered map; observed with PyTorch
/// 2.15).
pub(crate) fn by_dtype(params: &[Tensor]) -> Vec<Vec<&Tensor>> {
    if params.windows(2).all(|pair| pair[0].dtype() == pair[1].dtype()) {
        return if params.is_empty() { Vec::new() } else { vec![params.iter().collect()] };
    }
    let mut groups: Vec<Vec<&Tensor>> = Vec::new();
    for p in params {
        match groups.iter_mut().find(|group| group[0].dtype() == p.dtype()) {
            Some(group) => group.push(p),
            None => groups.insert(0, vec![p]),
        }
    }
    groups
}

/// A temporary for each parameter, with the parameter.
type List<'a> = Vec<(&'a Tensor, Tensor)>;

fn each<'a>(tape: &Tape, params: &[&'a Tensor], make: impl Fn(&Tape, &Tensor) -> Tensor) -> List<'a> {
    let one = |p: &&'a Tensor| {
        p.enter_layer(tape);
        (*p, make(tape, p))
    };
    params.iter().map(one).collect()
}

/// Lists free their items from the last to the first.
fn release(tape: &Tape, mut list: List<'_>) {
    while let Some((p, temporary)) = list.pop() {
        p.enter_layer(tape);
        drop(temporary);
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

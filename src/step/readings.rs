//! What a training loop would have read, with the names of the measured cases.

use serde::{Deserialize, Serialize};

use crate::bill::PartBytes;
use crate::step::log::Phase;
use crate::units::Bytes;

/// Readings of one optimizer step, in allocated bytes. Peaks are absolute and reset between phases; deltas lie between
/// the ends of phases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReadings {
    /// Before the step.
    pub base: Bytes,
    /// The batch's own bytes, of the first micro-batch.
    pub inputs: Bytes,
    /// Forward's growth, batch included, of the first micro-batch.
    pub forward_delta: i64,
    /// Forward's peak, of the first micro-batch.
    pub forward_peak: Bytes,
    /// Backward's growth, of the first micro-batch.
    pub backward_delta: i64,
    /// Backward's peak, of the first micro-batch.
    pub backward_peak: Bytes,
    /// The optimizer step's growth.
    pub step_delta: i64,
    /// The optimizer step's peak, clipping included.
    pub step_peak: Bytes,
    /// After the optimizer step.
    pub after_step: Bytes,
    /// The peak of the update of the weights' average, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_peak: Option<Bytes>,
    /// After `zero_grad` and the end of the loop's variables.
    pub after_zero_grad: Bytes,
    /// The gradients' own bytes.
    pub grads: Bytes,
    /// Reserved at the end.
    pub reserved_end: Bytes,
    /// Inactive split at the end.
    pub inactive_split_end: Bytes,
    /// Each walked micro-batch, when there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub micro: Vec<MicroReadings>,
}

/// Readings of one micro-batch, in allocated bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MicroReadings {
    /// Before it.
    pub base: Bytes,
    /// The batch's own bytes, beyond the batch that it replaces.
    pub inputs: i64,
    /// Forward's growth, batch included.
    pub forward_delta: i64,
    /// Forward's peak.
    pub forward_peak: Bytes,
    /// Backward's growth.
    pub backward_delta: i64,
    /// Backward's peak.
    pub backward_peak: Bytes,
    /// After it.
    pub after_backward: Bytes,
}

/// Readings when `from_pretrained` returns, before the cache is emptied. Its peaks are apart from the run's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReadings {
    /// Allocated.
    pub allocated: Bytes,
    /// Reserved.
    pub reserved: Bytes,
    /// The most allocated at once while it loaded.
    pub max_allocated: Bytes,
    /// The most reserved at once while it loaded.
    pub max_reserved: Bytes,
}

/// Readings of `prepare_model_for_kbit_training`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareReadings {
    /// Growth over it.
    pub delta: i64,
    /// The most allocated at once.
    pub peak: Bytes,
}

/// Readings of an evaluation after the steps, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalReadings {
    /// Allocated before it.
    pub base: Bytes,
    /// Growth over it: batch, loss and outputs.
    pub delta: i64,
    /// The most allocated during it.
    pub peak: Bytes,
    /// Reserved at its end.
    pub reserved: Bytes,
}

/// What a rank keeps in host memory in the place of its GPU, and what passes between the two in a step of the optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadReadings {
    /// Its shards.
    pub weights: Bytes,
    /// Their gradients.
    pub gradients: Bytes,
    /// The optimizer's states.
    pub states: Bytes,
    /// What all of it takes, rounded as it is allocated.
    pub held: Bytes,
    /// Copied to the GPU in a step.
    pub to_device: Bytes,
    /// Copied to the host in a step.
    pub to_host: Bytes,
    /// What of it lies on a disk.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub on_disk: Bytes,
    /// Read from there in a step.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub from_disk: Bytes,
    /// Written there in a step.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub to_disk: Bytes,
}

/// What saving a checkpoint writes, and what it copies to host memory at once.
///
/// Nothing is allocated on the device. `save_pretrained` gives safetensors a shard's tensors, all of which are copied to the
/// host before they are written (`_flatten_as_ptr`, safetensors 0.8); a shard has at most 50 GB (transformers 5.24). The
/// Trainer's `torch.save` of the optimizer copies one storage at a time (torch/serialization.py, 2.15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReadings {
    /// The weights that are written: all of them, or of adapters theirs alone.
    pub weights: Bytes,
    /// The optimizer's states.
    pub states: Bytes,
    /// The most that is copied to the host at once.
    pub copied: Bytes,
    /// Of shards: what a full state dict of weights and states gathers in rank 0's host memory instead. The figures above are
    /// then each rank's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gathered: Option<Bytes>,
}

/// What holds memory in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// The trained model's parameters and buffers.
    Weights,
    /// The parameters of models beside it.
    OtherModels,
    /// Optimizer states and master weights.
    States,
    /// Gradients of parameters.
    Gradients,
    /// Tensors kept for backward, cast copies of weights, and the batch.
    Activations,
    /// The keys and values of what has been generated.
    Cache,
    /// Everything else.
    Temporary,
}

impl Holder {
    /// All of them, in order of lifetime, longest first.
    pub const ALL: [Self; 7] = [
        Self::Weights,
        Self::OtherModels,
        Self::States,
        Self::Gradients,
        Self::Activations,
        Self::Cache,
        Self::Temporary,
    ];
}

/// Readings of one phase, over both steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseReadings {
    /// Which.
    pub phase: Phase,
    /// The most allocated at once.
    pub allocated: Bytes,
    /// The most reserved at once.
    pub reserved: Bytes,
    /// What held memory when the most was requested at once, in requested bytes, in the order of [`Holder::ALL`].
    pub held: [Bytes; 7],
}

impl PhaseReadings {
    /// What held memory then, by part.
    #[must_use]
    pub fn parts(&self) -> PartBytes {
        let [weights, others, states, gradients, activations, cache, temporary] = self.held;
        let sum = |a: Bytes, b: Bytes| Bytes(a.get().saturating_add(b.get()));
        PartBytes([sum(weights, others), states, gradients, sum(activations, cache), temporary])
    }
}

/// Readings of a run: what exists before the first step, the first step, the steady one, and the run's maxima.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings {
    /// Parameters, in requested bytes.
    pub params: Bytes,
    /// Buffers, in requested bytes.
    pub buffers: Bytes,
    /// When a checkpoint was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadReadings>,
    /// When quantised weights were prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<PrepareReadings>,
    /// Scales and codes beside quantised weights, in requested bytes.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub quant_state: Bytes,
    /// Allocated after model and optimizer exist, the cache emptied.
    pub base: Bytes,
    /// Reserved at the same time.
    pub base_reserved: Bytes,
    /// The steps, in order: the first creates the optimizer's states.
    pub steps: Vec<StepReadings>,
    /// The evaluation after them, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<EvalReadings>,
    /// Each phase of the job, in order.
    #[serde(skip)]
    pub phases: Vec<PhaseReadings>,
    /// The optimizer's states after the last step, in requested bytes.
    pub optimizer_state: Bytes,
    /// The optimizer's states in managed memory.
    #[serde(default)]
    pub optimizer_state_host: Bytes,
    /// What was saved for backward and is kept in host memory, at most at once.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub on_host: Bytes,
    /// What is in host memory by the layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<OffloadReadings>,
    /// What saving a checkpoint takes. `None`: not modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReadings>,
    /// The most requested at once.
    pub max_requested: Bytes,
    /// The most allocated at once.
    pub max_allocated: Bytes,
    /// The most reserved at once.
    pub max_reserved: Bytes,
    /// The most inactive split at once.
    pub inactive_split_max: Bytes,
    /// Segments at the end.
    pub segments: u64,
    /// Times that the cache was given back to make room.
    pub num_alloc_retries: u64,
}

impl Readings {
    /// The most allocated at once, loading included.
    #[must_use]
    pub fn highest_allocated(&self) -> Bytes {
        self.load.map_or(self.max_allocated, |load| load.max_allocated.max(self.max_allocated))
    }

    /// The most reserved at once, loading included.
    #[must_use]
    pub fn highest_reserved(&self) -> Bytes {
        self.load.map_or(self.max_reserved, |load| load.max_reserved.max(self.max_reserved))
    }

    /// The first step.
    #[must_use]
    pub fn first(&self) -> Option<&StepReadings> {
        self.steps.first()
    }

    /// The last step, when there is more than one.
    #[must_use]
    pub fn steady(&self) -> Option<&StepReadings> {
        self.steps.get(1..)?.last()
    }
}

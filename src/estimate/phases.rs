//! The phases of a job on its card, and what another engine holds of that beside the trainer.

use serde::{Deserialize, Serialize};

use crate::bill::{Instant, PartBytes};
use crate::calibration::overhead;
use crate::estimate::{Estimate, usable};
use crate::machine::Hardware;
use crate::plan::Plan;
use crate::recipe::Vllm;
use crate::step::log::Phase;
use crate::step::readings::{PhaseReadings, Readings};
use crate::units::Bytes;

/// A phase of a job on its card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseOnCard {
    /// What the trainer reads in it.
    pub readings: PhaseReadings,
    /// What vLLM holds of the card in it; `None`: not known, for the card is not.
    pub beside: Option<Bytes>,
}

impl PhaseOnCard {
    /// The most allocated at once, with what is held beside.
    #[must_use]
    pub fn allocated(&self) -> Bytes {
        with(self.readings.allocated, self.beside)
    }

    /// The most reserved at once, with what is held beside.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        with(self.readings.reserved, self.beside)
    }
}

fn with(own: Bytes, beside: Option<Bytes>) -> Bytes {
    Bytes(own.get().saturating_add(beside.unwrap_or_default().get()))
}

/// The phases of `plan`, whose replay read `readings`, on its card.
#[must_use]
pub fn phases(plan: &Plan, readings: &Readings) -> Vec<PhaseOnCard> {
    let hardware = plan.hardware().ok();
    let share = hardware.and_then(|hardware| share(plan, &hardware));
    let of = |readings: &PhaseReadings| {
        let beside = if holds(plan, readings.phase) { share } else { Some(Bytes::ZERO) };
        PhaseOnCard { readings: *readings, beside }
    };
    readings.phases.iter().map(of).collect()
}

/// The phase that binds: in which the most is allocated. Where others need as much, the training step.
#[must_use]
pub fn binding_phase(phases: &[PhaseOnCard]) -> Option<&PhaseOnCard> {
    phases.iter().max_by_key(|phase| (phase.allocated(), phase.readings.phase == Phase::Update))
}

/// Where a job needs the most memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Peak {
    /// At an instant of the training step.
    Step(Instant),
    /// In another phase.
    Phase(Phase),
}

impl Estimate {
    /// Where the job needs the most memory; as long as the allocator was not replayed, of the training step alone.
    #[must_use]
    pub fn peak(&self) -> Peak {
        match &self.binding {
            Some(on_card) if on_card.readings.phase != Phase::Update => Peak::Phase(on_card.readings.phase),
            _ => Peak::Step(self.bill.binding),
        }
    }

    /// What is held there by part, in requested bytes: of the training step that of its steady state.
    #[must_use]
    pub fn peak_parts(&self) -> PartBytes {
        match (self.peak(), &self.binding) {
            (Peak::Phase(_), Some(on_card)) => on_card.readings.parts(),
            _ => self.bill.column(self.bill.binding).parts,
        }
    }
}

/// vLLM beside the trainer.
pub(super) fn vllm(plan: &Plan) -> Option<Vllm> {
    plan.recipe.method.as_ref()?.rollout()?.vllm
}

/// What vLLM takes: its share of the card's total (`gpu_memory_utilization`).
fn share(plan: &Plan, hardware: &Hardware) -> Option<Bytes> {
    let total = hardware.capacity.as_ref()?.bytes.as_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a card's bytes")]
    let bytes = (total * vllm(plan)?.memory_utilization).ceil() as u64;
    Some(Bytes(bytes))
}

/// Whether vLLM holds its share in a phase: asleep it holds it while it generates alone.
fn holds(plan: &Plan, phase: Phase) -> bool {
    vllm(plan).is_some_and(|vllm| !vllm.sleep || phase == Phase::Generation)
}

/// What the card can give to the trainer's caching allocator, where that is known.
pub(super) fn usable_beside(plan: &Plan, hardware: &Hardware) -> Option<Bytes> {
    let usable = usable(hardware)?.saturating_sub(overhead(plan));
    if holds(plan, Phase::Update) { Some(usable.saturating_sub(share(plan, hardware)?)) } else { Some(usable) }
}

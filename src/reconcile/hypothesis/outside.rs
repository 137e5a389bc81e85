//! What no walk shows: memory outside of PyTorch's allocator, of other processes, lost to many shapes, or held by tensors that
//! are no part of the step. Each is a quantity that the figures themselves give, and is bounded.

use super::{Suspect, Tried};
use crate::measure::{ReadingName, Reported, TierName};
use crate::plan::Plan;
use crate::reconcile::Prediction;
use crate::reconcile::hypothesis::score::Evidence;
use crate::units::{Bytes, GIB, MIB};

/// The least that a context takes, and the most that context, communicators and libraries have been seen to.
const OUTSIDE: core::ops::RangeInclusive<u64> = 50 * MIB..=8 * GIB;
/// The largest share of what is reserved that fragmentation alone explains.
const FRAGMENTATION: f64 = 0.5;

/// What the driver shows of the process.
pub(in crate::reconcile) const PROCESS: ReadingName = ReadingName::Reported(Reported::Process);
/// What it shows of the card.
pub(in crate::reconcile) const USED: ReadingName = ReadingName::Reported(Reported::Used);

/// What the process and the card are seen to hold in a steady state, where the plan's machine is known: the cache does not
/// shrink.
pub(in crate::reconcile) fn extend(prediction: &mut Prediction, plan: &Plan) {
    let Some(reserved) = prediction.0.get(&ReadingName::MaxReserved).copied() else { return };
    let Ok(hardware) = plan.hardware() else { return };
    let signed = |bytes: Bytes| i64::try_from(bytes.get()).ok();
    let Some(process) = hardware.outside().and_then(signed).and_then(|outside| reserved.checked_add(outside)) else {
        return;
    };
    prediction.0.insert(PROCESS, process);
    let used = process.checked_add(signed(hardware.in_use.unwrap_or_default()).unwrap_or(0));
    prediction.0.extend(used.map(|used| (USED, used)));
}

/// The quantities that explain what is left between the figures.
pub(super) fn suspects(plan: &Plan, as_planned: &Prediction, evidence: &[Evidence]) -> Vec<Tried> {
    let measured = |name: ReadingName| evidence.iter().find(|one| one.name == name).map(|one| one.bytes);
    let predicted = |name: ReadingName| as_planned.0.get(&name).copied();
    let more = |name: ReadingName| measured(name)?.checked_sub(predicted(name)?).filter(|more| *more > 0);
    let size = |bytes: i64| u64::try_from(bytes).ok().map(Bytes);
    let mut all = Vec::new();

    // Outside of the allocator: what is left of the process beyond what is reserved.
    let reserved = measured(ReadingName::MaxReserved).or(predicted(ReadingName::MaxReserved));
    let outside = measured(PROCESS).zip(reserved).and_then(|(process, reserved)| size(process.checked_sub(reserved)?));
    if let Some(bytes) = outside.filter(|bytes| OUTSIDE.contains(&bytes.get())) {
        let mut plan = plan.clone();
        let communicators = plan.hardware().ok().and_then(|h| h.communicators).map(|c| c.bytes).unwrap_or_default();
        plan.machine.context_bytes = Some(bytes.saturating_sub(communicators));
        let mut prediction = as_planned.clone();
        extend(&mut prediction, &plan);
        all.push(Tried { suspect: Suspect::Outside { bytes }, plan: Some(plan), prediction });
    }
    // Other processes: what is left of the card.
    let process = measured(PROCESS).or(predicted(PROCESS));
    let others = measured(USED).zip(process).and_then(|(used, process)| size(used.checked_sub(process)?));
    if let Some(bytes) = others {
        let mut plan = plan.clone();
        plan.machine.in_use_bytes = Some(bytes);
        let mut prediction = as_planned.clone();
        extend(&mut prediction, &plan);
        all.push(Tried { suspect: Suspect::OtherProcesses { bytes }, plan: Some(plan), prediction });
    }
    // Fragmentation: more reserved, and no more allocated.
    if let (Some(bytes), Some(reserved)) =
        (more(ReadingName::MaxReserved).and_then(size), measured(ReadingName::MaxReserved).and_then(size))
        && bytes.as_f64() <= FRAGMENTATION * reserved.as_f64()
    {
        let prediction = raised(as_planned, bytes, |name| name.tier() >= TierName::Reserved);
        all.push(Tried { suspect: Suspect::Fragmentation { bytes }, plan: None, prediction });
    }
    // A hidden holder: as much more at every instant.
    let mut levels: Vec<i64> = evidence
        .iter()
        .filter(|one| is_level(one.name))
        .filter_map(|one| one.bytes.checked_sub(predicted(one.name)?))
        .collect();
    levels.sort_unstable();
    if let Some(bytes) =
        levels.get(levels.len() / 2).copied().filter(|more| *more > 0 && levels.len() > 1).and_then(size)
    {
        let prediction = raised(as_planned, bytes, is_level);
        all.push(Tried { suspect: Suspect::Holder { bytes }, plan: None, prediction });
    }
    all
}

/// The prediction with so much more in the figures that `of` names.
fn raised(prediction: &Prediction, bytes: Bytes, of: impl Fn(ReadingName) -> bool) -> Prediction {
    let mut raised = prediction.clone();
    for (name, figure) in &mut raised.0 {
        if of(*name) {
            *figure = i64::try_from(bytes.get()).ok().and_then(|bytes| figure.checked_add(bytes)).unwrap_or(*figure);
        }
    }
    raised
}

/// Whether the figure counts everything alive at an instant of a run: neither a difference nor the size of one thing.
pub(in crate::reconcile) fn is_level(name: ReadingName) -> bool {
    use crate::measure::StepReading::{Grads, Inputs};
    !name.is_delta()
        && !matches!(
            name,
            ReadingName::Params
                | ReadingName::OptimizerState
                | ReadingName::OptimizerStateHost
                | ReadingName::QuantState
                | ReadingName::Step(_, Grads | Inputs)
        )
        && !ReadingName::LOADING.contains(&name)
}

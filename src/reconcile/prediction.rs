//! The readings that a walk predicts, by the names that measurements use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::calibration::{overhead, raised};
use crate::estimate::readings;
use crate::issue::Issue;
use crate::measure::{EvalReading, ReadingName, StepReading, Which};
use crate::plan::Plan;
use crate::reconcile::hypothesis::outside;
use crate::step::readings::{Readings, StepReadings};
use crate::units::Bytes;

/// Predicted readings by name, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Prediction(pub BTreeMap<ReadingName, i64>);

/// Predicts the readings of a plan.
///
/// # Errors
/// Every issue of the plan, one per field; the rule of thumb, which has no readings.
pub fn predict(plan: &Plan) -> Result<Prediction, Vec<Issue>> {
    Ok(Prediction::of(plan, &readings(plan)?))
}

/// [`predict`], and what the driver shows of the process and the card in a steady state, where the plan's machine is known.
///
/// # Errors
/// As [`predict`].
pub fn predict_with_driver(plan: &Plan) -> Result<Prediction, Vec<Issue>> {
    let mut prediction = predict(plan)?;
    outside::extend(&mut prediction, plan);
    Ok(prediction)
}

impl Prediction {
    /// What `plan` predicts, whose replay read `readings`: with what it was calibrated by.
    #[must_use]
    pub fn of(plan: &Plan, readings: &Readings) -> Self {
        let mut prediction = Self::from(readings);
        if plan.calibration.is_none() {
            return prediction;
        }
        let overhead = overhead(plan);
        for (name, figure) in &mut prediction.0 {
            if outside::is_level(*name) {
                *figure = figure.saturating_add(signed(overhead));
            }
        }
        let [_, reserved] = raised(plan, [readings.max_allocated, readings.max_reserved]);
        prediction.0.insert(ReadingName::MaxReserved, signed(reserved));
        prediction
    }
}

impl From<&Readings> for Prediction {
    fn from(readings: &Readings) -> Self {
        let mut all = BTreeMap::from([
            (ReadingName::Params, signed(readings.params)),
            (ReadingName::Base, signed(readings.base)),
            (ReadingName::OptimizerState, signed(readings.optimizer_state)),
            (ReadingName::MaxAllocated, signed(readings.max_allocated)),
            (ReadingName::MaxReserved, signed(readings.max_reserved)),
        ]);
        if readings.optimizer_state_host > Bytes::ZERO {
            all.insert(ReadingName::OptimizerStateHost, signed(readings.optimizer_state_host));
        }
        if let Some(load) = readings.load {
            all.extend([
                (ReadingName::LoadAllocated, signed(load.allocated)),
                (ReadingName::LoadReserved, signed(load.reserved)),
                (ReadingName::LoadMaxAllocated, signed(load.max_allocated)),
                (ReadingName::LoadMaxReserved, signed(load.max_reserved)),
            ]);
        }
        if let Some(prepare) = readings.prepare {
            all.extend([(ReadingName::PrepareDelta, prepare.delta), (ReadingName::PreparePeak, signed(prepare.peak))]);
        }
        if !readings.quant_state.is_zero() {
            all.insert(ReadingName::QuantState, signed(readings.quant_state));
        }
        for (which, step) in [(Which::First, readings.first()), (Which::Steady, readings.steady())] {
            let Some(step) = step else { continue };
            all.extend(
                StepReading::ALL
                    .into_iter()
                    .filter_map(|reading| Some((ReadingName::Step(which, reading), of_step(step, reading)?))),
            );
        }
        if let Some(eval) = &readings.eval {
            let of = |reading: EvalReading| match reading {
                EvalReading::Base => signed(eval.base),
                EvalReading::Delta => eval.delta,
                EvalReading::Peak => signed(eval.peak),
                EvalReading::Reserved => signed(eval.reserved),
            };
            all.extend(EvalReading::ALL.map(|reading| (ReadingName::Eval(reading), of(reading))));
        }
        for of in readings.phases.iter().filter(|of| ReadingName::PHASES.contains(&of.phase)) {
            all.insert(ReadingName::Phase(of.phase), signed(of.allocated));
        }
        Self(all)
    }
}

/// With accumulation, the readings of forward and backward are the first micro-batch's, as in the measured cases.
fn of_step(step: &StepReadings, reading: StepReading) -> Option<i64> {
    let forward_end = signed(step.base) + step.forward_delta;
    Some(match reading {
        StepReading::Base => signed(step.base),
        StepReading::Inputs => signed(step.inputs),
        StepReading::ForwardDelta => step.forward_delta,
        StepReading::ForwardPeak => signed(step.forward_peak),
        StepReading::ForwardEnd => forward_end,
        StepReading::BackwardDelta => step.backward_delta,
        StepReading::BackwardPeak => signed(step.backward_peak),
        StepReading::BackwardEnd => forward_end + step.backward_delta,
        StepReading::StepDelta => step.step_delta,
        StepReading::StepPeak => signed(step.step_peak),
        StepReading::AfterStep => signed(step.after_step),
        StepReading::EmaPeak => signed(step.ema_peak?),
        StepReading::AfterZeroGrad => signed(step.after_zero_grad),
        StepReading::Grads => signed(step.grads),
        StepReading::Peak => {
            let micro = step.micro.iter().flat_map(|m| [m.forward_peak, m.backward_peak]);
            let peaks =
                [step.forward_peak, step.backward_peak, step.step_peak].into_iter().chain(step.ema_peak).chain(micro);
            signed(peaks.max().unwrap_or_default())
        }
    })
}

/// A byte count of a walk, which is far below 2⁶³.
fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get()).unwrap_or(i64::MAX)
}

//! What measurements say about a machine and a setup beside the walk: a few named quantities, each within bounds and with an
//! interval. There is no factor on everything: it would hide what is wrong.
//!
//! [`crate::reconcile::calibrate`] fits them; here they are a part of the plan, and act on what is predicted of it.

use serde::{Deserialize, Serialize};

use crate::bill::{Provenance, ProvenanceKind, Tiers};
use crate::issue::{Issue, IssueKind};
use crate::machine::{Hardware, Machine, Sourced, assumed_communicators};
use crate::measure::TierName;
use crate::plan::{Framework, Plan};
use crate::units::{Bytes, GIB, MIB};

/// Quantities that were fitted to measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// How many measurements it rests on.
    pub measurements: u64,
    /// The quantities, each at most once.
    pub quantities: Vec<Quantity>,
    /// The machine as the plan had it before. What is fitted of a machine holds for this GPU alone.
    pub machine: Machine,
    /// The versions and settings that the plan had before: the plan itself has those that the measurements fit.
    pub framework: Framework,
}

/// One quantity: bytes, or a share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Quantity {
    /// Which.
    pub of: Fitted,
    /// The likeliest value.
    pub value: f64,
    /// The low end of the interval in which nine of ten further measurements lie. It may be less than the quantity can be: it
    /// says how far the prediction is off as well.
    pub low: f64,
    /// The high end.
    pub high: f64,
}

/// What is fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fitted {
    /// Bytes that stay allocated beside the step, as much at every instant of it.
    Overhead,
    /// Share of reserved memory that is unused at the peak, beyond what steps of one shape leave unused.
    Fragmentation,
    /// Bytes that the process holds outside of PyTorch's allocator, communicators left out.
    Context,
    /// Bytes of NCCL's communicators.
    Communicators,
    /// Bytes of the card that other processes hold.
    InUse,
    /// The efficiency that steps reach, as a share of the one that is assumed of the card's kernels.
    Efficiency,
}

impl Fitted {
    /// Every quantity, in the order in which they are fitted: from the tensors outwards.
    pub const ALL: [Self; 6] =
        [Self::Overhead, Self::Fragmentation, Self::Context, Self::Communicators, Self::InUse, Self::Efficiency];

    /// The least and the most that a value may be.
    #[must_use]
    pub const fn bounds(self) -> [f64; 2] {
        const GIBIBYTE: f64 = GIB as f64;
        match self {
            Self::Overhead => [0.0, 16.0 * GIBIBYTE],
            Self::Fragmentation => [0.0, 0.5],
            // The least that a context takes, and the most that context and libraries have been seen to.
            Self::Context => [50.0 * MIB as f64, 8.0 * GIBIBYTE],
            Self::Communicators => [0.0, 8.0 * GIBIBYTE],
            Self::InUse => [0.0, 1024.0 * GIBIBYTE],
            Self::Efficiency => [0.05, 5.0],
        }
    }

    /// Whether it is a share; bytes otherwise.
    #[must_use]
    pub const fn is_share(self) -> bool {
        matches!(self, Self::Fragmentation | Self::Efficiency)
    }

    /// Whether it belongs to one GPU and what runs beside it.
    const fn is_of_machine(self) -> bool {
        !matches!(self, Self::Overhead | Self::Fragmentation)
    }

    /// The first of the tiers whose figures it is a part of.
    const fn tier(self) -> Option<TierName> {
        match self {
            Self::Overhead => Some(TierName::Allocated),
            Self::Fragmentation => Some(TierName::Reserved),
            Self::Context | Self::Communicators => Some(TierName::Process),
            Self::InUse => Some(TierName::Device),
            Self::Efficiency => None,
        }
    }
}

impl Calibration {
    /// Everything that is wrong with it in a document.
    #[must_use]
    pub fn issues(&self) -> Vec<Issue> {
        let mut issues = Vec::new();
        for (at, quantity) in self.quantities.iter().enumerate() {
            let Quantity { of, value, low, high } = *quantity;
            let [least, most] = of.bounds();
            let twice = self.quantities[..at].iter().any(|other| other.of == of);
            if twice || !(least..=most).contains(&value) || !(low..=high).contains(&value) {
                let expected = "a value inside of its interval and its bounds, each quantity once".into();
                let found = value.to_string();
                issues.push(Issue::new("calibration.quantities", IssueKind::NotA { expected, found }));
            }
        }
        issues
    }
}

impl Plan {
    /// A quantity that was fitted and that holds here.
    #[must_use]
    pub fn fitted(&self, of: Fitted) -> Option<&Quantity> {
        let calibration = self.calibration.as_ref()?;
        let here = !of.is_of_machine() || calibration.machine.gpu == self.machine.gpu;
        calibration.quantities.iter().find(|quantity| here && quantity.of == of)
    }

    /// The plan as it was before it was calibrated. What was changed since stays.
    #[must_use]
    pub fn without_calibration(&self) -> Self {
        let Some(Calibration { machine, framework, .. }) = &self.calibration else { return self.clone() };
        let mut plan = Self { calibration: None, ..self.clone() };
        plan.framework.pytorch = framework.pytorch;
        plan.framework.transformers = framework.transformers;
        plan.framework.cublas_workspace_kept = framework.cublas_workspace_kept;
        if machine.gpu == plan.machine.gpu {
            plan.machine.context_bytes = plan.machine.context_bytes.or(machine.context_bytes);
            plan.machine.communicator_bytes = plan.machine.communicator_bytes.or(machine.communicator_bytes);
            plan.machine.in_use_bytes = plan.machine.in_use_bytes.or(machine.in_use_bytes);
        }
        plan
    }

    fn fitted_bytes(&self, of: Fitted) -> Option<Bytes> {
        self.fitted(of).map(|quantity| whole(quantity.value))
    }
}

/// Puts what was fitted into the machine's facts, where the plan does not state them.
pub(crate) fn fill(plan: &Plan, hardware: &mut Hardware) {
    let Some(Calibration { measurements, .. }) = plan.calibration else { return };
    let sourced = |of: Fitted| {
        let source = format!("fitted to measurements: {measurements}");
        let provenance = Provenance { kind: ProvenanceKind::Measured, source };
        plan.fitted_bytes(of).map(|bytes| Sourced { bytes, provenance })
    };
    if let Some(context) = sourced(Fitted::Context).filter(|_| plan.machine.context_bytes.is_none()) {
        hardware.context = Some(context);
    }
    if hardware.communicators.is_none() && assumed_communicators(&plan.parallel, None).is_some() {
        hardware.communicators = sourced(Fitted::Communicators);
    }
    hardware.in_use = hardware.in_use.or_else(|| plan.fitted_bytes(Fitted::InUse));
}

/// The allocated and the reserved peak with what was fitted.
pub(crate) fn raised(plan: &Plan, [allocated, reserved]: [Bytes; 2]) -> [Bytes; 2] {
    if plan.calibration.is_none() {
        return [allocated, reserved];
    }
    let overhead = overhead(plan);
    let [allocated, reserved] = [allocated, reserved].map(|bytes| Bytes(bytes.get().saturating_add(overhead.get())));
    let unused = plan.fitted(Fitted::Fragmentation).map_or(0.0, |quantity| quantity.value);
    [allocated, with_unused(allocated, reserved, unused)]
}

/// Bytes that stay allocated beside the step.
pub(crate) fn overhead(plan: &Plan) -> Bytes {
    plan.fitted_bytes(Fitted::Overhead).unwrap_or_default()
}

/// What is reserved where a further share of it is unused: `allocated ÷ reserved` falls by that share.
fn with_unused(allocated: Bytes, reserved: Bytes, unused: f64) -> Bytes {
    if unused == 0.0 {
        return reserved;
    }
    let used = allocated.as_f64() / reserved.as_f64().max(1.0);
    // A tenth of what is reserved is in use at the least: bounds keep a fit from less.
    whole(allocated.as_f64() / (used - unused).max(0.1 * used)).max(allocated)
}

/// The interval of nine in ten around a figure of a tier. `None`: nothing of the tier was fitted. `peaks` are the allocated
/// and the reserved peak, calibrated.
#[must_use]
pub fn within(plan: &Plan, tier: TierName, predicted: Bytes, peaks: [Bytes; 2]) -> Option<[Bytes; 2]> {
    let mut any = false;
    // Independent of each other, so that their squares add up: downwards and upwards.
    let mut squares = [0.0_f64; 2];
    for of in Fitted::ALL.into_iter().filter(|of| of.tier().is_some_and(|first| first <= tier)) {
        let Some(Quantity { value, low, high, .. }) = plan.fitted(of).copied() else { continue };
        any = true;
        let sides = if of == Fitted::Fragmentation {
            let [allocated, reserved] = peaks;
            let with = |unused| with_unused(allocated, reserved, unused).as_f64();
            [reserved.as_f64() - with(low - value), with(high - value) - reserved.as_f64()]
        } else {
            [value - low, high - value]
        };
        for (square, side) in squares.iter_mut().zip(sides) {
            *square += side * side;
        }
    }
    let [down, up] = squares.map(|square| whole(square.sqrt()).get());
    any.then(|| [predicted.saturating_sub(Bytes(down)), Bytes(predicted.get().saturating_add(up))])
}

/// The intervals of an estimate's tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Intervals {
    /// Of what is allocated. `None`: nothing of it was fitted.
    pub allocated: Option<[Bytes; 2]>,
    /// Of what is reserved.
    pub reserved: Option<[Bytes; 2]>,
    /// Of what the process holds.
    pub process: Option<[Bytes; 2]>,
}

/// The intervals of nine in ten around the tiers of `plan`'s estimate.
#[must_use]
pub fn intervals(plan: &Plan, tiers: &Tiers) -> Intervals {
    if plan.calibration.is_none() {
        return Intervals::default();
    }
    let allocated = tiers.allocated.peak_bytes;
    let reserved = tiers.reserved.as_ref().map(|tier| tier.peak_bytes);
    let of = |tier, bytes: Option<Bytes>| within(plan, tier, bytes?, [allocated, reserved?]);
    Intervals {
        allocated: of(TierName::Allocated, Some(allocated)),
        reserved: of(TierName::Reserved, reserved),
        process: of(TierName::Process, tiers.process.as_ref().map(|tier| tier.peak_bytes)),
    }
}

/// Bytes of a figure that a document carries; anything else is none.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2⁵³")]
pub(crate) fn whole(bytes: f64) -> Bytes {
    if (0.0..9e15).contains(&bytes) { Bytes(bytes.round() as u64) } else { Bytes::ZERO }
}

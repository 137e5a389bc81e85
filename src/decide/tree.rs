//! The decision tree (A11): rigid cost, activations, margin, throughput. It narrows the choice; a measurement confirms.

use serde::{Deserialize, Serialize};

use crate::bill::{Instant, Part};
use crate::decide::{Fact, Numbers, PricedRemedy, Reason, Verdict, VerdictKind};
use crate::estimate::Estimate;
use crate::plan::Policy;
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
    /// What the share is of: `value = part ÷ whole`, for the margin `1 − part ÷ whole`. `None`: not known.
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
    /// What NCCL's communicators take.
    Communicators,
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

/// Answers the four questions from a walk and its verdict.
pub(super) fn steps(
    policy: &Policy,
    estimate: &Estimate,
    verdict: &Verdict,
    throughput: Option<&Throughput>,
    remedies: &[PricedRemedy],
) -> Vec<TreeStep> {
    let facts = Facts::of(estimate, verdict);
    Question::ALL
        .into_iter()
        .map(|question| {
            let helps = |r: &PricedRemedy| {
                let useful = match question {
                    Question::Throughput => is_faster(r),
                    _ => r.saves() || r.verdict.rank() < verdict.kind.rank(),
                };
                useful && r.helps.contains(&question)
            };
            let remedies: Vec<usize> = (0..remedies.len()).filter(|at| helps(&remedies[*at])).collect();
            let (status, figure) = match question {
                Question::Rigid => facts.rigid(policy),
                Question::Activations => facts.activations(policy),
                Question::Margin => facts.margin(policy.margin_low, verdict.kind),
                Question::Throughput => facts.throughput(verdict.kind, throughput, !remedies.is_empty()),
            };
            let throughput = throughput.filter(|_| question == Question::Throughput).cloned();
            TreeStep { question, status, figure, throughput, remedies }
        })
        .collect()
}

/// The quantities that the questions share.
struct Facts {
    weights: Bytes,
    gradients: Bytes,
    states: Bytes,
    /// `None`: not counted, as by the rule of thumb.
    activations: Option<Bytes>,
    numbers: Numbers,
}

impl Facts {
    fn of(estimate: &Estimate, verdict: &Verdict) -> Self {
        // All that is rigid is alive at once in the optimizer's step.
        let step = estimate.bill.column(Instant::Step).parts;
        let counted = verdict.reason != Reason::Unknown(Fact::RealRecipe);
        let activations = estimate.bill.columns.iter().map(|c| c.parts.get(Part::Activations)).max();
        Self {
            weights: step.get(Part::Weights),
            gradients: step.get(Part::Gradients),
            states: step.get(Part::States),
            activations: activations.filter(|_| counted),
            numbers: verdict.numbers,
        }
    }

    fn rigid_bytes(&self) -> Bytes {
        self.weights + self.gradients + self.states
    }

    /// Weights, gradients and states as a share of the card.
    fn rigid(&self, policy: &Policy) -> (Status, Figure) {
        let rigid = self.rigid_bytes();
        let capacity = self.numbers.capacity;
        let value = capacity.and_then(|all| ratio(rigid, all));
        let status = match value {
            None => Status::Waits,
            Some(_) if self.numbers.usable.or(capacity).is_some_and(|usable| rigid > usable) => Status::Stop,
            Some(share) if share > policy.rigid_share => Status::Attention,
            Some(_) => Status::Pass,
        };
        let pieces = vec![
            (Piece::Weights, Some(self.weights)),
            (Piece::Gradients, Some(self.gradients)),
            (Piece::States, Some(self.states)),
            (Piece::Capacity, capacity),
        ];
        let threshold = Some(policy.rigid_share);
        (status, Figure { value, threshold, part: Some(rigid), whole: capacity, pieces })
    }

    /// Activations at their highest instant as a share of what the rigid cost leaves.
    fn activations(&self, policy: &Policy) -> (Status, Figure) {
        let left = self.numbers.usable.map(|usable| usable.saturating_sub(self.rigid_bytes()));
        let value = left.zip(self.activations).and_then(|(left, activations)| ratio(activations, left));
        let status = match (left, value) {
            (None, _) => Status::Waits,
            _ if self.activations.is_none() => Status::Waits,
            (Some(Bytes(0)), _) => Status::Stop,
            (_, Some(share)) if share > 1.0 => Status::Stop,
            (_, Some(share)) if share > policy.activation_share => Status::Attention,
            _ => Status::Pass,
        };
        let mut pieces = vec![
            (Piece::Activations, self.activations),
            (Piece::Capacity, self.numbers.capacity),
            (Piece::InUse, self.numbers.in_use),
            (Piece::Context, self.numbers.context),
            (Piece::Weights, Some(self.weights)),
            (Piece::Gradients, Some(self.gradients)),
            (Piece::States, Some(self.states)),
        ];
        pieces.extend(self.numbers.communicators.map(|of| (Piece::Communicators, Some(of))));
        let threshold = Some(policy.activation_share);
        (status, Figure { value, threshold, part: self.activations, whole: left, pieces })
    }

    /// What is left of the card by the process figure, as a share of the card; negative where it is exceeded.
    fn margin(&self, margin: f64, verdict: VerdictKind) -> (Status, Figure) {
        let Numbers { capacity, process, in_use, context, communicators, reserved, .. } = self.numbers;
        let held = process.and_then(|p| p.checked_add(in_use.unwrap_or_default()));
        let value = held.zip(capacity).and_then(|(held, all)| ratio(held, all)).map(|held| 1.0 - held);
        let status = match (verdict, value) {
            (VerdictKind::DoesNotFit, _) => Status::Stop,
            (_, None) => Status::Waits,
            (_, Some(free)) if free < margin => Status::Attention,
            _ => Status::Pass,
        };
        let mut pieces = vec![
            (Piece::Reserved, reserved),
            (Piece::Context, context),
            (Piece::InUse, in_use),
            (Piece::Capacity, capacity),
        ];
        pieces.extend(communicators.map(|of| (Piece::Communicators, Some(of))));
        (status, Figure { value, threshold: Some(margin), part: held, whole: capacity, pieces })
    }

    /// The rough speed of a configuration that fits.
    fn throughput(&self, verdict: VerdictKind, throughput: Option<&Throughput>, faster: bool) -> (Status, Figure) {
        let status = match verdict {
            VerdictKind::Fits | VerdictKind::Tight if throughput.is_some() => {
                if faster {
                    Status::Attention
                } else {
                    Status::Pass
                }
            }
            _ => Status::Waits,
        };
        (status, Figure { value: None, threshold: None, part: None, whole: None, pieces: Vec::new() })
    }
}

/// Whether a remedy fits and shortens the step by more than can be said in whole percents.
fn is_faster(remedy: &PricedRemedy) -> bool {
    remedy.verdict == VerdictKind::Fits && remedy.time.is_some_and(|time| time < -0.005)
}

/// `part ÷ whole`; `None` when there is no whole.
fn ratio(part: Bytes, whole: Bytes) -> Option<f64> {
    (whole > Bytes::ZERO).then(|| part.as_f64() / whole.as_f64())
}

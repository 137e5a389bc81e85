//! From a plan to a decision, by walking the plan and, for each remedy, the plan with the change.

use serde::{Deserialize, Serialize};

use crate::decide::{Caveat, PricedRemedy, TreeStep, Verdict, VerdictKind};
use crate::estimate::{Estimate, estimate};
use crate::issue::Issue;
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::throughput::Throughput;
use crate::units::Bytes;

/// Everything that follows from a plan: its estimate, the verdict, the tree, the remedies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The walk's results.
    pub estimate: Estimate,
    /// The answer.
    pub verdict: Verdict,
    /// What a reader should know beside it.
    pub caveats: Vec<Caveat>,
    /// The four questions, in order.
    pub tree: Vec<TreeStep>,
    /// Every applicable remedy, the best first: those that leave the training as it is and save most.
    pub remedies: Vec<PricedRemedy>,
    /// The rough speed; `None`: not known.
    pub throughput: Option<Throughput>,
}

/// One precision recipe that the user may be using.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Which.
    pub precision: Precision,
    /// Its verdict.
    pub verdict: VerdictKind,
    /// Its allocated peak.
    pub allocated: Bytes,
}

/// Decides about `plan`.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn decide(plan: &Plan) -> Result<Decision, Vec<Issue>> {
    decide_with(plan, &estimate)
}

/// [`decide`] with another way to walk a plan, such as one that remembers or one made up by a test.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn decide_with(plan: &Plan, walk: &dyn Fn(&Plan) -> Result<Estimate, Vec<Issue>>) -> Result<Decision, Vec<Issue>> {
    let _ = plan;
    let _ = walk;
    Err(Vec::new())
}

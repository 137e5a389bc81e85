//! One call from a plan to everything that is shown: walk, bill, tiers, verdict, tree.

use serde::{Deserialize, Serialize};

use crate::bill::{Bill, Tiers, TimelinePoint};
use crate::issue::Issue;
use crate::plan::Plan;

/// Everything that follows from a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Five parts × instants of a steady step.
    pub bill: Bill,
    /// Peaks per tier.
    pub tiers: Tiers,
    /// The steady step, thinned to at most 512 points.
    pub timeline: Vec<TimelinePoint>,
}

/// Walks the plan's step and reads everything off it.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn estimate(plan: &Plan) -> Result<Estimate, Vec<Issue>> {
    let _ = plan;
    Err(Vec::new())
}

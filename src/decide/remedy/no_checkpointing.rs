//! Checkpointing off where the job fits without it: nothing is computed twice.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::{Question, VerdictKind};
use crate::plan::Plan;
use crate::recipe::Checkpointing;

pub(super) const RULE: Rule =
    Rule { id: RemedyId::NoCheckpointing, effect: Effect::SameTraining, helps: &[Question::Throughput], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    if situation.plan.recipe.checkpointing == Checkpointing::None || situation.verdict == VerdictKind::DoesNotFit {
        return None;
    }
    let mut plan = situation.plan.clone();
    plan.recipe.checkpointing = Checkpointing::None;
    ((situation.verdict_of)(&plan) == Some(VerdictKind::Fits)).then_some(plan)
}

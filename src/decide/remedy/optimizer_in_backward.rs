//! An optimizer for each weight, stepped by a hook in backward: each gradient is freed as soon as it has been used. What
//! needs all gradients at once (clipping, accumulation, a scaler) rules it out.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;

pub(super) const RULE: Rule =
    Rule { id: RemedyId::OptimizerInBackward, effect: Effect::SameTraining, helps: &[Question::Rigid], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    if situation.plan.recipe.optimizer.in_backward {
        return None;
    }
    let mut plan = situation.plan.clone();
    plan.recipe.optimizer.in_backward = true;
    plan.recipe.issues().is_empty().then_some(plan)
}

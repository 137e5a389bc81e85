//! `foreach=False`, where an optimizer has no fused implementation: temporaries of the largest tensor, not of all.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::OptimizerImpl;

pub(super) const RULE: Rule =
    Rule { id: RemedyId::ForloopOptimizer, effect: Effect::SameTraining, helps: &[Question::Margin], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let optimizer = situation.plan.recipe.optimizer;
    let own = optimizer.name.implementations();
    let better = own.contains(&OptimizerImpl::Fused) || !own.contains(&OptimizerImpl::Forloop);
    situation.with(!better && optimizer.implementation() == OptimizerImpl::Foreach, |plan| {
        plan.recipe.optimizer.implementation = Some(OptimizerImpl::Forloop);
    })
}

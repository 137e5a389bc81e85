//! `fused=True`: one kernel updates everything in place. The foreach implementation holds one more copy of the
//! parameters during the step, the for-loop one of the largest tensor.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::OptimizerImpl;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::FusedOptimizer,
    effect: Effect::SameTraining,
    helps: &[Question::Margin, Question::Throughput],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let optimizer = situation.plan.recipe.optimizer;
    let has_fused = optimizer.name.implementations().contains(&OptimizerImpl::Fused);
    (has_fused && optimizer.implementation != Some(OptimizerImpl::Fused)).then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.optimizer.implementation = Some(OptimizerImpl::Fused);
        plan
    })
}

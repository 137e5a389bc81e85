//! The reference's log-probabilities computed before training: no second model in the steps of DPO.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::{Dpo, Method, Reference};

pub(super) const RULE: Rule = Rule {
    id: RemedyId::PrecomputeReference,
    effect: Effect::SameTraining,
    helps: &[Question::Rigid, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let Some(Method::Dpo(of @ Dpo { reference: Reference::Model, .. })) = situation.plan.recipe.method else {
        return None;
    };
    let mut plan = situation.plan.clone();
    plan.recipe.method = Some(Method::Dpo(Dpo { reference: Reference::Precomputed, ..of }));
    Some(plan)
}

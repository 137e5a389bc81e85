//! `zero_grad(set_to_none=True)`: gradients are not kept through the next forward.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::ZeroGrad;

pub(super) const RULE: Rule =
    Rule { id: RemedyId::FreeGradients, effect: Effect::SameTraining, helps: &[Question::Margin], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    matches!(situation.plan.recipe.zero_grad, Some(ZeroGrad::Zero | ZeroGrad::AfterForward)).then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.zero_grad = Some(ZeroGrad::None);
        plan
    })
}

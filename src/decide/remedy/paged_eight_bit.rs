//! States of one byte per element in managed memory (bitsandbytes' paged 8-bit AdamW): the least that AdamW leaves on the card.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::OptimizerName;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::PagedEightBit,
    effect: Effect::ChangesTraining,
    helps: &[Question::Rigid, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let plan = match situation.plan.recipe.optimizer.name {
        OptimizerName::AdamW8bit => situation.with(true, |plan| {
            plan.recipe.optimizer.name = OptimizerName::PagedAdamW8bit;
        }),
        _ => situation.in_place_of_adam(OptimizerName::PagedAdamW8bit),
    };
    plan.filter(|plan| plan.parallel.is_single() && !plan.recipe.optimizer.in_backward)
}

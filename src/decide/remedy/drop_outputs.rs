//! Keeping only the loss: logits that a loop holds in a variable live through backward.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::DropOutputs,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let recipe = &situation.plan.recipe;
    situation.with(recipe.keep_outputs || recipe.keep_variables, |plan| {
        (plan.recipe.keep_outputs, plan.recipe.keep_variables) = (false, false);
    })
}

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
    situation.plan.recipe.keep_outputs.then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.keep_outputs = false;
        plan.recipe.keep_variables = false;
        plan
    })
}

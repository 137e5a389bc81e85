//! The input embedding not trained: neither gradients nor states of a table that may be a fifth of a small model.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::estimate::read_model;
use crate::plan::Plan;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::FreezeEmbedding,
    effect: Effect::ChangesTraining,
    helps: &[Question::Rigid, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let recipe = &situation.plan.recipe;
    if !recipe.freeze.is_empty() || recipe.lora.is_some() {
        return None;
    }
    let model = read_model(&situation.plan.model).ok()?.model;
    // A tied one is the head's too, and not only looked up.
    let tables = model.parameters().into_iter().zip(model.parameter_names());
    let tables = tables.filter(|(of, _)| of.lookup_only).filter_map(|(of, name)| Some((of.shape.numel()?, name)));
    let (_, name) = tables.max_by_key(|(elements, _)| *elements)?;
    situation.with(true, |plan| plan.recipe.freeze.push(name))
}

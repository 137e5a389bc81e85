//! Activation checkpointing: each layer keeps its input and is run again in backward, for about 30 % more compute.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Checkpointing;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::Checkpointing,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    (situation.plan.recipe.checkpointing == Checkpointing::None).then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.checkpointing = Checkpointing::Full;
        plan
    })
}

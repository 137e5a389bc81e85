//! Every other layer checkpointed: half of what checkpointing saves, for half of its time.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Checkpointing;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::HalfCheckpointing,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    situation.with(situation.plan.recipe.checkpointing == Checkpointing::None, |plan| {
        plan.recipe.checkpointing = Checkpointing::Every(2);
    })
}

//! `attn_implementation="sdpa"` instead of eager: scores and probabilities are never whole tensors.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Attention;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::SdpaAttention,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin, Question::Throughput],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    (situation.plan.recipe.attention == Some(Attention::Eager)).then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.attention = Some(Attention::Sdpa);
        plan
    })
}

//! Half the sequence length: everything per token halves, eager attention quarters. The model sees less context.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::ShorterSequence,
    effect: Effect::ChangesTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let seq_len = situation.plan.recipe.seq_len / 2;
    (seq_len >= SHORTEST).then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.seq_len = seq_len;
        plan
    })
}

/// Shorter sequences are no training of a language model that anyone would want.
const SHORTEST: u64 = 128;

//! Low-rank adapters on every linear layer: gradients and states shrink to those of the adapters (A11).

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::{ALL_LINEAR, Lora};

pub(super) const RULE: Rule =
    Rule { id: RemedyId::Lora, effect: Effect::ChangesTraining, helps: &[Question::Rigid, Question::Margin], change };

/// Rank 16, a common choice.
pub(super) fn adapters() -> Lora {
    Lora::new(16, vec![ALL_LINEAR.into()])
}

fn change(situation: &Situation<'_>) -> Option<Plan> {
    situation.plan.recipe.lora.is_none().then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.lora = Some(adapters());
        plan
    })
}

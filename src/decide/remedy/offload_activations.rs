//! What layers save goes to host memory and comes back in backward (`save_on_cpu`): nothing is run twice, but the link to the
//! host takes as long as it takes.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Checkpointing;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::OffloadActivations,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let to = match situation.plan.recipe.checkpointing {
        Checkpointing::None => Checkpointing::Offload,
        // Then it is the layers' inputs that go.
        Checkpointing::Full => Checkpointing::FullOffload,
        _ => return None,
    };
    situation.with(true, |plan| plan.recipe.checkpointing = to)
}

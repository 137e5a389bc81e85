//! Selective checkpointing: the outputs of products and of attention are kept, all else is run again. Less is saved than by
//! checkpointing whole layers, and hardly any time is lost.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Checkpointing;
use crate::recipe::parallel::{DataParallel, MegatronRecompute};

pub(super) const RULE: Rule = Rule {
    id: RemedyId::SelectiveCheckpointing,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let mut plan = situation.plan.clone();
    if let DataParallel::Megatron(options) = &mut plan.parallel.data {
        // What it calls selective is attention's core.
        let none = options.recompute == MegatronRecompute::None;
        options.recompute = MegatronRecompute::CoreAttention;
        return none.then_some(plan);
    }
    let none = plan.recipe.checkpointing == Checkpointing::None;
    plan.recipe.checkpointing = Checkpointing::Selective;
    none.then_some(plan)
}

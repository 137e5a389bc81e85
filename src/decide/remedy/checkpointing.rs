//! Activation checkpointing: each layer keeps its input and is run again in backward, for about 30 % more compute (A5).

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Checkpointing;
use crate::recipe::parallel::{DataParallel, MegatronRecompute};

pub(super) const RULE: Rule = Rule {
    id: RemedyId::Checkpointing,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    use Checkpointing::{Every, None as Nothing, Selective, SelectiveHalf};
    let mut plan = situation.plan.clone();
    if let DataParallel::Megatron(options) = &mut plan.parallel.data {
        let less = matches!(options.recompute, MegatronRecompute::None | MegatronRecompute::CoreAttention);
        options.recompute = MegatronRecompute::Uniform(1);
        return less.then_some(plan);
    }
    let less = matches!(plan.recipe.checkpointing, Nothing | Selective | SelectiveHalf | Every(_));
    plan.recipe.checkpointing = Checkpointing::Full;
    less.then_some(plan)
}

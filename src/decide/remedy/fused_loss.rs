//! Liger's cross-entropy fused with the head: logits are never whole, their gradients are made in forward.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::{LigerKernel, Loss};

pub(super) const RULE: Rule = Rule {
    id: RemedyId::FusedLoss,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin, Question::Throughput],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let recipe = &situation.plan.recipe;
    situation.with(recipe.loss == Loss::Hf && !has_fused_loss(recipe), |plan| {
        plan.recipe.liger.retain(|kernel| *kernel != LigerKernel::CrossEntropy);
        plan.recipe.liger.push(LigerKernel::FusedLinearCrossEntropy);
    })
}

pub(super) fn has_fused_loss(recipe: &crate::recipe::Recipe) -> bool {
    recipe.liger.contains(&LigerKernel::FusedLinearCrossEntropy)
}

//! Liger's kernels (`use_liger_kernel`): norms, rotary embeddings and gated MLPs as one operation each, and the fused loss.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::{LigerKernel, Loss};

pub(super) const RULE: Rule = Rule {
    id: RemedyId::LigerKernels,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin, Question::Throughput],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let recipe = &situation.plan.recipe;
    let has = |kernel: &LigerKernel| recipe.liger.contains(kernel);
    situation.with(recipe.loss == Loss::Hf && !LigerKernel::DEFAULT.iter().all(has), |plan| {
        plan.recipe.liger = LigerKernel::DEFAULT.into();
    })
}

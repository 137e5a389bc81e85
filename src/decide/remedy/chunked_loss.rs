//! Head and cross-entropy over pieces of the tokens, each run again in backward: one piece's logits at a time.

use super::fused_loss::has_fused_loss;
use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Loss;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::ChunkedLoss,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

/// As torchtune's default (`CEWithChunkedOutputLoss(num_output_chunks=8)`).
const PIECES: u64 = 8;

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let recipe = &situation.plan.recipe;
    situation.with(matches!(recipe.loss, Loss::Hf | Loss::ChunkedOutputs(_)) && !has_fused_loss(recipe), |plan| {
        plan.recipe.loss = Loss::Chunked(PIECES);
    })
}

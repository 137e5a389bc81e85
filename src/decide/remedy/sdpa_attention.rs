//! `attn_implementation="sdpa"` instead of eager, its backend left to PyTorch instead of `math`: scores and probabilities are
//! never whole tensors, as flash attention needs none (A5).

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, MegatronAttention};
use crate::recipe::{Attention, SdpaBackend};

pub(super) const RULE: Rule = Rule {
    id: RemedyId::SdpaAttention,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin, Question::Throughput],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let mut plan = situation.plan.clone();
    if let DataParallel::Megatron(options) = &mut plan.parallel.data {
        let whole = options.attention_backend == MegatronAttention::Unfused;
        options.attention_backend = MegatronAttention::Fused;
        return whole.then_some(plan);
    }
    let recipe = &mut plan.recipe;
    let math = recipe.sdpa_backend == Some(SdpaBackend::Math);
    let eager = recipe.attention == Some(Attention::Eager);
    if eager {
        recipe.attention = Some(Attention::Sdpa);
    }
    recipe.sdpa_backend = recipe.sdpa_backend.filter(|_| !math);
    (eager || math).then_some(plan)
}

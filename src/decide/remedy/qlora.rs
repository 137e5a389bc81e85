//! Adapters over weights in 4 bits: the weights shrink too (A11).

use super::{Effect, RemedyId, Rule, Situation, lora};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::{FloatName, QuantKind, Quantization};

pub(super) const RULE: Rule =
    Rule { id: RemedyId::Qlora, effect: Effect::ChangesTraining, helps: &[Question::Rigid, Question::Margin], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let recipe = &situation.plan.recipe;
    (recipe.quantization.is_none() && recipe.precision.is_some()).then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.lora.get_or_insert_with(lora::adapters);
        let compute_dtype = (situation.hardware.bf16 == Some(false)).then_some(FloatName::Float16);
        let kind = QuantKind::Nf4;
        plan.recipe.quantization = Some(Quantization { kind, double_quant: true, compute_dtype, prepare: true });
        plan
    })
}

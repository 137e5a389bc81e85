//! Autocast instead of FP32: the products run and are saved in 16 bits. Weights, gradients and states stay FP32.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Precision;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::Autocast,
    effect: Effect::ChangesTraining,
    helps: &[Question::Activations, Question::Margin, Question::Throughput],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    (situation.plan.recipe.precision == Some(Precision::Fp32)).then(|| {
        let mut plan = situation.plan.clone();
        let bf16 = situation.hardware.bf16 != Some(false);
        plan.recipe.precision = Some(if bf16 { Precision::AmpBf16 } else { Precision::AmpFp16 });
        plan
    })
}

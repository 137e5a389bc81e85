//! Weights, gradients and states in BF16: half of FP32 for everything rigid. Small updates can be lost to rounding.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Precision;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::PureBf16,
    effect: Effect::ChangesTraining,
    helps: &[Question::Rigid, Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let precision = situation.plan.recipe.precision?;
    let dearer = matches!(precision, Precision::Fp32 | Precision::AmpBf16 | Precision::AmpFp16 | Precision::Bf16Master);
    (dearer && situation.hardware.bf16 != Some(false)).then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.precision = Some(Precision::PureBf16);
        plan
    })
}

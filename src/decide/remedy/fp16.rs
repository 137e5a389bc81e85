//! Autocast to FP16 where the hardware has no BF16 (A8): FP16 runs at full speed there, BF16 is emulated.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Precision;

pub(super) const RULE: Rule =
    Rule { id: RemedyId::Fp16, effect: Effect::ChangesTraining, helps: &[Question::Throughput], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let emulated = situation.hardware.bf16 == Some(false);
    (emulated && situation.plan.recipe.precision == Some(Precision::AmpBf16)).then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.precision = Some(Precision::AmpFp16);
        plan
    })
}

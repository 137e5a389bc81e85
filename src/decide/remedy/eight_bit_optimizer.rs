//! AdamW with states of one byte per element (bitsandbytes): a quarter of FP32 states, half of 16-bit ones, and no
//! temporaries at the step.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::OptimizerName;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::EightBitOptimizer,
    effect: Effect::ChangesTraining,
    helps: &[Question::Rigid, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    situation.in_place_of_adam(OptimizerName::AdamW8bit)
}

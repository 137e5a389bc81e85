//! Lion with its one state in one byte per element (bitsandbytes): half of 8-bit AdamW's.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::OptimizerName;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::LionEightBit,
    effect: Effect::ChangesTraining,
    helps: &[Question::Rigid, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    situation.in_place_of_adam(OptimizerName::Lion8bit)
}

//! Second moments as a row and a column of each matrix, no first moment: about 4 B a parameter in FP32 at most (A4).

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::OptimizerName;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::Adafactor,
    effect: Effect::ChangesTraining,
    helps: &[Question::Rigid, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    situation.in_place_of_adam(OptimizerName::Adafactor)
}

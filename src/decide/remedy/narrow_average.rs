//! The averaged copy of the weights in BF16.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::Ema;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::NarrowAverage,
    effect: Effect::ChangesTraining,
    helps: &[Question::Rigid, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let wide = matches!(situation.plan.recipe.ema, Some(Ema::Same | Ema::Float32));
    situation.with(wide, |plan| plan.recipe.ema = Some(Ema::Bfloat16))
}

//! Products of linear layers in FP8 (torchao), where the hardware has it: Ada, Hopper and later (compute capability 8.9).

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::machine::Capability;
use crate::plan::Plan;
use crate::recipe::Precision;

pub(super) const RULE: Rule =
    Rule { id: RemedyId::Float8, effect: Effect::ChangesTraining, helps: &[Question::Throughput], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let recipe = &situation.plan.recipe;
    let narrow = matches!(recipe.precision, Some(Precision::AmpBf16 | Precision::PureBf16));
    let has_it = situation.hardware.capability.is_some_and(|capability| capability >= Capability(8, 9));
    situation.with(narrow && has_it && !recipe.float8 && recipe.float8_te.is_none(), |plan| plan.recipe.float8 = true)
}

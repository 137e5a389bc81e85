//! AdamW whose states lie in managed memory (bitsandbytes' paged AdamW): the driver moves them to the host where they find
//! no room. States stay in FP32, so only where the weights are.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::{Optimizer, OptimizerName, Precision};

pub(super) const RULE: Rule = Rule {
    id: RemedyId::PagedOptimizer,
    effect: Effect::SameTraining,
    helps: &[Question::Rigid, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let recipe = &situation.plan.recipe;
    let wide = matches!(recipe.precision, Some(Precision::Fp32 | Precision::AmpBf16 | Precision::AmpFp16));
    let plain = recipe.optimizer.name == OptimizerName::AdamW && !recipe.optimizer.amsgrad;
    (wide && plain && !recipe.optimizer.in_backward && situation.plan.parallel.is_single()).then(|| {
        let mut plan = situation.plan.clone();
        plan.recipe.optimizer = Optimizer { name: OptimizerName::PagedAdamW32bit, ..Optimizer::default() };
        plan
    })
}

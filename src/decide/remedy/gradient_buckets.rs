//! `gradient_as_bucket_view=True`: DDP's gradients are views into its buckets, not copies beside them.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::parallel::DataParallel;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::GradientBuckets,
    effect: Effect::SameTraining,
    helps: &[Question::Rigid, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let mut plan = situation.plan.clone();
    let DataParallel::Ddp(ddp) = &mut plan.parallel.data else { return None };
    let beside = !ddp.gradient_as_bucket_view;
    ddp.gradient_as_bucket_view = true;
    beside.then_some(plan)
}

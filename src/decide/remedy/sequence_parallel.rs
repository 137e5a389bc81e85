//! Norms and residuals split along the sequence over the tensor-parallel ranks, which otherwise each hold all of them.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::SequenceParallel,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let tensor = &situation.plan.parallel.tensor;
    situation.with(tensor.size > 1 && !tensor.sequence_parallel, |plan| plan.parallel.tensor.sequence_parallel = true)
}

//! A larger micro-batch with as much less accumulation, where memory is free: the same tokens per step in larger kernels (A9).

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::{Question, VerdictKind};
use crate::plan::Plan;

pub(super) const RULE: Rule =
    Rule { id: RemedyId::LargerMicroBatch, effect: Effect::SameTraining, helps: &[Question::Throughput], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    // What holds more fits no better.
    if situation.verdict != VerdictKind::Fits {
        return None;
    }
    let twice = |plan: &Plan| {
        let mut plan = plan.clone();
        let recipe = &mut plan.recipe;
        (recipe.micro_batch, recipe.grad_accum) = (recipe.micro_batch.checked_mul(2)?, recipe.grad_accum / 2);
        Some(plan)
    };
    let mut best = None;
    let mut next = situation.plan.clone();
    while next.recipe.grad_accum.is_multiple_of(2) {
        next = twice(&next)?;
        if (situation.verdict_of)(&next) != Some(VerdictKind::Fits) {
            break;
        }
        best = Some(next.clone());
    }
    best
}

//! A smaller micro-batch, with as much more gradient accumulation: the same tokens per optimizer step (B2).

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::{Question, VerdictKind};
use crate::plan::Plan;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::SmallerMicroBatch,
    effect: Effect::SameTraining,
    helps: &[Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let recipe = &situation.plan.recipe;
    let with = |divisor: u64| {
        let mut plan = situation.plan.clone();
        plan.recipe.micro_batch = recipe.micro_batch / divisor;
        plan.recipe.grad_accum = recipe.grad_accum.checked_mul(divisor)?;
        Some(plan)
    };
    // The largest micro-batch that fits; where none does, the smallest: it saves most.
    let divisors: Vec<u64> =
        (2..=recipe.micro_batch.min(MOST_DIVISOR)).filter(|d| recipe.micro_batch.is_multiple_of(*d)).collect();
    divisors
        .iter()
        .filter_map(|d| with(*d))
        .find(|plan| (situation.verdict_of)(plan) == Some(VerdictKind::Fits))
        .or_else(|| with(*divisors.last()?))
}

/// Divisors beyond this are not tried: each costs a walk, and no job accumulates so much.
const MOST_DIVISOR: u64 = 256;

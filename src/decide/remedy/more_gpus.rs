//! More GPUs of the same kind, which share weights, gradients and states (FSDP2 where nothing shards yet). The global batch
//! stays where accumulation or the micro-batch can shrink by as much.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, Fsdp2};

pub(super) const RULE: Rule = Rule {
    id: RemedyId::MoreGpus,
    effect: Effect::OtherHardware,
    helps: &[Question::Rigid, Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let plan = situation.plan;
    if matches!(plan.parallel.data, DataParallel::Megatron(_)) || plan.parallel.tensor.size > 1 {
        return None;
    }
    let with = |times: u64| {
        let mut plan = plan.clone();
        plan.parallel.world_size = plan.parallel.world_size.checked_mul(times)?;
        if matches!(plan.parallel.data, DataParallel::None | DataParallel::Ddp(_) | DataParallel::Dp(_)) {
            plan.parallel.data = DataParallel::Fsdp2(Fsdp2::default());
        }
        let recipe = &mut plan.recipe;
        if recipe.grad_accum.is_multiple_of(times) {
            recipe.grad_accum /= times;
        } else if recipe.micro_batch.is_multiple_of(times) {
            recipe.micro_batch /= times;
        }
        Some(plan)
    };
    situation.first_that_fits([2, 4, 8].into_iter().filter_map(with))
}

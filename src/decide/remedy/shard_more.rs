//! The next stage of sharding on the same GPUs: from whole copies to FSDP2, from one ZeRO stage to the next, from parameters that stay
//! gathered to those that are gathered again (A11: more sharding).

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, Fsdp2, Reshard, ShardingStrategy};

pub(super) const RULE: Rule =
    Rule { id: RemedyId::ShardMore, effect: Effect::SameTraining, helps: &[Question::Rigid, Question::Margin], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let mut stages = Vec::new();
    let mut plan = situation.plan.clone();
    while let Some(data) = next(&plan.parallel.data) {
        plan.parallel.data = data;
        stages.push(plan.clone());
    }
    situation.first_that_fits(stages)
}

/// What shards more.
fn next(data: &DataParallel) -> Option<DataParallel> {
    let mut data = data.clone();
    let more = match &mut data {
        DataParallel::None => false,
        DataParallel::Ddp(_) | DataParallel::Dp(_) => {
            data = DataParallel::Fsdp2(Fsdp2::default());
            true
        }
        DataParallel::Fsdp1(options) => {
            let less = options.strategy != ShardingStrategy::FullShard;
            (options.strategy, options.replicas) = (ShardingStrategy::FullShard, 1);
            less
        }
        DataParallel::Fsdp2(options) => {
            let less = options.reshard_after_forward != Reshard::Always || options.replicas > 1;
            (options.reshard_after_forward, options.replicas) = (Reshard::Always, 1);
            less
        }
        DataParallel::DeepSpeed(options) => {
            options.stage += 1;
            options.stage <= 3
        }
        DataParallel::Megatron(options) => {
            let less = !options.use_distributed_optimizer;
            options.use_distributed_optimizer = true;
            less
        }
    };
    more.then_some(data)
}

//! Each layer's matrices shared by several GPUs, norms and residuals along the sequence too: the same batch, and so the same
//! training.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;
use crate::recipe::parallel::{GPUS_PER_NODE, TensorParallel};

pub(super) const RULE: Rule = Rule {
    id: RemedyId::TensorParallel,
    effect: Effect::OtherHardware,
    helps: &[Question::Rigid, Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let plan = situation.plan;
    if !plan.parallel.is_single() {
        return None;
    }
    // No more than share a node: these ranks speak in every layer.
    let of_node = plan.parallel.gpus_per_node.unwrap_or(GPUS_PER_NODE);
    situation.first_that_fits([2, 4, 8].into_iter().filter(|size| *size <= of_node).map(|size| {
        let mut plan = plan.clone();
        plan.parallel.world_size = size;
        plan.parallel.tensor = TensorParallel { size, sequence_parallel: true, loss_parallel: false };
        plan
    }))
}

//! The smallest larger card that the job fits, as far as the same walk can tell.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::{Question, VerdictKind, judge};
use crate::machine::{GpuChoice, Machine, gpus};
use crate::order::sort_short_by_key;
use crate::plan::Plan;
use crate::recipe::Precision;

pub(super) const RULE: Rule = Rule {
    id: RemedyId::LargerGpu,
    effect: Effect::OtherHardware,
    helps: &[Question::Rigid, Question::Activations, Question::Margin],
    change,
};

fn change(situation: &Situation<'_>) -> Option<Plan> {
    let Situation { plan, hardware, tiers, .. } = situation;
    let current = hardware.capacity.as_ref()?.bytes;
    let precision = plan.recipe.precision;
    let needs_bf16 = matches!(
        precision,
        None | Some(Precision::AmpBf16 | Precision::PureBf16 | Precision::Bf16Autocast | Precision::Bf16Master)
    );
    let mut larger: Vec<_> = gpus()
        .iter()
        .filter(|gpu| gpu.bf16 || !needs_bf16)
        .filter_map(|gpu| Some((gpu.capacity()?.bytes, gpu)))
        .filter(|(capacity, _)| *capacity > current)
        .collect();
    sort_short_by_key(&mut larger, |(capacity, _)| *capacity);
    larger.into_iter().find_map(|(_, gpu)| {
        // Others' memory stays on the old card; a slice or a context that was given belongs to it too.
        let machine = Machine { gpu: Some(GpuChoice::Catalogue(gpu.name.clone())), ..Machine::default() };
        let larger = Plan { machine, ..(*plan).clone() };
        let verdict = judge(tiers, &larger.hardware().ok()?, &larger);
        (verdict.kind == VerdictKind::Fits).then_some(larger)
    })
}

//! `expandable_segments:True`: segments grow in place, so that less is reserved and unused. It lowers what is reserved,
//! not what is allocated.

use super::{Effect, RemedyId, Rule, Situation};
use crate::decide::Question;
use crate::plan::Plan;

pub(super) const RULE: Rule =
    Rule { id: RemedyId::ExpandableSegments, effect: Effect::SameTraining, helps: &[Question::Margin], change };

fn change(situation: &Situation<'_>) -> Option<Plan> {
    situation.plan.framework.alloc_conf.is_none().then(|| {
        let mut plan = situation.plan.clone();
        plan.framework.alloc_conf = Some("expandable_segments:True".into());
        plan
    })
}

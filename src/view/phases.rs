//! The phases of a job that is more than its training step, as a table: what each takes, what holds it, which one binds.

use crate::decide::Decision;
use crate::estimate::{PhaseOnCard, binding_phase, phases};
use crate::plan::Plan;
use crate::step::readings::Holder;
use crate::text::{Catalogue, Label, Msg};
use crate::units::Bytes;
use crate::view::number::gib;

/// The table.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseTable {
    /// Where the peak is, in a sentence.
    pub sentence: String,
    /// The phases, in order.
    pub rows: Vec<PhaseRow>,
}

/// One phase.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseRow {
    /// Its name.
    pub name: &'static str,
    /// What holds memory when the most is requested, longest-lived first: a name and GiB.
    pub held: Vec<(&'static str, String)>,
    /// The most allocated at once, in GiB.
    pub allocated: String,
    /// Its exact bytes.
    pub exact: Bytes,
    /// Whether it binds.
    pub binds: bool,
}

impl PhaseTable {
    /// The phases of `plan`; none where there are less than two, or before the allocator's replay has told them.
    #[must_use]
    pub fn of(plan: &Plan, decision: &Decision, text: &dyn Catalogue) -> Option<Self> {
        let readings = decision.estimate.readings.as_ref().filter(|readings| readings.phases.len() > 1)?;
        let all = phases(plan, readings);
        let binding = binding_phase(&all)?.readings.phase;
        let row = |of: &PhaseOnCard| {
            let PhaseOnCard { readings, beside } = of;
            let own = Holder::ALL.into_iter().zip(readings.held).filter(|(_, bytes)| !bytes.is_zero());
            let mut held: Vec<_> = own.map(|(holder, bytes)| (text.holder(holder), gib(bytes))).collect();
            match beside {
                Some(bytes) if bytes.is_zero() => {}
                Some(bytes) => held.push((text.label(Label::Vllm), gib(*bytes))),
                None => held.push((text.label(Label::Vllm), text.label(Label::VllmNotKnown).into())),
            }
            PhaseRow {
                name: text.phase(readings.phase),
                held,
                allocated: gib(of.allocated()),
                exact: of.allocated(),
                binds: readings.phase == binding,
            }
        };
        Some(Self { sentence: text.say(&Msg::PeakInPhase { phase: binding }), rows: all.iter().map(row).collect() })
    }
}

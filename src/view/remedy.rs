//! Rows of remedies: what to change, what it saves, how it then stands.

use crate::decide::{Decision, Effect, PricedRemedy, RemedyId, Status, VerdictKind};
use crate::text::{Catalogue, Locale};
use crate::units::Bytes;
use crate::view::answer::status;
use crate::view::number::{gib, signed_gib};

/// One remedy as a row.
#[derive(Clone, Debug, PartialEq)]
pub struct RemedyRow {
    /// Which, by which it is tried.
    pub id: RemedyId,
    /// What it is.
    pub name: String,
    /// What it does.
    pub note: String,
    /// How it then stands and what else it changes, in a few words.
    pub summary: String,
    /// The peak with it, GiB.
    pub peak: String,
    /// The exact peak.
    pub exact: Bytes,
    /// The change of the peak, GiB with its sign.
    pub change: String,
    /// How it then stands.
    pub then: Status,
    /// The same in a word.
    pub then_word: String,
}

/// Which peak a row quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoted {
    /// The tensors' blocks.
    Allocated,
    /// What the process holds, where it is known.
    Process,
}

fn row(decision: &Decision, index: usize, quoted: Quoted, text: &dyn Catalogue) -> Option<RemedyRow> {
    let remedy = decision.remedies.get(index)?;
    // What lowers the cache alone is quoted by the figure that it lowers.
    let cache_alone = remedy.saved_bytes == 0 && remedy.effect != Effect::OtherHardware;
    let quoted = if cache_alone { Quoted::Process } else { quoted };
    let process = || {
        let saved = remedy.saved_process_bytes?;
        let now = decision.verdict.numbers.process?;
        Some((Bytes(now.get().checked_add_signed(saved.checked_neg()?)?), saved))
    };
    let (peak, saved) = match quoted {
        Quoted::Process => process(),
        Quoted::Allocated => None,
    }
    .unwrap_or((remedy.peak_bytes, remedy.saved_bytes));
    Some(RemedyRow {
        id: remedy.id,
        name: text.remedy(remedy),
        note: note(remedy, text),
        summary: format!("{}; {}", text.verdict(remedy.verdict), text.effect(remedy.effect)),
        peak: gib(peak),
        exact: peak,
        change: match remedy.effect {
            // The job is the same to the byte, or nearly.
            Effect::OtherHardware => String::new(),
            _ => signed_gib(saved.saturating_neg()),
        },
        then: status(remedy.verdict),
        then_word: text.verdict(remedy.verdict).to_ascii_lowercase(),
    })
}

/// What it does, and what that costs.
fn note(remedy: &PricedRemedy, text: &dyn Catalogue) -> String {
    let note = text.remedy_note(remedy);
    match remedy.time {
        None => note.into(),
        time => format!("{note}; {}", Locale::En.advice().time(time)),
    }
}

/// The rows at `positions` in the decision's list.
#[must_use]
pub fn rows(decision: &Decision, positions: &[usize], quoted: Quoted, text: &dyn Catalogue) -> Vec<RemedyRow> {
    let helps = |at: &&usize| match (quoted, decision.remedies.get(**at)) {
        // At a step that is about the tensors, what lowers the cache alone is no help unless it decides.
        (Quoted::Allocated, Some(r)) => r.saved_bytes != 0 || r.verdict == VerdictKind::Fits,
        (_, remedy) => remedy.is_some(),
    };
    positions.iter().filter(helps).filter_map(|&at| row(decision, at, quoted, text)).collect()
}

/// The `most` remedies to try first: those that make it fit before those that only help, each in the decision's order.
/// One that neither lowers the peak nor betters the verdict is no remedy here.
#[must_use]
pub fn first(decision: &Decision, most: usize, text: &dyn Catalogue) -> Vec<RemedyRow> {
    let fits = |at: &usize| decision.remedies[*at].verdict == VerdictKind::Fits;
    if decision.verdict.kind == VerdictKind::Fits {
        return Vec::new();
    }
    let all = 0..decision.remedies.len();
    let helps = |at: &usize| decision.remedies[*at].saves() && !fits(at);
    let mut order: Vec<usize> = all.clone().filter(fits).chain(all.filter(helps)).collect();
    let quoted = match decision.verdict.kind {
        VerdictKind::Tight => Quoted::Process,
        _ => Quoted::Allocated,
    };
    order.truncate(most);
    order.iter().filter_map(|&at| row(decision, at, quoted, text)).collect()
}

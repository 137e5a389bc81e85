//! `vram-budget validate --verdicts`: what is said of cards around the boundary between those on which a step was seen to
//! run out of memory and those on which it was seen to complete.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use vram_budget::decide::{Deliberation, VerdictKind};
use vram_budget::issue::Issue;
use vram_budget::machine::{CustomGpu, GpuChoice};
use vram_budget::plan::Plan;
use vram_budget::text::{Locale, Searched};
use vram_budget::units::Bytes;

use crate::exit::Rejected;
use crate::input;

/// The cards that are tried, in per cent of the smallest one that suffices.
const CARDS: [u64; 8] = [70, 85, 95, 99, 101, 105, 120, 150];

/// The answers, in the order of the columns.
const ANSWERS: [VerdictKind; 4] =
    [VerdictKind::Fits, VerdictKind::Tight, VerdictKind::CannotTell, VerdictKind::DoesNotFit];

/// A case's boundary, one a line. Sizes are what the device gives to the caching allocator, without a context.
#[derive(Deserialize)]
struct Boundary {
    id: String,
    /// The smallest device on which the step completed.
    completes_at_mib: u64,
}

/// The boundaries of cases, and what was said of cards around them.
pub(super) struct Verdicts {
    path: PathBuf,
    /// Of the cases that have not come up yet.
    boundaries: BTreeMap<String, Bytes>,
    cases: u64,
    refused: u64,
    /// By card and answer.
    counts: [[u64; ANSWERS.len()]; CARDS.len()],
}

impl Verdicts {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let mut boundaries = BTreeMap::new();
        input::lines(path, |number, line| {
            if !line.trim().is_empty() {
                let Boundary { id, completes_at_mib } = serde_json::from_str(line)
                    .map_err(|error| Rejected::because(input::name(path), format!("line {number}: {error}")))?;
                let bytes = completes_at_mib.checked_mul(1 << 20).filter(|bytes| bytes.checked_mul(150).is_some());
                let bytes =
                    bytes.ok_or_else(|| Rejected::because(input::name(path), format!("line {number}: too large")))?;
                boundaries.insert(id, Bytes(bytes));
            }
            Ok(())
        })?;
        Ok(Self { path: path.to_owned(), boundaries, cases: 0, refused: 0, counts: Default::default() })
    }

    /// Judges the case on cards around its boundary, if one is known.
    pub(super) fn judge(&mut self, id: &str, plan: Option<&Plan>) {
        let Some(boundary) = self.boundaries.remove(id) else { return };
        self.cases += 1;
        let answers = plan.map(|plan| CARDS.map(|card| answer(plan, Bytes(boundary.get() * card / 100))));
        for (card, counts) in self.counts.iter_mut().enumerate() {
            let answer = answers.as_ref().and_then(|answers| answers[card].as_ref().ok());
            if let Some(at) = answer.and_then(|kind| ANSWERS.iter().position(|answer| answer == kind)) {
                counts[at] += 1;
            } else if card == 0 {
                self.refused += 1;
            }
        }
    }

    /// That every boundary was one of a case.
    pub(super) fn finish(&self) -> Result<(), Rejected> {
        match self.boundaries.keys().next() {
            None => Ok(()),
            Some(id) => Err(Rejected::because(input::name(&self.path), format!("no case is called {id}"))),
        }
    }

    /// The counts by card and answer.
    pub(super) fn json(&self) -> Value {
        let of_card = |(card, counts): (&u64, &[u64; ANSWERS.len()])| {
            let mut said: Map<String, Value> =
                ANSWERS.iter().zip(counts).map(|(kind, count)| (kind.name().into(), (*count).into())).collect();
            said.insert("refused".into(), self.refused.into());
            (share(*card), Value::Object(said))
        };
        json!({ "verdicts": CARDS.iter().zip(&self.counts).map(of_card).collect::<Map<_, _>>() })
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { cases, refused, .. } = self;
        let (text, words) = (Locale::En.text(), Locale::En.advice());
        let said = |what| words.searched(&what);
        writeln!(out, "\n{}", said(Searched::Verdicts { cases: *cases, refused: *refused }))?;
        let heads = ANSWERS.map(|kind| format!("{:>13}", text.verdict(kind).to_lowercase())).concat();
        writeln!(out, "{:<6} {:<10}{heads}", said(Searched::Card), said(Searched::TheStep))?;
        for (card, counts) in CARDS.iter().zip(&self.counts) {
            let truth = said(if *card < 100 { Searched::RunsOut } else { Searched::Completes });
            writeln!(out, "{:<6} {truth:<10}{}", share(*card), counts.map(|n| format!("{n:>13}")).concat())?;
        }
        Ok(())
    }
}

/// A card's share of the smallest one that suffices.
fn share(card: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a number of three digits")]
    (card as f64 / 100.0).to_string()
}

/// What is said of `plan` on a card of one's own that gives `bytes` to the allocator, with no margin: nothing of it goes to
/// a context or to others.
fn answer(plan: &Plan, bytes: Bytes) -> Result<VerdictKind, Vec<Issue>> {
    let capability = plan.hardware()?.capability;
    let mut plan = plan.clone();
    plan.machine.gpu = Some(GpuChoice::Custom(CustomGpu {
        name: "card".into(),
        memory_bytes: bytes,
        compute_capability: capability.map(|capability| capability.to_string()),
    }));
    plan.machine.mig_slice_bytes = None;
    plan.machine.context_bytes = Some(Bytes::ZERO);
    plan.machine.communicator_bytes = Some(Bytes::ZERO);
    plan.machine.in_use_bytes = Some(Bytes::ZERO);
    (plan.policy.margin_low, plan.policy.margin_high) = (0.0, 0.0);
    let mut deliberation = Deliberation::of(&plan);
    loop {
        if let Some(decision) = deliberation.refine(usize::MAX) {
            return Ok(decision?.verdict.kind);
        }
    }
}

//! The answer: verdict, figure, sentence, bar, sums, what to change first.

use crate::bill::{Instant, Part};
use crate::decide::{Decision, Fact, Reason, Status, VerdictKind};
use crate::estimate::{Note, Peak};
use crate::measure::TierName;
use crate::plan::Plan;
use crate::recipe::parallel::DataParallel;
use crate::recipe::{OptimizerImpl, OptimizerName};
use crate::step::readings::Holder;
use crate::text::{Catalogue, Label, Msg, Term};
use crate::units::{Bytes, three_digits};
use crate::view::number::{column, decimal, gib, hundredths};
use crate::view::remedy::{self, RemedyRow};

/// How many remedies stand beside the answer.
const SHOWN_REMEDIES: usize = 3;

/// The answer as it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The verdict's word.
    pub verdict: &'static str,
    /// Its mark.
    pub status: Status,
    /// The figure that the verdict quotes, in GiB.
    pub big: String,
    /// Its exact bytes.
    pub exact: Bytes,
    /// What the figure is of.
    pub big_of: String,
    /// Why, in sentences.
    pub because: Vec<String>,
    /// A term that the sentences use.
    pub term: Option<Term>,
    /// The bar.
    pub bar: Bar,
    /// Head of the sums.
    pub sums_head: String,
    /// The sums below the bar.
    pub sums: Vec<SumRow>,
    /// What to change first; `None`: the remedies are not priced yet.
    pub first: Option<Vec<RemedyRow>>,
    /// Whether a change is called for: without one the heading would be odd.
    pub wants_change: bool,
    /// Whether the allocator's replay is still to come: what rests on it is not shown.
    pub refining: bool,
    /// What is assumed.
    pub caveats: Vec<String>,
    /// The title of the page.
    pub title: String,
    /// What the live region says.
    pub live: String,
}

/// One row of the sums.
#[derive(Clone, Debug, PartialEq)]
pub struct SumRow {
    /// What it is.
    pub name: String,
    /// Its swatch.
    pub key: Key,
    /// GiB, or "not known".
    pub gib: String,
    /// The exact bytes; `None`: not known.
    pub exact: Option<Bytes>,
    /// Whether it sums the rows above.
    pub sum: bool,
    /// The term that it is named by.
    pub term: Term,
}

/// The swatch of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A part's colour.
    Part(Part),
    /// Not of the tensors: an outline.
    Rest,
    /// None: a sum.
    None,
}

/// The bar: its segments and the card's mark, in percent of the width.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// The segments, left to right.
    pub segments: Vec<Segment>,
    /// Where the card ends, and what it says.
    pub mark: Option<(f64, String)>,
    /// The bar in words.
    pub alt: String,
}

/// One segment of the bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Its colour.
    pub key: Key,
    /// Where it begins.
    pub x: f64,
    /// Its width.
    pub width: f64,
}

impl Answer {
    /// The answer to `plan`, with the remedies of the decision that has them priced.
    #[must_use]
    pub fn new(plan: &Plan, decision: &Decision, priced: Option<&Decision>, text: &dyn Catalogue) -> Self {
        let verdict = &decision.verdict;
        let refining = decision.awaits_replay();
        // Then the replay may still say anything.
        let undecided = refining && matches!(verdict.reason, Reason::Unknown(Fact::Reserved | Fact::Precision));
        let estimate_notes = decision.estimate.notes.iter().filter(|note| **note != Note::NotReplayed);
        let numbers = &verdict.numbers;
        let allocated = numbers.allocated;
        let held = numbers.process.and_then(|p| p.checked_add(numbers.in_use.unwrap_or_default()));
        // *Fits* quotes the process, which is safe even with cache; *does not fit* the tensors' blocks, which is
        // impossible even without.
        let (exact, big_of, of) = match (verdict.kind, held, numbers.capacity) {
            (VerdictKind::Fits | VerdictKind::Tight, Some(held), Some(card)) => {
                (held, text.say(&Msg::ProcessOfCard { card }), Some(card))
            }
            (VerdictKind::DoesNotFit, ..) => {
                (allocated, text.say(&Msg::NeededOfUsable { usable: numbers.usable }), numbers.usable)
            }
            _ if refining => (allocated, text.label(Label::TensorsAtPeak).into(), numbers.capacity),
            _ => (allocated, text.say(&Msg::AllocatedAtPeak), numbers.capacity),
        };
        let (binding, term) = binding_sentence(plan, decision, text);
        let mut because =
            vec![if undecided { text.label(Label::RefiningWhy).into() } else { text.reason(&verdict.reason) }];
        let reason_first = matches!(
            verdict.reason,
            Reason::AllocatedExceeds { .. } | Reason::InsideMargin { .. } | Reason::RoomBeyondMargin { .. }
        );
        if reason_first || undecided {
            because.push(binding);
        } else {
            because.insert(0, binding);
        }
        Self {
            verdict: if undecided { text.label(Label::Checking) } else { text.verdict(verdict.kind) },
            status: status(verdict.kind),
            big: three_digits(exact.as_gib()),
            exact,
            big_of,
            because,
            term,
            bar: bar(decision, text),
            sums_head: text.say(&Msg::SumsHead { peak: decision.estimate.peak() }),
            sums: sums(decision, text),
            first: priced.map(|priced| remedy::first(priced, SHOWN_REMEDIES, text)),
            // Until it is decided, what was called for a moment ago.
            wants_change: match (undecided, priced) {
                (true, Some(before)) => before.verdict.kind != VerdictKind::Fits,
                (true, None) => false,
                (false, _) => verdict.kind != VerdictKind::Fits,
            },
            refining,
            caveats: decision
                .caveats
                .iter()
                .map(|caveat| text.caveat(caveat))
                .chain(estimate_notes.map(|note| text.note(*note).to_owned()))
                .collect(),
            title: text.say(&Msg::Title { verdict: verdict.kind, needed: exact, of }),
            live: text.say(&Msg::Live { verdict: verdict.kind, needed: exact, of }),
        }
    }
}

/// The mark of a verdict.
#[must_use]
pub fn status(verdict: VerdictKind) -> Status {
    match verdict {
        VerdictKind::Fits => Status::Pass,
        VerdictKind::Tight => Status::Attention,
        VerdictKind::DoesNotFit => Status::Stop,
        VerdictKind::CannotTell => Status::Waits,
    }
}

/// What makes the binding instant the peak, and the term to explain in it.
fn binding_sentence(plan: &Plan, decision: &Decision, text: &dyn Catalogue) -> (String, Option<Term>) {
    if let (Peak::Phase(phase), Some(on_card)) = (decision.estimate.peak(), &decision.estimate.binding) {
        let held = Holder::ALL.into_iter().zip(on_card.readings.held);
        let (largest, bytes) = held.max_by_key(|(_, bytes)| *bytes).unwrap_or((Holder::Weights, Bytes::ZERO));
        return (text.say(&Msg::BindingPhase { phase, largest, bytes }), None);
    }
    let bill = &decision.estimate.bill;
    let parts = bill.column(bill.binding).parts;
    let optimizer = plan.recipe.optimizer;
    let temporaries = parts.get(Part::Temporary);
    if bill.binding == Instant::Step
        && temporaries > Bytes::ZERO
        && optimizer.name != OptimizerName::Sgd
        && !matches!(plan.parallel.data, DataParallel::Megatron(_))
        && optimizer.name.implementations().len() > 1
    {
        let implementation = optimizer.implementation();
        let term = match implementation {
            OptimizerImpl::Foreach => Term::Foreach,
            OptimizerImpl::Fused => Term::Fused,
            OptimizerImpl::Forloop => Term::Forloop,
        };
        let msg = Msg::BindingStep { name: optimizer.name, implementation, temporaries };
        return (text.say(&msg), Some(term));
    }
    let largest = Part::ALL.into_iter().max_by_key(|part| parts.get(*part)).unwrap_or(Part::Weights);
    (text.say(&Msg::Binding { instant: bill.binding, largest, bytes: parts.get(largest) }), None)
}

/// The addends of the bar and the sums: the parts at the binding instant, then what the tiers add.
struct Addends {
    parts: [Bytes; 5],
    first_steps: Bytes,
    rounding: Bytes,
    /// What vLLM holds beside the trainer.
    beside: Bytes,
    cache: Option<Bytes>,
    context: Option<Bytes>,
    communicators: Option<Bytes>,
    in_use: Bytes,
}

impl Addends {
    fn of(decision: &Decision) -> Self {
        let estimate = &decision.estimate;
        let numbers = &decision.verdict.numbers;
        let parts = estimate.peak_parts();
        // Of the phase that binds, over both steps.
        let requested = estimate.binding.map_or(parts, |on_card| on_card.readings.parts()).total().max(parts.total());
        let beside = estimate.binding.and_then(|on_card| on_card.beside).unwrap_or_default();
        Self {
            parts: parts.0,
            first_steps: requested.saturating_sub(parts.total()),
            rounding: numbers.allocated.saturating_sub(beside).saturating_sub(requested),
            beside,
            cache: numbers.reserved.map(|r| r.saturating_sub(numbers.allocated)),
            context: numbers.context,
            communicators: numbers.communicators,
            in_use: numbers.in_use.unwrap_or_default(),
        }
    }
}

fn bar(decision: &Decision, text: &dyn Catalogue) -> Bar {
    const GAP: f64 = 0.35;
    let addends = Addends::of(decision);
    let rest: Bytes = [
        addends.first_steps,
        addends.rounding,
        addends.beside,
        addends.cache.unwrap_or_default(),
        addends.context.unwrap_or_default(),
        addends.communicators.unwrap_or_default(),
        addends.in_use,
    ]
    .into_iter()
    .sum();
    let pieces: Vec<(Key, Bytes)> = Part::ALL
        .into_iter()
        .map(|part| (Key::Part(part), addends.parts[part as usize]))
        .chain([(Key::Rest, rest)])
        .filter(|(_, bytes)| *bytes > Bytes::ZERO)
        .collect();
    let total: Bytes = pieces.iter().map(|(_, bytes)| *bytes).sum();
    let card = decision.verdict.numbers.capacity;
    let scale = total.max(card.unwrap_or_default()).as_f64().max(1.0);
    let mut x = 0.0;
    let segments = pieces
        .iter()
        .map(|(key, bytes)| {
            let width = bytes.as_f64() / scale * 100.0;
            let segment = Segment { key: *key, x, width: (width - GAP).max(0.15) };
            x += width;
            segment
        })
        .collect();
    let parts: Vec<(Part, Bytes)> =
        Part::ALL.into_iter().map(|part| (part, addends.parts[part as usize])).filter(|(_, b)| b.get() > 0).collect();
    Bar {
        segments,
        mark: card.map(|card| {
            let label = format!("{} {}", text.label(Label::CardMark), gib(card));
            (card.as_f64() / scale * 100.0, label)
        }),
        alt: text.say(&Msg::BarAlt { needed: decision.estimate.peak_parts().total(), card, parts: &parts }),
    }
}

fn sums(decision: &Decision, text: &dyn Catalogue) -> Vec<SumRow> {
    let addends = Addends::of(decision);
    let numbers = &decision.verdict.numbers;
    let refining = decision.awaits_replay();
    let unknown = || text.label(if refining { Label::Refining } else { Label::NotKnown }).to_owned();
    let sum = |tier: TierName, term: Term, exact: Option<Bytes>| SumRow {
        name: text.tier(tier).into(),
        key: Key::None,
        gib: exact.map_or_else(unknown, |b| decimal(hundredths(b))),
        exact,
        sum: true,
        term,
    };
    let mut allocated: Vec<(&str, Key, Term, Bytes)> = Part::ALL
        .into_iter()
        .map(|part| (text.part(part), Key::Part(part), Term::of_part(part), addends.parts[part as usize]))
        .collect();
    if addends.first_steps > Bytes::ZERO {
        let name = text.label(Label::FirstStepHigher);
        allocated.push((name, Key::Rest, Term::FirstSteps, addends.first_steps));
    }
    if addends.beside > Bytes::ZERO {
        allocated.push((text.label(Label::Vllm), Key::Rest, Term::InUse, addends.beside));
    }
    // Always there, so that no row jumps when the replay is done.
    allocated.push((text.label(Label::BlockRounding), Key::Rest, Term::Rounding, addends.rounding));
    let foot = hundredths(numbers.allocated);
    let figures = column(&allocated.iter().map(|(.., bytes)| *bytes).collect::<Vec<_>>(), foot);
    let mut rows: Vec<SumRow> = allocated
        .into_iter()
        .zip(figures)
        .map(|((name, key, term, bytes), gib)| SumRow {
            name: name.into(),
            key,
            gib,
            exact: Some(bytes),
            sum: false,
            term,
        })
        .collect();
    if let Some(rounding) = rows.last_mut().filter(|_| refining) {
        (rounding.gib, rounding.exact) = (unknown(), None);
    }
    rows.push(sum(TierName::Allocated, Term::Allocated, Some(numbers.allocated).filter(|_| !refining)));
    let rest = |label: Label, term: Term, bytes: Option<Bytes>, shown: Option<u64>| SumRow {
        name: text.label(label).into(),
        key: Key::Rest,
        gib: match (bytes, shown) {
            (Some(Bytes::ZERO), _) => "0".into(),
            (Some(_), Some(shown)) => decimal(shown),
            (Some(bytes), None) => gib(bytes),
            (None, _) => unknown(),
        },
        exact: bytes,
        sum: false,
        term,
    };
    // Each addend is what its sums differ by, so that the column adds up as it is shown.
    let reserved = numbers.reserved.map(hundredths);
    rows.push(rest(Label::CacheKept, Term::Cache, addends.cache, reserved.map(|r| r.saturating_sub(foot))));
    rows.push(sum(TierName::Reserved, Term::Reserved, numbers.reserved));
    let process = numbers.process.map(hundredths);
    let communicators = addends.communicators.map(hundredths);
    let beside = process.zip(reserved).map(|(p, r)| p.saturating_sub(r));
    let context = beside.map(|beside| beside.saturating_sub(communicators.unwrap_or_default()));
    rows.push(rest(Label::ContextRow, Term::Context, addends.context, context));
    if let Some(shown) = communicators {
        rows.push(rest(Label::CommunicatorsRow, Term::Context, addends.communicators, Some(shown)));
    }
    rows.push(sum(TierName::Process, Term::Process, numbers.process));
    if addends.in_use > Bytes::ZERO {
        rows.push(rest(Label::InUseRow, Term::InUse, numbers.in_use, None));
    }
    rows
}

//! Everything a person reads, on the page and in the terminal: one catalogue per language.
//!
//! A language is one type that implements [`Catalogue`]. The trait has no default bodies and its methods take the
//! engine's own enums, so a translation that is missing does not compile, and a new variant in the engine stops every
//! language until it has words. Numbers are formatted by [`crate::units`]; the catalogue puts them into sentences.

mod advice;
mod en;
mod lengths;
mod picks;
mod ranks;
mod reconcile;
mod recording;
mod report;
#[cfg(test)]
mod tests;
#[expect(missing_docs, reason = "a label's name says what it is")]
mod words;

use std::borrow::Cow;

pub use advice::{AdviceCatalogue, Advised, Searched};
pub use lengths::{LengthsCatalogue, LengthsSaid, ratio};
pub use picks::PickCatalogue;
pub use ranks::RankSaid;
pub use reconcile::{Compared, ReconcileCatalogue};
pub use recording::{RecordingCatalogue, Said};
pub use report::ReportCatalogue;
pub use words::{Label, LinkProblem, Msg, Term};

use crate::bill::{Instant, Part, ProvenanceKind};
use crate::decide::{Caveat, Effect, Fact, PricedRemedy, Question, Reason, Status, VerdictKind};
use crate::estimate::{Note, Peak};
use crate::issue::{Issue, IssueKind};
use crate::measure::{ImportError, ReadingName, TierName};
use crate::recipe::{Attention, Checkpointing, Loss, Method, OptimizerImpl, OptimizerName, Precision, SdpaBackend};
use crate::step::log::Phase;
use crate::step::readings::Holder;

impl Peak {
    /// Where it is, in words.
    #[must_use]
    pub fn said(self, text: &dyn Catalogue) -> &'static str {
        match self {
            Self::Step(instant) => text.at_instant(instant),
            Self::Phase(phase) => text.at_phase(phase),
        }
    }
}

/// A language of the catalogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Locale {
    /// English.
    #[default]
    En,
}

impl Locale {
    /// Every language, in the order they are offered.
    pub const ALL: [Self; 1] = [Self::En];

    /// The BCP 47 tag, for `lang` attributes and command-line flags.
    #[must_use]
    pub const fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
        }
    }

    /// The language whose tag this is, by its primary subtag: `en`, `en-GB`, `en_US.UTF-8`.
    #[must_use]
    pub fn from_tag(tag: &str) -> Option<Self> {
        let primary = tag.split(['-', '_', '.']).next()?.to_ascii_lowercase();
        Self::ALL.into_iter().find(|locale| locale.tag() == primary)
    }

    /// Its words.
    #[must_use]
    pub fn text(self) -> &'static dyn Catalogue {
        match self {
            Self::En => &en::English,
        }
    }
}

/// What one language says. Every method is one idea; none has a default.
pub trait Catalogue: PickCatalogue {
    /// A part of the bill, as a heading: `Optimizer states`.
    fn part(&self, part: Part) -> &'static str;
    /// An instant, as a heading: `Optimizer step`.
    fn instant(&self, instant: Instant) -> &'static str;
    /// An instant inside a sentence, with its preposition: `at the optimizer step`.
    fn at_instant(&self, instant: Instant) -> &'static str;
    /// What is trained for beside the next token.
    fn method(&self, method: &Method) -> &'static str;
    /// A phase of a job, as a row of a table.
    fn phase(&self, phase: Phase) -> &'static str;
    /// A phase inside a sentence, with its preposition: `while completions are generated`.
    fn at_phase(&self, phase: Phase) -> &'static str;
    /// What holds memory in a phase.
    fn holder(&self, holder: Holder) -> &'static str;
    /// How a figure is known, as one word: `exact`.
    fn provenance(&self, kind: ProvenanceKind) -> &'static str;
    /// What that word means, as a sentence.
    fn provenance_meaning(&self, kind: ProvenanceKind) -> &'static str;
    /// A tier of memory: `Reserved`.
    fn tier(&self, tier: TierName) -> &'static str;
    /// What a tier counts, as a sentence.
    fn tier_meaning(&self, tier: TierName) -> &'static str;
    /// A precision recipe, as an option of a list.
    fn precision(&self, precision: Precision) -> &'static str;
    /// What a precision recipe holds per parameter with AdamW, as a sentence.
    fn precision_meaning(&self, precision: Precision) -> &'static str;
    /// An optimizer.
    fn optimizer(&self, name: OptimizerName) -> &'static str;
    /// An implementation of an optimizer.
    fn implementation(&self, implementation: OptimizerImpl) -> &'static str;
    /// The implementation that Megatron-LM takes of Adam, whatever a recipe says.
    fn megatron_implementation(&self) -> &'static str;
    /// An attention implementation.
    fn attention(&self, attention: Attention) -> &'static str;
    /// A backend of `scaled_dot_product_attention`.
    fn sdpa_backend(&self, backend: SdpaBackend) -> &'static str;
    /// A way to compute the loss.
    fn loss(&self, loss: Loss) -> &'static str;
    /// A checkpointing mode.
    fn checkpointing(&self, checkpointing: Checkpointing) -> &'static str;
    /// What is wrong with a field, lower case and without a full stop, to stand after the field's name:
    /// `12 is not divisible by num_key_value_heads = 5`.
    fn issue(&self, kind: &IssueKind) -> String;
    /// The verdict: `Does not fit`.
    fn verdict(&self, verdict: VerdictKind) -> &'static str;
    /// Why, as a sentence.
    fn reason(&self, reason: &Reason) -> String;
    /// A fact that is missing, as a noun phrase: `which GPU it is`.
    fn fact(&self, fact: Fact) -> &'static str;
    /// What a reader should know beside the answer, as a sentence.
    fn caveat(&self, caveat: &Caveat) -> String;
    /// What the estimate takes for granted, as a sentence.
    fn note(&self, note: Note) -> &'static str;
    /// A question's name: `Rigid cost`.
    fn question(&self, question: Question) -> &'static str;
    /// The question itself, one line.
    fn question_ask(&self, question: Question) -> &'static str;
    /// Why this rule, as the label of an opening note.
    fn question_why_title(&self, question: Question) -> &'static str;
    /// Why this rule, in two sentences.
    fn question_why(&self, question: Question) -> &'static str;
    /// How a step stands.
    fn status(&self, status: Status) -> &'static str;
    /// A remedy as a button or a row names it: `Micro-batch 2`.
    fn remedy(&self, remedy: &PricedRemedy) -> String;
    /// What the remedy does, as a sentence.
    fn remedy_note(&self, remedy: &PricedRemedy) -> &'static str;
    /// What else a remedy changes.
    fn effect(&self, effect: Effect) -> &'static str;
    /// A reading of a measurement, as a row's heading.
    fn reading(&self, name: ReadingName) -> String;
    /// Why a text was not read as a measurement: what was expected, what was found and where.
    fn import_error(&self, error: &ImportError) -> String;
    /// The name of a tensor in an opened cell.
    fn tensor<'a>(&self, key: &'a str) -> Cow<'a, str>;
    /// What a symbol of the formulas stands for; empty for one without words.
    fn symbol<'a>(&self, symbol: &'a str) -> &'a str;
    /// A label of the page.
    fn label(&self, label: Label) -> &'static str;
    /// A term.
    fn term(&self, term: Term) -> &'static str;
    /// What a term means, in one sentence.
    fn definition(&self, term: Term) -> &'static str;
    /// A sentence with figures.
    fn say(&self, msg: &Msg<'_>) -> String;
    /// A list inside a sentence: `a, b and c`.
    fn list(&self, items: &[&str]) -> String;
}

/// An issue as one line: `recipe.micro_batch: 0 is outside 1 to 65 536`.
#[must_use]
pub fn issue_line(text: &dyn Catalogue, issue: &Issue) -> String {
    let said = text.issue(&issue.kind);
    if issue.field.is_empty() { said } else { format!("{}: {said}", issue.field) }
}

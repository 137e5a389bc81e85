//! Everything a person reads, on the page and in the terminal: one catalogue per language.
//!
//! A language is one type that implements [`Catalogue`]. The trait has no default bodies and its methods take the
//! engine's own enums, so a translation that is missing does not compile, and a new variant in the engine stops every
//! language until it has words. Numbers are formatted by [`crate::units`]; the catalogue puts them into sentences.

mod en;
#[cfg(test)]
mod tests;

use crate::bill::{Instant, Part, ProvenanceKind};
use crate::issue::{Issue, IssueKind};
use crate::recipe::{Attention, Checkpointing, OptimizerImpl, OptimizerName, Precision, SdpaBackend};

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

/// The four tiers of memory that a figure can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TierName {
    /// The tensors' bytes.
    Requested,
    /// What `memory_allocated` shows.
    Allocated,
    /// What the allocator holds from the driver.
    Reserved,
    /// What `nvidia-smi` shows.
    Process,
}

/// What one language says. Every method is one idea; none has a default.
pub trait Catalogue: Sync {
    /// A part of the bill, as a heading: `Optimizer states`.
    fn part(&self, part: Part) -> &'static str;
    /// An instant, as a heading: `Optimizer step`.
    fn instant(&self, instant: Instant) -> &'static str;
    /// An instant inside a sentence, with its preposition: `at the optimizer step`.
    fn at_instant(&self, instant: Instant) -> &'static str;
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
    /// An attention implementation.
    fn attention(&self, attention: Attention) -> &'static str;
    /// A backend of `scaled_dot_product_attention`.
    fn sdpa_backend(&self, backend: SdpaBackend) -> &'static str;
    /// A checkpointing mode.
    fn checkpointing(&self, checkpointing: Checkpointing) -> &'static str;
    /// What is wrong with a field, lower case and without a full stop, to stand after the field's name:
    /// `12 is not divisible by num_key_value_heads = 5`.
    fn issue(&self, kind: &IssueKind) -> String;
    /// A list inside a sentence: `a, b and c`.
    fn list(&self, items: &[&str]) -> String;
}

/// An issue as one line: `recipe.micro_batch: 0 is outside 1 to 65 536`.
#[must_use]
pub fn issue_line(text: &dyn Catalogue, issue: &Issue) -> String {
    let said = text.issue(&issue.kind);
    if issue.field.is_empty() { said } else { format!("{}: {said}", issue.field) }
}

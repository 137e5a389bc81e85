//! What is wrong with an input: one issue per field, all at once, as data. [`crate::text`] turns them into sentences.

use serde::{Deserialize, Serialize};

/// One field and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Issue {
    /// The field's path as the user wrote it: `recipe.micro_batch`, `config.num_attention_heads`.
    pub field: String,
    /// What is wrong.
    pub kind: IssueKind,
}

impl Issue {
    /// An issue about `field`.
    #[must_use]
    pub fn new(field: impl Into<String>, kind: IssueKind) -> Self {
        Self { field: field.into(), kind }
    }
}

/// What can be wrong with a field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum IssueKind {
    /// The field is needed and absent.
    Missing {
        /// What it would have been, such as `a whole number`.
        expected: String,
    },
    /// The field is there but is not the kind of value that is needed.
    NotA {
        /// What was expected.
        expected: String,
        /// What was found, shortened.
        found: String,
    },
    /// A number outside the range that this program handles.
    OutOfRange {
        /// The smallest accepted value.
        min: u64,
        /// The largest accepted value.
        max: u64,
        /// What was found.
        found: String,
    },
    /// A dimension that another one must divide.
    NotDivisible {
        /// The dividend's value.
        value: u64,
        /// The other field.
        by_field: String,
        /// The other field's value.
        by: u64,
    },
    /// The model's architecture is not one that is modelled here.
    UnknownArchitecture {
        /// The name found.
        found: String,
        /// The names that are known.
        known: Vec<String>,
    },
    /// A name that is not in the catalogue.
    UnknownName {
        /// The name found.
        found: String,
        /// Names close to it, nearest first.
        did_you_mean: Vec<String>,
    },
    /// A combination or option that is not modelled: refused instead of guessed.
    NotModelled {
        /// What is not modelled, as a noun phrase.
        what: String,
    },
    /// A hardware rule that the plan breaks.
    NotSupportedByHardware {
        /// What the hardware lacks.
        what: String,
    },
    /// The step's tensors exceed what the arithmetic carries (2⁵³ bytes).
    TooLarge,
}

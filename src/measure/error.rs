//! Why a text could not be read as a measurement.

use serde::{Deserialize, Serialize};

use crate::issue::Issue;

/// Why a text could not be read. Nothing of it was taken over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ImportError {
    /// No known format recognises the text.
    #[error("not a format that is read here; expected {}", expected.join(" or "))]
    NotThisFormat {
        /// What is read here, one phrase a format.
        expected: Vec<String>,
    },
    /// The document's version is newer than this build.
    #[error("the document has version {found}; this program reads versions up to {newest}")]
    TooNew {
        /// The document's version.
        found: u64,
        /// The newest version that is read.
        newest: u32,
    },
    /// The text is longer than the limit.
    #[error("the text has {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// The text's length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The text is a known format up to a place where it is not.
    #[error("line {line}, column {column}: {message}")]
    Malformed {
        /// Line, from 1.
        line: u64,
        /// Column, from 1; 0 when the line alone is known.
        column: u64,
        /// What is wrong there.
        message: String,
    },
    /// It is known what the text is, and that is not read.
    #[error("this is {what}")]
    NotRead {
        /// What it is, and what reads it.
        what: String,
    },
    /// Fields that are missing or wrong, all at once.
    #[error("fields that cannot be used: {}", .0.iter().map(|issue| issue.field.as_str()).collect::<Vec<_>>().join(", "))]
    Fields(Vec<Issue>),
}

//! A run that fits at its first step and fails at its thousandth: training loops over batches of many lengths, each
//! step walked at its own length, and all of them replayed on one allocator.
//!
//! ```text
//! lengths ─► batches ─► a walk per distinct length, cut where steps join ─► one allocator ─► reserved, step by step
//! ```

mod compare;
mod draw;
mod piece;
mod run;
mod study;

pub use compare::{ADVICE, Comparison, End, Outcome, Setting};
#[cfg(test)]
pub(crate) use draw::Random;
pub use draw::steps;
pub use run::{Program, Run, StepFigures, Walks};
pub use study::{Card, Finding, Row, SHOWN, Study};

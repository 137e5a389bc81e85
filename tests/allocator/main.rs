//! The allocator against recorded answers, against a second implementation, and against its own laws.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests read their data files")]

mod data;
mod differential;
mod driver;
mod hostile;
mod laws;
mod rules;
mod scripts;
mod traces;
mod vectors;

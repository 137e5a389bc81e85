//! From an estimate to a decision: the verdict, the decision tree, and what to change first.
//!
//! The rules are the source articles' (A7, A8, A11); their thresholds are [`crate::plan::Policy`], data that the user
//! can change. A verdict is *fits* only when every quantity that it rests on is known.

mod advice;
mod caveat;
mod decision;
pub mod remedy;
pub mod search;
#[cfg(test)]
mod tests;
mod tree;
mod verdict;

pub use advice::{Advice, Declined, Outcome, Way};
pub use caveat::Caveat;
pub(crate) use decision::work_of;
pub use decision::{Candidate, Decision, Deliberation, Walk, advise, advise_with, decide, decide_with, quick};
pub use remedy::{Effect, PricedRemedy, RemedyId};
pub use tree::{Figure, Piece, Question, Status, TreeStep};
pub(crate) use verdict::share_of;
pub use verdict::{Fact, Numbers, Reason, Verdict, VerdictKind, judge};

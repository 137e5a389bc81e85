//! Where work is that the worker does for the inputs.

use std::rc::Rc;

use crate::plan::Plan;
use crate::view::compare::CompareTable;
use crate::view::lengths::LengthsTable;
use crate::view::ranks::RankTable;
use crate::view::search::SearchTable;
use crate::view::{Found, State};

/// What the worker can be asked to do for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// A run over sequences of many lengths.
    Lengths,
    /// A search among the plans around it.
    Search,
    /// A walk of every rank.
    Ranks,
    /// Configurations side by side.
    Compare,
}

impl Errand {
    /// What stands before what is sent to the worker.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Lengths => "lengths ",
            Self::Search => "search ",
            Self::Ranks => "ranks ",
            Self::Compare => "compare ",
        }
    }

    /// What is sent to the worker: the inputs, of a comparison with what stands beside them. `None`: they are wrong.
    #[must_use]
    pub fn document(self, state: &State) -> Option<String> {
        let asked = match self {
            Self::Compare => serde_json::to_string(&state.configurations()?),
            _ => serde_json::to_string(&state.draft.plan().ok()?),
        };
        Some(format!("{}{}", self.word(), asked.ok()?))
    }

    /// What is asked, and the text about what.
    #[must_use]
    pub fn read(text: &str) -> Option<(Self, &str)> {
        [Self::Lengths, Self::Search, Self::Ranks, Self::Compare]
            .into_iter()
            .find_map(|errand| Some((errand, text.strip_prefix(errand.word())?)))
    }
}

/// Where each of them is: the worker does one at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errands {
    /// A run over sequences of many lengths.
    pub lengths: Run<LengthsTable>,
    /// A search among the plans around the inputs.
    pub search: Run<SearchTable>,
    /// A walk of every rank.
    pub ranks: Run<RankTable>,
    /// Configurations side by side.
    pub compared: Run<CompareTable>,
}

impl Errands {
    /// Begins one for `plan`; what another one was doing stops.
    pub(super) fn begin(&mut self, errand: Errand, plan: Plan) {
        self.stop();
        let plan = Rc::new(plan);
        match errand {
            Errand::Lengths => self.lengths = Run::begun(plan),
            Errand::Search => self.search = Run::begun(plan),
            Errand::Ranks => self.ranks = Run::begun(plan),
            Errand::Compare => self.compared = Run::begun(plan),
        }
    }

    /// Stops what goes on. True where something did.
    pub(super) fn stop(&mut self) -> bool {
        self.lengths.stop() | self.search.stop() | self.ranks.stop() | self.compared.stop()
    }

    /// Takes how far the one that goes on is. True where one does.
    pub(super) fn so_far(&mut self, read: u64, of: Option<u64>) -> bool {
        self.lengths.so_far(read, of)
            | self.search.so_far(read, of)
            | self.ranks.so_far(read, of)
            | self.compared.so_far(read, of)
    }

    /// Takes what was found so far.
    pub(super) fn take_some(&mut self, found: Found) {
        if let (Found::Search(found), Run::Going { table, .. }) = (found, &mut self.search) {
            *table = Some(Rc::new(*found));
        }
    }

    /// Takes what was found; gives back what is no errand's.
    pub(super) fn take(&mut self, found: Found) -> Option<Found> {
        match found {
            Found::Lengths(table) => self.lengths.take(*table),
            Found::Search(table) => self.search.take(*table),
            Found::Ranks(table) => self.ranks.take(*table),
            Found::Compared(table) => self.compared.take(*table),
            other => return Some(other),
        }
        None
    }
}

/// Where the work is.
#[derive(Clone, Debug, Default)]
pub enum Run<T> {
    /// None was asked for.
    #[default]
    None,
    /// It is being worked out.
    Going {
        /// For these inputs.
        plan: Rc<Plan>,
        /// How many pieces are done.
        done: u64,
        /// Of how many; zero: not known yet.
        total: u64,
        /// What was found so far.
        table: Option<Rc<T>>,
    },
    /// It is there.
    Done {
        /// For these inputs.
        plan: Rc<Plan>,
        /// What was found.
        table: Rc<T>,
    },
}

/// Two are the same when they are one: comparing what was found would cost more than drawing it.
impl<T> PartialEq for Run<T> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Going { plan, done, total, table }, Self::Going { plan: other, done: d, total: t, table: some }) => {
                let one = table.as_ref().map(Rc::as_ptr) == some.as_ref().map(Rc::as_ptr);
                Rc::ptr_eq(plan, other) && (done, total) == (d, t) && one
            }
            (Self::Done { table, .. }, Self::Done { table: other, .. }) => Rc::ptr_eq(table, other),
            _ => false,
        }
    }
}

impl<T> Run<T> {
    const fn begun(plan: Rc<Plan>) -> Self {
        Self::Going { plan, done: 0, total: 0, table: None }
    }

    /// How far it is, and of how much; zero: not known.
    #[must_use]
    pub const fn progress(&self) -> (u64, u64) {
        if let Self::Going { done, total, .. } = self { (*done, *total) } else { (0, 0) }
    }

    /// Takes how far it is. True where it goes on.
    fn so_far(&mut self, read: u64, of: Option<u64>) -> bool {
        let Self::Going { done, total, .. } = self else { return false };
        (*done, *total) = (read, of.unwrap_or_default());
        true
    }

    /// Takes what was found; what comes after it was stopped is not wanted.
    fn take(&mut self, found: T) {
        if let Self::Going { plan, .. } = self {
            *self = Self::Done { plan: Rc::clone(plan), table: Rc::new(found) };
        }
    }

    /// No longer goes on. True where it did.
    fn stop(&mut self) -> bool {
        let going = matches!(self, Self::Going { .. });
        if going {
            *self = Self::None;
        }
        going
    }
}

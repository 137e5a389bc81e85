//! Where work is that the worker does for the inputs.

use std::rc::Rc;

use crate::plan::Plan;

/// Where the work is.
#[derive(Clone, Debug)]
pub enum Run<T> {
    /// None was asked for.
    None,
    /// It is being worked out.
    Going {
        /// For these inputs.
        plan: Rc<Plan>,
        /// How many pieces are done.
        done: u64,
        /// Of how many; zero: not known yet.
        total: u64,
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
            (Self::Going { plan, done, total }, Self::Going { plan: other, done: d, total: t }) => {
                Rc::ptr_eq(plan, other) && (done, total) == (d, t)
            }
            (Self::Done { table, .. }, Self::Done { table: other, .. }) => Rc::ptr_eq(table, other),
            _ => false,
        }
    }
}

impl<T> Run<T> {
    /// Whether it is being worked out.
    #[must_use]
    pub const fn is_going(&self) -> bool {
        matches!(self, Self::Going { .. })
    }

    /// Takes how far it is.
    pub(super) fn so_far(&mut self, read: u64, of: Option<u64>) {
        if let Self::Going { done, total, .. } = self {
            (*done, *total) = (read, of.unwrap_or_default());
        }
    }

    /// Takes what was found; what comes after it was stopped is not wanted.
    pub(super) fn take(&mut self, found: T) {
        if let Self::Going { plan, .. } = self {
            *self = Self::Done { plan: Rc::clone(plan), table: Rc::new(found) };
        }
    }

    /// No longer goes on.
    pub(super) fn stop(&mut self) {
        if self.is_going() {
            *self = Self::None;
        }
    }
}

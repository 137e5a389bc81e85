//! The state as Yew shares it: one reducer, in a context.

use std::rc::Rc;

use vram_budget::text::{Catalogue, Locale, ReportCatalogue};
use vram_budget::view::{Action, State};
use yew::prelude::*;

/// The state in Yew's reducer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Store(pub(crate) Rc<State>);

impl Reducible for Store {
    type Action = Action;

    fn reduce(self: Rc<Self>, action: Action) -> Rc<Self> {
        let next = self.0.reduce(action);
        if Rc::ptr_eq(&next, &self.0) {
            return self;
        }
        // Where the next rendering panics, this is what the panel offers.
        crate::platform::remember(&next);
        Rc::new(Self(next))
    }
}

/// The state, and a way to change it.
pub(crate) type Handle = UseReducerHandle<Store>;

/// What components ask of the store.
pub(crate) trait Ask {
    /// The words of the page's language.
    fn text(&self) -> &'static dyn Catalogue;
    /// Its words for what was measured.
    fn report(&self) -> &'static dyn ReportCatalogue;
    /// A callback that dispatches what `action` makes of an event.
    fn on<E: 'static>(&self, action: impl Fn(E) -> Action + 'static) -> Callback<E>;
}

impl Ask for Handle {
    fn text(&self) -> &'static dyn Catalogue {
        Locale::En.text()
    }

    fn report(&self) -> &'static dyn ReportCatalogue {
        Locale::En.report()
    }

    fn on<E: 'static>(&self, action: impl Fn(E) -> Action + 'static) -> Callback<E> {
        let dispatcher = self.dispatcher();
        Callback::from(move |event| dispatcher.dispatch(action(event)))
    }
}

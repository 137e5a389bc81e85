//! The state as Yew shares it: one reducer, in a context.

use std::rc::Rc;

use vram_budget::text::{Catalogue, Locale, ReportCatalogue};
use vram_budget::view::{Action, State};
use yew::prelude::*;

/// The state in Yew's reducer.
pub(crate) struct Store(Rc<State>);

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

/// What changes the state.
pub(crate) type Dispatcher = UseReducerDispatcher<Store>;

/// A state to draw, and a way to change it. Yew's own handle would always show the newest state.
#[derive(Clone)]
pub(crate) struct Handle(pub(crate) Rc<State>, Dispatcher);

/// A change makes a new state: two handles show the same where theirs is one.
impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// The state that begins as `start`.
#[hook]
pub(crate) fn use_store(start: Rc<State>) -> Handle {
    let store = use_reducer(|| Store(start));
    Handle(Rc::clone(&store.0), store.dispatcher())
}

impl Handle {
    /// The words of the page's language.
    pub(crate) fn text(&self) -> &'static dyn Catalogue {
        Locale::En.text()
    }

    /// Its words for what was measured.
    pub(crate) fn report(&self) -> &'static dyn ReportCatalogue {
        Locale::En.report()
    }

    /// What changes the state.
    pub(crate) fn dispatcher(&self) -> Dispatcher {
        self.1.clone()
    }

    /// A callback that dispatches what `action` makes of an event.
    pub(crate) fn on<E: 'static>(&self, action: impl Fn(E) -> Action + 'static) -> Callback<E> {
        let dispatcher = self.dispatcher();
        Callback::from(move |event| dispatcher.dispatch(action(event)))
    }
}

//! The program in a worker, where it reads long files, replays long runs and works out what explains a measurement: `boot.js`
//! hands it bytes, plans and questions in events of the worker.

use std::cell::RefCell;

use gloo::events::EventListener;
use js_sys::Uint8Array;
use vram_budget::estimate::RankWalk;
use vram_budget::fragmentation::Study;
use vram_budget::plan::Plan;
use vram_budget::text::Locale;
use vram_budget::view::compare::Comparing;
use vram_budget::view::lengths::LengthsTable;
use vram_budget::view::ranks::{RankTable, walking};
use vram_budget::view::run::Errand;
use vram_budget::view::search::{SearchTable, Searching};
use vram_budget::view::study::Study as Answering;
use vram_budget::view::{Found, Incoming};
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{CustomEvent, CustomEventInit, EventTarget};

thread_local! {
    static INCOMING: RefCell<Incoming> = RefCell::default();
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
    static ASKED: RefCell<Option<Answering>> = const { RefCell::new(None) };
}

/// How many events of a replay are looked at between two looks at the clock.
const SLICE_EVENTS: usize = 4000;

/// What is asked of the worker for a plan, in hand.
enum Work {
    Lengths(Box<Study>),
    Search(Box<Searching>),
    Ranks(Box<(Plan, RankWalk)>),
    Compare(Box<Comparing>),
}

impl Work {
    /// It, not begun; what is refused.
    fn of(text: &str) -> Option<Result<Self, Found>> {
        let (errand, about) = Errand::read(text)?;
        if errand == Errand::Compare {
            return Comparing::read(about).map(|of| Ok(Self::Compare(Box::new(of))));
        }
        let plan: Plan = serde_json::from_str(about).ok()?;
        Some(match errand {
            Errand::Search => Searching::of(&plan)
                .map(|of| Self::Search(Box::new(of)))
                .map_err(|issues| Found::Search(Box::new(SearchTable::refused(&issues, Locale::En)))),
            Errand::Lengths => Study::new(&plan)
                .map(|of| Self::Lengths(Box::new(of)))
                .map_err(|issues| Found::Lengths(Box::new(LengthsTable::refused(&issues, Locale::En)))),
            Errand::Ranks | Errand::Compare => walking(&plan, Locale::En)
                .map(|of| Self::Ranks(Box::new((plan, of))))
                .map_err(|table| Found::Ranks(Box::new(table))),
        })
    }

    /// Goes on by a piece; what was found, once nothing is left.
    fn advance(&mut self) -> Option<Found> {
        match self {
            Self::Lengths(study) => match study.advance() {
                Ok(false) => None,
                Ok(true) => Some(Found::Lengths(Box::new(LengthsTable::of(study, Locale::En)))),
                Err(issues) => Some(Found::Lengths(Box::new(LengthsTable::refused(&issues, Locale::En)))),
            },
            Self::Search(search) => {
                search.advance(SLICE_EVENTS).then(|| Found::Search(Box::new(search.table(Locale::En))))
            }
            Self::Compare(all) => all.advance().then(|| Found::Compared(Box::new(all.table(Locale::En)))),
            Self::Ranks(of) => match of.1.advance() {
                Ok(false) => None,
                Ok(true) => Some(Found::Ranks(Box::new(RankTable::of(&of.0, of.1.ranks(), Locale::En)))),
                Err(issues) => Some(Found::Ranks(Box::new(RankTable::refused(&issues, Locale::En)))),
            },
        }
    }

    /// What was found since this was asked last.
    fn news(&mut self) -> Option<Found> {
        let Self::Search(search) = self else { return None };
        search.news(Locale::En).map(|table| Found::Search(Box::new(table)))
    }

    fn progress(&self) -> (usize, usize) {
        match self {
            Self::Lengths(study) => study.progress(),
            Self::Search(search) => search.progress(),
            Self::Ranks(of) => of.1.progress(),
            Self::Compare(all) => all.progress(),
        }
    }
}

/// How long the worker works before it looks whether that is still wanted, in ms.
const SLICE_MS: f64 = 100.0;

/// Takes pieces, and says what was found when they have ended.
pub(crate) fn listen() {
    let worker: EventTarget = js_sys::global().unchecked_into();
    let piece = EventListener::new(&worker, "vram-budget:piece", |event| {
        if let Some(event) = event.dyn_ref::<CustomEvent>() {
            let bytes = Uint8Array::new(&event.detail()).to_vec();
            INCOMING.with_borrow_mut(|incoming| incoming.push(&bytes));
        }
    });
    let end = EventListener::new(&worker, "vram-budget:end", |_| {
        say(&INCOMING.take().finish(Locale::En));
    });
    // A plan for which something is to be worked out; an empty text: nothing any more.
    let run = EventListener::new(&worker, "vram-budget:run", |event| {
        let Some(text) = event.dyn_ref::<CustomEvent>().and_then(|event| event.detail().as_string()) else { return };
        WORK.set(None);
        match Work::of(&text) {
            Some(Ok(work)) => WORK.set(Some(work)),
            Some(Err(refused)) => say(&refused),
            None => {}
        }
    });
    let more = EventListener::new(&worker, "vram-budget:more", |_| more());
    let question = EventListener::new(&worker, "vram-budget:question", |event| {
        let text = event.dyn_ref::<CustomEvent>().and_then(|event| event.detail().as_string());
        ASKED.set(text.and_then(|text| Answering::read(&text)));
    });
    // One plan after the other, so that another question can come in between.
    let walk = EventListener::new(&worker, "vram-budget:walk", |_| {
        let mut study = ASKED.take();
        if study.as_mut().is_some_and(|study| !study.advance()) {
            return ASKED.set(study);
        }
        // What is no question has no answer, and that is said too.
        let answered = study.map(|study| study.found(Locale::En));
        if let Ok(answered) = serde_json::to_string(&answered) {
            tell(&js_sys::global().unchecked_into(), "vram-budget:answered", &answered.into());
        }
    });
    for listener in [piece, end, run, more, question, walk] {
        listener.forget();
    }
}

/// Goes on with the work for a while, and says how far it is or what was found.
fn more() {
    let start = js_sys::Date::now();
    while let Some(mut work) = WORK.take() {
        if let Some(found) = work.advance() {
            return say(&found);
        }
        if js_sys::Date::now() - start <= SLICE_MS {
            WORK.set(Some(work));
        } else {
            let (done, total) = work.progress();
            let some = work.news().and_then(|found| serde_json::to_string(&found).ok());
            WORK.set(Some(work));
            let some = some.map_or(JsValue::UNDEFINED, JsValue::from);
            let detail = js_sys::Array::of3(&done.to_string().into(), &total.to_string().into(), &some);
            return tell(&js_sys::global().unchecked_into(), "vram-budget:so-far", &detail);
        }
    }
}

fn say(found: &Found) {
    if let Ok(found) = serde_json::to_string(found) {
        tell(&js_sys::global().unchecked_into(), "vram-budget:found", &found.into());
    }
}

/// Sends an event.
pub(crate) fn tell(to: &EventTarget, name: &str, detail: &JsValue) {
    let init = CustomEventInit::new();
    init.set_detail(detail);
    if let Ok(event) = CustomEvent::new_with_event_init_dict(name, &init) {
        let _ = to.dispatch_event(&event);
    }
}

//! The program in a worker, where it reads long files, replays long runs and works out what explains a measurement: `boot.js`
//! hands it bytes, plans and questions in events of the worker.

use std::cell::RefCell;

use gloo::events::EventListener;
use js_sys::Uint8Array;
use vram_budget::fragmentation::Study;
use vram_budget::plan::Plan;
use vram_budget::text::Locale;
use vram_budget::view::lengths::LengthsTable;
use vram_budget::view::study::Study as Answering;
use vram_budget::view::{Found, Incoming};
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{CustomEvent, CustomEventInit, EventTarget};

thread_local! {
    static INCOMING: RefCell<Incoming> = RefCell::default();
    static STUDY: RefCell<Option<Study>> = const { RefCell::new(None) };
    static ASKED: RefCell<Option<Answering>> = const { RefCell::new(None) };
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
    // A plan whose run over many lengths is to be worked out; an empty text: none any more.
    let run = EventListener::new(&worker, "vram-budget:run", |event| {
        let Some(text) = event.dyn_ref::<CustomEvent>().and_then(|event| event.detail().as_string()) else { return };
        STUDY.set(None);
        let Ok(plan) = serde_json::from_str::<Plan>(&text) else { return };
        match Study::new(&plan) {
            Ok(study) => STUDY.set(Some(study)),
            Err(issues) => say(&Found::Lengths(Box::new(LengthsTable::refused(&issues, Locale::En)))),
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

/// Goes on with the run for a while, and says how far it is or what was found.
fn more() {
    let start = js_sys::Date::now();
    while let Some(mut study) = STUDY.take() {
        match study.advance() {
            Ok(true) => return say(&Found::Lengths(Box::new(LengthsTable::of(&study, Locale::En)))),
            Err(issues) => return say(&Found::Lengths(Box::new(LengthsTable::refused(&issues, Locale::En)))),
            Ok(false) => {}
        }
        let (done, total) = study.progress();
        STUDY.set(Some(study));
        if js_sys::Date::now() - start > SLICE_MS {
            let detail = js_sys::Array::of2(&done.to_string().into(), &total.to_string().into());
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

//! The program in a worker, where it reads long files: `boot.js` hands it their bytes in events of the worker.

use std::cell::RefCell;

use gloo::events::EventListener;
use js_sys::Uint8Array;
use vram_budget::text::Locale;
use vram_budget::view::Incoming;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{CustomEvent, CustomEventInit, EventTarget};

thread_local! {
    static INCOMING: RefCell<Incoming> = RefCell::default();
}

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
        let found = INCOMING.take().finish(Locale::En);
        if let Ok(found) = serde_json::to_string(&found) {
            tell(&js_sys::global().unchecked_into(), "vram-budget:found", &found.into());
        }
    });
    piece.forget();
    end.forget();
}

/// Sends an event.
pub(crate) fn tell(to: &EventTarget, name: &str, detail: &JsValue) {
    let init = CustomEventInit::new();
    init.set_detail(detail);
    if let Ok(event) = CustomEvent::new_with_event_init_dict(name, &init) {
        let _ = to.dispatch_event(&event);
    }
}

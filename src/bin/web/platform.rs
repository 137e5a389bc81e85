//! The browser: the URL, the clipboard, files, storage, focus. Nothing else in the page touches the window.
//!
//! What is a hook does its work in effects and callbacks, which do not run where the page is rendered natively.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gloo::events::{EventListener, EventListenerOptions};
use gloo::file::callbacks::FileReader;
use gloo::timers::callback::Timeout;
use gloo::utils::{document, window};
use js_sys::JsString;
use vram_budget::units::Bytes;
use vram_budget::view::run::Errand;
use vram_budget::view::{
    Action, MAX_CLIPBOARD, MAX_FILE, MAX_READ, Notice, Outcome, Reading, Shown, State, Theme, example, link,
};
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{Blob, ClipboardEvent, CustomEvent, DataTransfer, DragEvent, Element, HtmlElement, HtmlInputElement};
use yew::prelude::*;

use crate::store::{Dispatcher, Handle};
use crate::worker::tell;

/// How long the inputs rest before the URL follows, and before the live region speaks, in ms.
const URL_REST: u32 = 300;
const LIVE_REST: u32 = 900;
/// How long before the answer is refined, in ms: the frame with the quick one is drawn first.
const DRAW_REST: u32 = 20;
/// How long the walk below the inputs waits for the refined answer, in ms, before it shows the quick one.
const FOLLOW_REST: u32 = 100;
/// How long a slice of work takes, in ms, and how many events of a replay are looked at between two looks at the clock.
const SLICE_MS: f64 = 8.0;
const SLICE_EVENTS: usize = 4000;
/// How long before the remedies are priced, in ms: longer than the pause between two keystrokes.
const PRICE_REST: u32 = 200;
/// How long the inputs rest before it is asked what explains a measurement, in ms.
const ASK_REST: u32 = 400;
const THEME_KEY: &str = "vram-budget.theme";

thread_local! {
    /// The last answer, whose inputs are in the link of the panel that a panic shows.
    static LAST: RefCell<Option<Shown>> = const { RefCell::new(None) };
    /// Files that are being read: dropping a reader would stop it.
    static READING: RefCell<Vec<FileReader>> = const { RefCell::new(Vec::new()) };
}

/// The URL's fragment, with its `#`.
pub(crate) fn fragment() -> String {
    window().location().hash().unwrap_or_default()
}

/// The measurement that the page was written with.
#[cfg(target_arch = "wasm32")]
pub(crate) fn measurement() -> Option<String> {
    document().get_element_by_id("measurement")?.text_content()
}

/// The stored colours.
pub(crate) fn stored_theme() -> Theme {
    let stored = window().local_storage().ok().flatten().and_then(|storage| storage.get_item(THEME_KEY).ok().flatten());
    Theme::from_name(&stored.unwrap_or_default())
}

/// Tells the boot script that the program runs.
pub(crate) fn say_started() {
    if let Ok(event) = web_sys::Event::new("vram-budget:started") {
        let _ = window().dispatch_event(&event);
    }
}

/// Keeps what a panic's panel offers. Does nothing natively, where there is no panel.
pub(crate) fn remember(state: &State) {
    if cfg!(target_arch = "wasm32") {
        LAST.set(state.outcome.shown.clone());
    }
}

/// From now on a panic shows the panel of `index.html` with a link that holds the last inputs. After a panic nothing of
/// the program may run again, so the page is made inert.
#[cfg(target_arch = "wasm32")]
pub(crate) fn keep_input_on_panic() {
    // Yew would set its own hook over one that it does not know of.
    yew::set_custom_panic_hook(Box::new(|info| {
        let message = info.to_string();
        gloo::console::error!(&message);
        let document = document();
        let by_id = |id: &str| document.get_element_by_id(id);
        let last = LAST.try_with(|last| last.try_borrow().map(|last| last.clone()).unwrap_or_default());
        let last = last.ok().flatten().and_then(|shown| link::encode(shown.plan()));
        let fragment = last.map_or_else(self::fragment, |f| format!("#{f}"));
        let href = window().location().href().unwrap_or_default();
        let page = href.split('#').next().unwrap_or_default();
        let link = format!("{page}{fragment}");
        for (id, text) in [("panic-link", &link), ("panic-message", &message)] {
            if let Some(area) = by_id(id) {
                area.set_text_content(Some(text));
            }
        }
        if let Some(again) = by_id("panic-again") {
            let _ = again.set_attribute("href", &link);
            // A link that differs in its fragment alone would not load the page again.
            let _ = again.set_attribute("target", "_blank");
        }
        if let Some(app) = by_id("app") {
            let _ = app.set_attribute("inert", "");
        }
        if let Some(panel) = by_id("panic") {
            let _ = panel.remove_attribute("hidden");
            panel.scroll_into_view();
        }
    }));
}

/// Opens whatever hides the element, scrolls to it, and moves the focus to it or to its heading.
pub(crate) fn go_to(id: &str) {
    let Some(element) = document().get_element_by_id(id) else { return };
    let mut around = element.parent_element();
    while let Some(outer) = around {
        if outer.tag_name().eq_ignore_ascii_case("details") {
            let _ = outer.set_attribute("open", "");
        }
        around = outer.parent_element();
    }
    element.scroll_into_view();
    let heading = element.query_selector("h2[tabindex]").ok().flatten();
    if let Some(target) = heading.unwrap_or(element).dyn_ref::<HtmlElement>() {
        let options = web_sys::FocusOptions::new();
        options.set_prevent_scroll(true);
        let _ = target.focus_with_options(&options);
    }
}

/// Copies the link to the inputs, and says how it went.
pub(crate) fn copy_link(store: &Handle) {
    let href = window().location().href().unwrap_or_default();
    let page = href.split('#').next().unwrap_or_default().to_owned();
    let link = store.0.fragment().map_or(page.clone(), |fragment| format!("{page}#{fragment}"));
    let dispatcher = store.dispatcher();
    wasm_bindgen_futures::spawn_local(async move {
        // Without a secure context, as from file://, there is no clipboard at all.
        let clipboard = js_sys::Reflect::get(&window().navigator(), &"clipboard".into()).ok();
        let copied = match clipboard.filter(|c| !c.is_undefined()) {
            Some(clipboard) => {
                let promise = clipboard.unchecked_into::<web_sys::Clipboard>().write_text(&link);
                wasm_bindgen_futures::JsFuture::from(promise).await.is_ok()
            }
            None => false,
        };
        dispatcher.dispatch(Action::Notice(Some(if copied { Notice::Copied } else { Notice::CopyFailed })));
    });
}

/// Keeps the URL's fragment at the inputs, and the inputs at a fragment that is opened.
#[hook]
pub(crate) fn use_fragment(store: &Handle) {
    // The answer stands for its plan: to spell that out at every keystroke would cost more than to draw it.
    use_effect_with(store.0.outcome.shown.clone(), |shown| {
        let over = Rc::new(Cell::new(false));
        if let Some(shown) = shown.clone() {
            let over = Rc::clone(&over);
            later(URL_REST, move || {
                if !over.get() {
                    follow(&shown);
                }
            });
        }
        move || over.set(true)
    });
    let dispatcher = store.dispatcher();
    use_effect_with((), move |()| {
        let listener = EventListener::new(&window(), "hashchange", move |_| {
            dispatcher.dispatch(Action::Link(fragment()));
        });
        move || drop(listener)
    });
}

/// Takes the URL's fragment to the inputs of the answer.
fn follow(shown: &Shown) {
    let Some(wanted) = link::encode(shown.plan()) else { return };
    let now = fragment();
    // The example is what the bare address shows: no need to spell it out.
    let bare = now.is_empty() && link::encode(&example()).as_ref() == Some(&wanted);
    if now.strip_prefix('#') != Some(&wanted) && !bare {
        let url = format!("#{wanted}");
        let history = window().history();
        let _ = history.and_then(|h| h.replace_state_with_url(&JsValue::NULL, "", Some(&url)));
    }
}

/// Sets and stores the colours.
#[hook]
pub(crate) fn use_theme(store: &Handle) {
    use_effect_with(store.0.theme, |theme| {
        if let Some(root) = document().document_element() {
            let _ = match theme {
                Theme::System => root.remove_attribute("data-theme"),
                Theme::Light | Theme::Dark => root.set_attribute("data-theme", theme.name()),
            };
        }
        if let Ok(Some(storage)) = window().local_storage() {
            let _ = storage.set_item(THEME_KEY, theme.name());
        }
    });
}

/// Keeps the page's title at the answer.
#[hook]
pub(crate) fn use_title(title: Option<String>) {
    use_effect_with(title, |title| {
        if let Some(title) = title {
            document().set_title(title);
        }
    });
}

/// Refines the answer once it is drawn, and prices its remedies once the inputs rest: in slices, so that the page draws
/// and listens in between.
#[hook]
pub(crate) fn use_work(store: &Handle) {
    let dispatcher = store.dispatcher();
    let outcome = store.0.outcome.clone();
    use_effect_with(outcome.shown.clone(), move |_| {
        let done = Rc::new(Cell::new(false));
        if outcome.fresh {
            let (over, dispatcher) = (Rc::clone(&done), dispatcher.clone());
            later(FOLLOW_REST, move || {
                if !over.get() {
                    dispatcher.dispatch(Action::Follow);
                }
            });
        }
        if outcome.work.is_some() {
            let (rest, done) = (if outcome.is_refining() { DRAW_REST } else { PRICE_REST }, Rc::clone(&done));
            later(rest, move || slice(outcome, done, dispatcher));
        }
        move || done.set(true)
    });
}

/// Works for a slice, and goes on with the next one later, until there is a result to take or `over` is set.
fn slice(outcome: Outcome, over: Rc<Cell<bool>>, dispatcher: Dispatcher) {
    let start = js_sys::Date::now();
    while !over.get() {
        if outcome.work_ahead(SLICE_EVENTS) {
            dispatcher.dispatch(Action::Work);
            return;
        }
        if js_sys::Date::now() - start >= SLICE_MS {
            later(0, move || slice(outcome, over, dispatcher));
            return;
        }
    }
}

/// Runs `what` after `ms`; at the start the wait begins once the whole program is there, of which the boot script
/// fetches a half after the first answer is drawn.
fn later(ms: u32, what: impl FnOnce() + 'static) {
    let wait = move || {
        Timeout::new(ms, what).forget();
    };
    if document().document_element().is_some_and(|root| root.has_attribute("data-partial")) {
        EventListener::once(&window(), "vram-budget:whole", move |_| wait()).forget();
    } else {
        wait();
    }
}

/// Has the boot script's worker work out what is asked about the measurement, once the inputs rest.
#[hook]
pub(crate) fn use_answers(store: &Handle) {
    use_effect_with(store.0.measured.asked.clone(), |asked| {
        let over = Rc::new(Cell::new(false));
        let is_asked = asked.is_some();
        if let Some(asked) = asked.clone() {
            let (rest, over) = (if asked.is_fit() { 0 } else { ASK_REST }, Rc::clone(&over));
            later(rest, move || {
                if let Some(document) = asked.document().filter(|_| !over.get()) {
                    tell(&window(), "vram-budget:ask", &document.into());
                }
            });
        }
        move || {
            over.set(true);
            if is_asked {
                tell(&window(), "vram-budget:ask", &JsValue::NULL);
            }
        }
    });
}

/// `text` once it has rested, so that a live region does not speak at every keystroke. Nothing at first: what a page
/// shows when it opens is read anyway.
#[hook]
pub(crate) fn use_settled(text: String) -> String {
    let said = use_state(String::new);
    let first = use_mut_ref(|| true);
    {
        let said = said.clone();
        use_effect_with(text, move |text| {
            let timer = (!first.replace(false)).then(|| {
                let text = text.clone();
                Timeout::new(LIVE_REST, move || said.set(text))
            });
            move || drop(timer)
        });
    }
    (*said).clone()
}

/// Takes what is pasted outside of fields and what is dropped anywhere. Says whether something is dragged over the page.
#[hook]
pub(crate) fn use_intake(store: &Handle) -> bool {
    let dragging = use_state(|| false);
    let store = store.clone();
    let over = dragging.clone();
    use_effect_with((), move |()| {
        let dispatcher = store.dispatcher();
        let paste = {
            let dispatcher = dispatcher.clone();
            let active = EventListenerOptions::enable_prevent_default();
            EventListener::new_with_options(&document(), "paste", active, move |event| {
                let Some(event) = event.dyn_ref::<ClipboardEvent>() else { return };
                let Some(data) = event.clipboard_data() else { return };
                if in_text_field(event) {
                    // No field holds a long text; the box for measurements reads it.
                    let text = text_of(&data).filter(|text| in_box(event) && text.length() as usize > MAX_READ);
                    if let Some(text) = text {
                        event.prevent_default();
                        paste(text, &dispatcher);
                    }
                } else if let Some(files) = data.files().filter(|files| files.length() > 0) {
                    read_all(&files, &dispatcher);
                } else if let Some(text) = text_of(&data) {
                    paste(text, &dispatcher);
                }
            })
        };
        let heard = {
            let dispatcher = dispatcher.clone();
            EventListener::new(&window(), "vram-budget:heard", move |event| {
                if let Some(event) = event.dyn_ref::<CustomEvent>() {
                    heard(&event.detail(), &dispatcher);
                }
            })
        };
        let active = EventListenerOptions::enable_prevent_default();
        let dragover = {
            let over = over.clone();
            EventListener::new_with_options(&document(), "dragover", active, move |event| {
                event.prevent_default();
                over.set(true);
            })
        };
        let dragleave = {
            let over = over.clone();
            EventListener::new(&document(), "dragleave", move |event| {
                // Leaving an element for another one inside the page is not leaving the page.
                if event.dyn_ref::<DragEvent>().is_some_and(|event| event.related_target().is_none()) {
                    over.set(false);
                }
            })
        };
        let drop_ = EventListener::new_with_options(&document(), "drop", active, move |event| {
            event.prevent_default();
            over.set(false);
            let Some(data) = event.dyn_ref::<DragEvent>().and_then(DragEvent::data_transfer) else { return };
            if let Some(files) = data.files().filter(|files| files.length() > 0) {
                read_all(&files, &dispatcher);
            } else if let Some(text) = text_of(&data) {
                self::paste(text, &dispatcher);
            }
        });
        move || drop((paste, dragover, dragleave, drop_, heard))
    });
    *dragging
}

/// Whether an event happens where a person types: there, pasting means the field.
fn in_text_field(event: &web_sys::Event) -> bool {
    event
        .target()
        .and_then(|target| target.dyn_into::<Element>().ok())
        .is_some_and(|element| element.closest("input, textarea, select, [contenteditable]").ok().flatten().is_some())
}

/// Whether an event happens in the box for measurements.
fn in_box(event: &web_sys::Event) -> bool {
    event.target().and_then(|target| target.dyn_into::<Element>().ok()).is_some_and(|element| element.id() == "paste")
}

/// The text that is pasted or dropped, where it is: a long one takes its time to come over.
fn text_of(data: &DataTransfer) -> Option<JsString> {
    let get_data: js_sys::Function = js_sys::Reflect::get(data, &"getData".into()).ok()?.dyn_into().ok()?;
    get_data.call1(data, &"text/plain".into()).ok()?.dyn_into().ok()
}

/// Takes a text that was pasted or dropped.
fn paste(text: JsString, dispatcher: &Dispatcher) {
    if text.length() as usize <= MAX_READ {
        let text = String::from(text);
        if !text.trim().is_empty() {
            dispatcher.dispatch(Action::Paste(text));
        }
    } else if let Ok(blob) = Blob::new_with_str_sequence(&js_sys::Array::of1(&text)) {
        let (file, limit) = (gloo::file::Blob::from(blob.clone()), Bytes(MAX_CLIPBOARD as u64));
        let bytes = Bytes(file.size());
        if bytes > limit {
            dispatcher.dispatch(Action::Notice(Some(Notice::TextTooLarge { bytes, limit })));
        } else {
            read_long(&blob, None, Some(bytes.get()), dispatcher);
        }
    }
}

/// Reads a file as whatever it is, within the limits: a short one here, a long one in the worker.
fn read(file: web_sys::File, dispatcher: Dispatcher) {
    let short = gloo::file::File::from(file.clone());
    let (name, size) = (short.name(), short.size());
    if size > MAX_FILE {
        let notice = Notice::FileTooLarge { name, bytes: Bytes(size), limit: Bytes(MAX_FILE) };
        dispatcher.dispatch(Action::Notice(Some(notice)));
        return;
    }
    if size > MAX_READ as u64 {
        return read_long(&file, Some(name), Some(size), &dispatcher);
    }
    let reader = gloo::file::callbacks::read_as_bytes(&short, move |bytes| match bytes {
        Ok(bytes) if bytes.starts_with(&[0x1f, 0x8b]) => read_long(&file, Some(name), None, &dispatcher),
        Ok(bytes) => dispatcher.dispatch(Action::File(bytes)),
        Err(_) => dispatcher.dispatch(Action::Notice(Some(Notice::FileUnreadable))),
    });
    READING.set(vec![reader]);
}

/// Reads one file as whatever it is; several short ones together, to be compared.
fn read_all(files: &web_sys::FileList, dispatcher: &Dispatcher) {
    let all: Vec<web_sys::File> = (0..files.length()).filter_map(|at| files.get(at)).collect();
    if let [file] = &all[..] {
        return read(file.clone(), dispatcher.clone());
    }
    let all: Vec<gloo::file::File> = all.into_iter().map(gloo::file::File::from).collect();
    if let Some(long) = all.iter().find(|file| file.size() > MAX_READ as u64) {
        let (name, bytes, limit) = (long.name(), Bytes(long.size()), Bytes(MAX_READ as u64));
        dispatcher.dispatch(Action::Notice(Some(Notice::FileTooLarge { name, bytes, limit })));
        return;
    }
    let (count, read) = (all.len(), Rc::new(RefCell::new(Vec::new())));
    let readers = all.into_iter().enumerate().map(|(at, file)| {
        let (name, read, dispatcher) = (file.name(), Rc::clone(&read), dispatcher.clone());
        gloo::file::callbacks::read_as_bytes(&file, move |bytes| {
            read.borrow_mut().push((at, name, bytes.unwrap_or_default()));
            if read.borrow().len() == count {
                // They are read in any order.
                let mut read = read.take();
                read.sort_unstable_by_key(|(at, ..)| *at);
                dispatcher.dispatch(Action::Files(read.into_iter().map(|(_, name, bytes)| (name, bytes)).collect()));
            }
        })
    });
    READING.set(readers.collect());
}

/// Has the boot script's worker read a long file, one at a time.
fn read_long(blob: &Blob, name: Option<String>, total: Option<u64>, dispatcher: &Dispatcher) {
    dispatcher.dispatch(Action::Reading(Some(Reading { name, read: 0, total })));
    tell(&window(), "vram-budget:read", blob);
}

/// Stops reading.
pub(crate) fn stop_reading(store: &Handle) -> Callback<MouseEvent> {
    store.on(|_| {
        tell(&window(), "vram-budget:read", &JsValue::NULL);
        Action::Reading(None)
    })
}

/// Has the worker do something for the inputs, or stops it.
pub(crate) fn run(store: &Handle, errand: Option<Errand>) -> Callback<MouseEvent> {
    let (dispatcher, state) = (store.dispatcher(), Rc::clone(&store.0));
    Callback::from(move |_| {
        let text = errand.and_then(|errand| errand.document(&state));
        dispatcher.dispatch(Action::Run(errand));
        let text = text.map_or(JsValue::NULL, JsValue::from);
        later(0, move || tell(&window(), "vram-budget:read", &text));
    })
}

/// Takes what the worker says: how far it is, what it found, or that it failed.
fn heard(said: &JsValue, dispatcher: &Dispatcher) {
    let get = |key: &str| js_sys::Reflect::get(said, &key.into()).ok().and_then(|value| value.as_string());
    if let Some(read) = get("read").and_then(|read| read.parse().ok()) {
        dispatcher.dispatch(Action::ReadSoFar(read, get("total").and_then(|total| total.parse().ok())));
        if let Some(Ok(found)) = get("some").map(|found| serde_json::from_str(&found)) {
            dispatcher.dispatch(Action::FoundSoFar(Box::new(found)));
        }
    } else if let Some(Ok(found)) = get("found").map(|found| serde_json::from_str(&found)) {
        dispatcher.dispatch(Action::Found(Box::new(found)));
    } else if let Some(Ok(answered)) = get("answered").map(|answered| serde_json::from_str(&answered)) {
        dispatcher.dispatch(Action::Answered(Box::new(answered)));
    } else {
        dispatcher.dispatch(Action::Failed);
    }
}

/// The `id` of the page's hidden file input.
const FILE_ID: &str = "file";

/// Opens the file picker.
pub(crate) fn pick_file() -> Callback<MouseEvent> {
    Callback::from(|_| {
        if let Some(input) = document().get_element_by_id(FILE_ID).and_then(|e| e.dyn_into::<HtmlInputElement>().ok()) {
            input.click();
        }
    })
}

/// The hidden file input; its file is read like a dropped one.
pub(crate) fn file_input(store: &Handle) -> Html {
    let dispatcher = store.dispatcher();
    let onchange = Callback::from(move |event: Event| {
        let Some(input) = event.target_dyn_into::<HtmlInputElement>() else { return };
        if let Some(files) = input.files() {
            read_all(&files, &dispatcher);
        }
        // The same file can be chosen again.
        input.set_value("");
    });
    html! { <input id={FILE_ID} type="file" multiple=true hidden=true aria-hidden="true" tabindex="-1" {onchange} /> }
}

//! What the worker is asked to do for the inputs: a button that asks, how far it is, what was found.

use vram_budget::view::Action;
use vram_budget::view::run::{Errand, Run};
use yew::prelude::*;

use crate::platform;
use crate::store::Handle;

/// What is said around an errand.
pub(crate) struct Words {
    /// On the button that begins.
    pub(crate) start: String,
    /// On the button that ends.
    pub(crate) stop: String,
    /// While it goes on.
    pub(crate) going: String,
    /// Where what was found is of earlier inputs.
    pub(crate) earlier: String,
}

/// An errand; ids begin with, or end in, `id`.
pub(crate) fn errand<T>(
    store: &Handle,
    errand: Errand,
    (id, run): (&'static str, &Run<T>),
    words: Words,
    found: impl Fn(&T) -> Html,
) -> Html {
    match run {
        Run::None => button(store, format!("start-{id}"), words.start, Some(errand)),
        Run::Going { done, total, table, .. } => html! {
            <>
                { going(store, id, words, (*done, *total)) }
                { for table.as_ref().map(|table| found(table)) }
            </>
        },
        Run::Done { plan, table } => {
            let earlier = store.0.draft.plan().is_ok_and(|now| now != **plan);
            html! {
                <>
                    { button(store, format!("start-{id}"), words.start, Some(errand)) }
                    <div id={format!("{id}-table")} aria-live="polite">
                        if earlier { <p class="issue">{ words.earlier }</p> }
                        { found(table) }
                    </div>
                </>
            }
        }
    }
}

fn going(store: &Handle, id: &'static str, words: Words, (done, total): (u64, u64)) -> Html {
    let known = (total > 0).then_some(());
    html! {
        <div class="readback" {id}>
            <p id={format!("{id}-line")}>{ words.going }</p>
            <progress aria-labelledby={format!("{id}-line")} max={known.map(|()| total.to_string())} value={known.map(|()| done.to_string())} />
            { button(store, format!("stop-{id}"), words.stop, None) }
        </div>
    }
}

fn button(store: &Handle, id: String, label: String, errand: Option<Errand>) -> Html {
    let disabled = errand.is_some() && store.0.is_stale();
    let onclick = platform::run(store, errand);
    html! { <div class="acts"><button class="btn" type="button" {id} {disabled} {onclick}>{ label }</button></div> }
}

/// A panel that draws what is in it once it is open.
pub(crate) fn panel(
    store: &Handle,
    (id, class): (&'static str, &'static str),
    (panel, open): (vram_budget::view::Panel, bool),
    summary: String,
    inside: fn(&Handle) -> Html,
) -> Html {
    let onclick = store.on(move |event: MouseEvent| {
        event.prevent_default();
        Action::Panel(panel, !open)
    });
    html! {
        <details {class} {id} {open}>
            <summary {onclick}>{ summary }</summary>
            if open { { inside(store) } }
        </details>
    }
}

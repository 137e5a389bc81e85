//! A search among the plans around the inputs: how far it is, what was found, each to take over. Drawn once it is asked for.

use vram_budget::text::{Advised, Locale, Searched};
use vram_budget::view::run::Run;
use vram_budget::view::search::{FoundRow, SearchTable};
use vram_budget::view::{Action, Panel};
use yew::prelude::*;

use crate::frame::mark_class;
use crate::platform;
use crate::store::Handle;
use crate::worker::SEARCH;

/// The panel, closed until someone opens it.
pub(crate) fn search_panel(store: &Handle) -> Html {
    let open = store.0.is_open(Panel::Search);
    let onclick = store.on(move |event: MouseEvent| {
        event.prevent_default();
        Action::Panel(Panel::Search, !open)
    });
    html! {
        <details class="note" id="search-panel" {open}>
            <summary {onclick}>{ say(Searched::Ask) }</summary>
            if open { { inside(store) } }
        </details>
    }
}

fn say(what: Searched<'_>) -> String {
    Locale::En.advice().searched(&what)
}

#[inline(never)]
fn inside(store: &Handle) -> Html {
    let button = |id: &'static str, what: Searched<'_>, go: bool| {
        let disabled = go && store.0.is_stale();
        let onclick = platform::run(store, SEARCH, go, Action::Search(go));
        html! { <div class="acts"><button class="btn" type="button" {id} {disabled} {onclick}>{ say(what) }</button></div> }
    };
    let work = match &store.0.search {
        Run::None => button("start-search", Searched::Start, true),
        Run::Going { done, total, .. } => {
            let known = (*total > 0).then_some(());
            html! {
                <div class="readback" id="search">
                    <p id="search-line">{ say(Searched::Going) }</p>
                    <progress aria-labelledby="search-line" max={known.map(|()| total.to_string())} value={known.map(|()| done.to_string())} />
                    { button("stop-search", Searched::Stop, false) }
                </div>
            }
        }
        Run::Done { plan, table } => {
            let earlier = store.0.draft.plan().is_ok_and(|now| now != **plan);
            html! {
                <>
                    { button("start-search", Searched::Start, true) }
                    <div id="search-table" aria-live="polite">
                        if earlier { <p class="issue">{ say(Searched::Earlier) }</p> }
                        { found(store, table) }
                    </div>
                </>
            }
        }
    };
    html! { <><p>{ say(Searched::Hint) }</p>{ work }</> }
}

fn found(store: &Handle, table: &SearchTable) -> Html {
    let group = |(head, rows): &(String, Vec<FoundRow>)| {
        html! {
            <>
                <h3>{ head.clone() }</h3>
                if !rows.is_empty() { <ul class="ways">{ for rows.iter().map(|of| row(store, of)) }</ul> }
            </>
        }
    };
    html! {
        <>
            if !table.head.is_empty() { <p class="soft">{ table.head.clone() }</p> }
            { for table.groups.iter().map(group) }
            { for table.problems.iter().map(|problem| html! { <p class="issue">{ problem.clone() }</p> }) }
        </>
    }
}

fn row(store: &Handle, of: &FoundRow) -> Html {
    let (plan, name) = (of.plan.clone(), of.name.clone());
    let take = store.on(move |_: MouseEvent| Action::TakeFound(plan.clone(), name.clone()));
    html! {
        <li>
            <span>
                <span class={classes!("mark", mark_class(of.status))}>{ of.verdict.clone() }</span>
                { format!(" {} · {}", of.held, of.speed) }
                <span class="soft">{ of.name.clone() }</span>
            </span>
            <button class="btn" type="button" onclick={take}>
                { Locale::En.advice().advised(Advised::TakeAll) }<span class="hide">{ format!(": {}", of.name) }</span>
            </button>
        </li>
    }
}

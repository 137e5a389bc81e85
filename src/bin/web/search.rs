//! A search among the plans around the inputs: how far it is, what was found, each to take over. Drawn once it is asked for.

use vram_budget::text::{Advised, Locale, Searched};
use vram_budget::view::run::Errand;
use vram_budget::view::search::{FoundRow, SearchTable};
use vram_budget::view::{Action, Panel};
use yew::prelude::*;

use crate::controls::named;
use crate::errand::{Words, errand, panel};
use crate::frame::mark_class;
use crate::store::Handle;

/// The panel, closed until someone opens it.
pub(crate) fn search_panel(store: &Handle) -> Html {
    let open = store.0.is_open(Panel::Search);
    panel(store, ("search-panel", "note"), (Panel::Search, open), say(Searched::Ask), inside)
}

fn say(what: Searched<'_>) -> String {
    Locale::En.advice().searched(&what)
}

#[inline(never)]
fn inside(store: &Handle) -> Html {
    let words = Words {
        start: say(Searched::Start),
        stop: say(Searched::Stop),
        going: say(Searched::Going),
        earlier: say(Searched::Earlier),
    };
    let work = errand(store, Errand::Search, ("search", &store.0.errands.search), words, |table| found(store, table));
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
            { named(Locale::En.advice().advised(Advised::TakeAll).into(), &of.name, take) }
        </li>
    }
}

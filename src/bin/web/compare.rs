//! Configurations side by side: the inputs, what was measured, what is kept. Drawn once it is asked for.

use vram_budget::text::{Compared, Label, Locale};
use vram_budget::view::compare::{CompareRow, CompareTable};
use vram_budget::view::run::Errand;
use vram_budget::view::{Action, Kept, Panel};
use yew::prelude::*;

use crate::controls::named;
use crate::errand::{Words, errand, panel};
use crate::frame::mark_class;
use crate::store::Handle;

/// The panel, closed until someone opens it.
pub(crate) fn compare_panel(store: &Handle) -> Html {
    let open = store.0.is_open(Panel::Compare);
    panel(store, ("compare-panel", "note"), (Panel::Compare, open), say(Compared::Ask), inside)
}

fn say(what: Compared<'_>) -> String {
    Locale::En.reconcile().compared(&what)
}

#[inline(never)]
fn inside(store: &Handle) -> Html {
    let state = &store.0;
    let words = Words {
        start: say(Compared::Start),
        stop: say(Compared::Stop),
        going: say(Compared::Going),
        earlier: say(Compared::Earlier),
    };
    let run = ("compare", &state.errands.compared);
    let keep = |id: &'static str, what: Compared<'_>, kept: Kept| {
        html! {
            <button class="btn" type="button" {id} onclick={store.on(move |_: MouseEvent| Action::Keep(kept))}>{ say(what) }</button>
        }
    };
    let kept = |(at, name): (usize, &str)| {
        let remove = store.on(move |_: MouseEvent| Action::Unkeep(at));
        html! { <li><span>{ name.to_owned() }</span>{ named(say(Compared::Remove), name, remove) }</li> }
    };
    let names = state.kept.iter().map(|one| one.name.as_str()).enumerate();
    html! {
        <>
            <p>{ say(Compared::Hint) }</p>
            <div class="acts">
                { keep("keep-inputs", Compared::KeepInputs, Kept::Inputs) }
                if !state.measured.taken.is_empty() { { keep("keep-measured", Compared::KeepMeasured, Kept::Measured) } }
            </div>
            if !state.kept.is_empty() {
                <h3>{ say(Compared::Kept) }</h3>
                <ul class="ways" id="kept">{ for names.map(kept) }</ul>
            }
            { errand(store, Errand::Compare, run, words, |table| found(store, table)) }
        </>
    }
}

fn found(store: &Handle, table: &CompareTable) -> Html {
    let head = |what: Compared<'_>| html! { <th scope="col">{ say(what) }</th> };
    let figure = |what: Compared<'_>| html! { <th scope="col" class="n">{ say(what) }</th> };
    let line = |said: &String| html! { <p class="soft">{ said.clone() }</p> };
    html! {
        <>
            <div class="scroll"><table class="small">
                <thead><tr>
                    { head(Compared::NameHead) }
                    { figure(Compared::PeakHead) }{ figure(Compared::SpreadHead) }{ figure(Compared::SpeedHead) }
                    { head(Compared::VerdictHead) }{ head(Compared::BuysHead) }
                </tr></thead>
                <tbody>{ for table.rows.iter().map(|of| row(store, of)) }</tbody>
            </table></div>
            { for table.said.iter().map(line) }
            { for table.empirical.iter().map(line) }
        </>
    }
}

fn row(store: &Handle, of: &CompareRow) -> Html {
    let below = |said: &String| html! { <><br /><span class="soft">{ said.clone() }</span></> };
    let figure = |said: &String| html! { <td class="n">{ said.clone() }</td> };
    let take = of.plan.as_ref().map(|plan| {
        let (plan, name) = (plan.clone(), of.name.clone());
        let take = store.on(move |_: MouseEvent| Action::TakeFound(plan.clone(), name.clone()));
        named(store.text().label(Label::TakeOver).into(), &of.name, take)
    });
    html! {
        <tr>
            <th scope="row">
                { of.name.clone() }{ below(&of.how) }
                { for of.problems.iter().map(below) }
                if let Some(take) = take { <div class="acts">{ take }</div> }
            </th>
            <td class="n">{ of.peak.clone() }if !of.predicted.is_empty() { { below(&of.predicted) } }</td>
            { figure(&of.spread) }{ figure(&of.speed) }
            <td><span class={classes!("mark", mark_class(of.status))}>{ of.verdict.clone() }</span></td>
            <td>{ of.buys.clone() }</td>
        </tr>
    }
}

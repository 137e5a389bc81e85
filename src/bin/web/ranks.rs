//! Below the bill: every rank of a job whose ranks differ, as bars. Drawn once it is asked for.

use vram_budget::bill::Part;
use vram_budget::estimate::ranks_differ;
use vram_budget::text::{Locale, RankSaid};
use vram_budget::view::Panel;
use vram_budget::view::ranks::{RankRow, RankTable};
use vram_budget::view::run::Errand;
use yew::prelude::*;

use crate::answer::letter;
use crate::controls::exact;
use crate::errand::{Words, errand, panel};
use crate::store::Handle;

/// The panel, closed until someone opens it; nothing where the ranks are alike.
pub(crate) fn ranks_panel(store: &Handle) -> Html {
    if !store.0.outcome.shown.as_ref().is_some_and(|shown| ranks_differ(shown.plan())) {
        return Html::default();
    }
    let open = store.0.is_open(Panel::Ranks);
    panel(store, ("ranks-panel", "note"), (Panel::Ranks, open), say(RankSaid::Ask), inside)
}

fn say(what: RankSaid) -> String {
    Locale::En.rank(what)
}

#[inline(never)]
fn inside(store: &Handle) -> Html {
    let run = &store.0.errands.ranks;
    let (done, total) = run.progress();
    let words = Words {
        start: say(RankSaid::Start),
        stop: say(RankSaid::Stop),
        going: say(RankSaid::Progress(done, total)),
        earlier: say(RankSaid::Earlier),
    };
    html! { <><p class="small">{ say(RankSaid::Hint) }</p>{ errand(store, Errand::Ranks, ("ranks", run), words, found) }</> }
}

fn found(table: &RankTable) -> Html {
    let head = |what: RankSaid, class: Option<&'static str>| {
        html! { <th scope="col" {class}>{ say(what) }</th> }
    };
    html! {
        <>
            { for table.problems.iter().map(|problem| html! { <p class="issue">{ problem.clone() }</p> }) }
            if !table.rows.is_empty() {
                <p>{ table.sentence.clone() }</p>
                <table class="ranks">
                    <thead><tr>
                        { head(RankSaid::RankHead, None) }
                        { head(RankSaid::HeldHead, None) }
                        { head(RankSaid::PeakHead, Some("n")) }
                    </tr></thead>
                    <tbody>{ for table.rows.iter().map(row) }</tbody>
                </table>
            }
        </>
    }
}

fn row(of: &RankRow) -> Html {
    html! {
        <tr>
            <th scope="row" class={of.binds.then_some("now")}>{ of.name.clone() }</th>
            <td class="wide">{ bar(of) }<span class="soft">{ format!("{}; {}", of.at, of.holds) }</span></td>
            <td class={classes!("n", of.binds.then_some("now"))} title={exact(of.exact)}>{ of.peak.clone() }</td>
        </tr>
    }
}

/// The parts one after the other; their figures are in the bill's words, so the picture is for the eye alone.
fn bar(of: &RankRow) -> Html {
    let mut from = 0.0;
    let part = |(part, share): (Part, &f64)| {
        let x = from;
        from += share;
        html! {
            <rect class={format!("p-{}", letter(part))} x={format!("{x:.2}%")} y="0" width={format!("{share:.2}%")} height="12" />
        }
    };
    let parts: Html = Part::ALL.into_iter().zip(&of.shares).map(part).collect();
    html! { <svg width="100%" height="12" aria-hidden="true">{ parts }</svg> }
}

//! Below the bill: the phases of a job that is more than its training step.

use vram_budget::text::Label;
use vram_budget::view::Shown;
use vram_budget::view::phases::{PhaseRow, PhaseTable};
use yew::prelude::*;

use crate::answer::busy;
use crate::controls::exact;
use crate::store::Handle;

/// The table; nothing where the training step is all.
pub(crate) fn phase_table(store: &Handle) -> Html {
    let text = store.text();
    let outcome = &store.0.outcome;
    let of = |shown: &Shown| PhaseTable::of(shown.plan(), shown.decision(), text);
    let Some(shown) = &outcome.shown else { return Html::default() };
    // Until the replay has told them, those of a moment ago stay.
    let waits = outcome.is_refining();
    let before =
        outcome.priced.as_ref().filter(|before| waits && before.plan().recipe.method == shown.plan().recipe.method);
    let Some(table) = of(before.unwrap_or(shown)) else { return Html::default() };
    let held = |(name, gib): &(&'static str, String)| {
        html! { <><span class="nb">{ format!("{name} {gib}") }</span>{ " " }</> }
    };
    let row = |row: &PhaseRow| {
        let of = &row.held;
        html! {
            <tr role="row">
                <th scope="row" role="rowheader" class={row.binds.then_some("now")}>{ row.name }</th>
                <td role="cell" class="n" title={exact(row.exact)}>{ row.allocated.clone() }</td>
                <td role="cell" class="now">{ row.binds.then(|| text.label(Label::Binds)) }</td>
                <td role="cell" class="wide held">{ for of.iter().map(held) }</td>
            </tr>
        }
    };
    html! {
        <>
            <h3>{ text.label(Label::Phases) }</h3>
            <p>{ table.sentence }</p>
            <table class="phases stackable" id="phases" role="table" aria-busy={busy(waits)}>
                <caption class="ask">{ text.label(Label::PhasesCaption) }</caption>
                <thead role="rowgroup"><tr role="row">
                    <th scope="col" role="columnheader">{ text.label(Label::PhaseHead) }</th>
                    <th scope="col" role="columnheader" class="n">{ text.label(Label::AllocatedGib) }</th>
                    <th scope="col" role="columnheader"><span class="hide">{ text.label(Label::Binds) }</span></th>
                    <th scope="col" role="columnheader">{ text.label(Label::HeldByGib) }</th>
                </tr></thead>
                <tbody role="rowgroup">{ for table.rows.iter().map(row) }</tbody>
            </table>
        </>
    }
}

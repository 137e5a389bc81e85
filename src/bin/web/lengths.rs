//! A run over sequences of many lengths: its inputs, how far it is, what was found. Drawn once it is asked for.

use vram_budget::text::{Label, LengthsSaid, Locale};
use vram_budget::view::lengths::{LengthsRow, LengthsTable};
use vram_budget::view::run::Errand;
use vram_budget::view::{Action, Field, Panel, Pick, job};
use yew::prelude::*;

use crate::controls::text_field;
use crate::errand::{Words, errand, panel};
use crate::job::row;
use crate::more::pick_row;
use crate::store::Handle;

/// What is offered as an example.
const EXAMPLES: [&str; 3] = ["uniform=64..2048", "log-normal=512,0.7", "307, 1237, 1300, 88, 2048"];

/// The panel, closed until someone opens it.
pub(crate) fn lengths_panel(store: &Handle) -> Html {
    let open = job::lengths_are_open(&store.0);
    let ask = store.text().label(Label::LengthsAsk).to_owned();
    panel(store, ("lengths-panel", "more-inputs"), (Panel::Lengths, open), ask, inside)
}

#[inline(never)]
fn inside(store: &Handle) -> Html {
    let text = store.text();
    let say = |said: LengthsSaid<'_>| Locale::En.lengths().say(&said);
    let given = !store.0.draft.text(Field::Lengths).trim().is_empty();
    let example = |of: &'static str| {
        html! {
            <button class="plain" type="button" onclick={store.on(move |_: MouseEvent| Action::Type(Field::Lengths, of.into()))}>
                { of }
            </button>
        }
    };
    html! {
        <>
            <p class="small">{ say(LengthsSaid::Hint) }</p>
            <div class="form">
                { row(text.label(Label::Lengths), Field::Lengths.id(), html! {
                    <>
                        { text_field(store, Field::Lengths, "wide left", Some(Label::LengthsHint)) }
                        <span class="hint">
                            { say(LengthsSaid::Example) }{ " " }
                            { for EXAMPLES.iter().enumerate().map(|(at, of)| html! {
                                <>{ if at == 0 { "" } else { " · " } }{ example(of) }</>
                            }) }
                        </span>
                    </>
                }) }
                if given {
                    { pick_row(store, Pick::Batching) }
                    { row(text.label(Label::LengthSteps), Field::LengthSteps.id(), text_field(store, Field::LengthSteps, "tiny", None)) }
                }
            </div>
            { work(store) }
        </>
    }
}

/// The button, how far the work is, and what was found.
fn work(store: &Handle) -> Html {
    let say = |said: LengthsSaid<'_>| Locale::En.lengths().say(&said);
    let run = &store.0.errands.lengths;
    let (done, total) = run.progress();
    let words = Words {
        start: say(LengthsSaid::Start),
        stop: say(LengthsSaid::Stop),
        going: say(LengthsSaid::Progress(done, total)),
        earlier: say(LengthsSaid::Earlier),
    };
    errand(store, Errand::Lengths, ("run", run), words, found)
}

fn found(table: &LengthsTable) -> Html {
    let say = |said: LengthsSaid<'_>| Locale::En.lengths().say(&said);
    let head = |said: LengthsSaid<'_>| html! { <th scope="col" class="n">{ say(said) }</th> };
    let figure = |figure: &String| html! { <td class="n">{ figure.clone() }</td> };
    let one = |row: &LengthsRow| {
        html! {
            <tr>
                <th scope="row">
                    { row.setting.clone() }
                    if !row.end.is_empty() { <><br /><span class="soft">{ row.end.clone() }</span></> }
                </th>
                { for row.peaks.iter().chain(&row.after).map(figure) }
            </tr>
        }
    };
    html! {
        <>
            if !table.head.is_empty() {
                <div class="readback">
                    <p><strong>{ table.head.clone() }</strong></p>
                    { for table.findings.iter().map(|finding| html! { <p>{ finding.clone() }</p> }) }
                </div>
            }
            if !table.rows.is_empty() {
                <div class="scroll"><table class="small" id="run-rows">
                    <thead><tr>
                        <th scope="col">{ say(LengthsSaid::SettingHead) }</th>
                        { head(LengthsSaid::Reserved) }{ head(LengthsSaid::Allocated) }{ head(LengthsSaid::Ratio) }
                        { for table.after.iter().map(|after| html! { <th scope="col" class="n">{ after.clone() }</th> }) }
                    </tr></thead>
                    <tbody>{ for table.rows.iter().map(one) }</tbody>
                </table></div>
            }
            { for table.problems.iter().map(|problem| html! { <p class="issue">{ problem.clone() }</p> }) }
        </>
    }
}

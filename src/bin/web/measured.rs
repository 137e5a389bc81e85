//! What was measured, against what is predicted.

use vram_budget::measure::Unit;
use vram_budget::text::{Catalogue, Label};
use vram_budget::view::Action;
use vram_budget::view::measured::{Comparison, EXAMPLE_DOCUMENT, EXAMPLE_SCRIPT, unit_options};
use yew::prelude::*;

use crate::controls::area_value;
use crate::platform;
use crate::store::{Ask, Handle};

/// The section.
pub(crate) fn measured_section(store: &Handle) -> Html {
    let text = store.text();
    let state = &store.0;
    let measured = &state.measured;
    let decision = state.outcome.shown.as_ref().map(|shown| shown.decision());
    let comparison = Comparison::new(measured, decision, text);
    let error = measured.error.as_ref().map(|error| text.import_error(error));
    let example = |label: Label, of: &'static str| {
        html! {
            <button class="plain" type="button" onclick={store.on(move |_: MouseEvent| Action::MeasuredText(of.into()))}>
                { text.label(label) }
            </button>
        }
    };
    html! {
        <section class="step" id="measured" aria-labelledby="h-measured">
            <span class="num"></span>
            <div>
                <h2 id="h-measured" tabindex="-1">{ text.label(Label::Measured) }</h2>
                <p class="ask">
                    <label for="paste">{ text.label(Label::PasteAsk) }</label>{ " " }
                    <span id="paste-hint">{ text.label(Label::Privacy) }{ " " }{ text.label(Label::PasteLimit) }</span>
                </p>
                <textarea
                    id="paste" rows="5" spellcheck="false" value={measured.text.clone()}
                    aria-describedby={if error.is_some() { "paste-hint paste-issue" } else { "paste-hint" }}
                    aria-invalid={error.is_some().then_some("true")}
                    oninput={store.on(|event: InputEvent| Action::MeasuredText(area_value(&event)))}
                />
                <div class="acts">
                    <button class="btn" type="button" id="measured-file" onclick={platform::pick_file()}>
                        { text.label(Label::ChooseFile) }
                    </button>
                    <span class="small soft">
                        { text.label(Label::TryExample) }{ " " }
                        { example(Label::ExampleScript, EXAMPLE_SCRIPT) }{ ", " }
                        { example(Label::ExampleDocument, EXAMPLE_DOCUMENT) }
                    </span>
                </div>
                <div role="status" id="measured-status">
                    if let Some(error) = error { <p class="issue" id="paste-issue">{ error }</p> }
                    if !measured.question.is_empty() { { question(store, &measured.question, &measured.text) } }
                    if let Some(comparison) = &comparison {
                        <div class="readback"><p><strong>{ text.label(Label::ReadAs) }</strong>{ " " }{ comparison.read_as.clone() }</p></div>
                    }
                </div>
                if let Some(comparison) = &comparison { { table(store, comparison, text) } }
            </div>
        </section>
    }
}

/// In which unit the figures are.
fn question(store: &Handle, units: &[Unit], pasted: &str) -> Html {
    let text = store.text();
    let option = |(unit, label): (Unit, String)| {
        html! {
            <button class="btn" type="button" onclick={store.on(move |_: MouseEvent| Action::MeasuredUnit(unit))}>{ label }</button>
        }
    };
    html! {
        <div class="readback" id="unit-question">
            <p>{ text.label(Label::UnitQuestion) }</p>
            <div class="acts">{ for unit_options(units, pasted, text).into_iter().map(option) }</div>
        </div>
    }
}

fn table(store: &Handle, comparison: &Comparison, text: &dyn Catalogue) -> Html {
    let exact = |bytes: Option<i64>| bytes.map(|bytes| format!("{bytes} B"));
    html! {
        <>
            <table class="bill meas" id="measured-table">
                <thead><tr>
                    <th scope="col">{ text.label(Label::ReadingHead) }</th>
                    <th scope="col" class="n">{ text.label(Label::Predicted) }</th>
                    <th scope="col" class="n">{ text.label(Label::MeasuredHead) }</th>
                    <th scope="col" class="n">{ text.label(Label::Difference) }</th>
                </tr></thead>
                <tbody>
                    { for comparison.rows.iter().map(|row| html! {
                        <tr>
                            <th scope="row">{ row.name.clone() }</th>
                            <td class="n" title={exact(row.exact[0])}>{ row.predicted.clone() }</td>
                            <td class="n" title={exact(row.exact[1])}>{ row.measured.clone() }</td>
                            <td class="n" title={exact(row.exact[2])}>{ row.difference.clone() }</td>
                        </tr>
                    }) }
                </tbody>
            </table>
            <p class="note">{ text.label(Label::NoPlanNeeded) }</p>
            <div class="acts">
                if comparison.has_plan {
                    <button class="btn" type="button" onclick={store.on(|_: MouseEvent| Action::UseMeasuredPlan)}>
                        { text.label(Label::UseItsJob) }
                    </button>
                }
                <button class="btn" type="button" onclick={store.on(|_: MouseEvent| Action::Forget)}>
                    { text.label(Label::Forget) }
                </button>
            </div>
        </>
    }
}

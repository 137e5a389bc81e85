//! What was measured, against what is predicted. What is drawn once there is a measurement is out of line: the first
//! answer is drawn without it.

use vram_budget::bill::Part;
use vram_budget::measure::Unit;
use vram_budget::text::{Catalogue, Label, Locale, Msg, Said};
use vram_budget::units::Bytes;
use vram_budget::view::measured::{
    EXAMPLE_DOCUMENT, EXAMPLE_OOM, EXAMPLE_SCRIPT, Report, Row, Understood, unit_options,
};
use vram_budget::view::recording::{Held, Recording, Replay, beside_prediction, part_name};
use vram_budget::view::{Action, Reading};
use yew::prelude::*;

use crate::compare::compare_panel;
use crate::controls::area_value;
use crate::explained::{calibrated, explained};
use crate::platform;
use crate::store::Handle;

/// The section.
pub(crate) fn measured_section(store: &Handle) -> Html {
    let text = store.text();
    let state = &store.0;
    let measured = &state.measured;
    let shown = state.outcome.shown.as_ref();
    let understood = Understood::new(measured, shown, text, store.report());
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
                        { example(Label::ExampleOom, EXAMPLE_OOM) }{ ", " }
                        { example(Label::ExampleScript, EXAMPLE_SCRIPT) }{ ", " }
                        { example(Label::ExampleDocument, EXAMPLE_DOCUMENT) }
                    </span>
                </div>
                if let Some(reading) = &state.reading { { progress(store, reading) } }
                <div role="status" id="measured-status">
                    if let Some(error) = error { <p class="issue" id="paste-issue">{ error }</p> }
                    if !measured.question.is_empty() { { question(store, &measured.question, &measured.text) } }
                    if let Some(understood) = &understood { { reports(understood, text) } }
                    if let Some(recording) = &measured.recording { <p><strong>{ recording.head.clone() }</strong></p> }
                </div>
                if let Some(understood) = &understood { { tables(store, understood, text) } }
                if let Some(shown) = shown.filter(|shown| shown.plan().calibration.is_some()) { { calibrated(store, shown) } }
                if let Some(recording) = &measured.recording { { recorded(store, recording) } }
                { compare_panel(store) }
            </div>
        </section>
    }
}

/// In which unit the figures are.
#[inline(never)]
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

/// How far the reading of a file is.
#[inline(never)]
fn progress(store: &Handle, reading: &Reading) -> Html {
    let text = store.text();
    let whole = reading.total.filter(|total| *total <= reading.read);
    let said = text.say(&Msg::FileRead {
        name: reading.name.as_deref(),
        read: Bytes(reading.read),
        of: reading.total.map(Bytes),
    });
    html! {
        <div class="readback" id="reading">
            <p id="reading-line">
                { said }
                if whole.is_some() { { ", " }{ text.label(Label::WorkingItOut) } }
            </p>
            <progress aria-labelledby="reading-line" max={reading.total.map(|total| total.to_string())}
                value={reading.total.filter(|_| whole.is_none()).map(|_| reading.read.to_string())} />
            <div class="acts">
                <button class="btn" type="button" id="stop-reading" onclick={platform::stop_reading(store)}>
                    { text.label(Label::Cancel) }
                </button>
            </div>
        </div>
    }
}

/// A recording of the allocator.
#[inline(never)]
fn recorded(store: &Handle, recording: &Recording) -> Html {
    let words = Locale::En.recording();
    let head = |said: Said<'_>| html! { <th scope="col" class="n">{ words.say(&said) }</th> };
    let figure = |figure: &String| html! { <td class="n">{ figure.clone() }</td> };
    let pair = |(figure, what): &(String, String)| {
        html! { <tr><th scope="row">{ what.clone() }</th><td class="n">{ figure.clone() }</td></tr> }
    };
    let place = |(figure, count, place): &(String, String, String)| {
        html! {
            <tr>
                <th scope="row" class="f">{ place.clone() }</th>
                <td class="n">{ count.clone() }</td><td class="n">{ figure.clone() }</td>
            </tr>
        }
    };
    let part = |(part, bytes): &(Option<Part>, Bytes)| pair(&(bytes.to_string(), part_name(*part, Locale::En)));
    let shown = store.0.outcome.shown.as_ref().map(|shown| &shown.decision().estimate.bill);
    let beside = shown.and_then(|bill| beside_prediction(recording, bill, Locale::En));
    let held = |held: &Held| {
        html! {
            <>
                <h3>{ held.when.clone() }</h3>
                <table class="small"><tbody>{ for held.parts.iter().map(part) }</tbody></table>
                if !held.places.is_empty() {
                    <div class="scroll"><table class="small">
                        <tbody>{ for held.places.iter().map(place) }</tbody>
                    </table></div>
                }
            </>
        }
    };
    let replay = |replay: &Replay| {
        html! {
            <tr>
                <th scope="row">
                    { replay.settings.clone() }
                    if !replay.outcome.is_empty() { <><br /><span class="soft">{ replay.outcome.clone() }</span></> }
                </th>
                { for replay.figures.iter().map(figure) }
            </tr>
        }
    };
    html! {
        <div id="recording">
            <table class="small" id="recording-totals"><tbody>{ for recording.totals.iter().map(pair) }</tbody></table>
            { for recording.held.iter().map(held) }
            if let Some((of, rows)) = &beside {
                <div class="scroll"><table class="small" id="recording-beside">
                    <caption class="small soft">{ of.clone() }</caption>
                    <thead><tr><th scope="col"></th>{ head(Said::Recorded) }{ head(Said::Predicted) }</tr></thead>
                    <tbody>
                        { for rows.iter().map(|[part, recorded, predicted]| html! {
                            <tr><th scope="row">{ part.clone() }</th>{ figure(recorded) }{ figure(predicted) }</tr>
                        }) }
                    </tbody>
                </table></div>
            }
            <h3>{ words.say(&Said::WhatIf) }</h3>
            { for recording.notes.iter().map(|note| html! { <p class="small soft">{ note.clone() }</p> }) }
            if !recording.replays.is_empty() {
                <div class="scroll"><table class="small" id="recording-replays">
                    <thead><tr>
                        <th scope="col">{ words.say(&Said::SettingsHead) }</th>
                        { head(Said::AtMostAllocated) }{ head(Said::AtMostReserved) }{ head(Said::Ratio) }{ head(Said::AtEnd) }
                    </tr></thead>
                    <tbody>{ for recording.replays.iter().map(replay) }</tbody>
                </table></div>
            }
            <div class="acts">
                <button class="btn" type="button" onclick={store.on(|_: MouseEvent| Action::Forget)}>
                    { store.text().label(Label::Forget) }
                </button>
            </div>
        </div>
    }
}

/// What was understood, why memory ran out and what to try.
#[inline(never)]
fn reports(understood: &Understood, text: &dyn Catalogue) -> Html {
    let (shown, all) = (understood.reports.len(), understood.all);
    html! {
        <>
            if shown < all { <p>{ text.say(&Msg::LastOf { shown, all }) }</p> }
            { for understood.reports.iter().map(|report| self::report(report, text)) }
            { for understood.together.iter().map(|fact| html! { <p>{ fact.clone() }</p> }) }
        </>
    }
}

fn report(report: &Report, text: &dyn Catalogue) -> Html {
    html! {
        <div class="readback">
            <p><strong>{ text.label(Label::ReadAs) }</strong>{ " " }{ report.read_as.clone() }</p>
            { for report.causes.iter().map(|cause| html! { <p class="cause">{ cause.clone() }</p> }) }
            if let Some(first) = report.first { <p><strong>{ text.label(Label::TryFirst) }</strong>{ " " }{ first }</p> }
            { for report.facts.iter().map(|fact| html! { <p class="soft">{ fact.clone() }</p> }) }
        </div>
    }
}

/// The figures of a run beside the predicted ones, and what can be done with them.
#[inline(never)]
fn tables(store: &Handle, understood: &Understood, text: &dyn Catalogue) -> Html {
    let compared: Vec<&Report> = understood.reports.iter().filter(|report| !report.rows.is_empty()).collect();
    html! {
        <>
            { for compared.iter().enumerate().map(|(index, report)| html! {
                <table class="bill meas" id={(index == 0).then_some("measured-table")}>
                    if understood.all > 1 { <caption>{ report.read_as.clone() }</caption> }
                    <thead><tr>
                        <th scope="col">{ text.label(Label::ReadingHead) }</th>
                        <th scope="col" class="n">{ text.label(Label::Predicted) }</th>
                        <th scope="col" class="n">{ text.label(Label::MeasuredHead) }</th>
                        <th scope="col" class="n">{ text.label(Label::Difference) }</th>
                    </tr></thead>
                    <tbody>{ for report.rows.iter().map(row) }</tbody>
                </table>
            }) }
            if !compared.is_empty() { <p class="note">{ text.label(Label::NoPlanNeeded) }</p> }
            { explained(store) }
            <div class="acts">
                <button class="btn" type="button" id="calibrate" onclick={store.on(|_: MouseEvent| Action::Calibrate)}>
                    { text.label(Label::Calibrate) }
                </button>
                if understood.has_plan {
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

fn row(row: &Row) -> Html {
    let exact = |bytes: Option<i64>| bytes.map(|bytes| format!("{bytes} B"));
    html! {
        <tr>
            <th scope="row">{ row.name.clone() }</th>
            <td class="n" title={exact(row.exact[0])}>{ row.predicted.clone() }</td>
            <td class="n" title={exact(row.exact[1])}>{ row.measured.clone() }</td>
            <td class="n" title={exact(row.exact[2])}>{ row.difference.clone() }</td>
        </tr>
    }
}

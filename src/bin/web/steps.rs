//! The four steps of the walk.

use vram_budget::decide::{Decision, Question};
use vram_budget::text::{Advised, Catalogue, Label, Locale};
use vram_budget::view::remedy::{Quoted, RemedyRow};
use vram_budget::view::steps::{self, Gauge, Step};
use vram_budget::view::{Action, Field, Shown};
use yew::prelude::*;

use crate::answer::{anchor, busy};
use crate::controls::{exact, text_field};
use crate::frame::mark_class;
use crate::job::adapters_form;
use crate::lengths::lengths_panel;
use crate::search::search_panel;
use crate::store::Handle;

/// The four steps; none without an answer.
pub(crate) fn steps(store: &Handle) -> Vec<Step> {
    let of =
        |shown: &Shown| steps::steps(&shown.plan().policy_in_force(), shown.decision(), priced(store), store.text());
    store.0.outcome.shown.as_ref().map(of).unwrap_or_default()
}

/// Their sections.
pub(crate) fn step_sections(store: &Handle, steps: &[Step]) -> Html {
    html! { { for steps.iter().map(|step| section(store, step)) } }
}

fn section(store: &Handle, step: &Step) -> Html {
    let text = store.text();
    let id = step.section.id();
    let heading = format!("h-{id}");
    html! {
        <section class="step" {id} aria-labelledby={heading.clone()} aria-busy={busy(store.0.outcome.is_refining())}>
            <span class="num">{ step.number }</span>
            <div>
                <div class="head">
                    <h2 id={heading} tabindex="-1">{ step.name }</h2>
                    <span class={classes!("mark", mark_class(step.status))}>{ text.status(step.status) }</span>
                </div>
                <p class="ask">{ step.ask }</p>
                <p class="fact">
                    if let Some(big) = &step.big { <b title={step.exact.map(exact)}>{ big.clone() }</b>{ " " } }
                    { step.fact.clone() }
                </p>
                if let Some(gauge) = &step.gauge { { gauge_picture(gauge) } }
                { for step.notes.iter().map(|note| html! { <p class="note">{ note.clone() }</p> }) }
                if step.question == Question::Rigid { { adapters_form(store) } }
                if step.question == Question::Margin { { lengths_panel(store) } }
                if step.question == Question::Throughput { { search_panel(store) } }
                if !step.remedies.is_empty() { { remedies(store, step, &step.remedies, text) } }
                if !step.more_remedies.is_empty() {
                    <details class="note">
                        <summary>{ Locale::En.advice().advised(Advised::MoreRemedies) }</summary>
                        { remedies(store, step, &step.more_remedies, text) }
                    </details>
                }
                <details class="note">
                    <summary>{ step.why_title }</summary>
                    <p>{ step.why }</p>
                    if !step.thresholds.is_empty() { { thresholds(store, step.thresholds, text) } }
                </details>
            </div>
        </section>
    }
}

fn percent(x: f64) -> String {
    format!("{x:.2}%")
}

fn gauge_picture(gauge: &Gauge) -> Html {
    let filled = gauge.over_from.map_or(gauge.filled, |from| from.min(gauge.filled));
    let mark = |x: f64| {
        html! {
            <>
                <line class="halo" x1={percent(x)} x2={percent(x)} y1="0" y2="8" />
                <line class="cap" x1={percent(x)} x2={percent(x)} y1="-3" y2="11" />
            </>
        }
    };
    let (rule, label) = &gauge.rule;
    // Where the mark of the whole follows, each label stands on its own side.
    let side = if gauge.whole.is_some() { "end" } else { anchor(*rule) };
    html! {
        <svg class="gauge" height="30" role="img" aria-label={gauge.alt.clone()}>
            <rect class="track" width="100%" height="8" />
            <rect class="p-v" width={percent(filled)} height="8" />
            if let Some(from) = gauge.over_from {
                <rect class="p-over" x={percent(from)} width={percent((gauge.filled - from).max(0.0))} height="8" />
            }
            { mark(*rule) }
            <text x={percent(*rule)} y="25" text-anchor={side}>{ label.clone() }</text>
            if let Some((whole, label)) = &gauge.whole {
                { mark(*whole) }
                if *whole < 80.0 { <text x={percent(*whole)} dx="6" y="25">{ label.clone() }</text> }
            }
        </svg>
    }
}

/// The remedies of a step, each with its price.
fn remedies(store: &Handle, step: &Step, rows: &[RemedyRow], text: &dyn Catalogue) -> Html {
    let peak = match step.quoted {
        Quoted::Allocated => Label::PeakGib,
        Quoted::Process => Label::ProcessGib,
    };
    let row = |remedy: &RemedyRow| {
        html! {
            <tr role="row">
                <th scope="row" role="rowheader" class="wide">
                    { remedy.name.clone() }<span class="soft">{ remedy.note.clone() }</span>
                </th>
                <td role="cell" class="n" title={exact(remedy.exact)}>{ remedy.peak.clone() }</td>
                <td role="cell" class="n">{ remedy.change.clone() }</td>
                <td role="cell"><span class={classes!("mark", mark_class(remedy.then))}>{ remedy.then_word.clone() }</span></td>
                <td role="cell">{ try_button(store, remedy, text) }</td>
            </tr>
        }
    };
    html! {
        <table class="fix stackable" role="table" aria-busy={busy(store.0.is_unpriced())}>
            <thead role="rowgroup">
                <tr role="row">
                    <th scope="col" role="columnheader">
                        { text.label(if store.0.is_unpriced() { Label::HelpedBefore } else { Label::WhatHelps }) }
                    </th>
                    <th scope="col" role="columnheader" class="n">{ text.label(peak) }</th>
                    <th scope="col" role="columnheader" class="n">{ text.label(Label::Change) }</th>
                    <th scope="col" role="columnheader">{ text.label(Label::Then) }</th>
                    <th scope="col" role="columnheader"><span class="hide">{ text.label(Label::TryIt) }</span></th>
                </tr>
            </thead>
            <tbody role="rowgroup">{ for rows.iter().map(row) }</tbody>
        </table>
    }
}

/// The decision whose remedies are priced.
pub(crate) fn priced(store: &Handle) -> Option<&Decision> {
    store.0.outcome.priced.as_ref().map(Shown::decision)
}

/// The button that tries a remedy.
pub(crate) fn try_button(store: &Handle, remedy: &RemedyRow, text: &dyn Catalogue) -> Html {
    let (id, name) = (remedy.id, remedy.name.clone());
    html! {
        <button class="btn" type="button" onclick={store.on(move |_: MouseEvent| Action::Try(id, name.clone()))}>
            { text.label(Label::Try) }<span class="hide">{ format!(" {}", remedy.name) }</span>
        </button>
    }
}

/// The thresholds of a step, to change.
fn thresholds(store: &Handle, fields: &[Field], text: &dyn Catalogue) -> Html {
    let one = |field: Field| {
        let unit = match field {
            Field::ActivationShare => Label::OfWhatIsLeft,
            _ => Label::OfTheCard,
        };
        html! {
            <span class="threshold">
                <label for={field.id()}>{ text.label(field.label()) }</label>
                { text_field(store, field, "tiny", None) }
                <span class="soft">{ text.label(unit) }</span>
            </span>
        }
    };
    html! {
        <div class="field">
            { for fields.iter().map(|field| one(*field)) }
            <button class="plain small" type="button" onclick={store.on(|_: MouseEvent| Action::ResetPolicy)}>
                { text.label(Label::ResetThresholds) }
            </button>
        </div>
    }
}

//! The answer, always in sight: beside the walk, or as a bar at the bottom of a phone.

use vram_budget::bill::Part;
use vram_budget::decide::Status;
use vram_budget::text::{Catalogue, Label, Msg, Term};
use vram_budget::view::answer::{Answer, Bar, Key, SumRow};
use vram_budget::view::remedy::RemedyRow;
use vram_budget::view::{Action, Panel};
use yew::prelude::*;

use crate::controls::exact;
use crate::steps::try_button;
use crate::store::Handle;

/// The letter of a part in the style's class names.
pub(crate) fn letter(part: Part) -> &'static str {
    match part {
        Part::Weights => "w",
        Part::States => "s",
        Part::Gradients => "g",
        Part::Activations => "a",
        Part::Temporary => "t",
    }
}

/// The panel.
pub(crate) fn answer_panel(store: &Handle, answer: Option<&Answer>) -> Html {
    let text = store.text();
    let state = &store.0;
    let open = state.is_open(Panel::Answer);
    let inner = match answer {
        None => html! { <p class="because">{ text.label(Label::NoAnswerYet) }</p> },
        Some(answer) => {
            html! {
                <>
                    if answer.refining { <span class="busy">{ text.label(Label::Refining) }</span> }
                    <p class={classes!("verdict", verdict_class(answer.status))} id="verdict">{ answer.verdict }</p>
                    <p class="big" id="needed">
                        <span title={exact(answer.exact)}>{ answer.big.clone() }</span>
                        <span class="unit">{ " " }{ answer.big_of.clone() }</span>
                    </p>
                    if state.is_stale() { <p class="stale">{ text.label(Label::Stale) }</p> }
                    { tried(store) }
                    <button class="btn bar-open" type="button" aria-expanded={open.to_string()} aria-controls="more-answer"
                        onclick={store.on(move |_: MouseEvent| Action::Panel(Panel::Answer, !open))}>
                        { text.label(if open { Label::Close } else { Label::Details }) }
                    </button>
                    <div class="more" id="more-answer">{ details(store, answer) }</div>
                </>
            }
        }
    };
    html! {
        <aside class={classes!("answer", state.is_stale().then_some("is-stale"))} id="answer" tabindex="-1"
            aria-label={text.label(Label::Answer)} aria-busy={busy(state.outcome.is_refining())}>
            <div class="stick"><h2 class="hide">{ text.label(Label::Answer) }</h2>{ inner }</div>
        </aside>
    }
}

fn verdict_class(status: Status) -> &'static str {
    match status {
        Status::Pass => "v-pass",
        Status::Attention => "v-warn",
        Status::Stop => "v-stop",
        Status::Waits => "v-idle",
    }
}

/// The last remedy that was tried, to undo it.
fn tried(store: &Handle) -> Html {
    let text = store.text();
    let Some(last) = store.0.undo.last() else { return Html::default() };
    html! {
        <p class="tried small">
            { text.say(&Msg::Tried { remedy: &last.remedy }) }{ " " }
            <button class="plain" type="button" id="undo" onclick={store.on(|_: MouseEvent| Action::Undo)}>
                { text.label(Label::Undo) }
            </button>
        </p>
    }
}

fn details(store: &Handle, answer: &Answer) -> Html {
    let text = store.text();
    html! {
        <>
            { for answer.because.iter().map(|sentence| html! { <p class="because">{ with_term(sentence, answer.term, text) }</p> }) }
            { bar(&answer.bar) }
            <table class="sums">
                <thead><tr>
                    <th scope="col">{ answer.sums_head.clone() }</th><th scope="col" class="n">{ "GiB" }</th>
                </tr></thead>
                <tbody>{ for answer.sums.iter().map(sum_row) }</tbody>
            </table>
            if answer.wants_change {
                <h3>{ text.label(if store.0.is_unpriced() { Label::HelpedBefore } else { Label::ChangeFirst }) }</h3>
                { first(store, answer.first.as_deref()) }
            }
            if !answer.caveats.is_empty() {
                <details>
                    <summary>{ text.label(Label::Caveats) }</summary>
                    <ul class="caveats small soft">
                        { for answer.caveats.iter().map(|caveat| html! { <li>{ caveat.clone() }</li> }) }
                    </ul>
                </details>
            }
        </>
    }
}

/// The attribute that says that something is about to change.
pub(crate) fn busy(is: bool) -> Option<&'static str> {
    is.then_some("true")
}

/// Remedies to try.
pub(crate) fn tries(store: &Handle, remedies: &[RemedyRow]) -> Html {
    let row = |remedy: &RemedyRow| {
        html! {
            <li>
                <span>{ remedy.name.clone() }<span class="soft">{ remedy.summary.clone() }</span></span>
                <span class="n">{ remedy.change.clone() }</span>
                { try_button(store, remedy, store.text()) }
            </li>
        }
    };
    html! { <ul class="try" aria-busy={busy(store.0.is_unpriced())}>{ for remedies.iter().map(row) }</ul> }
}

/// What to change first.
fn first(store: &Handle, remedies: Option<&[RemedyRow]>) -> Html {
    let text = store.text();
    match remedies {
        None => html! { <p class="small soft">{ text.label(Label::Pricing) }</p> },
        Some([]) => html! { <p class="small soft">{ text.label(Label::NothingHelps) }</p> },
        Some(remedies) => tries(store, remedies),
    }
}

/// A sentence in which a term opens its definition.
fn with_term(sentence: &str, term: Option<Term>, text: &dyn Catalogue) -> Html {
    let Some((term, word, (before, after))) = term.and_then(|term| {
        let word = text.term(term);
        Some((term, word, sentence.split_once(word)?))
    }) else {
        return html! { { sentence.to_owned() } };
    };
    // What touches the word, such as a parenthesis, stays on its line.
    let (before, touching) = before.split_at(before.rfind(' ').map_or(0, |at| at + 1));
    let (touched, after) = after.split_at(after.find(' ').unwrap_or(after.len()));
    html! {
        <>
            { before.to_owned() }
            <span class="nb">
                { touching.to_owned() }
                { term_button(term, word) }
                { touched.to_owned() }
            </span>
            { after.to_owned() }
        </>
    }
}

fn term_id(term: Term) -> String {
    format!("term-{term:?}").to_ascii_lowercase()
}

/// The definitions that terms open, wherever they stand.
pub(crate) fn definitions(text: &dyn Catalogue) -> Html {
    let one = |term: Term| html! { <div id={term_id(term)} popover="auto">{ text.definition(term) }</div> };
    Term::OPENING.into_iter().map(one).collect()
}

/// A word that opens the term's definition.
pub(crate) fn term_button(term: Term, word: &str) -> Html {
    html! { <button class="term" type="button" popovertarget={term_id(term)}>{ word.to_owned() }</button> }
}

/// A mark after a control that opens the definition of what the control is for.
pub(crate) fn what_is(term: Term, text: &dyn Catalogue) -> Html {
    let label = text.say(&Msg::WhatIs { term: text.term(term) });
    html! { <button class="term what" type="button" aria-label={label} popovertarget={term_id(term)}>{ "?" }</button> }
}

/// The stripes that mark temporary memory where colour alone would not.
pub(crate) fn stripes(id: &'static str) -> Html {
    html! {
        <defs>
            <pattern {id} width="5" height="8" patternUnits="userSpaceOnUse">
                <rect class="p-t" width="5" height="8" />
                <rect class="p-t2" x="3" width="2" height="8" />
            </pattern>
        </defs>
    }
}

fn bar(bar: &Bar) -> Html {
    let percent = |x: f64| format!("{x:.2}%");
    let segment = |segment: &vram_budget::view::answer::Segment| {
        let (x, width) = (percent(segment.x), percent(segment.width));
        match segment.key {
            Key::Part(Part::Temporary) => html! { <rect fill="url(#stripe)" {x} {width} y="22" height="24" /> },
            Key::Part(part) => html! { <rect class={format!("p-{}", letter(part))} {x} {width} y="22" height="24" /> },
            Key::Rest | Key::None => html! { <rect class="p-r" {x} {width} y="22.5" height="23" /> },
        }
    };
    html! {
        <svg class="stack" height="54" role="img" aria-label={bar.alt.clone()}>
            { stripes("stripe") }
            { for bar.segments.iter().map(segment) }
            if let Some((x, label)) = &bar.mark {
                <line class="halo" x1={percent(*x)} x2={percent(*x)} y1="18" y2="50" />
                <line class="cap" x1={percent(*x)} x2={percent(*x)} y1="16" y2="52" />
                <text class="strong" x={percent(*x)} y="11" text-anchor={anchor(*x)}>{ label.clone() }</text>
            }
        </svg>
    }
}

/// Which side of a mark its label stands on, so that it stays in the picture.
pub(crate) fn anchor(x: f64) -> &'static str {
    match x {
        x if x < 20.0 => "start",
        x if x > 80.0 => "end",
        _ => "middle",
    }
}

/// The swatch of a part.
pub(crate) fn key(key: Key) -> Html {
    match key {
        Key::Part(part) => html! { <span class={format!("key k-{}", letter(part))}></span> },
        Key::Rest => html! { <span class="key k-r"></span> },
        Key::None => Html::default(),
    }
}

fn sum_row(row: &SumRow) -> Html {
    html! {
        <tr class={row.sum.then_some("sum")}>
            <th scope="row">{ key(row.key) }{ term_button(row.term, &row.name) }</th>
            <td class={classes!("n", (row.gib == "0").then_some("zero"))} title={row.exact.map(exact)}>{ row.gib.clone() }</td>
        </tr>
    }
}

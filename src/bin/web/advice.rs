//! The end of the walk: what to run, other ways, why not the rest.

use vram_budget::text::{Advised, Locale};
use vram_budget::view::advice::{Cost, Recommendation, costs};
use vram_budget::view::{Action, Panel, Shown};
use yew::prelude::*;

use crate::answer::busy;
use crate::controls::named;
use crate::steps::priced;
use crate::store::Handle;

/// The recommendation; nothing until remedies are priced once.
pub(crate) fn advice_section(store: &Handle) -> Html {
    let outcome = &store.0.outcome;
    let Some(decision) = outcome.advised.as_ref().map(Shown::decision).or_else(|| priced(store)) else {
        return Html::default();
    };
    let words = Locale::En.advice();
    let of = Recommendation::of(decision, Locale::En);
    let take = |shown: &str| {
        let name = shown.to_owned();
        let take = store.on(move |_: MouseEvent| Action::TakeWay(name.clone()));
        named(words.advised(Advised::TakeAll).into(), shown, take)
    };
    let other = |(name, note): &(String, String)| {
        html! {
            <li><span>{ name.clone() }<span class="soft">{ note.clone() }</span></span>{ take(name) }</li>
        }
    };
    let open = store.0.is_open(Panel::Remedies);
    // The state opens it, so that what is in it is not drawn before.
    let toggle = store.on(move |event: MouseEvent| {
        event.prevent_default();
        Action::Panel(Panel::Remedies, !open)
    });
    let waits = outcome.advised != outcome.shown;
    html! {
        <section class="step" id="advice" aria-labelledby="h-advice" aria-busy={busy(waits)}>
            <span class="num" aria-hidden="true">{ "→" }</span>
            <div>
                <div class="head"><h2 id="h-advice" tabindex="-1">{ of.head }</h2></div>
                <p class="advice">{ of.sentence }</p>
                if let Some(name) = &of.take { <p>{ take(name) }</p> }
                if !of.others.is_empty() {
                    <h3>{ words.advised(Advised::OtherWays) }</h3>
                    <ul class="ways">{ for of.others.iter().map(other) }</ul>
                }
                if !of.declined.is_empty() {
                    <details class="note">
                        <summary>{ words.advised(Advised::WhyNot) }</summary>
                        { for of.declined.iter().map(|(why, names)| html! { <p><b>{ why.clone() }</b>{ ": " }{ names.clone() }</p> }) }
                    </details>
                }
                <details class="note" {open}>
                    <summary onclick={toggle}>{ words.advised(Advised::WhatTheyNeed) }</summary>
                    if open {
                        <dl class="costs">{ for costs(decision, Locale::En).into_iter().map(cost) }</dl>
                        { for of.always.iter().map(|always| html! { <p>{ *always }</p> }) }
                    }
                </details>
            </div>
        </section>
    }
}

fn cost(Cost { name, saves, needs }: Cost) -> Html {
    html! { <><dt>{ name }</dt><dd>{ saves }{ " " }<span class="soft">{ needs }</span></dd></> }
}

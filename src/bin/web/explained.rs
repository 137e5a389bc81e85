//! What is worked out of a measurement: what explains the difference, what the texts show, what was fitted. Drawn where
//! something was measured or fitted alone, and out of line: the first answer is drawn without it.

use vram_budget::calibration::{Intervals, intervals};
use vram_budget::decide::RemedyId;
use vram_budget::measure::TierName;
use vram_budget::text::{Label, Locale};
use vram_budget::view::remedy::{Quoted, rows};
use vram_budget::view::study::{Explained, Offer, Shows};
use vram_budget::view::{Action, Panel, Shown};
use yew::prelude::*;

use crate::answer::{busy, tries};
use crate::controls::named;
use crate::errand::panel;
use crate::steps::priced;
use crate::store::Handle;

/// What explains the difference, and what the texts show.
#[inline(never)]
pub(crate) fn explained(store: &Handle) -> Html {
    let text = store.text();
    let measured = &store.0.measured;
    let asked = measured.asked.as_ref();
    let said = match (asked, &measured.explained) {
        (Some(asked), _) if asked.is_fit() => note(text.label(Label::Fitting)),
        (_, Some(explained)) => explanation(store, explained),
        (Some(_), None) => note(text.label(Label::Explaining)),
        (None, None) => Html::default(),
    };
    let fitted = measured.fitted.as_ref();
    html! {
        <>
            <div id="explained" role="status" aria-busy={busy(asked.is_some())}>
                { said }
                if let Some(fitted) = fitted {
                    if fitted.plan.is_none() { { note(text.label(Label::NothingToFit)) } }
                    { for fitted.notes.iter().map(|said| html! { <p class="note">{ said.clone() }</p> }) }
                }
            </div>
            { others(store) }
        </>
    }
}

fn note(said: &'static str) -> Html {
    html! { <p class="note">{ said }</p> }
}

fn explanation(store: &Handle, explained: &Explained) -> Html {
    let text = store.text();
    let shows = |shows: &Shows| {
        html! {
            <div class="readback">
                <p class="cause">{ shows.evidence.clone() }</p>
                <p><strong>{ text.label(Label::Remedy) }</strong>{ " " }{ shows.remedy.clone() }</p>
                <p class="soft"><strong>{ text.label(Label::CheckBy) }</strong>{ " " }{ shows.check.clone() }</p>
                { helps(store, &shows.tries) }
            </div>
        }
    };
    html! {
        <>
            if let Some(residual) = &explained.residual { <p class="note">{ residual.clone() }</p> }
            if let Some(best) = explained.offers.first() { { offer(store, 0, best) } }
            if let Some(unexplained) = &explained.unexplained { <p class="readback">{ unexplained.clone() }</p> }
            { for explained.shows.iter().map(shows) }
        </>
    }
}

/// The remedies that apply and help the inputs, to try.
fn helps(store: &Handle, ids: &[RemedyId]) -> Html {
    let Some(decision) = priced(store) else { return Html::default() };
    let of = |id: &RemedyId| decision.remedies.iter().position(|remedy| remedy.id == *id && remedy.saves());
    let positions: Vec<usize> = ids.iter().filter_map(of).collect();
    let rows = rows(decision, &positions, Quoted::Process, store.text());
    if rows.is_empty() { Html::default() } else { tries(store, &rows) }
}

/// One explanation, and a button that takes it over.
fn offer(store: &Handle, at: usize, offer: &Offer) -> Html {
    html! {
        <div class="readback offer">
            <p class="cause">{ offer.says.clone() }</p>
            <p class="soft">{ offer.support.clone() }</p>
            if let Some((name, _)) = &offer.take {
                <div class="acts">
                    { named(store.text().label(Label::TakeOver).into(), name, store.on(move |_: MouseEvent| Action::TakeOffer(at))) }
                </div>
            }
        </div>
    }
}

/// What else may explain it, drawn once it is asked for.
fn others(store: &Handle) -> Html {
    if offers(store).len() < 2 {
        return Html::default();
    }
    let (open, ask) = (store.0.is_open(Panel::Offers), store.text().label(Label::OtherExplanations).to_owned());
    panel(store, ("other-offers", "note"), (Panel::Offers, open), ask, |store| {
        offers(store).iter().enumerate().skip(1).map(|(at, one)| offer(store, at, one)).collect()
    })
}

fn offers(store: &Handle) -> &[Offer] {
    store.0.measured.explained.as_ref().map_or(&[], |explained| &explained.offers)
}

/// What was fitted, with its intervals and what they make of the answer's figures.
#[inline(never)]
pub(crate) fn calibrated(store: &Handle, shown: &Shown) -> Html {
    let (text, words) = (store.text(), Locale::En.reconcile());
    let plan = shown.plan();
    let Some(calibration) = &plan.calibration else { return Html::default() };
    let Intervals { allocated, reserved, process } = intervals(plan, &shown.decision().estimate.tiers);
    let peaks = [(TierName::Allocated, allocated), (TierName::Reserved, reserved), (TierName::Process, process)];
    // What was fitted on another card holds there.
    let here = calibration.quantities.iter().filter(|quantity| plan.fitted(quantity.of).is_some());
    let quantities = here.map(|quantity| words.quantity(quantity));
    let peaks = peaks.into_iter().filter_map(|(tier, within)| Some(words.within(tier, within?)));
    html! {
        <div class="meas" id="calibration">
            <h3>{ text.label(Label::Calibration) }</h3>
            <p class="note">{ words.calibrated(calibration.measurements) }</p>
            <ul class="caveats small">{ for quantities.chain(peaks).map(|said| html! { <li>{ said }</li> }) }</ul>
            <div class="acts">
                <button class="btn" type="button" id="remove-calibration"
                    onclick={store.on(move |_: MouseEvent| Action::RemoveCalibration(text.label(Label::NoCalibration).into()))}>
                    { text.label(Label::RemoveCalibration) }
                </button>
            </div>
        </div>
    }
}

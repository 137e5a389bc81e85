//! The timeline picture.

use vram_budget::bill::Part;
use vram_budget::text::Label;
use vram_budget::view::answer::Key;
use vram_budget::view::timeline::{SIDE, Timeline};
use yew::prelude::*;

use crate::answer::{anchor, key, letter, stripes};
use crate::store::Handle;

/// The height of the plot, and the room above it for the peak's label, in px.
const HEIGHT: f64 = 220.0;
const ABOVE: f64 = 18.0;

/// The section.
pub(crate) fn timeline_section(store: &Handle) -> Html {
    let text = store.text();
    let Some(picture) = store.0.outcome.shown.as_ref().and_then(|s| Timeline::new(s.decision(), text)) else {
        return Html::default();
    };
    html! {
        <section class="step" id="timeline" aria-labelledby="h-timeline">
            <span class="num"></span>
            <div>
                <h2 id="h-timeline">{ text.label(Label::Timeline) }</h2>
                <p class="ask">{ text.label(Label::TimelineAsk) }</p>
                <figure>
                    <div class="chart">{ plot(&picture) }</div>
                    <div class="legend">
                        { for picture.areas.iter().map(|(part, _)| html! {
                            <span>{ key(Key::Part(*part)) }{ text.part(*part) }</span>
                        }) }
                    </div>
                    <figcaption>{ text.label(Label::TimelineNote) }</figcaption>
                </figure>
            </div>
        </section>
    }
}

fn plot(picture: &Timeline) -> Html {
    let x = |percent: f64| format!("{percent:.2}%");
    let y = |percent: f64| format!("{:.1}", ABOVE + percent / 100.0 * HEIGHT);
    let foot = ABOVE + HEIGHT;
    let tick = |(at, label): &(f64, String)| {
        html! {
            <>
                <line class="grid" x1="0" x2="100%" y1={y(*at)} y2={y(*at)} />
                <text x="-10" y={y(*at)} dy="4" text-anchor="end">{ label.clone() }</text>
            </>
        }
    };
    let area = |(part, d): &(Part, String)| match part {
        Part::Temporary => html! { <path fill="url(#stripe-t)" d={d.clone()} /> },
        part => html! { <path class={format!("p-{}", letter(*part))} d={d.clone()} /> },
    };
    let phase = |(at, name): &(f64, Option<&'static str>)| {
        // A name that begins far to the right ends at the edge.
        let (from, dx, side) = if *at > 70.0 { (100.0, "0", "end") } else { (*at, "5", "start") };
        html! {
            <>
                <line class="phase" x1={x(*at)} x2={x(*at)} y1={y(0.0)} y2={format!("{:.1}", foot + 18.0)} />
                if let Some(name) = name {
                    <text x={x(from)} {dx} y={format!("{:.1}", foot + 16.0)} text-anchor={side}>{ *name }</text>
                }
            </>
        }
    };
    let (peak_x, peak_y, peak) = &picture.peak;
    html! {
        <svg height={format!("{:.0}", foot + 22.0)} role="img" aria-label={picture.alt.clone()}>
            { stripes("stripe-t") }
            { for picture.ticks.iter().map(tick) }
            <svg x="0" y={ABOVE.to_string()} width="100%" height={HEIGHT.to_string()}
                viewBox={format!("0 0 {SIDE} {SIDE}")} preserveAspectRatio="none">
                { for picture.areas.iter().rev().map(area) }
            </svg>
            { for picture.phases.iter().map(phase) }
            if let Some((at, label)) = &picture.card {
                <line class="halo" x1="0" x2="100%" y1={y(*at)} y2={y(*at)} />
                <line class="cap" x1="0" x2="100%" y1={y(*at)} y2={y(*at)} />
                <text class="strong" x="-10" y={y(*at)} dy="4" text-anchor="end">{ label.clone() }</text>
            }
            <text class="strong" x={x(*peak_x)} y={y(*peak_y)} dy="-5" text-anchor={anchor(*peak_x)}>{ peak.clone() }</text>
        </svg>
    }
}

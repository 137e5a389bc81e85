//! Memory through one step as a picture: stacked areas over the order of events.

use std::fmt::Write;

use crate::bill::{Instant, Part, PartBytes};
use crate::decide::Decision;
use crate::text::{Catalogue, Label, Msg};
use crate::units::{Bytes, three_digits};
use crate::view::number::{decimal, hundredths};

/// The side of the picture's inner square, in which paths are drawn.
pub const SIDE: f64 = 1000.0;

/// How far apart labels must be, in percent.
const ROOM: f64 = 7.0;

/// The picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// One area per part, in the order of [`Part::ALL`]: the `d` of its path.
    pub areas: Vec<(Part, String)>,
    /// The axis's ticks: height in percent from the top, and the label.
    pub ticks: Vec<(f64, String)>,
    /// The phases: where each begins in percent from the left, and its name where there is room for it.
    pub phases: Vec<(f64, Option<&'static str>)>,
    /// The card: its height in percent from the top, and the label; `None` when not known or far above.
    pub card: Option<(f64, String)>,
    /// The peak: where it is in percent from the left and the top, and its label.
    pub peak: (f64, f64, String),
    /// The picture in words.
    pub alt: String,
}

impl Timeline {
    /// The picture of `decision`; `None` when there is nothing to draw.
    #[must_use]
    pub fn new(decision: &Decision, text: &dyn Catalogue) -> Option<Self> {
        let points = &decision.estimate.timeline;
        let first = points.first()?.at;
        let last = points.last()?.at;
        let length = as_f64(last.saturating_sub(first)).max(1.0);
        let peak = points.iter().max_by_key(|point| point.parts.total())?;
        let peak_bytes = peak.parts.total();
        if peak_bytes == Bytes::ZERO {
            return None;
        }
        // The card is shown where it helps to see the step against it.
        let card = decision.verdict.numbers.capacity.filter(|card| card.as_f64() <= 1.6 * peak_bytes.as_f64());
        let (top, tick) = axis(peak_bytes.max(card.unwrap_or_default()).as_gib() * 1.04);
        let x = |at: u64| as_f64(at.saturating_sub(first)) / length * SIDE;
        let y = |bytes: f64| SIDE - bytes / (top * as_f64(crate::units::GIB)) * SIDE;
        let areas = Part::ALL
            .into_iter()
            .filter(|part| points.iter().any(|point| point.parts.get(*part) > Bytes::ZERO))
            .map(|part| {
                let below =
                    |parts: &PartBytes| -> f64 { parts.0.iter().take(part as usize).map(|bytes| bytes.as_f64()).sum() };
                let mut d = String::new();
                // Along the top from left to right, and back along the bottom.
                for (i, point) in points.iter().enumerate() {
                    let above = below(&point.parts) + point.parts.get(part).as_f64();
                    let _ = write!(d, "{}{:.1} {:.1}", if i == 0 { 'M' } else { 'L' }, x(point.at), y(above));
                }
                for point in points.iter().rev() {
                    let _ = write!(d, "L{:.1} {:.1}", x(point.at), y(below(&point.parts)));
                }
                d.push('Z');
                (part, d)
            })
            .collect();
        let begins: Vec<(f64, Instant)> = Instant::ALL
            .into_iter()
            .filter_map(|instant| Some((x(points.iter().find(|p| p.instant == instant)?.at) / 10.0, instant)))
            .collect();
        let ends = begins.iter().skip(1).map(|(at, _)| *at).chain([100.0]);
        let phases = begins
            .iter()
            .zip(ends)
            .map(|((at, instant), end)| (*at, (end - at >= ROOM).then(|| text.instant(*instant))))
            .collect();
        let mut ticks = Vec::new();
        let mut at = 0.0;
        while at <= top + 1e-9 {
            let last = at + tick > top + 1e-9;
            let height = 100.0 - at / top * 100.0;
            // The card's label stands on the same axis and goes first.
            if card.is_none_or(|card| (y(card.as_f64()) / 10.0 - height).abs() > ROOM) {
                ticks.push((height, if last { format!("{at} GiB") } else { at.to_string() }));
            }
            at += tick;
        }
        Some(Self {
            areas,
            ticks,
            phases,
            card: card.map(|card| {
                (y(card.as_f64()) / 10.0, format!("{} {}", text.label(Label::CardMark), three_digits(card.as_gib())))
            }),
            peak: (
                x(peak.at) / 10.0,
                y(peak_bytes.as_f64()) / 10.0,
                text.say(&Msg::PeakBinds { gib: &decimal(hundredths(peak_bytes)) }),
            ),
            alt: text.label(Label::TimelineAlt).into(),
        })
    }
}

/// The top of an axis that holds `gib`, and the distance of its ticks: 1, 2 or 5 × a power of ten, three to six of them.
fn axis(gib: f64) -> (f64, f64) {
    let rough = (gib / 4.0).max(1e-6);
    let power = 10f64.powf(rough.log10().floor());
    let tick = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|tick| *tick >= rough);
    let tick = tick.unwrap_or(power * 10.0);
    ((gib / tick).ceil() * tick, tick)
}

#[expect(clippy::cast_precision_loss, reason = "a picture")]
fn as_f64(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_a_tick_above_the_figure() {
        for (gib, top, tick) in [(74.8, 80.0, 20.0), (9.2, 10.0, 5.0), (0.9, 1.0, 0.5), (142.0, 150.0, 50.0)] {
            assert_eq!(axis(gib), (top, tick), "{gib}");
        }
    }
}

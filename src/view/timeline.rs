//! Memory through one step as a picture: stacked areas over the order of events.

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
    /// One area per part, in the order of [`Part::ALL`]: the `d` of its path. It reaches down to the foot; to be drawn from
    /// the last to the first.
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
                let height = |parts: &PartBytes| parts.0.iter().take(part as usize + 1).map(|b| b.as_f64()).sum();
                (part, path(points.iter().map(|point| (whole(x(point.at)), whole(y(height(&point.parts)))))))
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

/// A coordinate in whole steps of a thousandth of the picture, which is finer than it is drawn.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded, and within the picture")]
fn whole(at: f64) -> u32 {
    at.clamp(0.0, SIDE).round() as u32
}

/// The `d` of the area below a line.
fn path(line: impl Iterator<Item = (u32, u32)>) -> String {
    const FOOT: u32 = 1000;
    let mut d = String::from("M0 ");
    push(&mut d, FOOT);
    let mut last = (0, FOOT);
    for (x, y) in line {
        // Most steps change one of the two; formatting by the library would take longer than the walk.
        let (command, from) = match (x == last.0, y == last.1) {
            (true, true) => continue,
            (false, true) => ('H', None),
            (true, false) => ('V', None),
            (false, false) => ('L', Some(x)),
        };
        d.push(command);
        if let Some(x) = from {
            push(&mut d, x);
            d.push(' ');
        }
        push(&mut d, if command == 'H' { x } else { y });
        last = (x, y);
    }
    d.push('V');
    push(&mut d, FOOT);
    d.push('Z');
    d
}

fn push(d: &mut String, n: u32) {
    if n >= 10 {
        push(d, n / 10);
    }
    d.extend(char::from_digit(n % 10, 10));
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
    fn an_area_lies_below_its_line() {
        let line = [(0, 400), (10, 400), (10, 250), (10, 250), (1000, 0)];
        assert_eq!(path(line.into_iter()), "M0 1000V400H10V250L1000 0V1000Z");
    }

    #[test]
    fn axes_end_on_a_tick_above_the_figure() {
        for (gib, top, tick) in [(74.8, 80.0, 20.0), (9.2, 10.0, 5.0), (0.9, 1.0, 0.5), (142.0, 150.0, 50.0)] {
            assert_eq!(axis(gib), (top, tick), "{gib}");
        }
    }
}

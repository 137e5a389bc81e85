//! Identical layers are walked once and repeated.
//!
//! A walk of [`WALKED_LAYERS`] layers stands for one of more: the third layer stands for itself and for `repeats` more
//! like it. Sums over the live set follow by counting its tensors so often; the literal list follows by writing its
//! stretches out again with numbers shifted.

use core::ops::Range;

use crate::step::log::{Event, TensorInfo};
use crate::step::train::Walk;

/// Layers that are walked of a model with more: two at each end, whose neighbours differ, and one that is repeated.
pub const WALKED_LAYERS: u64 = 5;
/// The layer that is repeated.
const MIDDLE: u32 = 3;

/// Which layer's tensors stand for the repeated layers' while `current` is being walked, or none while no moment of it
/// can be the highest of a phase: totals rise or fall from layer to layer by the same step, so the highest lies in the
/// layers at either end. The stand-in is not a neighbour of the current one.
#[must_use]
pub(crate) const fn stand_in(current: u32) -> Option<u32> {
    match current {
        0 => Some(MIDDLE),
        1 | 2 => Some(4),
        MIDDLE => None,
        _ => Some(2),
    }
}

/// The places of tensors by layer.
struct Places {
    /// Layer and place in it, by number in the short walk.
    of: Vec<(u32, u32)>,
    /// How many tensors each of the walked layers has; 0 is outside.
    count: [u32; 6],
}

impl Places {
    fn new(tensors: &[TensorInfo]) -> Option<Self> {
        let mut count = [0u32; 6];
        let mut of = Vec::with_capacity(tensors.len());
        for t in tensors {
            let place = count.get_mut(t.layer as usize)?;
            of.push((t.layer, *place));
            *place += 1;
        }
        (count[2] == count[3] && count[3] == count[4]).then_some(Self { of, count })
    }
}

/// The walk with every layer written out. `None` when the middle layers turn out not to be alike.
#[must_use]
pub fn expand(short: &Walk) -> Option<Walk> {
    if short.repeats == 0 {
        return Some(short.clone());
    }
    let repeats = u32::try_from(short.repeats).ok()?;
    let places = Places::new(&short.tensors)?;
    let last = u32::try_from(WALKED_LAYERS).ok()? + repeats;
    let [outside, first, middle, ..] = places.count;
    // The number of a tensor in the long walk: those outside first, then layer by layer.
    let start = |layer: u32| match layer {
        0 => 0,
        1 => outside,
        l => outside + first + (l - 2) * middle,
    };
    let total = start(last) + places.count[5];
    let mut tensors = vec![short.tensors.first().copied()?; total as usize];
    for (info, (layer, place)) in short.tensors.iter().zip(&places.of) {
        let copies: Range<u32> = match *layer {
            MIDDLE => MIDDLE..MIDDLE + repeats + 1,
            l if l > MIDDLE => l + repeats..l + repeats + 1,
            l => l..l + 1,
        };
        for layer in copies {
            tensors[(start(layer) + place) as usize] = TensorInfo { layer, ..*info };
        }
    }
    let mut writer = Writer { places: &places, start: &start, repeats, events: Vec::new() };
    let mut previous = 0;
    for (layer, stretch) in stretches(&short.events) {
        match layer {
            0 => writer.outside(stretch),
            MIDDLE => {
                let layers = MIDDLE..MIDDLE + repeats + 1;
                if previous > MIDDLE {
                    layers.rev().try_for_each(|l| writer.layer(l, stretch, l.wrapping_sub(MIDDLE)))?;
                } else {
                    layers.into_iter().try_for_each(|l| writer.layer(l, stretch, l - MIDDLE))?;
                }
            }
            l if l > MIDDLE => writer.layer(l + repeats, stretch, repeats)?,
            l => writer.layer(l, stretch, 0)?,
        }
        if layer != 0 {
            previous = layer;
        }
    }
    Some(Walk { events: writer.events, tensors, repeats: 0 })
}

/// The events of one layer in a row, with the layer.
fn stretches(events: &[Event]) -> Vec<(u32, &[Event])> {
    let mut out = Vec::new();
    let (mut layer, mut from) = (0, 0);
    for (at, event) in events.iter().enumerate() {
        if let Event::Layer(next) = event {
            if at > from {
                out.push((layer, &events[from..at]));
            }
            (layer, from) = (*next, at + 1);
        }
    }
    out.push((layer, &events[from..]));
    out
}

struct Writer<'a> {
    places: &'a Places,
    start: &'a dyn Fn(u32) -> u32,
    repeats: u32,
    events: Vec<Event>,
}

impl Writer<'_> {
    /// A stretch of `layer`: what it says of the walked layers holds `shift` layers on.
    fn layer(&mut self, layer: u32, stretch: &[Event], shift: u32) -> Option<()> {
        self.events.push(Event::Layer(layer));
        let repeated = layer >= MIDDLE && layer <= MIDDLE + self.repeats;
        for event in stretch {
            let number = |id: u32| {
                let (of, place) = self.places.of[id as usize];
                (self.start)(if of == 0 { 0 } else { of + shift }) + place
            };
            self.events.push(match *event {
                Event::Alloc(id) => Event::Alloc(number(id)),
                // What lies outside the layers would be freed once for each of them.
                Event::Free(id) if repeated && self.places.of[id as usize].0 == 0 => return None,
                Event::Free(id) => Event::Free(number(id)),
                Event::Becomes(id, part) => Event::Becomes(number(id), part),
                other => other,
            });
        }
        Some(())
    }

    /// A stretch outside the layers: what it says of the middle layer holds for every layer that it stands for.
    fn outside(&mut self, stretch: &[Event]) {
        self.events.push(Event::Layer(0));
        for event in stretch {
            let id = match *event {
                Event::Alloc(id) | Event::Free(id) | Event::Becomes(id, _) => id,
                other => {
                    self.events.push(other);
                    continue;
                }
            };
            let (of, place) = self.places.of[id as usize];
            let layers = match of {
                MIDDLE => MIDDLE..MIDDLE + self.repeats + 1,
                l if l > MIDDLE => l + self.repeats..l + self.repeats + 1,
                l => l..l + 1,
            };
            for layer in layers {
                let id = (self.start)(layer) + place;
                self.events.push(match *event {
                    Event::Free(_) => Event::Free(id),
                    Event::Becomes(_, part) => Event::Becomes(id, part),
                    _ => Event::Alloc(id),
                });
            }
        }
    }
}

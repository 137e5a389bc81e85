//! Identical layers are walked once and repeated.
//!
//! A walk of a few layers stands for one of more: its middle layer stands for itself and for `repeats` more like it. Sums
//! over the live set follow by counting its tensors so often; the literal list follows by writing its stretches out again
//! with numbers shifted.

use core::ops::Range;

use crate::model::family::Model;
use crate::step::log::{Event, TensorInfo};
use crate::step::train::Walk;

/// Which layer of a short walk is repeated; as many follow it as lie before it. One layer at each end is the shortest,
/// and serves where the first layer holds the same tensors as the others (see [`alike`]). Where it does not (adapters over
/// frozen weights, whose first input needs no gradient), two do: those that differ and their neighbours.
pub(crate) const MIDDLES: [u32; 2] = [2, 3];

/// How many layers are walked around the middle one, it included.
pub(crate) const fn walked(middle: u32) -> u32 {
    2 * middle - 1
}

/// Which layer's tensors stand for the repeated layers' while `current` is being walked, or none while no moment of it
/// can be the highest of a phase: totals rise or fall from layer to layer by the same step, so the highest lies in the
/// layers at either end. The stand-in is not a neighbour of the layer at the end.
#[must_use]
pub(crate) const fn stand_in(middle: u32, current: u32) -> Option<u32> {
    match current {
        0 => Some(middle),
        _ if current < middle => Some(middle + 1),
        _ if current > middle => Some(middle - 1),
        _ => None,
    }
}

/// Whether the middle layer of a short walk can stand for more: the layers around it hold the same tensors as it does, one
/// by one and as long, and it frees nothing that lies outside the layers, which would be freed once for each of them.
pub(crate) fn is_repeatable(walk: &Walk) -> bool {
    let middle = walk.middle;
    let (mut phase, mut layer) = (0u32, 0);
    // In which phase a tensor is freed, and whether by a layer.
    let mut freed = vec![(0, false); walk.tensors.len()];
    for event in &walk.events {
        match *event {
            Event::Enter(_) | Event::Mark(_) => phase += 1,
            Event::Layer(entered) => layer = entered,
            Event::Free(id) => {
                if layer == middle && walk.tensors[id as usize].layer == 0 {
                    return false;
                }
                freed[id as usize] = (phase, layer != 0);
            }
            Event::Alloc(_) | Event::Becomes(..) | Event::EmptyCache | Event::Uses(..) | Event::Synchronize => {}
        }
    }
    let of = |layer: u32| walk.tensors.iter().zip(&freed).filter(move |(t, _)| t.layer == layer);
    let what = |t: &TensorInfo| (t.bytes, t.part);
    let like_middle = |layer: u32| {
        let mut others = of(layer);
        of(middle).all(|(t, &(phase, by_layer))| {
            others.next().is_some_and(|(other, &(its_phase, _))| {
                // What the last layer gives back early, as its output, is gone in the others too where it stands for them:
                // while the first layers are walked.
                let early = layer > middle && by_layer && 0 < its_phase && its_phase < phase;
                what(other) == what(t) && (its_phase == phase || early)
            })
        }) && others.next().is_none()
    };
    like_middle(middle - 1) && like_middle(middle + 1)
}

/// A sum over a model's parameters; of layers that are all alike one is counted for all of them.
pub(crate) fn over_layers(model: &dyn Model, sum: &dyn Fn(&dyn Model) -> u64) -> u64 {
    if let (Some(one), Some(two), Some(further)) =
        (model.with_layers(1), model.with_layers(2), model.layers().checked_sub(2))
    {
        let (one, two) = (sum(one.as_ref()), sum(two.as_ref()));
        return two.saturating_add(two.saturating_sub(one).saturating_mul(further));
    }
    sum(model)
}

/// Where the tensors of a short walk lie in the long one.
struct Places {
    middle: u32,
    repeats: u32,
    /// How many tensors lie outside the layers, in the first one, and in one like the middle one.
    counts: [u32; 3],
    /// How many there are in all in the long walk.
    total: u32,
    /// By number in the short walk: the layer, and the number in the long walk where that layer is not shifted.
    of: Vec<(u32, u32)>,
}

impl Places {
    fn new(short: &Walk) -> Self {
        let middle = short.middle;
        let repeats = u32::try_from(short.repeats).unwrap_or(u32::MAX);
        let last = walked(middle);
        let mut count = vec![0u32; last as usize + 1];
        let mut of = Vec::with_capacity(short.tensors.len());
        for t in &short.tensors {
            let place = &mut count[t.layer as usize];
            of.push((t.layer, *place));
            *place += 1;
        }
        let counts = [count[0], count[1], count[middle as usize]];
        let mut places = Self { middle, repeats, counts, total: 0, of };
        places.total = places.start(last + repeats) + count[last as usize];
        let starts: Vec<u32> = (0..=last).map(|layer| places.start(layer)).collect();
        for (layer, place) in &mut places.of {
            *place += starts[*layer as usize];
        }
        places
    }

    /// The first number of a layer of the long walk: those outside first, then layer by layer.
    fn start(&self, layer: u32) -> u32 {
        let [outside, first, like_middle] = self.counts;
        match layer {
            0 => 0,
            1 => outside,
            l => outside + first + (l - 2) * like_middle,
        }
    }

    /// The number in the long walk of a tensor of the short one, in a stretch that lies `shift` layers on.
    fn shifted(&self, id: u32, shift: u32) -> u32 {
        let (layer, number) = self.of[id as usize];
        match layer {
            0 => number,
            1 if shift > 0 => number - self.start(1) + self.start(1 + shift),
            _ => number + shift * self.counts[2],
        }
    }

    /// By how many layers what the short walk says of `layer` lies on in the long one: several times for the middle one.
    fn shifts(&self, layer: u32) -> Range<u32> {
        match layer {
            l if l == self.middle => 0..self.repeats + 1,
            l if l > self.middle => self.repeats..self.repeats + 1,
            _ => 0..1,
        }
    }
}

/// The walk with every layer written out.
#[must_use]
pub fn expand(short: &Walk) -> Walk {
    let Some(first) = short.tensors.first().filter(|_| short.repeats > 0) else { return short.clone() };
    let places = Places::new(short);
    let mut tensors = vec![*first; places.total as usize];
    for (info, (id, (layer, _))) in short.tensors.iter().zip((0u32..).zip(&places.of)) {
        for shift in places.shifts(*layer) {
            tensors[places.shifted(id, shift) as usize] = TensorInfo { layer: layer + shift, ..*info };
        }
    }
    let mut events = Vec::new();
    let written: Result<(), core::convert::Infallible> = visit(short, &mut |_, event| {
        events.push(event);
        Ok(())
    });
    match written {
        Ok(()) => Walk { events, tensors, repeats: 0, middle: 0 },
    }
}

/// For how many tensors `info` stands.
pub(crate) fn copies(walk: &Walk, info: &TensorInfo) -> u64 {
    if walk.repeats > 0 && info.layer == walk.middle { 1 + walk.repeats } else { 1 }
}

/// How many storages the walk has with every layer written out.
pub(crate) fn storages(walk: &Walk) -> usize {
    if walk.repeats == 0 { walk.tensors.len() } else { Places::new(walk).total as usize }
}

/// Goes through the events of the walk with every layer written out. Beside an event about a storage, whose number there
/// it has, stands the storage's number in the short walk.
pub(crate) fn visit<E>(walk: &Walk, see: &mut impl FnMut(u32, Event) -> Result<(), E>) -> Result<(), E> {
    if walk.repeats == 0 {
        for event in &walk.events {
            see(event.storage().unwrap_or_default(), *event)?;
        }
        return Ok(());
    }
    let places = Places::new(walk);
    let middle = places.middle;
    let mut previous = 0;
    for (layer, stretch) in Stretches::of(&walk.events) {
        // Backward goes from the last layer to the first.
        let down = previous > middle;
        let shifts = places.shifts(layer);
        for n in shifts.clone() {
            let shift = if down { shifts.end - 1 - (n - shifts.start) } else { n };
            see(0, Event::Layer(if layer == 0 { 0 } else { layer + shift }))?;
            for event in stretch {
                let Some(id) = event.storage() else {
                    see(0, *event)?;
                    continue;
                };
                if layer != 0 {
                    see(id, event.about(places.shifted(id, shift)))?;
                    continue;
                }
                // What is said outside of the layers of the middle one holds for every layer that it stands for.
                for shift in places.shifts(places.of[id as usize].0) {
                    see(id, event.about(places.shifted(id, shift)))?;
                }
            }
        }
        if layer != 0 {
            previous = layer;
        }
    }
    Ok(())
}

/// The events of one layer in a row, with the layer.
struct Stretches<'a> {
    layer: u32,
    rest: &'a [Event],
}

impl<'a> Stretches<'a> {
    fn of(events: &'a [Event]) -> Self {
        Self { layer: 0, rest: events }
    }
}

impl<'a> Iterator for Stretches<'a> {
    type Item = (u32, &'a [Event]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let end = self.rest.iter().position(|e| matches!(e, Event::Layer(_))).unwrap_or(self.rest.len());
            let (layer, stretch) = (self.layer, &self.rest[..end]);
            self.rest = &self.rest[end..];
            if let Some((Event::Layer(next), rest)) = self.rest.split_first() {
                (self.layer, self.rest) = (*next, rest);
            }
            if !stretch.is_empty() {
                return Some((layer, stretch));
            }
        }
        None
    }
}

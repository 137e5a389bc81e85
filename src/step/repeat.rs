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
    let mut freed = vec![(0u32, false); walk.tensors.len()];
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
            Event::Alloc(_) | Event::Becomes(..) | Event::EmptyCache | Event::Uses(..) | Event::Sync(_) => {}
        }
    }
    // The tensors of the middle layer and of its neighbours.
    let mut around = [(); 3].map(|()| Vec::with_capacity(walk.tensors.len() / 2));
    for (at, t) in (0u32..).zip(&walk.tensors) {
        if let Some(layer) = around.get_mut((t.layer + 1).wrapping_sub(middle) as usize) {
            layer.push(at);
        }
    }
    let [before, own, after] = around;
    let like_middle = |others: &[u32], may_be_early: bool| {
        others.len() == own.len()
            && own.iter().zip(others).all(|(&own, &other)| {
                let (own, other) = (own as usize, other as usize);
                let ((phase, by_layer), (its_phase, _)) = (freed[own], freed[other]);
                // What the last layer gives back early, as its output, is gone in the others too where it stands for them:
                // while the first layers are walked.
                let early = may_be_early && by_layer && 0 < its_phase && its_phase < phase;
                let (own, other) = (&walk.tensors[own], &walk.tensors[other]);
                (other.bytes, other.part) == (own.bytes, own.part) && (its_phase == phase || early)
            })
    };
    like_middle(&before, false) && like_middle(&after, true)
}

/// Sums over a model's parameters; of layers that are all alike one is counted for all of them.
pub(crate) fn over_layers<const N: usize>(model: &dyn Model, sums: &dyn Fn(&dyn Model) -> [u64; N]) -> [u64; N] {
    if let (Some(one), Some(two), Some(further)) =
        (model.with_layers(1), model.with_layers(2), model.layers().checked_sub(2))
    {
        let (one, two) = (sums(one.as_ref()), sums(two.as_ref()));
        let whole = |at: usize| two[at].saturating_add(two[at].saturating_sub(one[at]).saturating_mul(further));
        return core::array::from_fn(whole);
    }
    sums(model)
}

/// Where the tensors of a short walk lie in the long one.
#[derive(Debug)]
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
    let mut cursor = Cursor::of(short);
    let events = core::iter::from_fn(|| cursor.next(short)).map(|(_, event)| event).collect();
    Walk { events, tensors, repeats: 0, middle: 0, on_host: short.on_host }
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
#[derive(Debug)]
pub(crate) struct Cursor {
    /// None where every layer is written out.
    places: Option<Places>,
    /// The next event of the short walk, in the events of one layer in a row.
    at: usize,
    stretch: Range<usize>,
    layer: u32,
    /// By how many layers the stretch is shifted now, and the further times that it comes.
    shift: u32,
    turns: Range<u32>,
    /// Whether the layers go by from the last to the first, as in backward.
    down: bool,
    /// What is said outside of the layers of the middle one holds for every layer that it stands for.
    further: Range<u32>,
}

impl Cursor {
    pub(crate) fn of(walk: &Walk) -> Self {
        Self {
            places: (walk.repeats > 0).then(|| Places::new(walk)),
            at: 0,
            stretch: 0..0,
            layer: 0,
            shift: 0,
            turns: 0..0,
            down: false,
            further: 0..0,
        }
    }

    /// The next event of `walk`, which is the one that the cursor was made for.
    pub(crate) fn next(&mut self, walk: &Walk) -> Option<(u32, Event)> {
        let Some(places) = &self.places else {
            let event = *walk.events.get(self.at)?;
            self.at += 1;
            return Some((event.storage().unwrap_or_default(), event));
        };
        loop {
            if self.at < self.stretch.end {
                let event = walk.events[self.at];
                let Some(id) = event.storage() else {
                    self.at += 1;
                    return Some((0, event));
                };
                if self.layer != 0 {
                    self.at += 1;
                    return Some((id, event.about(places.shifted(id, self.shift))));
                }
                if self.further.is_empty() {
                    self.further = places.shifts(places.of[id as usize].0);
                }
                let shift = self.further.next()?;
                self.at += usize::from(self.further.is_empty());
                return Some((id, event.about(places.shifted(id, shift))));
            }
            if let Some(turn) = self.turns.next() {
                self.at = self.stretch.start;
                let shifts = places.shifts(self.layer);
                self.shift = if self.down { shifts.end - 1 - (turn - shifts.start) } else { turn };
                let layer = if self.layer == 0 { 0 } else { self.layer + self.shift };
                return Some((0, Event::Layer(layer)));
            }
            let rest = walk.events.get(self.stretch.end..)?;
            let layers = rest.iter().map_while(|event| if let Event::Layer(l) = event { Some(*l) } else { None });
            let before = self.layer;
            let start = self.stretch.end
                + layers.fold(0, |n, layer| {
                    self.layer = layer;
                    n + 1
                });
            let stretch = walk.events.get(start..).filter(|rest| !rest.is_empty())?;
            let length = stretch.iter().position(|e| matches!(e, Event::Layer(_))).unwrap_or(stretch.len());
            self.stretch = start..start + length;
            if before != 0 {
                self.down = before > places.middle;
            }
            self.at = self.stretch.end;
            self.turns = places.shifts(self.layer);
        }
    }
}

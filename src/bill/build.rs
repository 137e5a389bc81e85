//! From the walk to the bill: the live set at the highest moment of each phase of the last step.

use std::collections::BTreeMap;

use crate::bill::{Bill, Cell, Column, Instant, Line, Part, PartBytes, Provenance, ProvenanceKind, TimelinePoint};
use crate::order::sort_short_by;
use crate::step::log::{Event, Mark, TensorInfo};
use crate::step::repeat::stand_in;
use crate::step::shape::Symbol;
use crate::step::train::Walk;
use crate::units::Bytes;

/// The most points that a timeline has.
pub const MAX_TIMELINE_POINTS: usize = 512;

/// Where the figures come from, by part.
#[derive(Clone, Debug, PartialEq)]
pub struct Sources {
    /// Parameters and buffers.
    pub weights: Provenance,
    /// Optimizer states.
    pub states: Provenance,
    /// Everything autograd decides.
    pub autograd: Provenance,
}

impl Sources {
    fn of(&self, part: Part) -> &Provenance {
        match part {
            Part::Weights => &self.weights,
            Part::States => &self.states,
            Part::Gradients | Part::Activations | Part::Temporary => &self.autograd,
        }
    }
}

/// The live set while events go by. Of a short walk the third layer stands for several.
struct Live<'a> {
    tensors: &'a [TensorInfo],
    repeats: u64,
    parts: Vec<Option<Part>>,
    /// By layer walked, outside first; a walk that is written out has one entry.
    layers: [PartBytes; 6],
    layer: u32,
}

impl<'a> Live<'a> {
    fn new(walk: &'a Walk) -> Self {
        Self {
            tensors: &walk.tensors,
            repeats: walk.repeats,
            parts: vec![None; walk.tensors.len()],
            layers: [PartBytes::default(); 6],
            layer: 0,
        }
    }

    fn layer_of(&self, info: &TensorInfo) -> usize {
        if self.repeats == 0 { 0 } else { (info.layer as usize).min(5) }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Alloc(id) => {
                let info = &self.tensors[id as usize];
                self.parts[id as usize] = Some(info.part);
                self.layers[self.layer_of(info)].0[info.part as usize] += info.bytes;
            }
            Event::Free(id) => {
                if let Some(part) = self.parts[id as usize].take() {
                    let info = &self.tensors[id as usize];
                    let sum = &mut self.layers[self.layer_of(info)].0[part as usize];
                    *sum = *sum - info.bytes;
                }
            }
            Event::Becomes(id, part) => {
                if let Some(before) = self.parts[id as usize].replace(part) {
                    let info = &self.tensors[id as usize];
                    let sums = &mut self.layers[self.layer_of(info)].0;
                    sums[before as usize] = sums[before as usize] - info.bytes;
                    sums[part as usize] += info.bytes;
                }
            }
            Event::Layer(layer) => self.layer = layer,
            Event::Enter(_) | Event::Mark(_) | Event::EmptyCache => {}
        }
    }

    /// The live set's sums, or none while no moment can be a phase's highest.
    fn sums(&self) -> Option<PartBytes> {
        let mut sums = self.layers[0];
        if self.repeats == 0 {
            return Some(sums);
        }
        let stand_in = stand_in(self.layer)? as usize;
        for layer in &self.layers[1..] {
            for (sum, bytes) in sums.0.iter_mut().zip(&layer.0) {
                *sum += *bytes;
            }
        }
        for (sum, bytes) in sums.0.iter_mut().zip(&self.layers[stand_in].0) {
            *sum += Bytes(bytes.get() * self.repeats);
        }
        Some(sums)
    }

    /// How many tensors `info` stands for.
    fn times(&self, info: &TensorInfo) -> u64 {
        match stand_in(self.layer) {
            Some(layer) if self.repeats > 0 && layer == info.layer => 1 + self.repeats,
            _ => 1,
        }
    }
}

/// Where the last step begins and ends among the events.
fn last_step(events: &[Event]) -> core::ops::Range<usize> {
    let start = events.iter().rposition(|e| *e == Event::Mark(Mark::Step)).unwrap_or(0);
    let end = events.iter().rposition(|e| *e == Event::Mark(Mark::ZeroGradEnd)).unwrap_or(events.len());
    start..end.max(start)
}

/// The bill of the walk's last step. `symbols` are the formulas' letters and their values.
#[must_use]
pub fn bill(walk: &Walk, symbols: Vec<(&'static str, u64)>, sources: &Sources) -> Bill {
    let step = last_step(&walk.events);
    let highest = highest_moments(walk, &step);
    let mut columns = Vec::new();
    for (instant, moment) in Instant::ALL.into_iter().zip(highest) {
        let mut live = Live::new(walk);
        for event in &walk.events[..moment] {
            live.apply(*event);
        }
        let parts = live.sums().unwrap_or_default();
        columns.push(Column { instant, parts, cells: cells(&live, &parts, sources) });
    }
    let binding = columns.iter().max_by_key(|c| c.parts.total()).map_or(Instant::Step, |c| c.instant);
    Bill { columns, binding, symbols: symbols.into_iter().map(|(s, n)| (s.to_owned(), n)).collect() }
}

/// For each instant, how many events lie before its highest moment is reached and past.
fn highest_moments(walk: &Walk, step: &core::ops::Range<usize>) -> [usize; 4] {
    let mut live = Live::new(walk);
    let mut best = [(0u64, step.start); 4];
    let mut instant = Instant::Forward;
    for (at, event) in walk.events[..step.end].iter().enumerate() {
        live.apply(*event);
        if let Event::Enter(entered) = event {
            instant = *entered;
        }
        // Only an allocation can be a new height.
        if at >= step.start
            && matches!(event, Event::Alloc(_))
            && let Some(total) = live.sums().map(|s| s.total().get())
            && total > best[instant as usize].0
        {
            best[instant as usize] = (total, at + 1);
        }
    }
    best.map(|(_, at)| at)
}

fn cells(live: &Live<'_>, parts: &PartBytes, sources: &Sources) -> Vec<Cell> {
    // Alike: the same module, operation, element size and dimensions.
    type Key = (&'static str, &'static str, u64, Vec<(u64, String)>);
    let mut groups: [BTreeMap<Key, u64>; 5] = Default::default();
    for (info, part) in live.tensors.iter().zip(&live.parts) {
        let Some(part) = part else { continue };
        if info.bytes == Bytes::ZERO {
            continue;
        }
        let dims = info.dims.iter().filter(|d| d.n != 1 || d.sym.symbols().next().is_some());
        let dims = dims.map(|d| (d.n, letters(d.sym.symbols()))).collect();
        *groups[*part as usize].entry((info.scope, info.op, info.element, dims)).or_default() += live.times(info);
    }
    let cell = |part: Part| {
        let mut lines: Vec<Line> = groups[part as usize]
            .iter()
            .map(|((scope, op, element, dims), count)| {
                let one = element * dims.iter().map(|(n, _)| n).product::<u64>();
                Line {
                    label: format!("{scope}: {op}"),
                    count: *count,
                    formula: product(
                        *element,
                        dims.iter().map(|(n, l)| if l.is_empty() { n.to_string() } else { l.clone() }),
                    ),
                    numbers: product(*element, dims.iter().map(|(n, _)| n.to_string())),
                    bytes: Bytes(one * count),
                    provenance: sources.of(part).clone(),
                }
            })
            .collect();
        sort_short_by(&mut lines, |a, b| (b.bytes, &a.label) < (a.bytes, &b.label));
        Cell { part, bytes: parts.get(part), lines }
    };
    Part::ALL.map(cell).into()
}

fn letters(symbols: impl Iterator<Item = Symbol>) -> String {
    let all: Vec<&str> = symbols.map(Symbol::letter).collect();
    all.join(" ")
}

fn product(element: u64, factors: impl Iterator<Item = String>) -> String {
    let mut text = format!("{element} B");
    for f in factors {
        text.push_str(" × ");
        text.push_str(&f);
    }
    text
}

/// The last step as a picture can hold it: in each stretch of events the highest moment, at most
/// [`MAX_TIMELINE_POINTS`] of them. Of a short walk, the repeated layers are drawn as one slope.
#[must_use]
pub fn timeline(walk: &Walk) -> Vec<TimelinePoint> {
    let step = last_step(&walk.events);
    let mut live = Live::new(walk);
    for event in &walk.events[..step.start] {
        live.apply(*event);
    }
    let stretch = step.len().div_ceil(MAX_TIMELINE_POINTS).max(1);
    let mut instant = Instant::Forward;
    let mut points = Vec::new();
    for (i, events) in walk.events[step].chunks(stretch).enumerate() {
        let mut best: Option<(u64, TimelinePoint)> = None;
        for (j, event) in events.iter().enumerate() {
            live.apply(*event);
            if let Event::Enter(entered) = event {
                instant = *entered;
            }
            let Some(parts) = live.sums() else { continue };
            let total = parts.total().get();
            if best.as_ref().is_none_or(|(most, _)| total > *most) {
                best = Some((total, TimelinePoint { at: (i * stretch + j) as u64, instant, parts }));
            }
        }
        points.extend(best.map(|(_, p)| p));
    }
    points
}

/// How a figure by the framework's rules is known.
#[must_use]
pub fn modelled(source: impl Into<String>) -> Provenance {
    Provenance { kind: ProvenanceKind::Modelled, source: source.into() }
}

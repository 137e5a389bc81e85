//! From the walk to the bill: the live set at the highest moment of each phase of the last step.

use std::collections::BTreeMap;

use crate::bill::{Bill, Cell, Column, Instant, Line, Part, PartBytes, Provenance, ProvenanceKind, TimelinePoint};
use crate::order::sort_short_by;
use crate::step::log::{Event, Mark, TensorInfo};
use crate::step::repeat::stand_in;
use crate::step::shape::{Dim, MAX_RANK, Symbol};
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
    /// All of it, and of it by layer walked, outside first.
    all: Sums,
    layers: [Sums; 6],
    layer: u32,
}

/// Bytes by part, and in all.
#[derive(Clone, Copy, Default)]
struct Sums {
    parts: PartBytes,
    total: u64,
}

impl Sums {
    fn add(&mut self, part: Part, bytes: Bytes) {
        self.parts.0[part as usize] += bytes;
        self.total += bytes.get();
    }

    fn subtract(&mut self, part: Part, bytes: Bytes) {
        let sum = &mut self.parts.0[part as usize];
        *sum = *sum - bytes;
        self.total -= bytes.get();
    }
}

impl<'a> Live<'a> {
    fn new(walk: &'a Walk) -> Self {
        Self {
            tensors: &walk.tensors,
            repeats: walk.repeats,
            parts: vec![None; walk.tensors.len()],
            all: Sums::default(),
            layers: [Sums::default(); 6],
            layer: 0,
        }
    }

    /// Changes the sums that `info` counts in.
    fn change(&mut self, info: &TensorInfo, change: impl Fn(&mut Sums)) {
        change(&mut self.all);
        if self.repeats > 0
            && let Some(layer) = self.layers.get_mut(info.layer as usize)
        {
            change(layer);
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Alloc(id) => {
                let info = &self.tensors[id as usize];
                self.parts[id as usize] = Some(info.part);
                self.change(info, |sums| sums.add(info.part, info.bytes));
            }
            Event::Free(id) => {
                if let Some(part) = self.parts[id as usize].take() {
                    let info = &self.tensors[id as usize];
                    self.change(info, |sums| sums.subtract(part, info.bytes));
                }
            }
            Event::Becomes(id, part) => {
                if let Some(before) = self.parts[id as usize].replace(part) {
                    let info = &self.tensors[id as usize];
                    self.change(info, |sums| {
                        sums.subtract(before, info.bytes);
                        sums.add(part, info.bytes);
                    });
                }
            }
            Event::Layer(layer) => self.layer = layer,
            Event::Enter(_) | Event::Mark(_) | Event::EmptyCache => {}
        }
    }

    /// Whose sums the repeated layers have; none while no moment can be a phase's highest.
    fn repeated(&self) -> Option<&Sums> {
        // Without repetition any layer will do: it is counted no further time.
        if self.repeats == 0 { Some(&self.layers[0]) } else { self.layers.get(stand_in(self.layer)? as usize) }
    }

    /// Everything alive, or none while no moment can be a phase's highest.
    fn total(&self) -> Option<u64> {
        Some(self.all.total + self.repeated()?.total * self.repeats)
    }

    /// Everything alive by part, or none while no moment can be a phase's highest.
    fn parts(&self) -> Option<PartBytes> {
        let mut parts = self.all.parts;
        for (sum, bytes) in parts.0.iter_mut().zip(&self.repeated()?.parts.0) {
            *sum += Bytes(bytes.get() * self.repeats);
        }
        Some(parts)
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
    let kinds = Kinds::of(&walk.tensors);
    let mut columns = Vec::new();
    for (instant, moment) in Instant::ALL.into_iter().zip(highest) {
        let mut live = Live::new(walk);
        for event in &walk.events[..moment] {
            live.apply(*event);
        }
        let parts = live.parts().unwrap_or_default();
        columns.push(Column { instant, parts, cells: kinds.cells(&live, &parts, sources) });
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
        // Only an allocation can be a new height, and what a phase begins with.
        if at >= step.start
            && matches!(event, Event::Alloc(_) | Event::Enter(_))
            && let Some(total) = live.total()
            && total > best[instant as usize].0
        {
            best[instant as usize] = (total, at + 1);
        }
    }
    best.map(|(_, at)| at)
}

/// The kinds of tensors of a walk: the same module, operation, element size and dimensions. One is one line of a cell.
struct Kinds {
    /// By tensor, positions in `kinds`.
    of: Vec<usize>,
    kinds: Vec<Kind>,
}

struct Kind {
    label: String,
    formula: String,
    numbers: String,
    bytes: Bytes,
}

impl Kinds {
    fn of(tensors: &[TensorInfo]) -> Self {
        type Key<'a> = (&'a str, &'a str, u64, [Dim; MAX_RANK]);
        let mut known: BTreeMap<Key<'_>, usize> = BTreeMap::new();
        let mut kinds = Vec::new();
        let of = tensors
            .iter()
            .map(|t| {
                *known.entry((t.scope, t.op, t.element, t.dims)).or_insert_with(|| {
                    kinds.push(Kind::of(t));
                    kinds.len() - 1
                })
            })
            .collect();
        Self { of, kinds }
    }

    fn cells(&self, live: &Live<'_>, parts: &PartBytes, sources: &Sources) -> Vec<Cell> {
        let mut counts = vec![[0u64; 5]; self.kinds.len()];
        for ((info, part), kind) in live.tensors.iter().zip(&live.parts).zip(&self.of) {
            if let Some(part) = part {
                counts[*kind][*part as usize] += live.times(info);
            }
        }
        let cell = |part: Part| {
            let mut lines: Vec<Line> = self
                .kinds
                .iter()
                .zip(&counts)
                .map(|(kind, counts)| (kind, counts[part as usize]))
                .filter(|(kind, count)| *count > 0 && kind.bytes > Bytes::ZERO)
                .map(|(kind, count)| Line {
                    label: kind.label.clone(),
                    count,
                    formula: kind.formula.clone(),
                    numbers: kind.numbers.clone(),
                    bytes: Bytes(kind.bytes.get() * count),
                    provenance: sources.of(part).clone(),
                })
                .collect();
            sort_short_by(&mut lines, |a, b| (b.bytes, &a.label) < (a.bytes, &b.label));
            Cell { part, bytes: parts.get(part), lines }
        };
        Part::ALL.map(cell).into()
    }
}

impl Kind {
    fn of(t: &TensorInfo) -> Self {
        let dims = || t.dims.iter().filter(|d| d.n != 1 || d.sym.symbols().next().is_some());
        let symbol = |d: &Dim| match letters(d.sym.symbols()) {
            none if none.is_empty() => d.n.to_string(),
            letters => letters,
        };
        Self {
            label: format!("{}: {}", t.scope, t.op),
            formula: product(t.element, dims().map(symbol)),
            numbers: product(t.element, dims().map(|d| d.n.to_string())),
            bytes: t.bytes,
        }
    }
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
    let mut at = 0u64;
    for events in walk.events[step].chunks(stretch) {
        let mut best: Option<(u64, TimelinePoint)> = None;
        for event in events {
            live.apply(*event);
            // What is walked once for several layers takes the place of all of them.
            at += if stand_in(live.layer).is_none() { 1 + walk.repeats } else { 1 };
            if let Event::Enter(entered) = event {
                instant = *entered;
            }
            if let Some(total) = live.total()
                && best.as_ref().is_none_or(|(most, _)| total > *most)
                && let Some(parts) = live.parts()
            {
                best = Some((total, TimelinePoint { at, instant, parts }));
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

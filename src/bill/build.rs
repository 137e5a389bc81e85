//! From the walk to the bill: the live set at the highest moment of each phase of the last step.

use std::collections::BTreeMap;

use crate::bill::{Bill, Cell, Column, Instant, Line, Part, PartBytes, Provenance, ProvenanceKind, TimelinePoint};
use crate::step::log::{Event, Mark, TensorInfo};
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

/// The live set while events go by.
struct Live<'a> {
    tensors: &'a [TensorInfo],
    parts: Vec<Option<Part>>,
    bytes: PartBytes,
    total: u64,
}

impl<'a> Live<'a> {
    fn new(tensors: &'a [TensorInfo]) -> Self {
        Self { tensors, parts: vec![None; tensors.len()], bytes: PartBytes::default(), total: 0 }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Alloc(id) => {
                let info = &self.tensors[id as usize];
                self.parts[id as usize] = Some(info.part);
                self.bytes.0[info.part as usize] += info.bytes;
                self.total += info.bytes.get();
            }
            Event::Free(id) => {
                if let Some(part) = self.parts[id as usize].take() {
                    let bytes = self.tensors[id as usize].bytes;
                    self.bytes.0[part as usize] = self.bytes.0[part as usize] - bytes;
                    self.total -= bytes.get();
                }
            }
            Event::Becomes(id, part) => {
                if let Some(before) = self.parts[id as usize].replace(part) {
                    let bytes = self.tensors[id as usize].bytes;
                    self.bytes.0[before as usize] = self.bytes.0[before as usize] - bytes;
                    self.bytes.0[part as usize] += bytes;
                }
            }
            Event::Enter(_) | Event::Mark(_) | Event::EmptyCache => {}
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
        let mut live = Live::new(&walk.tensors);
        for event in &walk.events[..moment] {
            live.apply(*event);
        }
        columns.push(Column { instant, parts: live.bytes, cells: cells(&live, sources) });
    }
    let binding = columns.iter().max_by_key(|c| c.parts.total()).map_or(Instant::Step, |c| c.instant);
    Bill { columns, binding, symbols: symbols.into_iter().map(|(s, n)| (s.to_owned(), n)).collect() }
}

/// For each instant, how many events lie before its highest moment is reached and past.
fn highest_moments(walk: &Walk, step: &core::ops::Range<usize>) -> [usize; 4] {
    let mut live = Live::new(&walk.tensors);
    let mut best = [(0u64, step.start); 4];
    let mut instant = Instant::Forward;
    for (at, event) in walk.events[..step.end].iter().enumerate() {
        live.apply(*event);
        if let Event::Enter(entered) = event {
            instant = *entered;
        }
        let seen = &mut best[instant as usize];
        if at >= step.start && live.total > seen.0 {
            *seen = (live.total, at + 1);
        }
    }
    best.map(|(_, at)| at)
}

fn cells(live: &Live<'_>, sources: &Sources) -> Vec<Cell> {
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
        *groups[*part as usize].entry((info.scope, info.op, info.element, dims)).or_default() += 1;
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
        lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.label.cmp(&b.label)));
        Cell { part, bytes: live.bytes.get(part), lines }
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
/// [`MAX_TIMELINE_POINTS`] of them.
#[must_use]
pub fn timeline(walk: &Walk) -> Vec<TimelinePoint> {
    let step = last_step(&walk.events);
    let mut live = Live::new(&walk.tensors);
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
            if best.as_ref().is_none_or(|(total, _)| live.total > *total) {
                let at = (i * stretch + j) as u64;
                best = Some((live.total, TimelinePoint { at, instant, parts: live.bytes }));
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

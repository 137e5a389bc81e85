//! From the walk to the bill: the live set at the highest moment of each phase of the last step.

use crate::bill::{
    Bill, Column, Instant, Kind, Part, PartBytes, Provenance, ProvenanceKind, Sources, Tensors, TimelinePoint,
};
use crate::order::sort_short_by_key;
use crate::step::log::{Event, Mark, TensorInfo};
use crate::step::repeat::stand_in;
use crate::step::train::Walk;
use crate::units::Bytes;

/// The most points that a timeline has.
pub const MAX_TIMELINE_POINTS: usize = 512;

/// The live set while events go by. Of a short walk the middle layer stands for several.
struct Live<'a> {
    tensors: &'a [TensorInfo],
    repeats: u64,
    middle: u32,
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
            middle: walk.middle,
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
            Event::Enter(_) | Event::Mark(_) | Event::EmptyCache | Event::Uses(..) | Event::Sync(_) => {}
        }
    }

    /// Whose sums the repeated layers have; none while no moment can be a phase's highest.
    fn repeated(&self) -> Option<&Sums> {
        // Without repetition any layer will do: it is counted no further time.
        if self.repeats == 0 {
            Some(&self.layers[0])
        } else {
            self.layers.get(stand_in(self.middle, self.layer)? as usize)
        }
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

    /// What is alive, counted by kind and part; `of` are the tensors' kinds, of which there are `kinds`.
    fn by_kind(&self, of: &[usize], kinds: usize) -> Vec<Tensors> {
        let mut counts = vec![[0u64; 5]; kinds];
        for ((info, part), kind) in self.tensors.iter().zip(&self.parts).zip(of) {
            if let Some(part) = part {
                counts[*kind][*part as usize] += self.times(info);
            }
        }
        let mut out = Vec::new();
        for (kind, counts) in counts.into_iter().enumerate() {
            let counts = Part::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0);
            out.extend(counts.map(|(part, count)| Tensors { kind, part, count }));
        }
        out
    }

    /// How many tensors `info` stands for.
    fn times(&self, info: &TensorInfo) -> u64 {
        let stands_in = self.repeats > 0 && stand_in(self.middle, self.layer) == Some(info.layer);
        if stands_in { 1 + self.repeats } else { 1 }
    }
}

/// Where the last step begins and ends among the events.
fn last_step(events: &[Event]) -> core::ops::Range<usize> {
    let start = events.iter().rposition(|e| *e == Event::Mark(Mark::Step)).unwrap_or(0);
    let end = events.iter().rposition(|e| *e == Event::Mark(Mark::ZeroGradEnd)).unwrap_or(events.len());
    start..end.max(start)
}

/// The bill of the walk's last step, and the step as a picture can hold it: in each stretch of events the highest moment,
/// at most [`MAX_TIMELINE_POINTS`] of them. Of a short walk, the repeated layers are drawn as one slope. `symbols` are the
/// formulas' letters and their values.
#[must_use]
pub fn bill(walk: &Walk, symbols: Vec<(&'static str, u64)>, sources: Sources) -> (Bill, Vec<TimelinePoint>) {
    let (mut moments, timeline) = heights(walk);
    sort_short_by_key(&mut moments, |(_, at)| *at);
    let (kinds, of) = kinds(&walk.tensors);
    let mut live = Live::new(walk);
    let mut columns = Instant::ALL.map(|instant| Column { instant, parts: PartBytes::default(), tensors: Vec::new() });
    let mut from = 0;
    for (instant, moment) in moments {
        for event in &walk.events[from..moment] {
            live.apply(*event);
        }
        from = moment;
        let column = &mut columns[instant as usize];
        column.parts = live.parts().unwrap_or_default();
        column.tensors = live.by_kind(&of, kinds.len());
    }
    let columns = Vec::from(columns);
    let binding = columns.iter().max_by_key(|c| c.parts.total()).map_or(Instant::Step, |c| c.instant);
    (Bill { columns, binding, symbols, kinds, sources }, timeline)
}

/// How much a walk's last step holds at most, in requested bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peaks {
    /// At each instant, in order.
    pub(crate) of: [u64; 4],
    /// When the optimizer's step begins.
    pub(crate) before_step: u64,
}

impl Peaks {
    /// The most.
    pub(crate) fn most(&self) -> u64 {
        self.of.into_iter().max().unwrap_or_default()
    }
}

/// The heights of the walk's last step alone: what [`bill`] says of the columns' sums.
pub(crate) fn peaks(walk: &Walk) -> Peaks {
    let step = last_step(&walk.events);
    let mut live = Live::new(walk);
    for event in &walk.events[..step.start] {
        live.apply(*event);
    }
    let mut instant = Instant::Forward;
    let mut peaks = Peaks::default();
    for event in &walk.events[step] {
        live.apply(*event);
        let entered = if let Event::Enter(entered) = event { Some(*entered) } else { None };
        if entered.is_none() && !matches!(event, Event::Alloc(_)) {
            continue;
        }
        instant = entered.unwrap_or(instant);
        let Some(total) = live.total() else { continue };
        let most = &mut peaks.of[instant as usize];
        *most = total.max(*most);
        if entered == Some(Instant::Step) {
            peaks.before_step = total;
        }
    }
    peaks
}

/// For each instant, how many events lie before its highest moment is reached and past; and the timeline.
fn heights(walk: &Walk) -> ([(Instant, usize); 4], Vec<TimelinePoint>) {
    let step = last_step(&walk.events);
    let mut live = Live::new(walk);
    for event in &walk.events[..step.start] {
        live.apply(*event);
    }
    let stretch = step.len().div_ceil(MAX_TIMELINE_POINTS).max(1);
    let mut instant = Instant::Forward;
    let mut best = Instant::ALL.map(|instant| (instant, step.start));
    let mut most = [0u64; 4];
    let mut points = Vec::with_capacity(step.len().div_ceil(stretch));
    let (mut place, mut at) = (step.start, 0u64);
    for events in walk.events[step].chunks(stretch) {
        let mut point: Option<(u64, TimelinePoint)> = None;
        for event in events {
            live.apply(*event);
            place += 1;
            // What is walked once for several layers takes the place of all of them.
            at += if live.repeats > 0 && live.layer == live.middle { 1 + live.repeats } else { 1 };
            if let Event::Enter(entered) = event {
                instant = *entered;
            }
            // Only an allocation can be a new height, and what a phase begins with.
            let rises = matches!(event, Event::Alloc(_) | Event::Enter(_));
            if !rises && point.is_some() && !matches!(event, Event::Layer(_)) {
                continue;
            }
            let Some(total) = live.total() else { continue };
            if rises && total > most[instant as usize] {
                most[instant as usize] = total;
                best[instant as usize] = (instant, place);
            }
            if point.as_ref().is_none_or(|(most, _)| total > *most)
                && let Some(parts) = live.parts()
            {
                point = Some((total, TimelinePoint { at, instant, parts }));
            }
        }
        points.extend(point.map(|(_, p)| p));
    }
    (best, points)
}

/// The kinds of tensors of a walk, and by tensor its kind's position among them.
fn kinds(tensors: &[TensorInfo]) -> (Vec<Kind>, Vec<usize>) {
    const PLACES: usize = 256;
    // A table by hash saves most comparisons: the newest kind of each place, and by kind the next older one there.
    let mut newest = [usize::MAX; PLACES];
    let mut older = Vec::new();
    let mut kinds: Vec<Kind> = Vec::new();
    let mut of = Vec::with_capacity(tensors.len());
    for t in tensors {
        let kind = Kind { bytes: t.bytes, element: t.element, dims: t.dims, scope: t.scope, op: t.op, written: None };
        let newest = &mut newest[kind.hash() % PLACES];
        let mut at = *newest;
        while kinds.get(at).is_some_and(|known| *known != kind) {
            at = older[at];
        }
        if at == usize::MAX {
            at = kinds.len();
            older.push(core::mem::replace(newest, at));
            kinds.push(kind);
        }
        of.push(at);
    }
    (kinds, of)
}

/// How a figure by the framework's rules is known.
#[must_use]
pub fn modelled(source: impl Into<String>) -> Provenance {
    Provenance { kind: ProvenanceKind::Modelled, source: source.into() }
}

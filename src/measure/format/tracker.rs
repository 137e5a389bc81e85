//! What transformers' trainer says of memory with `skip_memory_metrics=False`: the table of `log_metrics`, whose MB are
//! 2²⁰ bytes and cut off (`v >> 20`), and the same figures in bytes in `train_results.json` and its log. Source:
//! `transformers/trainer_pt_utils.py`.

use std::collections::BTreeMap;

use crate::measure::format::literal::Literal;
use crate::measure::format::text::{Found, Line, LineReader, reading, unavailable};
use crate::measure::{FormatId, Measurement, Reading, ReadingName, Source, Stage, Tracked};
use crate::units::{MAX_DOCUMENT_BYTES, MIB};

/// The figures of one process: the least and the most that each stands for. Tables of later stages add theirs.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures(BTreeMap<Tracked, [i64; 2]>);

impl Figures {
    /// Takes the figures of a dictionary, in bytes.
    pub(super) fn dictionary(&mut self, entry: &Literal) {
        for (key, value) in entry.entries() {
            if let (Some(tracked), Some(bytes)) = (Tracked::parse(key), value.whole()) {
                self.take(tracked, [bytes; 2]);
            }
        }
    }

    fn take(&mut self, tracked: Tracked, [least, most]: [i64; 2]) {
        let fits = |bytes: i64| bytes.unsigned_abs() <= MAX_DOCUMENT_BYTES;
        if fits(least) && fits(most) && (least >= 0 || tracked.is_delta()) {
            self.0.insert(tracked, [least, most]);
        }
    }

    /// Takes a line of the table: `  train_mem_gpu_peaked_delta =     1953MB`.
    fn line(&mut self, text: &str) -> bool {
        let Some((name, value)) = text.split_once('=') else { return false };
        let Some(tracked) = name.split_whitespace().next_back().and_then(Tracked::parse) else { return false };
        let Some(whole) = value.trim().strip_suffix("MB").and_then(|whole| whole.parse::<i64>().ok()) else {
            return false;
        };
        let unit = MIB.cast_signed();
        if let Some(least) = whole.checked_mul(unit) {
            self.take(tracked, [least, least.saturating_add(unit - 1)]);
        }
        true
    }

    /// The readings: what the tracker says, and the highest that was allocated, which that adds up to.
    pub(super) fn readings(&self) -> Vec<Reading> {
        let mut readings: Vec<Reading> = Vec::new();
        readings.extend(self.highest());
        readings.extend(self.0.iter().map(|(tracked, range)| reading(ReadingName::Tracked(*tracked), *range)));
        readings
    }

    /// The series of the same log with these readings, where it has none of their name.
    pub(super) fn beside(&self, mut series: Measurement) -> Measurement {
        let new = self.readings().into_iter().filter(|new| series.readings.iter().all(|known| known.name != new.name));
        let new: Vec<Reading> = new.collect();
        series.readings.extend(new);
        series
    }

    /// The highest of what the stages up to the training reached: each starts where the one before ended.
    fn highest(&self) -> Option<Reading> {
        let name = ReadingName::MaxAllocated;
        let of = |tracked| self.0.get(&tracked).copied();
        let add = |a: [i64; 2], b: [i64; 2]| [a[0].saturating_add(b[0]), a[1].saturating_add(b[1])];
        let host = false;
        let stages: &[Stage] =
            if of(Tracked::Peaked { stage: Stage::Train, host }).is_some() { &Stage::ALL[..2] } else { &Stage::ALL };
        if !stages.iter().any(|stage| of(Tracked::Peaked { stage: *stage, host }).is_some()) {
            return None;
        }
        // The table of a later stage alone, or one of before 4.12.
        let Some(mut end) = of(Tracked::Before { host }) else {
            return Some(unavailable(name, "the text does not say what was allocated before the trainer was made"));
        };
        let mut highest = end;
        for stage in stages {
            let (stage, host) = (*stage, false);
            let Some(growth) = of(Tracked::Growth { stage, host }) else { continue };
            end = add(end, growth);
            let peak = of(Tracked::Peaked { stage, host }).map_or(end, |peaked| add(end, peaked));
            highest = [highest[0].max(peak[0]), highest[1].max(peak[1])];
        }
        let known = highest[0] >= 0 && highest[1].unsigned_abs() <= MAX_DOCUMENT_BYTES;
        known.then(|| reading(name, highest))
    }
}

/// The tables of a log, by process.
#[derive(Default)]
pub(super) struct Tracker {
    processes: Vec<(u64, String, Option<u32>, Figures)>,
}

/// The most processes that are told apart.
const MOST_PROCESSES: usize = 4096;

impl LineReader for Tracker {
    fn line(&mut self, line: &Line<'_>, _: &mut Found) {
        if !line.text.contains("_mem_") {
            return;
        }
        if let Some((.., figures)) = self.processes.iter_mut().find(|(_, process, ..)| process == line.process) {
            figures.line(line.text);
            return;
        }
        let mut figures = Figures::default();
        if figures.line(line.text) && self.processes.len() < MOST_PROCESSES {
            self.processes.push((line.number, line.process.to_owned(), line.rank, figures));
        }
    }

    fn finish(&mut self, found: &mut Found) {
        for (number, _, rank, figures) in core::mem::take(&mut self.processes) {
            found.extend(measurement(&figures, rank).map(|measurement| (number, measurement)));
        }
    }
}

/// The measurement, where there is a figure.
pub(super) fn measurement(figures: &Figures, rank: Option<u32>) -> Option<Measurement> {
    let readings = figures.readings();
    let source = Source { rank, ..Source::new(FormatId::TrainerMemory) };
    (!readings.is_empty()).then(|| Measurement { readings, ..Measurement::of(source) })
}

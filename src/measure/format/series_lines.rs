//! Figures by step in a log: JSON lines, the dictionaries that trainers print, torchtitan's lines.

use crate::measure::format::literal::Literal;
use crate::measure::format::series::{Meaning, SeriesSet, is_step, meaning};
use crate::measure::format::text::{Cursor, Found, Line, LineReader, Size, Units, squeeze};
use crate::measure::format::tracker::{self, Figures};
use crate::measure::format::{jax_stats, memory_stats};
use crate::measure::{FormatId, Measurement, ReadingName, TierName, Unit};

/// The longest dictionary that spans lines, in bytes and in lines.
const LONGEST: usize = 16 << 10;
const MOST_LINES: u32 = 64;
/// The most processes that are told apart.
const MOST_PROCESSES: usize = 4096;

/// See the module.
pub(super) struct SeriesLines {
    asked: Option<Unit>,
    processes: Vec<Process>,
}

struct Process {
    name: String,
    rank: Option<u32>,
    line: u64,
    set: SeriesSet,
    /// Entries so far: the step where the log has none.
    entries: i64,
    /// The dictionary that has begun, and its lines.
    open: String,
    lines: u32,
    memory: Figures,
    /// The last statistics of the allocator.
    stats: Option<(u64, Measurement)>,
}

impl SeriesLines {
    pub(super) const fn new(asked: Option<Unit>) -> Self {
        Self { asked, processes: Vec::new() }
    }
}

impl LineReader for SeriesLines {
    fn line(&mut self, line: &Line<'_>, _: &mut Found) {
        let titan = line.text.contains("step:") && line.text.contains("GiB(");
        let at = self.processes.iter().position(|process| process.name == line.process);
        let open = at.is_some_and(|at| !self.processes[at].open.is_empty());
        let begins = line.text.contains(['{']) && line.text.contains(['"', '\'']);
        if !titan && !open && !begins {
            return;
        }
        let at = match at {
            Some(at) => at,
            None if self.processes.len() < MOST_PROCESSES => {
                self.processes.push(Process {
                    name: line.process.to_owned(),
                    rank: line.rank,
                    line: line.number,
                    set: SeriesSet::new(self.asked),
                    entries: 0,
                    open: String::new(),
                    lines: 0,
                    memory: Figures::default(),
                    stats: None,
                });
                self.processes.len() - 1
            }
            None => return,
        };
        let process = &mut self.processes[at];
        if process.set.is_empty() {
            process.line = line.number;
        }
        if titan {
            process.titan(line.text);
        } else if open {
            process.open.push('\n');
            process.open.push_str(line.rest);
            process.take_open();
        } else {
            let start = line.text.find(['{']).unwrap_or(0);
            process.open = line.text[start..].to_owned();
            process.lines = 0;
            process.take_open();
        }
    }

    fn finish(&mut self, found: &mut Found) {
        for process in core::mem::take(&mut self.processes) {
            let Process { rank, line, set, memory, stats, .. } = process;
            let measurement = match set.measurement(FormatId::Series, rank) {
                Some(series) => Some(memory.beside(series)),
                None => tracker::measurement(&memory, rank),
            };
            found.extend(measurement.map(|measurement| (line, measurement)));
            found.extend(stats);
        }
    }
}

impl Process {
    /// Reads the open dictionary, where it is complete; gives it up where it cannot become one.
    fn take_open(&mut self) {
        self.lines += 1;
        let open = core::mem::take(&mut self.open);
        if open.contains('}')
            && let Some((entry, _)) = Literal::prefix(&open)
        {
            self.entry(&entry);
            return;
        }
        // A trainer's dictionary over several lines has a key in its first.
        let begun = open.trim_start_matches('{').trim_start().starts_with(['"', '\'']);
        let unfinished = open.matches('{').count() > open.matches('}').count();
        if begun && unfinished && open.len() <= LONGEST && self.lines < MOST_LINES {
            self.open = open;
        }
    }

    fn entry(&mut self, entry: &Literal) {
        self.memory.dictionary(entry);
        let stats = if jax_stats::recognises(entry) {
            jax_stats::read(entry, None).ok()
        } else if memory_stats::recognises(entry) {
            memory_stats::read(entry).ok()
        } else {
            None
        };
        if let Some(mut stats) = stats {
            if let Some(source) = &mut stats.source {
                source.rank = self.rank;
            }
            self.stats = Some((self.line, stats));
            return;
        }
        let figures: Vec<(&str, Meaning, &str)> = entry
            .entries()
            .iter()
            .filter_map(|(key, value)| Some((key.as_str(), meaning(key)?, value.number()?)))
            .collect();
        if figures.is_empty() {
            return;
        }
        let step = entry.entries().iter().find(|(key, _)| is_step(key)).and_then(|(_, step)| step.whole());
        let step = step.unwrap_or(self.entries);
        self.entries += 1;
        for (name, meaning, written) in figures {
            self.set.add(name, meaning, step, written);
        }
    }

    /// `step: 14  loss:  3.24405  memory:  9.46GiB(64.99%)  tps: 7,282`: the highest reserved since the last line.
    /// Source: `torchtitan/components/metrics.py`.
    fn titan(&mut self, text: &str) {
        let (Some((_, step)), Some((_, memory))) = (text.split_once("step:"), text.split_once("memory:")) else {
            return;
        };
        let step = step.split_whitespace().next().and_then(|step| step.parse().ok()).unwrap_or(self.entries);
        self.entries += 1;
        let mut squeezed = String::new();
        squeeze(memory, &mut squeezed);
        let len = squeezed.find("GiB(").unwrap_or(0);
        let meaning =
            Meaning { tier: TierName::Reserved, reading: Some(ReadingName::MaxReserved), unit: Some(1 << 30) };
        if let Some(Size::Known(..)) = Cursor::new(&squeezed).size(Units::Binary) {
            self.set.add("memory", meaning, step, &squeezed[..len]);
        }
    }
}

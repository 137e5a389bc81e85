//! The table of `nvidia-smi`, of every generation of the driver: read by its structure, as columns have moved and copies
//! lose lines. A GPU has a line with its name and bus id, and one with `used MiB / total MiB`.

use crate::measure::format::text::{Found, Line, LineReader};
use crate::measure::{Environment, FormatId, Gpu, Measurement, Process, Source};
use crate::units::Bytes;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Gpus,
    Mig,
    Processes,
}

/// See the module.
#[derive(Default)]
pub(super) struct SmiTable {
    table: Option<(u64, Measurement)>,
    part: Part,
    /// The GPU whose second line is to come: its index, its name, and whether MIG is on.
    head: Option<(u32, String)>,
}

impl LineReader for SmiTable {
    fn line(&mut self, line: &Line<'_>, found: &mut Found) {
        let text = line.text.trim();
        if text.contains("NVIDIA-SMI") && text.contains("Driver Version") {
            self.finish(found);
            let table = self.table(line.number);
            let version = |label: &str| {
                let (_, rest) = text.split_once(label)?;
                Some(rest.split_whitespace().next()?.to_owned()).filter(|v| v.starts_with(|c: char| c.is_ascii_digit()))
            };
            table.environment = Some(Environment {
                driver: version("Driver Version:"),
                cuda: version("CUDA Version:"),
                ..Environment::default()
            });
            return;
        }
        let Some(row) = text.strip_prefix('|') else {
            // A blank line parts the tables; anything else ends them.
            if self.table.is_some() && !text.is_empty() && !text.starts_with('+') {
                self.finish(found);
            }
            return;
        };
        let row = row.strip_suffix('|').unwrap_or(row);
        if row.contains("MIG devices:") {
            self.part = Part::Mig;
        } else if row.contains("Processes:") {
            self.part = Part::Processes;
        } else {
            match self.part {
                Part::Processes => self.process(row),
                part => self.gpu(row, part, line.number),
            }
        }
    }

    fn finish(&mut self, found: &mut Found) {
        // A header alone says nothing of memory.
        found.extend(self.table.take().filter(|(_, table)| !table.gpus.is_empty() || !table.processes.is_empty()));
        self.part = Part::Gpus;
        self.head = None;
    }
}

impl SmiTable {
    fn table(&mut self, line: u64) -> &mut Measurement {
        &mut self.table.get_or_insert_with(|| (line, Measurement::of(Source::new(FormatId::NvidiaSmi)))).1
    }

    fn gpu(&mut self, row: &str, part: Part, line: u64) {
        let mut cells = row.split('|').map(str::trim);
        let (Some(first), Some(second)) = (cells.next(), cells.next()) else { return };
        let third = cells.next().unwrap_or("");
        if part == Part::Gpus && is_bus_id(second.split_whitespace().next().unwrap_or("")) {
            let mut words = first.split_whitespace();
            let Some(index) = words.next().and_then(|word| word.parse().ok()) else { return };
            let mut name: Vec<&str> = words.collect();
            if name.last().is_some_and(|last| ["On", "Off", "TCC", "WDDM", "MCDM", "N/A"].contains(last)) {
                name.pop();
            }
            self.head = Some((index, name.join(" ")));
            return;
        }
        let pair = pair(second);
        if part == Part::Mig {
            // GPU GI CI MIG; the line below is of BAR1, which is no memory of the card.
            let mut numbers = first.split_whitespace().map(str::parse::<u32>);
            let (Some(Ok(index)), Some((used, total))) = (numbers.next(), pair) else { return };
            let slice = numbers.nth(2).and_then(Result::ok).unwrap_or(0);
            let gpu = Gpu {
                index,
                name: Some(format!("MIG {slice}")),
                mig: Some(true),
                total_bytes: Bytes::product(&[total, 1 << 20]),
                used_bytes: Bytes::product(&[used, 1 << 20]),
                ..Gpu::default()
            };
            self.table(line).gpus.push(with_reasons(gpu));
            return;
        }
        let mig = [("Enabled", true), ("Disabled", false)].into_iter().find(|(word, _)| *word == third);
        if let Some((_, mig)) = mig
            && let Some(gpu) = self.table.as_mut().and_then(|(_, table)| table.gpus.last_mut())
        {
            gpu.mig = Some(mig);
        }
        let head = self.head.take();
        let not_there = head.is_some() && (second.contains("Not Supported") || second.contains("N/A"));
        if pair.is_none() && !not_there {
            self.head = head;
            return;
        }
        let table = self.table(line);
        let (index, name) = match head {
            Some((index, name)) => (index, Some(name).filter(|name| !name.is_empty())),
            // The copy begins in the middle: the GPUs are counted.
            None => (u32::try_from(table.gpus.len()).unwrap_or(u32::MAX), None),
        };
        let gpu = Gpu {
            index,
            name,
            total_bytes: pair.and_then(|(_, total)| Bytes::product(&[total, 1 << 20])),
            used_bytes: pair.and_then(|(used, _)| Bytes::product(&[used, 1 << 20])),
            ..Gpu::default()
        };
        table.gpus.push(with_reasons(gpu));
    }

    /// `GPU [GI CI] PID Type Name Memory`.
    fn process(&mut self, row: &str) {
        let words: Vec<&str> = row.split_whitespace().collect();
        let (Some(gpu), Some(memory)) = (words.first().and_then(|word| word.parse().ok()), words.last()) else {
            return;
        };
        let kind = words.iter().position(|word| ["C", "G", "C+G", "M", "M+C"].contains(word));
        let pid_at = kind.map_or(1, |at| at.saturating_sub(1));
        let Some(pid) = words.get(pid_at).and_then(|word| word.parse().ok()) else { return };
        let bytes = memory.strip_suffix("MiB").and_then(|mib| mib.parse().ok());
        let name = words.get(kind.unwrap_or(1) + 1..words.len() - 1).unwrap_or(&[]).join(" ");
        let process = Process {
            pid: Some(pid),
            gpu: Some(gpu),
            name: Some(name).filter(|name| !name.is_empty()),
            own: false,
            bytes: bytes.and_then(|mib| Bytes::product(&[mib, 1 << 20])).map(Bytes::get),
            unavailable: bytes.is_none().then(|| format!("nvidia-smi prints {}", printed(memory))),
        };
        if let Some((_, table)) = &mut self.table {
            table.processes.push(process);
        }
    }
}

/// What a tool prints instead of a figure, cut to a word or two.
pub(super) fn printed(text: &str) -> String {
    text.trim().chars().take(40).collect()
}

/// The fields that are not there get their reason.
pub(super) fn with_reasons(mut gpu: Gpu) -> Gpu {
    for (field, missing) in [("total_bytes", gpu.total_bytes.is_none()), ("used_bytes", gpu.used_bytes.is_none())] {
        if missing && !gpu.unavailable.contains_key(field) {
            gpu.unavailable.insert(field.into(), "the tool prints no figure for this GPU".into());
        }
    }
    gpu
}

/// `00000000:3B:00.0`, `0000:01:00.0`.
fn is_bus_id(word: &str) -> bool {
    word.len() >= 10
        && word.matches(':').count() == 2
        && word.contains('.')
        && word.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.')
}

/// `8127MiB / 10989MiB`, in MiB.
fn pair(cell: &str) -> Option<(u64, u64)> {
    let (used, total) = cell.split_once('/')?;
    let mib = |text: &str| text.trim().strip_suffix("MiB")?.trim().parse().ok();
    Some((mib(used)?, mib(total)?))
}

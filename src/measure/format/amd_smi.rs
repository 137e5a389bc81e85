//! `amd-smi`: `metric --mem-usage` as text and JSON, `monitor`, `process`, and the table of 7.0. It writes MB and GB for powers of
//! two. Source: `amdsmi_cli/amdsmi_commands.py`.

use crate::measure::format::literal::Literal;
use crate::measure::format::rocm_smi::gpu;
use crate::measure::format::smi_table::with_reasons;
use crate::measure::format::text::{Cursor, Found, Line, LineReader, Size, Units, squeeze};
use crate::measure::{Environment, FormatId, Gpu, Measurement, Process, Source};
use crate::units::Bytes;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    #[default]
    None,
    /// `GPU: 0` and indented fields.
    Fields,
    /// Columns under a header: how many units stand behind the first column of memory is told by their names.
    Monitor,
    Table,
    Processes,
}

/// See the module.
#[derive(Default)]
pub(super) struct AmdSmi {
    log: Option<(u64, Measurement)>,
    part: Part,
    index: u32,
    columns: Vec<String>,
    name: Option<String>,
    /// Whether rows of processes have the name in front of the number.
    name_first: bool,
    /// Which of the sizes of a process's row is the card's.
    vram: usize,
}

impl LineReader for AmdSmi {
    fn line(&mut self, line: &Line<'_>, found: &mut Found) {
        let text = line.text.trim();
        if let Some(index) = text.strip_prefix("GPU: ").and_then(|index| index.parse().ok()) {
            self.part = Part::Fields;
            self.index = index;
            return;
        }
        if text.contains("AMD-SMI") && text.starts_with('|') {
            self.finish(found);
            self.part = Part::Table;
            let driver = text.split_once("amdgpu version:").and_then(|(_, rest)| rest.split_whitespace().next());
            let environment = Environment { driver: driver.map(str::to_owned), ..Environment::default() };
            self.log(line.number).environment = Some(environment);
            return;
        }
        let columns = || text.trim_matches('|').split_whitespace();
        if text.starts_with("GPU") && (text.contains("VRAM_TOTAL") || text.contains("VRAM_USAGE")) {
            self.part = Part::Monitor;
            self.columns = columns().map(str::to_owned).collect();
            return;
        }
        if text.contains("PID") && text.contains("VRAM_MEM") && columns().next() == Some("GPU") {
            self.part = Part::Processes;
            self.name_first = columns().nth(1) == Some("NAME");
            self.vram = columns().filter(|column| column.ends_with("_MEM")).position(|c| c == "VRAM_MEM").unwrap_or(0);
            self.log(line.number);
            return;
        }
        match self.part {
            Part::None => {}
            Part::Fields => self.field(text, line.number),
            Part::Monitor => self.monitor(text, line.number),
            Part::Table => self.row(text, line.number),
            Part::Processes => self.process(text),
        }
    }

    fn finish(&mut self, found: &mut Found) {
        self.part = Part::None;
        self.name = None;
        found.extend(self.log.take().filter(|(_, log)| !log.gpus.is_empty() || !log.processes.is_empty()).map(
            |(line, mut log)| {
                log.gpus = log.gpus.into_iter().map(with_reasons).collect();
                (line, log)
            },
        ));
    }
}

impl AmdSmi {
    fn log(&mut self, line: u64) -> &mut Measurement {
        &mut self.log.get_or_insert_with(|| (line, Measurement::of(Source::new(FormatId::AmdSmi)))).1
    }

    fn field(&mut self, text: &str, line: u64) {
        let Some((key, value)) = text.split_once(": ") else { return };
        match key {
            "NAME" => self.name = Some(value.trim().to_owned()).filter(|name| name != "N/A"),
            "PID" => {
                let (pid, gpu, name) = (value.trim().parse().ok(), self.index, self.name.take());
                self.log(line).processes.push(of_process(pid, gpu, name, None));
                return;
            }
            "VRAM_MEM" => {
                if let (Some(process), Some(bytes)) = (self.log(line).processes.last_mut(), size(value)) {
                    (process.bytes, process.unavailable) = (Some(bytes.get()), None);
                }
                return;
            }
            _ => {}
        }
        if matches!(key, "TOTAL_VRAM" | "USED_VRAM" | "FREE_VRAM") {
            let index = self.index;
            set(gpu(self.log(line), index), key, size(value));
        }
    }

    /// `0  127 W  36 °C … 291 MB   196300 MB`: sizes in the order of the columns that are sizes.
    fn monitor(&mut self, text: &str, line: u64) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let Some(index) = words.first().and_then(|word| word.parse().ok()) else {
            self.part = Part::None;
            return;
        };
        let mut sizes =
            words.windows(2).filter(|pair| ["MB", "GB"].contains(&pair[1])).map(|pair| size(&pair.concat()));
        let columns = core::mem::take(&mut self.columns);
        let gpu = gpu(self.log(line), index);
        if let Some([pair, unit]) =
            words.windows(2).find(|pair| pair[0].contains('/') && ["MB", "GB"].contains(&pair[1]))
            && let Some((used, total)) = pair.split_once('/')
        {
            set(gpu, "USED_VRAM", size(&format!("{used}{unit}")));
            set(gpu, "TOTAL_VRAM", size(&format!("{total}{unit}")));
        }
        for column in columns.iter().filter(|column| column.starts_with("VRAM_")) {
            let key = match column.as_str() {
                "VRAM_USED" => "USED_VRAM",
                "VRAM_FREE" => "FREE_VRAM",
                "VRAM_TOTAL" => "TOTAL_VRAM",
                _ => continue,
            };
            set(gpu, key, sizes.next().flatten());
        }
        self.columns = columns;
    }

    /// Two lines a GPU: the name behind the bus id, then the index and `283/196592 MB`.
    fn row(&mut self, text: &str, line: u64) {
        let mut cells = text.trim_matches('|').split('|').map(str::trim);
        let (Some(first), Some(second)) = (cells.next(), cells.next()) else { return };
        let mut words = first.split_whitespace();
        let Some(word) = words.next() else { return };
        if word.matches(':').count() == 2 {
            self.name = Some(words.collect::<Vec<_>>().join(" "));
            return;
        }
        let mut back = second.split_whitespace().rev();
        let (Ok(index), Some(unit @ ("MB" | "GB")), Some(pair)) = (word.parse::<u32>(), back.next(), back.next())
        else {
            return;
        };
        let Some((used, total)) = pair.split_once('/') else { return };
        let name = self.name.take();
        let gpu = gpu(self.log(line), index);
        gpu.name = name;
        set(gpu, "USED_VRAM", size(&format!("{used}{unit}")));
        set(gpu, "TOTAL_VRAM", size(&format!("{total}{unit}")));
    }

    /// `GPU PID Name GTT_MEM VRAM_MEM MEM_USAGE CU%`, or `GPU NAME PID GTT_MEM CPU_MEM VRAM_MEM …`.
    fn process(&mut self, text: &str) {
        let words: Vec<&str> = text.trim_matches('|').split_whitespace().collect();
        let [gpu, rest @ ..] = words.as_slice() else { return };
        let sizes: Vec<usize> = (1..rest.len()).filter(|at| ["B", "KB", "MB", "GB"].contains(&rest[*at])).collect();
        let bytes = sizes.get(self.vram).and_then(|at| size(&rest[at - 1..=*at].concat()));
        let head = &rest[..sizes.first().map_or(rest.len(), |at| at - 1)];
        let split = if self.name_first { head.split_last() } else { head.split_first() };
        let Some((pid, name)) = split else { return };
        let (Ok(gpu), Ok(pid)) = (gpu.parse(), pid.parse()) else { return };
        let name = Some(name.join(" ")).filter(|name| !name.is_empty() && name != "N/A");
        if let Some((_, log)) = &mut self.log {
            log.processes.push(of_process(Some(pid), gpu, name, bytes));
        }
    }
}

fn of_process(pid: Option<u64>, gpu: u32, name: Option<String>, bytes: Option<Bytes>) -> Process {
    Process {
        pid,
        gpu: Some(gpu),
        name,
        own: false,
        bytes: bytes.map(Bytes::get),
        unavailable: bytes.is_none().then(|| "amd-smi prints no figure".into()),
    }
}

pub(super) fn size(text: &str) -> Option<Bytes> {
    let mut squeezed = String::new();
    squeeze(text, &mut squeezed);
    Cursor::new(&squeezed)
        .size(Units::AnyBinary)
        .and_then(Size::bytes)
        .and_then(|bytes| u64::try_from(bytes).ok())
        .map(Bytes)
}

pub(super) fn set(gpu: &mut Gpu, key: &str, bytes: Option<Bytes>) {
    match key {
        "TOTAL_VRAM" => gpu.total_bytes = bytes,
        "USED_VRAM" => gpu.used_bytes = bytes,
        _ => gpu.free_bytes = bytes,
    }
}

/// Whether a JSON document is `amd-smi metric --json`'s.
pub(super) fn recognises(document: &Literal) -> bool {
    cards(document).iter().any(|card| card.get("mem_usage").is_some_and(|usage| usage.get("total_vram").is_some()))
}

fn cards(document: &Literal) -> &[Literal] {
    document.get("gpu_data").unwrap_or(document).items()
}

/// Reads `[{"gpu": 0, "mem_usage": {"total_vram": {"value": 24560, "unit": "MB"}}}]`.
pub(super) fn read(document: &Literal) -> Measurement {
    let mut log = Measurement::of(Source::new(FormatId::AmdSmi));
    for card in cards(document) {
        let (Some(usage), Some(index)) = (card.get("mem_usage"), card.get("gpu").and_then(Literal::whole)) else {
            continue;
        };
        let Ok(index) = u32::try_from(index) else { continue };
        let gpu = gpu(&mut log, index);
        for (key, name) in [("total_vram", "TOTAL_VRAM"), ("used_vram", "USED_VRAM"), ("free_vram", "FREE_VRAM")] {
            let Some(field) = usage.get(key) else { continue };
            let value = field.get("value").and_then(Literal::number);
            let unit = field.get("unit").and_then(Literal::text).unwrap_or("MB");
            set(gpu, name, value.and_then(|value| size(&format!("{value}{unit}"))));
        }
    }
    log.gpus = log.gpus.into_iter().map(with_reasons).collect();
    log
}

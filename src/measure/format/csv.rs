//! Comma-separated tables: `nvidia-smi --query-gpu` and `--query-compute-apps`, `rocm-smi --csv`, `amd-smi --csv`, and
//! figures by step.

use crate::measure::format::series::{Meaning, SeriesSet, is_step, meaning};
use crate::measure::format::smi_table::{printed, with_reasons};
use crate::measure::format::text::{Found, Line, LineReader};
use crate::measure::format::{amd_smi, rocm_smi};
use crate::measure::{FormatId, Gpu, Measurement, Process, Series, Source, TierName, Unit};
use crate::units::Bytes;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nvidia,
    Rocm,
    Amd,
    Series,
}

/// See the module.
pub(super) struct Csv {
    asked: Option<Unit>,
    table: Option<Table>,
}

struct Table {
    kind: Kind,
    line: u64,
    delimiter: char,
    columns: Vec<String>,
    rows: i64,
    log: Measurement,
    set: SeriesSet,
}

/// The fields of nvidia-smi that count bytes of the card.
const MEMORY: [&str; 4] = ["memory.total", "memory.reserved", "memory.used", "memory.free"];
const HELD: [&str; 2] = ["used_gpu_memory", "used_memory"];

impl Csv {
    /// A reader; `columns` are the fields of a query without header, joined by commas.
    pub(super) fn new(asked: Option<Unit>, columns: Option<&str>) -> Self {
        let mut csv = Self { asked, table: None };
        if let Some(columns) = columns {
            csv.open(split(columns, ','), ',', 1);
        }
        csv
    }

    fn open(&mut self, columns: Vec<String>, delimiter: char, line: u64) -> bool {
        let base = |column: &str| column.split(" [").next().unwrap_or("").to_owned();
        let has = |names: &[&str]| columns.iter().any(|column| names.contains(&base(column).as_str()));
        let kind = if has(&MEMORY) || has(&HELD) {
            Kind::Nvidia
        } else if has(&[rocm_smi::TOTAL]) {
            Kind::Rocm
        } else if has(&["total_vram"]) && has(&["gpu"]) {
            Kind::Amd
        } else if columns.iter().any(|column| meaning(column).is_some())
            && columns.iter().all(|column| !column.is_empty() && column.len() <= 120)
        {
            Kind::Series
        } else {
            return false;
        };
        let format = match kind {
            Kind::Nvidia => FormatId::NvidiaSmi,
            Kind::Rocm => FormatId::RocmSmi,
            Kind::Amd => FormatId::AmdSmi,
            Kind::Series => FormatId::Series,
        };
        let log = Measurement::of(Source::new(format));
        let set = SeriesSet::new(self.asked);
        self.table = Some(Table { kind, line, delimiter, columns, rows: 0, log, set });
        true
    }
}

impl LineReader for Csv {
    fn line(&mut self, line: &Line<'_>, found: &mut Found) {
        let text = line.text.trim();
        if let Some(table) = &mut self.table {
            let cells = split(text, table.delimiter);
            if cells.len() == table.columns.len() && table.row(&cells) {
                return;
            }
            if text.is_empty() && table.rows == 0 {
                return;
            }
            self.finish(found);
        }
        // Few lines of a log are headers: the cheap test first. A table of one column is a list of words.
        if !["mem", "Mem", "MEM", "vram", "VRAM", "alloc", "reserved"].iter().any(|word| text.contains(word)) {
            return;
        }
        let Some(delimiter) = [',', '\t', ';'].into_iter().find(|delimiter| text.contains(*delimiter)) else { return };
        if text.len() <= 4096 && !text.contains(['{', '}']) {
            let columns = split(text, delimiter);
            // A header has no figures.
            if columns.iter().all(|column| column.parse::<f64>().is_err()) {
                self.open(columns, delimiter, line.number);
            }
        }
    }

    fn finish(&mut self, found: &mut Found) {
        let Some(Table { kind, line, rows, mut log, set, .. }) = self.table.take() else { return };
        if rows == 0 {
            return;
        }
        if kind == Kind::Series {
            found.extend(set.measurement(FormatId::Series, None).map(|series| (line, series)));
            return;
        }
        if log.gpus.is_empty() && log.processes.is_empty() {
            return;
        }
        log.gpus = log.gpus.into_iter().map(with_reasons).collect();
        log.series.retain(|series| series.points.len() > 1);
        found.push((line, log));
    }
}

impl Table {
    /// Takes a row; `false` where it is none of this table.
    fn row(&mut self, cells: &[String]) -> bool {
        let taken = match self.kind {
            Kind::Nvidia => self.nvidia(cells),
            Kind::Rocm | Kind::Amd => self.amd(cells),
            Kind::Series => self.series(cells),
        };
        self.rows += i64::from(taken);
        taken
    }

    fn series(&mut self, cells: &[String]) -> bool {
        let number = |cell: &str| cell.parse::<f64>().is_ok();
        if !cells.iter().any(|cell| number(cell)) {
            return false;
        }
        let step = self.columns.iter().position(|column| is_step(column)).and_then(|at| cells[at].parse().ok());
        let figures: Vec<(usize, Meaning)> =
            self.columns.iter().enumerate().filter_map(|(at, column)| Some((at, meaning(column)?))).collect();
        for (at, meaning) in figures {
            if number(&cells[at]) {
                self.set.add(&self.columns[at], meaning, step.unwrap_or(self.rows), &cells[at]);
            }
        }
        true
    }

    fn nvidia(&mut self, cells: &[String]) -> bool {
        let field = |name: &str| {
            let at = self.columns.iter().position(|column| column.split(" [").next() == Some(name))?;
            Some(cells[at].as_str())
        };
        let size = |text: &str| {
            let mib = text.strip_suffix("MiB").unwrap_or(text).trim().parse().ok()?;
            Bytes::product(&[mib, 1 << 20])
        };
        let plausible = |text: &str| size(text).is_some() || text.starts_with('[') || text == "N/A";
        if let Some(held) = HELD.into_iter().find_map(field) {
            if !plausible(held) {
                return false;
            }
            self.log.processes.push(Process {
                pid: field("pid").and_then(|pid| pid.parse().ok()),
                gpu: None,
                name: field("process_name").or_else(|| field("name")).map(str::to_owned),
                own: false,
                bytes: size(held).map(Bytes::get),
                unavailable: size(held).is_none().then(|| format!("nvidia-smi prints {}", printed(held))),
            });
            return self.log.processes.len() <= 4096;
        }
        if !MEMORY.into_iter().filter_map(field).all(plausible) {
            return false;
        }
        let index = field("index").and_then(|index| index.parse().ok());
        let index = index.unwrap_or_else(|| u32::try_from(self.log.gpus.len()).unwrap_or(u32::MAX));
        let mut gpu =
            Gpu { index, name: field("name").or_else(|| field("gpu_name")).map(str::to_owned), ..Gpu::default() };
        for (name, slot, key) in [
            ("memory.total", &mut gpu.total_bytes, "total_bytes"),
            ("memory.reserved", &mut gpu.reserved_bytes, "reserved_bytes"),
            ("memory.used", &mut gpu.used_bytes, "used_bytes"),
            ("memory.free", &mut gpu.free_bytes, "free_bytes"),
        ] {
            let Some(cell) = field(name) else { continue };
            *slot = size(cell);
            if slot.is_none() {
                gpu.unavailable.insert(key.into(), format!("nvidia-smi prints {}", printed(cell)));
            }
        }
        if self.log.gpus.len() >= 4096 {
            return false;
        }
        // A query that is repeated: the last figures, and how they went on.
        if let Some(used) = gpu.used_bytes.and_then(|used| i64::try_from(used.get()).ok()) {
            let name = format!("memory.used, GPU {index}");
            let step = self.rows;
            match self.log.series.iter_mut().find(|series| series.name == name) {
                Some(series) => super::series::push(series, step, used),
                None => self.log.series.push(Series {
                    name,
                    tier: TierName::Device,
                    warm_up: 0,
                    every: None,
                    points: vec![[step, used]],
                }),
            }
        }
        match self.log.gpus.iter_mut().find(|known| known.index == index) {
            Some(known) => *known = gpu,
            None => self.log.gpus.push(gpu),
        }
        true
    }

    fn amd(&mut self, cells: &[String]) -> bool {
        let at = |name: &str| self.columns.iter().position(|column| column == name);
        let index = match self.kind {
            Kind::Rocm => at("device").and_then(|at| cells[at].strip_prefix("card")?.parse().ok()),
            _ => at("gpu").and_then(|at| cells[at].parse().ok()),
        };
        let Some(index) = index else { return false };
        let gpu = rocm_smi::gpu(&mut self.log, index);
        for (column, cell) in self.columns.iter().zip(cells) {
            match (self.kind, column.as_str()) {
                (Kind::Rocm, key) => rocm_smi::set(gpu, key, cell),
                (_, "total_vram") => amd_smi::set(gpu, "TOTAL_VRAM", amd_smi::size(&format!("{cell}MB"))),
                (_, "used_vram") => amd_smi::set(gpu, "USED_VRAM", amd_smi::size(&format!("{cell}MB"))),
                (_, "free_vram") => amd_smi::set(gpu, "FREE_VRAM", amd_smi::size(&format!("{cell}MB"))),
                _ => {}
            }
        }
        true
    }
}

/// The cells of a line, without the quotes around them.
fn split(text: &str, delimiter: char) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        if c == '"' {
            quoted = !quoted;
        } else if c == delimiter && !quoted {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push(c);
        }
        if cells.len() > 512 {
            break;
        }
    }
    for cell in &mut cells {
        *cell = cell.trim().to_owned();
    }
    cells
}

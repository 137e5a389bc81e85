//! `rocm-smi`: its lines of bytes (`--showmeminfo vram`) and its concise table, which prints a share alone. The CSV and
//! JSON forms have the same field names.

use crate::measure::format::literal::Literal;
use crate::measure::format::smi_table::{printed, with_reasons};
use crate::measure::format::text::{Found, Line, LineReader};
use crate::measure::{FormatId, Gpu, Measurement, Source};
use crate::units::Bytes;

pub(super) const TOTAL: &str = "VRAM Total Memory (B)";
pub(super) const USED: &str = "VRAM Total Used Memory (B)";
const NAMES: [&str; 3] = ["Card Series", "Card series", "Device Name"];

/// See the module.
#[derive(Default)]
pub(super) struct RocmSmi {
    log: Option<(u64, Measurement)>,
    concise: bool,
}

impl LineReader for RocmSmi {
    fn line(&mut self, line: &Line<'_>, found: &mut Found) {
        let text = line.text.trim();
        if text.contains("End of ROCm SMI Log") {
            self.finish(found);
        } else if let Some(rest) = text.strip_prefix("GPU[") {
            let Some((index, rest)) = rest.split_once(']') else { return };
            let (Ok(index), Some((key, value))) =
                (index.parse(), rest.trim_start_matches([' ', '\t', ':']).rsplit_once(": "))
            else {
                return;
            };
            if key == TOTAL || key == USED || NAMES.contains(&key) {
                self.set(index, key, value, line.number);
            }
        } else if text.contains("VRAM%") && text.ends_with("GPU%") {
            self.concise = true;
        } else if self.concise && text.contains('%') {
            let mut words = text.split_whitespace();
            let (Some(Ok(index)), Some(share)) = (words.next().map(str::parse), words.nth_back(1)) else { return };
            let gpu = self.gpu(index, line.number);
            gpu.unavailable.insert("used_bytes".into(), format!("rocm-smi prints a share: {}", printed(share)));
        }
    }

    fn finish(&mut self, found: &mut Found) {
        self.concise = false;
        found.extend(self.log.take().map(|(line, mut log)| {
            log.gpus = log.gpus.into_iter().map(with_reasons).collect();
            (line, log)
        }));
    }
}

impl RocmSmi {
    fn gpu(&mut self, index: u32, line: u64) -> &mut Gpu {
        let (_, log) = self.log.get_or_insert_with(|| (line, Measurement::of(Source::new(FormatId::RocmSmi))));
        gpu(log, index)
    }

    fn set(&mut self, index: u32, key: &str, value: &str, line: u64) {
        set(self.gpu(index, line), key, value);
    }
}

/// The GPU with this index, added where it is new.
pub(super) fn gpu(log: &mut Measurement, index: u32) -> &mut Gpu {
    let at = log.gpus.iter().position(|gpu| gpu.index == index).unwrap_or_else(|| {
        log.gpus.push(Gpu { index, ..Gpu::default() });
        log.gpus.len() - 1
    });
    &mut log.gpus[at]
}

/// Sets what `key` names.
pub(super) fn set(gpu: &mut Gpu, key: &str, value: &str) {
    let bytes = value.parse().ok().and_then(|bytes| Bytes::product(&[bytes]));
    match key {
        TOTAL => gpu.total_bytes = bytes,
        USED => gpu.used_bytes = bytes,
        key if NAMES.contains(&key) => gpu.name = Some(value.to_owned()),
        _ => {}
    }
}

/// Whether a JSON document is `rocm-smi --json`'s.
pub(super) fn recognises(document: &Literal) -> bool {
    document.entries().iter().any(|(card, fields)| card.starts_with("card") && fields.get(TOTAL).is_some())
}

/// Reads `{"card0": {"VRAM Total Memory (B)": "…"}}`.
pub(super) fn read(document: &Literal) -> Measurement {
    let mut log = Measurement::of(Source::new(FormatId::RocmSmi));
    for (card, fields) in document.entries() {
        let Some(index) = card.strip_prefix("card").and_then(|index| index.parse().ok()) else { continue };
        for (key, value) in fields.entries() {
            set(gpu(&mut log, index), key, value.text().or_else(|| value.number()).unwrap_or(""));
        }
    }
    log.gpus = log.gpus.into_iter().map(with_reasons).collect();
    log
}

//! `nvidia-smi -q`: fields below each other, in sections. Of the memory sections only `FB Memory Usage` is the card's.

use crate::measure::format::smi_table::{printed, with_reasons};
use crate::measure::format::text::{Found, Line, LineReader};
use crate::measure::{Environment, FormatId, Gpu, Measurement, Process, Source};
use crate::units::Bytes;

/// See the module.
#[derive(Default)]
pub(super) struct SmiQ {
    log: Option<(u64, Measurement)>,
    section: String,
}

impl LineReader for SmiQ {
    fn line(&mut self, line: &Line<'_>, found: &mut Found) {
        let text = line.text.trim_end();
        if text.contains("=NVSMI LOG=") {
            self.finish(found);
            self.log = Some((line.number, Measurement::of(Source::new(FormatId::NvidiaSmi))));
            return;
        }
        let Some((_, log)) = &mut self.log else { return };
        let Some((key, value)) = text.split_once(" : ").map(|(key, value)| (key.trim(), value.trim())) else {
            if let Some(bus) = text.strip_prefix("GPU ").filter(|bus| bus.contains(':')) {
                let _ = bus;
                let index = u32::try_from(log.gpus.len()).unwrap_or(u32::MAX);
                log.gpus.push(Gpu { index, ..Gpu::default() });
            }
            if !text.trim().is_empty() {
                text.trim().clone_into(&mut self.section);
            }
            return;
        };
        let mib = value.strip_suffix(" MiB").and_then(|mib| mib.parse().ok());
        let bytes = mib.and_then(|mib| Bytes::product(&[mib, 1 << 20]));
        match (key, log.gpus.last_mut()) {
            ("Driver Version", None) => {
                log.environment.get_or_insert_with(Environment::default).driver = Some(value.to_owned());
            }
            ("CUDA Version", None) => {
                log.environment.get_or_insert_with(Environment::default).cuda = Some(value.to_owned());
            }
            ("Product Name", Some(gpu)) => gpu.name = Some(value.to_owned()),
            ("Current", Some(gpu)) if self.section == "MIG Mode" && value == "Enabled" => gpu.mig = Some(true),
            ("Total" | "Reserved" | "Used" | "Free", Some(gpu)) if self.section == "FB Memory Usage" => {
                let (field, name) = match key {
                    "Total" => (&mut gpu.total_bytes, "total_bytes"),
                    "Reserved" => (&mut gpu.reserved_bytes, "reserved_bytes"),
                    "Used" => (&mut gpu.used_bytes, "used_bytes"),
                    _ => (&mut gpu.free_bytes, "free_bytes"),
                };
                *field = bytes;
                if bytes.is_none() {
                    gpu.unavailable.insert(name.into(), format!("nvidia-smi prints {}", printed(value)));
                }
            }
            ("Process ID", Some(gpu)) => {
                let gpu = Some(gpu.index);
                log.processes.push(Process {
                    pid: value.parse().ok(),
                    gpu,
                    name: None,
                    own: false,
                    bytes: None,
                    unavailable: Some("not printed".into()),
                });
            }
            ("Name" | "Used GPU Memory", Some(_)) => {
                let Some(process) = log.processes.last_mut() else { return };
                if key == "Name" {
                    process.name = Some(value.to_owned());
                } else {
                    process.bytes = bytes.map(Bytes::get);
                    process.unavailable = bytes.is_none().then(|| format!("nvidia-smi prints {}", printed(value)));
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, found: &mut Found) {
        found.extend(self.log.take().filter(|(_, log)| !log.gpus.is_empty()).map(|(line, mut log)| {
            log.gpus = log.gpus.into_iter().map(with_reasons).collect();
            (line, log)
        }));
    }
}

//! `nvidia-smi -q -x`. A plain scan of tags: no document type is fetched, no entity is expanded but the five of XML.

use crate::measure::format::literal::malformed;
use crate::measure::format::smi_table::{printed, with_reasons};
use crate::measure::{Environment, FormatId, Gpu, ImportError, Measurement, Process, Source};
use crate::units::Bytes;

/// The deepest nesting that is read.
const MAX_DEPTH: usize = 32;

/// Whether the text is one.
pub(super) fn recognises(text: &str) -> bool {
    text.contains("<nvidia_smi_log")
}

/// Reads it.
///
/// # Errors
/// Where tags do not match.
pub(super) fn read(text: &str) -> Result<Measurement, ImportError> {
    let mut log = Measurement::of(Source::new(FormatId::NvidiaSmi));
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    let mut content = "";
    while let Some(start) = rest.find('<') {
        if content.is_empty() {
            content = rest[..start].trim();
        }
        let at = text.len() - rest.len() + start;
        let tag = &rest[start + 1..];
        let close = if tag.starts_with("!--") { "-->" } else { ">" };
        let len = tag.find(close).ok_or_else(|| malformed(text, at, "the tag does not end"))?;
        rest = &tag[len + close.len()..];
        let tag = &tag[..len];
        if tag.starts_with(['?', '!']) {
            content = "";
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            if open.last() != Some(&name.trim()) {
                return Err(malformed(text, at, "the tag closes none that is open"));
            }
            element(&mut log, &open, content);
            open.pop();
            content = "-";
        } else {
            let name = tag.split([' ', '\t', '\n', '/']).next().unwrap_or("");
            content = "";
            if tag.ends_with('/') {
                continue;
            }
            if open.len() >= MAX_DEPTH {
                return Err(malformed(text, at, "nested too deeply"));
            }
            open.push(name);
            match (name, open.len()) {
                ("gpu", 2) => {
                    let index = u32::try_from(log.gpus.len()).unwrap_or(u32::MAX);
                    log.gpus.push(Gpu { index, ..Gpu::default() });
                }
                ("mig_device", _) if open.contains(&"mig_devices") => {
                    let index = log.gpus.last().map_or(0, |gpu| gpu.index);
                    log.gpus.push(Gpu { index, mig: Some(true), name: Some("MIG".into()), ..Gpu::default() });
                }
                ("process_info", _) => log.processes.push(Process {
                    pid: None,
                    gpu: log.gpus.last().map(|gpu| gpu.index),
                    name: None,
                    own: false,
                    bytes: None,
                    unavailable: None,
                }),
                _ => {}
            }
        }
    }
    if let Some(name) = open.last() {
        return Err(malformed(text, text.len(), &format!("the text ends inside <{}>", printed(name))));
    }
    if log.gpus.is_empty() {
        return Err(malformed(text, 0, "it has no GPU"));
    }
    log.gpus = log.gpus.into_iter().map(with_reasons).collect();
    Ok(log)
}

/// Takes the content of the element that closes.
fn element(log: &mut Measurement, open: &[&str], content: &str) {
    let [.., parent, name] = open else { return };
    let bytes = content.strip_suffix(" MiB").and_then(|mib| mib.parse().ok());
    let bytes = bytes.and_then(|mib| Bytes::product(&[mib, 1 << 20]));
    let why = || format!("nvidia-smi prints {}", printed(content));
    // A slice of MIG has its own figures below those of its card.
    let slice = open.contains(&"mig_device");
    let gpu = log.gpus.last_mut();
    match (*parent, *name, gpu) {
        ("nvidia_smi_log", "driver_version", _) => {
            log.environment.get_or_insert_with(Environment::default).driver = Some(content.to_owned());
        }
        ("nvidia_smi_log", "cuda_version", _) => {
            log.environment.get_or_insert_with(Environment::default).cuda = Some(content.to_owned());
        }
        ("gpu", "product_name", Some(gpu)) => gpu.name = Some(decoded(content)),
        ("mig_mode", "current_mig", Some(gpu)) if content == "Enabled" => gpu.mig = Some(true),
        ("mig_device", "index", Some(gpu)) => gpu.name = Some(format!("MIG {}", printed(content))),
        ("fb_memory_usage", field, Some(gpu)) => {
            // The card's own figures come after its slices'.
            let gpu = if slice || gpu.name.as_ref().is_none_or(|name| !name.starts_with("MIG ")) {
                gpu
            } else {
                let index = gpu.index;
                match log.gpus.iter_mut().find(|gpu| gpu.index == index) {
                    Some(gpu) => gpu,
                    None => return,
                }
            };
            let (slot, key) = match field {
                "total" => (&mut gpu.total_bytes, "total_bytes"),
                "reserved" => (&mut gpu.reserved_bytes, "reserved_bytes"),
                "used" => (&mut gpu.used_bytes, "used_bytes"),
                "free" => (&mut gpu.free_bytes, "free_bytes"),
                _ => return,
            };
            *slot = bytes;
            if bytes.is_none() {
                gpu.unavailable.insert(key.into(), why());
            }
        }
        ("process_info", field, _) => {
            let Some(process) = log.processes.last_mut() else { return };
            match field {
                "pid" => process.pid = content.parse().ok(),
                "process_name" => process.name = Some(decoded(content)),
                "used_memory" => {
                    process.bytes = bytes.map(Bytes::get);
                    process.unavailable = bytes.is_none().then(why);
                }
                _ => {}
            }
        }
        _ => {}
    }
}

/// The five entities of XML.
fn decoded(text: &str) -> String {
    let mut text = text.to_owned();
    for (entity, sign) in [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")] {
        if text.contains(entity) {
            text = text.replace(entity, sign);
        }
    }
    text
}

//! PyTorch's out-of-memory message, of every version since 1.0, on CUDA, ROCm and XPU.
//!
//! Until 2.0: `CUDA out of memory. Tried to allocate S (GPU N; S total capacity; S already allocated; S free; …)`.
//! Since 2.1 in sentences: `GPU N has a total capacity of S of which S is free. …`. Source:
//! `c10/cuda/CUDACachingAllocator.cpp`, `c10/xpu/XPUCachingAllocator.cpp`.

use crate::measure::format::messages::Kind;
use crate::measure::format::text::{Cursor, Size, Units, floor, unavailable};
use crate::measure::{Backend, Failure, FailureKind, FormatId, Measurement, Process, ReadingName, Reported, Source};

pub(super) const KIND: Kind = Kind {
    id: FormatId::PytorchOom,
    marks: &["withOOMondevice", "Triedtoallocate", "Allocationwaspreemptivelyrejected"],
    read,
};

/// What the message says of the version that wrote it.
#[derive(Clone, Copy)]
struct Versions(&'static str, &'static str);

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    // A warning in front of the error has the exact figures; it is taken over by the error after it.
    if text[at..].starts_with("withOOMondevice") {
        let message = text[at..].find("Triedtoallocate").filter(|ahead| *ahead < 4096);
        if let Some((mut measurement, end)) = message.and_then(|ahead| read_message(text, at + ahead)) {
            refine(&mut measurement, &text[at..]);
            return Some((measurement, end));
        }
        return None;
    }
    read_message(text, at)
}

fn read_message(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let head = &text[floor(text, at.saturating_sub(120))..at];
    // Intel's extension for PyTorch alone has such a limit.
    let over_limit = head.ends_with("largerthan4GB!");
    let backend = if over_limit { Some(Backend::Xpu) } else { backend(head) };
    let mut cursor = Cursor::new(&text[at..]);
    let mut message = Measurement::of(Source::new(FormatId::PytorchOom));
    let mut failure = Failure { backend, ..Failure::new(FailureKind::OutOfMemory) };
    let versions;
    if cursor.eat("Allocationwaspreemptivelyrejected") {
        failure.kind = FailureKind::OverLimit;
        versions = Versions("2.12", "");
        let ahead = &cursor.rest[..floor(cursor.rest, 200)];
        if let Some((_, size)) = ahead.split_once("Requestedsize:") {
            let mut size = Cursor::new(size);
            add(&mut message, Reported::Tried, size.size(Units::Binary));
            cursor = size;
        }
    } else if cursor.eat("Triedtoallocate") && cursor.eat("morethan1EBmemory.") {
        backend?;
        failure.kind = FailureKind::AbsurdRequest;
        versions = class_versions(head, Versions("1.11", ""));
    } else {
        let tried = cursor.size(Units::Binary)?;
        add(&mut message, Reported::Tried, Some(tried));
        if over_limit {
            failure.kind = FailureKind::OverAllocationLimit;
        }
        let known = match cursor.rest {
            rest if rest.starts_with("(GPU") => classic(&mut cursor, &mut message, backend, head),
            _ if cursor.eat(".") => modern(&mut cursor, &mut message, &mut failure, head),
            _ => None,
        };
        // Without either the text must at least name the device: `Tried to allocate` alone is prose.
        if known.is_none() {
            backend?;
        }
        versions = known.unwrap_or_else(|| class_versions(head, Versions("1.0", "")));
        let complete = known.is_some() && message.readings.len() > 3;
        message.source.as_mut()?.cut = !complete && failure.kind == FailureKind::OutOfMemory;
    }
    let source = message.source.as_mut()?;
    let version = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    (source.pytorch_from, source.pytorch_to) = (version(versions.0), version(versions.1));
    failure.backend = backend;
    message.failure = Some(failure);
    Some((message, text.len() - cursor.rest.len()))
}

fn backend(head: &str) -> Option<Backend> {
    let head = head.trim_end_matches('.').strip_suffix("outofmemory")?;
    [("CUDA", Backend::Cuda), ("HIP", Backend::Hip), ("XPU", Backend::Xpu)]
        .into_iter()
        .find_map(|(word, backend)| head.ends_with(word).then_some(backend))
}

fn add(message: &mut Measurement, name: Reported, size: Option<Size>) {
    message.readings.extend(size.map(|size| size.reading(ReadingName::Reported(name))));
}

fn device(message: &mut Measurement, number: Option<u64>) {
    if let Some(source) = &mut message.source {
        source.device = number.and_then(|number| u32::try_from(number).ok());
    }
}

/// `(GPU 0; 11.17 GiB total capacity; …)`.
fn classic(
    cursor: &mut Cursor<'_>,
    message: &mut Measurement,
    backend: Option<Backend>,
    head: &str,
) -> Option<Versions> {
    cursor.eat("(GPU");
    let number = cursor.number()?;
    device(message, Some(number));
    let mut versions = None;
    while cursor.eat(";") {
        let size = cursor.size(Units::Binary)?;
        let labels = [
            ("totalcapacity", Reported::Total),
            ("alreadyallocated", Reported::Allocated),
            ("free", Reported::Free),
            ("allowed", Reported::Allowed),
            ("cached", Reported::Unallocated),
            ("reservedintotalbyPyTorch", Reported::Reserved),
        ];
        let (label, name) = labels.into_iter().find(|(label, _)| cursor.eat(label))?;
        match label {
            "cached" => versions = Some(Versions("1.0", "1.3")),
            "reservedintotalbyPyTorch" => versions = Some(Versions("1.4", "1.10")),
            _ => {}
        }
        add(message, name, Some(size));
    }
    cursor.eat(")");
    let hint = cursor.rest.starts_with("Ifreservedmemoryis>>allocatedmemory");
    let intel = backend == Some(Backend::Xpu);
    Some(match versions? {
        Versions("1.4", _) if intel => Versions("1.13", "2.3"),
        Versions("1.4", _) if hint => match class_versions(head, Versions("1.11", "2.0")) {
            // Before the class there was none: CUDA raised the bare error.
            Versions("1.11", to) if head.contains("RuntimeError:") && backend == Some(Backend::Cuda) => {
                Versions("1.11", if to == "2.0" { "1.12" } else { to })
            }
            versions => versions,
        },
        versions => versions,
    })
}

/// The versions whose error has the class that stands in front.
fn class_versions(head: &str, otherwise: Versions) -> Versions {
    let from = if head.contains("torch.OutOfMemoryError:") {
        "2.4"
    } else if head.contains("OutOfMemoryError") {
        "1.13"
    } else {
        return otherwise;
    };
    Versions(later(from, otherwise.0), otherwise.1)
}

/// The later of two versions, `2.10` after `2.9`.
fn later(a: &'static str, b: &'static str) -> &'static str {
    let number = |version: &str| {
        let (major, minor) = version.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    if number(a) >= number(b) { a } else { b }
}

/// `GPU 0 has a total capacity of … of which … is free. …`.
fn modern(cursor: &mut Cursor<'_>, message: &mut Measurement, failure: &mut Failure, head: &str) -> Option<Versions> {
    if !cursor.eat("GPU") {
        return None;
    }
    let xpu = head.contains("XPUoutofmemory");
    let (mut from, mut to) = (if xpu { "2.5" } else { "2.1" }, "");
    // The text may end anywhere from here on: what is there is taken.
    let Some(number) = cursor.number() else { return Some(class_versions(head, Versions(from, to))) };
    device(message, Some(number));
    if cursor.eat("hasatotalcapactyof") {
        (from, to) = ("2.1", "2.1");
    } else if !cursor.eat("hasatotalcapacityof") {
        return Some(class_versions(head, Versions(from, to)));
    } else if !xpu {
        from = "2.2";
    }
    add(message, Reported::Total, cursor.size(Units::Binary));
    if cursor.eat("ofwhich") {
        add(message, Reported::Free, cursor.size(Units::Binary));
        cursor.eat("isfree.");
        if xpu {
            from = "2.9";
        }
    } else if xpu {
        to = "2.8";
        cursor.eat(".");
    }
    let mut own = false;
    loop {
        let mut ahead = *cursor;
        if ahead.eat("Process") {
            let (Some(pid), true) = (ahead.number(), ahead.eat("has")) else { break };
            let Some(size) = ahead.size(Units::Binary) else { break };
            process(message, Some(pid), size);
            ahead.eat("memoryinuse.");
        } else if ahead.eat("Includingnon-PyTorchmemory,thisprocesshas") {
            let Some(size) = ahead.size(Units::Binary) else { break };
            own = true;
            add(message, Reported::Process, Some(size));
            process(message, None, size);
            ahead.eat("memoryinuse.");
        } else if let Some(size) = ahead.size(Units::Binary)
            && ahead.eat("allowed;")
        {
            add(message, Reported::Allowed, Some(size));
        } else {
            break;
        }
        *cursor = ahead;
    }
    let mut complete = false;
    if cursor.eat("Oftheallocatedmemory") {
        add(message, Reported::Allocated, cursor.size(Units::Binary));
        cursor.eat("isallocatedbyPyTorch,");
        if cursor.eat("with") {
            from = later(from, "2.4");
            add(message, Reported::PrivatePools, cursor.size(Units::Binary));
            let _ = cursor.eat("allocatedinprivatepools(e.g.,CUDAGraphs),")
                || cursor.eat("allocatedinprivatepools(e.g.,HIPGraphs),");
        }
        cursor.eat("and");
        add(message, Reported::Unallocated, cursor.size(Units::Binary));
        complete = cursor.eat("isreservedbyPyTorchbutunallocated.");
    }
    if complete && !own {
        let why = "the message has no figure for the process: none is printed on Windows, with ROCm and XPU, and in many containers";
        message.readings.push(unavailable(ReadingName::Reported(Reported::Process), why));
    }
    if let Some(versions) = hint(cursor, failure, head.contains("HIPoutofmemory")) {
        (from, to) = (later(from, versions.0), if to.is_empty() { versions.1 } else { to });
    }
    Some(class_versions(head, Versions(from, to)))
}

fn process(message: &mut Measurement, pid: Option<u64>, size: Size) {
    let bytes = size.bytes().and_then(|bytes| u64::try_from(bytes).ok());
    message.processes.push(Process {
        pid,
        gpu: message.source.as_ref().and_then(|source| source.device),
        name: None,
        own: pid.is_none(),
        bytes,
        unavailable: bytes.is_none().then(|| "the driver did not say".into()),
    });
}

/// The advice at the end, which dates the version.
fn hint(cursor: &mut Cursor<'_>, failure: &mut Failure, hip: bool) -> Option<Versions> {
    if cursor.eat("expandable_segmentsisenabled.") {
        failure.expandable_segments = Some(true);
        return Some(Versions("2.13", ""));
    }
    if !cursor.eat("Ifreservedbutunallocatedmemoryislargetrysetting") {
        return None;
    }
    if cursor.eat("max_split_size_mb") {
        return Some(Versions("2.1", "2.1"));
    }
    let name = cursor.up_to("=expandable_segments:Truetoavoidfragmentation.")?;
    let page = &cursor.rest[..floor(cursor.rest, 160)];
    Some(match name {
        "PYTORCH_HIP_ALLOC_CONF" => Versions("2.2", "2.9"),
        "PYTORCH_ALLOC_CONF" => Versions("2.10", "2.10"),
        _ if page.contains("#optimizing-memory-usage") => Versions("2.11", ""),
        _ if hip => Versions("2.9", ""),
        _ => Versions("2.2", "2.9"),
    })
}

/// The exact figures of a warning in front of the error:
/// `… failed with OOM on device 0 while trying to map 20971520 bytes (free: 12582912, total: 8589934592)`.
fn refine(message: &mut Measurement, warning: &str) {
    let mut cursor = Cursor::new(warning);
    cursor.eat("withOOMondevice");
    let device = cursor.number().and_then(|number| u32::try_from(number).ok());
    if device.is_none() || message.source.as_ref().and_then(|source| source.device) != device {
        return;
    }
    let map = cursor.eat("whiletryingtomap");
    if !map && !cursor.eat("whiletryingtoallocate") {
        return;
    }
    let mut exact = |name, bytes: Option<i64>| {
        let Some(bytes) = bytes else { return };
        let name = ReadingName::Reported(name);
        message.readings.retain(|reading| reading.name != name);
        message.readings.push(super::text::exact(name, bytes));
    };
    exact(Reported::Refused, cursor.bytes());
    if cursor.eat("bytes(free:") {
        let free = cursor.bytes();
        if cursor.eat(",total:") {
            exact(Reported::Free, free);
            exact(Reported::Total, cursor.bytes());
        }
    }
    if map && let Some(failure) = &mut message.failure {
        failure.expandable_segments = Some(true);
    }
}

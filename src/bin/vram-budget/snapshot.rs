//! `vram-budget snapshot`: a recording of the allocator, what it shows, and what other settings would have done.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Value, json};
use vram_budget::allocator::{AllocConf, ConfIssue};
use vram_budget::bill::{Bill, Part};
use vram_budget::estimate;
use vram_budget::plan::{Framework, Version};
use vram_budget::snapshot::{
    Given, Holder, MOST_BYTES, NotReplayed, NotTried, Peak, Reader, Snapshot, Totals, Tried, WhatIf, beside, by_part,
};
use vram_budget::text::{Locale, Said};
use vram_budget::units::Bytes;

use crate::exit::Rejected;
use crate::{input, plan_args};

/// How many places of the program are listed.
const PLACES: usize = 12;
/// How much of the file is read at once.
const PIECE: usize = 1 << 20;

/// A recording, and what to try on it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What _dump_snapshot() wrote, or a pickle of memory_snapshot(); gzipped or not; - is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Settings to replay the trace under, as in PYTORCH_CUDA_ALLOC_CONF; may be given several times
    #[arg(long, value_name = "SETTINGS")]
    alloc_conf: Vec<String>,
    /// The settings of the recording, where it does not hold them
    #[arg(long, value_name = "SETTINGS")]
    recorded_conf: Option<String>,
    /// PyTorch version whose rules apply [default: 2.15]
    #[arg(long, value_name = "VERSION")]
    pytorch: Option<Version>,
    /// What the device can give to the allocator [default: what a recorded failure tells]
    #[arg(long, value_name = "SIZE", value_parser = vram_budget::units::parse_bytes)]
    total: Option<Bytes>,
    /// The device's index [default: the one with the most reserved]
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// A plan, whose predicted peak is set beside the recorded one, part by part; - is stdin
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,
    /// One JSON document, in bytes, instead of the text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let snapshot = read(&args.file)?;
    let devices = snapshot.devices();
    let device = match args.device {
        Some(device) if devices.contains(&device) => device,
        Some(device) => {
            let known: Vec<String> = devices.iter().map(u32::to_string).collect();
            let reason = format!("nothing is recorded of device {device}; there is {}", known.join(", "));
            return Err(Rejected::because(input::name(&args.file), reason).into());
        }
        None => devices.iter().copied().max_by_key(|d| snapshot.totals(*d).reserved).unwrap_or_default(),
    };
    let what_if = what_if(args, &snapshot, device)?;
    let predicted = args.plan.as_deref().map(predicted).transpose()?;
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &document(&snapshot, device, &what_if, predicted.as_ref()))?;
        writeln!(out)?;
    } else {
        print(&snapshot, &devices, device, &what_if, predicted.as_ref(), &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The bill of a plan.
fn predicted(path: &Path) -> anyhow::Result<Bill> {
    let plan = plan_args::read_plan(path)?;
    Ok(estimate::quick(&plan).map_err(|issues| Rejected::fields(input::name(path), &issues))?.bill)
}

/// What was recorded at the peak, beside what a bill has at its own.
fn print_beside(holders: &[Holder], bill: &Bill, out: &mut dyn Write) -> io::Result<()> {
    let (text, words) = (Locale::En.text(), Locale::En.recording());
    writeln!(out, "\n{}", words.say(&Said::Beside(text.instant(bill.binding))))?;
    writeln!(out, "  {:>10} {:>10}", words.say(&Said::Recorded), words.say(&Said::Predicted))?;
    for (part, recorded, predicted) in beside(&by_part(holders), bill.column(bill.binding).parts) {
        let predicted = predicted.map_or_else(String::new, |bytes| bytes.to_string());
        writeln!(out, "  {:>10} {predicted:>10}  {}", recorded.to_string(), part_name(part))?;
    }
    Ok(())
}

/// Reads a file in pieces, unpacked if it is gzipped.
fn read(path: &Path) -> anyhow::Result<Snapshot> {
    let name = input::name(path);
    let (mut source, mut size): (Box<dyn Read>, Option<u64>) = if path.as_os_str() == "-" {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(path).with_context(|| name.clone())?;
        let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|m| m.len());
        (Box::new(file), size)
    };
    let mut start = Vec::new();
    source.by_ref().take(2).read_to_end(&mut start).with_context(|| name.clone())?;
    let gzipped = start == [0x1f, 0x8b];
    let whole = io::Cursor::new(start).chain(source);
    let mut source: Box<dyn Read> = if gzipped {
        size = None;
        Box::new(flate2::read::MultiGzDecoder::new(io::BufReader::new(whole)))
    } else {
        Box::new(whole)
    };
    let mut piece = vec![0; PIECE];
    let rejected =
        |error: vram_budget::snapshot::SnapshotError| Rejected::because(input::name(path), error.to_string());
    let mut reader = Reader::new(size, MOST_BYTES);
    while !reader.is_complete() {
        let count = source.read(&mut piece).with_context(|| name.clone())?;
        // A pickle of protocol 2 or newer begins with 0x80, an older one with a letter or a bracket that closes.
        if reader.offset() == 0 && matches!(piece.first(), Some(b'{' | b'[')) {
            let mut bytes = piece[..count].to_vec();
            source.take(input::MAX_FILE).read_to_end(&mut bytes).with_context(|| name.clone())?;
            return Ok(vram_budget::snapshot::read_json(&input::text(path, bytes)?).map_err(rejected)?);
        }
        if count == 0 {
            break;
        }
        reader.push(&piece[..count]).map_err(rejected)?;
    }
    Ok(reader.finish().map_err(rejected)?)
}

fn what_if(args: &Args, snapshot: &Snapshot, device: u32) -> anyhow::Result<Result<WhatIf, NotReplayed>> {
    let version = args.pytorch.unwrap_or(Framework::default().pytorch);
    for conf in &args.alloc_conf {
        if let Err(issues) = AllocConf::parse(conf, version) {
            let of = format!("settings \"{conf}\" under PyTorch {version}");
            return Err(Rejected::because(of, reasons(&issues)).into());
        }
    }
    let given =
        Given { version, recorded_conf: args.recorded_conf.as_deref(), total: args.total, confs: &args.alloc_conf };
    Ok(WhatIf::of(snapshot, device, &given))
}

fn reasons(issues: &[ConfIssue]) -> String {
    issues.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn not_tried(reason: &NotTried) -> String {
    match reason {
        NotTried::Settings(issues) => reasons(issues),
        NotTried::Segments => "its segments are not such as these settings make".into(),
    }
}

fn part_name(part: Option<Part>) -> &'static str {
    part.map_or("not told by its stack", |part| Locale::En.text().part(part))
}

fn print_holders(holders: &[Holder], out: &mut dyn Write) -> io::Result<()> {
    for (part, bytes) in by_part(holders) {
        writeln!(out, "  {:>10}  {}", bytes.to_string(), part_name(part))?;
    }
    if holders.iter().all(|holder| holder.place.is_none()) {
        return Ok(());
    }
    writeln!(out, "  by place:")?;
    for holder in holders.iter().take(PLACES) {
        let blocks = if holder.count == 1 { "1 block".into() } else { format!("{} blocks", holder.count) };
        write!(out, "  {:>10}  {blocks:>12}  ", holder.bytes.to_string())?;
        match &holder.place {
            Some(place) => writeln!(out, "{}:{} {}", last_parts(&place.file), place.line, place.name)?,
            None => writeln!(out, "no stack")?,
        }
    }
    if let Some(others) = holders.get(PLACES..).filter(|others| !others.is_empty()) {
        let bytes = others.iter().map(|h| h.bytes.get()).fold(0, u64::saturating_add);
        writeln!(out, "  {:>10}  in {} other places", Bytes(bytes).to_string(), others.len())?;
    }
    Ok(())
}

/// The file and the two folders that it is in.
fn last_parts(file: &str) -> &str {
    file.rmatch_indices(['/', '\\']).nth(2).map_or(file, |(at, _)| &file[at + 1..])
}

fn print(
    snapshot: &Snapshot,
    devices: &[u32],
    device: u32,
    what_if: &Result<WhatIf, NotReplayed>,
    predicted: Option<&Bill>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let Totals { segments, reserved, allocated, active, requested, inactive_split, inactive } = snapshot.totals(device);
    let trace = snapshot.trace(device);
    writeln!(out, "device {device} of {}: {segments} segments, {} entries in its trace", devices.len(), trace.len())?;
    let row = |out: &mut dyn Write, bytes: Bytes, what: &str| writeln!(out, "  {:>10}  {what}", bytes.to_string());
    row(out, reserved, "reserved")?;
    row(out, allocated, "allocated")?;
    if active > allocated {
        row(out, active.saturating_sub(allocated), "freed, and waiting for another stream")?;
    }
    if let Some(requested) = requested {
        row(out, active.saturating_sub(requested), "lost to rounding")?;
    }
    row(out, inactive, "free in segments")?;
    row(out, inactive_split, "of that in segments that something keeps alive")?;
    writeln!(out, "\nallocated now")?;
    print_holders(&snapshot.holders(device), out)?;
    if let Some(Peak { entry, requested, holders }) = snapshot.peak(device) {
        match entry {
            Some(entry) => writeln!(out, "\nthe peak of the trace, at entry {entry}: {requested} asked for")?,
            None => writeln!(out, "\nthe peak of the trace, before its first entry: {requested} asked for")?,
        }
        print_holders(&holders, out)?;
        if let Some(bill) = predicted {
            print_beside(&holders, bill, out)?;
        }
    }
    let what_if = match what_if {
        Ok(what_if) => what_if,
        Err(reason) => {
            let reason = match reason {
                NotReplayed::NoTrace => "nothing was recorded (torch.cuda.memory._record_memory_history)",
                NotReplayed::PrivatePools => {
                    "it has private pools (CUDA graphs, MemPool), and does not say of which pool the segments were that it gave back"
                }
                NotReplayed::Inconsistent => "its trace and its segments do not fit together",
            };
            return writeln!(out, "\nnot replayed: {reason}");
        }
    };
    writeln!(out, "\nreplayed")?;
    if what_if.history.older_blocks > 0 {
        let count = what_if.history.older_blocks;
        writeln!(out, "{count} blocks are older than the trace; other settings lay them out anew")?;
    }
    if what_if.history.emptied > 0 {
        let count = what_if.history.emptied;
        writeln!(out, "the cache was given back {count} times, taken as calls of empty_cache")?;
    }
    if let Some(capacity) = what_if.capacity {
        writeln!(out, "the device can give {capacity} to the allocator")?;
    }
    writeln!(out, "{:<44} {:>10} {:>10} {:>6} {:>10}", "", "allocated", "reserved", "ratio", "at the end")?;
    let all = [&what_if.recorded].into_iter().chain(&what_if.others);
    for (n, Tried { conf, found }) in all.enumerate() {
        let name = match (n, conf.as_str()) {
            (0, "") => "as recorded: defaults".into(),
            (0, conf) => format!("as recorded: {conf}"),
            (_, "") => "defaults".into(),
            (_, conf) => conf.into(),
        };
        let found = match found {
            Ok(found) => found,
            Err(reason) => {
                writeln!(out, "{name:<44} {}", not_tried(reason))?;
                continue;
            }
        };
        let (allocated, peak) = (found.peak_allocated.to_string(), found.peak_reserved.to_string());
        let ratio = found.peak_reserved.as_f64() / found.peak_allocated.as_f64().max(1.0);
        write!(out, "{name:<44} {allocated:>10} {peak:>10} {ratio:>6.2} {:>10}", found.reserved.to_string())?;
        let same = found.reserved == reserved && found.peak_reserved == what_if.history.peak_reserved;
        if n == 0 && !same {
            write!(out, "  differs from the recording: other versions or settings")?;
        }
        match (found.recorded_failure_fails, found.failed) {
            (Some(true), _) => write!(out, "  runs out of memory at the same entry")?,
            (Some(false), _) => write!(out, "  does not run out of memory there")?,
            (None, Some((entry, _))) => write!(out, "  runs out of memory at entry {entry}")?,
            (None, None) => {}
        }
        writeln!(out)?;
    }
    if what_if.history.failure.is_some_and(|failure| failure.limited) {
        writeln!(
            out,
            "the recorded failure was not the device's, which had room: a memory fraction, or another limit"
        )?;
    }
    Ok(())
}

fn parts_json(parts: &[(Option<Part>, Bytes)]) -> Value {
    let name = |part: &Option<Part>| part.and_then(|part| Some(serde_json::to_value(part).ok()?.as_str()?.to_owned()));
    parts.iter().map(|(part, bytes)| (name(part).unwrap_or_else(|| "unknown".into()), json!(bytes))).collect()
}

fn holders_json(holders: &[Holder]) -> Value {
    let parts = parts_json(&by_part(holders));
    let places = holders.iter().map(|holder| {
        json!({
            "file": holder.place.as_ref().map(|p| &p.file),
            "line": holder.place.as_ref().map(|p| p.line),
            "name": holder.place.as_ref().map(|p| &p.name),
            "part": holder.part,
            "blocks": holder.count,
            "bytes": holder.bytes,
        })
    });
    json!({ "parts": parts, "places": places.collect::<Value>() })
}

fn document(
    snapshot: &Snapshot,
    device: u32,
    what_if: &Result<WhatIf, NotReplayed>,
    predicted: Option<&Bill>,
) -> Value {
    let totals = snapshot.totals(device);
    let tried = |tried: &Tried| match &tried.found {
        Err(reason) => json!({ "alloc_conf": tried.conf, "not_replayed": not_tried(reason) }),
        Ok(found) => json!({
            "alloc_conf": tried.conf,
            "peak_allocated": found.peak_allocated,
            "peak_reserved": found.peak_reserved,
            "allocated": found.allocated,
            "reserved": found.reserved,
            "inactive_split": found.inactive_split,
            "retries": found.retries,
            "fails_at_entry": found.failed.map(|(entry, _)| entry),
            "recorded_failure_fails": found.recorded_failure_fails,
        }),
    };
    let replayed = match what_if {
        Err(reason) => json!({ "not_replayed": format!("{reason:?}") }),
        Ok(what_if) => json!({
            "older_blocks": what_if.history.older_blocks,
            "emptied": what_if.history.emptied,
            "capacity": what_if.capacity,
            "recorded_peak_reserved": what_if.history.peak_reserved,
            "recorded_failure": what_if.history.failure.map(|failure| json!({
                "entry": failure.entry,
                "size": failure.size,
                "device_free": failure.device_free,
                "reserved": failure.reserved,
                "limited": failure.limited,
            })),
            "as_recorded": tried(&what_if.recorded),
            "others": what_if.others.iter().map(tried).collect::<Value>(),
        }),
    };
    let peak = snapshot.peak(device).map(
        |peak| json!({ "entry": peak.entry, "requested": peak.requested, "holders": holders_json(&peak.holders) }),
    );
    json!({
        "format": "vram-budget-snapshot",
        "version": 1,
        "device": device,
        "devices": snapshot.devices(),
        "alloc_conf": snapshot.alloc_conf,
        "segments": totals.segments,
        "reserved": totals.reserved,
        "allocated": totals.allocated,
        "active": totals.active,
        "requested": totals.requested,
        "inactive": totals.inactive,
        "inactive_split": totals.inactive_split,
        "entries": snapshot.trace(device).len(),
        "allocated_now": holders_json(&snapshot.holders(device)),
        "peak": peak,
        "predicted_peak": predicted.map(|bill| {
            let parts = bill.column(bill.binding).parts;
            json!({ "instant": bill.binding, "requested": parts.total(), "parts": parts_json(&Part::ALL.map(|p| (Some(p), parts.get(p)))) })
        }),
        "replayed": replayed,
    })
}

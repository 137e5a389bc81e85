//! `vram-budget replay`: a recorded run of the caching allocator, replayed to the byte.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context;
use vram_budget::allocator::rules::{Standing, standing};
use vram_budget::allocator::trace::{Difference, Figures, Report, Trace};
use vram_budget::allocator::{AllocConf, Config};
use vram_budget::plan::{Framework, Version};
use vram_budget::units::{Bytes, MAX_DOCUMENT_BYTES, MIB};

use crate::exit::Rejected;
use crate::input::MAX_FILE;

/// How many figures that differ from the recording are printed.
const DIFFERENCES_SHOWN: usize = 20;

/// A trace, and what to replay it under.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recorded events as JSON, gzipped or not (the format: docs/replay.md); - is stdin
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Allocator settings, as in PYTORCH_CUDA_ALLOC_CONF, instead of the recording's
    #[arg(long, value_name = "SETTINGS")]
    alloc_conf: Option<String>,
    /// Size of the device in MiB, or `unlimited`, instead of the recording's
    #[arg(long, value_name = "MIB")]
    total_mib: Option<Total>,
    /// PyTorch version whose rules apply, instead of the recording's
    #[arg(long, value_name = "VERSION")]
    pytorch: Option<Version>,
    /// Print figures after every N-th event too
    #[arg(long, value_name = "N")]
    every: Option<NonZeroUsize>,
    /// One JSON object, in bytes, with the segments, instead of the table
    #[arg(long)]
    json: bool,
}

/// What `--total-mib` takes.
#[derive(Clone, Copy, Debug)]
struct Total(Option<Bytes>);

impl FromStr for Total {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: u64 = MAX_DOCUMENT_BYTES / MIB;
        match text.parse() {
            Ok(mib) if mib <= MOST => Ok(Self(Some(Bytes::mib(mib)))),
            _ if text == "unlimited" => Ok(Self(None)),
            _ => Err(format!("write a whole number of MiB up to {MOST}, or `unlimited`")),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.trace.display().to_string();
    let text = read(&args.trace)?;
    let mut trace = Trace::from_json(&text).map_err(|error| Rejected::because(&name, error.to_string()))?;
    drop(text);
    if trace.name.is_empty() {
        trace.name.clone_from(&name);
    }
    if let Some(n) = args.every {
        trace.check_every(n);
    }

    let version = args.pytorch.or(trace.pytorch).unwrap_or(Framework::default().pytorch);
    if let Standing::Before(oldest) = standing(version) {
        let what = format!("PyTorch {version}");
        return Err(Rejected::because(what, format!("rules are known from {oldest} on")).into());
    }
    let alloc_conf = args.alloc_conf.as_ref().unwrap_or(&trace.alloc_conf).clone();
    let config = Config {
        total_bytes: args.total_mib.map_or(trace.total, |total| total.0),
        alloc_conf: AllocConf::parse(&alloc_conf, version).map_err(|issues| {
            let reasons: Vec<_> = issues.iter().map(ToString::to_string).collect();
            Rejected::because(format!("settings \"{alloc_conf}\" under PyTorch {version}"), reasons.join("; "))
        })?,
        ..Config::new(version)
    };
    let report =
        Report::new(&trace, &config, &alloc_conf).map_err(|error| Rejected::because(&name, error.to_string()))?;

    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        // Under other rules than the recording's, differences are what was asked for.
        let same = args.alloc_conf.is_none() && args.total_mib.is_none() && args.pytorch.is_none();
        print(&mut out, &report, same.then(|| report.differences(&trace)))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The text of a file, unpacked if it is gzipped.
fn read(path: &Path) -> anyhow::Result<String> {
    let name = path.display().to_string();
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(path).with_context(|| name.clone())?),
    };
    let mut source = BufReader::new(source);
    let mut start = Vec::new();
    source.by_ref().take(2).read_to_end(&mut start).with_context(|| name.clone())?;
    let whole = start.as_slice().chain(source);
    let unpacked: Box<dyn Read + '_> =
        if start == [0x1f, 0x8b] { Box::new(flate2::read::MultiGzDecoder::new(whole)) } else { Box::new(whole) };
    let mut bytes = Vec::new();
    unpacked.take(MAX_FILE + 1).read_to_end(&mut bytes).with_context(|| name.clone())?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Rejected::because(name, "larger than 2 GiB").into());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Rejected::because(name, format!("not UTF-8 text (byte {at})")).into()
    })
}

fn print(out: &mut impl Write, report: &Report, differences: Option<Vec<Difference>>) -> io::Result<()> {
    let device = report.total_bytes.map_or("unlimited".into(), |total| format!("{total:#}"));
    let settings = if report.alloc_conf.is_empty() { "default" } else { &report.alloc_conf };
    writeln!(out, "{}: {} events, PyTorch {}", report.name, report.events, report.pytorch)?;
    match standing(report.pytorch) {
        Standing::Run => {}
        Standing::Between(a, b) => writeln!(out, "rules checked on PyTorch {a} and {b}, not on {}", report.pytorch)?,
        Standing::Before(v) | Standing::After(v) => {
            writeln!(out, "rules checked up to PyTorch {v}, not on {}", report.pytorch)?;
        }
    }
    writeln!(out, "device {device}, settings {settings}\n")?;
    writeln!(
        out,
        "{:>12} {:>15} {:>15} {:>15} {:>15} {:>15} {:>8} {:>7} {:>5}",
        "after event", "allocated", "requested", "active", "reserved", "inactive split", "segments", "retries", "OOMs"
    )?;
    for figures in &report.checkpoints {
        row(out, &figures.after_event.map_or(String::new(), |n| n.to_string()), figures)?;
    }
    row(out, "end", &report.last)?;
    let peaks = report.peaks;
    writeln!(
        out,
        "{:>12} {:>15} {:>15} {:>15} {:>15} {:>15}",
        "peak", peaks.allocated.0, peaks.requested.0, peaks.active.0, peaks.reserved.0, peaks.inactive_split.0
    )?;
    if let Some(first) = report.first_oom {
        let error = first.error;
        writeln!(
            out,
            "\nfirst out of memory at event {}: {:#} asked for, {:#} tried; {:#} allocated, {:#} reserved",
            first.event, error.requested, error.tried, error.allocated, error.reserved
        )?;
    }
    let Some(differences) = differences else { return Ok(()) };
    if differences.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{} figures differ from the recording:", differences.len())?;
    for Difference { after_event, figure, recorded, replayed } in differences.iter().take(DIFFERENCES_SHOWN) {
        writeln!(out, "  after event {after_event}: {figure} recorded {}, replayed {}", recorded.0, replayed.0)?;
    }
    Ok(())
}

fn row(out: &mut impl Write, label: &str, figures: &Figures) -> io::Result<()> {
    let Figures { allocated, requested, active, reserved, inactive_split, .. } = figures;
    writeln!(
        out,
        "{label:>12} {:>15} {:>15} {:>15} {:>15} {:>15} {:>8} {:>7} {:>5}",
        allocated.0,
        requested.0,
        active.0,
        reserved.0,
        inactive_split.0,
        figures.num_segments,
        figures.retries,
        figures.ooms
    )
}

//! `vram-budget watch`: this machine's GPUs and who holds them, again and again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use vram_budget::measure::Gpu;
use vram_budget::units::{GIB, MIB};

use crate::exit;
use crate::probe::{Driver, ERRORS, Found, Here, Sample};

/// How often, and as what.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One JSON object a GPU and moment, in bytes, instead of the table
    #[arg(long)]
    json: bool,
    /// Once, and no more
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stdout = io::stdout();
    let clear = stdout.is_terminal() && !args.json && !args.once;
    let pause = Duration::from_secs(args.every);
    let looks = if args.once { 1 } else { u64::MAX };
    watch(&Here::default(), args.json, clear, looks, &mut || std::thread::sleep(pause), &mut stdout.lock())
}

fn watch(
    driver: &dyn Driver,
    json: bool,
    clear: bool,
    looks: u64,
    pause: &mut dyn FnMut(),
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let found = match driver.probe() {
        Ok(found) => found,
        Err(tried) => {
            crate::probe::no_gpu(&mut io::stderr(), &tried)?;
            return Ok(ExitCode::from(exit::NO_GPU));
        }
    };
    let mut before = Growth::default();
    for look in 0..looks {
        if look > 0 {
            pause();
        }
        let samples = driver.sample(true).map_err(|error| anyhow::anyhow!("the driver stopped to answer: {error}"))?;
        before.take(&samples);
        if json {
            for sample in &samples {
                writeln!(out, "{}", line(&found, sample))?;
            }
        } else {
            // Home and clear: no scrolling, nothing else of the terminal changes.
            let table = table(&found, &samples, &before);
            write!(out, "{}{table}", if clear { "\x1b[H\x1b[2J" } else { "" })?;
        }
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How often a process has grown in a row, by GPU and process.
#[derive(Debug, Default)]
struct Growth(BTreeMap<(u32, u32), (u64, u64, u32)>);

impl Growth {
    /// Looks in a row, each at least as high as the one before, from which on growth is worth a word.
    const LOOKS: u32 = 30;
    /// And at least so much.
    const BYTES: u64 = 64 * MIB;

    fn take(&mut self, samples: &[Sample]) {
        for sample in samples {
            for (pid, bytes) in &sample.processes {
                let Some(bytes) = *bytes else { continue };
                let of = self.0.entry((sample.gpu, *pid)).or_insert((bytes, bytes, 0));
                *of = if bytes >= of.1 { (of.0, bytes, of.2 + 1) } else { (bytes, bytes, 0) };
            }
        }
    }

    /// What the process has grown by, if it grew all the while.
    fn of(&self, gpu: u32, pid: u32) -> Option<u64> {
        let (from, to, looks) = *self.0.get(&(gpu, pid))?;
        (looks > Self::LOOKS && to - from >= Self::BYTES).then_some(to - from)
    }
}

fn line(found: &Found, sample: &Sample) -> serde_json::Value {
    let gpu = found.gpus.iter().find(|gpu| gpu.index == sample.gpu);
    let processes: Vec<_> = sample.processes.iter().map(|(pid, bytes)| json!({ "pid": pid, "bytes": bytes })).collect();
    json!({
        "gpu": sample.gpu,
        "name": gpu.and_then(|gpu| gpu.name.clone()),
        "total_bytes": gpu.and_then(|gpu| gpu.total_bytes).map(|bytes| bytes.get()),
        "used_bytes": sample.used,
        "processes": processes,
        "figures": sample.vitals.figures,
        "throttled": sample.vitals.throttled,
        "ecc": gpu.and_then(|gpu| gpu.ecc),
        "mig": gpu.and_then(|gpu| gpu.mig),
        "partition": gpu.and_then(|gpu| gpu.partition.clone()),
        "slices": gpu.map_or_else(Vec::new, |gpu| gpu.slices.clone()),
        "unavailable": sample.vitals.unavailable,
        "lost": sample.lost,
    })
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn gib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / GIB as f64)
}

fn table(found: &Found, samples: &[Sample], growth: &Growth) -> String {
    let mut out = format!(
        "{:>4} {:<28} {:>10} {:>10} {:>6} {:>9} {:>8}\n",
        "GPU", "name", "used GiB", "of GiB", "busy", "clock", "process"
    );
    for sample in samples {
        let gpu = found.gpus.iter().find(|gpu| gpu.index == sample.gpu);
        let name = gpu.and_then(|gpu| gpu.name.as_deref()).unwrap_or("not known");
        let unknown = || "not known".to_owned();
        let total = gpu.and_then(|gpu| gpu.total_bytes).map_or_else(unknown, |bytes| gib(bytes.get()));
        let used = sample.used.map_or_else(unknown, gib);
        let figure = |name: &str, unit: &str| {
            sample.vitals.figures.get(name).map_or_else(|| "-".to_owned(), |figure| format!("{figure} {unit}"))
        };
        let (busy, clock) = (figure("gpu_busy_percent", "%"), figure("sm_clock_mhz", "MHz"));
        let _ = writeln!(out, "{:>4} {name:<28} {used:>10} {total:>10} {busy:>6} {clock:>9}", sample.gpu);
        for line in remarks(gpu, sample) {
            let _ = writeln!(out, "{:>4} {line}", "");
        }
        for (pid, bytes) in &sample.processes {
            let held = bytes.map_or_else(unknown, gib);
            let grown = growth
                .of(sample.gpu, *pid)
                .map_or_else(String::new, |b| format!("  grew by {} GiB without a pause", gib(b)));
            let _ = writeln!(out, "{:>4} {:<28} {held:>10} {:>10} {:>6} {:>9} {pid:>8}{grown}", "", "", "", "", "");
        }
    }
    out
}

/// What is not as it should be, or divides the card.
fn remarks(gpu: Option<&Gpu>, sample: &Sample) -> Vec<String> {
    let mut said: Vec<String> = sample.lost.iter().map(|why| format!("does not answer: {why}")).collect();
    if !sample.vitals.throttled.is_empty() {
        said.push(format!("clocks held down by {}", sample.vitals.throttled.join(", ")));
    }
    if let Some(errors) = sample.vitals.figures.get(ERRORS[1]).filter(|errors| **errors > 0) {
        said.push(format!("memory errors that were not corrected since the driver was loaded: {errors}"));
    }
    let Some(gpu) = gpu else { return said };
    if gpu.mig == Some(true) {
        let slices: Vec<&str> = gpu.slices.iter().filter_map(|slice| slice.name.as_deref()).collect();
        said.push(if slices.is_empty() {
            "MIG, without instances".into()
        } else {
            format!("MIG: {}", slices.join("; "))
        });
    }
    said.extend(gpu.partition.as_ref().filter(|at| *at != "SPX/NPS1").map(|at| format!("partitions: {at}")));
    said
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use vram_budget::units::Bytes;

    use super::*;
    use crate::probe::Vitals;

    struct Growing(RefCell<u64>);

    impl Driver for Growing {
        fn probe(&self) -> Result<Found, Vec<String>> {
            let gpu = Gpu { name: Some("RTX 4090".into()), total_bytes: Some(Bytes::mib(24_564)), ..Gpu::default() };
            Ok(Found { gpus: vec![gpu], ..Found::default() })
        }
        fn sample(&self, _: bool) -> Result<Vec<Sample>, String> {
            let mut look = self.0.borrow_mut();
            *look += 1;
            if *look > 40 {
                return Err("GPU is lost".into());
            }
            let held = (1 << 30) + *look * (8 << 20);
            let vitals = Vitals {
                figures: [("gpu_busy_percent".into(), 97), ("ecc_uncorrected".into(), 2)].into(),
                throttled: vec!["sw_power_cap".into()],
                unavailable: [("sm_clock_mhz".into(), "not supported".into())].into(),
            };
            let processes = vec![(7, Some(held)), (8, None)];
            Ok(vec![
                Sample { gpu: 0, used: Some(held + 1), processes, vitals, lost: None },
                Sample { gpu: 1, lost: Some("GPU is lost".into()), ..Sample::default() },
            ])
        }
    }

    fn watched(json: bool, looks: u64) -> (anyhow::Result<ExitCode>, String) {
        let mut out = Vec::new();
        let done = watch(&Growing(RefCell::new(0)), json, false, looks, &mut || {}, &mut out);
        (done, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_look_names_the_card_and_who_holds_it() {
        let (_, table) = watched(false, 1);
        assert!(table.contains("RTX 4090") && table.contains("24.0"), "{table}");
        assert!(table.contains("not known") && !table.contains("grew"), "{table}");
        assert!(table.contains(" 97 %         -\n"), "{table}");
        assert!(table.contains("held down by sw_power_cap") && table.contains("was loaded: 2"), "{table}");
        assert!(table.contains("does not answer: GPU is lost"), "{table}");
        let (_, lines) = watched(true, 2);
        let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        assert_eq!(first["processes"][0]["bytes"], (1 << 30) + (8 << 20));
        assert_eq!(first["processes"][1]["bytes"], serde_json::Value::Null, "not a zero");
        assert_eq!(first["figures"]["gpu_busy_percent"], 97);
        assert_eq!(first["unavailable"]["sm_clock_mhz"], "not supported");
        assert_eq!(lines.lines().count(), 4);
    }

    #[test]
    fn what_only_grows_is_said_and_a_lost_card_is_an_error() {
        let (_, table) = watched(false, 35);
        assert!(table.contains("grew by 0.3 GiB without a pause"), "{table}");
        assert!(watched(false, 50).0.unwrap_err().to_string().contains("GPU is lost"));
    }
}

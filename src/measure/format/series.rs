//! Figures by step: which names mean memory, in which unit and of which total, and the series that they make.

use crate::measure::format::text::Size;
use crate::measure::{FormatId, Measurement, Reading, ReadingName, Reported, Series, Source, TierName, Unit};

/// The most points of a series that are kept; beyond, each point is the highest of several steps.
const MOST_POINTS: usize = 8192;
/// The most series of one text.
const MOST_SERIES: usize = 64;

/// What a producer's name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    pub(super) tier: TierName,
    /// The reading that the highest point is, where the series is of peaks; the last point's for a total.
    pub(super) reading: Option<ReadingName>,
    /// The unit that the name says. `None`: the figures decide.
    pub(super) unit: Option<u64>,
}

/// What `name` means, where it means memory of a GPU: `memory/max_allocated (GiB)`, `gpu_mem_reserved_mb`.
///
/// GB is read as 2³⁰ bytes: what trainers' loggers divide by.
pub(super) fn meaning(name: &str) -> Option<Meaning> {
    let lower = name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    // Weights & Biases': what the driver attributes to the card, or to the process on it. Without `Bytes` it is a share.
    // Source: `wandb/sdk/internal/system/assets/gpu.py`.
    if let Some((head, rest)) = lower.split_once("memoryallocated") {
        let tier = if head.contains("process") { TierName::Process } else { TierName::Device };
        return (rest == "bytes" && head.contains("gpu.")).then_some(Meaning { tier, reading: None, unit: Some(1) });
    }
    let other = [
        "cpu",
        "host",
        "before_init",
        "percent",
        "pct",
        "%",
        "util",
        "time",
        "clock",
        "temp",
        "bandwidth",
        "delta",
        "fraction",
        "ratio",
        "speed",
        "ops",
        "ooms",
        "retries",
        "per_sec",
        "power",
        "system ram",
        "rss",
        "count",
        "num_",
        "efficien",
    ];
    if has(&other) || !has(&["mem", "vram", "allocated", "reserved"]) {
        return None;
    }
    let peak = has(&["max", "peak", "highest"]);
    let (tier, reading) = if has(&["total", "available", "capacity"]) && !has(&["alloc", "reserved", "used"]) {
        (TierName::Device, Some(ReadingName::Reported(Reported::Total)))
    } else if has(&["reserved", "cached"]) {
        // axolotl's device_reserved is the highest too: it asks for the peak of every figure.
        let highest = peak || has(&["device_reserved", "device_mem_reserved"]) || lower.starts_with("reserved_");
        (TierName::Reserved, highest.then_some(ReadingName::MaxReserved))
    } else if has(&["active"]) {
        (TierName::Allocated, peak.then_some(ReadingName::Reported(Reported::MaxActive)))
    } else if has(&["alloc"]) {
        (TierName::Allocated, peak.then_some(ReadingName::MaxAllocated))
    } else if has(&["used", "usage", "in_use", "vram", "gpu", "process"]) {
        (TierName::Process, None)
    } else {
        return None;
    };
    Some(Meaning { tier, reading, unit: unit(&lower) })
}

/// The unit that a name ends with.
fn unit(lower: &str) -> Option<u64> {
    let last = lower.trim_end_matches([')', ']', ' ']).rsplit(['(', '[', ' ', '_', '/', '.', '-']).next()?;
    match last {
        "gib" | "gb" => Some(1 << 30),
        "mib" | "mb" => Some(1 << 20),
        "kib" | "kb" => Some(1 << 10),
        "bytes" | "b" => Some(1),
        _ => None,
    }
}

/// The figure in bytes: in the unit of the name, else in `asked`, else as bytes where only bytes make sense of it.
fn in_bytes(written: &str, meaning: Meaning, asked: Option<Unit>) -> Option<Size> {
    let plain = plain(written)?;
    let unit = match (meaning.unit, asked) {
        (Some(unit), _) => unit,
        (None, Some(unit)) => unit.bytes(),
        // Whole and of a megabyte or more, or nothing: bytes. A gigabyte is no number of GiB.
        (None, None) => {
            let whole: u64 = plain.parse().ok()?;
            (whole == 0 || whole >= 1_000_000).then_some(1)?
        }
    };
    Size::of(&plain, unit)
}

/// A number without an exponent.
fn plain(written: &str) -> Option<String> {
    let written = written.trim().trim_start_matches('+');
    let Some((number, exponent)) = written.split_once(['e', 'E']) else { return Some(written.to_owned()) };
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let point = i32::try_from(whole.len()).ok()?.checked_add(exponent)?;
    let digits = format!("{whole}{fraction}");
    let point = usize::try_from(point).ok().filter(|point| *point <= 24)?;
    Some(if point >= digits.len() {
        format!("{digits:0<point$}")
    } else {
        format!("{}.{}", &digits[..point], &digits[point..])
    })
}

/// The names under which loggers write the step.
pub(super) fn is_step(name: &str) -> bool {
    matches!(
        name.to_ascii_lowercase().as_str(),
        "step"
            | "_step"
            | "global_step"
            | "steps"
            | "iteration"
            | "iter"
            | "iterations"
            | "train/global_step"
            | "trainer/global_step"
    )
}

/// The series of one process.
pub(super) struct SeriesSet {
    asked: Option<Unit>,
    series: Vec<(Series, Option<Reading>)>,
    /// Names whose unit nothing tells, with no series of their own.
    pub(super) unclear: bool,
}

impl SeriesSet {
    pub(super) const fn new(asked: Option<Unit>) -> Self {
        Self { asked, series: Vec::new(), unclear: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Takes the figure `written` of `name` at `step`.
    pub(super) fn add(&mut self, name: &str, meaning: Meaning, step: i64, written: &str) {
        self.add_within(name, meaning, step, written, 0);
    }

    /// The same, of a figure that may be off by `off` bytes beside what its last digit tells.
    pub(super) fn add_within(&mut self, name: &str, meaning: Meaning, step: i64, written: &str, off: i64) {
        let size = match in_bytes(written, meaning, self.asked) {
            Some(Size::Known(bytes, within)) => Size::Known(bytes, within.max(off)),
            Some(size) => size,
            None => {
                self.unclear |= plain(written).is_some_and(|plain| plain.parse::<f64>().is_ok());
                return;
            }
        };
        let Some(bytes) = size.bytes() else { return };
        let at = self.series.iter().position(|(series, _)| series.name == name).unwrap_or_else(|| {
            let name = name.to_owned();
            let series = Series { name, tier: meaning.tier, warm_up: 0, every: None, points: Vec::new() };
            self.series.push((series, None));
            self.series.len() - 1
        });
        if at >= MOST_SERIES {
            self.series.truncate(MOST_SERIES);
            return;
        }
        let (series, best) = &mut self.series[at];
        if let Some(name) = meaning.reading {
            let higher = best.as_ref().and_then(Reading::bytes).is_none_or(|best| bytes >= best);
            if higher || meaning.tier == TierName::Device {
                *best = Some(size.reading(name));
            }
        }
        push(series, step, bytes);
    }

    /// The measurement, where there is a figure.
    pub(super) fn measurement(self, format: FormatId, rank: Option<u32>) -> Option<Measurement> {
        if self.series.is_empty() {
            return None;
        }
        let mut source = Source::new(format);
        source.rank = rank;
        let mut measurement = Measurement::of(source);
        for (mut series, reading) in self.series {
            series.warm_up = warm_up(&series.points);
            measurement.series.push(series);
            let known = |name| measurement.readings.iter().position(|r: &Reading| r.name == name);
            match reading.as_ref().map(|reading| (known(reading.name), reading)) {
                // Two names for one figure: the higher.
                Some((Some(at), reading)) if measurement.readings[at].bytes() < reading.bytes() => {
                    measurement.readings[at] = reading.clone();
                }
                Some((None, reading)) => measurement.readings.push(reading.clone()),
                _ => {}
            }
        }
        Some(measurement)
    }
}

/// Adds a point; past the limit, halves what is kept, the higher of each pair.
pub(super) fn push(series: &mut Series, step: i64, bytes: i64) {
    let every = series.every.unwrap_or(1);
    if every > 1
        && let Some(last) = series.points.last_mut()
        && step.checked_sub(last[0]).is_some_and(|gone| (0..i64::from(every)).contains(&gone))
    {
        last[1] = last[1].max(bytes);
        return;
    }
    series.points.push([step, bytes]);
    if series.points.len() > MOST_POINTS {
        series.points =
            series.points.chunks(2).map(|pair| [pair[0][0], pair.iter().map(|p| p[1]).max().unwrap_or(0)]).collect();
        series.every = Some(every.saturating_mul(2));
    }
}

/// The cold start: the points before the figure first comes within 5 % of what it is later on. The first step makes
/// the optimizer's states and fills the cache.
fn warm_up(points: &[[i64; 2]]) -> u32 {
    let [_, .., last] = points else { return 0 };
    let mut later: Vec<i64> = points.iter().skip(points.len() / 2).map(|point| point[1]).collect();
    later.sort_unstable();
    let usual = later.get(later.len() / 2).copied().unwrap_or(last[1]);
    let near = |bytes: i64| (bytes - usual).abs() <= usual / 20;
    let cold = points.iter().position(|point| near(point[1])).unwrap_or(0);
    // A series that never settles has no warm-up.
    if cold * 4 <= points.len() { u32::try_from(cold).unwrap_or(0) } else { u32::from(cold == 1) }
}

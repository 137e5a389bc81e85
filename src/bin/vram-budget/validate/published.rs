//! `vram-budget validate --published`: what others have published of their runs, beside what is predicted for them.
//!
//! One row a line: `{"id", "source", "origin", "published": {"metric", "gib"}, "plan"}`; in a plan's place `unexplained`
//! says why there is none. What is refused counts against coverage.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vram_budget::estimate::{Estimate, estimate};
use vram_budget::plan::Plan;
use vram_budget::units::Bytes;

use super::{digits, quantile, reason};
use crate::exit::Rejected;
use crate::input;

/// A published measurement.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    source: String,
    /// Where it was published.
    #[expect(dead_code, reason = "said for the reader of the file")]
    origin: String,
    published: Published,
    /// What was run.
    #[serde(default)]
    plan: Option<Value>,
    /// Why there is no plan that says what was run.
    #[serde(default)]
    unexplained: Option<String>,
    /// What the plan does not say of the run, or takes for granted.
    #[serde(default)]
    note: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    metric: Metric,
    gib: f64,
}

/// What a published figure counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Metric {
    /// `max_memory_allocated`.
    Allocated,
    /// `active_bytes.all.peak`, which is `allocated` where nothing waits for another stream.
    Active,
    /// `max_memory_reserved`.
    Reserved,
    /// What the driver shows for the process.
    NvidiaSmi,
}

impl Metric {
    const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Active => "active",
            Self::Reserved => "reserved",
            Self::NvidiaSmi => "nvidia-smi",
        }
    }

    fn of(self, estimate: &Estimate) -> Option<Bytes> {
        let tiers = &estimate.tiers;
        let tier = match self {
            Self::Allocated | Self::Active => Some(&tiers.allocated),
            Self::Reserved => tiers.reserved.as_ref(),
            Self::NvidiaSmi => tiers.process.as_ref(),
        };
        tier.map(|tier| tier.peak_bytes)
    }
}

/// A row and what became of it.
#[derive(Serialize)]
struct Outcome {
    id: String,
    source: String,
    metric: Metric,
    published_gib: f64,
    predicted_gib: Option<f64>,
    /// Predicted less published, in per cent of published.
    error: Option<f64>,
    refused: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

pub(super) fn run(files: &[PathBuf], json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let (mut all, mut last) = (Vec::new(), None);
    for path in files {
        read(path, &mut all, &mut last)?;
    }
    if json {
        for outcome in &all {
            serde_json::to_writer(&mut *out, outcome)?;
            writeln!(out)?;
        }
    } else {
        print(&all, out)?;
    }
    Ok(())
}

/// The last plan and its estimate: several figures of one run follow each other.
type Last = Option<(Value, Result<Estimate, String>)>;

fn read(path: &Path, all: &mut Vec<Outcome>, last: &mut Last) -> anyhow::Result<()> {
    input::lines(path, |number, line| {
        if line.trim().is_empty() {
            return Ok(());
        }
        let row: Row = serde_json::from_str(line).map_err(|error| {
            Rejected::because(input::name(path), format!("line {number}: not a published row: {error}"))
        })?;
        all.push(judge(row, last));
        Ok(())
    })
}

fn judge(row: Row, last: &mut Last) -> Outcome {
    let Row { id, source, published, plan, unexplained, note, .. } = row;
    let predicted = match (plan, unexplained) {
        (Some(plan), None) => predict(plan, published, last),
        (_, unexplained) => Err(unexplained.unwrap_or_else(|| "no plan".into())),
    };
    let (predicted, refused) = match predicted {
        Ok(bytes) => (Some(bytes.as_f64() / Bytes::mib(1024).as_f64()), None),
        Err(why) => (None, Some(why)),
    };
    let error = predicted.map(|predicted| (predicted / published.gib - 1.0) * 100.0);
    let metric = published.metric;
    Outcome { id, source, metric, published_gib: published.gib, predicted_gib: predicted, error, refused, note }
}

fn predict(plan: Value, published: Published, last: &mut Last) -> Result<Bytes, String> {
    if last.as_ref().is_none_or(|(of, _)| *of != plan) {
        let read = serde_json::from_value::<Plan>(plan.clone()).map_err(|error| format!("not a plan: {error}"));
        *last = Some((plan, read.and_then(|plan| estimate(&plan).map_err(|issues| reason(&issues)))));
    }
    let estimate = last.as_ref().map_or(Err("no plan"), |(_, estimate)| estimate.as_ref().map_err(String::as_str))?;
    published.metric.of(estimate).ok_or_else(|| format!("{} memory is not known", published.metric.name()))
}

fn print(all: &[Outcome], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:<16} {:>10} {:>10} {:>10} {:>8}  ", "row", "metric", "published", "predicted", "error")?;
    for outcome in all {
        let number = |gib: Option<f64>| gib.map_or_else(String::new, |gib| format!("{gib:.2} GiB"));
        let Outcome { id, metric, published_gib, predicted_gib, error, refused, note, .. } = outcome;
        let error = error.map_or_else(String::new, |error| format!("{error:+.1} %"));
        let why = refused.as_ref().map(|why| format!("refused: {why}"));
        let why = why.or_else(|| note.clone()).unwrap_or_default();
        let (published, predicted) = (number(Some(*published_gib)), number(*predicted_gib));
        let line = format!("{id:<16} {:>10} {published:>10} {predicted:>10} {error:>8}  {why}", metric.name());
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out, "\nabsolute error, % of what was published; coverage is what of the rows is predicted")?;
    writeln!(
        out,
        "{:<14} {:<10} {:>5} {:>9} {:>9} {:>8} {:>8} {:>8}",
        "source", "metric", "rows", "predicted", "coverage", "median", "95th", "worst"
    )?;
    let mut groups: BTreeMap<(&str, Metric), Vec<Option<f64>>> = BTreeMap::new();
    for outcome in all {
        let error = outcome.error.map(f64::abs);
        for source in [outcome.source.as_str(), "~all"] {
            groups.entry((source, outcome.metric)).or_default().push(error);
        }
    }
    for ((source, metric), errors) in groups {
        let mut known: Vec<f64> = errors.iter().copied().flatten().collect();
        known.sort_by(f64::total_cmp);
        let of = |percent: usize| if known.is_empty() { "-".to_owned() } else { digits(quantile(&known, percent)) };
        writeln!(
            out,
            "{:<14} {:<10} {:>5} {:>9} {:>8}% {:>8} {:>8} {:>8}",
            source.trim_start_matches('~'),
            metric.name(),
            errors.len(),
            known.len(),
            100 * known.len() / errors.len().max(1),
            of(50),
            of(95),
            of(100)
        )?;
    }
    Ok(())
}

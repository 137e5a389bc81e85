//! `vram-budget validate --throughput`: what others have published of their runs' speed, beside what is predicted for them.

mod row;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use vram_budget::reconcile::efficiency;

use crate::csv::Table;
use row::Job;

/// A row and what became of it.
#[derive(Debug, Serialize)]
struct Outcome {
    id: String,
    source: String,
    gpu: String,
    class: Class,
    /// Seconds of a step.
    published_seconds: Option<f64>,
    /// Seconds of a step.
    predicted_seconds: Option<f64>,
    /// Predicted throughput less published, in per cent of published.
    error: Option<f64>,
    /// Tokens a second and GPU, published and predicted.
    #[serde(skip)]
    speeds: Option<(f64, f64)>,
    refused: Option<String>,
}

/// Which table a row is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Class {
    /// A transformer of at least 100 million parameters.
    Transformer,
    /// A smaller one, or one that is narrow: its step is bound by launching kernels.
    Toy,
    /// A convolutional network.
    Convolutional,
}

/// Sources that figures of `efficiency.json` were taken from. The others are no blind test either: their rows were in view
/// while the model was made.
const TAKEN_FROM: [&str; 6] = ["mpt", "titan", "simumax", "qwen1", "mcore", "stas"];

pub(super) fn run(files: &[PathBuf], json: bool, rows: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for path in files {
        let table = Table::read(path)?;
        for row in table.rows() {
            let complete = row.get("complete_config") == "yes";
            let speed = !row.get("throughput_value").is_empty() || !row.get("mfu_or_tflops").is_empty();
            if complete && speed {
                all.push(judge(row));
            }
        }
    }
    if json {
        for outcome in &all {
            serde_json::to_writer(&mut *out, outcome)?;
            writeln!(out)?;
        }
    } else {
        print(&all, rows, out)?;
    }
    Ok(())
}

fn judge(row: crate::csv::Row<'_>) -> Outcome {
    let id = row.get("id").to_owned();
    let source = id.rsplit_once('-').map_or(id.as_str(), |(source, _)| source).to_owned();
    let job = row::read(row);
    let class = match &job {
        Ok(Job { net, .. }) if net.active() < 1e8 || net.hidden < 768.0 => Class::Toy,
        Ok(_) => Class::Transformer,
        Err(_) if !row.get("architecture_notes").contains("L") || row.get("seq_len").contains('x') => {
            Class::Convolutional
        }
        Err(_) => Class::Transformer,
    };
    let (published, predicted, speeds, refused) = match job {
        Ok(job) => {
            let predicted = job.seconds();
            let speeds = Some((job.per_gpu / job.published, job.per_gpu / predicted));
            (Some(job.published), Some(predicted), speeds, None)
        }
        Err(why) => (None, None, None, Some(why)),
    };
    let error = published.zip(predicted).map(|(published, predicted)| (published / predicted - 1.0) * 100.0);
    let gpu = row.get("gpu").to_owned();
    Outcome {
        id,
        source,
        gpu,
        class,
        published_seconds: published,
        predicted_seconds: predicted,
        error,
        speeds,
        refused,
    }
}

/// What the rows of a source come to.
#[derive(Default)]
struct Group {
    rows: usize,
    errors: Vec<f64>,
    /// Pairs whose published speeds differ by more than 10 %, and those of them in the right order.
    pairs: (usize, usize),
}

impl Group {
    fn of(rows: &[&Outcome]) -> Self {
        let mut errors: Vec<f64> = rows.iter().filter_map(|o| o.error).map(f64::abs).collect();
        errors.sort_by(f64::total_cmp);
        let speeds: Vec<_> = rows.iter().filter_map(|o| o.speeds).collect();
        let mut pairs = (0, 0);
        for (at, a) in speeds.iter().enumerate() {
            for b in &speeds[..at] {
                if a.0.max(b.0) > 1.1 * a.0.min(b.0) {
                    pairs.0 += 1;
                    pairs.1 += usize::from((a.0 > b.0) == (a.1 > b.1));
                }
            }
        }
        Self { rows: rows.len(), errors, pairs }
    }

    fn plus(&mut self, other: &Self) {
        self.rows += other.rows;
        self.errors.extend(&other.errors);
        self.errors.sort_by(f64::total_cmp);
        self.pairs.0 += other.pairs.0;
        self.pairs.1 += other.pairs.1;
    }

    fn line(&self, name: &str, out: &mut dyn Write) -> io::Result<()> {
        let percent = |part: usize, whole: usize| {
            if whole == 0 { "-".to_owned() } else { format!("{}%", (100.0 * part as f64 / whole as f64).round()) }
        };
        let within = |limit: f64| percent(self.errors.iter().filter(|e| **e <= limit).count(), self.errors.len());
        let median = self.errors.get(self.errors.len().saturating_sub(1) / 2);
        let digits = |figure: Option<&f64>| figure.map_or_else(|| "-".to_owned(), |f| format!("{f:.1}"));
        writeln!(
            out,
            "{name:<28} {:>5} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            self.rows,
            self.errors.len(),
            percent(self.errors.len(), self.rows),
            digits(median),
            within(15.0),
            within(35.0),
            digits(self.errors.last()),
            self.pairs.0,
            percent(self.pairs.1, self.pairs.0)
        )
    }
}

fn print(all: &[Outcome], rows: bool, out: &mut dyn Write) -> io::Result<()> {
    if rows {
        writeln!(out, "{:<16} {:>12} {:>12} {:>8}", "row", "published, s", "predicted, s", "error, %")?;
        for outcome in all {
            let Outcome { id, published_seconds, predicted_seconds, error, refused, .. } = outcome;
            match (published_seconds, predicted_seconds, error) {
                (Some(published), Some(predicted), Some(error)) => {
                    writeln!(out, "{id:<16} {published:>12.4} {predicted:>12.4} {error:>+8.1}")?;
                }
                _ => writeln!(out, "{id:<16} refused: {}", refused.as_deref().unwrap_or_default())?,
            }
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "throughput, absolute error in % of what was published; pairs: rows of a source that differ by more than"
    )?;
    writeln!(out, "10 %, and the share that is predicted in the right order")?;
    for (class, title) in [
        (Class::Transformer, "transformers of 100 million parameters and more"),
        (Class::Toy, "smaller ones, bound by launching kernels"),
        (Class::Convolutional, "convolutional networks, not predicted"),
    ] {
        let mut sources: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
        for outcome in all.iter().filter(|outcome| outcome.class == class) {
            sources.entry(&outcome.source).or_default().push(outcome);
        }
        if sources.is_empty() {
            continue;
        }
        writeln!(
            out,
            "\n{title}\n{:<28} {:>5} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "source", "rows", "predicted", "coverage", "median", "in 15 %", "in 35 %", "worst", "pairs", "ordered"
        )?;
        let mut sums = [Group::default(), Group::default()];
        for (source, rows) in &sources {
            let taken = TAKEN_FROM.contains(source);
            let group = Group::of(rows);
            group.line(&format!("{source}{}", if taken { " (figures taken from)" } else { "" }), out)?;
            sums[usize::from(taken)].plus(&group);
        }
        let [checked, mut every] = sums;
        checked.line("checked alone", out)?;
        every.plus(&checked);
        every.line("all", out)?;
    }
    print_fitted(all, out)
}

/// What half of a source's rows of one card say of the other half.
struct Fitted {
    /// How many rows were fitted.
    fitted: usize,
    /// The efficiency that they say, as a share of what is assumed.
    efficiency: f64,
    /// The median error of the others in per cent, as assumed and with what was fitted.
    errors: [f64; 2],
    /// How many others there are, and how many lie in the interval of nine in ten.
    held: usize,
    inside: usize,
}

impl Fitted {
    /// Of rows' predicted seconds, each as a share of those published. `None`: too few.
    fn of(shares: &[f64]) -> Option<Self> {
        let quantity = efficiency(shares.iter().copied().step_by(2).collect()).filter(|_| shares.len() >= 4)?;
        let held: Vec<f64> = shares.iter().copied().skip(1).step_by(2).collect();
        let median = |efficiency: f64| {
            let mut errors: Vec<f64> = held.iter().map(|share| (efficiency / share - 1.0).abs() * 100.0).collect();
            errors.sort_by(f64::total_cmp);
            errors[(errors.len() - 1) / 2].midpoint(errors[errors.len() / 2])
        };
        Some(Self {
            fitted: shares.len() - held.len(),
            efficiency: quantity.value,
            errors: [1.0, quantity.value].map(median),
            held: held.len(),
            inside: held.iter().filter(|share| (quantity.low..=quantity.high).contains(*share)).count(),
        })
    }
}

fn print_fitted(all: &[Outcome], out: &mut dyn Write) -> io::Result<()> {
    let mut cards: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for one in all.iter().filter(|one| one.class == Class::Transformer) {
        if let (Some(predicted), Some(published)) = (one.predicted_seconds, one.published_seconds) {
            cards.entry((&one.source, &one.gpu)).or_default().push(predicted / published);
        }
    }
    writeln!(
        out,
        "\nefficiency fitted on every second of a source's rows of one card, the others held: what `calibrate` does\n{:<12} {:<40} {:>7} {:>10} {:>9} {:>9} {:>7}",
        "source", "card", "fitted", "efficiency", "before, %", "after, %", "inside"
    )?;
    for ((source, gpu), shares) in &cards {
        let Some(Fitted { fitted, efficiency, errors: [before, after], held, inside }) = Fitted::of(shares) else {
            continue;
        };
        let (gpu, inside): (String, _) = (gpu.chars().take(40).collect(), format!("{inside}/{held}"));
        writeln!(out, "{source:<12} {gpu:<40} {fitted:>7} {efficiency:>10.3} {before:>9.1} {after:>9.1} {inside:>7}")?;
    }
    Ok(())
}

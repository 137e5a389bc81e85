//! `vram-budget validate`: predicts measured cases and says how far off the predictions are.

mod published;
mod throughput;
mod verdicts;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use vram_budget::issue::{Issue, IssueKind};
use vram_budget::measure::{Case, Figure, FormatId, Imported, Measurement, Reading, ReadingName, import};
use vram_budget::model::ModelSource;
use vram_budget::plan::Plan;
use vram_budget::reconcile::{Prediction, Row, compare, predict};
use vram_budget::text::{Locale, issue_line};

use crate::exit::{self, Rejected};
use crate::input;
use verdicts::Verdicts;

/// Measured cases.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measured cases, one a line, or measurement documents that carry a plan; - is stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also judge cases on cards around the smallest on which their step was seen to complete, one a line
    #[arg(long, value_name = "FILE", conflicts_with = "published")]
    verdicts: Option<PathBuf>,
    /// One object a line and case, in bytes, instead of the table
    #[arg(long)]
    json: bool,
    /// The files hold published measurements with the plans of what was run: every row, and errors by source and metric
    #[arg(long)]
    published: bool,
    /// The files are tables of published speeds (CSV): predicted against published throughput by source; --rows also says
    /// each row
    #[arg(long, conflicts_with = "published")]
    throughput: bool,
    /// With --throughput, a line for each row before the tables
    #[arg(long, requires = "throughput")]
    rows: bool,
}

/// A case and what became of it.
#[derive(Debug, Serialize)]
struct Outcome {
    id: String,
    family: String,
    /// Why there is no prediction.
    refused: Option<String>,
    /// Whether the measured run ran out of memory: its figures are no peaks, and nothing is compared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    out_of_memory: bool,
    readings: BTreeMap<ReadingName, Pair>,
}

/// One figure, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    predicted: Option<i64>,
    measured: Option<i64>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.published {
        published::run(&args.files, args.json, &mut out)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.throughput {
        throughput::run(&args.files, args.json, args.rows, &mut out)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::default();
    let mut verdicts = args.verdicts.as_deref().map(Verdicts::read).transpose()?;
    let mut code = ExitCode::SUCCESS;
    for path in &args.files {
        let mut each = |judged: Judged| -> anyhow::Result<()> {
            if let Some(verdicts) = &mut verdicts {
                verdicts.judge(&judged.id, judged.plan.as_ref().ok());
            }
            let outcome = &judged.outcome();
            if args.json {
                serde_json::to_writer(&mut out, outcome)?;
                writeln!(out)?;
            }
            table.add(outcome);
            Ok(())
        };
        // A file that is rejected does not hide what the others say.
        match validate(path, &mut each) {
            Err(error) if error.is::<Rejected>() => {
                let _ = exit::report(&error);
                code = ExitCode::from(exit::REJECTED);
            }
            done => done?,
        }
    }
    if !args.json && table.cases > 0 {
        table.print(&mut out)?;
    }
    if let Some(verdicts) = &verdicts {
        if args.json {
            writeln!(out, "{}", verdicts.json())?;
        } else {
            verdicts.print(&mut out)?;
        }
        if let Err(error) = verdicts.finish() {
            out.flush()?;
            return Err(error.into());
        }
    }
    out.flush()?;
    Ok(code)
}

/// Judges every case of a file: one case or measurement document a line, or one document that spans lines.
fn validate(path: &Path, each: &mut dyn FnMut(Judged) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut document = String::new();
    input::lines(path, |number, line| {
        if document.is_empty() {
            if line.trim().is_empty() {
                return Ok(());
            }
            match Case::read(line) {
                Ok(case) => return each(case.into()),
                // The document goes on in the next line.
                Err(error) if error.is_eof() => {}
                Err(error) => {
                    let imported = import(line).map_err(|_| not_a_case(path, number, &error))?;
                    return each(of_import(path, imported)?);
                }
            }
        }
        document.push_str(line);
        if document.len() as u64 > input::MAX_DOCUMENT {
            return Err(Rejected::because(input::name(path), "a document larger than 32 MiB").into());
        }
        Ok(())
    })?;
    if document.is_empty() {
        return Ok(());
    }
    let imported = import(&document).map_err(|error| Rejected::import(input::name(path), &error))?;
    each(of_import(path, imported)?)
}

fn not_a_case(path: &Path, number: u64, error: &serde_json::Error) -> Rejected {
    let message = error.to_string();
    // The place in the line is said with the line's number.
    let message = message.rsplit_once(" at line ").map_or(&*message, |(message, _)| message);
    let reason = format!("line {number}, column {}: not a measured case: {message}", error.column());
    Rejected::because(input::name(path), reason)
}

/// What a case or a measurement says.
struct Judged {
    id: String,
    family: String,
    plan: Result<Plan, Vec<Issue>>,
    readings: Vec<Reading>,
    out_of_memory: bool,
}

impl From<Case> for Judged {
    fn from(Case { id, family, plan, readings, out_of_memory }: Case) -> Self {
        Self { id, family, plan, readings, out_of_memory }
    }
}

impl Judged {
    fn outcome(self) -> Outcome {
        let prediction = self.plan.and_then(|plan| predict(&plan));
        outcome(self.id, self.family, prediction, self.readings, self.out_of_memory)
    }
}

fn of_import(path: &Path, imported: Imported) -> anyhow::Result<Judged> {
    let Imported::Measurement { format: FormatId::Document, measurement } = imported else {
        return Err(Rejected::because(input::name(path), "only measurement documents say what was run").into());
    };
    let Measurement { id, plan, readings, .. } = *measurement;
    let Some(plan) = plan else {
        return Err(Rejected::because(input::name(path), "the measurement has no plan: nothing to predict").into());
    };
    let id = id.unwrap_or_else(|| input::name(path));
    Ok(Judged { id, family: family(&plan), plan: Ok(plan), readings, out_of_memory: false })
}

fn family(plan: &Plan) -> String {
    let config = match &plan.model {
        ModelSource::Config(config) => Some(config),
        ModelSource::Preset(name) => vram_budget::model::presets::find(name).ok().map(|p| p.config),
    };
    let of = config.and_then(|c| c.get("model_type")).and_then(serde_json::Value::as_str);
    of.unwrap_or("unknown").to_owned()
}

fn outcome(
    id: String,
    family: String,
    prediction: Result<Prediction, Vec<Issue>>,
    readings: Vec<Reading>,
    out_of_memory: bool,
) -> Outcome {
    let (prediction, refused) = match prediction {
        Ok(prediction) => (prediction, None),
        Err(issues) => (Prediction::default(), Some(reason(&issues))),
    };
    let measured = readings.iter().filter(|r| matches!(r.figure, Figure::Bytes(_))).cloned().collect();
    let mut pairs: BTreeMap<ReadingName, Pair> = if refused.is_some() {
        BTreeMap::new()
    } else {
        prediction.0.iter().map(|(name, bytes)| (*name, Pair { predicted: Some(*bytes), measured: None })).collect()
    };
    if refused.is_none() {
        for Row { name, predicted, measured, .. } in compare(&prediction, &Measurement::new(measured)) {
            pairs.insert(name, Pair { predicted, measured });
        }
    }
    Outcome { id, family, refused, out_of_memory, readings: pairs }
}

/// Why a case is refused, in one line: what is not modelled by its name, any other issue by its field.
fn reason(issues: &[Issue]) -> String {
    let mut not_modelled: Vec<&str> = Vec::new();
    let mut others = Vec::new();
    for issue in issues {
        match &issue.kind {
            IssueKind::NotModelled { what } => not_modelled.push(what),
            IssueKind::UnknownArchitecture { found, .. } => not_modelled.push(found),
            _ => others.push(issue_line(Locale::En.text(), issue)),
        }
    }
    not_modelled.dedup();
    if !not_modelled.is_empty() {
        others.insert(0, format!("not modelled: {}", not_modelled.join(", ")));
    }
    others.join("; ")
}

/// Errors by family and reading, and what was refused.
#[derive(Default)]
struct Table {
    errors: BTreeMap<(String, ReadingName), Vec<f64>>,
    refused: BTreeMap<(String, String), u64>,
    out_of_memory: u64,
    cases: u64,
}

impl Table {
    fn add(&mut self, outcome: &Outcome) {
        self.cases += 1;
        if let Some(reason) = &outcome.refused {
            *self.refused.entry((outcome.family.clone(), reason.clone())).or_default() += 1;
            return;
        }
        self.out_of_memory += u64::from(outcome.out_of_memory);
        for (name, pair) in &outcome.readings {
            // A percentage of a difference between two instants means nothing.
            if let (Some(predicted), Some(measured), false) = (pair.predicted, pair.measured, name.is_delta())
                && let Some(error) = relative(predicted, measured)
            {
                self.errors.entry((outcome.family.clone(), *name)).or_default().push(error);
            }
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let refused: u64 = self.refused.values().sum();
        writeln!(
            out,
            "{} cases, {} predicted, {refused} refused{}",
            self.cases,
            self.cases - refused,
            if self.out_of_memory > 0 {
                format!(", {} ran out of memory and have no peak to compare", self.out_of_memory)
            } else {
                String::new()
            }
        )?;
        if !self.errors.is_empty() {
            writeln!(out, "\nabsolute error, % of what was measured")?;
            writeln!(
                out,
                "{:<10} {:<22} {:>6} {:>8} {:>8} {:>8} {:>12}",
                "family", "reading", "cases", "median", "95th", "worst", "within 3 %"
            )?;
        }
        for ((family, name), errors) in &self.errors {
            let mut sorted = errors.clone();
            sorted.sort_by(f64::total_cmp);
            let within = sorted.iter().filter(|e| **e <= 3.0).count();
            writeln!(
                out,
                "{family:<10} {:<22} {:>6} {:>8} {:>8} {:>8} {:>11}%",
                name.to_string(),
                sorted.len(),
                digits(quantile(&sorted, 50)),
                digits(quantile(&sorted, 95)),
                digits(quantile(&sorted, 100)),
                100 * within / sorted.len()
            )?;
        }
        if !self.refused.is_empty() {
            writeln!(out, "\nrefused")?;
        }
        for ((family, reason), count) in &self.refused {
            writeln!(out, "{family:<10} {count:>6} × {reason}")?;
        }
        Ok(())
    }
}

/// The error of a prediction in per cent of what was measured; `None` where nothing was.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn relative(predicted: i64, measured: i64) -> Option<f64> {
    match (predicted, measured) {
        (0, 0) => Some(0.0),
        (_, 0) => None,
        _ => Some((predicted as f64 - measured as f64).abs() / measured as f64 * 100.0),
    }
}

/// The smallest value that at least `percent` of the sorted values do not exceed (nearest rank).
fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

fn digits(percent: f64) -> String {
    format!("{percent:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!((quantile(&values, 50), quantile(&values, 95), quantile(&values, 100)), (10.0, 19.0, 20.0));
        assert_eq!((quantile(&[7.0], 50), quantile(&[7.0], 95)), (7.0, 7.0));
    }

    #[test]
    fn errors_are_shares_of_what_was_measured() {
        assert_eq!(relative(103, 100), Some(3.0));
        assert_eq!(relative(97, 100), Some(3.0));
        assert_eq!(relative(0, 0), Some(0.0));
        assert_eq!(relative(5, 0), None, "no share of nothing");
    }
}

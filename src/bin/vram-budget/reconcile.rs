//! `vram-budget reconcile`: what a measurement differs from a plan by, what explains it, and what it means.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use vram_budget::measure::{Measurement, Options, Unit};
use vram_budget::plan::Plan;
use vram_budget::reconcile::{Hypothesis, Reconciliation, Suspect, diagnose, reconcile};
use vram_budget::text::Locale;

use crate::exit::Rejected;
use crate::input;
use crate::plan_args::PlanArgs;

/// A plan and what was measured of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// What was measured, in any format that `import` reads; - is stdin
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// One JSON document instead of the text
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// The unit of the measured figures, where they are not bytes
    #[arg(long, help_heading = "Output", value_parser = crate::estimate::unit())]
    unit: Option<Unit>,
}

/// The version of the JSON document.
const VERSION: u32 = 1;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (plan, files) = args.plan.plan_and_files(&args.files)?;
    if files.is_empty() {
        return Err(Rejected::because("no measurement", "name a file to hold against the plan").into());
    }
    let options = Options { unit: args.unit, ..Options::default() };
    let mut all = Vec::new();
    for path in &files {
        for measurement in crate::import::read(path, &options)? {
            let found = reconcile(&plan, &measurement)
                .map_err(|issues| Rejected::fields("the plan cannot be walked", &issues))?;
            all.push((input::name(path), measurement, found));
        }
    }
    let measurements: Vec<Measurement> = all.iter().map(|(_, measurement, _)| measurement.clone()).collect();
    let symptoms = diagnose(&measurements);
    let words = Locale::En.reconcile();
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        let symptoms = symptoms.iter().map(|symptom| {
            json!({
                "evidence": words.symptom(symptom),
                "check": words.check(symptom),
                "remedy": words.remedy(symptom),
                "remedies": symptom.remedies(),
            })
        });
        let document = json!({
            "format": "vram-budget-reconciliation",
            "version": VERSION,
            "plan": plan,
            "measurements": all.iter().map(|(name, _, found)| of(name, found)).collect::<Value>(),
            "diagnosis": symptoms.collect::<Value>(),
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        for (at, (name, measurement, found)) in all.iter().enumerate() {
            if at > 0 {
                writeln!(out)?;
            }
            print(name, measurement, found, &plan, &mut out)?;
        }
        for symptom in &symptoms {
            writeln!(
                out,
                "\n{}\n  check: {}\n  remedy: {}",
                words.symptom(symptom),
                words.check(symptom),
                words.remedy(symptom)
            )?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn print(
    name: &str,
    measurement: &Measurement,
    found: &Reconciliation,
    plan: &Plan,
    out: &mut dyn Write,
) -> io::Result<()> {
    let words = Locale::En.reconcile();
    let id = measurement.id.as_deref().unwrap_or(name);
    writeln!(out, "{id}: {}", words.residual(found))?;
    for (number, one) in (1..).zip(found.worth_saying()) {
        writeln!(out, "{number}  {}", words.suspect(&one.suspect, plan))?;
        writeln!(out, "   {}", words.support(one))?;
    }
    if let Some(left) = found.unexplained() {
        writeln!(out, "{}", words.unexplained(left))?;
    }
    Ok(())
}

fn of(name: &str, found: &Reconciliation) -> Value {
    let residual = found
        .residual
        .map(|(name, predicted, measured)| json!({ "reading": name, "predicted": predicted, "measured": measured }));
    json!({
        "name": name,
        "compared": found.compared,
        "residual": residual,
        "hypotheses": found.hypotheses.iter().map(hypothesis).collect::<Value>(),
        "unexplained": found.unexplained(),
    })
}

fn hypothesis(one: &Hypothesis) -> Value {
    let suspect = match one.suspect {
        Suspect::Change(change) => json!({ "change": change }),
        Suspect::Outside { bytes } => json!({ "outside": bytes }),
        Suspect::OtherProcesses { bytes } => json!({ "other_processes": bytes }),
        Suspect::Fragmentation { bytes } => json!({ "fragmentation": bytes }),
        Suspect::Holder { bytes } => json!({ "holder": bytes }),
    };
    json!({
        "suspect": suspect,
        "confidence": one.confidence,
        "certainty": one.certainty(),
        "explained": one.explained,
        "left": one.left,
        "contradicts": one.contradicts,
        "plan": one.plan,
    })
}

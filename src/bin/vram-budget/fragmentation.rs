//! `vram-budget fragmentation`: a run over sequences of many lengths, under the plan's settings and under common advice.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};
use vram_budget::fragmentation::{End, Outcome, SHOWN, Setting, Study};
use vram_budget::issue::Issue;
use vram_budget::plan::Plan;
use vram_budget::text::{LengthsSaid, Locale, issue_line, ratio};

use crate::exit::Rejected;
use crate::plan_args::PlanArgs;

/// The run and how to say it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// One JSON document with every step instead of the text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    const WHAT: &str = "the run cannot be replayed";
    let plan = args.plan.plan()?;
    let rejected = |issues: Vec<Issue>| Rejected::fields(WHAT, &issues);
    let mut study = Study::new(&plan).map_err(rejected)?;
    while !study.advance().map_err(rejected)? {}
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &document(&plan, &study))?;
        writeln!(out)?;
    } else {
        print(&study, &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn name(setting: Setting) -> String {
    Locale::En.lengths().say(&LengthsSaid::Setting(setting))
}

fn print(study: &Study, out: &mut dyn Write) -> io::Result<()> {
    let (words, rows) = (Locale::En.lengths(), study.rows());
    writeln!(out, "{}\n", words.say(&LengthsSaid::head(study.steps())))?;
    let count = study.steps().len();
    let shown: Vec<usize> = SHOWN.into_iter().filter(|n| *n < count).chain([count]).collect();
    write!(out, "{:<55} {:>10} {:>10} {:>6}  reserved after step", "", "allocated", "reserved", "ratio")?;
    for n in &shown {
        write!(out, " {n:>9}")?;
    }
    writeln!(out)?;
    for (setting, outcome) in rows {
        let Ok(outcome) = outcome else { continue };
        write!(out, "{:<55} ", name(*setting))?;
        if outcome.steps.is_empty() {
            writeln!(out, "{:>10} {:>10} {:>6}", "-", "-", "-")?;
            continue;
        }
        let (allocated, reserved) = (outcome.peak_allocated(), outcome.peak_reserved());
        let ratio = ratio(reserved, allocated);
        write!(out, "{:>10} {:>10} {ratio:>6}{:>21}", allocated.to_string(), reserved.to_string(), "")?;
        for n in &shown {
            let reserved = outcome.steps.get(n - 1).map_or("-".into(), |step| step.reserved.to_string());
            write!(out, " {reserved:>9}")?;
        }
        writeln!(out)?;
    }
    for (setting, outcome) in rows {
        for issue in outcome.as_ref().err().into_iter().flatten() {
            writeln!(out, "{}: {}", name(*setting), issue_line(Locale::En.text(), issue))?;
        }
    }
    for (at, card) in study.cards().iter().enumerate() {
        let all_complete = |at: usize| {
            rows.iter().all(|(_, of)| of.as_ref().ok().and_then(|of| of.ends.get(at)) == Some(&End::Completes))
        };
        // What a smaller card of the catalogue holds, a larger one does too.
        if at.checked_sub(1).is_some_and(all_complete) {
            break;
        }
        writeln!(out, "\n{}: {} for the allocator", card.name, card.usable)?;
        for (setting, outcome) in rows {
            let Some(end) = outcome.as_ref().ok().and_then(|outcome| outcome.ends.get(at)) else { continue };
            let end = match end {
                End::Completes => "completes".into(),
                End::FailsInStep(0) => "runs out of memory while the model is built".into(),
                End::FailsInStep(n) => format!("runs out of memory in step {n}"),
            };
            writeln!(out, "  {:<55} {end}", name(*setting))?;
        }
    }
    for (at, finding) in study.findings().into_iter().enumerate() {
        writeln!(out, "{}{}", if at == 0 { "\n" } else { "" }, words.say(&LengthsSaid::Finding(finding)))?;
    }
    Ok(())
}

fn document(plan: &Plan, study: &Study) -> Value {
    let outcome = |outcome: &Outcome| {
        let steps = outcome.steps.iter().map(|step| {
            json!({
                "peak_allocated": step.peak_allocated,
                "peak_reserved": step.peak_reserved,
                "allocated": step.allocated,
                "reserved": step.reserved,
                "inactive_split": step.inactive_split,
                "retries": step.retries,
            })
        });
        let ends = study.cards().iter().zip(&outcome.ends).map(|(card, end)| {
            let fails_in_step = match end {
                End::Completes => None,
                End::FailsInStep(n) => Some(n),
            };
            json!({
                "gpu": card.name,
                "usable_bytes": card.usable,
                "completes": fails_in_step.is_none(),
                "fails_in_step": fails_in_step,
            })
        });
        json!({
            "peak_allocated": outcome.peak_allocated(),
            "peak_reserved": outcome.peak_reserved(),
            "on_cards": ends.collect::<Value>(),
            "steps": steps.collect::<Value>(),
        })
    };
    let settings = study.rows().iter().map(|(setting, found)| {
        let mut row = match found {
            Ok(found) => outcome(found),
            Err(issues) => json!({ "issues": issues }),
        };
        row["setting"] = name(*setting).into();
        row
    });
    json!({
        "format": "vram-budget-fragmentation",
        "version": 1,
        "plan": plan,
        "padded_lengths": study.steps(),
        "settings": settings.collect::<Value>(),
    })
}

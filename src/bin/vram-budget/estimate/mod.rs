//! `vram-budget estimate`: the bill, the verdict and what to change, as text or as JSON.

mod events;
mod json;
mod measured;
mod report;
mod time;
mod transfer;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use vram_budget::decide::{advise, decide};
use vram_budget::estimate::{ranks, smallest_card_of, transfers};
use vram_budget::measure::Unit;

use crate::exit::Rejected;
use crate::plan_args::PlanArgs;

/// What to estimate and how to say it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// One JSON document instead of the text
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// The walk itself, one tensor a line, instead of the estimate
    #[arg(long, help_heading = "Output", conflicts_with_all = ["json", "measured"])]
    events: bool,
    /// Compare with what was measured: a measurement document or the script's output; - is stdin
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Seconds of a step as you measured it: replaces what is assumed of kernels, here and in what is advised
    #[arg(long, help_heading = "Output", value_name = "SECONDS", value_parser = seconds)]
    step_seconds: Option<f64>,
    /// Also say what training over so many tokens takes
    #[arg(long, help_heading = "Output", value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    tokens: Option<u64>,
    /// The unit of the measured figures, where they are not bytes
    #[arg(long, help_heading = "Output", requires = "measured", value_parser = unit())]
    unit: Option<Unit>,
}

pub(crate) fn unit() -> impl TypedValueParser<Value = Unit> {
    PossibleValuesParser::new(Unit::ALL.map(Unit::symbol))
        .map(|symbol| Unit::ALL.into_iter().find(|u| u.symbol() == symbol).unwrap_or(Unit::B))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0);
    seconds.ok_or_else(|| "a number of seconds above 0".into())
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = args.plan.plan()?;
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    if args.events {
        events::print(&plan, &mut out)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut decision = decide(&plan).map_err(|issues| Rejected::fields("the plan cannot be estimated", &issues))?;
    decision.advice = Some(advise(&plan, &decision));
    if let Some(seconds) = args.step_seconds {
        decision = decision.with_measured_step(seconds);
    }
    let rows = match &args.measured {
        Some(path) => Some(measured::rows(&plan, &decision, path, args.unit)?),
        None => None,
    };
    // The rule of thumb has no step to replay.
    let smallest = decision.estimate.readings.as_ref().and_then(|_| smallest_card_of(&plan).ok());
    let ranks = ranks(&plan).unwrap_or_default();
    let readings = decision.estimate.readings.as_ref();
    let transfers = readings.and_then(|of| transfers(&plan, of).ok());
    if args.json {
        let transfers = transfers.as_ref().map(transfer::document).transpose()?;
        json::print(&plan, &decision, smallest.as_ref(), rows.as_deref(), &ranks, (args.tokens, transfers), &mut out)?;
    } else {
        report::print(&plan, &decision, smallest.as_ref(), &ranks, args.tokens, &mut out)?;
        if let Some(of) = transfers.filter(|_| !plan.parallel.is_single()) {
            transfer::print(&of, &mut out)?;
        }
        if let Some(rows) = &rows {
            measured::print(rows, &mut out)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

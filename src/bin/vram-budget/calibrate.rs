//! `vram-budget calibrate`: a plan with what measurements say beside the walk.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use vram_budget::measure::{Measurement, Options, Unit};
use vram_budget::plan::Plan;
use vram_budget::reconcile::{LeftOut, calibrate, job_of};
use vram_budget::text::Locale;

use crate::exit::Rejected;
use crate::input;
use crate::plan_args::PlanArgs;

/// A plan and what was measured of such jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// What was measured, in any format that `import` reads: of the plan, or of the job that a document names; - is stdin
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Takes the plan's calibration away
    #[arg(long, help_heading = "Output")]
    remove: bool,
    /// The unit of the measured figures, where they are not bytes
    #[arg(long, help_heading = "Output", value_parser = crate::estimate::unit())]
    unit: Option<Unit>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (plan, files) = args.plan.plan_and_files(&args.files)?;
    if args.remove {
        return print(&plan.without_calibration());
    }
    let options = Options { unit: args.unit, ..Options::default() };
    let mut names = Vec::new();
    let mut runs: Vec<(Plan, Measurement)> = Vec::new();
    for path in &files {
        for measurement in crate::import::read(path, &options)? {
            names.push(measurement.id.clone().unwrap_or_else(|| input::name(path)));
            runs.push((job_of(&plan, &measurement), measurement));
        }
    }
    if runs.is_empty() {
        return Err(Rejected::because("no measurement", "name files to fit the plan to").into());
    }
    let fit = calibrate(&runs);
    // The document goes to stdout, what is said about it to stderr.
    let words = Locale::En.reconcile();
    let mut said = Vec::new();
    for LeftOut { at, why } in &fit.left_out {
        said.push(format!("{}: {}", names.get(*at).map_or("a file", String::as_str), words.left_out(why)));
    }
    if fit.is_empty() {
        said.push("the measurements say nothing of what can be fitted".into());
        return Err(Rejected::several("nothing to fit", said).into());
    }
    said.push(words.calibrated(fit.measurements));
    said.extend(fit.settings.iter().map(|change| format!("  {}", words.change(*change))));
    said.extend(fit.quantities.iter().map(|quantity| format!("  {}", words.quantity(quantity))));
    writeln!(io::stderr().lock(), "{}", said.join("\n"))?;
    print(&fit.adopt(&plan))
}

fn print(plan: &Plan) -> anyhow::Result<ExitCode> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, plan)?;
    writeln!(out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

//! `vram-budget compare`: plans and measurements side by side.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use vram_budget::measure::{Options, Unit};
use vram_budget::plan::Plan;
use vram_budget::reconcile::{Comparison, Configuration, side_by_side};
use vram_budget::text::{Compared, Locale, issue_line};
use vram_budget::units::Bytes;

use crate::exit::Rejected;
use crate::input;
use crate::plan_args::PlanArgs;

/// A plan, and what stands beside it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// Plans, and what was measured in any format that `import` reads; those with the same id, or from one file, are runs
    /// of one configuration
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Runs at the start of each configuration that are left out, such as a cold one
    #[arg(long, default_value_t = 0, value_name = "N", help_heading = "Output")]
    warm_up: usize,
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
    let options = Options { unit: args.unit, ..Options::default() };
    let mut all = vec![Configuration { name: "plan".into(), plan: Some(plan.clone()), runs: Vec::new() }];
    for path in &files {
        let name = path.file_stem().map_or_else(|| input::name(path), |stem| stem.to_string_lossy().into_owned());
        if let Some(plan) = plan_in(path)? {
            all.push(Configuration { name, plan: Some(plan), runs: Vec::new() });
            continue;
        }
        for measurement in crate::import::read(path, &options)? {
            let name = measurement.id.clone().unwrap_or_else(|| name.clone());
            Configuration::add(&mut all, name, measurement);
        }
    }
    for configuration in &mut all {
        let runs = &mut configuration.runs;
        runs.drain(..args.warm_up.min(runs.len().saturating_sub(1)));
    }
    let found = side_by_side(&plan, &all);
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        let document = json!({
            "format": "vram-budget-comparison",
            "version": VERSION,
            "comparison": found,
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        print(&found, &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The plan in a file that is one; everything else is a measurement's.
fn plan_in(path: &Path) -> anyhow::Result<Option<Plan>> {
    if path.extension().is_none_or(|ext| ext != "json") {
        return Ok(None);
    }
    let text = input::document(path)?;
    let Ok(Value::Object(document)) = serde_json::from_str(&text) else { return Ok(None) };
    if !document.contains_key("model") || document.contains_key("format") {
        return Ok(None);
    }
    let plan = serde_json::from_str(&text);
    plan.map(Some)
        .map_err(|error| Rejected::because(format!("{}: not a plan", input::name(path)), error.to_string()).into())
}

fn print(found: &Comparison, out: &mut dyn Write) -> io::Result<()> {
    let (text, words) = (Locale::En.text(), Locale::En.reconcile());
    let widest = found.entries.iter().map(|entry| entry.name.chars().count()).max().unwrap_or(0).max(13);
    writeln!(
        out,
        "{:<widest$}  {:<13} {:>10} {:>10} {:>16}  {:<13} free memory would buy",
        "Configuration", "", "peak", "spread", "samples/s", ""
    )?;
    for entry in &found.entries {
        let size = |bytes: Option<Bytes>| bytes.map_or_else(|| "—".to_owned(), |bytes| bytes.to_string());
        let how = words.compared(&Compared::Runs(entry.runs));
        let spread = entry.peaks.filter(|_| entry.runs > 1).map(|[low, high]| high.saturating_sub(low));
        let speed = words.samples_per_second(entry.speed);
        let line = format!(
            "{:<widest$}  {how:<13} {:>10} {:>10} {speed:>16}  {:<13} {}",
            entry.name,
            size(entry.peak),
            size(spread),
            text.verdict(entry.verdict).to_lowercase(),
            words.buys(entry)
        );
        writeln!(out, "{}", line.trim_end())?;
        if let Some(predicted) = entry.predicted {
            writeln!(out, "{:<widest$}  {:<13} {:>10}", "", "  predicted", predicted.to_string())?;
        }
        for issue in &entry.issues {
            writeln!(out, "{:<widest$}  {}", "", issue_line(text, issue))?;
        }
    }
    for said in words.stands_out(found) {
        writeln!(out, "{said}")?;
    }
    Ok(())
}

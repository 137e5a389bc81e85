//! `vram-budget schema`: the JSON Schemas of the documents, generated from the types that read them.

use std::io::Write;
use std::process::ExitCode;

use clap::ValueEnum;
use vram_budget::measure::Measurement;
use vram_budget::plan::Plan;

/// What to print.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which document; both, in one object, when left out
    document: Option<Document>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Document {
    /// What `estimate --plan` reads
    Plan,
    /// What `probe` writes and `validate` and `--measured` read
    Measurement,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (plan, measurement) = (schemars::schema_for!(Plan), schemars::schema_for!(Measurement));
    let schema = match args.document {
        Some(Document::Plan) => plan.to_value(),
        Some(Document::Measurement) => measurement.to_value(),
        None => serde_json::json!({ "plan": plan, "measurement": measurement }),
    };
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &schema)?;
    writeln!(out)?;
    Ok(ExitCode::SUCCESS)
}

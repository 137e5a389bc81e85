//! `vram-budget import` and `vram-budget explain`: any text that people paste, as a document or in words.

mod prometheus;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use vram_budget::measure::explain::{causes, facts, facts_together};
use vram_budget::measure::{Imported, Measurement, Options, Reader, Unit, average};
use vram_budget::text::Locale;

use crate::exit::{self, Rejected};
use crate::input;

/// Texts to read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Error messages, logs, nvidia-smi, statistics, event files, documents, also compressed with gzip; - is stdin
    #[arg(required_unless_present = "prometheus", conflicts_with = "prometheus", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    prometheus: prometheus::Server,
    /// The unit of figures that name none
    #[arg(long, value_parser = crate::estimate::unit())]
    unit: Option<Unit>,
    /// The fields of nvidia-smi --query-gpu, for output without a header
    #[arg(long, value_name = "FIELDS")]
    columns: Option<String>,
    /// The files are runs of one job: one measurement, the mean of each figure
    #[arg(long)]
    runs: bool,
    /// Runs at the start that are left out of the mean
    #[arg(long, requires = "runs", default_value_t = 0, value_name = "N")]
    warm_up: usize,
}

/// Prints the documents: one over several lines, or several, one a line.
pub(crate) fn import(args: &Args) -> anyhow::Result<ExitCode> {
    let (measurements, code) = read_all(args)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    match measurements.as_slice() {
        [one] => {
            serde_json::to_writer_pretty(&mut out, one)?;
            writeln!(out)?;
        }
        several => {
            for one in several {
                serde_json::to_writer(&mut out, one)?;
                writeln!(out)?;
            }
        }
    }
    out.flush()?;
    Ok(code)
}

/// Says what was understood, why memory ran out and what to try.
pub(crate) fn explain(args: &Args) -> anyhow::Result<ExitCode> {
    let (measurements, code) = read_all(args)?;
    let words = Locale::En.report();
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (count, measurement) in measurements.iter().enumerate() {
        if count > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", words.read_back(measurement))?;
        let causes = causes(measurement);
        for cause in &causes {
            writeln!(out, "  {}", words.cause(cause))?;
        }
        if let Some(cause) = causes.first() {
            writeln!(out, "  First: {}", words.advice(cause))?;
        }
        for fact in facts(measurement) {
            writeln!(out, "  {}", words.fact(&fact))?;
        }
    }
    for fact in facts_together(&measurements) {
        writeln!(out, "\n{}", words.fact(&fact))?;
    }
    out.flush()?;
    Ok(code)
}

/// The measurements of every file. A file that is rejected does not hide what the others say.
fn read_all(args: &Args) -> anyhow::Result<(Vec<Measurement>, ExitCode)> {
    let options = Options { unit: args.unit, columns: args.columns.clone() };
    let (mut measurements, mut code) = (Vec::new(), ExitCode::SUCCESS);
    if args.prometheus.prometheus.is_some() {
        measurements = prometheus::read(&args.prometheus, args.unit)?;
    }
    for path in &args.files {
        match read(path, &options) {
            Ok(found) => measurements.extend(found),
            Err(error) if error.is::<Rejected>() && args.files.len() > 1 => {
                let _ = exit::report(&error);
                code = ExitCode::from(exit::REJECTED);
            }
            Err(error) => return Err(error),
        }
    }
    if args.runs {
        measurements = average(&measurements, args.warm_up).into_iter().collect();
    }
    Ok((measurements, code))
}

/// The measurements of one file, read in pieces.
pub(crate) fn read(path: &Path, options: &Options) -> anyhow::Result<Vec<Measurement>> {
    let mut file = input::bytes(path)?;
    let mut reader = Reader::new(options);
    let mut piece = vec![0; 1 << 20];
    let mut length = 0_u64;
    loop {
        let count = match file.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(anyhow::Error::new(error).context(input::name(path))),
        };
        length += count as u64;
        if length > input::MAX_FILE {
            return Err(Rejected::because(input::name(path), "larger than 2 GiB").into());
        }
        reader.push(&piece[..count]);
    }
    let found = reader.finish().map_err(|error| Rejected::import(input::name(path), &error))?;
    let mut measurements = Vec::new();
    for one in found {
        match one {
            Imported::Measurement { measurement, .. } => measurements.push(*measurement),
            Imported::WhichUnit { candidates, .. } => {
                let units: Vec<&str> = candidates.into_iter().map(Unit::symbol).collect();
                let reason =
                    format!("the figures are no bytes: say which unit they are in, --unit {}", units.join("|"));
                return Err(Rejected::because(input::name(path), reason).into());
            }
        }
    }
    Ok(measurements)
}

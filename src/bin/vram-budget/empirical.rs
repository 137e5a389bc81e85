//! `vram-budget empirical`: other batches of a model that is not known, from measurements alone.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use vram_budget::measure::{Measurement, Options, Unit};
use vram_budget::reconcile::empirical::{Growth, Point, fit, same_job};
use vram_budget::text::Locale;
use vram_budget::units::{Bytes, parse_bytes};

use crate::exit::Rejected;

/// Measurements of one job.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What was measured, in any format that `import` reads, each with its micro-batch and tokens a sequence in front, such
    /// as 4x1024=run.json; a document that names its job needs none
    #[arg(required = true, value_name = "[BxS=]FILE")]
    files: Vec<String>,
    /// Sequences of the micro-batch to predict
    #[arg(long, short = 'b', value_name = "N")]
    micro_batch: Option<u64>,
    /// Tokens of its sequences
    #[arg(long, short = 's', value_name = "N")]
    seq_len: Option<u64>,
    /// Predict the largest micro-batch that allocates at most so much, such as '70 GiB'
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| parse_bytes(text), requires = "seq_len", conflicts_with = "micro_batch")]
    room: Option<Bytes>,
    /// Attention keeps nothing of the size of its scores, as flash-attention does [default: what the documents say]
    #[arg(long)]
    fused_attention: bool,
    /// One JSON document instead of the text
    #[arg(long)]
    json: bool,
    /// The unit of the measured figures, where they are not bytes
    #[arg(long, value_parser = crate::estimate::unit())]
    unit: Option<Unit>,
}

/// The version of the JSON document.
const VERSION: u32 = 1;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = Options { unit: args.unit, ..Options::default() };
    let mut points = Vec::new();
    let mut first: Option<Measurement> = None;
    for named in &args.files {
        let (given, path) = split(named)?;
        for measurement in crate::import::read(Path::new(path), &options)? {
            let of_plan = measurement.plan.as_ref().map(|plan| (plan.recipe.micro_batch, plan.recipe.seq_len));
            let Some((micro_batch, seq_len)) = given.or(of_plan) else {
                let reason = format!("of which batch is it? Write micro-batch and tokens in front: 4x1024={path}");
                return Err(Rejected::because(path, reason).into());
            };
            if first.as_ref().is_some_and(|first| !same_job(first, &measurement)) {
                return Err(Rejected::because(path, "another job than the first file's, not by its batch alone").into());
            }
            let Some(point) = Point::of(micro_batch, seq_len, &measurement) else {
                return Err(Rejected::because(path, "it has no peak of allocated memory").into());
            };
            points.push(point);
            first.get_or_insert(measurement);
        }
    }
    let words = Locale::En.reconcile();
    let known = first.and_then(|first| first.plan).map_or(Growth::Unknown, |plan| Growth::of(&plan.recipe));
    let growth = if args.fused_attention { Growth::Linear } else { known };
    let model = fit(&points, growth).map_err(|unfit| Rejected::because("nothing to fit", words.unfit(unfit)))?;
    let asked = match (args.micro_batch, args.seq_len, args.room) {
        (_, Some(seq_len), Some(room)) => {
            let found = model.largest(seq_len, room);
            let none = || Rejected::because("no micro-batch", "none that can be spoken of allocates so little");
            let (micro_batch, peak) = found.ok_or_else(none)?;
            Some((micro_batch, seq_len, peak))
        }
        (Some(micro_batch), seq_len, _) => {
            // The length that was measured, where it was one.
            let one = Some(model.seq_len[0]).filter(|shortest| *shortest == model.seq_len[1]);
            let Some(seq_len) = seq_len.or(one) else {
                return Err(Rejected::because("no sequence", "say how many tokens it has: --seq-len").into());
            };
            let peak = model.peak(micro_batch, seq_len);
            let peak = peak.map_err(|beyond| Rejected::because("no prediction", words.beyond(beyond)))?;
            Some((micro_batch, seq_len, peak))
        }
        _ => None,
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        let predicted = asked.map(
            |(micro_batch, seq_len, peak)| json!({ "micro_batch": micro_batch, "seq_len": seq_len, "peak": peak }),
        );
        let document = json!({
            "format": "vram-budget-empirical",
            "version": VERSION,
            "model": model,
            "predicted": predicted.unwrap_or(Value::Null),
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", words.empirical(&model))?;
        for instant in &model.instants {
            writeln!(out, "  {}", words.costs(instant))?;
        }
        if let Some((micro_batch, seq_len, peak)) = &asked {
            writeln!(out, "{}", words.empirical_peak(*micro_batch, *seq_len, peak))?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The batch in front of a file's name, and the name.
fn split(named: &str) -> anyhow::Result<(Option<(u64, u64)>, &str)> {
    let Some((batch, path)) =
        named.split_once('=').filter(|(batch, _)| batch.starts_with(|c: char| c.is_ascii_digit()))
    else {
        return Ok((None, named));
    };
    let numbers = batch.split_once('x').and_then(|(b, s)| Some((b.parse().ok()?, s.parse().ok()?)));
    match numbers.filter(|(b, s): &(u64, u64)| *b > 0 && *s > 0) {
        Some(numbers) => Ok((Some(numbers), path)),
        None => {
            Err(Rejected::because(named, "write micro-batch and tokens a sequence in front, such as 4x1024=").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_stands_in_front_of_a_file() {
        assert_eq!(split("4x1024=a.json").unwrap(), (Some((4, 1024)), "a.json"));
        assert_eq!(split("a=b.json").unwrap(), (None, "a=b.json"));
        for wrong in ["4=a.json", "0x8=a.json", "4x=a.json"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }
}

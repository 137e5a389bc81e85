//! `vram-budget merge`: the documents of a run's ranks as one, and recordings that nobody finished.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use vram_budget::measure::{Measurement, Options, RankPart, ReadingName, Run};

use crate::exit::Rejected;
use crate::{import, input, record};

/// Clocks that differ by more than this are worth a note, in milliseconds.
const SKEW: i64 = 1000;

/// How the note begins that names missing ranks.
const MISSING: &str = "nothing was recorded of rank ";
/// How the note ends that tells of clocks.
const APART: &str = " apart: their clocks differ, or one waits for another";

/// What to merge.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Documents of ranks, or directories *.run of recordings that were killed
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The document, instead of stdout
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut all = Vec::new();
    for path in &args.files {
        if path.is_dir() {
            all.extend(record::recording::read(path, None)?.measurements);
        } else {
            all.extend(import::read(path, &Options::default())?);
        }
    }
    if all.is_empty() {
        return Err(Rejected::because(input::name(&args.files[0]), "no measurement").into());
    }
    let whole = merge(all);
    if let Some(file) = &args.out {
        record::write(file, &whole)?;
    } else {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, &whole)?;
        writeln!(out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One document of a run's ranks: the first rank's, with each rank's part. Of a single document of one rank: itself.
pub(crate) fn merge(all: Vec<Measurement>) -> Measurement {
    let of_several =
        |one: &Measurement| one.run.as_ref().is_some_and(|run| run.world_size.is_some_and(|world| world > 1));
    if all.len() > 1 || all.iter().any(of_several) { ranks(all) } else { merge_here(all) }
}

/// As [`merge`], where further ranks are in documents of their own: they are missed only beside others.
pub(crate) fn merge_here(mut all: Vec<Measurement>) -> Measurement {
    if all.len() > 1 {
        return ranks(all);
    }
    all.pop().unwrap_or_else(|| Measurement::new(Vec::new()))
}

fn ranks(mut all: Vec<Measurement>) -> Measurement {
    // A document that is a merged one already brings its parts; a rank that comes twice counts once.
    all.sort_by_key(|one| one.run.as_ref().and_then(|run| run.rank));
    let rank_of = |one: &Measurement| one.run.as_ref().and_then(|run| run.rank);
    all.dedup_by(|a, b| rank_of(a).is_some() && rank_of(a) == rank_of(b));
    let mut parts: Vec<RankPart> = Vec::new();
    for (at, one) in all.iter().enumerate() {
        let run = one.run.clone().unwrap_or_default();
        parts.extend(run.ranks);
        let rank = run.rank.unwrap_or_else(|| u32::try_from(at).unwrap_or(u32::MAX));
        if parts.iter().all(|part| part.rank != rank) {
            parts.push(RankPart {
                rank,
                host: run.host,
                max_allocated: one.bytes(ReadingName::MaxAllocated),
                max_reserved: one.bytes(ReadingName::MaxReserved),
                steps: run.steps,
                ended: run.ended,
            });
        }
    }
    parts.sort_by_key(|part| part.rank);
    let before = all.iter().filter_map(|one| one.run.as_ref()?.clock_skew_ms).max();
    let skew = if all.len() > 1 { skew(&all).max(before) } else { before };
    let told = all.iter().filter_map(|one| one.run.as_ref()?.world_size).max();
    // Where no launcher told how many there are, at least as many as the highest.
    let world = told.max(parts.last().map(|part| part.rank.saturating_add(1)));
    let mut whole = all.swap_remove(0);
    let run = whole.run.get_or_insert_with(Run::default);
    // What was missed before the merge is here now, or is missed again.
    run.notes.retain(|note| !note.starts_with(MISSING) && !note.ends_with(APART));
    run.missing_ranks = (0..world.unwrap_or(0)).filter(|rank| parts.iter().all(|part| part.rank != *rank)).collect();
    if !run.missing_ranks.is_empty() {
        let missing: Vec<String> = run.missing_ranks.iter().map(u32::to_string).collect();
        run.notes.push(format!("{MISSING}{}", missing.join(", ")));
    }
    if let Some(skew) = skew.filter(|skew| *skew > SKEW) {
        run.notes.push(format!("the ranks end a step {skew} ms{APART}"));
    }
    run.clock_skew_ms = skew;
    run.world_size = world;
    run.ranks = parts;
    whole
}

/// How far the ends of one step lie apart at most. A step that all ranks recorded is compared; of two the closer one, as a
/// clock that is wrong is wrong at both.
fn skew(all: &[Measurement]) -> Option<i64> {
    let clocks: Vec<&[[i64; 2]]> = all.iter().filter_map(|one| Some(one.run.as_ref()?.clock.as_slice())).collect();
    let (first, others) = clocks.split_first()?;
    let at = |clock: &[[i64; 2]], n: i64| clock.iter().find(|[step, _]| *step == n).map(|[_, at]| *at);
    first
        .iter()
        .filter_map(|[n, _]| {
            let ends: Option<Vec<i64>> = std::iter::once(first).chain(others).map(|clock| at(clock, *n)).collect();
            let ends = ends?;
            ends.iter().max()?.checked_sub(*ends.iter().min()?)
        })
        .min()
}

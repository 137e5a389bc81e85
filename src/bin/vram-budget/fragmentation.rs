//! `vram-budget fragmentation`: a run over sequences of many lengths, under the plan's settings and under common advice.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};
use vram_budget::estimate::usable;
use vram_budget::fragmentation::{ADVICE, Comparison, End, Outcome, Setting};
use vram_budget::issue::Issue;
use vram_budget::machine::{GpuChoice, Machine, gpus};
use vram_budget::plan::Plan;
use vram_budget::text::{Locale, issue_line};
use vram_budget::units::Bytes;

use crate::exit::Rejected;
use crate::plan_args::PlanArgs;

/// After which steps growth is shown, beside the last one.
const SHOWN: [usize; 5] = [1, 5, 10, 50, 100];
/// The most cards of the catalogue that are shown.
const MOST_CARDS: usize = 8;

/// The run and how to say it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// One JSON document with every step instead of the text
    #[arg(long)]
    json: bool,
}

/// A card, and what it can give to the allocator.
struct Card {
    name: String,
    usable: Bytes,
}

/// A setting with what it does, or why this PyTorch refuses it.
type Row = (Setting, Result<Outcome, Vec<Issue>>);

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    const WHAT: &str = "the run cannot be replayed";
    let plan = args.plan.plan()?;
    let rejected = |issues: Vec<Issue>| Rejected::fields(WHAT, &issues);
    let comparison = Comparison::new(&plan).map_err(rejected)?;
    let first = comparison.outcome(Setting::AsPlanned, &[]).map_err(rejected)?;
    let cards = cards(&plan, &first).map_err(rejected)?;
    let sizes: Vec<Bytes> = cards.iter().map(|card| card.usable).collect();
    let settings = ADVICE.into_iter().filter(|setting| {
        setting.changes(&plan) && (!setting.needs_card() || plan.machine.gpu.is_some() && !cards.is_empty())
    });
    let all = [Setting::AsPlanned].into_iter().chain(settings);
    let rows: Vec<Row> = all.map(|setting| (setting, comparison.outcome(setting, &sizes))).collect();
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &document(&plan, &comparison, &cards, &rows))?;
        writeln!(out)?;
    } else {
        print(&comparison, &cards, &rows, &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The plan's card; of a plan without one, those cards of the catalogue that the run may or may not fit, by memory.
fn cards(plan: &Plan, first: &Outcome) -> Result<Vec<Card>, Vec<Issue>> {
    if plan.machine.gpu.is_some() {
        let hardware = plan.hardware()?;
        let name = hardware.name.clone().unwrap_or_default();
        return Ok(usable(&hardware).map(|usable| Card { name, usable }).into_iter().collect());
    }
    let of = |name: &str| {
        let gpu = Some(GpuChoice::Catalogue(name.into()));
        let machine = Machine { gpu, ..plan.machine.clone() };
        let usable = usable(&Plan { machine, ..plan.clone() }.hardware().ok()?)?;
        Some(Card { name: name.into(), usable })
    };
    let mut all: Vec<Card> = gpus().iter().filter_map(|gpu| of(&gpu.name)).collect();
    all.sort_by_key(|card| card.usable);
    all.dedup_by_key(|card| card.usable);
    let smaller = all.iter().filter(|card| card.usable < first.peak_allocated()).count();
    let cards = all.into_iter().skip(smaller.saturating_sub(1));
    Ok(cards.take(MOST_CARDS).collect())
}

fn name(setting: Setting) -> String {
    match setting {
        Setting::AsPlanned => "as planned".into(),
        Setting::AllocConf("") => "allocator's defaults".into(),
        Setting::AllocConf(conf) => conf.into(),
        Setting::AllocConfAndFraction(conf, fraction) => format!("{conf} below {fraction} of the card"),
        Setting::LongestFirst => "longest batch first".into(),
        Setting::PadToMultipleOf(n) => format!("padded to multiples of {n}"),
        Setting::EmptyCache => "empty_cache after every step".into(),
    }
}

/// How much more is reserved at the peaks than allocated.
fn ratio(outcome: &Outcome) -> f64 {
    outcome.peak_reserved().as_f64() / outcome.peak_allocated().as_f64().max(1.0)
}

fn print(comparison: &Comparison, cards: &[Card], rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    let lengths: Vec<u64> = comparison.steps().concat();
    let distinct = lengths.iter().collect::<std::collections::BTreeSet<_>>();
    let (shortest, longest) = (distinct.first().map_or(0, |n| **n), distinct.last().map_or(0, |n| **n));
    let count = comparison.steps().len();
    writeln!(
        out,
        "{count} steps, {} micro-batches padded to {shortest} to {longest} tokens, {} different lengths\n",
        lengths.len(),
        distinct.len()
    )?;
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
        let (allocated, reserved) = (outcome.peak_allocated().to_string(), outcome.peak_reserved().to_string());
        write!(out, "{allocated:>10} {reserved:>10} {:>6.2}{:>21}", ratio(outcome), "")?;
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
    for (at, card) in cards.iter().enumerate() {
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
    Ok(())
}

fn document(plan: &Plan, comparison: &Comparison, cards: &[Card], rows: &[Row]) -> Value {
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
        let ends = cards.iter().zip(&outcome.ends).map(|(card, end)| {
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
    let settings = rows.iter().map(|(setting, found)| {
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
        "padded_lengths": comparison.steps(),
        "settings": settings.collect::<Value>(),
    })
}

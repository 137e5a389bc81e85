//! `vram-budget plan`: searches the plans around a job.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};
use vram_budget::decide::search::{Answers, Found, Search, Space, Target, halve};
use vram_budget::plan::Plan;
use vram_budget::recipe::{Checkpointing, OptimizerName};
use vram_budget::text::{Advised, Catalogue, Locale, Searched};

use crate::exit::Rejected;
use crate::plan_args::{self, PlanArgs};

/// What to vary around a job.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// Sequences per optimizer step, of all GPUs [default: the plan's]
    #[arg(long, value_name = "N", help_heading = "Search")]
    global_batch: Option<u64>,
    /// Tokens per optimizer step, of all GPUs, in place of sequences
    #[arg(long, value_name = "N", conflicts_with = "global_batch", help_heading = "Search")]
    step_tokens: Option<u64>,
    /// Micro-batches to try [default: powers of two; what comes out uneven is left out]
    #[arg(long, value_name = "N,…", value_delimiter = ',', help_heading = "Search")]
    try_micro_batch: Vec<u64>,
    /// Sequence lengths to try [default: the plan's]
    #[arg(long, value_name = "N,…", value_delimiter = ',', help_heading = "Search")]
    try_seq_len: Vec<u64>,
    /// Checkpointing to try [default: none,selective,full]
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', value_parser = plan_args::numbered::<Checkpointing>, help_heading = "Search")]
    try_checkpointing: Vec<Checkpointing>,
    /// Optimizers to try, each in all its implementations [default: the plan's]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = plan_args::optimizer(), help_heading = "Search")]
    try_optimizer: Vec<OptimizerName>,
    /// A further GPU of the catalogue to try; may be repeated
    #[arg(long, value_name = "NAME", help_heading = "Search")]
    try_gpu: Vec<String>,
    /// Try every kind of data parallelism over so many GPUs
    #[arg(long, value_name = "GPUS", help_heading = "Search")]
    try_layouts: Option<u64>,
    /// One JSON document instead of the text
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl Args {
    fn space(&self, plan: &Plan) -> Space {
        let mut space = Space::around(plan);
        let tokens = self.step_tokens.map(Target::Tokens);
        if let Some(target) = tokens.or(self.global_batch.map(Target::Sequences)) {
            space.target = target;
        }
        space.every_micro_batch();
        if !self.try_micro_batch.is_empty() {
            space.micro_batches.clone_from(&self.try_micro_batch);
        }
        if !self.try_seq_len.is_empty() {
            space.seq_lens.clone_from(&self.try_seq_len);
        }
        if !self.try_checkpointing.is_empty() {
            space.checkpointing.clone_from(&self.try_checkpointing);
        }
        if !self.try_optimizer.is_empty() {
            space.every_implementation(plan.recipe.optimizer, &self.try_optimizer);
        }
        if let Some(ranks) = self.try_layouts {
            space.every_layout(ranks, plan.recipe.precision);
        }
        space.add_gpus(self.try_gpu.iter().cloned());
        space
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = args.plan.plan()?;
    let rejected = |issues: Vec<_>| Rejected::fields("the plans cannot be searched", &issues);
    let space = args.space(&plan);
    let machines: Vec<String> = space.machines.iter().map(name_of).collect();
    let mut search = Search::of(&plan, space).map_err(rejected)?;
    while !search.advance(usize::MAX) {}
    // The articles' way, with all else as it is.
    let halved = halve(&plan).map_err(rejected)?;
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    if args.json {
        let on = |(machine, answers): (&String, &Answers)| {
            json!({
                "gpu": machine,
                "front": answers.front.iter().map(document).collect::<Vec<_>>(),
                "fastest_that_fits": answers.fastest.as_ref().map(document),
                "largest_micro_batch_that_fits": answers.largest_micro_batch.as_ref().map(document),
                "longest_sequence_that_fits": answers.longest_sequence.as_ref().map(document),
            })
        };
        let document = json!({
            "plans": search.progress().plans,
            "replayed": search.progress().replayed,
            "machines": machines.iter().zip(search.answers()).map(on).collect::<Vec<_>>(),
            "smallest_gpu": search.smallest().map(|at| &machines[at]),
            "halved": halved.iter().map(document).collect::<Vec<_>>(),
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        print(&search, &machines, &halved, &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn name_of(machine: &vram_budget::machine::Machine) -> String {
    let hardware = machine.resolve().ok();
    hardware.and_then(|hardware| hardware.name).unwrap_or_else(|| Locale::En.advice().searched(&Searched::NoGpu))
}

fn document(found: &Found) -> Value {
    let numbers = &found.verdict.numbers;
    json!({
        "plan": found.plan,
        "verdict": found.verdict.kind,
        "allocated_bytes": numbers.allocated,
        "reserved_bytes": numbers.reserved,
        "process_bytes": numbers.process,
        "tokens_per_second": found.throughput.as_ref().map(|t| t.tokens_per_second),
    })
}

fn print(search: &Search, machines: &[String], halved: &[Found], out: &mut dyn Write) -> io::Result<()> {
    let (text, words) = (Locale::En.text(), Locale::En.advice());
    let progress = search.progress();
    let looked = Searched::Looked { plans: progress.plans, replayed: progress.replayed };
    writeln!(out, "{}", words.searched(&looked))?;
    for (gpu, answers) in machines.iter().zip(search.answers()) {
        writeln!(out, "\n{}", words.searched(&Searched::Front { gpu }))?;
        for found in &answers.front {
            line(text, found, out)?;
        }
        for (what, found) in [
            (Searched::Fastest, &answers.fastest),
            (Searched::LargestMicroBatch, &answers.largest_micro_batch),
            (Searched::LongestSequence, &answers.longest_sequence),
        ] {
            let none = if found.is_some() { String::new() } else { words.searched(&Searched::None) };
            writeln!(out, "{}{none}", words.searched(&what))?;
            if let Some(found) = found {
                line(text, found, out)?;
            }
        }
    }
    if machines.len() > 1 {
        let gpu = search.smallest().map(|at| &*machines[at]);
        writeln!(out, "\n{}", words.searched(&Searched::SmallestGpu { gpu }))?;
    }
    writeln!(out, "\n{}", words.searched(&Searched::Halved))?;
    halved.iter().try_for_each(|found| line(text, found, out))?;
    writeln!(out, "\n{}\n{}", words.advised(Advised::MicroBatch), words.advised(Advised::DataLoader))
}

/// A plan as one line: what it holds, how fast it is, what varies, the verdict.
fn line(text: &dyn Catalogue, found: &Found, out: &mut dyn Write) -> io::Result<()> {
    let words = Locale::En.advice();
    let speed = found.throughput.as_ref().map(|of| of.tokens_per_second);
    let speed = words.searched(&speed.map_or(Searched::SpeedNotKnown, Searched::Speed));
    let (held, what) = (found.held().to_string(), words.searched(&Searched::Plan(&found.plan)));
    writeln!(out, "  {held:>10}  {speed:<24}  {what}: {}", text.verdict(found.verdict.kind))
}

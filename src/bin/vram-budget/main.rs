//! The native companion of the page: the same estimates in a terminal, this machine's GPUs, and how far off it all is.
//!
//! The document goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no GPU or no
//! driver, 4 the input was rejected.
#![expect(clippy::disallowed_methods, reason = "the command opens files; the engine does not")]

mod calibrate;
mod compare;
mod csv;
mod empirical;
mod estimate;
mod exit;
mod fragmentation;
mod import;
mod input;
mod merge;
mod method_args;
mod page;
mod parallel_args;
mod plan;
mod plan_args;
mod probe;
mod reconcile;
mod record;
mod replay;
mod schema;
mod shell;
mod snapshot;
mod validate;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Where training memory goes on a GPU, whether the run fits, and what to change.
#[derive(Debug, Parser)]
#[command(name = "vram-budget", version, max_term_width = 100, before_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  vram-budget estimate llama-3.1-8b --gpu 'RTX 4090' --precision pure_bf16 --seq-len 2048
  vram-budget estimate --config config.json --gpu 'A100 SXM4 80GB' --micro-batch 4 --json
  vram-budget estimate --plan plan.json --measured measured.json
  vram-budget fragmentation llama-3.2-1b --lengths log-normal=512,0.7 --seq-len 2048 --gpu 'RTX 4090'
  vram-budget record -- torchrun --nproc-per-node 8 train.py
  vram-budget probe > machine.json
  vram-budget explain train.log
  nvidia-smi | vram-budget import -
  vram-budget reconcile --plan plan.json measured.json
  vram-budget calibrate plan.json run-*.json > calibrated.json
  vram-budget compare plan.json fp32.json amp.json amp-checkpointed.json
  vram-budget empirical 2x1024=a.json 4x1024=b.json --micro-batch 8 --seq-len 1024
  vram-budget validate cases.jsonl";

#[derive(Debug, Subcommand)]
enum Command {
    /// Estimate a training job: the bill, the verdict, what to change
    Estimate(Box<estimate::Args>),
    /// Search the plans around a job: the front of memory and speed, the fastest that fits, the smallest GPU
    Plan(Box<plan::Args>),
    /// Replay a run of many steps over sequences of many lengths: how reserved memory grows, and which advice helps
    Fragmentation(Box<fragmentation::Args>),
    /// Run a training command as it is and measure it: a document that the page, estimate and validate read
    Record(record::Args),
    /// Make one document of a run's ranks, or of a recording that was killed
    Merge(merge::Args),
    /// Show this machine's GPUs and who holds them, again and again
    Watch(watch::Args),
    /// Write this machine's GPUs as a measurement document
    Probe(probe::Args),
    /// Read error messages, logs and tools' output as measurement documents
    Import(import::Args),
    /// Say what they mean: what was understood, why memory ran out, what to try first
    Explain(import::Args),
    /// Predict measured cases and say how far off the predictions are
    Validate(validate::Args),
    /// Hold a measurement against a plan: what explains the difference, what it means, what to do
    Reconcile(Box<reconcile::Args>),
    /// Fit a plan to measurements: context, fragmentation, versions and more, with intervals; prints the plan
    Calibrate(Box<calibrate::Args>),
    /// Put plans and measurements side by side: peak, speed, what fits, what free memory would buy
    Compare(Box<compare::Args>),
    /// Predict other batches of a model that is not known, from two or more measurements alone
    Empirical(empirical::Args),
    /// Replay a recorded run of the caching allocator, to the byte
    Replay(replay::Args),
    /// Read a recording of torch.cuda.memory._dump_snapshot(): who holds what, the peak, and other settings
    Snapshot(snapshot::Args),
    /// Write one self-contained page with a measurement in it, and open it
    Open(page::OpenArgs),
    /// Serve the page with the newest measurement, to this machine's browser alone
    Serve(page::ServeArgs),
    /// Print the JSON Schema of a document
    Schema(schema::Args),
    /// Print what completes the arguments in a shell
    Completions(shell::Args),
    /// Print the manual page
    Man,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are documents and succeed; wrong usage goes to stderr with exit code 2.
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(1);
            return error.print().map_or(ExitCode::FAILURE, |()| ExitCode::from(code));
        }
    };
    let done = match cli.command {
        Command::Estimate(args) => estimate::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Fragmentation(args) => fragmentation::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Import(args) => import::import(&args),
        Command::Explain(args) => import::explain(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Reconcile(args) => reconcile::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Empirical(args) => empirical::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Snapshot(args) => snapshot::run(&args),
        Command::Open(args) => page::open(&args),
        Command::Serve(args) => page::serve(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => shell::completions(&args, Cli::command()),
        Command::Man => shell::man(Cli::command()),
    };
    done.unwrap_or_else(|error| exit::report(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}

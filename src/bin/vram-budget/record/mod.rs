//! `vram-budget record`: runs a training command as it is, and leaves a measurement document.
//!
//! The inside view is a Python hook that the environment brings in ([`hook`]); it writes JSON lines into the run's
//! directory, beside the document. What has been written there survives whatever happens to the training or to this
//! program: [`recording`] reads it back, here or in `vram-budget merge`.

mod child;
mod follow;
mod hook;
mod launcher;
mod outside;
pub(crate) mod recording;
mod tensorboard;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use vram_budget::measure::{Ended, Measurement};

use crate::merge::{merge, merge_here};
use crate::probe::Here;

/// What to run, and what to measure of it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXITS)]
pub(crate) struct Args {
    /// The document; - is stdout, the command's own then goes to stderr [default: vram-NAME-N.json]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure this many optimizer steps after the warm-up; the command runs on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Steps after the first that count as no steady ones
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u64,
    /// Record the allocator's history too, as FILE.pickle (torch.cuda.memory's; slows the run down)
    #[arg(long)]
    snapshot: bool,
    /// Write peak, reserved, inactive split and throughput of every step for TensorBoard, while the command runs
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
    /// End the command after this many optimizer steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    stop_after: Option<u64>,
    /// The command
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

const EXITS: &str = "Exit codes: the command's own; 128 + N where signal N ended it; 125 where vram-budget itself failed \
and the command did not; 126 where the command cannot be run; 127 where there is none of that name.";

/// This program failed and the command did not.
const FAILED: u8 = 125;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match record(args) {
        Ok(code) => Ok(code),
        Err(error) => {
            let _ = crate::exit::report(&error);
            Ok(ExitCode::from(FAILED))
        }
    }
}

fn record(args: &Args) -> anyhow::Result<ExitCode> {
    let out = Out::choose(args)?;
    hook::install(&out.directory, args).with_context(|| out.directory.display().to_string())?;
    let sampler = outside::Sampler::start(Box::new(Here::default()));
    let follower = follow::Follower::start(&out.directory, args.tensorboard.clone());
    let status = match child::run(&args.command, &out.directory, out.file.is_none()) {
        Ok(status) => status,
        Err(error) => {
            out.remove();
            let what = args.command[0].display();
            eprint(&format!("error: {what}: {error}"));
            return Ok(ExitCode::from(match error.kind() {
                std::io::ErrorKind::NotFound => 127,
                std::io::ErrorKind::PermissionDenied => 126,
                _ => FAILED,
            }));
        }
    };
    if let Some(follower) = follower {
        follower.stop();
    }
    let outside = sampler.map(outside::Sampler::stop);
    let code = code_of(&status);
    match save(&out, &status, outside.as_ref()) {
        Ok(()) => Ok(ExitCode::from(code)),
        Err(error) => {
            let _ = crate::exit::report(&error);
            eprint(&format!("note: what was measured is in {}: vram-budget merge {0}", out.directory.display()));
            Ok(ExitCode::from(if code == 0 { FAILED } else { code }))
        }
    }
}

/// The exit code that stands for how the command ended.
fn code_of(ended: &Ended) -> u8 {
    let code = ended.code.or_else(|| ended.signal.map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}

/// Reads what was recorded and writes it: one document, and each rank's own where there are several.
fn save(out: &Out, ended: &Ended, outside: Option<&outside::Seen>) -> anyhow::Result<()> {
    let mut found = recording::read(&out.directory, Some(ended))?;
    if let Some(outside) = outside {
        for (at, one) in found.measurements.iter_mut().enumerate() {
            outside.add_to(one, found.pids.get(at).copied());
        }
    }
    let several = found.measurements.len() > 1;
    if let (true, Some(file)) = (several, &out.file) {
        for one in &found.measurements {
            let rank = one.run.as_ref().and_then(|run| run.rank).unwrap_or(0);
            write(&of_rank(file, rank), one)?;
        }
    }
    // Where a launcher started this program once a rank, the others have documents of their own.
    let whole = if rank_here().is_some() { merge_here(found.measurements) } else { merge(found.measurements) };
    match &out.file {
        Some(file) => {
            write(file, &whole)?;
            for (at, path) in found.snapshots.iter().enumerate() {
                let to = file.with_extension(if at == 0 { "pickle".into() } else { format!("{at}.pickle") });
                fs::rename(path, &to).with_context(|| to.display().to_string())?;
            }
            eprint(&format!("vram-budget: {}", file.display()));
        }
        None => print(&whole)?,
    }
    out.remove();
    Ok(())
}

/// `FILE.rank3.json`.
fn of_rank(file: &Path, rank: u32) -> PathBuf {
    let extension = file.extension().map_or_else(|| "json".into(), |e| e.to_string_lossy().into_owned());
    file.with_extension(format!("rank{rank}.{extension}"))
}

/// Writes the document whole or not at all: into a file beside it, which then takes its name.
pub(crate) fn write(file: &Path, document: &Measurement) -> anyhow::Result<()> {
    let beside = file.with_extension("tmp");
    let done = (|| {
        let mut text = serde_json::to_vec_pretty(document)?;
        text.push(b'\n');
        fs::write(&beside, text)?;
        fs::File::open(&beside)?.sync_all()?;
        fs::rename(&beside, file)?;
        Ok::<_, anyhow::Error>(())
    })();
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done.with_context(|| file.display().to_string())
}

/// A reader that closed the pipe has what it wanted.
fn print(document: &Measurement) -> anyhow::Result<()> {
    use std::io::Write;
    let mut text = serde_json::to_vec_pretty(document)?;
    text.push(b'\n');
    match std::io::stdout().lock().write_all(&text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Says something on stderr, where nothing is left to do if that is closed.
pub(crate) fn eprint(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Where the document goes, and the directory of what is written meanwhile.
struct Out {
    /// `None`: stdout.
    file: Option<PathBuf>,
    directory: PathBuf,
}

impl Out {
    /// Makes the run's directory: that it can be written to is known before the command starts.
    fn choose(args: &Args) -> anyhow::Result<Self> {
        let file = match &args.out {
            Some(path) if path.as_os_str() == "-" => None,
            // Where a launcher started this program once a rank, each rank has a document of its own.
            Some(path) => Some(rank_here().map_or_else(|| path.clone(), |rank| of_rank(path, rank))),
            None => Some(unused(&name_of(&args.command))?),
        };
        let directory = match &file {
            Some(file) => file.with_extension("run"),
            None => std::env::temp_dir().join(format!("vram-budget-{}.run", std::process::id())),
        };
        for n in 0..1000 {
            let directory = if n == 0 { directory.clone() } else { directory.with_extension(format!("{n}.run")) };
            match fs::create_dir(&directory) {
                Ok(()) => return Ok(Self { file, directory: fs::canonicalize(&directory)? }),
                // Another run's, which may be running or have been killed.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(anyhow::Error::new(error).context(directory.display().to_string())),
            }
        }
        anyhow::bail!("{}: too many recordings that nobody merged", directory.display())
    }

    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The rank that a launcher gave this very process, one of several.
#[expect(clippy::disallowed_methods, reason = "launchers say it in the environment")]
fn rank_here() -> Option<u32> {
    let (rank, world) = launcher::rank_of(|name| std::env::var(name).ok())?;
    world.is_none_or(|world| world > 1).then_some(rank)
}

/// What the command is called: its script, where an interpreter or a launcher runs one.
fn name_of(command: &[std::ffi::OsString]) -> String {
    let script = command.iter().find(|word| Path::new(word).extension().is_some_and(|e| e == "py"));
    let word = script.unwrap_or(&command[0]);
    Path::new(word).file_stem().map_or_else(|| "run".into(), |stem| stem.to_string_lossy().into_owned())
}

/// The first file of this name that is not there.
fn unused(name: &str) -> anyhow::Result<PathBuf> {
    let rank = rank_here();
    (1..10_000)
        .map(|n| PathBuf::from(format!("vram-{name}-{n}.json")))
        .map(|path| rank.map_or_else(|| path.clone(), |rank| of_rank(&path, rank)))
        .find(|path| !path.exists() && !path.with_extension("run").exists())
        .context("too many documents here: name one with --out")
}

//! Follows a run while it goes: its scalars for TensorBoard, and a word when a figure that should stay level grows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use vram_budget::measure::Measurement;
use vram_budget::measure::explain::{Fact, facts};
use vram_budget::text::Locale;
use vram_budget::units::GIB;

use super::eprint;
use super::recording::{self, Step};
use super::tensorboard::Events;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(5);
/// Steps before a growth is a leak and no warm-up.
const LEVEL_AFTER: usize = 50;

/// A thread that looks at what the hook has written.
pub(super) struct Follower {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Follower {
    /// Starts to follow the run in `directory`. `None`: no thread can be had.
    pub(super) fn start(directory: &Path, tensorboard: Option<PathBuf>) -> Option<Self> {
        let (stop, stopped) = mpsc::channel();
        let mut run = Following { directory: directory.to_owned(), tensorboard, ..Following::default() };
        let look = move || {
            loop {
                let last = !matches!(stopped.recv_timeout(EVERY), Err(RecvTimeoutError::Timeout));
                run.look();
                if last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("follow".into()).spawn(look).ok()?;
        Some(Self { stop, thread })
    }

    /// Looks a last time.
    pub(super) fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

#[derive(Default)]
struct Following {
    directory: PathBuf,
    tensorboard: Option<PathBuf>,
    /// By process: its event file, and the last step in it.
    events: BTreeMap<u32, (Events, u64)>,
    /// What was said already.
    said: BTreeSet<String>,
}

impl Following {
    fn look(&mut self) {
        let Ok(processes) = recording::processes(&self.directory) else { return };
        for process in &processes {
            if let Some(directory) = self.tensorboard.clone()
                && let Err(error) = self.write(&directory, process)
            {
                eprint(&format!("vram-budget: no more is written for TensorBoard: {}: {error}", directory.display()));
                self.tensorboard = None;
            }
            if process.steps.len() > LEVEL_AFTER {
                self.warn(
                    process.rank,
                    &Measurement {
                        series: recording::series(&process.steps, LEVEL_AFTER as u64 / 2),
                        ..Measurement::new(Vec::new())
                    },
                );
            }
        }
    }

    fn write(&mut self, directory: &Path, process: &recording::Process) -> std::io::Result<()> {
        let (events, last) = match self.events.entry(process.pid) {
            std::collections::btree_map::Entry::Occupied(of) => of.into_mut(),
            std::collections::btree_map::Entry::Vacant(of) => {
                // One run for each rank, as TensorBoard shows runs by their directories.
                let directory =
                    process.rank.map_or_else(|| directory.to_owned(), |rank| directory.join(format!("rank{rank}")));
                of.insert((Events::create(&directory, process.at, &process.host, process.pid)?, 0))
            }
        };
        for step in process.steps.iter().filter(|step| step.n > *last) {
            events.step(step.at, step.n, &scalars(step))?;
        }
        *last = process.steps.last().map_or(*last, |step| step.n);
        Ok(())
    }

    fn warn(&mut self, rank: Option<u32>, measurement: &Measurement) {
        for fact in facts(measurement) {
            if let Fact::Grows { name, .. } = &fact
                && self.said.insert(format!("{rank:?} {name}"))
            {
                let of = rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
                eprint(&format!("vram-budget: {of}{}", Locale::En.report().fact(&fact)));
            }
        }
    }
}

/// A step's scalars, by the tags that `import` reads too.
#[expect(clippy::cast_precision_loss, reason = "scalars of 32 bits")]
fn scalars(step: &Step) -> Vec<(&'static str, f64)> {
    let gib = |bytes: i64| bytes as f64 / GIB as f64;
    let mut out = Vec::new();
    if let Some([allocated, _, _]) = step.highest() {
        out.push(("memory/max_allocated (GiB)", gib(allocated)));
    }
    if let Some([_, _, reserved, _, split, _]) = step.update {
        out.push(("memory/reserved (GiB)", gib(reserved)));
        out.push(("memory/inactive_split (GiB)", gib(split)));
    }
    if step.seconds > 0.0 {
        out.push(("throughput/steps_per_second", 1.0 / step.seconds));
        if step.tokens > 0 {
            out.push(("throughput/tokens_per_second", step.tokens as f64 / step.seconds));
        }
    }
    out
}

//! What the hook wrote into a run's directory, read back as measurement documents, one a process.
//!
//! Each line was one write. A line that is cut off is the one at which the process or the disk ended: what is before it
//! counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Map, Value};
use vram_budget::measure::{
    Ended, Environment, Figure, Gpu, Imported, Measurement, Options, Producer, Reading, ReadingName, Reported, Run,
    Series, StepReading, TierName, Which, understand,
};
use vram_budget::plan::Plan;
use vram_budget::units::Bytes;

use super::launcher;

/// The most points of a series: beyond, each stands for several steps.
const MOST_POINTS: usize = 2000;

/// Everything that a run's directory holds.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// One a rank.
    pub(crate) measurements: Vec<Measurement>,
    /// The processes that were measured.
    pub(crate) pids: Vec<u32>,
    /// Recordings of the allocator.
    pub(crate) snapshots: Vec<PathBuf>,
}

/// A line of the hook's.
#[derive(Debug, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
enum Line {
    Start {
        pid: u32,
        host: String,
        rank: Option<u32>,
        world_size: Option<u32>,
        at: f64,
        /// What launchers say.
        #[serde(default)]
        environment: BTreeMap<String, String>,
    },
    Note {
        text: String,
    },
    Sizes {
        params: i64,
        optimizer_state: i64,
        optimizer_state_host: i64,
        grads: Option<i64>,
    },
    Plan {
        #[serde(default)]
        plan: Map<String, Value>,
        why: Vec<String>,
    },
    Step(Box<Step>),
    Zero {
        n: u64,
        after_zero_grad: i64,
    },
    Oom {
        phase: String,
        step: u64,
        message: Option<String>,
    },
    End {
        error: Option<String>,
        steps: u64,
    },
}

/// A batch's sizes, by input.
type Sizes = BTreeMap<String, Vec<u64>>;

/// Allocated, its peak since the mark before, reserved, its peak, inactive split, its peak.
type Mark = [i64; 6];

/// An optimizer step, as the hook writes it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Step {
    /// Its number, from 1.
    pub(super) n: u64,
    /// Its end, in seconds since 1970.
    pub(super) at: f64,
    /// How long it took.
    pub(super) seconds: f64,
    base: Option<Mark>,
    /// The first micro-batch; after it the one that peaks highest, where its batch is another.
    micro: Vec<Micro>,
    micros: u64,
    /// Whether its micro-batches differ in size.
    #[serde(default)]
    varied: bool,
    /// Tokens of all micro-batches.
    pub(super) tokens: u64,
    /// Allocated when the last backward had ended.
    backward_end: Option<i64>,
    /// When the last optimizer had stepped.
    pub(super) update: Option<Mark>,
    /// Highest allocated, reserved and inactive split of every forward and backward.
    peaks: Option<[i64; 3]>,
    #[serde(skip)]
    after_zero_grad: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Micro {
    inputs: i64,
    #[serde(default)]
    shape: Option<Sizes>,
    /// Whether a mask that tells sequences apart reached attention; `None`: not seen.
    #[serde(default)]
    masked: Option<bool>,
    forward: Option<Mark>,
    backward: Option<Mark>,
}

impl Step {
    /// The batch's sizes by input, of the micro-batch that peaks highest, and whether attention took a mask of it.
    fn batch(&self) -> Option<(&Sizes, Option<bool>)> {
        self.micro.last().and_then(|micro| Some((micro.shape.as_ref()?, micro.masked)))
    }

    /// Whether another step's batches are of the same sizes.
    fn is_like(&self, other: &Self) -> bool {
        self.batch() == other.batch() && self.micros == other.micros
    }

    /// Highest allocated, reserved and inactive split of the step.
    pub(super) fn highest(&self) -> Option<[i64; 3]> {
        let update = self.update.map(|[_, allocated, _, reserved, _, split]| [allocated, reserved, split]);
        match (self.peaks, update) {
            (Some(a), Some(b)) => Some([a[0].max(b[0]), a[1].max(b[1]), a[2].max(b[2])]),
            (one, other) => one.or(other),
        }
    }

    /// The step's readings. Growth is counted from before the batch, whose blocks are taken off what was read with it.
    fn readings(&self, which: Which, into: &mut Vec<Reading>) {
        let (Some(base), Some(micro)) = (self.base, self.micro.first()) else { return };
        let base = base[0] - micro.inputs;
        let mut add = |reading: StepReading, bytes: Option<i64>| {
            let name = ReadingName::Step(which, reading);
            into.extend(bytes.map(|bytes| Reading::new(name, name.tier(), Figure::Bytes(bytes))));
        };
        add(StepReading::Base, Some(base));
        add(StepReading::StepDelta, self.update.zip(self.backward_end).map(|(u, b)| u[0] - b));
        add(StepReading::StepPeak, self.update.map(|m| m[1]));
        add(StepReading::AfterStep, self.update.map(|m| m[0]));
        add(StepReading::AfterZeroGrad, self.after_zero_grad);
        add(StepReading::Peak, self.highest().map(|h| h[0]));
        if self.micro.len() > 1 {
            return; // Forward and backward are those of a batch that is not the job's.
        }
        add(StepReading::Inputs, Some(micro.inputs));
        add(StepReading::ForwardDelta, micro.forward.map(|m| m[0] - base));
        add(StepReading::ForwardEnd, micro.forward.map(|m| m[0]));
        add(StepReading::ForwardPeak, micro.forward.map(|m| m[1]));
        add(StepReading::BackwardDelta, micro.backward.zip(micro.forward).map(|(b, f)| b[0] - f[0]));
        add(StepReading::BackwardEnd, micro.backward.map(|m| m[0]));
        add(StepReading::BackwardPeak, micro.backward.map(|m| m[1]));
    }
}

/// What one process wrote.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) host: String,
    pub(super) rank: Option<u32>,
    world_size: Option<u32>,
    /// When it began, in seconds since 1970.
    pub(super) at: f64,
    notes: Vec<String>,
    sizes: Vec<(ReadingName, i64)>,
    plan: Option<(Map<String, Value>, Vec<String>)>,
    pub(super) steps: Vec<Step>,
    out_of_memory: Option<(String, u64, Option<String>)>,
    ended: Option<(Option<String>, u64)>,
}

/// Reads a run's directory. `ended`: how the command ended, where this program saw it.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn read(directory: &Path, ended: Option<&Ended>) -> anyhow::Result<Recording> {
    let mut found = Recording { snapshots: paths(directory, "pickle")?, ..Recording::default() };
    let mut processes = processes(directory)?;
    let warmup = options(&directory.join("options.json")).unwrap_or(0);
    // A launcher's helpers run no step. Without any step, what they noted is all there is.
    let ran = |p: &Process| !p.steps.is_empty() || p.out_of_memory.is_some();
    if processes.iter().any(ran) {
        processes.retain(ran);
    }
    // A rank that was started again counts as its last start.
    processes.sort_by(|a, b| a.rank.cmp(&b.rank).then(b.at.total_cmp(&a.at)));
    let mut ranks: Vec<Process> = Vec::new();
    for process in processes {
        match ranks.last_mut().filter(|last| last.rank == process.rank) {
            Some(last) if process.rank.is_some() => last.notes.push("this rank was started more than once".into()),
            Some(last) => last.notes.push(format!("process {} ran steps too, which are left out", process.pid)),
            None => ranks.push(process),
        }
    }
    let alone = ranks.len() == 1;
    for process in ranks {
        found.pids.push(process.pid);
        found.measurements.push(document(process, ended.filter(|_| alone), warmup));
    }
    if found.measurements.is_empty() {
        let mut nothing = empty();
        let note = "no training step was seen: no process that imports torch ran a module (a Python that is started with -I or -E ignores PYTHONPATH)";
        nothing.run =
            Some(Run { ended: ended.cloned().unwrap_or_default(), notes: vec![note.into()], ..Run::default() });
        found.measurements.push(nothing);
    }
    Ok(found)
}

/// What each process has written so far.
pub(super) fn processes(directory: &Path) -> anyhow::Result<Vec<Process>> {
    let read = |path: PathBuf| Ok(process(&fs::read(&path).with_context(|| path.display().to_string())?));
    paths(directory, "jsonl")?.into_iter().map(read).collect()
}

/// The directory's files with this extension, in order.
fn paths(directory: &Path, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let all: std::io::Result<Vec<PathBuf>> =
        fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut found = all.with_context(|| directory.display().to_string())?;
    found.retain(|path| path.extension().is_some_and(|e| e == extension));
    found.sort();
    Ok(found)
}

fn options(path: &Path) -> Option<u64> {
    serde_json::from_slice::<Value>(&fs::read(path).ok()?).ok()?.get("warmup")?.as_u64()
}

fn empty() -> Measurement {
    let producer = Producer { name: "vram-budget record".into(), version: Some(env!("CARGO_PKG_VERSION").into()) };
    Measurement { producer: Some(producer), ..Measurement::new(Vec::new()) }
}

/// Takes a process's lines, one after another.
fn process(bytes: &[u8]) -> Process {
    let mut p = Process::default();
    for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        let Ok(line) = serde_json::from_slice(line) else {
            p.notes.push("a line of the recording is cut off: the process or the disk ended there".into());
            continue;
        };
        match line {
            Line::Start { pid, host, rank, world_size, at, environment } => {
                (p.pid, p.host, p.rank, p.world_size, p.at) = (pid, host, rank, world_size, at);
                if let (None, Some((rank, world))) = (rank, launcher::rank_of(|name| environment.get(name))) {
                    (p.rank, p.world_size) = (Some(rank), world);
                }
            }
            Line::Note { text } => p.notes.push(text),
            Line::Sizes { params, optimizer_state, optimizer_state_host, grads } => {
                p.sizes = vec![(ReadingName::Params, params), (ReadingName::OptimizerState, optimizer_state)];
                if optimizer_state_host > 0 {
                    p.sizes.push((ReadingName::OptimizerStateHost, optimizer_state_host));
                }
                p.sizes.extend(grads.map(|bytes| (ReadingName::Step(Which::First, StepReading::Grads), bytes)));
            }
            Line::Plan { plan, why } => p.plan = Some((plan, why)),
            Line::Step(step) => p.steps.push(*step),
            Line::Zero { n, after_zero_grad } => {
                if let Some(step) = p.steps.iter_mut().rev().find(|step| step.n == n) {
                    step.after_zero_grad = Some(after_zero_grad);
                }
            }
            Line::Oom { phase, step, message } => {
                let before = p.out_of_memory.take().and_then(|(.., message)| message);
                p.out_of_memory = Some((phase, step, message.or(before)));
            }
            Line::End { error, steps } => p.ended = Some((error, steps)),
        }
    }
    p
}

/// The document of one process.
fn document(mut p: Process, ended: Option<&Ended>, warmup: u64) -> Measurement {
    let mut out = empty();
    let steady = steady(&p.steps, warmup).cloned();
    let first = p.steps.first().filter(|step| step.n == 1).cloned();
    let measured = p.steps.iter().any(|step| step.base.is_some());

    // The job's batch is that of the step that peaked highest, be it a step before the steady ones.
    let highest = dearest(p.steps.iter()).cloned();
    let early = |step: &Step| step.n <= 1 + warmup && !steady.as_ref().is_some_and(|steady| steady.is_like(step));
    let job = highest.filter(early).or_else(|| steady.clone());
    for (which, step) in [(Which::Steady, &steady), (Which::First, &first)] {
        if let Some(step) = step.as_ref().filter(|step| job.as_ref().is_none_or(|job| job.is_like(step))) {
            step.readings(which, &mut out.readings);
        }
    }
    if let Some(job) = &job {
        let mut note = |when: bool, text: String| p.notes.extend(when.then_some(text));
        let differ = p.steps.iter().any(|step| !step.is_like(job));
        note(differ, "the batches differ in size: the plan has the batch of the step that peaked highest, and the readings of other steps are left out".into());
        let more = format!(
            "the dearest batch came in step {}: a steady step over it needs more than was measured here, which the plan says",
            job.n
        );
        note(steady.is_some() && early(job), more);
        note(
            job.varied,
            "the micro-batches of a step differ in size: the plan has each as large as the dearest".into(),
        );
    }
    for (name, bytes) in &p.sizes {
        out.readings.push(Reading::new(*name, name.tier(), Figure::Bytes(*bytes)));
    }
    for (name, at) in [
        (ReadingName::MaxAllocated, 0),
        (ReadingName::MaxReserved, 1),
        (ReadingName::Reported(Reported::MaxInactiveSplit), 2),
    ] {
        let highest = p.steps.iter().filter_map(|step| Some(step.highest()?[at])).max();
        let figure = match highest {
            Some(bytes) => Figure::Bytes(bytes),
            None if measured => continue,
            None => Figure::Unavailable("no CUDA device was used in a training step".into()),
        };
        out.readings.push(Reading::new(name, name.tier(), figure));
    }
    out.series = series(&p.steps, warmup);
    plan(&mut p, job.as_ref(), &mut out);
    failure(&p, &mut out);
    out.run = Some(run(p, steady.as_ref(), ended));
    out
}

/// The step that stands for the steady ones: of those with the most tokens, the one that peaks highest.
fn steady(steps: &[Step], warmup: u64) -> Option<&Step> {
    dearest(steps.iter().filter(|step| step.n > 1 + warmup))
}

/// The step that peaks highest, without a GPU the one of most tokens; of equals the first.
fn dearest<'a>(steps: impl DoubleEndedIterator<Item = &'a Step>) -> Option<&'a Step> {
    // `max_by_key` takes the last of equals.
    steps.rev().max_by_key(|step| (step.highest().map_or(0, |h| h[0]), step.tokens))
}

pub(super) fn series(steps: &[Step], warmup: u64) -> Vec<Series> {
    type Of = fn(&Step) -> Option<i64>;
    let of: [(&str, TierName, Of); 4] = [
        ("allocated before the step", TierName::Allocated, |s| Some(s.base?[0])),
        ("peak allocated", TierName::Allocated, |s| Some(s.highest()?[0])),
        ("reserved", TierName::Reserved, |s| Some(s.update?[2])),
        ("inactive split", TierName::Reserved, |s| Some(s.update?[4])),
    ];
    let every = steps.len().div_ceil(MOST_POINTS).max(1);
    of.into_iter()
        .filter_map(|(name, tier, of)| {
            let points: Vec<[i64; 2]> = steps
                .chunks(every)
                .filter_map(|chunk| {
                    let last = i64::try_from(chunk.last()?.n).ok()?;
                    Some([last, chunk.iter().filter_map(of).max()?])
                })
                .collect();
            let warm_up = points.iter().filter(|[n, _]| n.unsigned_abs() <= 1 + warmup).count();
            (!points.is_empty()).then(|| Series {
                name: name.into(),
                tier,
                warm_up: u32::try_from(warm_up).unwrap_or(u32::MAX),
                every: (every > 1).then(|| u32::try_from(every).unwrap_or(u32::MAX)),
                points,
            })
        })
        .collect()
}

/// The job as a plan, with the batch of `step`; a note for each thing that a plan cannot say.
fn plan(p: &mut Process, step: Option<&Step>, out: &mut Measurement) {
    let Some((mut told, mut why)) = p.plan.take() else { return };
    let text = |of: Option<&Value>, key: &str| of?.get(key)?.as_str().map(str::to_owned);
    let framework = told.get("framework");
    out.environment = Some(Environment {
        pytorch: text(framework, "pytorch"),
        transformers: text(framework, "transformers"),
        alloc_conf: text(framework, "alloc_conf"),
        ..Environment::default()
    });
    let card = told.get("machine").and_then(|m| m.pointer("/gpu/custom"));
    if let Some(card) = card {
        out.gpus = vec![Gpu {
            index: u32::try_from(card.get("index").and_then(Value::as_u64).unwrap_or(0)).unwrap_or(0),
            name: text(Some(card), "name"),
            compute_capability: text(Some(card), "compute_capability"),
            total_bytes: card.get("memory_bytes").and_then(Value::as_u64).map(Bytes),
            ..Gpu::default()
        }];
    }
    if let Some(Value::Object(card)) = told.get_mut("machine").and_then(|m| m.pointer_mut("/gpu/custom")) {
        card.remove("index");
    }
    // The batch of the step whose readings stand for the job.
    if let (Some(step), Some(Value::Object(recipe))) = (step, told.get_mut("recipe")) {
        batch(step, recipe);
    }
    if why.is_empty() {
        match serde_json::from_value::<Plan>(Value::Object(told)) {
            Ok(plan) => out.plan = Some(plan),
            Err(error) => why.push(error.to_string()),
        }
    }
    p.notes.extend(why.into_iter().map(|why| format!("no plan: it cannot say {why}")));
}

/// Puts a step's batch into a recipe that was read of another step.
fn batch(step: &Step, recipe: &mut Map<String, Value>) {
    let Some((shape, masked)) = step.batch() else { return };
    let ids = shape.get("input_ids").or_else(|| shape.get("0").filter(|of| of.len() == 2));
    if let Some([batch, length]) = ids.map(Vec::as_slice) {
        recipe.insert("micro_batch".into(), (*batch).into());
        recipe.insert("seq_len".into(), (*length).into());
    } else if let Some([batch, ..]) = shape.get("pixel_values").or_else(|| shape.get("0")).map(Vec::as_slice) {
        recipe.insert("micro_batch".into(), (*batch).into());
    }
    if recipe.contains_key("dec_seq")
        && let Some([_, length]) = shape.get("labels").or_else(|| shape.get("decoder_input_ids")).map(Vec::as_slice)
    {
        recipe.insert("dec_seq".into(), (*length).into());
    }
    recipe.insert("grad_accum".into(), step.micros.into());
    // Eager attention makes a mask of its own in any case: then one that was passed is all that can be told.
    let eager = recipe.get("attention").is_some_and(|attention| attention == "eager");
    if shape.contains_key("attention_mask") && (eager || masked == Some(true)) {
        recipe.insert("padded".into(), true.into());
    }
}

/// What the error message says, where memory ran out.
fn failure(p: &Process, out: &mut Measurement) {
    let Some((phase, step, message)) = &p.out_of_memory else { return };
    let read = message.as_deref().and_then(|text| understand(text.as_bytes(), &Options::default()).ok());
    if let Some(Imported::Measurement { measurement, .. }) = read.and_then(|found| found.into_iter().next()) {
        out.failure = measurement.failure;
        out.readings.extend(measurement.readings);
        out.processes = measurement.processes;
    }
    let what = format!("memory ran out in step {step}, phase {phase}");
    out.source = None;
    out.counts.insert("num_ooms".into(), 1);
    if let Some(failure) = &mut out.failure {
        failure.what.get_or_insert(what);
    }
}

fn run(p: Process, steady: Option<&Step>, ended: Option<&Ended>) -> Run {
    let mut ended = ended.cloned().unwrap_or_default();
    let mut notes = p.notes;
    if let Some((phase, step, _)) = &p.out_of_memory {
        notes.push(format!("memory ran out in step {step}, in its {phase}"));
    }
    let mut steps = p.steps.last().map_or(0, |step| step.n);
    if let Some((error, seen)) = p.ended {
        steps = steps.max(seen);
        ended.error = error;
        if ended.how == vram_budget::measure::EndedHow::Unknown {
            ended.how = vram_budget::measure::EndedHow::Exited;
        }
    }
    let mut seconds: Vec<f64> = p.steps.iter().filter(|s| s.n > 1).map(|s| s.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let ms = |step: &Step| {
        #[expect(clippy::cast_possible_truncation, reason = "milliseconds since 1970")]
        let at = (step.at * 1000.0) as i64;
        [i64::try_from(step.n).unwrap_or(i64::MAX), at]
    };
    let mut clock: Vec<[i64; 2]> = p.steps.first().into_iter().chain(p.steps.last()).map(ms).collect();
    clock.dedup();
    let samples = steady.and_then(|step| {
        let (shape, _) = step.batch()?;
        let of = ["input_ids", "pixel_values", "0"].into_iter().find_map(|name| shape.get(name))?;
        of.first()?.checked_mul(step.micros)
    });
    Run {
        rank: p.rank,
        world_size: p.world_size,
        host: (!p.host.is_empty()).then_some(p.host),
        steps,
        ended,
        step_seconds: seconds.get(seconds.len() / 2).copied(),
        samples_per_step: samples,
        tokens_per_step: steady.map(|step| step.tokens).filter(|tokens| *tokens > 0),
        clock,
        notes,
        ..Run::default()
    }
}

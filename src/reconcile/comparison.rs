//! Configurations side by side, measured and predicted (A9): peak, speed, how far runs are apart, which fits, which is fastest,
//! and what the memory that one leaves free would buy.

use serde::{Deserialize, Serialize};

use crate::bill::{Provenance, ProvenanceKind, Tier, Tiers};
use crate::decide::search::decide_alone;
use crate::decide::{Decision, VerdictKind, judge, share_of};
use crate::estimate::usable;
use crate::issue::Issue;
use crate::measure::{Measurement, ReadingName, Reported, StepReading, Which};
use crate::plan::Plan;
use crate::recipe::{Parallel, Recipe};
use crate::throughput::Range;
use crate::units::Bytes;

/// What is put side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// What it is called.
    pub name: String,
    /// The job, where it is known.
    pub plan: Option<Plan>,
    /// Its runs that were measured, those to leave out left out. None: it is predicted.
    pub runs: Vec<Measurement>,
}

impl Configuration {
    /// Takes a further run of a configuration among `all`, or the first of a new one: runs of one have a name and a job.
    pub fn add(all: &mut Vec<Self>, name: String, measurement: Measurement) {
        let same = |one: &&mut Self| !one.runs.is_empty() && one.name == name && one.plan == measurement.plan;
        match all.iter_mut().find(same) {
            Some(known) => known.runs.push(measurement),
            None => all.push(Self { name, plan: measurement.plan.clone(), runs: vec![measurement] }),
        }
    }
}

/// The configurations and what stands out among them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// In the order in which they were given.
    pub entries: Vec<Entry>,
    /// The highest peak, which every configuration may then fill: where no card is known.
    pub budget: Option<Bytes>,
    /// The fastest that fits, as it is: its place.
    pub fastest: Option<usize>,
    /// The one that may become the fastest by a larger micro-batch in the memory that it leaves.
    pub fastest_grown: Option<usize>,
}

/// One configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// What it is called.
    pub name: String,
    /// How many runs its figures are the mean of. 0: they are predicted.
    pub runs: usize,
    /// The allocated peak.
    pub peak: Option<Bytes>,
    /// The lowest and the highest run's.
    pub peaks: Option<[Bytes; 2]>,
    /// The predicted peak of a job that was measured and is known.
    pub predicted: Option<Bytes>,
    /// Sequences or pictures a second of all ranks. Of runs, the lowest and the highest.
    pub speed: Option<Range>,
    /// Whether it fits the card.
    pub verdict: VerdictKind,
    /// A larger micro-batch that still fits.
    pub micro_batch: Option<Grown>,
    /// A longer sequence that still fits.
    pub seq_len: Option<Grown>,
    /// Why nothing is predicted of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub issues: Vec<Issue>,
}

/// What the memory that is left would buy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Grown {
    /// How large it is. `None`: not known; `to` is so many times as much.
    pub from: Option<u64>,
    /// How large it may become.
    pub to: u64,
    /// The allocated peak then; where the job is not known the most that it can be, for memory is at most proportional to the
    /// micro-batch.
    pub peak: Bytes,
    /// The speed then; where the job is not known from no gain to a step that takes as long.
    pub speed: Option<Range>,
}

/// The most that anything is grown by.
const MOST_TIMES: u64 = 1024;

/// Where the highest allocated is read, the first that is there.
const PEAKS: [ReadingName; 4] = [
    ReadingName::MaxAllocated,
    ReadingName::Step(Which::Steady, StepReading::Peak),
    ReadingName::Step(Which::First, StepReading::Peak),
    ReadingName::Reported(Reported::Allocated),
];

/// A configuration of which is known what can be.
#[derive(Debug)]
struct Known {
    configuration: Configuration,
    /// The job on its card; of one that is not known the card alone counts.
    plan: Plan,
    decision: Result<Decision, Vec<Issue>>,
}

/// Puts configurations side by side. One that names no GPU of its own is taken to run on the machine of `plan`.
#[must_use]
pub fn side_by_side(plan: &Plan, configurations: &[Configuration]) -> Comparison {
    let mut comparing = Comparing::of(plan.clone(), configurations.to_vec());
    while !comparing.advance() {}
    comparing.found()
}

/// A comparison in slices, for a front end that must listen in between.
#[derive(Debug)]
pub struct Comparing {
    plan: Plan,
    /// What is not looked at yet, the last first.
    todo: Vec<Configuration>,
    known: Vec<Known>,
    entries: Vec<Entry>,
    budget: Option<Bytes>,
    /// How often something was made larger: the micro-batch, then the sequence of each.
    grown: usize,
}

impl Comparing {
    /// The comparison of [`side_by_side`], not begun.
    #[must_use]
    pub fn of(plan: Plan, mut configurations: Vec<Configuration>) -> Self {
        configurations.reverse();
        Self { plan, todo: configurations, known: Vec::new(), entries: Vec::new(), budget: None, grown: 0 }
    }

    /// Judges a further configuration, or makes one larger. True once there is nothing left.
    pub fn advance(&mut self) -> bool {
        if let Some(configuration) = self.todo.pop() {
            let known = Known::of(&self.plan, configuration);
            self.entries.push(known.entry());
            self.known.push(known);
            return false;
        }
        if self.grown == 0 {
            let no_card = self.known.iter().all(|one| one.room().is_none());
            self.budget = self.entries.iter().filter_map(|entry| entry.peak).max().filter(|_| no_card);
        }
        let at = self.grown / 2;
        let Some((entry, known)) = self.entries.get_mut(at).zip(self.known.get(at)) else { return true };
        known.grow(entry, self.budget, self.grown.is_multiple_of(2));
        self.grown += 1;
        false
    }

    /// How much is done, and of how much.
    #[must_use]
    pub const fn progress(&self) -> (usize, usize) {
        let judged = self.known.len();
        (judged + self.grown, (judged + self.todo.len()) * 3)
    }

    /// What has been found so far.
    #[must_use]
    pub fn found(&self) -> Comparison {
        let entries = self.entries.clone();
        let may_run = |entry: &Entry| entry.verdict != VerdictKind::DoesNotFit;
        let fastest = best(&entries, |entry| entry.speed.map(likely).filter(|_| may_run(entry)));
        let grown = |entry: &Entry| {
            let grown = entry.micro_batch.and_then(|grown| grown.speed).map(|speed| speed.high);
            grown.or(entry.speed.map(|speed| speed.high)).filter(|_| may_run(entry))
        };
        let fastest_grown =
            best(&entries, grown).filter(|at| entries.get(*at).is_some_and(|e| e.micro_batch.is_some()));
        Comparison { budget: self.budget, fastest, fastest_grown, entries }
    }
}

/// The place of the entry of which most is said.
fn best(entries: &[Entry], of: impl Fn(&Entry) -> Option<f64>) -> Option<usize> {
    let ranked = entries.iter().enumerate().filter_map(|(at, entry)| Some((at, of(entry)?)));
    ranked.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(at, _)| at)
}

/// One figure of a range: the middle of its ends' ratio.
fn likely(range: Range) -> f64 {
    (range.low * range.high).sqrt()
}

impl Known {
    fn of(plan: &Plan, configuration: Configuration) -> Self {
        let Some(own) = &configuration.plan else {
            return Self { configuration, plan: plan.clone(), decision: Err(Vec::new()) };
        };
        let machine = if own.machine.gpu.is_some() { own.machine.clone() } else { plan.machine.clone() };
        let plan = Plan { machine, ..own.clone() };
        let decision = decide_alone(&plan);
        Self { configuration, plan, decision }
    }

    fn entry(&self) -> Entry {
        let Configuration { name, plan, runs } = &self.configuration;
        let decided = self.decision.as_ref();
        let predicted = decided.ok().map(|decision| decision.estimate.tiers.allocated.peak_bytes);
        let issues = self.decision.as_ref().err().cloned().unwrap_or_default();
        let entry = Entry {
            name: name.clone(),
            runs: runs.len(),
            peak: predicted,
            peaks: None,
            predicted: None,
            speed: decided.ok().and_then(|decision| Some(decision.throughput.as_ref()?.samples_per_second)),
            verdict: decided.map_or(VerdictKind::CannotTell, |decision| decision.verdict.kind),
            micro_batch: None,
            seq_len: None,
            issues,
        };
        if runs.is_empty() {
            return entry;
        }
        let peaks: Vec<u64> = runs.iter().flat_map(|run| figures(run, &PEAKS)).collect();
        let speeds: Vec<f64> = runs.iter().filter_map(|run| measured_speed(run, plan.as_ref())).collect();
        let ends = peaks.iter().min().zip(peaks.iter().max());
        let speed = speeds.iter().copied().reduce(f64::min).zip(speeds.iter().copied().reduce(f64::max));
        Entry {
            peak: mean(&peaks),
            peaks: ends.map(|(low, high)| [Bytes(*low), Bytes(*high)]),
            predicted,
            speed: speed.map(|(low, high)| Range { low, high }),
            verdict: self.measured_verdict(mean(&peaks)),
            ..entry
        }
    }

    /// What the runs' own figures say of the card: by the same rules as a prediction's.
    fn measured_verdict(&self, peak: Option<Bytes>) -> VerdictKind {
        let runs = &self.configuration.runs;
        if runs.iter().any(|run| run.failure.is_some()) {
            return VerdictKind::DoesNotFit;
        }
        let (Some(peak), Ok(hardware)) = (peak, self.plan.hardware()) else { return VerdictKind::CannotTell };
        let reserved: Vec<u64> = runs
            .iter()
            .flat_map(|run| figures(run, &[ReadingName::MaxReserved, ReadingName::Reported(Reported::Reserved)]))
            .collect();
        let tier = |peak_bytes| Tier {
            peak_bytes,
            provenance: Provenance { kind: ProvenanceKind::Measured, source: String::new() },
        };
        let tiers = Tiers {
            requested: tier(peak),
            allocated: tier(peak),
            reserved: reserved.iter().max().map(|most| tier(Bytes(*most).max(peak))),
            process: None,
            host: None,
        };
        // What is not known of a recipe does not matter to what was measured.
        let ran =
            Plan { recipe: Recipe::default(), parallel: Parallel::default(), calibration: None, ..self.plan.clone() };
        judge(&tiers, &hardware, &ran).kind
    }

    /// What the card has for tensors, the policy's margin left out.
    fn room(&self) -> Option<Bytes> {
        let hardware = self.plan.hardware().ok()?;
        let margin = share_of(hardware.capacity.as_ref()?.bytes, self.plan.policy_in_force().margin_low);
        Some(usable(&hardware)?.saturating_sub(margin))
    }

    /// Says what the memory that is left would buy: by a larger micro-batch, or by a longer sequence.
    fn grow(&self, entry: &mut Entry, budget: Option<Bytes>, micro_batch: bool) {
        let Some(peak) = entry.peak.filter(|peak| !peak.is_zero() && entry.verdict != VerdictKind::DoesNotFit) else {
            return;
        };
        let Ok(decision) = &self.decision else {
            let Some(room) = budget.or(self.room()) else { return };
            let times = (room.get() / peak.get()).min(MOST_TIMES);
            #[expect(clippy::cast_precision_loss, reason = "at most 1,024")]
            let speed = entry.speed.map(|speed| Range { low: speed.low, high: speed.high * times as f64 });
            let grown = Bytes(peak.get().saturating_mul(times));
            entry.micro_batch = (times > 1).then_some(Grown { from: None, to: times, peak: grown, speed });
            return;
        };
        let recipe = &self.plan.recipe;
        if !recipe.packed.is_empty() {
            return;
        }
        let growing = Growing { entry, decision, budget };
        let from = if micro_batch { recipe.micro_batch } else { recipe.seq_len };
        let most = growing.most(from, |to| {
            let mut plan = self.plan.clone();
            *(if micro_batch { &mut plan.recipe.micro_batch } else { &mut plan.recipe.seq_len }) = to;
            plan
        });
        *(if micro_batch { &mut entry.micro_batch } else { &mut entry.seq_len }) = most;
    }
}

/// A known job that is made larger.
struct Growing<'a> {
    entry: &'a Entry,
    decision: &'a Decision,
    /// What may be allocated, where no card is known.
    budget: Option<Bytes>,
}

impl Growing<'_> {
    /// The most that still fits, to a sixteenth of what it was. `None`: no more does.
    fn most(&self, from: u64, plan: impl Fn(u64) -> Plan) -> Option<Grown> {
        let step = from.div_ceil(16).max(1);
        let most = from.saturating_mul(MOST_TIMES);
        let mut found: Option<Grown> = None;
        let mut too_much: Option<u64> = None;
        loop {
            let fits = found.map_or(from, |grown| grown.to);
            let to = match too_much {
                // By doubling; then by halving what lies between.
                None => fits.saturating_mul(2),
                Some(too_much) if too_much - fits <= step => return found,
                Some(too_much) => fits + ((too_much - fits) / 2 / step).max(1) * step,
            };
            if to > most {
                return found;
            }
            match self.try_out(from, to, &plan(to)) {
                Some(grown) => found = Some(grown),
                None => too_much = Some(to),
            }
        }
    }

    /// The job with so much, where it fits.
    fn try_out(&self, from: u64, to: u64, plan: &Plan) -> Option<Grown> {
        let grown = decide_alone(plan).ok()?;
        let allocated = |decision: &Decision| decision.estimate.tiers.allocated.peak_bytes;
        // What was measured differs from what is predicted by as much as before.
        let measured = self.entry.peak.filter(|_| self.entry.runs > 0);
        let peak = match measured {
            Some(peak) => {
                Bytes(allocated(&grown).get().saturating_add(peak.get())).saturating_sub(allocated(self.decision))
            }
            None => allocated(&grown),
        };
        let fits = match self.budget {
            Some(budget) => peak <= budget,
            None => grown.verdict.kind == VerdictKind::Fits && self.leaves_room(peak, &grown),
        };
        let speed = |decision: &Decision| Some(decision.throughput.as_ref()?.samples_per_second);
        let faster = speed(&grown).zip(speed(self.decision)).map(|(after, before)| likely(after) / likely(before));
        let speed = if self.entry.runs > 0 {
            self.entry.speed.zip(faster).map(|(now, by)| Range { low: now.low * by, high: now.high * by })
        } else {
            speed(&grown)
        };
        fits.then_some(Grown { from: Some(from), to, peak, speed })
    }

    /// Whether a peak that is higher than predicted fits too.
    fn leaves_room(&self, peak: Bytes, grown: &Decision) -> bool {
        let more = peak.saturating_sub(grown.estimate.tiers.allocated.peak_bytes);
        let numbers = &grown.verdict.numbers;
        let room = numbers.usable.zip(numbers.reserved).map(|(usable, reserved)| usable.saturating_sub(reserved));
        more.is_zero() || room.is_some_and(|room| more <= room)
    }
}

/// The first of `names` that was measured, of every run that a reading is the mean of.
fn figures(run: &Measurement, names: &[ReadingName]) -> Vec<u64> {
    let named = |name: &ReadingName| run.readings.iter().find(|one| one.name == *name && one.tier == name.tier());
    let Some(reading) = names.iter().find_map(|name| named(name).filter(|reading| reading.bytes().is_some())) else {
        return Vec::new();
    };
    let one = reading.bytes();
    let all: Vec<i64> = if reading.runs.is_empty() { one.into_iter().collect() } else { reading.runs.clone() };
    all.into_iter().filter_map(|bytes| u64::try_from(bytes).ok()).collect()
}

fn mean(figures: &[u64]) -> Option<Bytes> {
    let sum: u128 = figures.iter().copied().map(u128::from).sum();
    let mean = (sum + figures.len() as u128 / 2).checked_div(figures.len() as u128)?;
    u64::try_from(mean).ok().map(Bytes)
}

/// Samples a second of all ranks that a recording says.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn measured_speed(measurement: &Measurement, plan: Option<&Plan>) -> Option<f64> {
    let run = measurement.run.as_ref()?;
    let of_tokens = || run.tokens_per_step?.checked_div(plan?.recipe.seq_len);
    let ranks = plan.map_or_else(|| u64::from(run.world_size.unwrap_or(1)), |plan| plan.parallel.data_ranks());
    let samples = run.samples_per_step.or_else(of_tokens)?.checked_mul(ranks.max(1))?;
    let per_second = samples as f64 / run.step_seconds?;
    (per_second.is_finite() && per_second > 0.0).then_some(per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::measure::{Figure, Reading, Run};

    const GB: i64 = 1_000_000_000;

    /// Runs of a job that is not known, with their peaks in GB.
    fn measured(name: &str, peaks: &[i64], samples_per_second: f64) -> Configuration {
        let run = |peak: &i64| {
            let name = ReadingName::MaxAllocated;
            let peak = Reading::new(name, name.tier(), Figure::Bytes(peak * GB));
            let step_seconds = Some(32.0 / samples_per_second);
            let run = Run { samples_per_step: Some(32), step_seconds, ..Run::default() };
            Measurement { run: Some(run), ..Measurement::new(vec![peak]) }
        };
        Configuration { name: name.into(), plan: None, runs: peaks.iter().map(run).collect() }
    }

    /// The articles' example (A9): FP32 60 GB at 100 samples a second, AMP 45 at 130, with checkpointing 30 at 90; with the
    /// batch doubled in the memory freed, 180.
    #[test]
    fn freed_memory_buys_the_batch_that_makes_checkpointing_fastest() {
        let all = [
            measured("FP32", &[60, 60, 60], 100.0),
            measured("AMP", &[44, 45, 46], 130.0),
            measured("AMP and checkpointing", &[30, 30, 30], 90.0),
        ];
        let plan = Plan { machine: Machine::default(), ..crate::view::example() };
        let found = side_by_side(&plan, &all);
        assert_eq!(found.budget, Some(Bytes(60_000_000_000)), "the memory that FP32 needs");
        let grown = found.entries[2].micro_batch.unwrap();
        assert_eq!((grown.from, grown.to, grown.peak), (None, 2, Bytes(60_000_000_000)));
        let speed = grown.speed.unwrap();
        assert!((speed.low - 90.0).abs() < 1e-9 && (speed.high - 180.0).abs() < 1e-9, "{speed:?}");
        assert!(found.entries[..2].iter().all(|entry| entry.micro_batch.is_none()));
        assert_eq!(found.entries[1].peak, Some(Bytes(45_000_000_000)));
        assert_eq!(found.entries[1].peaks, Some([Bytes(44_000_000_000), Bytes(46_000_000_000)]));
        assert_eq!(found.fastest, Some(1), "AMP, as it is");
        assert_eq!(found.fastest_grown, Some(2), "checkpointing, its freed memory spent");
        // Measured, the doubled batch is a configuration of its own.
        let doubled = [&all[..], &[measured("doubled", &[60], 180.0)]].concat();
        assert_eq!(side_by_side(&plan, &doubled).fastest, Some(3));
    }

    /// The same ladder predicted: less memory from rung to rung, and the last one has room for a larger micro-batch.
    #[test]
    fn plans_grow_as_far_as_the_walk_says_that_they_fit() {
        use crate::machine::GpuChoice;
        use crate::model::ModelSource;
        use crate::recipe::{Checkpointing, Precision};
        let mut plan = crate::view::example();
        plan.model = ModelSource::Preset("gpt2".into());
        plan.machine = Machine { gpu: Some(GpuChoice::Catalogue("RTX 4090".into())), ..Machine::default() };
        plan.recipe = Recipe { precision: Some(Precision::Fp32), micro_batch: 4, seq_len: 512, ..Recipe::default() };
        let mut all = Vec::new();
        for (name, precision, checkpointing) in [
            ("FP32", Precision::Fp32, Checkpointing::None),
            ("AMP", Precision::AmpBf16, Checkpointing::None),
            ("AMP and checkpointing", Precision::AmpBf16, Checkpointing::Full),
        ] {
            let mut plan = plan.clone();
            plan.recipe.precision = Some(precision);
            plan.recipe.checkpointing = checkpointing;
            all.push(Configuration { name: name.into(), plan: Some(plan), runs: Vec::new() });
        }
        let found = side_by_side(&plan, &all);
        assert_eq!(found.budget, None, "the card is known");
        assert!(found.entries.iter().all(|entry| entry.verdict == VerdictKind::Fits), "{found:?}");
        let peaks: Vec<Bytes> = found.entries.iter().map(|entry| entry.peak.unwrap()).collect();
        assert!(peaks.is_sorted_by(|a, b| a > b), "{peaks:?}");
        let grown: Vec<u64> = found.entries.iter().map(|entry| entry.micro_batch.unwrap().to).collect();
        assert!(grown.is_sorted() && grown[2] > grown[0], "{grown:?}");
        for (entry, configuration) in found.entries.iter().zip(&all) {
            let verdict = |micro_batch| {
                let mut plan = configuration.plan.clone().unwrap();
                plan.recipe.micro_batch = micro_batch;
                decide_alone(&plan).unwrap().verdict.kind
            };
            let to = entry.micro_batch.unwrap().to;
            assert_eq!(verdict(to), VerdictKind::Fits);
            assert_ne!(verdict(to + 1), VerdictKind::Fits, "{}: {to} is not the most", entry.name);
        }
    }

    #[test]
    fn a_run_out_of_memory_does_not_fit_and_buys_nothing() {
        let mut failed = measured("failed", &[20], 10.0);
        failed.runs[0].failure = Some(crate::measure::Failure::new(crate::measure::FailureKind::OutOfMemory));
        let plan = Plan { machine: Machine::default(), ..crate::view::example() };
        let found = side_by_side(&plan, &[measured("whole", &[40], 5.0), failed]);
        assert_eq!((found.entries[1].verdict, found.entries[1].micro_batch), (VerdictKind::DoesNotFit, None));
        assert_eq!(found.fastest, Some(0));
    }
}

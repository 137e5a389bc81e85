//! The outside view of a run: what the driver says of the GPUs and of the processes on them, sampled while the command
//! runs.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;

use vram_budget::measure::{Figure, Gpu, Measurement, Reading, ReadingName, Reported, Scope};

use crate::probe::{Driver, Found, Sample, Vitals};

/// A thread that asks the driver now and then.
pub(super) struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Seen>,
}

/// The highest that was seen, and how often the GPUs did what. A sample takes NVIDIA's driver well under a millisecond; a peak
/// of a few milliseconds is missed, which is what the inside view is for.
#[derive(Debug, Default)]
pub(super) struct Seen {
    found: Found,
    /// Why nothing was seen, or why not to the end.
    failed: Option<String>,
    /// By GPU.
    used: BTreeMap<u32, u64>,
    /// By process: its GPU and what it holds; `None`: the driver does not say.
    processes: BTreeMap<u32, (u32, Option<u64>)>,
    /// By GPU: while nobody was seen on it, and while somebody was.
    looks: BTreeMap<u32, [Looks; 2]>,
    /// By GPU: errors of its memory, by name, first and last.
    errors: BTreeMap<u32, BTreeMap<String, [i64; 2]>>,
    /// By GPU: why it does not answer any more.
    lost: BTreeMap<u32, String>,
}

/// How often a GPU did what: no series, so that a long run's document is no longer than a short one's.
#[derive(Debug, Default)]
struct Looks {
    count: i64,
    /// By figure: how often it had which value.
    figures: BTreeMap<String, BTreeMap<i64, u64>>,
    /// By reason: how often.
    throttled: BTreeMap<String, i64>,
}

impl Looks {
    fn take(&mut self, vitals: Vitals) {
        self.count += 1;
        for (name, figure) in vitals.figures {
            *self.figures.entry(name).or_default().entry(figure).or_default() += 1;
        }
        for reason in vitals.throttled {
            *self.throttled.entry(reason).or_default() += 1;
        }
    }

    /// The median of each figure, with the lowest and the highest beside it, and the share of looks at which clocks were held down.
    fn add_to(&self, gpu: &mut Gpu) {
        for (name, values) in &self.figures {
            let (Some((lowest, _)), Some((highest, _))) = (values.first_key_value(), values.last_key_value()) else {
                continue;
            };
            let half = values.values().sum::<u64>() / 2;
            let median = values.iter().scan(0, |seen, (value, times)| {
                *seen += times;
                Some((*value, *seen))
            });
            let median = median.skip_while(|(_, seen)| *seen <= half).map(|(value, _)| value).next();
            gpu.unavailable.remove(name);
            gpu.figures.insert(format!("{name}_lowest"), *lowest);
            gpu.figures.insert(format!("{name}_highest"), *highest);
            gpu.figures.insert(name.clone(), median.unwrap_or(*highest));
        }
        gpu.throttled =
            self.throttled.iter().map(|(reason, times)| (reason.clone(), times * 100 / self.count)).collect();
    }
}

impl Sampler {
    /// Starts to sample. `None`: no thread can be had.
    pub(super) fn start(driver: Box<dyn Driver + Send>) -> Option<Self> {
        let (stop, stopped) = mpsc::channel();
        let sample = move || {
            let mut seen = Seen::default();
            match driver.probe() {
                Ok(found) => seen.found = found,
                Err(tried) => {
                    // NVIDIA's library as it is called on Linux, and the last of AMD's tools.
                    let mut why: Vec<String> = tried.first().into_iter().chain(tried.last()).cloned().collect();
                    why.dedup();
                    seen.failed = Some(format!("no GPU's driver answers: {}", why.join("; ")));
                    return seen;
                }
            }
            // Errors are counted at both ends.
            let mut errors = true;
            loop {
                seen.take(&*driver, errors);
                if seen.failed.is_some() {
                    return seen;
                }
                errors = false;
                if !matches!(stopped.recv_timeout(driver.pause()), Err(RecvTimeoutError::Timeout)) {
                    seen.take(&*driver, true);
                    return seen;
                }
            }
        };
        let thread = std::thread::Builder::new().name("driver".into()).spawn(sample).ok()?;
        Some(Self { stop, thread })
    }

    /// Everything that was seen.
    pub(super) fn stop(self) -> Seen {
        let _ = self.stop.send(());
        let failed = || Seen { failed: Some("the sampling failed".into()), ..Seen::default() };
        self.thread.join().unwrap_or_else(|_| failed())
    }
}

impl Seen {
    fn take(&mut self, driver: &dyn Driver, errors: bool) {
        let samples = match driver.sample(errors) {
            Ok(samples) => samples,
            Err(error) => {
                self.failed = Some(format!("the driver stopped to answer: {error}"));
                return;
            }
        };
        for sample in samples {
            self.take_one(sample);
        }
    }

    fn take_one(&mut self, mut sample: Sample) {
        if let Some(why) = sample.lost {
            self.lost.entry(sample.gpu).or_insert(why);
            return;
        }
        if let Some(used) = sample.used {
            let most = self.used.entry(sample.gpu).or_default();
            *most = used.max(*most);
        }
        let held = usize::from(!sample.processes.is_empty());
        for (pid, bytes) in sample.processes {
            let most = self.processes.entry(pid).or_insert((sample.gpu, None));
            *most = (sample.gpu, bytes.max(most.1));
        }
        let counts = self.errors.entry(sample.gpu).or_default();
        sample.vitals.figures.retain(|name, count| {
            let errors = name.starts_with("ecc_");
            if errors {
                counts.entry(name.clone()).or_insert([*count; 2])[1] = *count;
            }
            !errors
        });
        self.looks.entry(sample.gpu).or_default()[held].take(sample.vitals);
    }

    /// What the GPU did, as the document has it.
    fn add_to_gpu(&self, gpu: &mut Gpu) {
        // Where the driver lists no process, every look counts.
        if let Some(looks) = self.looks.get(&gpu.index).and_then(|of| of.iter().rev().find(|looks| looks.count > 0)) {
            looks.add_to(gpu);
        }
        for (name, [first, last]) in self.errors.get(&gpu.index).into_iter().flatten() {
            gpu.figures.insert(name.clone(), *last);
            // Counts of all time are of no run.
            if !name.ends_with("_lifetime") && last >= first {
                gpu.figures.insert(format!("{name}_in_run"), last - first);
            }
        }
    }

    /// Puts what was seen of the process `pid` beside what it saw of itself.
    pub(super) fn add_to(&self, measurement: &mut Measurement, pid: Option<u32>) {
        let environment = measurement.environment.get_or_insert_default();
        environment.driver.clone_from(&self.found.driver);
        environment.cuda.clone_from(&self.found.cuda);
        if !self.found.gpus.is_empty() {
            measurement.gpus.clone_from(&self.found.gpus);
            measurement.gpus.iter_mut().for_each(|gpu| self.add_to_gpu(gpu));
        }
        let of = pid.and_then(|pid| self.processes.get(&pid));
        let unseen = || {
            let why = self.failed.clone();
            why.unwrap_or_else(|| "the driver does not list the process: it ran in a container, or under WSL".into())
        };
        let held = match of {
            Some((_, Some(bytes))) => Ok(*bytes),
            Some((_, None)) => Err("the driver does not say what a process holds".into()),
            None => Err(unseen()),
        };
        let mut add = |reported: Reported, scope: Scope, bytes: Result<u64, String>| {
            let figure = bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
            let figure = figure.map_or_else(Figure::Unavailable, Figure::Bytes);
            let reading = Reading::new(ReadingName::Reported(reported), reported.tier(), figure);
            measurement.readings.push(Reading { scope, ..reading });
        };
        add(Reported::Process, Scope::Process, held);
        // Of which GPU, only the process's place tells, or that there is but one.
        let gpu = of.map(|(gpu, _)| *gpu).or_else(|| self.used.keys().next().copied().filter(|_| self.used.len() == 1));
        if let Some(used) = gpu.and_then(|gpu| self.used.get(&gpu)) {
            add(Reported::Used, Scope::Device, Ok(*used));
        }
        let failed = self.failed.iter().filter(|_| !self.used.is_empty()).cloned();
        let lost = self.lost.iter().map(|(gpu, why)| format!("GPU {gpu} stopped to answer: {why}"));
        let notes: Vec<String> = failed.chain(lost).collect();
        if !notes.is_empty() {
            measurement.run.get_or_insert_default().notes.extend(notes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    /// Answers by a script, one line a sample; then as the last line says.
    struct Scripted(Mutex<Vec<Result<Vec<Sample>, String>>>);

    impl Driver for Scripted {
        fn probe(&self) -> Result<Found, Vec<String>> {
            Ok(Found { driver: Some("580.1".into()), gpus: vec![Gpu::default()], ..Found::default() })
        }
        fn sample(&self, _: bool) -> Result<Vec<Sample>, String> {
            let mut script = self.0.lock().unwrap();
            if script.len() > 1 { script.remove(0) } else { script[0].clone() }
        }
    }

    fn sample(gpu: u32, used: u64, processes: &[(u32, Option<u64>)]) -> Sample {
        Sample { gpu, used: Some(used), processes: processes.to_vec(), ..Sample::default() }
    }

    fn seen(script: Vec<Result<Vec<Sample>, String>>) -> Seen {
        let (driver, mut seen) = (Scripted(Mutex::new(script.clone())), Seen::default());
        for _ in script {
            seen.take(&driver, true);
        }
        seen
    }

    fn readings(seen: &Seen, pid: u32) -> Vec<(String, Result<i64, String>)> {
        let mut document = Measurement::new(Vec::new());
        seen.add_to(&mut document, Some(pid));
        let of = |r: &Reading| match &r.figure {
            Figure::Bytes(bytes) => Ok(*bytes),
            Figure::Unavailable(why) => Err(why.clone()),
        };
        document.readings.iter().map(|r| (r.name.to_string(), of(r))).collect()
    }

    #[test]
    fn the_highest_of_each_process_and_of_its_gpu_count() {
        let seen = seen(vec![
            Ok(vec![sample(0, 900, &[(7, Some(500))]), sample(1, 100, &[(8, Some(60))])]),
            Ok(vec![sample(0, 700, &[(7, Some(600))]), sample(1, 300, &[(8, None)])]),
        ]);
        assert_eq!(readings(&seen, 7), [("process".into(), Ok(600)), ("used".into(), Ok(900))]);
        assert_eq!(readings(&seen, 8), [("process".into(), Ok(60)), ("used".into(), Ok(300))]);
        let on_neither = readings(&seen, 9);
        assert!(on_neither.len() == 1 && on_neither[0].1.as_ref().unwrap_err().contains("container"), "{on_neither:?}");
    }

    #[test]
    fn a_gpu_that_is_lost_ends_the_sampling_and_not_what_was_seen() {
        let seen = seen(vec![Ok(vec![sample(0, 900, &[(7, Some(500))])]), Err("GPU is lost".into())]);
        let mut document = Measurement::new(Vec::new());
        seen.add_to(&mut document, Some(7));
        assert_eq!(document.bytes(ReadingName::Reported(Reported::Process)), Some(500));
        assert!(document.run.unwrap().notes[0].contains("GPU is lost"));
    }

    #[test]
    fn what_the_driver_does_not_say_is_absent_with_a_reason() {
        let seen = seen(vec![Ok(vec![sample(0, 900, &[(7, None)])])]);
        assert_eq!(readings(&seen, 7)[0].1, Err("the driver does not say what a process holds".into()));
    }

    #[test]
    fn what_a_gpu_did_is_a_median_with_its_bounds_while_somebody_was_on_it() {
        let look = |busy: i64, mhz: i64, errors: i64, throttled: &[&str], pids: &[(u32, Option<u64>)]| {
            let figures = [("gpu_busy_percent", busy), ("sm_clock_mhz", mhz), ("ecc_corrected", errors)];
            let vitals = Vitals {
                figures: figures.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect(),
                throttled: throttled.iter().map(|reason| (*reason).to_owned()).collect(),
                ..Vitals::default()
            };
            Ok(vec![Sample { vitals, ..sample(0, 1, pids) }])
        };
        let on = [(7, Some(1))];
        let mut seen = seen(vec![
            look(0, 210, 5, &[], &[]),
            look(90, 1410, 5, &[], &on),
            look(100, 1380, 5, &["sw_power_cap"], &on),
            look(97, 1410, 6, &[], &on),
            look(20, 1410, 6, &[], &on),
            look(0, 210, 7, &[], &[]),
        ]);
        seen.found.gpus =
            vec![Gpu { unavailable: [("gpu_busy_percent".into(), "not yet".into())].into(), ..Gpu::default() }];
        let mut document = Measurement::new(Vec::new());
        seen.add_to(&mut document, Some(7));
        let gpu = &document.gpus[0];
        let of = |name: &str| ["", "_lowest", "_highest"].map(|end| gpu.figures[&format!("{name}{end}")]);
        assert_eq!(of("gpu_busy_percent"), [97, 20, 100]);
        assert_eq!(of("sm_clock_mhz"), [1410, 1380, 1410]);
        assert_eq!((gpu.figures["ecc_corrected"], gpu.figures["ecc_corrected_in_run"]), (7, 2));
        assert_eq!(gpu.throttled, [("sw_power_cap".to_owned(), 25)].into());
        assert!(gpu.unavailable.is_empty());
    }

    #[test]
    fn one_gpu_that_is_lost_does_not_hide_the_others() {
        let lost = Sample { gpu: 1, lost: Some("GPU is lost".into()), ..Sample::default() };
        let seen = seen(vec![Ok(vec![sample(0, 900, &[(7, Some(500))]), lost]), Ok(vec![sample(0, 950, &[])])]);
        let mut document = Measurement::new(Vec::new());
        seen.add_to(&mut document, Some(7));
        assert_eq!(document.bytes(ReadingName::Reported(Reported::Used)), Some(950));
        assert_eq!(document.run.unwrap().notes, ["GPU 1 stopped to answer: GPU is lost"]);
    }

    #[test]
    fn a_sampler_stops_at_once() {
        let driver = Scripted(Mutex::new(vec![Ok(vec![sample(0, 1, &[])])]));
        let begun = std::time::Instant::now();
        let seen = Sampler::start(Box::new(driver)).unwrap().stop();
        assert_eq!(seen.used[&0], 1);
        assert!(begun.elapsed() < Duration::from_secs(4));
    }
}

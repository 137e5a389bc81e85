//! The outside view of a run: what the driver says of the GPUs and of the processes on them, sampled while the command
//! runs.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use vram_budget::measure::{Figure, Measurement, Reading, ReadingName, Reported, Scope};

use crate::probe::{Driver, Found};

/// Between two samples. A sample takes the driver well under a millisecond; a peak of a few milliseconds is missed, which is
/// what the inside view is for.
const EVERY: Duration = Duration::from_millis(200);

/// A thread that asks the driver now and then.
pub(super) struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Seen>,
}

/// The highest that was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    found: Found,
    /// Why nothing was seen, or why not to the end.
    failed: Option<String>,
    /// By GPU.
    used: BTreeMap<u32, u64>,
    /// By process: its GPU and what it holds; `None`: the driver does not say.
    processes: BTreeMap<u32, (u32, Option<u64>)>,
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
                    let why = tried.into_iter().next().unwrap_or_default();
                    seen.failed = Some(format!("no NVIDIA driver answers: {why}"));
                    return seen;
                }
            }
            loop {
                seen.take(&*driver);
                match stopped.recv_timeout(EVERY) {
                    Err(RecvTimeoutError::Timeout) if seen.failed.is_none() => {}
                    _ => return seen,
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
    fn take(&mut self, driver: &dyn Driver) {
        let samples = match driver.sample() {
            Ok(samples) => samples,
            Err(error) => {
                self.failed = Some(format!("the driver stopped to answer: {error}"));
                return;
            }
        };
        for sample in samples {
            if let Some(used) = sample.used {
                let most = self.used.entry(sample.gpu).or_default();
                *most = used.max(*most);
            }
            for (pid, bytes) in sample.processes {
                let most = self.processes.entry(pid).or_insert((sample.gpu, None));
                *most = (sample.gpu, bytes.max(most.1));
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
        if let (Some(why), false) = (&self.failed, self.used.is_empty()) {
            measurement.run.get_or_insert_default().notes.push(why.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::probe::Sample;

    /// Answers by a script, one line a sample; then as the last line says.
    struct Scripted(Mutex<Vec<Result<Vec<Sample>, String>>>);

    impl Driver for Scripted {
        fn probe(&self) -> Result<Found, Vec<String>> {
            Ok(Found { driver: Some("580.1".into()), ..Found::default() })
        }
        fn sample(&self) -> Result<Vec<Sample>, String> {
            let mut script = self.0.lock().unwrap();
            if script.len() > 1 { script.remove(0) } else { script[0].clone() }
        }
    }

    fn sample(gpu: u32, used: u64, processes: &[(u32, Option<u64>)]) -> Sample {
        Sample { gpu, used: Some(used), processes: processes.to_vec() }
    }

    fn seen(script: Vec<Result<Vec<Sample>, String>>) -> Seen {
        let (driver, mut seen) = (Scripted(Mutex::new(script.clone())), Seen::default());
        for _ in script {
            seen.take(&driver);
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
    fn a_sampler_stops_at_once() {
        let driver = Scripted(Mutex::new(vec![Ok(vec![sample(0, 1, &[])])]));
        let begun = std::time::Instant::now();
        let seen = Sampler::start(Box::new(driver)).unwrap().stop();
        assert_eq!(seen.used[&0], 1);
        assert!(begun.elapsed() < EVERY * 20);
    }
}

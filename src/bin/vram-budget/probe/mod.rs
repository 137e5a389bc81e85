//! `vram-budget probe`: this machine's GPUs as a measurement document.

mod amd;
mod nvml;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use vram_budget::measure::{Environment, Gpu, Measurement, Producer};

use crate::exit;

/// No options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Where GPUs are found. The real ones ask a driver; tests make one up.
pub(crate) trait Driver {
    /// The machine's GPUs, or what was tried in vain, one line each.
    fn probe(&self) -> Result<Found, Vec<String>>;
    /// What each GPU and the processes on it hold and do now, or why that is not known of any of them. `errors`: the counts of
    /// memory errors too, which take a driver longer.
    fn sample(&self, errors: bool) -> Result<Vec<Sample>, String>;
    /// How long to wait between two samples, so that asking costs the machine nothing to speak of.
    fn pause(&self) -> Duration {
        Duration::from_millis(200)
    }
}

/// This machine's: NVIDIA's driver where it answers, else AMD's tools.
pub(crate) struct Here {
    drivers: [Box<dyn Driver + Send>; 2],
    answers: OnceLock<usize>,
}

impl Default for Here {
    fn default() -> Self {
        Self { drivers: [Box::new(nvml::Nvml::default()), Box::new(amd::Amd::default())], answers: OnceLock::new() }
    }
}

impl Driver for Here {
    fn probe(&self) -> Result<Found, Vec<String>> {
        let mut tried = Vec::new();
        for (at, driver) in self.drivers.iter().enumerate() {
            match driver.probe() {
                Ok(found) if found.gpus.is_empty() => tried.push("a driver answers and has no GPU".into()),
                Ok(found) => {
                    let _ = self.answers.set(at);
                    return Ok(found);
                }
                Err(lines) => tried.extend(lines),
            }
        }
        Err(tried)
    }

    fn sample(&self, errors: bool) -> Result<Vec<Sample>, String> {
        let at = self.answers.get().ok_or("no driver answers")?;
        self.drivers[*at].sample(errors)
    }

    fn pause(&self) -> Duration {
        self.drivers[self.answers.get().copied().unwrap_or(0)].pause()
    }
}

/// What a driver says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) driver: Option<String>,
    pub(crate) cuda: Option<String>,
    pub(crate) gpus: Vec<Gpu>,
}

/// One GPU at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Its index.
    pub(crate) gpu: u32,
    /// In use on it, in bytes, whoever holds it.
    pub(crate) used: Option<u64>,
    /// Processes, and what each holds in bytes, where the driver says so.
    pub(crate) processes: Vec<(u32, Option<u64>)>,
    /// What it does.
    pub(crate) vitals: Vitals,
    /// Why it does not answer at all.
    pub(crate) lost: Option<String>,
}

/// How busy a GPU is, how fast its clocks run and what holds them down, what went wrong in its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vitals {
    /// By the names of [`vram_budget::measure::Gpu::figures`].
    pub(crate) figures: BTreeMap<String, i64>,
    /// What holds the clocks down, by the driver's names.
    pub(crate) throttled: Vec<String>,
    /// Why a figure is absent.
    pub(crate) unavailable: BTreeMap<String, String>,
}

/// Its clocks, as figures are called.
const CLOCKS: [&str; 2] = ["sm_clock_mhz", "memory_clock_mhz"];
/// The most that its clocks can be.
const MOST_CLOCKS: [&str; 2] = ["sm_clock_max_mhz", "memory_clock_max_mhz"];
/// The share of time in which a kernel ran, and in which memory was read or written.
const BUSY: [&str; 2] = ["gpu_busy_percent", "memory_busy_percent"];
/// Errors of its memory since the driver was loaded.
pub(crate) const ERRORS: [&str; 2] = ["ecc_corrected", "ecc_uncorrected"];

impl Vitals {
    /// Notes the figure, or the reason why it is absent.
    fn set<E: ToString>(&mut self, name: &str, figure: Result<i64, E>) {
        match figure {
            Ok(figure) => drop(self.figures.insert(name.to_owned(), figure)),
            Err(reason) => drop(self.unavailable.insert(name.to_owned(), reason.to_string())),
        }
    }

    /// Puts them into the document's GPU.
    fn add_to(self, gpu: &mut Gpu) {
        gpu.figures.extend(self.figures);
        gpu.throttled.extend(self.throttled.into_iter().map(|reason| (reason, 100)));
        gpu.unavailable.extend(self.unavailable);
    }
}

pub(crate) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    probe(&Here::default(), &mut io::stdout().lock(), &mut io::stderr().lock())
}

fn probe(driver: &dyn Driver, out: &mut dyn Write, talk: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let found = match driver.probe() {
        Ok(found) if !found.gpus.is_empty() => found,
        Ok(_) => return no_gpu(talk, &["the driver answers and has no GPU".into()]),
        Err(tried) => return no_gpu(talk, &tried),
    };
    let mut document = Measurement::new(Vec::new());
    document.producer =
        Some(Producer { name: "vram-budget probe".into(), version: Some(env!("CARGO_PKG_VERSION").into()) });
    document.environment = Some(Environment { driver: found.driver, cuda: found.cuda, ..Environment::default() });
    document.gpus = found.gpus;
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn no_gpu(talk: &mut dyn Write, tried: &[String]) -> anyhow::Result<ExitCode> {
    writeln!(talk, "error: no GPU of NVIDIA or AMD found on this machine")?;
    for line in tried {
        writeln!(talk, "  tried: {line}")?;
    }
    writeln!(talk, "help: is the driver installed, and does `nvidia-smi` or `amd-smi` run here?")?;
    Ok(ExitCode::from(exit::NO_GPU))
}

#[cfg(test)]
mod tests {
    use vram_budget::measure::{Imported, import};
    use vram_budget::units::Bytes;

    use super::*;

    struct Fake(Result<Vec<Gpu>, Vec<String>>);

    impl Driver for Fake {
        fn probe(&self) -> Result<Found, Vec<String>> {
            let gpus = self.0.clone()?;
            Ok(Found { driver: Some("580.1".into()), cuda: Some("13.0".into()), gpus })
        }
        fn sample(&self, _: bool) -> Result<Vec<Sample>, String> {
            Ok(Vec::new())
        }
    }

    fn probed(fake: &Fake) -> (ExitCode, String, String) {
        let (mut out, mut talk) = (Vec::new(), Vec::new());
        let code = probe(fake, &mut out, &mut talk).unwrap();
        (code, String::from_utf8(out).unwrap(), String::from_utf8(talk).unwrap())
    }

    #[test]
    fn gpus_become_a_document_that_reads_back() {
        let gpu = Gpu {
            index: 0,
            name: Some("NVIDIA GeForce RTX 4090".into()),
            total_bytes: Some(Bytes::mib(24_564)),
            unavailable: [("used_bytes".into(), "not supported".into())].into(),
            ..Gpu::default()
        };
        let (code, out, talk) = probed(&Fake(Ok(vec![gpu.clone()])));
        assert_eq!((format!("{code:?}"), talk), (format!("{:?}", ExitCode::SUCCESS), String::new()));
        let Imported::Measurement { measurement, .. } = import(&out).unwrap() else { panic!() };
        assert_eq!(measurement.gpus, [gpu]);
        assert_eq!(measurement.environment.unwrap().driver.unwrap(), "580.1");
        assert!(!out.contains(": 0\n"), "what is not available is absent, not zero:\n{out}");
    }

    #[test]
    fn the_first_driver_that_has_a_gpu_is_asked_from_then_on() {
        let gpu = Gpu { name: Some("Instinct MI300X".into()), ..Gpu::default() };
        let of =
            |first: Fake, second: Fake| Here { drivers: [Box::new(first), Box::new(second)], answers: OnceLock::new() };
        let without = of(Fake(Err(vec!["no libnvidia-ml.so.1".into()])), Fake(Ok(Vec::new())));
        assert_eq!(without.probe().unwrap_err(), ["no libnvidia-ml.so.1", "a driver answers and has no GPU"]);
        assert!(without.sample(true).is_err());
        let here = of(Fake(Err(vec!["no libnvidia-ml.so.1".into()])), Fake(Ok(vec![gpu])));
        assert_eq!(here.probe().unwrap().gpus.len(), 1);
        assert!(here.sample(true).is_ok());
    }

    #[test]
    fn without_a_driver_it_says_what_was_tried() {
        for (fake, said) in [
            (Fake(Err(vec!["libnvidia-ml.so.1: not found".into()])), "tried: libnvidia-ml.so.1: not found"),
            (Fake(Ok(Vec::new())), "has no GPU"),
        ] {
            let (code, out, talk) = probed(&fake);
            assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(3)));
            assert_eq!(out, "");
            assert!(talk.contains(said), "{talk}");
        }
    }
}

//! `vram-budget probe`: this machine's GPUs as a measurement document.

mod nvml;

pub(crate) use nvml::Nvml;

use std::io::{self, Write};
use std::process::ExitCode;

use vram_budget::measure::{Environment, Gpu, Measurement, Producer};

use crate::exit;

/// No options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Where GPUs are found. The real one asks the driver; tests make one up.
pub(crate) trait Driver {
    /// The machine's GPUs, or what was tried in vain, one line each.
    fn probe(&self) -> Result<Found, Vec<String>>;
    /// What each GPU and the processes on it hold now, or why that is not known any more.
    fn sample(&self) -> Result<Vec<Sample>, String>;
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
}

pub(crate) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    probe(&Nvml::default(), &mut io::stdout().lock(), &mut io::stderr().lock())
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
    writeln!(talk, "error: no NVIDIA GPU found on this machine")?;
    for line in tried {
        writeln!(talk, "  tried: {line}")?;
    }
    writeln!(talk, "help: is the NVIDIA driver installed, and does `nvidia-smi` run here?")?;
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
        fn sample(&self) -> Result<Vec<Sample>, String> {
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

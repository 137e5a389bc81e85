//! The driver's own management library, NVML.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::OnceLock;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml as Library};
use vram_budget::measure::Gpu;
use vram_budget::units::Bytes;

use super::{BUSY, CLOCKS, Driver, ERRORS, Found, MOST_CLOCKS, Sample, Vitals};

/// NVML, found where drivers put it, and loaded once.
#[derive(Default)]
pub(crate) struct Nvml(OnceLock<Result<Library, Vec<String>>>);

/// The library's names: the one that a driver installs, the one that a toolkit links, WSL's, Windows'.
const PATHS: [&str; 4] = ["libnvidia-ml.so.1", "libnvidia-ml.so", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "nvml.dll"];

impl Nvml {
    fn library(&self) -> Result<&Library, Vec<String>> {
        self.0.get_or_init(load).as_ref().map_err(Clone::clone)
    }
}

fn load() -> Result<Library, Vec<String>> {
    let mut tried = Vec::new();
    let library = PATHS.iter().find_map(|path| match Library::builder().lib_path(OsStr::new(path)).init() {
        Ok(library) => Some(library),
        Err(error) => {
            // The loader's own message names the path.
            tried.push(match error {
                NvmlError::LibloadingError(error) => error.to_string(),
                error => format!("{path}: {error}"),
            });
            None
        }
    });
    library.ok_or(tried)
}

impl Driver for Nvml {
    fn probe(&self) -> Result<Found, Vec<String>> {
        let library = self.library()?;
        let count = library.device_count().map_err(|error| vec![format!("counting the GPUs: {error}")])?;
        Ok(Found {
            driver: library.sys_driver_version().ok(),
            // 13020 is 13.2.
            cuda: library.sys_cuda_driver_version().ok().map(|v| format!("{}.{}", v / 1000, v % 1000 / 10)),
            gpus: (0..count).map(|index| gpu(library, index)).collect(),
        })
    }

    fn sample(&self, errors: bool) -> Result<Vec<Sample>, String> {
        let library = self.library().map_err(|tried| tried.join("; "))?;
        let count = library.device_count().map_err(|error| error.to_string())?;
        let samples: Vec<Sample> = (0..count)
            .map(|gpu| {
                sample(library, gpu, errors).unwrap_or_else(|error| Sample {
                    gpu,
                    lost: Some(error.to_string()),
                    ..Sample::default()
                })
            })
            .collect();
        match samples.iter().find_map(|sample| sample.lost.clone()) {
            Some(why) if samples.iter().all(|sample| sample.lost.is_some()) => Err(why),
            _ => Ok(samples),
        }
    }
}

/// What is in use on one GPU, and by whom. A GPU without such figures has none; one that is lost is an error.
fn sample(library: &Library, index: u32, errors: bool) -> Result<Sample, NvmlError> {
    let device = library.device_by_index(index)?;
    let used = match device.memory_info() {
        Ok(memory) => Some(memory.used),
        Err(error @ (NvmlError::GpuLost | NvmlError::DriverNotLoaded)) => return Err(error),
        Err(_) => None,
    };
    let mut vitals = vitals(&device, errors);
    let processes = told(&mut vitals.unavailable, &["processes"], device.running_compute_processes());
    let held = |memory: UsedGpuMemory| match memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let processes = processes.into_iter().flatten().map(|p| (p.pid, held(p.used_gpu_memory))).collect();
    Ok(Sample { gpu: index, used, processes, vitals, lost: None })
}

/// What it does.
fn vitals(device: &Device<'_>, errors: bool) -> Vitals {
    let mut vitals = Vitals::default();
    let busy = told(&mut vitals.unavailable, &BUSY, device.utilization_rates());
    if let Some(busy) = busy {
        vitals.figures.extend([(BUSY[0].to_owned(), busy.gpu.into()), (BUSY[1].to_owned(), busy.memory.into())]);
    }
    for (name, clock) in CLOCKS.into_iter().zip([Clock::SM, Clock::Memory]) {
        vitals.set(name, device.clock_info(clock).map(i64::from));
    }
    let held_down = told(&mut vitals.unavailable, &["throttled"], device.current_throttle_reasons());
    // An idle GPU's clocks are low because nothing asks for more.
    let held_down = held_down.unwrap_or(ThrottleReasons::NONE) - ThrottleReasons::GPU_IDLE;
    vitals.throttled = held_down.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect();
    if errors {
        for (name, kind) in ERRORS.into_iter().zip([MemoryError::Corrected, MemoryError::Uncorrected]) {
            for (name, since) in
                [(name.to_owned(), EccCounter::Volatile), (format!("{name}_lifetime"), EccCounter::Aggregate)]
            {
                let count = device.total_ecc_errors(kind, since);
                vitals.set(&name, count.map(|count| i64::try_from(count).unwrap_or(i64::MAX)));
            }
        }
    }
    vitals
}

/// One GPU; what the driver does not say is absent, with the reason.
fn gpu(library: &Library, index: u32) -> Gpu {
    let mut unavailable = BTreeMap::new();
    let device = match library.device_by_index(index) {
        Ok(device) => device,
        Err(error) => {
            unavailable.insert("name".to_owned(), error.to_string());
            return Gpu { index, unavailable, ..Gpu::default() };
        }
    };
    let mut gpu = described(&device, index, unavailable);
    gpu.ecc = told(&mut gpu.unavailable, &["ecc"], device.is_ecc_enabled()).map(|mode| mode.currently_enabled);
    let mut vitals = vitals(&device, true);
    for (name, clock) in MOST_CLOCKS.into_iter().zip([Clock::SM, Clock::Memory]) {
        vitals.set(name, device.max_clock_info(clock).map(i64::from));
    }
    vitals.add_to(&mut gpu);
    let mig = told(&mut gpu.unavailable, &["mig"], device.mig_mode());
    gpu.mig = mig.map(|mode| mode.current != 0);
    if gpu.mig == Some(true) {
        let most = told(&mut gpu.unavailable, &["slices"], device.mig_device_count()).unwrap_or(0);
        // Indices without an instance are no error.
        gpu.slices =
            (0..most).filter_map(|index| Some(slice(&device.mig_device_by_index(index).ok()?, index))).collect();
    }
    gpu
}

/// An instance of MIG: what it is called and has.
fn slice(device: &Device<'_>, index: u32) -> Gpu {
    let mut gpu = described(device, index, BTreeMap::new());
    let names = ["multiprocessors", "gpu_instance_slices", "compute_instance_slices"];
    if let Some(has) = told(&mut gpu.unavailable, &names, device.attributes()) {
        let counts = [has.multiprocessor_count, has.gpu_instance_slice_count, has.compute_instance_slice_count];
        gpu.figures = names.into_iter().map(str::to_owned).zip(counts.map(i64::from)).collect();
    }
    gpu
}

/// Its name and memory.
fn described(device: &Device<'_>, index: u32, mut unavailable: BTreeMap<String, String>) -> Gpu {
    let memory =
        told(&mut unavailable, &["total_bytes", "reserved_bytes", "used_bytes", "free_bytes"], device.memory_info());
    let capability = told(&mut unavailable, &["compute_capability"], device.cuda_compute_capability());
    Gpu {
        index,
        name: told(&mut unavailable, &["name"], device.name()),
        compute_capability: capability.map(|c| format!("{}.{}", c.major, c.minor)),
        total_bytes: memory.as_ref().map(|m| Bytes(m.total)),
        reserved_bytes: memory.as_ref().map(|m| Bytes(m.reserved)),
        used_bytes: memory.as_ref().map(|m| Bytes(m.used)),
        free_bytes: memory.as_ref().map(|m| Bytes(m.free)),
        unavailable,
        ..Gpu::default()
    }
}

/// The answer, or `None` with the reason noted for each of the fields that depend on it.
fn told<T>(unavailable: &mut BTreeMap<String, String>, fields: &[&str], answer: Result<T, NvmlError>) -> Option<T> {
    answer
        .map_err(|error| {
            unavailable.extend(fields.iter().map(|field| ((*field).to_owned(), error.to_string())));
        })
        .ok()
}

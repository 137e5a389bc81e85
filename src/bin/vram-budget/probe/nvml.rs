//! The driver's own management library, NVML.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::OnceLock;

use nvml_wrapper::Nvml as Library;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use vram_budget::measure::Gpu;
use vram_budget::units::Bytes;

use super::{Driver, Found, Sample};

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

    fn sample(&self) -> Result<Vec<Sample>, String> {
        let library = self.library().map_err(|tried| tried.join("; "))?;
        let count = library.device_count().map_err(|error| error.to_string())?;
        (0..count).map(|index| sample(library, index).map_err(|error| error.to_string())).collect()
    }
}

/// What is in use on one GPU, and by whom. A GPU without such figures has none; one that is lost is an error.
fn sample(library: &Library, index: u32) -> Result<Sample, NvmlError> {
    let device = library.device_by_index(index)?;
    let used = match device.memory_info() {
        Ok(memory) => Some(memory.used),
        Err(error @ (NvmlError::GpuLost | NvmlError::DriverNotLoaded)) => return Err(error),
        Err(_) => None,
    };
    let processes = device.running_compute_processes().unwrap_or_default();
    let held = |memory: UsedGpuMemory| match memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let processes = processes.into_iter().map(|p| (p.pid, held(p.used_gpu_memory))).collect();
    Ok(Sample { gpu: index, used, processes })
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
        mig: told(&mut unavailable, &["mig"], device.mig_mode()).map(|mode| mode.current != 0),
        unavailable,
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

//! A plan's machine with the catalogue's facts filled in.

use core::fmt;

use crate::bill::{Provenance, ProvenanceKind};
use crate::issue::{Issue, IssueKind};
use crate::machine::{GpuChoice, Machine, Peaks, catalogue};
use crate::units::{Bytes, MAX_DOCUMENT_BYTES};

/// A quantity and how it is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Sourced {
    /// The quantity.
    pub bytes: Bytes,
    /// How it is known.
    pub provenance: Provenance,
}

/// CUDA compute capability, major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability(pub u8, pub u8);

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl core::str::FromStr for Capability {
    type Err = String;

    /// `8.9`.
    fn from_str(text: &str) -> Result<Self, String> {
        text.trim()
            .split_once('.')
            .and_then(|(major, minor)| Some(Self(major.parse().ok()?, minor.parse().ok()?)))
            .ok_or_else(|| "a compute capability, such as 8.9".into())
    }
}

/// What is known about the GPU that a plan names.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// The GPU's name; `None` when the plan names none.
    pub name: Option<String>,
    /// The generation. `None`: not known.
    pub arch: Option<String>,
    /// `None`: not a CUDA device, or not known.
    pub capability: Option<Capability>,
    /// Whether it computes in BF16. `None`: not known.
    pub bf16: Option<bool>,
    /// What one process could use at most, were it alone. `None`: not known.
    pub capacity: Option<Sourced>,
    /// The process's context. `None`: not known, as on hardware that does not run CUDA.
    pub context: Option<Sourced>,
    /// What the process's communicators take. `None`: it has none, or they were not asked for (`Plan::hardware`).
    pub communicators: Option<Sourced>,
    /// What other processes hold. `None`: not known.
    pub in_use: Option<Bytes>,
    /// Dense peaks.
    pub peaks: Peaks,
    /// Memory bandwidth, GB/s. `None`: not known.
    pub bandwidth_gbps: Option<f64>,
    /// The link between the GPUs of a node, one direction, GB/s. `None`: none, or not known.
    pub link_gbps: Option<f64>,
    /// The generation of the PCIe link to the host. `None`: not known.
    pub pcie_generation: Option<u64>,
    /// The best matrix product measured, as a share of the peak. `None`: not known.
    pub matmul_fraction: Option<f64>,
}

impl Hardware {
    /// What the process holds outside of PyTorch's allocator: its context and its communicators. `None`: not known.
    #[must_use]
    pub fn outside(&self) -> Option<Bytes> {
        let communicators = self.communicators.as_ref().map(|c| c.bytes).unwrap_or_default();
        self.context.as_ref()?.bytes.checked_add(communicators)
    }
}

impl Machine {
    /// Fills in the catalogue's facts.
    ///
    /// # Errors
    /// Every field that is wrong: an unknown name, a slice larger than its card, memory out of range.
    pub fn resolve(&self) -> Result<Hardware, Vec<Issue>> {
        let mut issues = Vec::new();
        let mut bounded = |field: &str, bytes: Option<Bytes>, min: u64, max: u64| {
            if let Some(Bytes(found)) = bytes
                && !(min..=max).contains(&found)
            {
                issues.push(Issue::new(field, IssueKind::OutOfRange { min, max, found: found.to_string() }));
            }
        };
        bounded("machine.in_use_bytes", self.in_use_bytes, 0, MAX_DOCUMENT_BYTES);
        bounded("machine.context_bytes", self.context_bytes, 0, MAX_DOCUMENT_BYTES);
        bounded("machine.communicator_bytes", self.communicator_bytes, 0, MAX_DOCUMENT_BYTES);
        let mut hardware = match &self.gpu {
            None => Hardware {
                name: None,
                arch: None,
                capability: None,
                bf16: None,
                capacity: None,
                context: None,
                communicators: None,
                in_use: None,
                peaks: Peaks::default(),
                bandwidth_gbps: None,
                link_gbps: None,
                pcie_generation: None,
                matmul_fraction: None,
            },
            Some(GpuChoice::Custom(gpu)) => {
                bounded("machine.gpu.custom.memory_bytes", Some(gpu.memory_bytes), 1, MAX_DOCUMENT_BYTES);
                let capability = gpu.compute_capability.as_deref().map(str::parse::<Capability>).transpose();
                let capability = capability.unwrap_or_else(|expected| {
                    let found = gpu.compute_capability.iter().flat_map(|c| c.chars()).take(40).collect();
                    issues
                        .push(Issue::new("machine.gpu.custom.compute_capability", IssueKind::NotA { expected, found }));
                    None
                });
                Hardware {
                    name: Some(gpu.name.clone()),
                    arch: capability.and_then(arch_of).map(str::to_owned),
                    capability,
                    // BF16 needs Ampere, compute capability 8.0, or newer.
                    bf16: capability.map(|c| c >= Capability(8, 0)),
                    capacity: Some(stated(gpu.memory_bytes)),
                    context: Some(catalogue::assumed_context(capability.map(arch_of).unwrap_or_default())),
                    communicators: None,
                    in_use: None,
                    peaks: Peaks::default(),
                    bandwidth_gbps: None,
                    link_gbps: None,
                    pcie_generation: None,
                    matmul_fraction: None,
                }
            }
            Some(GpuChoice::Catalogue(name)) => match catalogue::find(name) {
                Err(kind) => {
                    issues.push(Issue::new("machine.gpu", kind));
                    return Err(issues);
                }
                Ok(gpu) => Hardware {
                    name: Some(gpu.name.clone()),
                    arch: Some(gpu.arch.clone()),
                    capability: gpu.compute_capability.parse().ok(),
                    bf16: Some(gpu.bf16),
                    capacity: gpu.capacity(),
                    context: (gpu.vendor == "NVIDIA").then(|| catalogue::assumed_context(Some(&gpu.arch))),
                    communicators: None,
                    in_use: None,
                    peaks: gpu.tflops,
                    bandwidth_gbps: gpu.bandwidth_gbps,
                    link_gbps: gpu.link_gbps,
                    pcie_generation: gpu.pcie_generation,
                    matmul_fraction: gpu.matmul_fraction,
                },
            },
        };
        if let Some(slice) = self.mig_slice_bytes {
            let whole = hardware.capacity.as_ref().map_or(MAX_DOCUMENT_BYTES, |c| c.bytes.get());
            if !(1..=whole).contains(&slice.get()) {
                let kind = IssueKind::OutOfRange { min: 1, max: whole, found: slice.get().to_string() };
                issues.push(Issue::new("machine.mig_slice_bytes", kind));
            }
            hardware.capacity = Some(stated(slice));
            // A slice has a share of the card's units that the plan does not state.
            hardware.peaks = Peaks::default();
            hardware.bandwidth_gbps = None;
        }
        if let Some(context) = self.context_bytes {
            hardware.context = Some(stated(context));
        }
        hardware.communicators = self.communicator_bytes.map(stated);
        hardware.in_use = self.in_use_bytes;
        if issues.is_empty() { Ok(hardware) } else { Err(issues) }
    }
}

/// A figure that the user gave.
fn stated(bytes: Bytes) -> Sourced {
    Sourced { bytes, provenance: Provenance { kind: ProvenanceKind::Assumed, source: "given in the plan".into() } }
}

/// The generation that a compute capability belongs to.
fn arch_of(capability: Capability) -> Option<&'static str> {
    Some(match capability {
        Capability(7, 0..=4) => "Volta",
        Capability(7, _) => "Turing",
        Capability(8, 0..=8) => "Ampere",
        Capability(8, _) => "Ada",
        Capability(9, _) => "Hopper",
        Capability(10 | 12, _) => "Blackwell",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::CustomGpu;

    fn catalogue(name: &str) -> Machine {
        Machine { gpu: Some(GpuChoice::Catalogue(name.into())), ..Machine::default() }
    }

    fn custom(memory_bytes: u64, capability: Option<&str>) -> Machine {
        Machine {
            gpu: Some(GpuChoice::Custom(CustomGpu {
                name: "mine".into(),
                memory_bytes: Bytes(memory_bytes),
                compute_capability: capability.map(str::to_owned),
            })),
            ..Machine::default()
        }
    }

    #[test]
    fn a_machine_without_a_gpu_knows_nothing() {
        let hardware = Machine::default().resolve().unwrap();
        assert_eq!((hardware.capacity, hardware.context, hardware.bf16), (None, None, None));
    }

    #[test]
    fn bf16_is_known_by_card_and_by_capability() {
        assert_eq!(catalogue("T4").resolve().unwrap().bf16, Some(false));
        assert_eq!(catalogue("V100 SXM2 32GB").resolve().unwrap().bf16, Some(false));
        assert_eq!(catalogue("A100 SXM4 80GB").resolve().unwrap().bf16, Some(true));
        assert_eq!(custom(1 << 34, Some("7.5")).resolve().unwrap().bf16, Some(false));
        assert_eq!(custom(1 << 34, Some("8.9")).resolve().unwrap().bf16, Some(true));
        assert_eq!(custom(1 << 34, None).resolve().unwrap().bf16, None);
    }

    #[test]
    fn a_slice_replaces_the_card_and_cannot_exceed_it() {
        let mut machine = catalogue("A100 SXM4 80GB");
        machine.mig_slice_bytes = Some(Bytes::mib(9_856));
        let hardware = machine.resolve().unwrap();
        assert_eq!(hardware.capacity.unwrap().bytes, Bytes::mib(9_856));
        assert_eq!(hardware.peaks, Peaks::default());
        machine.mig_slice_bytes = Some(Bytes::mib(100_000));
        let issues = machine.resolve().unwrap_err();
        assert_eq!(issues[0].field, "machine.mig_slice_bytes");
    }

    #[test]
    fn the_context_can_be_given_and_is_unknown_outside_cuda() {
        let mut machine = catalogue("RTX 5090");
        assert_eq!(machine.resolve().unwrap().context.unwrap().bytes, Bytes::mib(550));
        machine.context_bytes = Some(Bytes::mib(300));
        assert_eq!(machine.resolve().unwrap().context.unwrap().bytes, Bytes::mib(300));
        assert_eq!(catalogue("MI300X 192GB").resolve().unwrap().context, None);
    }

    #[test]
    fn every_wrong_field_is_reported_at_once() {
        let mut machine = custom(0, Some("fast"));
        machine.in_use_bytes = Some(Bytes(u64::MAX));
        machine.context_bytes = Some(Bytes(u64::MAX));
        let fields: Vec<_> = machine.resolve().unwrap_err().into_iter().map(|i| i.field).collect();
        assert_eq!(
            fields,
            [
                "machine.in_use_bytes",
                "machine.context_bytes",
                "machine.gpu.custom.memory_bytes",
                "machine.gpu.custom.compute_capability"
            ]
        );
    }
}

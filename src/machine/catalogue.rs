//! The GPU catalogue: `gpus.json` beside this file, and the search in it.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::bill::{Provenance, ProvenanceKind};
use crate::data::{self, Row};
use crate::issue::IssueKind;
use crate::machine::Sourced;
use crate::units::{Bytes, GIB, MIB};

static FILE: LazyLock<Map<String, Value>> = LazyLock::new(|| data::file(include_str!("gpus.json")));

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    let file = Row::of(&FILE);
    let meta = file.row("meta");
    let reserve = meta.row("driver_reserve");
    let context = meta.row("cuda_context");
    Catalogue {
        driver_reserve: DriverReserve {
            share: reserve.decimal("share").unwrap_or_default(),
            max_mib: reserve.number("max_mib").unwrap_or_default(),
            source: reserve.text("source"),
        },
        context_mib: context.object("mib"),
        context_source: context.text("source"),
        sources: meta.texts("sources"),
        gpus: file.rows("gpus").map(Gpu::read).collect(),
    }
});

/// The data file.
#[derive(Debug)]
struct Catalogue {
    driver_reserve: DriverReserve,
    /// By generation.
    context_mib: &'static Map<String, Value>,
    context_source: String,
    sources: Vec<String>,
    gpus: Vec<Gpu>,
}

/// What is taken off the driver's total where PyTorch's total is not known.
#[derive(Debug)]
struct DriverReserve {
    share: f64,
    max_mib: u64,
    source: String,
}

/// A row of the catalogue.
#[derive(Debug)]
pub struct Gpu {
    /// The name it is listed under.
    pub name: String,
    /// Other names, such as the driver's.
    pub aliases: Vec<String>,
    /// `NVIDIA`, `AMD`, `Intel`.
    pub vendor: String,
    /// The generation, such as `Ampere`.
    pub arch: String,
    /// `datacenter`, `workstation` or `consumer`.
    pub class: String,
    /// CUDA compute capability, or the vendor's name of the target (`gfx942`).
    pub compute_capability: String,
    /// Whether the hardware computes in BF16.
    pub bf16: bool,
    /// The memory on the label, in GB or GiB as the vendor likes: a name, not a quantity.
    pub memory_gb: u64,
    /// Dense peak by dtype, TFLOP/s.
    pub tflops: Peaks,
    /// Memory bandwidth, GB/s (10⁹ bytes a second).
    pub bandwidth_gbps: Option<f64>,
    /// The link between the GPUs of a node, one direction, GB/s. `None`: there is none.
    pub link_gbps: Option<f64>,
    /// The generation of the PCIe link to the host.
    pub pcie_generation: Option<u64>,
    /// The best matrix product measured, as a share of the peak.
    pub matmul_fraction: Option<f64>,
    torch_total_gib: Option<f64>,
    torch_total_source: Option<usize>,
    driver_total_mib: Option<u64>,
    driver_total_source: Option<usize>,
    sources: Vec<usize>,
    note: Option<usize>,
}

/// Dense peaks of a GPU, TFLOP/s (10¹² a second). `None`: the hardware lacks it, or not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peaks {
    /// FP32 without TF32, PyTorch's default for matrix products.
    pub fp32: Option<f64>,
    /// FP16 with FP32 accumulation.
    pub fp16: Option<f64>,
    /// BF16 with FP32 accumulation.
    pub bf16: Option<f64>,
    /// FP32 products through TF32.
    pub tf32: Option<f64>,
    /// FP8.
    pub fp8: Option<f64>,
}

impl Gpu {
    fn read(row: Row<'_>) -> Self {
        let tflops = row.row("tflops");
        Self {
            name: row.text("name"),
            aliases: row.texts("aliases"),
            vendor: row.text("vendor"),
            arch: row.text("arch"),
            class: row.text("class"),
            compute_capability: row.text("compute_capability"),
            bf16: row.flag("bf16"),
            memory_gb: row.number("memory_gb").unwrap_or_default(),
            tflops: Peaks {
                fp32: tflops.decimal("fp32"),
                fp16: tflops.decimal("fp16"),
                bf16: tflops.decimal("bf16"),
                tf32: tflops.decimal("tf32"),
                fp8: tflops.decimal("fp8"),
            },
            bandwidth_gbps: row.decimal("bandwidth_gbps"),
            link_gbps: row.decimal("link_gbps"),
            pcie_generation: row.number("pcie_generation"),
            matmul_fraction: row.decimal("matmul_fraction"),
            torch_total_gib: row.decimal("torch_total_gib"),
            torch_total_source: row.position("torch_total_source"),
            driver_total_mib: row.number("driver_total_mib"),
            driver_total_source: row.position("driver_total_source"),
            sources: row.positions("sources"),
            note: row.position("note"),
        }
    }

    /// What a process can use at most: the total that PyTorch reports where it is known, else the driver's total less
    /// a stated reserve, else not known.
    #[must_use]
    pub fn capacity(&self) -> Option<Sourced> {
        if let Some(gib) = self.torch_total_gib {
            return Some(Sourced {
                bytes: scaled(GIB, gib),
                provenance: Provenance {
                    kind: ProvenanceKind::Measured,
                    source: format!("total memory that PyTorch reports: {}", source(self.torch_total_source)),
                },
            });
        }
        let total = Bytes::mib(self.driver_total_mib?);
        let policy = &CATALOGUE.driver_reserve;
        let reserve = scaled(total.get(), policy.share).min(Bytes::mib(policy.max_mib));
        Some(Sourced {
            bytes: total.saturating_sub(reserve),
            provenance: Provenance {
                kind: ProvenanceKind::Assumed,
                source: format!(
                    "driver total {} MiB ({}) less {:.0} MiB. {}",
                    total.get() / MIB,
                    source(self.driver_total_source),
                    reserve.as_mib(),
                    policy.source
                ),
            },
        })
    }

    /// Where the row's figures come from.
    pub fn sources(&self) -> impl Iterator<Item = &'static str> {
        self.sources.iter().map(|&at| source(Some(at)))
    }

    /// A remark about the row's figures.
    #[must_use]
    pub fn note(&self) -> Option<&'static str> {
        self.note.map(|at| source(Some(at)))
    }
}

/// `share` of `whole`, to the byte.
fn scaled(whole: u64, share: f64) -> Bytes {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "built-in data, far below 2⁵³"
    )]
    Bytes((whole as f64 * share).round() as u64)
}

fn source(at: Option<usize>) -> &'static str {
    at.and_then(|at| CATALOGUE.sources.get(at)).map_or("source not recorded", String::as_str)
}

/// Every GPU, in the order they are offered.
#[must_use]
pub fn gpus() -> &'static [Gpu] {
    &CATALOGUE.gpus
}

/// The CUDA context assumed for a generation. A generation without a reading takes the largest of the table.
#[must_use]
pub fn assumed_context(arch: Option<&str>) -> Sourced {
    let known = &CATALOGUE.context_mib;
    let (mib, of) = match arch.and_then(|a| known.get(a)?.as_u64().map(|mib| (mib, a))) {
        Some((mib, arch)) => (mib, format!("CUDA context assumed for {arch}")),
        None => (
            known.values().filter_map(Value::as_u64).max().unwrap_or(0),
            "CUDA context assumed: the largest of all generations, as this one has no reading".into(),
        ),
    };
    Sourced {
        bytes: Bytes::mib(mib),
        provenance: Provenance { kind: ProvenanceKind::Assumed, source: format!("{of}. {}", CATALOGUE.context_source) },
    }
}

/// The GPU called `name`: exactly, by alias, as the driver prints it, or without its memory size where that is enough.
///
/// # Errors
/// [`IssueKind::UnknownName`] with names close to it, also when the name fits several rows.
pub fn find(name: &str) -> Result<&'static Gpu, IssueKind> {
    // Most ask by the name that they found here.
    if let Some(gpu) = gpus().iter().find(|gpu| gpu.name == name) {
        return Ok(gpu);
    }
    let wanted = normalised(name);
    let all_names = |gpu: &'static Gpu| std::iter::once(&gpu.name).chain(&gpu.aliases);
    if let Some(gpu) = gpus().iter().find(|gpu| all_names(gpu).any(|n| normalised(n) == wanted)) {
        return Ok(gpu);
    }
    let without_size: Vec<_> =
        gpus().iter().filter(|gpu| all_names(gpu).any(|n| without_memory(&normalised(n)) == wanted)).collect();
    if let [only] = without_size[..] {
        return Ok(only);
    }
    let mut near: Vec<&str> = without_size.iter().map(|gpu| gpu.name.as_str()).collect();
    if near.is_empty() {
        near = crate::names::nearest(&wanted, gpus().iter().map(|gpu| gpu.name.as_str()), normalised, 5);
    }
    Err(IssueKind::UnknownName {
        found: name.chars().take(80).collect(),
        did_you_mean: near.into_iter().map(str::to_owned).collect(),
    })
}

/// Lower case, without separators and without the words that vendors put in front.
fn normalised(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !matches!(*word, "nvidia" | "geforce" | "amd" | "instinct" | "intel" | "tesla" | "radeon"))
        .collect()
}

/// `rtx409024gb` → `rtx4090`: the digits before the final `gb` that name the memory, matched against known sizes so
/// that the model number stays whole.
fn without_memory(name: &str) -> &str {
    const SIZES: [&str; 26] = [
        "100", "128", "141", "180", "186", "192", "256", "288", "10", "11", "12", "16", "20", "24", "32", "40", "48",
        "64", "80", "94", "96", "4", "5", "6", "8", "2",
    ];
    let Some(stem) = name.strip_suffix("gb") else { return name };
    SIZES.iter().find_map(|size| stem.strip_suffix(size)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_reads_and_has_a_source() {
        assert!(gpus().len() >= 60);
        let file = Row::of(&FILE);
        assert_eq!(file.misfits(&["meta", "gpus"], &[]), [""; 0]);
        let meta = file.row("meta");
        assert_eq!(meta.misfits(&["about", "driver_reserve", "cuda_context", "sources"], &[]), [""; 0]);
        assert_eq!(meta.row("driver_reserve").misfits(&["share", "max_mib", "source"], &[]), [""; 0]);
        assert_eq!(meta.row("cuda_context").misfits(&["mib", "source"], &[]), [""; 0]);
        assert!(meta.row("cuda_context").object("mib").values().all(Value::is_u64));
        for row in file.rows("gpus") {
            let required =
                ["name", "vendor", "arch", "class", "compute_capability", "bf16", "memory_gb", "tflops", "sources"];
            let optional = [
                "aliases",
                "bandwidth_gbps",
                "link_gbps",
                "pcie_generation",
                "matmul_fraction",
                "torch_total_gib",
                "torch_total_source",
                "driver_total_mib",
                "driver_total_source",
                "note",
            ];
            assert_eq!(row.misfits(&required, &optional), [""; 0], "{}", row.text("name"));
            assert_eq!(
                row.row("tflops").misfits(&[], &["fp32", "fp16", "bf16", "tf32", "fp8"]),
                [""; 0],
                "{}",
                row.text("name")
            );
        }
        for gpu in gpus() {
            assert!(gpu.sources().all(|s| s != "source not recorded"), "{}", gpu.name);
            assert!(gpu.sources().next().is_some(), "{}", gpu.name);
            assert!(gpu.capacity().is_some() || ["GB300 288GB", "Gaudi 2 96GB", "Gaudi 3 128GB"].contains(&&*gpu.name));
        }
    }

    #[test]
    fn every_name_and_alias_finds_its_row() {
        for gpu in gpus() {
            for name in std::iter::once(&gpu.name).chain(&gpu.aliases) {
                assert_eq!(find(name).unwrap().name, gpu.name, "{name}");
            }
        }
    }

    #[test]
    fn names_as_the_driver_prints_them() {
        // As nvidia-smi prints them.
        let cases = [
            ("NVIDIA GeForce RTX 4090", "RTX 4090 24GB"),
            ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
            ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
            ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
            ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
            ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
            ("NVIDIA H200", "H200 SXM 141GB"),
            ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
            ("Tesla T4", "T4"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada 48GB"),
            ("rtx4090", "RTX 4090 24GB"),
        ];
        for (name, row) in cases {
            assert_eq!(find(name).unwrap().name, row, "{name}");
        }
    }

    #[test]
    fn a_name_that_fits_several_rows_or_none_is_refused_with_suggestions() {
        let suggestions = |name: &str| match find(name) {
            Err(IssueKind::UnknownName { did_you_mean, .. }) => did_you_mean,
            other => panic!("{other:?}"),
        };
        assert_eq!(suggestions("RTX 3080"), ["RTX 3080 10GB", "RTX 3080 12GB"]);
        assert!(suggestions("A100").iter().all(|n| n.starts_with("A100")), "{:?}", suggestions("A100"));
        assert!(suggestions("RTX 4900").contains(&"RTX 4090 24GB".to_owned()), "{:?}", suggestions("RTX 4900"));
        assert!(find("").is_err());
        assert!(find(&"x".repeat(1 << 20)).is_err());
    }

    #[test]
    fn capacity_is_what_pytorch_reports_else_the_driver_less_a_reserve_else_unknown() {
        // 23.64 GiB: PyTorch's own out-of-memory message on this card.
        let rtx = find("RTX 4090").unwrap().capacity().unwrap();
        assert_eq!(rtx.bytes, Bytes(25_383_256_719));
        assert_eq!(rtx.provenance.kind, ProvenanceKind::Measured);
        // 24576 MiB by the driver, no PyTorch figure: less 3 %.
        let a30 = find("A30").unwrap().capacity().unwrap();
        assert!((a30.bytes.as_mib() - 24576.0 * 0.97).abs() < 1.0);
        assert_eq!(a30.provenance.kind, ProvenanceKind::Assumed);
        // GH200: 3 % would be more than 900 MiB.
        assert_eq!(find("GH200 96GB").unwrap().capacity().unwrap().bytes, Bytes::mib(97_871 - 900));
        assert_eq!(find("GB300 288GB").unwrap().capacity(), None);
    }

    /// The reserve is only honest if it is at least what every card loses whose two totals are known.
    #[test]
    fn the_stated_reserve_covers_every_row_with_both_totals() {
        let policy = &CATALOGUE.driver_reserve;
        let mut compared = 0;
        for gpu in gpus() {
            if let (Some(torch), Some(driver)) = (gpu.torch_total_gib, gpu.driver_total_mib) {
                let driver = Bytes::mib(driver);
                let reserve = scaled(driver.get(), policy.share).min(Bytes::mib(policy.max_mib));
                assert!(driver.saturating_sub(reserve) <= scaled(GIB, torch), "{}", gpu.name);
                compared += 1;
            }
        }
        assert!(compared > 30);
    }

    #[test]
    fn contexts_by_generation() {
        assert_eq!(assumed_context(Some("Turing")).bytes, Bytes::mib(450));
        assert_eq!(assumed_context(Some("Hopper")).bytes, Bytes::mib(500));
        assert_eq!(assumed_context(Some("Blackwell")).bytes, Bytes::mib(550));
        assert_eq!(assumed_context(None).bytes, Bytes::mib(550));
    }
}

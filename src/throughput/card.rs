//! A card as the step's time depends on it: its peaks with what is reached of them, and the stacks of kernels that run on
//! it. The figures are in `efficiency.json`, each with its source.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::data::{self, Row};
use crate::machine::Hardware;
use crate::throughput::kernel::Units;

static FILE: LazyLock<Map<String, Value>> = LazyLock::new(|| data::file(include_str!("efficiency.json")));

/// The dtype of a step's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// FP32 without TF32.
    Fp32,
    /// FP32 through TF32.
    Tf32,
    /// FP16.
    Fp16,
    /// BF16.
    Bf16,
}

impl Compute {
    /// Bytes of an element.
    #[must_use]
    pub const fn width(self) -> f64 {
        match self {
            Self::Fp32 | Self::Tf32 => 4.0,
            Self::Fp16 | Self::Bf16 => 2.0,
        }
    }
}

/// What is reached on a card.
#[derive(Clone, Debug)]
pub struct Card {
    /// Dense peak of the products' dtype, FLOP/s.
    pub peak: f64,
    /// FP8's peak, FLOP/s. `None`: it has none.
    pub float8_peak: Option<f64>,
    /// Shares of the peaks that large products sustain: plain, FP8 with a scale per tensor, with more scales.
    pub shares: [f64; 3],
    /// Shares of the peak that a flash kernel reaches, forward and backward.
    pub attention: [f64; 2],
    /// Memory's bytes a second, as reached.
    pub bytes_per_second: f64,
    /// Bytes a second of the link within a node, one direction, as reached.
    pub link: f64,
    /// Bytes a second to the network for each GPU, as reached.
    pub network: f64,
    /// Bytes a second to host memory, as reached.
    pub host: f64,
    /// Bytes of an element.
    pub(super) width: f64,
    pub(super) sms: f64,
    pub(super) depth: f64,
    pub(super) latency: f64,
    pub(super) network_reached: f64,
    pub(super) link_reached: f64,
    pub(super) busy: f64,
    pub(super) straggling: f64,
    pub(super) host_parameters: f64,
    /// Whether a library's newest attention kernels are for it.
    pub(super) newest_attention: bool,
    /// Where the shares come from.
    pub source: String,
}

impl Card {
    /// The card of a plan, where its peak for `compute` and its bandwidth are known.
    #[must_use]
    pub fn of(hardware: &Hardware, compute: Compute) -> Option<Self> {
        let peaks = hardware.peaks;
        let peak = match compute {
            Compute::Fp32 => peaks.fp32,
            Compute::Tf32 => peaks.tf32,
            Compute::Fp16 => peaks.fp16,
            Compute::Bf16 => peaks.bf16,
        }?;
        let file = Row::of(&FILE);
        let arch = hardware.arch.as_deref()?;
        let generation = file.rows("generations").find(|row| row.text("name") == arch)?;
        let links = file.row("links");
        let share = |name: &str| generation.decimal(name);
        let products = share("products")?;
        let pair = |name: &str| -> [f64; 2] { generation.decimals(name).try_into().unwrap_or([0.25, 0.2]) };
        let gbps = |name: &str| links.decimal(name).unwrap_or_default() * 1e9;
        let pcie = hardware
            .pcie_generation
            .and_then(|n| links.row("pcie_gbps").decimal(&n.to_string()))
            .map(|gbps| gbps * 1e9 * links.decimal("copy_share").unwrap_or_default());
        let reached = links.decimal("reached").unwrap_or_default();
        let network_reached = links.decimal("network_reached").unwrap_or_default();
        Some(Self {
            peak: peak * 1e12,
            float8_peak: peaks.fp8.map(|p| p * 1e12),
            // Products in FP32 run on no tensor cores, which an FP32 product reaches closely.
            shares: match compute {
                Compute::Fp32 => [0.85; 3],
                _ => [products, share("float8").unwrap_or(products), share("rowwise").unwrap_or(products)],
            },
            attention: if compute == Compute::Fp32 { [0.6, 0.5] } else { pair("attention") },
            bytes_per_second: hardware.bandwidth_gbps? * 1e9 * file.row("bandwidth").decimal("share")?,
            link: hardware.link_gbps.map_or_else(|| gbps("host_gbps"), |link| link * 1e9 * reached),
            network: generation.decimal("node_gbps")? * 1e9 * network_reached,
            host: pcie.unwrap_or_else(|| gbps("host_gbps")),
            width: compute.width(),
            sms: generation.decimal("sms")?,
            depth: file.row("tile").decimal("depth")?,
            latency: links.decimal("latency")?,
            network_reached,
            link_reached: reached,
            busy: file.row("busy").decimal("share")?,
            straggling: file.row("nodes").decimal("doubling")?,
            host_parameters: file.row("host").decimal("adam_parameters_per_second")?,
            newest_attention: matches!(arch, "Hopper" | "Blackwell" | "Blackwell Ultra"),
            source: generation.text("source"),
        })
    }

    /// FLOP/s that a large product sustains.
    pub(super) fn rate(&self, units: Units) -> f64 {
        match (units, self.float8_peak) {
            (Units::Float8, Some(peak)) => peak * self.shares[1],
            (Units::Rowwise, Some(peak)) => peak * self.shares[2],
            _ => self.peak * self.shares[0],
        }
    }
}

/// A stack of kernels: what surrounds the products.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Bytes a token and unit of hidden width, forward and backward.
    pub(super) hidden: [f64; 2],
    /// Of query, key and value width.
    pub(super) heads: [f64; 2],
    /// Of the MLP's inner width.
    pub(super) inner: [f64; 2],
    /// Of the vocabulary, both ways.
    pub(super) vocabulary: f64,
    /// Passes over the matrix of scores where it is a tensor.
    pub(super) scores: [f64; 2],
    /// Its flash kernel's time against the generation's, on cards for which there are newer ones.
    pub(super) flash: f64,
    /// Seconds to launch a layer.
    pub(super) launch: [f64; 2],
    /// Where the figures come from.
    pub source: String,
}

impl Stack {
    /// The stack called `name` in `efficiency.json`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let row = Row::of(&FILE).rows("stacks").find(|row| row.text("name") == name)?;
        let pair = |key: &str| -> Option<[f64; 2]> { row.decimals(key).try_into().ok() };
        Some(Self {
            hidden: pair("hidden")?,
            heads: pair("heads")?,
            inner: pair("inner")?,
            vocabulary: row.decimal("vocabulary")?,
            scores: pair("scores")?,
            flash: row.decimal("flash_slower").unwrap_or(1.0),
            launch: pair("launch")?,
            source: row.text("source"),
        })
    }
}

/// A figure of `efficiency.json` by its object and name.
pub(super) fn figure(object: &str, name: &str) -> f64 {
    Row::of(&FILE).row(object).decimal(name).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there_and_has_a_source() {
        let file = Row::of(&FILE);
        let objects = [
            "bandwidth",
            "tile",
            "busy",
            "nodes",
            "links",
            "host",
            "interval",
            "experts",
            "adapters",
            "zero3",
            "dequantize",
        ];
        for name in objects {
            assert!(!file.row(name).text("source").is_empty(), "{name}");
        }
        let required = ["name", "products", "attention", "sms", "node_gbps", "source"];
        for row in file.rows("generations") {
            assert_eq!(row.misfits(&required, &["float8", "rowwise"]), [""; 0], "{}", row.text("name"));
            assert_eq!(row.decimals("attention").len(), 2);
        }
        let required = ["name", "hidden", "heads", "inner", "vocabulary", "scores", "launch", "source"];
        for row in file.rows("stacks") {
            assert_eq!(row.misfits(&required, &["flash_slower"]), [""; 0], "{}", row.text("name"));
            assert!(Stack::named(&row.text("name")).is_some());
        }
        for gpu in crate::machine::gpus().iter().filter(|gpu| gpu.vendor != "Intel") {
            assert!(file.rows("generations").any(|row| row.text("name") == gpu.arch), "{}", gpu.arch);
        }
    }
}

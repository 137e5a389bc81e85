//! The measurement document, version 3: what a producer writes and what every importer turns its text into.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure::{Buffer, Failure, Figure, Process, Reading, ReadingName, Run, Series, Source};
use crate::plan::Plan;
use crate::units::Bytes;

/// The version of the measurement document that this build reads and writes.
pub const MEASUREMENT_VERSION: u32 = 3;

/// The value of the document's `format` field, by which it is recognised.
pub(super) const MEASUREMENT_FORMAT: &str = "vram-budget-measurement";

/// What was measured, by whom, on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// `vram-budget-measurement`.
    pub format: String,
    /// Document version, [`MEASUREMENT_VERSION`].
    pub version: u32,
    /// A name for this measurement, such as a run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<Producer>,
    /// Versions and settings of the measured process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    /// The machine's GPUs at the time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// The job that was measured, as a plan: what makes a prediction possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// The figures.
    #[serde(default)]
    pub readings: Vec<Reading>,
    /// The text that it was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// What went wrong, where the text is an error message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Who holds memory on the GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
    /// Counts, by the names that PyTorch gives them: `num_ooms`, `segment.all.current`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, i64>,
    /// Figures by step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// The largest buffers, where a compiler lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<Buffer>,
    /// The run, where one was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

impl Measurement {
    /// A document of the current version with `readings` and nothing else.
    #[must_use]
    pub fn new(readings: Vec<Reading>) -> Self {
        Self {
            format: MEASUREMENT_FORMAT.into(),
            version: MEASUREMENT_VERSION,
            id: None,
            producer: None,
            environment: None,
            gpus: Vec::new(),
            plan: None,
            readings,
            source: None,
            failure: None,
            processes: Vec::new(),
            counts: BTreeMap::new(),
            series: Vec::new(),
            buffers: Vec::new(),
            run: None,
        }
    }

    /// A document with nothing but where it was read from.
    #[must_use]
    pub fn of(source: Source) -> Self {
        Self { source: Some(source), ..Self::new(Vec::new()) }
    }

    /// The version 2 of a document of version 1, or the field that version 1 did not have.
    pub(super) fn upgrade_1(mut self) -> Result<Self, &'static str> {
        let newer = [
            ("source", self.source.is_some()),
            ("failure", self.failure.is_some()),
            ("processes", !self.processes.is_empty()),
            ("counts", !self.counts.is_empty()),
            ("series", !self.series.is_empty()),
            ("buffers", !self.buffers.is_empty()),
        ];
        match newer.into_iter().find(|(_, present)| *present) {
            Some((field, _)) => Err(field),
            None => {
                self.version = 2;
                self.upgrade_2()
            }
        }
    }

    /// The version 3 of a document of version 2, or the field that version 2 did not have.
    pub(super) fn upgrade_2(mut self) -> Result<Self, &'static str> {
        if self.run.is_some() {
            return Err("run");
        }
        if self.gpus.iter().any(|gpu| gpu.ecc.is_some() || !gpu.figures.is_empty() || !gpu.slices.is_empty()) {
            return Err("ecc`, `figures` or `slices");
        }
        self.version = 3;
        Ok(self)
    }

    /// The figure called `name`, where it was measured.
    #[must_use]
    pub fn bytes(&self, name: ReadingName) -> Option<i64> {
        self.readings.iter().find_map(|r| match r.figure {
            Figure::Bytes(bytes) if r.name == name => Some(bytes),
            _ => None,
        })
    }
}

/// The program that wrote a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Producer {
    /// Its name.
    pub name: String,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Versions and settings of the measured process. Absent: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Environment {
    /// `torch.__version__`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pytorch: Option<String>,
    /// `transformers.__version__`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transformers: Option<String>,
    /// The driver's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The CUDA version that the driver supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// The text of `PYTORCH_CUDA_ALLOC_CONF`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alloc_conf: Option<String>,
}

/// A GPU of the machine. Absent figures have their reason in `unavailable`, by field name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Gpu {
    /// Its index on the machine.
    pub index: u32,
    /// Its name as the driver prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// CUDA compute capability, such as `8.9`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    /// The driver's total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<Bytes>,
    /// What the driver keeps for itself: no process can use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<Bytes>,
    /// What processes hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<Bytes>,
    /// What is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<Bytes>,
    /// Whether MIG is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// The instances that MIG divides it into.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Gpu>,
    /// How AMD's cards are divided, for compute and for memory, such as `SPX/NPS1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Whether its memory corrects errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<bool>,
    /// How busy it is, its clocks in MHz, its memory's errors: whole numbers, by name with the unit in it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, i64>,
    /// What held its clocks down, by the driver's names, each in percent of the looks at it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub throttled: BTreeMap<String, i64>,
    /// Why a field or a figure is absent.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unavailable: BTreeMap<String, String>,
}

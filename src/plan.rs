//! What the user describes: model, recipe, machine, framework versions, and the thresholds of the decision.
//!
//! The plan is a document (`vram-budget estimate --plan FILE`, the page's link): versioned, and strict about unknown
//! fields, because a misspelt field that is silently ignored would make a wrong "fits".

use serde::{Deserialize, Serialize};

use crate::calibration::{self, Calibration};
use crate::issue::Issue;
use crate::machine::{Hardware, Machine, assumed_communicators};
use crate::model::ModelSource;
use crate::recipe::parallel::DataParallel;
use crate::recipe::{Parallel, Recipe};

/// The version of the plan document that this build writes.
pub const PLAN_VERSION: u32 = 1;

/// A training job, the machine it runs on, and how to judge it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Document version, [`PLAN_VERSION`].
    pub version: u32,
    /// What is trained.
    pub model: ModelSource,
    /// How it is trained.
    #[serde(default)]
    pub recipe: Recipe,
    /// How it is spread over GPUs.
    #[serde(default, skip_serializing_if = "Parallel::is_unsaid")]
    pub parallel: Parallel,
    /// What it runs on.
    #[serde(default)]
    pub machine: Machine,
    /// Versions whose rules apply.
    #[serde(default)]
    pub framework: Framework,
    /// Thresholds of the decision tree.
    #[serde(default)]
    pub policy: Policy,
    /// What measurements of such jobs say beside the walk. Absent: it was not calibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

impl Plan {
    /// The thresholds that a decision goes by: where a framework's rules were read and none of its steps measured, the
    /// comfortable margin is kept.
    #[must_use]
    pub fn policy_in_force(&self) -> Policy {
        match self.parallel.data {
            DataParallel::Megatron(_) => Policy { margin_low: self.policy.margin_high, ..self.policy },
            _ => self.policy,
        }
    }

    /// The machine with the catalogue's facts, what was fitted of it and what the layout's communicators take.
    ///
    /// # Errors
    /// Every field of the machine that is wrong.
    pub fn hardware(&self) -> Result<Hardware, Vec<Issue>> {
        let mut hardware = self.machine.resolve()?;
        calibration::fill(self, &mut hardware);
        let assumed = || assumed_communicators(&self.parallel, hardware.capability);
        hardware.communicators = hardware.communicators.take().or_else(assumed);
        Ok(hardware)
    }
}

/// Framework versions. Rules that changed between versions carry the range in which they hold ([`crate::versions`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Framework {
    /// PyTorch, such as `2.15`.
    pub pytorch: Version,
    /// transformers, such as `5.24`.
    pub transformers: Version,
    /// peft, such as `0.21`. Looked at where there are adapters.
    pub peft: Version,
    /// bitsandbytes, such as `0.50`. Looked at where it is used.
    pub bitsandbytes: Version,
    /// Whether cuBLAS workspaces stay allocated after a call. `None`: as this PyTorch does by default (kept before
    /// 2.15, freed from 2.15; `TORCH_CUBLAS_WORKSPACE_CACHE=1` keeps them).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cublas_workspace_kept: Option<bool>,
    /// The text of `PYTORCH_CUDA_ALLOC_CONF` / `PYTORCH_ALLOC_CONF`. `None`: unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alloc_conf: Option<String>,
    /// Whether no expert of a mixture gets a token, as in steps that were recorded over a device that runs no kernels: what
    /// their router chooses reads as zeros. No job is like that, so no document says it.
    #[serde(skip)]
    pub idle_experts: bool,
}

impl Default for Framework {
    /// The newest versions whose rules are known here.
    fn default() -> Self {
        Self {
            pytorch: Version(2, 15),
            transformers: Version(5, 24),
            peft: Version(0, 21),
            bitsandbytes: Version(0, 50),
            cublas_workspace_kept: None,
            alloc_conf: None,
            idle_experts: false,
        }
    }
}

impl Framework {
    /// Whether cuBLAS workspaces outlive the call that asked for them.
    #[must_use]
    pub fn workspace_kept(&self) -> bool {
        self.cublas_workspace_kept.unwrap_or(self.pytorch < Version(2, 15))
    }
}

/// A `major.minor` version; patch levels do not change the rules modelled here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Version(pub u16, pub u16);

impl core::fmt::Display for Version {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl From<Version> for String {
    fn from(v: Version) -> Self {
        v.to_string()
    }
}

impl TryFrom<String> for Version {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl core::str::FromStr for Version {
    type Err = String;
    /// `2.15`, `2.15.0`, `2.15.0+cu132`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.trim().split(['.', '+']);
        let mut next = || parts.next().and_then(|p| p.parse::<u16>().ok());
        match (next(), next()) {
            (Some(major), Some(minor)) => Ok(Self(major, minor)),
            _ => Err(format!("`{text}` is not a version: write major.minor, such as 2.15")),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Version {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Version".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9]+\\.[0-9]+" })
    }
}

/// The thresholds of the decision tree. The defaults are the source articles' (A7, A11); they are a policy, not a fact.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Rigid cost (weights, gradients, optimizer states) as a share of the card above which to train less or shard.
    pub rigid_share: f64,
    /// Activations as a share of what the rigid cost leaves, above which to checkpoint.
    pub activation_share: f64,
    /// Share of the card to keep free for fragmentation: below this, tight.
    pub margin_low: f64,
    /// Share of the card to keep free for fragmentation: the comfortable figure.
    pub margin_high: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { rigid_share: 0.80, activation_share: 0.50, margin_low: 0.10, margin_high: 0.15 }
    }
}

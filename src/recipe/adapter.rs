//! Adapters: small trainable matrices beside frozen weights.

use serde::{Deserialize, Serialize};

/// Low-rank adapters as `peft` adds them (0.21): beside each targeted linear layer a pair A [r, in] and B [out, r], in
/// FP32 unless the base is FP32 already (`autocast_adapter_dtype`). Everything else is frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rank.
    pub r: u64,
    /// Names of the linear layers that get a pair, such as `q_proj`.
    pub targets: Vec<String>,
}

/// The highest rank that is walked.
pub const MAX_LORA_RANK: u64 = 1 << 16;

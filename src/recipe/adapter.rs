//! Adapters: small trainable matrices beside frozen weights.

use serde::{Deserialize, Serialize};

/// Low-rank adapters as `peft` adds them (0.21): beside each targeted linear layer a pair A [r, in] and B [out, r], in
/// FP32 unless the base is FP32 already (`autocast_adapter_dtype`). Everything else is frozen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rank.
    pub r: u64,
    /// Names of the linear layers that get a pair, such as `q_proj`; the text `all-linear` instead of a list: all but the
    /// output head.
    #[serde(with = "targets")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "targets::schema"))]
    pub targets: Vec<String>,
    /// Parameters, not layers, that get a pair each: by the end of their name, such as `experts.down_proj` for the stacked
    /// weights of a mixture's experts. The pair is folded into the parameter whenever it is used (`lora.ParamWrapper`).
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "null_is_none")]
    pub target_parameters: Vec<String>,
    /// Share of the pair's input that is dropped in training.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropout: f64,
    /// Which biases of the model are trained too.
    #[serde(default, skip_serializing_if = "is_default")]
    pub bias: LoraBias,
    /// Names of further modules that are trained as a copy of their own, such as `lm_head`; the original stays.
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "null_is_none")]
    pub modules_to_save: Vec<String>,
    /// What the pairs are kept in. `None`: FP32, whatever the base is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_dtype: Option<FloatName>,
    /// Weight-decomposed adapters (DoRA): a trained magnitude per output, over the norm of weight and pair together.
    #[serde(default, skip_serializing_if = "is_default")]
    pub use_dora: bool,
}

/// The highest rank that is walked.
pub const MAX_LORA_RANK: u64 = 1 << 16;

/// What [`Lora::targets`] holds where every linear layer but the output head is meant.
pub const ALL_LINEAR: &str = "all-linear";

impl Lora {
    /// Pairs of this rank beside `targets`, nothing else trained.
    #[must_use]
    pub fn new(r: u64, targets: Vec<String>) -> Self {
        Self {
            r,
            targets,
            target_parameters: Vec::new(),
            dropout: 0.0,
            bias: LoraBias::None,
            modules_to_save: Vec::new(),
            adapter_dtype: None,
            use_dora: false,
        }
    }

    /// Whether every linear layer but the output head is targeted.
    #[must_use]
    pub fn targets_all(&self) -> bool {
        self.targets.iter().any(|t| t == ALL_LINEAR)
    }
}

/// Which biases are trained beside the pairs (`LoraConfig.bias`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LoraBias {
    /// None.
    #[default]
    None,
    /// All of the model's.
    All,
    /// Those of the targeted layers.
    LoraOnly,
}

/// A floating type as PyTorch names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FloatName {
    /// 16 bits, 8 of them exponent.
    Bfloat16,
    /// 16 bits, 5 of them exponent.
    Float16,
    /// 32 bits.
    Float32,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn null_is_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A list of names, or the text `all-linear`.
mod targets {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ALL_LINEAR;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Raw {
        All(String),
        Names(Vec<String>),
    }

    pub(super) fn serialize<S: Serializer>(targets: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        match targets {
            [all] if all == ALL_LINEAR => all.serialize(serializer),
            names => names.serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        Ok(match Raw::deserialize(deserializer)? {
            Raw::All(name) => vec![name],
            Raw::Names(names) => names,
        })
    }

    #[cfg(feature = "schema")]
    pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "const": ALL_LINEAR }, { "type": "array", "items": { "type": "string" } }]
        })
    }
}

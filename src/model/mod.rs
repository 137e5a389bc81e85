//! What is trained: presets, the import of a Hugging Face `config.json`, and each family's operations.

pub mod presets;

use serde::{Deserialize, Serialize};

pub use presets::{Preset, presets};

/// Where the model comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ModelSource {
    /// The name of a preset.
    Preset(String),
    /// A Hugging Face `config.json`, as it is.
    Config(serde_json::Map<String, serde_json::Value>),
}

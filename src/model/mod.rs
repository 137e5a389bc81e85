//! What is trained: presets, the import of a Hugging Face `config.json`, and each family's operations.

pub mod family;
pub mod fields;
pub mod presets;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};
pub use family::{Family, Model};

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

/// A config that has been read.
#[derive(Debug)]
pub struct ReadModel {
    /// The model.
    pub model: Box<dyn Model>,
    /// Whether only the text part of a model of several parts is counted.
    pub text_part_only: bool,
}

/// Reads a Hugging Face `config.json`.
///
/// # Errors
/// Every issue of the config, one per field; an unknown architecture by its name, with the list of known ones.
pub fn read_config(config: &Map<String, Value>) -> Result<ReadModel, Vec<Issue>> {
    if let Some(Value::Object(text)) = config.get("text_config") {
        let inner = read_config(text).map_err(|issues| {
            issues
                .into_iter()
                .map(|i| Issue::new(i.field.replacen("config.", "config.text_config.", 1), i.kind))
                .collect::<Vec<_>>()
        })?;
        return Ok(ReadModel { text_part_only: true, ..inner });
    }
    let family = find_family(config)?;
    Ok(ReadModel { model: family.read(config)?, text_part_only: false })
}

/// The family by `model_type`, and its class by `architectures` when that is given.
fn find_family(config: &Map<String, Value>) -> Result<&'static Family, Vec<Issue>> {
    let class = config.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    let model_type = config.get("model_type").and_then(Value::as_str);
    let unknown = |field: &str, found: &str| {
        let known = Family::ALL.iter().map(|f| f.architecture.to_owned()).collect();
        vec![Issue::new(field, IssueKind::UnknownArchitecture { found: found.chars().take(80).collect(), known })]
    };
    match (model_type, class) {
        (Some(name), class) => {
            let mut of_type = Family::ALL.iter().filter(|f| f.model_type == name).peekable();
            if of_type.peek().is_none() {
                return Err(unknown("config.model_type", class.unwrap_or(name)));
            }
            of_type
                .find(|f| class.is_none_or(|class| class == f.architecture))
                .ok_or_else(|| unknown("config.architectures", class.unwrap_or(name)))
        }
        (None, Some(class)) => {
            Family::ALL.iter().find(|f| f.architecture == class).ok_or_else(|| unknown("config.architectures", class))
        }
        // What diffusers writes: never a language model.
        (None, None) if let Some(class) = config.get("_class_name").and_then(Value::as_str) => {
            Err(unknown("config._class_name", class))
        }
        (None, None) => Err(vec![Issue::new(
            "config.model_type",
            IssueKind::Missing { expected: "the model's family, such as llama".into() },
        )]),
    }
}

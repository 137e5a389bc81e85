//! Models by name: `presets.json` beside this file, and the search in it.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::issue::IssueKind;

static DATA: LazyLock<Data> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "built-in data, read by a test")]
    serde_json::from_str(include_str!("presets.json")).expect("the built-in model presets are valid")
});

/// The data file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    meta: Meta,
    presets: Vec<Preset>,
    known: Vec<Known>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    #[serde(rename = "about")]
    _about: String,
    sources: Vec<String>,
}

/// A model whose configuration is built in.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// The name it is listed under.
    pub name: String,
    /// Its repository on the Hugging Face Hub; empty where it has none.
    #[serde(default)]
    pub hf_id: String,
    /// Unique parameters, tied weights once; published or counted, not computed by this crate.
    pub params_total: u64,
    /// The fields of its `config.json`.
    pub config: Map<String, Value>,
    sources: Vec<usize>,
}

impl Preset {
    /// Where the configuration comes from.
    pub fn sources(&self) -> impl Iterator<Item = &'static str> {
        self.sources.iter().filter_map(|&at| DATA.meta.sources.get(at)).map(String::as_str)
    }
}

/// A model that is known by name and whose family is not modelled.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    name: String,
    #[serde(default)]
    hf_id: String,
    architecture: String,
}

/// Every preset, in the order they are offered.
#[must_use]
pub fn presets() -> &'static [Preset] {
    &DATA.presets
}

/// The preset called `name`, by its own name or its repository's, whatever the case.
///
/// # Errors
/// [`IssueKind::NotModelled`] for a model that is known and whose family is not modelled, [`IssueKind::UnknownName`]
/// for any other.
pub fn find(name: &str) -> Result<&'static Preset, IssueKind> {
    let wanted = name.trim().to_ascii_lowercase();
    let is_wanted = |own: &str, hf_id: &str| {
        let hf_id = hf_id.to_ascii_lowercase();
        own == wanted
            || (!wanted.is_empty() && hf_id == wanted)
            || hf_id.split_once('/').is_some_and(|(_, model)| model == wanted)
    };
    if let Some(preset) = presets().iter().find(|p| is_wanted(&p.name, &p.hf_id)) {
        return Ok(preset);
    }
    if let Some(known) = DATA.known.iter().find(|k| is_wanted(&k.name, &k.hf_id)) {
        return Err(IssueKind::NotModelled { what: format!("{} ({})", known.name, known.architecture) });
    }
    let near = crate::names::nearest(&wanted, presets().iter().map(|p| p.name.as_str()), str::to_owned, 5);
    Err(IssueKind::UnknownName {
        found: name.chars().take(80).collect(),
        did_you_mean: near.into_iter().map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_found_by_its_names_and_has_a_source() {
        assert_eq!(presets().len(), 109);
        for preset in presets() {
            assert_eq!(find(&preset.name).unwrap().name, preset.name);
            if !preset.hf_id.is_empty() {
                assert_eq!(find(&preset.hf_id).unwrap().name, preset.name);
            }
            assert!(preset.sources().next().is_some(), "{}", preset.name);
        }
        assert_eq!(find("Llama-3.1-8B").unwrap().name, "llama-3.1-8b");
    }

    #[test]
    fn a_known_model_without_a_family_here_is_refused_by_name() {
        for known in &DATA.known {
            assert!(matches!(find(&known.name), Err(IssueKind::NotModelled { .. })), "{}", known.name);
        }
        assert_eq!(find("gpt-j-6b").unwrap_err(), IssueKind::NotModelled { what: "gpt-j-6b (GPTJForCausalLM)".into() });
    }

    #[test]
    fn a_misspelt_name_gets_suggestions() {
        let Err(IssueKind::UnknownName { did_you_mean, .. }) = find("llama-3.1-8bb") else { panic!() };
        assert_eq!(did_you_mean[0], "llama-3.1-8b");
        let Err(IssueKind::UnknownName { did_you_mean, .. }) = find("llama-3") else { panic!() };
        assert!(did_you_mean.iter().all(|n| n.contains("llama-3")));
        assert!(matches!(find(""), Err(IssueKind::UnknownName { .. })));
    }
}

//! Models by name: `presets.json` beside this file, and the search in it.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::data::{self, Row};
use crate::issue::IssueKind;

static FILE: LazyLock<Map<String, Value>> = LazyLock::new(|| data::file(include_str!("presets.json")));

static DATA: LazyLock<Data> = LazyLock::new(|| {
    let file = Row::of(&FILE);
    let preset = |row: Row<'static>| Preset {
        name: row.text("name"),
        hf_id: row.text("hf_id"),
        params_total: row.number("params_total").unwrap_or_default(),
        config: row.object("config"),
        sources: row.positions("sources"),
    };
    let known = |row: Row<'_>| Known {
        name: row.text("name"),
        hf_id: row.text("hf_id"),
        architecture: row.text("architecture"),
    };
    Data {
        sources: file.row("meta").texts("sources"),
        presets: file.rows("presets").map(preset).collect(),
        known: file.rows("known").map(known).collect(),
    }
});

/// The data file.
#[derive(Debug)]
struct Data {
    sources: Vec<String>,
    presets: Vec<Preset>,
    known: Vec<Known>,
}

/// A model whose configuration is built in.
#[derive(Debug)]
pub struct Preset {
    /// The name it is listed under.
    pub name: String,
    /// Its repository on the Hugging Face Hub; empty where it has none.
    pub hf_id: String,
    /// Unique parameters, tied weights once; published or counted, not computed by this crate.
    pub params_total: u64,
    /// The fields of its `config.json`.
    pub config: &'static Map<String, Value>,
    sources: Vec<usize>,
}

impl Preset {
    /// Where the configuration comes from.
    pub fn sources(&self) -> impl Iterator<Item = &'static str> {
        self.sources.iter().filter_map(|&at| DATA.sources.get(at)).map(String::as_str)
    }
}

/// A model that is known by name and whose family is not modelled.
#[derive(Debug)]
struct Known {
    name: String,
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
    // Most ask by the name that they found here.
    if let Some(preset) = presets().iter().find(|p| p.name == name) {
        return Ok(preset);
    }
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
        assert_eq!(presets().len(), 119);
        let file = Row::of(&FILE);
        assert_eq!(file.misfits(&["meta", "presets", "known"], &[]), [""; 0]);
        assert_eq!(file.row("meta").misfits(&["about", "sources"], &[]), [""; 0]);
        for row in file.rows("presets") {
            assert_eq!(row.misfits(&["name", "params_total", "config", "sources"], &["hf_id"]), [""; 0]);
        }
        for row in file.rows("known") {
            assert_eq!(row.misfits(&["name", "architecture"], &["hf_id"]), [""; 0]);
        }
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

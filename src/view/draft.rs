//! What the person has entered: the choices, and each text field as it was typed.
//!
//! A half-typed number stays half-typed: the text is the state, and the plan is read from it.

use serde_json::{Map, Value};

use crate::estimate::read_model;
use crate::issue::{Issue, IssueKind};
use crate::machine::{CustomGpu, GpuChoice};
use crate::model::ModelSource;
use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, Ddp};
use crate::recipe::{ALL_LINEAR, FloatName, Lora, QuantKind, Quantization};
use crate::units::{Bytes, GIB};
use crate::view::Field;

/// The path under which issues about the model's text are reported.
pub const CONFIG_PATH: &str = "model.config";

/// The inputs as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The choices, and whatever the page has no control for.
    choices: Plan,
    /// The text of each field, in the order of [`Field::ALL`].
    texts: Vec<String>,
    /// The text of `config.json`, when the model comes from one.
    config: Option<String>,
}

/// How the GPU is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuPick {
    /// Not known.
    Unknown,
    /// A card that the user describes.
    Own,
    /// A card of the catalogue.
    Catalogue(String),
}

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trained {
    /// Every weight.
    All,
    /// Adapters.
    Lora,
    /// Adapters over weights in 4 bits.
    Qlora,
}

impl Draft {
    /// The inputs that make `plan`.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let config = match &plan.model {
            ModelSource::Preset(_) => None,
            ModelSource::Config(config) => Some(serde_json::to_string_pretty(config).unwrap_or_default()),
        };
        Self { texts: Field::ALL.map(|field| field.write(plan)).into(), config, choices: plan.clone() }
    }

    /// The plan that the inputs make.
    ///
    /// # Errors
    /// One issue for each text that cannot be read.
    pub fn plan(&self) -> Result<Plan, Vec<Issue>> {
        let (plan, issues) = self.read();
        if issues.is_empty() { Ok(plan) } else { Err(issues) }
    }

    /// The plan that the inputs make, and one issue for each text that cannot be read. The plan then has the last
    /// loaded value in that text's place, so that what else is wrong can be said at the same time.
    #[must_use]
    pub fn read(&self) -> (Plan, Vec<Issue>) {
        let mut plan = self.choices.clone();
        let mut issues = Vec::new();
        if let Some(config) = &self.config {
            match read_config(config) {
                Ok(map) => plan.model = ModelSource::Config(map),
                Err(kind) => issues.push(Issue::new(CONFIG_PATH, kind)),
            }
        }
        for (field, text) in Field::ALL.into_iter().zip(&self.texts) {
            if let Err(kind) = field.read(text, &mut plan) {
                issues.push(Issue::new(field.path(), kind));
            }
        }
        (plan, issues)
    }

    /// The choices. Its typed values are those of the last plan that was loaded: read them from [`Draft::plan`].
    #[must_use]
    pub fn choices(&self) -> &Plan {
        &self.choices
    }

    /// The choices, to change one.
    pub(super) fn choices_mut(&mut self) -> &mut Plan {
        &mut self.choices
    }

    /// The text of a field.
    #[must_use]
    pub fn text(&self, field: Field) -> &str {
        &self.texts[field as usize]
    }

    /// Types into a field.
    pub(super) fn set_text(&mut self, field: Field, text: String) {
        self.texts[field as usize] = text;
    }

    /// After another number of GPUs was typed: several need a wrapper, one needs none.
    pub(super) fn wrap(&mut self) {
        let Ok(plan) = self.plan() else { return };
        let parallel = &mut self.choices.parallel;
        match plan.parallel.world_size {
            1 => parallel.data = DataParallel::None,
            n if n > 1 && parallel.data == DataParallel::None && plan.parallel.data_ranks() > 1 => {
                parallel.data = DataParallel::Ddp(Ddp::default());
            }
            _ => {}
        }
    }

    /// The text of `config.json`; `None` when the model is a preset.
    #[must_use]
    pub fn config(&self) -> Option<&str> {
        self.config.as_deref()
    }

    /// Takes the model from a text, or again from the presets.
    pub(super) fn set_config(&mut self, config: Option<String>) {
        if config.is_none() && matches!(self.choices.model, ModelSource::Config(_)) {
            self.choices.model = super::example().model;
        }
        self.config = config;
    }

    /// What is trained: every weight, or adapters beside every linear layer of the blocks, over weights as they are or
    /// in 4 bits.
    #[must_use]
    pub fn trained(&self) -> Trained {
        match (&self.choices.recipe.lora, &self.choices.recipe.quantization) {
            (None, None) => Trained::All,
            (_, None) => Trained::Lora,
            (_, Some(_)) => Trained::Qlora,
        }
    }

    /// Chooses it. Adapters that are there stay as they are.
    pub(super) fn set_trained(&mut self, trained: Trained) {
        let recipe = &mut self.choices.recipe;
        recipe.lora = match trained {
            Trained::All => None,
            _ => recipe.lora.take().or_else(|| Some(Lora::new(16, vec![ALL_LINEAR.into()]))),
        };
        let no_bf16 = self.choices.machine.resolve().is_ok_and(|hardware| hardware.bf16 == Some(false));
        let compute_dtype = no_bf16.then_some(FloatName::Float16);
        let nf4 = Quantization { kind: QuantKind::Nf4, double_quant: true, compute_dtype, prepare: true };
        recipe.quantization = (trained == Trained::Qlora).then_some(nf4);
    }

    /// Takes a linear layer among those with adapters, or out of them.
    pub(super) fn toggle_target(&mut self, name: &'static str) {
        let names = self.linear_names();
        let Some(lora) = &mut self.choices.recipe.lora else { return };
        let has = |target: &str| lora.targets_all() || lora.targets.iter().any(|t| t == target);
        let chosen: Vec<&str> = names.iter().copied().filter(|other| has(other) != (*other == name)).collect();
        let chosen = if chosen == names { vec![ALL_LINEAR] } else { chosen };
        lora.targets = chosen.into_iter().map(str::to_owned).collect();
    }

    /// After another model was taken: adapters beside those of its layers that have the names of before, or all.
    pub(super) fn retarget(&mut self) {
        let names = self.linear_names();
        let Some(lora) = self.choices.recipe.lora.as_mut().filter(|lora| !lora.targets_all()) else { return };
        if !names.is_empty() {
            lora.targets.retain(|target| names.contains(&target.as_str()));
        }
        if lora.targets.is_empty() {
            lora.targets = vec![ALL_LINEAR.into()];
        }
    }

    /// The names of the linear layers in the blocks of the model, each once; none where adapters are not modelled.
    #[must_use]
    pub fn linear_names(&self) -> Vec<&'static str> {
        let config = self.config.as_deref().and_then(|text| read_config(text).ok()).map(ModelSource::Config);
        let Ok(read) = read_model(config.as_ref().unwrap_or(&self.choices.model)) else { return Vec::new() };
        let mut names: Vec<&'static str> = Vec::new();
        let renamed = read.model.renamed_targets().iter().map(|(name, _)| *name);
        for name in read.model.linear_names().into_iter().flatten().chain(renamed) {
            // The output head is none of the blocks; peft's `all-linear` leaves it out too.
            if !names.contains(&name) && !matches!(name, "lm_head" | "embed_out") {
                names.push(name);
            }
        }
        names
    }

    /// How the GPU is given.
    #[must_use]
    pub fn gpu(&self) -> GpuPick {
        match &self.choices.machine.gpu {
            None => GpuPick::Unknown,
            Some(GpuChoice::Custom(_)) => GpuPick::Own,
            Some(GpuChoice::Catalogue(name)) => GpuPick::Catalogue(name.clone()),
        }
    }

    /// Chooses the GPU. One's own card starts with a name and a size to change.
    pub(super) fn set_gpu(&mut self, pick: GpuPick) {
        self.choices.machine.gpu = match pick {
            GpuPick::Unknown => None,
            GpuPick::Catalogue(name) => Some(GpuChoice::Catalogue(name)),
            GpuPick::Own => Some(GpuChoice::Custom(CustomGpu {
                name: String::new(),
                memory_bytes: Bytes(24 * GIB),
                compute_capability: None,
            })),
        };
        if self.gpu() == GpuPick::Own {
            for field in [Field::GpuName, Field::GpuMemory, Field::GpuCapability] {
                if self.text(field).is_empty() {
                    self.set_text(field, field.write(&self.choices));
                }
            }
        }
    }
}

/// The object in a `config.json`.
///
/// # Errors
/// Where the text stops being one.
fn read_config(text: &str) -> Result<Map<String, Value>, IssueKind> {
    let expected = || "a JSON object, as in a Hugging Face config.json".to_owned();
    if text.trim().is_empty() {
        return Err(IssueKind::Missing { expected: expected() });
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => {
            let found: String = other.to_string().chars().take(40).collect();
            Err(IssueKind::NotA { expected: expected(), found })
        }
        Err(error) => {
            let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
            let snippet: String = line.trim().chars().take(40).collect();
            let found = format!("`{snippet}` at line {}, column {}", error.line(), error.column());
            Err(IssueKind::NotA { expected: expected(), found })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::example;

    #[test]
    fn a_draft_of_a_plan_is_that_plan() {
        assert_eq!(Draft::of(&example()).plan(), Ok(example()));
    }

    #[test]
    fn half_typed_text_stays_and_is_reported_by_its_path() {
        let mut draft = Draft::of(&example());
        draft.set_text(Field::SeqLen, "20x".into());
        draft.set_text(Field::InUse, "1.".into());
        draft.set_config(Some("{\n  \"model_type\": llama }".into()));
        assert_eq!(draft.text(Field::SeqLen), "20x");
        let issues = draft.plan().unwrap_err();
        let fields: Vec<_> = issues.iter().map(|issue| issue.field.as_str()).collect();
        assert_eq!(fields, [CONFIG_PATH, "recipe.seq_len"]);
        let IssueKind::NotA { found, .. } = &issues[0].kind else { panic!("{issues:?}") };
        assert_eq!(found, "`\"model_type\": llama }` at line 2, column 17");
    }

    #[test]
    fn a_config_stays_a_config() {
        let mut plan = example();
        plan.model = ModelSource::Config(read_config(r#"{"model_type": "llama", "hidden_size": 64}"#).unwrap());
        assert_eq!(Draft::of(&plan).plan(), Ok(plan));
    }

    #[test]
    fn ones_own_card_keeps_what_was_typed_when_another_is_looked_at() {
        let mut draft = Draft::of(&example());
        draft.set_gpu(GpuPick::Own);
        draft.set_text(Field::GpuMemory, "48 GiB".into());
        draft.set_gpu(GpuPick::Catalogue("RTX 4090 24GB".into()));
        draft.set_gpu(GpuPick::Own);
        let Some(GpuChoice::Custom(gpu)) = draft.plan().unwrap().machine.gpu else { panic!() };
        assert_eq!(gpu.memory_bytes, Bytes(48 * GIB));
    }
}

//! The form's lists, hints and the issues beside its fields.

use crate::decide::Caveat;
use crate::issue::Issue;
use crate::machine::{self, Gpu};
use crate::model::{self, ModelSource};
use crate::recipe::{OptimizerImpl, OptimizerName, Recipe};
use crate::text::{Catalogue, Label, Msg};
use crate::units::grouped;
use crate::view::draft::CONFIG_PATH;
use crate::view::number::count;
use crate::view::{Field, GpuPick, Panel, Pick, State};

/// The `id` of the model's control, of the GPU's, and of the text of `config.json`.
pub const MODEL_ID: &str = "model";
/// The `id` of the GPU's control.
pub const GPU_ID: &str = "gpu";
/// The `id` of the text of `config.json`.
pub const CONFIG_ID: &str = "config";

/// The `id` of the choice of adapters.
pub const LORA_ID: &str = "lora";
/// The id of the choice of loss.
pub const LOSS_ID: &str = "loss";

/// The presets that match the filter, and always the chosen one.
#[must_use]
pub fn presets(filter: &str, chosen: &str) -> Vec<&'static str> {
    model::presets().iter().map(|p| p.name.as_str()).filter(|name| *name == chosen || matches(name, filter)).collect()
}

/// The GPUs that match the filter, and always the chosen one.
#[must_use]
pub fn gpus(filter: &str, chosen: &GpuPick) -> Vec<&'static Gpu> {
    let chosen = match chosen {
        GpuPick::Catalogue(name) => machine::find(name).ok(),
        _ => None,
    };
    machine::gpus()
        .iter()
        .filter(|gpu| {
            filter.is_empty()
                || chosen.is_some_and(|c| c.name == gpu.name)
                || matches(&format!("{} {} {}", gpu.name, gpu.vendor, gpu.arch), filter)
        })
        .collect()
}

/// The first preset that the filter leaves; none without a filter.
#[must_use]
pub fn first_preset(filter: &str) -> Option<&'static str> {
    presets(filter, "").first().copied().filter(|_| !filter.trim().is_empty())
}

/// The first GPU that the filter leaves; none without a filter.
#[must_use]
pub fn first_gpu(filter: &str) -> Option<&'static Gpu> {
    gpus(filter, &GpuPick::Unknown).first().copied().filter(|_| !filter.trim().is_empty())
}

/// Whether every word of the filter is in the name.
fn matches(name: &str, filter: &str) -> bool {
    if filter.is_empty() {
        return true;
    }
    let name = name.to_ascii_lowercase();
    filter.to_ascii_lowercase().split_whitespace().all(|word| name.contains(word))
}

/// Whether the recipe's optimizer has a momentum.
#[must_use]
pub fn has_momentum(recipe: &Recipe) -> bool {
    matches!(recipe.optimizer.name, OptimizerName::Sgd | OptimizerName::RmsProp)
}

/// Whether an implementation is one that the recipe's optimizer has and that is modelled.
#[must_use]
pub fn is_offered(recipe: &Recipe, implementation: OptimizerImpl) -> bool {
    let mut with = recipe.clone();
    with.optimizer.implementation = Some(implementation);
    recipe.optimizer.name.implementations().contains(&implementation)
        && with.issues().iter().all(|issue| issue.field != "recipe.optimizer.impl")
}

/// The hint under the GPU: what of it can be used, and how that is known.
#[must_use]
pub fn gpu_hint(state: &State, text: &dyn Catalogue) -> Option<String> {
    let hardware = state.draft.plan().ok()?.machine.resolve().ok()?;
    hardware.name.as_ref()?;
    let source = hardware.capacity.as_ref().map_or("", |c| c.provenance.source.as_str());
    Some(text.say(&Msg::GpuHint { capacity: hardware.capacity.as_ref().map(|c| c.bytes), source }))
}

/// The hint under the model: its parameters and shape, as the last good answer has them.
#[must_use]
pub fn model_hint(state: &State, text: &dyn Catalogue) -> Option<String> {
    let estimate = &state.outcome.shown.as_ref()?.decision().estimate;
    let shape: Vec<String> = estimate
        .bill
        .symbols
        .iter()
        .filter(|(symbol, _)| matches!(*symbol, "L" | "h" | "V"))
        .map(|(symbol, value)| format!("{} {}", text.symbol(symbol), grouped(*value)))
        .collect();
    Some(text.say(&Msg::ModelHint { parameters: &count(estimate.parameters), shape: &shape.join(", ") }))
}

/// One issue of the summary: the control that it is about, and its sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The `id` of the control to go to.
    pub id: &'static str,
    /// The sentence, with the field's label.
    pub sentence: String,
}

/// Every issue of the inputs, for the summary above the form.
#[must_use]
pub fn problems(state: &State, text: &dyn Catalogue) -> Vec<Problem> {
    state
        .outcome
        .issues
        .iter()
        .map(|issue| {
            let (id, label) = control(issue, state, text);
            let field = label.map_or_else(|| issue.field.clone(), str::to_owned);
            Problem { id, sentence: text.say(&Msg::Problem { field: &field, issue }) }
        })
        .collect()
}

/// The sentences beside the control `id`; the field's name is left out where the control has it as its label.
#[must_use]
pub fn issues_of(state: &State, id: &str, text: &dyn Catalogue) -> Vec<String> {
    let mine = state.outcome.issues.iter().filter(|issue| control(issue, state, text).0 == id);
    mine.map(|issue| match control(issue, state, text).1 {
        Some(_) => text.issue(&issue.kind),
        None => text.say(&Msg::Problem { field: &issue.field, issue }),
    })
    .collect()
}

/// The control that an issue is about, and its label where that names the field.
fn control(issue: &Issue, state: &State, text: &dyn Catalogue) -> (&'static str, Option<&'static str>) {
    if let Some(field) = Field::ALL.into_iter().find(|field| field.path() == issue.field) {
        return (field.id(), Some(text.label(field.label())));
    }
    let starts = |prefix: &str| issue.field.starts_with(prefix);
    let (id, label) = match issue.field.as_str() {
        CONFIG_PATH => (CONFIG_ID, Label::ConfigJson),
        "machine.gpu" => (GPU_ID, Label::Gpu),
        "model" | "model.preset" => (MODEL_ID, Label::Model),
        "recipe.precision" => ("precision", Label::Precision),
        "recipe.attention" | "recipe.sdpa_backend" => ("attention", Label::Attention),
        "recipe.checkpointing" => ("checkpointing", Label::Checkpointing),
        "recipe.loss" => (LOSS_ID, Label::Loss),
        "recipe.optimizer.impl" => ("implementation", Label::Implementation),
        _ if starts("recipe.lora") || starts("recipe.quantization") => (LORA_ID, Label::Trained),
        _ if starts(Field::Lengths.path()) => (Field::Lengths.id(), Label::Lengths),
        _ if starts("recipe.optimizer") => ("optimizer", Label::Optimizer),
        _ if starts("machine") => return (GPU_ID, None),
        path => {
            // The narrowest path comes last.
            if let Some(pick) = Pick::ALL.into_iter().rev().find(|pick| path.starts_with(pick.path())) {
                return (pick.id(), Some(text.pick(pick)));
            }
            // What is wrong inside a config.json is named by its own field.
            return (if state.draft.config().is_some() { CONFIG_ID } else { MODEL_ID }, None);
        }
    };
    (id, Some(text.label(label)))
}

/// The fields among the inputs that most people leave as they are.
const RARE: [Field; 16] = [
    Field::TensorSize,
    Field::Pipeline,
    Field::ContextRanks,
    Field::ExpertRanks,
    Field::GpusPerNode,
    Field::NetworkGbps,
    Field::LinkGbps,
    Field::Completion,
    Field::ClipGrad,
    Field::Packed,
    Field::Freeze,
    Field::MigSlice,
    Field::Context,
    Field::Pytorch,
    Field::Transformers,
    Field::AllocConf,
];

/// The lists that do not stand among them.
const ELSEWHERE: [Pick; 3] = [Pick::Sharding, Pick::Quantizer, Pick::Batching];

/// Whether the inputs about a run over many lengths are open: as asked for, and where something is wrong with one.
#[must_use]
pub fn lengths_are_open(state: &State) -> bool {
    let path = Pick::Batching.path();
    state.is_open(Panel::Lengths) || state.outcome.issues.iter().any(|issue| issue.field.starts_with(path))
}

/// Whether the inputs that most people leave as they are are open: as asked for, and where something is wrong with one.
#[must_use]
pub fn more_is_open(state: &State) -> bool {
    let wrong = |issue: &Issue| {
        let starts = |path: &str| issue.field.starts_with(path);
        RARE.iter().any(|field| starts(field.path()))
            || Pick::ALL.iter().any(|pick| !ELSEWHERE.contains(pick) && starts(pick.path()))
    };
    state.is_open(Panel::More) || state.outcome.issues.iter().any(wrong)
}

/// Whether it is asked what nodes the GPUs are on: of several, and where something was said of them.
#[must_use]
pub fn asks_cluster(state: &State) -> bool {
    let typed = |field: Field| state.draft.text(field).trim();
    let said = [Field::GpusPerNode, Field::NetworkGbps, Field::LinkGbps];
    typed(Field::WorldSize) != "1" || said.into_iter().any(|field| !typed(field).is_empty())
}

/// The nodes that the GPUs are on, in words; none while something is wrong with the inputs.
#[must_use]
pub fn nodes(state: &State, text: &dyn Catalogue) -> Option<String> {
    let parallel = &state.outcome.shown.as_ref().filter(|_| !state.is_stale())?.plan().parallel;
    Some(text.nodes(parallel.world_size, parallel.ranks_of_node()))
}

/// The preset that is chosen, or was before a `config.json` was taken.
#[must_use]
pub fn chosen_preset(state: &State) -> &str {
    match &state.draft.choices().model {
        ModelSource::Preset(name) => model::presets::find(name).map_or(name, |preset| &preset.name),
        ModelSource::Config(_) => "",
    }
}

/// The model's name in the navigation.
#[must_use]
pub fn model_name(state: &State, text: &dyn Catalogue) -> String {
    match state.draft.config() {
        Some(_) => text.label(Label::ConfigJson).into(),
        None => chosen_preset(state).into(),
    }
}

/// The catalogue's own name of a card that a plan names by any of its names.
#[must_use]
pub fn catalogue_name(name: &str) -> &str {
    machine::find(name).map_or(name, |gpu| &gpu.name)
}

/// The hint under a precision that is not known: what every recipe would come to.
#[must_use]
pub fn precision_hint(state: &State, text: &dyn Catalogue) -> String {
    let mut sentences = vec![text.label(Label::PrecisionUnknownHint).to_owned()];
    let Some(shown) = &state.outcome.shown else { return sentences.concat() };
    for caveat in &shown.decision().caveats {
        if let Caveat::PrecisionNotGiven { candidates } = caveat {
            let said: Vec<String> = candidates
                .iter()
                .map(|c| {
                    let name = text.precision(c.precision);
                    let verdict = (!shown.decision().awaits_replay()).then_some(c.verdict);
                    text.say(&Msg::PrecisionCandidate { name, verdict, allocated: c.allocated })
                })
                .collect();
            sentences.push(format!("{}.", said.join("; ")));
        }
    }
    sentences.join(" ")
}

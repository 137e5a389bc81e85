//! Parameters that are not trained, by the names that `model.named_parameters()` gives them.

use crate::issue::{Issue, IssueKind};
use crate::model::family::Model;
use crate::recipe::Recipe;
use crate::step::load;
use crate::step::shape::Shape;
use crate::step::tensor::Tensor;

/// Whether the parameter `name` is the one that `prefix` names, or lies in the module of that name.
fn belongs(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// For each parameter whether the recipe freezes it.
pub(crate) fn frozen(model: &dyn Model, recipe: &Recipe) -> Vec<bool> {
    if recipe.freeze.is_empty() {
        return Vec::new();
    }
    let frozen = |name: &String| recipe.freeze.iter().any(|prefix| belongs(name, prefix));
    model.parameter_names().iter().map(frozen).collect()
}

/// The parameters of the model itself that are trained where there are no adapters, by position.
pub(crate) fn trained_parameters(model: &dyn Model, recipe: &Recipe) -> Vec<(usize, Shape)> {
    let frozen = frozen(model, recipe);
    let untrained = model.untrained().filter(|_| !load::loads(recipe));
    let is_trained = |at: usize| untrained != Some(at) && frozen.get(at) != Some(&true);
    let all = model.parameters().into_iter().map(|p| p.shape).enumerate();
    all.filter(|(at, _)| is_trained(*at)).collect()
}

/// Freezes what the recipe names; returns the others, which are trained.
pub(crate) fn trained(model: &dyn Model, recipe: &Recipe, weights: &[Tensor]) -> Vec<Tensor> {
    // `from_pretrained` puts a parameter that needs a gradient in the place of each (`set_param_for_module`,
    // transformers 5.24), also of one that the model had frozen.
    if load::loads(recipe)
        && let Some(leaf) = model.untrained().and_then(|at| weights.get(at)?.leaf())
    {
        leaf.frozen.set(false);
    }
    for (leaf, frozen) in weights.iter().filter_map(Tensor::leaf).zip(frozen(model, recipe)) {
        // What the model never trains stays so.
        leaf.frozen.set(frozen || leaf.frozen.get());
    }
    weights.iter().filter(|w| w.is_trained()).cloned().collect()
}

/// Whether the recipe may freeze some layers and not others, or fold adapters into some: a name has a layer's number in it.
pub(crate) fn tells_layers_apart(recipe: &Recipe) -> bool {
    let is_number = |part: &str| part.parse::<u64>().is_ok();
    let folded = recipe.lora.iter().flat_map(|lora| &lora.target_parameters);
    recipe.freeze.iter().chain(folded).any(|name| name.split('.').any(is_number))
}

/// What is wrong with what the recipe freezes: names that the model lacks, all of it.
#[inline(never)]
pub(crate) fn issues(model: &dyn Model, recipe: &Recipe) -> Vec<Issue> {
    const FIELD: &str = "recipe.freeze";
    let names = model.parameter_names();
    if names.is_empty() {
        let what = format!("frozen parts of the family {}", model.family());
        return vec![Issue::new(FIELD, IssueKind::NotModelled { what })];
    }
    let mut issues = Vec::new();
    for prefix in recipe.freeze.iter().filter(|prefix| !names.iter().any(|name| belongs(name, prefix))) {
        let mut did_you_mean: Vec<String> = names.iter().map(|name| module(name).to_owned()).collect();
        did_you_mean.dedup();
        did_you_mean.truncate(SUGGESTIONS);
        let found = prefix.chars().take(80).collect();
        issues.push(Issue::new(FIELD, IssueKind::UnknownName { found, did_you_mean }));
    }
    if recipe.lora.is_none() && frozen(model, recipe).iter().all(|frozen| *frozen) {
        let expected = "something that is trained".into();
        issues.push(Issue::new(FIELD, IssueKind::NotA { expected, found: recipe.freeze.join(", ") }));
    }
    issues
}

/// How many names are suggested for one that is not known.
const SUGGESTIONS: usize = 8;

/// The module of a parameter: its layer, or what it belongs to outside the layers.
fn module(name: &str) -> &str {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if part.parse::<u64>().is_ok() {
            return &name[..end];
        }
        end += 1;
    }
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

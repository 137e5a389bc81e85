//! Adapters on a tape: the weights beneath them freeze, the pairs are what is trained (peft 0.21: `inject_adapter`,
//! `LoraLayer.update_layer`, `cast_adapter_dtype`).

use std::rc::Rc;

use crate::bill::Part;
use crate::issue::{Issue, IssueKind};
use crate::model::family::Model;
use crate::order::sort_short_by_key;
use crate::recipe::{Lora, LoraBias, Method, Recipe};
use crate::step::freeze::trained_parameters;
use crate::step::ops::Code;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{AS_LINEAR, AS_TABLE, Adapter, Dtype, Tensor};

/// The layer that a tied output head is known by.
const HEAD: &str = "lm_head";

/// Something that is trained; numbers are places among the model's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trained {
    /// A bias of the model.
    Bias(usize),
    /// A [r, in] of the pair beside a weight.
    A(usize),
    /// B [out, r].
    B(usize),
    /// DoRA's magnitude [out].
    Magnitude(usize),
    /// A copy that runs in a weight's place, [`AS_LINEAR`] or [`AS_TABLE`].
    Copy(usize, usize),
}

impl Trained {
    fn of(self) -> usize {
        match self {
            Self::Bias(i) | Self::A(i) | Self::B(i) | Self::Magnitude(i) | Self::Copy(i, _) => i,
        }
    }

    /// Its sizes beside `weight`, whose pair has the rank `r`. `in_out`: whether linear layers' weights and each expert's
    /// matrix lie [in, out].
    fn shape(self, r: u64, weight: &Shape, in_out: [bool; 2]) -> Shape {
        // Of experts each has its own pair; they lie beside each other.
        let stacked = weight.rank() == 3;
        let (experts, from) = if stacked { (weight.dims()[0].n, 1) } else { (1, 0) };
        let r = Dim::plain(r.saturating_mul(experts));
        let (rows, columns) = (weight.dims()[from], weight.dims()[weight.rank().min(2 + from) - 1]);
        let (out, input) = if in_out[usize::from(stacked)] { (columns, rows) } else { (rows, columns) };
        match self {
            Self::A(_) => Shape::new(&[r, input]),
            Self::B(_) => Shape::new(&[out, r]),
            Self::Magnitude(_) => Shape::new(&[out]),
            Self::Bias(_) | Self::Copy(..) => *weight,
        }
    }
}

/// How `model`'s linear layers' weights and its experts' matrices lie.
fn in_out(model: &dyn Model) -> [bool; 2] {
    [model.linears_lie_in_out(), model.experts_lie_in_out()]
}

/// The ends of the names of the parameters that pairs are folded into, and the pairs' ranks: those that `lora` names, and
/// those that hold layers it names. Two layers' pairs in one parameter have twice the rank (`_convert_peft_config_moe`,
/// peft 0.21, utils/transformers_weight_conversion.py).
fn target_parameters<'a>(model: &dyn Model, lora: &'a Lora) -> Vec<(&'a str, u64)> {
    let renamed = model.renamed_targets();
    let mut all: Vec<(&str, u64)> = Vec::new();
    for (_, new) in renamed.iter().filter(|(old, _)| is_target(lora, old)) {
        match all.iter_mut().find(|(name, _)| name == new) {
            Some((_, rank)) => *rank = rank.saturating_add(lora.r),
            None => all.push((new, lora.r)),
        }
    }
    for name in &lora.target_parameters {
        if !all.iter().any(|(other, _)| other == name) {
            all.push((name, lora.r));
        }
    }
    all
}

/// Whether a parameter is one that ends in `target`, part by part.
fn ends_in(parameter: &str, target: &str) -> bool {
    parameter.strip_suffix(target).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// For each parameter of the model the rank of the pair that is folded into it; nothing where there is none.
fn folded_ranks(model: &dyn Model, lora: &Lora, names: &[String]) -> Vec<Option<u64>> {
    let targets = target_parameters(model, lora);
    if targets.is_empty() {
        return Vec::new();
    }
    let rank = |name: &String| targets.iter().find(|(target, _)| ends_in(name, target)).map(|(_, rank)| *rank);
    names.iter().map(rank).collect()
}

/// What is trained, and the rank of its pair.
type Ranked = (Trained, u64);

/// What `lora` trains of `model`, in the order of `model.parameters()`: beside each targeted layer its bias, then its
/// pair; a copy after its original; pairs that are folded into parameters after those of their module.
fn trained(model: &dyn Model, lora: &Lora) -> Vec<Ranked> {
    let (linear, names, parameters) = (model.linear_names(), model.parameter_names(), model.parameters());
    let name = |i: usize| names.get(i).map_or("", String::as_str);
    let pair = |i: usize| linear.get(i).copied().flatten().is_some_and(|n| is_target(lora, n));
    let saved = |i: usize| lora.modules_to_save.iter().any(|m| is_module(name(i), m));
    let own_bias = |i: usize| {
        let stem = name(i).strip_suffix(".bias")?;
        (i > 0 && name(i - 1).strip_suffix(".weight") == Some(stem)).then_some(i - 1)
    };
    let folded = folded_ranks(model, lora, &names);
    let folded = |i: usize| folded.get(i).copied().flatten();
    let mut all: Vec<Ranked> = Vec::new();
    let mut of_module: Vec<Ranked> = Vec::new();
    let add_pair = |all: &mut Vec<Ranked>, i: usize| {
        all.extend([(Trained::A(i), lora.r), (Trained::B(i), lora.r)]);
        if lora.use_dora {
            all.push((Trained::Magnitude(i), lora.r));
        }
    };
    for (i, parameter) in parameters.iter().enumerate() {
        if !of_module.is_empty() && module_of(name(i)) != module_of(name(i - 1)) {
            all.append(&mut of_module);
        }
        if let Some(rank) = folded(i) {
            of_module.extend([(Trained::A(i), rank), (Trained::B(i), rank)]);
        }
        let owner = own_bias(i).filter(|&w| pair(w));
        let is_bias = name(i).ends_with(".bias");
        if is_bias && (lora.bias == LoraBias::All || lora.bias == LoraBias::LoraOnly && owner.is_some()) {
            all.push((Trained::Bias(i), 0));
        }
        if let Some(weight) = owner {
            add_pair(&mut all, weight);
        }
        if pair(i) && own_bias(i + 1) != Some(i) {
            add_pair(&mut all, i);
        }
        if saved(i) {
            let table = parameter.lookup_only || is_tied(model, i);
            all.push((Trained::Copy(i, if table { AS_TABLE } else { AS_LINEAR }), 0));
        }
    }
    all.append(&mut of_module);
    if is_tied(model, 0) && lora.modules_to_save.iter().any(|m| m == HEAD) {
        all.push((Trained::Copy(0, AS_LINEAR), 0));
    }
    all
}

/// The module that a parameter belongs to.
fn module_of(parameter: &str) -> &str {
    parameter.rsplit_once('.').map_or("", |(module, _)| module)
}

/// Whether a parameter is a look-up table that is the output head too.
fn is_tied(model: &dyn Model, i: usize) -> bool {
    i == 0 && model.parameters().first().is_some_and(|p| p.linear && p.shape.rank() == 2)
}

fn is_target(lora: &Lora, name: &str) -> bool {
    if lora.targets_all() { name != HEAD } else { lora.targets.iter().any(|t| t == name) }
}

/// Whether a parameter belongs to a module of this name.
fn is_module(parameter: &str, module: &str) -> bool {
    ends_in(module_of(parameter), module)
}

/// The sizes of what is trained: with adapters theirs, without them those of every parameter that is not frozen.
pub(crate) fn trained_shapes(model: &dyn Model, recipe: &Recipe) -> Vec<Shape> {
    let mut shapes: Vec<Shape> = match &recipe.lora {
        Some(lora) => adapter_shapes(model, lora),
        None => trained_parameters(model, recipe).into_iter().map(|(_, shape)| shape).collect(),
    };
    // A critic is trained with the policy, all of it.
    let critic = model.scored().filter(|_| matches!(recipe.method, Some(Method::Ppo(_))));
    shapes.extend(critic.iter().flat_map(|critic| critic.parameters()).map(|p| p.shape));
    shapes
}

/// What is trained of the model, and beside it: the parameter that it is, or stands beside, and its sizes.
pub(crate) fn trained_parts(model: &dyn Model, recipe: &Recipe) -> Vec<(usize, Shape)> {
    let Some(lora) = &recipe.lora else { return trained_parameters(model, recipe) };
    let parameters = model.parameters();
    let part = |(t, r): &Ranked| Some((t.of(), t.shape(*r, &parameters.get(t.of())?.shape, in_out(model))));
    trained(model, lora).iter().filter_map(part).collect()
}

/// The sizes of what `lora` trains: of the pairs, and of what else it says.
pub(crate) fn adapter_shapes(model: &dyn Model, lora: &Lora) -> Vec<Shape> {
    let parameters = model.parameters();
    let shape = |(t, r): &Ranked| Some(t.shape(*r, &parameters.get(t.of())?.shape, in_out(model)));
    trained(model, lora).iter().filter_map(shape).collect()
}

/// Freezes `weights` and adds what `lora` trains; returns it in the order of `model.parameters()`.
#[inline(never)]
pub(crate) fn attach(tape: &Tape, model: &dyn Model, lora: &Lora, weights: &[Tensor]) -> Vec<Tensor> {
    for leaf in weights.iter().filter_map(Tensor::leaf) {
        leaf.frozen.set(true);
    }
    let before = tape.set_scope("adapters");
    let all = trained(model, lora);
    let names = if all.is_empty() { Vec::new() } else { model.parameter_names() };
    let folded = folded_ranks(model, lora, &names);
    let turn = |one: Trained| match one {
        Trained::Copy(..) => Turn::Copies,
        _ if folded.get(one.of()).copied().flatten().is_some() => Turn::Parameters,
        _ => Turn::Layers,
    };
    // Made in the base's dtype where that is floating; then cast.
    let mut data: Vec<Option<Tensor>> = all.iter().map(|_| None).collect();
    for now in [Turn::Layers, Turn::Parameters, Turn::Copies] {
        for (i, &(one, rank)) in all.iter().enumerate().filter(|(_, (one, _))| turn(*one) == now) {
            let weight = &weights[one.of()];
            weight.enter_layer(tape);
            let shape = one.shape(rank, weight.shape(), in_out(model));
            data[i] = match one {
                Trained::A(_) | Trained::B(_) => {
                    Some(tape.empty(shape, pair_dtype(weight), Part::Weights, "low-rank pair"))
                }
                Trained::Magnitude(_) => {
                    let pair = [&data[i - 2], &data[i - 1]].map(Option::as_ref);
                    let [Some(a), Some(b)] = pair else { continue };
                    Some(first_magnitude(tape, weight, [a, b], model.linears_lie_in_out(), has_bias(model, one)))
                }
                Trained::Copy(..) => Some(tape.empty(shape, weight.dtype(), Part::Weights, "trained copy")),
                Trained::Bias(_) => None,
            };
        }
    }
    let wanted = lora.adapter_dtype.map(Dtype::from);
    for ((one, _), data) in all.iter().zip(&mut data) {
        let Some(half) = data.take() else { continue };
        let to = match (one, wanted) {
            (_, Some(wanted)) => wanted,
            (Trained::Copy(..), None) => half.dtype(),
            _ => Dtype::F32,
        };
        weights[one.of()].enter_layer(tape);
        *data =
            Some(if half.dtype() == to { half } else { tape.empty(*half.shape(), to, Part::Weights, "low-rank pair") });
    }
    // Numbers from the top: the weights have theirs from 0.
    let mut next_id = u32::MAX;
    let mut out: Vec<Tensor> = Vec::new();
    for ((one, _), data) in all.iter().zip(&data) {
        let weight = &weights[one.of()];
        weight.enter_layer(tape);
        let made = data.as_ref().map(|data| {
            next_id -= 1;
            Tensor::leaf_over(tape, data, next_id, *data.shape(), None)
        });
        let Some(leaf) = weight.leaf() else { continue };
        match (one, &made) {
            (Trained::Bias(_), _) => {
                leaf.frozen.set(false);
                out.push(weight.clone());
            }
            (Trained::Copy(_, at), _) => leaf.copies.borrow_mut()[*at].clone_from(&made),
            (Trained::B(_), Some(b)) => {
                let Some(a) = out.last().cloned() else { continue };
                let (b, dropout) = (b.clone(), lora.dropout);
                *leaf.adapter.borrow_mut() = Some(Rc::new(Adapter { a, b, magnitude: None, dropout }));
            }
            (Trained::Magnitude(_), Some(_)) => {
                let pair = leaf.adapter.borrow_mut().take();
                let Some(Adapter { a, b, dropout, .. }) = pair.and_then(Rc::into_inner) else { continue };
                *leaf.adapter.borrow_mut() = Some(Rc::new(Adapter { a, b, magnitude: made.clone(), dropout }));
            }
            _ => {}
        }
        out.extend(made);
    }
    tape.set_scope(before);
    tape.set_layer(0);
    out
}

/// When peft makes what is trained: pairs beside layers, then those that are folded into parameters (`inject_adapter`,
/// `_inject_parameters`), then copies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Layers,
    Parameters,
    Copies,
}

/// What a pair is made in: the base's dtype, a 4-bit layer's compute dtype, FP32 over integers.
fn pair_dtype(weight: &Tensor) -> Dtype {
    match weight.leaf().and_then(|leaf| leaf.quantized.as_ref()) {
        Some(q) if q.code == Code::Int8 => Dtype::F32,
        Some(q) => q.compute,
        None => weight.dtype(),
    }
}

fn has_bias(model: &dyn Model, one: Trained) -> bool {
    model.parameter_names().get(one.of() + 1).is_some_and(|name| name.ends_with(".bias"))
}

/// DoRA's first magnitude: the norm of the weight with its pair. A 4-bit layer is copied whole for it, its state twice.
fn first_magnitude(tape: &Tape, weight: &Tensor, [a, b]: [&Tensor; 2], in_out: bool, bias: bool) -> Tensor {
    let quantized = weight.leaf().and_then(|leaf| leaf.quantized.clone());
    // FP16 pairs are taken to FP32 for the product and back.
    let half = a.dtype() == Dtype::F16;
    let wide = |t: &Tensor| if half { tape.cast_raw(t, Dtype::F32) } else { t.clone() };
    let (a, b) = (wide(a), wide(b));
    let copies = quantized.as_ref().filter(|q| q.code != Code::Int8).map(|q| {
        let copy = |t: &Tensor| {
            let copy = tape.temp(*t.shape(), t.dtype(), "copy of the layer");
            drop(tape.temp(Shape::new(&[]), t.dtype(), "empty copy"));
            copy
        };
        let mut copies: Vec<Tensor> = q.state.iter().map(copy).collect();
        copies.push(copy(&q.packed));
        if bias {
            copies.extend(q.bias.borrow().as_ref().map(|b| tape.temp(*b.shape(), b.dtype(), "copy of the layer")));
        }
        copies.extend(q.state.iter().map(copy));
        copies
    });
    let dense = tape.dense_weight(weight);
    let mut product = tape.product_out(Shape::new(&[b.dim(0), a.dim(1)]), &b, "low-rank product");
    if half {
        product = tape.cast_raw(&product, Dtype::F16);
    }
    let dense = if in_out && quantized.is_none() { dense.alias(dense.shape().transposed(0, 1)) } else { dense };
    // The pair needs a gradient here: the norm's graph keeps the sum until the norm is made a parameter.
    let [norm, sum] = tape.weight_norm(&dense, &product);
    drop(copies);
    drop((dense, product, a, b));
    drop(sum);
    tape.becomes(&norm, Part::Weights);
    norm
}

/// What is wrong with the pairs that are folded into parameters: names that the model lacks, and what peft refuses.
fn folded_issues(model: &dyn Model, lora: &Lora, names: &[String]) -> Vec<Issue> {
    let mut issues = Vec::new();
    let shapes: Vec<Shape> = model.parameters().into_iter().map(|p| p.shape).collect();
    let renamed = model.renamed_targets();
    let is_stacked = |i: usize| shapes.get(i).is_some_and(|shape| shape.rank() == 3);
    let takes = |i: usize, name: &str| is_stacked(i) || renamed.iter().any(|(_, new)| ends_in(name, new));
    for target in &lora.target_parameters {
        const FIELD: &str = "recipe.lora.target_parameters";
        let mut found = names.iter().enumerate().filter(|(_, name)| ends_in(name, target)).peekable();
        if found.peek().is_none() {
            let stacked = names.iter().enumerate().filter(|(i, _)| is_stacked(*i));
            let mut did_you_mean: Vec<String> =
                stacked.filter_map(|(_, name)| Some(name.get(name.find("experts.")?..)?.to_owned())).collect();
            did_you_mean.sort_unstable();
            did_you_mean.dedup();
            let found = target.chars().take(80).collect();
            issues.push(Issue::new(FIELD, IssueKind::UnknownName { found, did_you_mean }));
        } else if found.any(|(i, name)| !takes(i, name) || name.contains("bias")) {
            let what = "adapters folded into other parameters than experts' stacked weights and their router's".into();
            issues.push(Issue::new(FIELD, IssueKind::NotModelled { what }));
        }
    }
    // Of the layers that are one parameter now, some and not all.
    for (new, missing) in target_parameters(model, lora).iter().filter_map(|(new, _)| {
        let of = || renamed.iter().filter(|(_, to)| to == new).map(|(old, _)| *old);
        let missing: Vec<&str> = of().filter(|old| !is_target(lora, old)).collect();
        (missing.len() < of().count() && !missing.is_empty()).then_some((*new, missing))
    }) {
        let (missing, there) = (missing.join(", "), lora.targets.join(", "));
        let expected =
            format!("{missing} too: peft cannot convert one without the other, because they are fused into {new}");
        issues.push(Issue::new("recipe.lora.targets", IssueKind::NotA { expected, found: there }));
    }
    if !target_parameters(model, lora).is_empty() {
        let mut refuse = |field: &str, expected: &str, found: String| {
            issues.push(Issue::new(field, IssueKind::NotA { expected: expected.into(), found }));
        };
        if lora.dropout > 0.0 {
            let expected = "0 with experts: peft's lora.ParamWrapper does not work with lora_dropout != 0";
            refuse("recipe.lora.dropout", expected, lora.dropout.to_string());
        }
        if lora.use_dora {
            let expected = "false with experts: peft's lora.ParamWrapper does not work with use_dora=True";
            refuse("recipe.lora.use_dora", expected, "true".into());
        }
        if shapes.iter().any(|shape| shape.rank() == 3 && shape.dims()[0].n == 1) {
            let what = "adapters folded into a single expert".into();
            issues.push(Issue::new("recipe.lora", IssueKind::NotModelled { what }));
        }
    }
    issues
}

/// What is wrong with `lora` on `model`: adapters that the family cannot take, names that it lacks.
#[inline(never)]
pub(crate) fn issues(model: &dyn Model, recipe: &Recipe) -> Vec<Issue> {
    let Some(lora) = &recipe.lora else { return Vec::new() };
    let quantized = recipe.quantization.is_some();
    let not_modelled = |field: &str, what: &str| Issue::new(field, IssueKind::NotModelled { what: what.into() });
    let names = model.linear_names();
    if names.is_empty() {
        let what = format!("adapters over the family {}", model.family());
        return vec![Issue::new("recipe.lora", IssueKind::NotModelled { what })];
    }
    let renamed = model.renamed_targets();
    let mut known: Vec<&str> = names.into_iter().flatten().chain(renamed.iter().map(|(old, _)| *old)).collect();
    sort_short_by_key(&mut known, |name| *name);
    known.dedup();
    let unknown = |field: &'static str, name: &str, known: &[&str]| {
        let did_you_mean = known.iter().map(|n| (*n).to_owned()).collect();
        let found = name.chars().take(80).collect();
        Issue::new(field, IssueKind::UnknownName { found, did_you_mean })
    };
    let mut issues = Vec::new();
    if !lora.targets_all() {
        for target in lora.targets.iter().filter(|t| !known.contains(&t.as_str())) {
            issues.push(unknown("recipe.lora.targets", target, &known));
        }
    }
    let parameters = model.parameter_names();
    issues.extend(folded_issues(model, lora, &parameters));
    if parameters.is_empty() && (lora.bias != LoraBias::None || !lora.modules_to_save.is_empty()) {
        let what = format!("trained biases or copies beside adapters over the family {}", model.family());
        issues.push(Issue::new("recipe.lora", IssueKind::NotModelled { what }));
        return issues;
    }
    // "No `target_modules` passed but also no `target_parameters` found" (`inject_adapter`): a mixture without experts. That no
    // name is given at all is the recipe's issue.
    let named = !(lora.targets.is_empty() && lora.target_parameters.is_empty());
    if named && issues.is_empty() && !trained(model, lora).iter().any(|(one, _)| matches!(one, Trained::A(_))) {
        let expected = "layers that this model has".into();
        issues.push(Issue::new("recipe.lora.targets", IssueKind::Missing { expected }));
    }
    if lora.bias != LoraBias::None && (quantized || lora.use_dora || lora.adapter_dtype.is_some()) {
        issues.push(not_modelled("recipe.lora.bias", "trained biases beside quantised weights, DoRA or cast adapters"));
    }
    for module in &lora.modules_to_save {
        let tied = is_tied(model, 0) && module == HEAD;
        let mut found = parameters.iter().filter(|name| is_module(name, module)).peekable();
        if found.peek().is_none() && !tied {
            issues.push(unknown("recipe.lora.modules_to_save", module, &[HEAD, "embed_tokens", "classifier"]));
        }
        let inside = |name: &String| crate::step::load::layer_of(name) != 0 || name.to_lowercase().contains("norm");
        if found.any(inside) || module == "classifier" && quantized {
            issues
                .push(not_modelled("recipe.lora.modules_to_save", "copies of layers' modules, norms, quantised heads"));
        }
    }
    issues
}

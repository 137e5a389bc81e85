//! `from_pretrained`: one warm-up allocation of the model's size, then weight by weight in the checkpoint's order,
//! quantised as they come; then, over quantised weights, `prepare_model_for_kbit_training`.
//!
//! Read at transformers 5.24 (`core_model_loading.py`, `caching_allocator_warmup`, `integrations/bitsandbytes.py`),
//! bitsandbytes 0.50 and peft 0.21. Weights that are not quantised are loaded in one thread here, in order; by default
//! four threads do, whose order is not defined.

use core::cell::RefCell;
use std::rc::Rc;

use crate::bill::Part;
use crate::issue::{Issue, IssueKind};
use crate::model::family::{ExpertNames, Model, Parameter};
use crate::order::sort_short_by;
use crate::recipe::{FloatName, Load, Precision, QuantKind, Quantization, Recipe};
use crate::step::log::Mark;
use crate::step::ops::{BLOCK, Code, NESTED_BLOCK, Quantized};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};
use crate::step::train::{of_vocabulary, over_treated, weights_dtype};
use crate::units::Bytes;

/// What a scale's part is called; it is counted apart from the parameters.
pub(crate) const QUANT_STATE: &str = "quantisation state";
/// The code of nested scales, which the process keeps once.
pub(crate) const QUANT_MAP: &str = "quantisation map";

/// The biases of heads over a tied look-up table.
const HEAD_BIASES: [&str; 3] = ["cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"];

/// Whether the recipe loads a checkpoint.
pub(crate) fn loads(recipe: &Recipe) -> bool {
    recipe.quantization.is_some() || recipe.load == Load::Pretrained
}

/// The dtype that weights are loaded in: the compute dtype of a quantised model, unless the whole is in another.
pub(crate) fn loaded_dtype(recipe: &Recipe, precision: Precision) -> Dtype {
    match (&recipe.quantization, precision) {
        (Some(q), Precision::AmpBf16 | Precision::Bf16Autocast | Precision::AmpFp16) => match (q.compute_dtype, q.kind)
        {
            (Some(dtype), _) => dtype.into(),
            (None, QuantKind::Int8) => Dtype::F16,
            (None, _) => Dtype::Bf16,
        },
        _ => weights_dtype(precision),
    }
}

impl From<FloatName> for Dtype {
    fn from(name: FloatName) -> Self {
        match name {
            FloatName::Bfloat16 => Self::Bf16,
            FloatName::Float16 => Self::F16,
            FloatName::Float32 => Self::F32,
        }
    }
}

/// Whether the quantiser takes a parameter: the weights of linear layers (`type(module) is nn.Linear`) but the output head,
/// tied or not, and what the model keeps in FP32 (`replace_with_bnb_linear`, `get_keys_to_not_convert`).
fn is_quantized(model: &dyn Model, parameter: &Parameter, name: &str) -> bool {
    parameter.linear
        && parameter.shape.rank() == 2
        && !of_vocabulary(parameter)
        && model.has_plain_linears()
        && !is_kept_wide(model, name, Dtype::F16)
        && !is_router(model, name)
}

/// Whether the model keeps a parameter in FP32 when it is loaded in `dtype`.
fn is_kept_wide(model: &dyn Model, name: &str, dtype: Dtype) -> bool {
    name.rsplit('.').nth(1).is_some_and(|module| model.kept_in_f32(dtype).contains(&module))
}

/// Whether it is a router's: a parameter of its own in transformers 5, of no `nn.Linear`, as experts' are.
fn is_router(model: &dyn Model, name: &str) -> bool {
    model.routed_experts().is_some() && ["gate", "router"].contains(&name.rsplit('.').nth(1).unwrap_or_default())
}

/// The experts of a quantised mixture, which stay as they were loaded, for the quantiser takes the weights of `nn.Linear` alone:
/// their bytes and the bytes of each number while it is trained, and whether preparation has widened them.
pub(crate) fn unquantized_experts(model: &dyn Model, recipe: &Recipe) -> Option<(Bytes, u64, bool)> {
    let quantization = recipe.quantization.as_ref()?;
    model.routed_experts()?;
    let loaded = loaded_dtype(recipe, recipe.precision.unwrap_or(Precision::AmpBf16));
    let prepared = quantization.prepare && loaded.is_half();
    let each = if prepared { Dtype::F32.bytes() } else { loaded.bytes() };
    let [elements] = over_treated(model, recipe, &|model| {
        let (parameters, names) = (model.parameters(), model.parameter_names());
        let experts = parameters.iter().zip(&names).filter(|(_, name)| is_expert(name));
        [experts.filter_map(|(parameter, _)| parameter.shape.numel()).fold(0, u64::saturating_add)]
    });
    Some((Bytes(elements.saturating_mul(each)), each, prepared))
}

fn is_expert(name: &str) -> bool {
    name.contains(".experts.")
}

/// The name under which a parameter is looked for first in a checkpoint, which says when it is loaded.
fn first_key(model: &dyn Model, name: &str) -> String {
    let Some(ExpertNames { block, first: [gate, down] }) = model.expert_names() else { return name.into() };
    let name = name.replace(".mlp.", &format!(".{block}."));
    name.replace(".experts.gate_up_proj", &format!(".experts.{gate}"))
        .replace(".experts.down_proj", &format!(".experts.{down}"))
}

/// Experts that a checkpoint holds apart, joined: every tensor comes onto the device first, those of a kind are stacked
/// (`MergeModulelist`), and of two kinds the stacks are joined (`Concatenate`, core_model_loading.py). The quantiser leaves them.
fn joined(tape: &Tape, shape: &Shape, dtype: Dtype, kinds: u64) -> Tensor {
    let [experts, rows, columns] = [0, 1, 2].map(|at| shape.dims()[at]);
    let rows = Dim { n: rows.n / kinds, ..rows };
    let one = |_| tape.temp(Shape::new(&[rows, columns]), dtype, "loaded expert");
    let mut apart: Vec<Vec<Tensor>> = (0..kinds).map(|_| (0..experts.n).map(one).collect()).collect();
    let whole = Shape::new(&[experts, rows, columns]);
    let mut stacks = Vec::new();
    for of_a_kind in apart.drain(..) {
        // A list lets its last item go first; the one before it is let go when the next is taken.
        let stack = if kinds == 1 {
            tape.empty(whole, dtype, Part::Weights, tape.parameters_name())
        } else {
            tape.temp(whole, dtype, "stacked experts")
        };
        of_a_kind.into_iter().rev().for_each(drop);
        stacks.push(stack);
    }
    match stacks.pop() {
        Some(only) if stacks.is_empty() => only,
        last => {
            let whole = tape.empty(*shape, dtype, Part::Weights, tape.parameters_name());
            drop(stacks);
            drop(last);
            whole
        }
    }
}

/// The bytes that are allocated and freed before loading, those of the whole model (`get_total_byte_count`).
pub(crate) fn warm_up_bytes(model: &dyn Model, recipe: &Recipe, loaded: Dtype) -> u64 {
    let names = model.parameter_names();
    let mut half_bytes: u64 = 0;
    for (parameter, name) in model.parameters().iter().zip(&names) {
        let each = match &recipe.quantization {
            Some(q) if is_quantized(model, parameter, name) => {
                if q.kind == QuantKind::Int8 {
                    2
                } else {
                    1
                }
            }
            // Made in FP32 whatever is loaded; what is only kept so is widened when it comes.
            _ if is_kept_wide(model, name, Dtype::F32) => 2 * Dtype::F32.bytes(),
            _ => 2 * loaded.bytes(),
        };
        let n = parameter.shape.numel().unwrap_or(0);
        half_bytes = half_bytes.saturating_add(n.saturating_mul(each));
    }
    // An empty FP16 tensor: an odd byte is left out.
    half_bytes / 4 * 2
}

/// What has been put on the device.
pub(crate) struct Loaded {
    /// In the order of `model.parameters()`.
    pub(crate) weights: Vec<Tensor>,
    pub(crate) buffers: Vec<Tensor>,
    /// The code of nested scales.
    pub(crate) map: Option<Tensor>,
}

/// Loads `model` onto the tape, whose whole, of which it may be a few layers, takes `warm_up` bytes.
#[inline(never)]
pub(crate) fn load(tape: &Tape, model: &dyn Model, recipe: &Recipe, precision: Precision, warm_up: u64) -> Loaded {
    let before = tape.set_scope("loading");
    let dtype = loaded_dtype(recipe, precision);
    drop(tape.scratch(warm_up, "allocator warm-up"));
    let (names, parameters) = (model.parameter_names(), model.parameters());
    let mut order: Vec<usize> = (0..parameters.len().min(names.len())).collect();
    let firsts: Vec<String> = names.iter().map(|name| first_key(model, name)).collect();
    let keys: Vec<Vec<Key<'_>>> = firsts.iter().map(|name| key_of(name)).collect();
    sort_short_by(&mut order, |&a, &b| keys[a] < keys[b]);
    let mut data: Vec<Option<(Tensor, Vec<Tensor>)>> = parameters.iter().map(|_| None).collect();
    let mut map = None;
    let buffer = |n: u64| tape.empty(Shape::new(&[Dim::plain(n)]), Dtype::U8, Part::Weights, "buffer");
    let mut buffer_bytes = model.buffer_bytes(dtype).into_iter();
    let mut buffers = Vec::new();
    for i in order {
        tape.set_layer(layer_of(&names[i]));
        // A buffer of the checkpoint's, before the weight that it corrects.
        if model.corrects_routers() && is_router(model, &names[i]) {
            buffers.extend(buffer_bytes.next().map(buffer));
        }
        let shape = parameters[i].shape;
        let made = match &recipe.quantization {
            Some(q) if is_quantized(model, &parameters[i], &names[i]) => {
                let turned = is_turned(model, i);
                let value = tape.temp(shape, dtype, "loaded weight");
                let copy = match q.kind {
                    QuantKind::Int8 => Some(tape.temp(shape, Dtype::F16, "loaded weight")),
                    _ => turned.then(|| tape.temp(shape, dtype, "loaded weight")),
                };
                let made = if q.kind == QuantKind::Int8 {
                    int8(tape, &shape, turned)
                } else {
                    four_bits(tape, q, &shape, &mut map)
                };
                drop(copy);
                drop(value);
                made
            }
            _ if model.expert_names().is_some() && is_expert(&names[i]) => {
                let kinds = if names[i].ends_with("gate_up_proj") { 2 } else { 1 };
                (joined(tape, &shape, dtype, kinds), Vec::new())
            }
            _ => {
                let wide = is_kept_wide(model, &names[i], dtype);
                let dtype = if wide { Dtype::F32 } else { dtype };
                (tape.empty(shape, dtype, Part::Weights, tape.parameters_name()), Vec::new())
            }
        };
        data[i] = Some(made);
    }
    tape.set_layer(0);
    buffers.extend(buffer_bytes.map(buffer));
    // A tied head's own bias is padded to the table's length: a copy, even where it has that length (`_adjust_bias`).
    let tied = !names.iter().any(|name| name == "lm_head.weight");
    for (name, data) in names.iter().zip(&mut data).filter(|_| tied) {
        if HEAD_BIASES.contains(&name.as_str())
            && let Some((bias, _)) = data
        {
            *bias = tape.empty(*bias.shape(), bias.dtype(), Part::Weights, "parameter");
        }
    }
    tape.mark(Mark::Loaded);
    tape.empty_cache();
    tape.mark(Mark::LoadedAndEmptied);
    if let Some(q) = &recipe.quantization {
        if q.prepare {
            for (i, data) in data.iter_mut().enumerate() {
                tape.set_layer(names.get(i).map_or(0, |name| layer_of(name)));
                let Some((half, state)) = data.take_if(|(data, _)| data.dtype().is_half()) else { continue };
                let wide = tape.empty(*half.shape(), Dtype::F32, Part::Weights, "parameter");
                drop(half);
                *data = Some((wide, state));
            }
            tape.set_layer(0);
            tape.empty_cache();
        }
        tape.mark(Mark::Prepared);
    }
    let weights = weights(tape, model, recipe, dtype, data);
    tape.set_layer(0);
    tape.set_scope(before);
    Loaded { weights, buffers, map }
}

fn weights(
    tape: &Tape,
    model: &dyn Model,
    recipe: &Recipe,
    dtype: Dtype,
    mut data: Vec<Option<(Tensor, Vec<Tensor>)>>,
) -> Vec<Tensor> {
    let (names, parameters) = (model.parameter_names(), model.parameters());
    let mut out = Vec::new();
    // The memory of a bias whose layer casts it for good is the layer's.
    let mut bias_of_layer = None;
    for (i, (parameter, name)) in parameters.iter().zip(&names).enumerate() {
        tape.set_layer(layer_of(name));
        let id = u32::try_from(i).unwrap_or(u32::MAX);
        let Some((data_of_it, state)) = data.get_mut(i).and_then(Option::take) else { continue };
        let shape = parameter.shape;
        let held: Option<Tensor> = bias_of_layer.take();
        out.push(match &recipe.quantization {
            Some(q) if is_quantized(model, parameter, name) => {
                let (rows, columns) = (shape.dims()[0], shape.dims()[1]);
                let (rows, columns) = if is_turned(model, i) { (columns, rows) } else { (rows, columns) };
                let own_bias =
                    names.get(i + 1).filter(|next| next.strip_suffix(".bias") == name.strip_suffix(".weight"));
                let bias = own_bias.and_then(|_| data.get(i + 1)?.as_ref().map(|(bias, _)| bias.clone()));
                bias_of_layer.clone_from(&bias);
                let code = match (q.kind, q.double_quant) {
                    (QuantKind::Int8, _) => Code::Int8,
                    (_, true) => Code::FourBitsNested,
                    (_, false) => Code::FourBits,
                };
                let compute = q.compute_dtype.map_or(Dtype::Bf16, Dtype::from);
                let packed = data_of_it.clone();
                let bias = RefCell::new(bias);
                let q = Quantized { code, rows, columns, compute, loaded: dtype, packed, state, bias };
                Tensor::leaf_over(tape, &data_of_it, id, shape, Some(Rc::new(q)))
            }
            _ if held.is_some() => {
                let stand_in = tape.buffer(shape, data_of_it.dtype());
                Tensor::leaf_over(tape, &stand_in, id, shape, None)
            }
            _ => Tensor::leaf_over(tape, &data_of_it, id, shape, None),
        });
    }
    out
}

/// GPT-2's `Conv1D` weights are turned before they are quantised.
fn is_turned(model: &dyn Model, i: usize) -> bool {
    model.linears_lie_in_out() && model.linear_names().get(i).copied().flatten().is_some()
}

/// `int8_vectorwise_quant`: a scale per row, and the codes.
fn int8(tape: &Tape, shape: &Shape, turned: bool) -> (Tensor, Vec<Tensor>) {
    let rows = shape.dims()[usize::from(turned)];
    let scales = tape.empty(Shape::new(&[rows]), Dtype::F32, Part::Weights, QUANT_STATE);
    let codes = tape.empty(*shape, Dtype::U8, Part::Weights, "parameter");
    (codes, vec![scales])
}

/// `quantize_4bit`: two codes a byte, a scale per block, the 16 values; with double quantisation the scales less their
/// mean in 8 bits, with scales and values of their own.
fn four_bits(tape: &Tape, q: &Quantization, shape: &Shape, map: &mut Option<Tensor>) -> (Tensor, Vec<Tensor>) {
    let state = |n: u64, dtype: Dtype| tape.empty(Shape::new(&[Dim::plain(n)]), dtype, Part::Weights, QUANT_STATE);
    let n = shape.numel().unwrap_or(0);
    let blocks = n.div_ceil(BLOCK);
    let line = Shape::new(&[Dim::plain(blocks)]);
    let scales = if q.double_quant { tape.temp(line, Dtype::F32, "scales") } else { state(blocks, Dtype::F32) };
    let codes = tape.empty(Shape::new(&[Dim::plain(n.div_ceil(2))]), Dtype::U8, Part::Weights, "parameter");
    let values = state(16, Dtype::F32);
    {
        let absolute = tape.temp(*values.shape(), Dtype::F32, "absolute values");
        let most = tape.scalar(Dtype::F32, "largest value");
        drop(absolute);
        drop(most);
    }
    if !q.double_quant {
        return (codes, vec![scales, values]);
    }
    let mean = tape.reduced(&scales, &Shape::new(&[]), QUANT_STATE);
    tape.becomes(&mean, Part::Weights);
    let centred = tape.temp(*scales.shape(), Dtype::F32, "centred scales");
    map.get_or_insert_with(|| tape.empty(Shape::new(&[Dim::plain(256)]), Dtype::F32, Part::Weights, QUANT_MAP));
    let nested = state(blocks.div_ceil(NESTED_BLOCK), Dtype::F32);
    let coded = state(blocks, Dtype::U8);
    let nested_values = state(256, Dtype::F32);
    drop(centred);
    drop(scales);
    (codes, vec![coded, values, mean, nested, nested_values])
}

/// One part of a parameter's name as checkpoints are sorted by (`dot_natural_key`): numbers before words, both by value.
type Key<'a> = (bool, &'a str, Option<u64>, u64);

fn key_of(name: &str) -> Vec<Key<'_>> {
    let part = |part: &'_ str| -> (bool, usize, Option<u64>, u64) {
        let text = part.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = part[text.len()..].parse().ok();
        if text.is_empty() { (false, 0, None, digits.unwrap_or(0)) } else { (true, text.len(), digits, 0) }
    };
    name.split('.')
        .map(|p| {
            let (word, length, digits, number) = part(p);
            (word, &p[..length], digits, number)
        })
        .collect()
}

/// The layer that a parameter belongs to, by its name, counted from 1; 0 is outside the layers.
pub(crate) fn layer_of(name: &str) -> u32 {
    name.split('.').find_map(|part| part.parse::<u32>().ok()).map_or(0, |n| n.saturating_add(1))
}

/// What of `recipe`'s loading and quantisation is not modelled.
#[inline(never)]
pub(crate) fn issues(model: &dyn Model, recipe: &Recipe) -> Vec<Issue> {
    let not = |field: &str, what: String| Issue::new(field, IssueKind::NotModelled { what });
    let field = if recipe.quantization.is_some() { "recipe.quantization" } else { "recipe.load" };
    let mut issues = Vec::new();
    let names = model.parameter_names();
    if names.is_empty() {
        issues.push(not(field, format!("loading of the family {}", model.family())));
    }
    if let Some(quantization) = &recipe.quantization {
        if quantization.kind == QuantKind::Int8 && model.family() == "deepseek_v3" {
            // `Only two or three dimensional matrices are supported for argument A` (backends/cuda/ops.py).
            issues.push(not(field, "LLM.int8 of DeepSeek-V3, which bitsandbytes 0.50 itself refuses to run".into()));
        }
        if recipe.lora.is_none() {
            let expected = "adapters over the quantised weights".into();
            issues.push(Issue::new("recipe.lora", IssueKind::Missing { expected }));
        }
        if recipe.precision == Some(Precision::Bf16Master) {
            issues.push(not("recipe.quantization", "quantised weights with FP32 master weights".into()));
        }
    }
    issues
}

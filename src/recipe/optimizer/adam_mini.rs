//! Adam-mini, from its definition (the authors' adam_mini/adam_mini.py, read at 1.1.1): a first moment in the weights' dtype, and
//! second moments by a weight's name, each in that dtype too: one for each element of what is a bias, one a head of queries and
//! keys, one a row of tables, values, projections and MLPs, one in all of any other. It is given the model's width and heads.

use crate::issue::{Issue, IssueKind};
use crate::model::family::Model;
use crate::recipe::optimizer::{Slots, state_like, state_of};
use crate::recipe::{Parallel, Recipe};
use crate::step::adapters::trained_parts;
use crate::step::ops::reduce::keepdim;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Names of biases.
const ELEMENTS: &[&str] = &["bias"];
/// Names of queries and keys.
const HEADS: &[&str] = &["k_proj", "q_proj", "wq", "wk", "query", "key"];
/// Names of tables, heads, values, projections and MLPs.
const ROWS: &[&str] = &[
    "embed",
    "embd",
    "wte",
    "lm_head",
    "output",
    "final_layer",
    "v_proj",
    "wv",
    "value",
    "feed_forward",
    "linear",
    "mlp",
    "o_proj",
    "wo",
    "attn.proj",
];

/// The sizes of a weight's second moments. None where the weight does not have the sizes that its name asks for: the step fails.
pub(crate) fn second_moments(name: &str, shape: &Shape, head: u64) -> Option<Shape> {
    let name = name.to_lowercase();
    let has = |names: &[&str]| names.iter().any(|part| name.contains(part));
    let column = |n: u64| Shape::new(&[Dim::plain(n), Dim::plain(1)]);
    if has(ELEMENTS) {
        Some(*shape)
    } else if has(HEADS) {
        let numel = shape.numel()?;
        (head > 0 && numel.is_multiple_of(head)).then(|| column(numel / head))
    } else if has(ROWS) {
        (shape.rank() == 2).then(|| column(shape.dims()[0].n))
    } else {
        Some(Shape::new(&[]))
    }
}

/// Elements of a weight that share a head: the width's square over the heads.
pub(crate) fn head_elements(model: &dyn Model) -> u64 {
    let symbols = model.symbols(&Recipe::default());
    let of = |name: &str| symbols.iter().find(|(symbol, _)| *symbol == name).map_or(0, |(_, n)| *n);
    let (width, heads) = (of("h"), of("a"));
    width.saturating_mul(width).checked_div(heads).unwrap_or(0)
}

/// What of it is not modelled, and what it fails at.
#[inline(never)]
pub(crate) fn issues(model: &dyn Model, recipe: &Recipe, parallel: &Parallel) -> Vec<Issue> {
    let (names, head) = (model.parameter_names(), head_elements(model));
    let fails = || {
        let mut parts = trained_parts(model, recipe).into_iter();
        parts.find(|(at, shape)| names.get(*at).is_none_or(|name| second_moments(name, shape, head).is_none()))
    };
    let what = if names.is_empty() {
        format!("Adam-mini over the family {}", model.family())
    } else if *parallel != Parallel::default() || recipe.method.is_some() {
        "Adam-mini on several GPUs, or for preferences and rewards".into()
    } else if let Some((at, _)) = fails() {
        format!("Adam-mini’s step over {}, which fails: it expects other sizes under this name", names[at])
    } else {
        return Vec::new();
    };
    vec![Issue::new("recipe.optimizer.name", IssueKind::NotModelled { what })]
}

/// One step over `params`, one at a time. Python's names hold a tensor until the next parameter's takes its place.
#[inline(never)]
pub(super) fn step(tape: &Tape, params: &[Tensor], slots: &mut Slots) {
    let [mut mean, mut denominator, mut rate, mut update, mut elements]: [Option<Tensor>; 5] = Default::default();
    for (at, p) in params.iter().enumerate() {
        p.enter_layer(tape);
        let full = |op: &'static str| tape.temp(*p.shape(), p.dtype(), op);
        let moments = p.leaf().and_then(|leaf| leaf.second_moments.get()).unwrap_or(*p.shape());
        let (whole, each) = (moments.rank() == 0, moments.same_sizes(p.shape()));
        // The gradient as its blocks lie.
        let blocks = match moments.dims() {
            [blocks, _] if !each => {
                let n = p.shape().numel().unwrap_or(0) / blocks.n.max(1);
                Shape::new(&[*blocks, Dim::plain(n)])
            }
            _ => *p.shape(),
        };
        if slots.len() == at {
            if whole {
                elements.replace(tape.scalar(Dtype::F32, "count of elements"));
            }
            let first = state_like(tape, p, "first moment");
            if whole {
                let square = full("square of weight");
                let sum = tape.reduced(p, &moments, "sum of squares");
                drop(square);
                slots.push(vec![first, state_of(tape, moments, p.dtype(), "second moment")]);
                drop(sum);
            } else {
                slots.push(vec![first, state_of(tape, moments, p.dtype(), "second moments")]);
            }
        }
        if !each {
            let square = full("square of gradient");
            let sizes = if whole { moments } else { keepdim(&blocks, 1) };
            mean.replace(tape.reduced_as(&blocks, &sizes, p.dtype(), "mean of squares"));
            drop(square);
            if whole {
                mean.replace(tape.scalar(p.dtype(), "mean of squares"));
            }
        }
        let of_blocks = |op: &'static str| tape.temp(moments, p.dtype(), op);
        let root = of_blocks("square root of second moment");
        denominator.replace(of_blocks("denominator"));
        drop(root);
        if each {
            // A number of the host's.
            rate = None;
            continue;
        }
        let reciprocal = of_blocks("reciprocal");
        rate.replace(of_blocks("adaptive rate"));
        drop(reciprocal);
        update.replace(full("update"));
        drop(full("negated update"));
    }
}

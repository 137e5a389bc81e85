//! Adapters on a tape: the weights beneath them freeze, the pairs are what is trained.

use std::rc::Rc;

use crate::bill::Part;
use crate::issue::{Issue, IssueKind};
use crate::model::family::Model;
use crate::order::sort_short_by_key;
use crate::recipe::Lora;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Adapter, Dtype, Tensor};

/// Freezes `weights` and adds a pair beside each that `lora` targets; returns what is trained, in the order of
/// `model.parameters()`.
pub(crate) fn attach(tape: &Tape, lora: &Lora, names: &[Option<&'static str>], weights: &[Tensor]) -> Vec<Tensor> {
    let mut trained = Vec::new();
    // Numbers from the top: the weights have theirs from 0.
    let mut next_id = u32::MAX;
    for (w, name) in weights.iter().zip(names.iter().chain(core::iter::repeat(&None))) {
        let Some(leaf) = w.leaf() else { continue };
        leaf.frozen.set(true);
        if !name.is_some_and(|name| lora.targets.iter().any(|t| t == name)) {
            continue;
        }
        w.enter_layer(tape);
        let before = tape.set_scope("adapters");
        let [a, b] = pair_shapes(lora, w.shape(), is_in_out(name)).map(|shape| {
            next_id -= 1;
            let pair = Tensor::leaf_of(tape, next_id, shape, Dtype::F32, Part::Weights, "low-rank pair");
            trained.push(pair.clone());
            pair
        });
        tape.set_scope(before);
        *leaf.adapter.borrow_mut() = Some(Rc::new(Adapter { a, b }));
    }
    tape.set_layer(0);
    trained
}

/// GPT-2's `Conv1D` weights lie [in, out].
fn is_in_out(name: &Option<&'static str>) -> bool {
    name.is_some_and(|n| n.starts_with("c_"))
}

/// A [r, in] and B [out, r].
fn pair_shapes(lora: &Lora, weight: &Shape, in_out: bool) -> [Shape; 2] {
    let r = Dim::plain(lora.r);
    let (rows, columns) = (weight.dims()[0], weight.dims()[1]);
    let (out, input) = if in_out { (columns, rows) } else { (rows, columns) };
    [Shape::new(&[r, input]), Shape::new(&[out, r])]
}

/// The sizes of what is trained: the pairs' with adapters, every parameter's without.
pub(crate) fn trained_shapes(model: &dyn Model, lora: Option<&Lora>) -> Vec<Shape> {
    let parameters = model.parameters();
    let Some(lora) = lora else { return parameters.iter().map(|p| p.shape).collect() };
    let names = model.linear_names();
    let targeted = |name: &Option<&'static str>| name.is_some_and(|n| lora.targets.iter().any(|t| t == n));
    parameters
        .iter()
        .zip(&names)
        .filter(|(_, name)| targeted(name))
        .flat_map(|(p, name)| pair_shapes(lora, &p.shape, is_in_out(name)))
        .collect()
}

/// What is wrong with `lora` on `model`: adapters that the family cannot take, targets that it lacks.
pub(crate) fn issues(model: &dyn Model, lora: &Lora) -> Vec<Issue> {
    let names = model.linear_names();
    if names.is_empty() {
        let what = format!("adapters over the family {}", model.family());
        return vec![Issue::new("recipe.lora", IssueKind::NotModelled { what })];
    }
    let mut known: Vec<&str> = names.into_iter().flatten().collect();
    sort_short_by_key(&mut known, |name| *name);
    known.dedup();
    let unknown = |target: &&String| !known.contains(&target.as_str());
    lora.targets
        .iter()
        .filter(unknown)
        .map(|target| {
            let did_you_mean = known.iter().map(|n| (*n).to_owned()).collect();
            let found = target.chars().take(80).collect();
            Issue::new("recipe.lora.targets", IssueKind::UnknownName { found, did_you_mean })
        })
        .collect()
}

//! Tensor parallelism by `parallelize_module` and DTensor, as read at PyTorch 2.15 (`torch/distributed/tensor`): matrices
//! split column by column, then row by row, and what is gathered and reduced between them.
//!
//! The walk is of a model of which each rank has its share of heads, of the MLP's width and of the vocabulary
//! ([`Model::split`]); this adds what its modules' inputs and outputs go through.

use core::cell::Cell;

use crate::model::family::{Built, Model};
use crate::plan::Plan;
use crate::recipe::parallel::TensorParallel;
use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// How a weight is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Its outputs (`ColwiseParallel`).
    Columns,
    /// Its inputs: the output is a part of a sum (`RowwiseParallel`).
    Rows,
    /// The output head's outputs.
    Head,
}

/// What the tape knows of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    ranks: u64,
    sequence: bool,
    loss: bool,
}

/// The model of which one rank has a share, where the plan splits it.
pub(crate) fn split(model: &dyn Model, plan: &Plan) -> Option<Box<dyn Model>> {
    (plan.parallel.tensor.size > 1).then(|| model.split(plan.parallel.tensor.size)).flatten()
}

/// Splits the weights of `built`, a share of `model`.
pub(crate) fn parallelize(tape: &Tape, model: &dyn Model, built: &dyn Built, plan: &Plan) {
    let TensorParallel { size, sequence_parallel, loss_parallel } = plan.parallel.tensor;
    if size < 2 {
        return;
    }
    tape.set_tensor_parallel(Some(Layout { ranks: size, sequence: sequence_parallel, loss: loss_parallel }));
    for (weight, name) in built.weights().iter().zip(model.parameter_names()) {
        let Some(leaf) = weight.leaf() else { continue };
        let is = |names: &[&str]| names.iter().any(|n| name.ends_with(n));
        leaf.split.set(if is(&["o_proj.weight", "down_proj.weight"]) {
            Some(Split::Rows)
        } else if name == "lm_head.weight" {
            Some(Split::Head)
        } else if is(&["_proj.weight"]) {
            Some(Split::Columns)
        } else {
            None
        });
        if leaf.id == 0 {
            // Its gradient is of the whole table on every rank.
            leaf.accumulate.set_shape(whole_table(weight, size));
        }
    }
}

/// The sizes of the table of which `weight` is a share.
fn whole_table(weight: &Tensor, ranks: u64) -> Shape {
    Shape::new(&[Dim::plain(weight.dim(0).n.saturating_mul(ranks)), weight.dim(1)])
}

/// The sizes of a share along the sequence.
fn share(shape: &Shape, at: usize, ranks: u64) -> Shape {
    let mut dims = shape.dims().to_vec();
    dims[at] = Dim::plain(dims[at].n / ranks);
    Shape::new(&dims)
}

/// The sizes of the whole of which `shape` is a share.
fn whole(shape: &Shape, at: usize, ranks: u64) -> Shape {
    let mut dims = shape.dims().to_vec();
    dims[at] = Dim::plain(dims[at].n.saturating_mul(ranks));
    Shape::new(&dims)
}

/// `reduce_scatter_single` along a dimension: the parts are laid out one after the other first.
fn scatter(tape: &Tape, x: &Tensor, at: usize, ranks: u64) -> Tensor {
    let chunks = tape.temp(x.shape().contiguous(), x.dtype(), "parts to scatter");
    let out = tape.temp(share(x.shape(), at, ranks), x.dtype(), "reduce-scatter");
    drop(chunks);
    out
}

/// `all_gather_single` along a dimension: the parts come one after the other, and are put together where that is no view.
fn gather(tape: &Tape, x: &Tensor, at: usize, ranks: u64) -> Tensor {
    let shape = whole(x.shape(), at, ranks);
    let parts = tape.temp(shape, x.dtype(), "all-gather");
    if x.shape().dims()[..at].iter().all(|d| d.n == 1) {
        return parts;
    }
    tape.temp(shape, x.dtype(), "gathered")
}

/// The dimension of the sequence.
const SEQUENCE: usize = 1;

impl Tape {
    /// Whether a parameter's gradient is split otherwise than it: whole on each rank, or a part of a sum.
    pub(crate) fn redistributes_gradient(&self, p: &Tensor) -> bool {
        let table = p.leaf().is_some_and(|leaf| leaf.id == 0);
        table || (self.splits_sequence() && p.shape().rank() == 1)
    }

    /// Whether norms are split along the sequence.
    pub(crate) fn splits_sequence(&self) -> bool {
        self.tensor_parallel().is_some_and(|layout| layout.sequence)
    }

    /// What a module of a layer is given: gathered along the sequence, where that is split (`PrepareModuleInput`).
    pub(crate) fn module_input(&self, x: &Tensor) -> Tensor {
        match self.tensor_parallel() {
            Some(Layout { ranks, sequence: true, .. }) => self.gathered_sequence(x, ranks),
            _ => x.clone(),
        }
    }

    fn gathered_sequence(&self, x: &Tensor, ranks: u64) -> Tensor {
        self.as_dtensors(|| {
            let r = Recorder::begin(self, &[x]);
            let out = gather(self, x, SEQUENCE, ranks);
            r.finish(out, move |t, g| {
                grads_of([g.first().and_then(Option::as_ref).map(|g| scatter(t, g, SEQUENCE, ranks))])
            })
        })
    }

    /// Runs `body` on DTensors where norms are split along the sequence: their gradients are never added to in place.
    pub(crate) fn on_split_sequence<T>(&self, body: impl FnOnce() -> T) -> T {
        match self.tensor_parallel() {
            Some(Layout { sequence: true, .. }) => self.as_dtensors(body),
            _ => body(),
        }
    }

    /// The input of a product whose weight is split.
    pub(crate) fn split_input(&self, x: &Tensor, split: Split) -> Tensor {
        let Some(Layout { ranks, sequence, .. }) = self.tensor_parallel() else { return x.clone() };
        match split {
            Split::Rows => x.clone(),
            Split::Head if sequence => self.gathered_sequence(x, ranks),
            Split::Columns if sequence => x.clone(),
            // Every rank has a part of its gradient.
            Split::Columns | Split::Head => {
                let r = Recorder::begin(self, &[x]);
                r.finish(x.alias(*x.shape()), |t, g| {
                    grads_of([g.first().and_then(Option::as_ref).map(|g| t.temp(*g.shape(), g.dtype(), "all-reduce"))])
                })
            }
        }
    }

    /// The output of a product whose weight is split.
    pub(crate) fn split_output(&self, out: Tensor, split: Split) -> Tensor {
        let Some(Layout { ranks, loss, .. }) = self.tensor_parallel() else { return out };
        match split {
            Split::Rows => self.sum_over_ranks(out),
            Split::Head if !loss => {
                let last = out.shape().rank() - 1;
                let r = Recorder::begin(self, &[&out]);
                let all = gather(self, &out, last, ranks);
                let part = *out.shape();
                r.finish(all, move |t, g| {
                    // Its own part, made contiguous.
                    grads_of([g
                        .first()
                        .and_then(Option::as_ref)
                        .map(|g| t.temp(part, g.dtype(), "part of a gradient"))])
                })
            }
            Split::Columns | Split::Head => out,
        }
    }

    /// The sum over ranks of which `x` is a part: split along the sequence, or whole.
    fn sum_over_ranks(&self, x: Tensor) -> Tensor {
        let Some(Layout { ranks, sequence, .. }) = self.tensor_parallel() else { return x };
        let r = Recorder::begin(self, &[&x]);
        let out = if sequence {
            scatter(self, &x, SEQUENCE, ranks)
        } else {
            self.temp(x.shape().contiguous(), x.dtype(), "all-reduce")
        };
        r.finish(out, move |t, g| {
            let g = g.first().and_then(Option::as_ref);
            grads_of([g.map(|g| if sequence { gather(t, g, SEQUENCE, ranks) } else { g.clone() })])
        })
    }

    /// Ids in a rank's share of the table, and the mask of the others (`_MaskPartial`): the mask lives on.
    fn masked_ids(&self, ids: &Tensor) -> (Tensor, Tensor) {
        let of = |dtype: Dtype, op: &'static str| self.temp(ids.shape().contiguous(), dtype, op);
        let below = of(Dtype::Bool, "ids below");
        let above = of(Dtype::Bool, "ids above");
        let mask = of(Dtype::Bool, "ids of other ranks");
        drop((below, above));
        let copy = of(Dtype::I64, "ids");
        let shifted = of(Dtype::I64, "ids, shifted");
        drop(copy);
        (shifted, mask)
    }

    /// The look-up in a table that is split along the vocabulary.
    pub(crate) fn split_look_up(&self, ids: &Tensor, weight: &Tensor) -> Tensor {
        let Some(Layout { ranks, .. }) = self.tensor_parallel() else { return self.look_up(ids, weight) };
        let r = Recorder::begin(self, &[weight]);
        let saved = r.save(ids);
        let mut dims: Vec<Dim> = ids.shape().dims().to_vec();
        dims.push(weight.dim(1));
        let (shifted, mask) = self.masked_ids(ids);
        let out = self.temp(Shape::new(&dims), weight.dtype(), "embedding");
        drop((shifted, mask));
        let (table, dtype) = (whole_table(weight, ranks), weight.dtype());
        let part = r.finish(out, move |t, g| {
            let (Some(_), Some(ids)) = (g.first().and_then(Option::as_ref), saved.unpack(t)) else {
                return Grads::default();
            };
            let rows = ids.shape().dims().iter().copied().reduce(Dim::times).unwrap_or(Dim::plain(1));
            grads_of([Some(t.embedding_grad(&t.reshape_raw(&ids, &[rows]), table, dtype))])
        });
        self.sum_over_ranks(part)
    }

    /// The cross-entropy of FP32 logits [n, V] in the way of the layout, if there is one.
    pub(crate) fn split_cross_entropy(&self, logits: &Tensor, labels: &Tensor) -> Tensor {
        match self.tensor_parallel() {
            Some(Layout { loss: true, .. }) => self.loss_parallel(logits, labels),
            _ => self.cross_entropy(logits, labels),
        }
    }

    /// `loss_parallel` (torch/distributed/tensor/parallel/loss.py): log-softmax and its loss over split logits.
    fn loss_parallel(&self, logits: &Tensor, labels: &Tensor) -> Tensor {
        let dtype = logits.dtype();
        let (shape, rows) = (logits.shape().contiguous(), Shape::new(&[logits.dim(0)]));
        let r = Recorder::begin(self, &[logits]);
        let row = move |t: &Self, op: &'static str| t.temp(rows, dtype, op);
        let wide = move |t: &Self, op: &'static str| t.temp(shape, dtype, op);
        // _log_softmax
        let highest = row(self, "maximum");
        let maximum = row(self, "maximum, reduced");
        drop(highest);
        let shifted = wide(self, "shifted logits");
        let exponents = wide(self, "exponents");
        let sum = row(self, "sum of exponents");
        drop(exponents);
        let summed = row(self, "sum of exponents, reduced");
        drop(sum);
        let log = row(self, "logarithm");
        let log_probs = wide(self, "log-softmax");
        drop(shifted);
        drop((maximum, summed, log));
        let saved = r.save(&log_probs);
        // _nll_loss_forward
        let safe = self.safe_labels(labels);
        let (shifted, mask) = self.masked_ids(labels);
        let gathered = row(self, "log-probability");
        drop(mask);
        let reduced = row(self, "log-probability, reduced");
        let negative = row(self, "loss of a token");
        let counted = row_mask(self, labels);
        let zero = self.scalar(dtype, "zero");
        let losses = row(self, "loss of a token");
        drop((zero, counted, negative));
        let counted = row_mask(self, labels);
        let count = self.scalar(Dtype::I64, "count");
        drop(self.temp(*labels.shape(), Dtype::I64, "count of labels"));
        drop(counted);
        let total = self.scalar(dtype, "total weight");
        drop(count);
        let sum = self.scalar(dtype, "sum of losses");
        let loss = self.scalar(dtype, "loss");
        drop(sum);
        drop((losses, safe, shifted, gathered, reduced));
        // Released in this order.
        let kept = (r.save(&total), r.save(labels), saved);
        drop((total, log_probs));
        r.finish(loss, move |t, g| {
            let (st, sl, saved) = &kept;
            let (Some(_), Some(x), Some(labels)) = (g.first().and_then(Option::as_ref), saved.unpack(t), sl.unpack(t))
            else {
                return Grads::default();
            };
            let total = st.unpack(t);
            let scaled = t.scalar(dtype, "gradient of the loss");
            let safe = t.safe_labels(&labels);
            let zeros = wide(t, "gradient, scattered");
            let (shifted, mask) = t.masked_ids(&labels);
            let cast = row(t, "update");
            let update = row(t, "update");
            drop(cast);
            let rows_at = t.temp(*labels.shape(), Dtype::I64, "rows");
            let counted = row_mask(t, &labels);
            let zero = t.scalar(dtype, "zero");
            let of_rows = row(t, "gradient of a token");
            drop((zero, counted));
            drop(scaled);
            let exponents = wide(t, "exponents");
            let sum = wide(t, "grad of log-softmax");
            drop(exponents);
            let grad = wide(t, "grad of log-softmax");
            drop(sum);
            drop((of_rows, safe, zeros, mask, shifted, update, rows_at));
            drop((total, labels, x));
            grads_of([Some(grad)])
        })
    }

    /// Labels with those that are ignored replaced.
    fn safe_labels(&self, labels: &Tensor) -> Tensor {
        let counted = row_mask(self, labels);
        let zero = self.scalar(Dtype::I64, "zero");
        let safe = self.temp(*labels.shape(), Dtype::I64, "labels, ignored ones replaced");
        drop((zero, counted));
        safe
    }
}

fn row_mask(tape: &Tape, labels: &Tensor) -> Tensor {
    tape.temp(*labels.shape(), Dtype::Bool, "labels that count")
}

/// A flag that a body sets and puts back.
pub(crate) fn flagged<T>(flag: &Cell<bool>, body: impl FnOnce() -> T) -> T {
    let before = flag.replace(true);
    let out = body();
    flag.set(before);
    out
}

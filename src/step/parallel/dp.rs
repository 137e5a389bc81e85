//! `torch.nn.DataParallel`: one process, the model on the first GPU, and in every forward copies of it on the others. As read
//! at PyTorch 2.15 (`torch/nn/parallel/{data_parallel,replicate,scatter_gather,parallel_apply,_functions,comm}.py`,
//! `torch/csrc/cuda/comm.cpp`), and held to steps recorded with it.
//!
//! What a replica computes with is the output of a function, `Broadcast`, and no leaf: autocast keeps no casts of it, and its
//! gradients wait for each other until all of them are there. Then they are reduced onto the first GPU, into new memory.

use core::cell::{Cell, RefCell};

use crate::bill::Part;
use crate::model::family::{Built, Model};
use crate::plan::Plan;
use crate::recipe::Checkpointing;
use crate::step::autograd::Recorder;
use crate::step::parallel::flat::flat;
use crate::step::parallel::{ROOT, Wrapper, on_gradient};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Bytes that are sent together (`buffer_size` of `broadcast_coalesced` and `reduce_add_coalesced`).
const TOGETHER: u64 = 10_485_760;

/// The wrapped model, on one of its GPUs.
#[derive(Debug)]
pub(super) struct Replicas {
    gpus: u64,
    /// Whether this is the first GPU, which holds the model.
    first: bool,
    params: Vec<Tensor>,
    /// The copies on another GPU.
    copies: Vec<Copies>,
    /// Bytes of what is put in a row on the first GPU to be sent, one after the other.
    sent: Vec<u64>,
    /// The gradients of what `Broadcast` gave out.
    gradients: RefCell<Vec<Option<Tensor>>>,
    /// What the parameters' `grad` held before.
    before: RefCell<Vec<Option<Tensor>>>,
}

/// Parameters whose copies share their memory.
#[derive(Debug)]
struct Copies {
    params: Vec<usize>,
    /// References to them while no graph holds any.
    at_rest: usize,
    /// Whether checkpointed layers among them keep them for their second forward.
    kept: bool,
    /// Parameters whose gradients are still to come.
    pending: Cell<usize>,
}

/// `utils::take_tensors` (torch/csrc/utils/tensor_flatten.cpp): a row ends when it has the limit.
fn sent_together(sizes: &[u64]) -> Vec<Vec<usize>> {
    let mut rows = vec![Vec::new()];
    let mut size = 0u64;
    for (at, bytes) in sizes.iter().enumerate() {
        if size >= TOGETHER {
            rows.push(Vec::new());
            size = 0;
        }
        size = size.saturating_add(*bytes);
        rows.last_mut().into_iter().for_each(|row| row.push(at));
    }
    rows
}

/// `_take_tensors` (torch/_utils.py): a row ends before it would pass the limit.
fn reduced_together(sizes: &[u64]) -> Vec<Vec<usize>> {
    let mut rows = vec![Vec::new()];
    let mut size = 0u64;
    for (at, bytes) in sizes.iter().enumerate() {
        if size > 0 && size.saturating_add(*bytes) > TOGETHER {
            rows.push(Vec::new());
            size = 0;
        }
        size = size.saturating_add(*bytes);
        rows.last_mut().into_iter().for_each(|row| row.push(at));
    }
    rows
}

fn bytes_of(shape: &Shape, dtype: Dtype) -> u64 {
    shape.numel().unwrap_or(0).saturating_mul(dtype.bytes())
}

fn sum(row: &[usize], sizes: &[u64]) -> u64 {
    row.iter().filter_map(|at| sizes.get(*at)).sum()
}

/// The parameters as modules on another GPU than the first see them: parts of copies that exist from a forward on.
#[inline(never)]
pub(super) fn gathered(tape: &Tape, model: &dyn Model, dtype: Dtype) -> Vec<Tensor> {
    let sizes: Vec<u64> = model.parameters().iter().map(|p| bytes_of(&p.shape, dtype)).collect();
    let mut of_param = Vec::with_capacity(sizes.len());
    for row in sent_together(&sizes) {
        let shape = Shape::new(&[Dim::plain(sum(&row, &sizes) / dtype.bytes())]);
        let copy = tape.absent(shape, dtype, Part::Weights, "copies of parameters");
        of_param.extend(row.iter().map(|_| copy.clone()));
    }
    let mut copies = of_param.into_iter();
    let next = RefCell::new(&mut copies);
    super::leaves(tape, model, |p| match next.borrow_mut().next() {
        Some(copy) => copy.alias(p.shape),
        None => tape.absent(p.shape, dtype, Part::Weights, "copies of parameters"),
    })
}

/// Wraps the model that was built, on GPU `gpu`; whose `buffers` have so many bytes.
#[inline(never)]
pub(super) fn wrap(built: &dyn Built, plan: &Plan, gpu: u64, buffers: &[u64]) -> Replicas {
    let params = built.weights().to_vec();
    let sizes: Vec<u64> = params.iter().map(|p| bytes_of(p.shape(), p.dtype())).collect();
    let rows = sent_together(&sizes);
    let first = gpu == 0;
    // One that is sent alone is sent from where it is.
    let mut sent: Vec<u64> = rows.iter().filter(|row| row.len() > 1).map(|row| sum(row, &sizes)).collect();
    sent.extend((buffers.len() > 1).then(|| buffers.iter().sum::<u64>()));
    for (at, param) in params.iter().enumerate() {
        on_gradient(param, at);
    }
    let checkpoints = plan.recipe.checkpointing != Checkpointing::None;
    let mut replicas = Replicas {
        gpus: plan.parallel.data_ranks(),
        first,
        copies: Vec::new(),
        sent,
        gradients: RefCell::new(vec![None; params.len()]),
        before: RefCell::new(vec![None; params.len()]),
        params,
    };
    if !first {
        let of_layers = |row: &[usize]| {
            let layer = |at: &usize| replicas.params.get(*at).and_then(Tensor::leaf).map_or(0, |leaf| leaf.layer);
            row.iter().any(|at| layer(at) > 0)
        };
        let copies = rows.iter().map(|row| Copies {
            at_rest: replicas.references(row),
            kept: checkpoints && of_layers(row),
            pending: Cell::new(row.len()),
            params: row.clone(),
        });
        replicas.copies = copies.collect();
    }
    replicas
}

impl Replicas {
    fn references(&self, row: &[usize]) -> usize {
        row.iter().filter_map(|at| self.params.get(*at)).map(Tensor::references).sum()
    }

    fn any_of(&self, copies: &Copies) -> Option<&Tensor> {
        self.params.get(*copies.params.first()?)
    }

    /// Copies go when no graph holds any more of them.
    fn release(&self) {
        for copies in &self.copies {
            let at_rest = || !copies.kept && self.references(&copies.params) <= copies.at_rest;
            if copies.pending.get() == 0 || at_rest() {
                self.any_of(copies).into_iter().for_each(Tensor::withdraw);
            }
        }
    }

    /// `reduce_add_coalesced`: a row of gradients is put together and summed into new memory, which stays; the row before is
    /// there until then.
    fn reduce(&self, tape: &Tape) -> Vec<Option<Tensor>> {
        let sizes: Vec<u64> = self.params.iter().map(|p| bytes_of(p.shape(), p.dtype())).collect();
        let mut reduced = vec![None; self.params.len()];
        let mut row_before = None;
        for row in reduced_together(&sizes) {
            let Some(dtype) = row.first().and_then(|at| self.params.get(*at)).map(Tensor::dtype) else { continue };
            let elements = sum(&row, &sizes) / dtype.bytes();
            let made = (row.len() > 1).then(|| flat(tape, elements, dtype, "gradients, in a row"));
            drop(core::mem::replace(&mut row_before, made));
            if self.first {
                let shape = Shape::new(&[Dim::plain(elements)]);
                let total = tape.scope("gradients", || tape.empty(shape, dtype, Part::Gradients, "reduced gradients"));
                for at in row {
                    reduced[at] = self.params.get(at).map(|p| total.alias(*p.shape()));
                }
            }
        }
        reduced
    }
}

impl Wrapper for Replicas {
    fn micro_batch(&self, _last: bool) {
        for (leaf, before) in self.params.iter().zip(self.before.borrow_mut().iter_mut()) {
            *before = leaf.leaf().and_then(|leaf| leaf.grad.tensor.take());
        }
    }

    fn replicates(&self) -> bool {
        true
    }

    /// A batch lies on the first GPU, which computes with a part of it; the others get a copy of theirs.
    fn scatters(&self) -> u64 {
        if self.first { self.gpus } else { 1 }
    }

    fn before_forward(&self, tape: &Tape, module: u32, _args: &mut [Tensor]) {
        if module != ROOT {
            return;
        }
        if self.first {
            for bytes in &self.sent {
                drop(tape.scratch(*bytes, "parameters, in a row"));
            }
        }
        for copies in &self.copies {
            copies.pending.set(copies.params.len());
            self.any_of(copies).into_iter().for_each(Tensor::provide);
        }
    }

    /// `gather`: the outputs of all, on the first GPU. The loop takes the mean of the losses.
    fn after_forward(&self, tape: &Tape, module: u32, outs: &mut [Tensor]) {
        let ([loss, logits], ROOT) = (outs, module) else { return };
        if self.first {
            let of_all = |out: &Tensor| {
                let shape = *out.shape();
                match shape.dims().first() {
                    Some(rows) => shape.narrowed(0, Dim::plain(rows.n.saturating_mul(self.gpus))).contiguous(),
                    None => Shape::new(&[Dim::plain(self.gpus)]),
                }
            };
            let (losses, sizes) = (of_all(loss), *loss.shape());
            let r = Recorder::begin(tape, &[loss]);
            let gathered = tape.temp(losses, loss.dtype(), "gathered losses");
            *logits = tape.temp(of_all(logits), logits.dtype(), "gathered logits");
            let mean = tape.temp(sizes, loss.dtype(), "mean loss");
            drop(gathered);
            *loss = r.finish(mean, move |tape, grads| {
                let grad = grads.first().cloned().flatten();
                let each = grad.map(|grad| tape.temp(losses, grad.dtype(), "gradients of losses").alias(sizes));
                [each, None, None, None]
            });
            return;
        }
        self.release();
    }

    fn gradient_ready(&self, _tape: &Tape, at: usize, gradient: Tensor) -> Option<Tensor> {
        if let Some(held) = self.gradients.borrow_mut().get_mut(at) {
            *held = Some(gradient);
        }
        for copies in self.copies.iter().filter(|copies| copies.params.contains(&at)) {
            copies.pending.set(copies.pending.get().saturating_sub(1));
        }
        self.release();
        None
    }

    /// `Broadcast.backward`, and what it gives back to the parameters.
    fn after_backward(&self, tape: &Tape) {
        let reduced = self.reduce(tape);
        self.gradients.borrow_mut().iter_mut().for_each(|gradient| *gradient = None);
        let mut before = self.before.borrow_mut();
        for ((param, before), reduced) in self.params.iter().zip(before.iter_mut()).zip(reduced) {
            if let Some(leaf) = param.leaf() {
                // Those of a later micro-batch are added to the first's.
                *leaf.grad.tensor.borrow_mut() = before.take().or(reduced);
            }
        }
        for copies in &self.copies {
            self.any_of(copies).into_iter().for_each(Tensor::withdraw);
        }
    }

    /// On the first GPU alone something is stepped.
    fn before_step(&self, _tape: &Tape) -> bool {
        !self.first
    }
}

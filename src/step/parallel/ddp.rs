//! `torch.nn.parallel.DistributedDataParallel` and its reducer, as read at PyTorch 2.15 (`torch/nn/parallel/distributed.py`,
//! `torch/csrc/distributed/c10d/reducer.cpp`).
//!
//! Gradients are copied into buckets as they become ready, and each bucket is reduced in place when it is full. The buckets
//! exist from the constructor on: one for all parameters, and from the second synchronised step on several, in the order
//! in which gradients became ready in the first.

use core::cell::{Cell, RefCell};

use crate::bill::Part;
use crate::recipe::parallel::Ddp;
use crate::step::autograd::Recorder;
use crate::step::parallel::{ROOT, Wrapper, on_gradient};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};
use crate::units::MIB;

/// The limit of the first bucket in bytes, where the user did not choose one (`kDefaultFirstBucketBytes`).
const FIRST_BUCKET: u64 = MIB;
/// Where buckets beside the gradients belong, which no parameter's `grad` shows.
pub(crate) const BUCKETS: &str = "buckets";
/// The default of `bucket_cap_mb`.
const DEFAULT_CAP_MB: u64 = 25;

/// Parameters whose gradients are reduced together.
#[derive(Debug)]
struct Bucket {
    contents: Tensor,
    params: Vec<usize>,
    pending: Cell<usize>,
}

/// The wrapped model.
#[derive(Debug)]
pub(super) struct Reducer {
    options: Ddp,
    params: Vec<Tensor>,
    buckets: RefCell<Vec<Bucket>>,
    /// The bucket of each parameter.
    bucket_of: RefCell<Vec<usize>>,
    /// Parameters in the order of their first gradients.
    ready: RefCell<Vec<usize>>,
    rebuilt: Cell<bool>,
    reduces: Cell<bool>,
    /// Whether the first backward over a static graph is over.
    delayed: Cell<bool>,
    /// Which parameters have a gradient, kept on the device where that may differ from rank to rank.
    _used: Option<Tensor>,
    /// Buckets are reduced in order.
    next: Cell<usize>,
    /// Bytes of the model's buffers, which rank 0 sends to the others before each forward.
    buffers: Vec<u64>,
}

/// Wraps a model whose trained parameters are `params`.
#[inline(never)]
pub(super) fn wrap(tape: &Tape, options: &Ddp, params: Vec<Tensor>, buffers: Vec<u64>) -> Reducer {
    let count = Dim::plain(params.len() as u64);
    let watched = options.find_unused_parameters || options.static_graph;
    let reducer = Reducer {
        options: options.clone(),
        buckets: RefCell::default(),
        bucket_of: RefCell::default(),
        ready: RefCell::default(),
        rebuilt: Cell::new(false),
        reduces: Cell::new(true),
        delayed: Cell::new(false),
        _used: watched.then(|| tape.empty(Shape::new(&[count]), Dtype::I32, Part::Temporary, "used parameters")),
        next: Cell::new(0),
        buffers,
        params,
    };
    // One bucket for all, unless parameters without a gradient are looked for (`compute_bucket_size_limits`).
    let limits = match options.find_unused_parameters && !options.static_graph {
        false => vec![u64::MAX],
        true => reducer.limits(),
    };
    // The last parameters come first.
    let all: Vec<usize> = (0..reducer.params.len()).collect();
    let mut assigned = reducer.assign(&all, &limits);
    assigned.sort_unstable_by_key(|bucket| bucket.first().copied());
    assigned.reverse();
    reducer.initialize(tape, assigned);
    for (at, param) in reducer.params.iter().enumerate() {
        on_gradient(param, at);
    }
    reducer
}

impl Reducer {
    fn limits(&self) -> Vec<u64> {
        let cap = self.options.bucket_cap_mb.saturating_mul(MIB);
        if self.options.bucket_cap_mb == DEFAULT_CAP_MB { vec![FIRST_BUCKET, cap] } else { vec![cap] }
    }

    /// `compute_bucket_assignment_by_size`: in `order`, a bucket is full when it reaches its limit; each dtype has its own.
    fn assign(&self, order: &[usize], limits: &[u64]) -> Vec<Vec<usize>> {
        let mut full = Vec::new();
        let mut open: Vec<(Dtype, Vec<usize>, u64, usize)> = Vec::new();
        for &at in order {
            let (Some(param), bytes) = (self.params.get(at), self.bytes(at)) else { continue };
            let dtype = param.dtype();
            let place = open.iter().position(|(of, ..)| *of == dtype).unwrap_or_else(|| {
                open.push((dtype, Vec::new(), 0, 0));
                open.len() - 1
            });
            let (_, params, size, limit) = &mut open[place];
            params.push(at);
            *size = size.saturating_add(bytes);
            if *size >= limits.get(*limit).copied().unwrap_or(u64::MAX) {
                full.push(core::mem::take(params));
                *size = 0;
                *limit = (*limit + 1).min(limits.len().saturating_sub(1));
            }
        }
        full.extend(open.into_iter().map(|(_, params, ..)| params).filter(|params| !params.is_empty()));
        full
    }

    fn bytes(&self, at: usize) -> u64 {
        self.params.get(at).map_or(0, |p| p.shape().numel().unwrap_or(0) * p.dtype().bytes())
    }

    /// `initialize_buckets`.
    fn initialize(&self, tape: &Tape, assigned: Vec<Vec<usize>>) {
        let before = self.buckets.take();
        drop(before);
        let mut bucket_of = vec![0; self.params.len()];
        for (number, params) in assigned.into_iter().enumerate() {
            let elements = params.iter().filter_map(|&at| self.params[at].shape().numel()).sum();
            let dtype = params.first().map_or(Dtype::F32, |&at| self.params[at].dtype());
            let shape = Shape::new(&[Dim::plain(elements)]);
            let views = self.options.gradient_as_bucket_view;
            let scope = if views { "gradients" } else { BUCKETS };
            let contents = tape.scope(scope, || tape.empty(shape, dtype, Part::Gradients, "bucket of gradients"));
            for &at in &params {
                bucket_of[at] = number;
                // A gradient from before moves.
                if let (true, Some(leaf)) = (views, self.params[at].leaf()) {
                    let mut gradient = leaf.grad.tensor.borrow_mut();
                    *gradient = gradient.take().map(|old| contents.alias(*old.shape()));
                }
            }
            let pending = Cell::new(params.len());
            self.buckets.borrow_mut().push(Bucket { contents, params, pending });
        }
        self.bucket_of.replace(bucket_of);
    }

    /// `_rebuild_buckets`, once, when every gradient has been seen.
    fn rebuild(&self, tape: &Tape) {
        if self.rebuilt.get() || self.ready.borrow().len() < self.params.len() {
            return;
        }
        self.rebuilt.set(true);
        let order = self.ready.take();
        let assigned = self.assign(&order, &self.limits());
        // Rank 0 says which parameters are together.
        let numbers = |n: usize| tape.temp(Shape::new(&[Dim::plain(n as u64)]), Dtype::I32, "bucket indices");
        let indices = numbers(order.len() + 1);
        let sizes = numbers(assigned.len());
        drop((sizes, indices));
        self.initialize(tape, assigned);
    }

    /// Buckets that are full are reduced in place, in order.
    fn reduce_full(&self, tape: &Tape) {
        let buckets = self.buckets.borrow();
        while let Some(bucket) = buckets.get(self.next.get()).filter(|bucket| bucket.pending.get() == 0) {
            self.next.set(self.next.get() + 1);
            if self.options.bf16_compress {
                drop(tape.temp(*bucket.contents.shape(), Dtype::Bf16, "bucket, compressed"));
            }
        }
    }
}

impl Wrapper for Reducer {
    fn micro_batch(&self, last: bool) {
        self.reduces.set(last || !self.options.no_sync);
    }

    fn before_forward(&self, tape: &Tape, module: u32, _args: &mut [Tensor]) {
        if module != ROOT || !tape.grad_enabled() {
            return;
        }
        self.rebuild(tape);
        if !self.buffers.is_empty() {
            drop(tape.scratch(self.buffers.iter().sum(), "buffers, in a row"));
        }
        self.next.set(0);
        for bucket in self.buckets.borrow().iter() {
            bucket.pending.set(bucket.params.len());
        }
    }

    /// `_DDPSink`: outputs that backward comes from are copied where the reducer has to know when it begins.
    fn after_forward(&self, tape: &Tape, module: u32, outs: &mut [Tensor]) {
        let Ddp { find_unused_parameters, static_graph, .. } = self.options;
        let watches = if static_graph { !self.delayed.get() } else { find_unused_parameters };
        if module != ROOT || !watches || !tape.grad_enabled() {
            return;
        }
        let r = Recorder::begin(tape, &outs.iter().collect::<Vec<_>>());
        let copy = |out: &Tensor| tape.temp(out.shape().like(), out.dtype(), "copy of an output");
        let copies = outs.iter().map(copy).collect();
        let through = r.finish_many(copies, |_, grads| core::array::from_fn(|at| grads.get(at).cloned().flatten()));
        for (out, copy) in outs.iter_mut().zip(through) {
            *out = copy;
        }
    }

    fn gradient_ready(&self, tape: &Tape, at: usize, gradient: Tensor) -> Option<Tensor> {
        // The first backward over a graph that is said not to change only counts.
        if !self.reduces.get() || (self.options.static_graph && !self.delayed.get()) {
            return Some(gradient);
        }
        if !self.rebuilt.get() {
            self.ready.borrow_mut().push(at);
        }
        self.mark_ready(tape, at, gradient)
    }

    /// `_delay_all_reduce`: what that first backward counted is reduced after it.
    fn after_backward(&self, tape: &Tape) {
        if !self.options.static_graph || self.delayed.replace(true) {
            return;
        }
        for (at, leaf) in self.params.iter().enumerate().filter_map(|(at, p)| Some((at, p.leaf()?))) {
            let gradient = leaf.grad.tensor.take();
            let stays = gradient.and_then(|gradient| self.mark_ready(tape, at, gradient));
            *leaf.grad.tensor.borrow_mut() = stays;
        }
    }
}

impl Reducer {
    /// `mark_variable_ready`.
    fn mark_ready(&self, tape: &Tape, at: usize, gradient: Tensor) -> Option<Tensor> {
        let number = self.bucket_of.borrow().get(at).copied().unwrap_or(0);
        let stays = {
            let buckets = self.buckets.borrow();
            let bucket = buckets.get(number)?;
            bucket.pending.set(bucket.pending.get().saturating_sub(1));
            let view = || bucket.contents.alias(*gradient.shape());
            if self.options.gradient_as_bucket_view { view() } else { gradient.clone() }
        };
        self.reduce_full(tape);
        drop(gradient);
        Some(stays)
    }
}

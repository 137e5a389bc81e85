//! ZeRO's stages 1 and 2 of a DeepSpeed engine, as read at DeepSpeed 0.19 (`deepspeed/runtime/zero/stage_1_and_2.py`).
//!
//! All parameters lie in one flat buffer, of which every rank updates one part, in FP32. Gradients are copied into a bucket;
//! a full bucket is reduced, by parts of ranks that are copied together, and what this rank updates is copied out of it.
//!
//! With `offload_optimizer` the FP32 part, its gradient and the optimizer's states lie in host memory. What this rank updates is
//! copied there out of the bucket, parameter by parameter, cast on the GPU (`copy_grads_in_partition`); a buffer for the largest
//! parameter stays on the GPU, through which sums of earlier micro-batches come back.

use core::cell::{Cell, RefCell};
use core::ops::Range;

use crate::bill::Part;
use crate::model::family::{Built, Model};
use crate::plan::Plan;
use crate::recipe::parallel::DeepSpeed;
use crate::step::log::Stream;
use crate::step::parallel::deepspeed::{GradientNorm, adopted, trained_in};
use crate::step::parallel::flat::flat;
use crate::step::parallel::{Wrapper, on_gradient};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Elements that each rank's part of the flat buffer is a multiple of (`nccl_start_alignment_factor`).
const ALIGNMENT: u64 = 2;

/// The engine's optimizer.
#[derive(Debug)]
pub(super) struct Partitioned {
    options: DeepSpeed,
    params: Vec<Tensor>,
    dtype: Dtype,
    /// Where each parameter lies in the flat buffer.
    places: Vec<Range<u64>>,
    /// Elements of a rank's part.
    part: u64,
    /// This rank's part in FP32, which the optimizer steps. None: it is in host memory.
    master: Option<Tensor>,
    /// `temp_grad_buffer_for_gpu_offload`, where it is.
    _through: Option<Tensor>,
    /// `norm_for_param_grads`, until the step is over, where it is.
    norms: RefCell<Vec<Tensor>>,
    /// `ipg_buckets`: one bucket, or two that take turns; from the first gradient of a backward on.
    buckets: RefCell<Vec<Tensor>>,
    bucket: Cell<usize>,
    filled: Cell<u64>,
    in_bucket: RefCell<Vec<usize>>,
    /// The gradients of parameters that this rank updates, in a row, and how many elements are there.
    own: RefCell<Option<Tensor>>,
    /// The same of micro-batches before, and for the step.
    gathered: RefCell<Vec<(Tensor, u64)>>,
    boundary: Cell<bool>,
    norm: GradientNorm,
}

/// Elements of a rank's part of `all` parameters.
pub(crate) fn part_of_all(all: u64, ranks: u64) -> u64 {
    all.div_ceil(ALIGNMENT * ranks) * ALIGNMENT
}

/// The parameters as views of the flat buffer (`flatten_dense_tensors_aligned`).
#[inline(never)]
pub(super) fn gathered(tape: &Tape, model: &dyn Model, plan: &Plan, dtype: Dtype) -> Vec<Tensor> {
    let made = adopted(tape, model, dtype);
    tape.empty_cache();
    let all = model.parameters().iter().filter_map(|p| p.shape.numel()).sum();
    let ranks = plan.parallel.data_ranks();
    let shape = Shape::new(&[Dim::plain(part_of_all(all, ranks) * ranks)]);
    let flat = tape.empty(shape, dtype, Part::Weights, "parameters, in a row");
    made.into_iter().for_each(drop);
    super::leaves(tape, model, |p| flat.alias(p.shape))
}

/// Makes the optimizer. Returns it, and what is stepped.
#[inline(never)]
pub(super) fn wrap(tape: &Tape, built: &dyn Built, plan: &Plan, options: &DeepSpeed) -> (Partitioned, Vec<Tensor>) {
    let params = built.weights().to_vec();
    let dtype = trained_in(options);
    let mut end = 0u64;
    let places: Vec<Range<u64>> = params
        .iter()
        .map(|p| {
            let start = end;
            end += p.shape().numel().unwrap_or(0);
            start..end
        })
        .collect();
    let part = part_of_all(end, plan.parallel.data_ranks());
    let shape = Shape::new(&[Dim::plain(part)]);
    let on_host = options.offload_optimizer.is_on();
    let clone = (on_host || dtype != Dtype::F32).then(|| tape.temp(shape, dtype, "copy of this rank's part"));
    let make = || Tensor::leaf_of(tape, 0, shape, Dtype::F32, Part::States, "master weights, this rank's part");
    let master = (!on_host).then(make);
    drop(clone);
    let through = on_host.then(|| {
        let largest = places.iter().map(|place| place.end - place.start).max().unwrap_or(0);
        let shape = Shape::new(&[Dim::plain(largest)]);
        tape.empty(shape, dtype, Part::Gradients, "gradient of the largest parameter, from the host")
    });
    // `initialize_optimizer_states` makes a gradient and drops it.
    drop((!on_host).then(|| tape.empty(shape, Dtype::F32, Part::Gradients, "gradient, in FP32")));
    for (at, param) in params.iter().enumerate() {
        on_gradient(param, at);
    }
    let wrapper = Partitioned {
        options: options.clone(),
        params,
        dtype,
        places,
        part,
        master: master.clone(),
        _through: through,
        norms: RefCell::default(),
        buckets: RefCell::default(),
        bucket: Cell::new(0),
        filled: Cell::new(0),
        in_bucket: RefCell::default(),
        own: RefCell::default(),
        gathered: RefCell::default(),
        boundary: Cell::new(true),
        norm: GradientNorm::default(),
    };
    (wrapper, master.into_iter().collect())
}

impl Partitioned {
    fn elements(&self, at: usize) -> u64 {
        self.places.get(at).map_or(0, |place| place.end - place.start)
    }

    /// Whether this rank, the first, updates some of it.
    fn is_own(&self, at: usize) -> bool {
        self.places.get(at).is_some_and(|place| place.start < self.part)
    }

    fn overlaps(&self) -> bool {
        self.options.overlap_comm == Some(true)
    }

    fn is_on_host(&self) -> bool {
        self.master.is_none()
    }

    fn splits_gradients(&self) -> bool {
        self.options.stage == 2
    }

    fn stream(&self) -> Stream {
        if self.overlaps() { Stream::ReduceScatter } else { Stream::Default }
    }

    /// `setup_buckets`.
    fn set_up(&self, tape: &Tape) {
        if !self.buckets.borrow().is_empty() {
            return;
        }
        let shape = Shape::new(&[Dim::plain(self.options.reduce_bucket_size)]);
        let bucket = || tape.empty(shape, self.dtype, Part::Gradients, "bucket of gradients");
        let count = if self.overlaps() { 2 } else { 1 };
        let made = tape.scope(super::BUCKETS, || (0..count).map(|_| bucket()).collect());
        self.buckets.replace(made);
        self.bucket.set(0);
    }

    /// `reduce_independent_p_g_buckets_and_remove_grads`; returns what the parameter's gradient is from here on.
    fn reduce(&self, tape: &Tape, at: usize, gradient: Tensor) -> Tensor {
        let size = self.options.reduce_bucket_size;
        let elements = self.elements(at);
        if self.filled.get() + elements > size {
            self.flush(tape);
            if self.overlaps() {
                self.bucket.set(1 - self.bucket.get());
            }
        }
        self.filled.set(self.filled.get() + elements);
        self.in_bucket.borrow_mut().push(at);
        let buckets = self.buckets.borrow();
        match buckets.get(self.bucket.get()) {
            Some(bucket) if elements <= size => bucket.alias(*gradient.shape()),
            // One that no bucket takes is reduced where it is; on its way to the host it is a copy.
            _ if self.is_on_host() => tape.empty(*gradient.shape(), self.dtype, Part::Gradients, "gradient, copied"),
            _ => gradient,
        }
    }

    /// `reduce_ipg_grads`.
    fn flush(&self, tape: &Tape) {
        let params = self.in_bucket.take();
        self.filled.set(0);
        tape.on_stream(self.stream(), || {
            self.average(tape, &params);
            for at in params {
                let Some(leaf) = self.params.get(at).and_then(Tensor::leaf) else { continue };
                if self.is_own(at) && self.is_on_host() {
                    if self.boundary.get() {
                        self.send(tape, at);
                        leaf.grad.tensor.take();
                    }
                } else if self.is_own(at) {
                    let own = self.own(tape);
                    let mut gradient = leaf.grad.tensor.borrow_mut();
                    *gradient = gradient.take().map(|old| own.alias(*old.shape()));
                } else if self.splits_gradients() {
                    leaf.grad.tensor.take();
                }
            }
        });
    }

    /// Of a gradient what this rank updates, on its way to the host: its norm is taken, and it is cast.
    fn send(&self, tape: &Tape, at: usize) {
        let Some(place) = self.places.get(at) else { return };
        let n = place.end.min(self.part) - place.start;
        let wide = tape.scratch(n.saturating_mul(8), "gradient, in FP64 for its norm");
        self.norms.borrow_mut().push(tape.largest(&Shape::new(&[Dim::plain(n)]), Dtype::I64));
        drop(wide);
        drop((self.dtype != Dtype::F32).then(|| flat(tape, n, Dtype::F32, "gradient, in FP32")));
    }

    /// `grads_in_partition`.
    fn own(&self, tape: &Tape) -> Tensor {
        let mut own = self.own.borrow_mut();
        let make = || {
            let all = (0..self.params.len()).filter(|at| self.is_own(*at)).map(|at| self.elements(at)).sum();
            tape.empty(Shape::new(&[Dim::plain(all)]), self.dtype, Part::Gradients, "gradients, this rank's part")
        };
        own.get_or_insert_with(make).clone()
    }

    /// `average_tensor`: pieces of one rank each are copied together and reduced.
    fn average(&self, tape: &Tape, params: &[usize]) {
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        for place in params.iter().filter_map(|at| self.places.get(*at)) {
            let mut start = place.start;
            while start < place.end {
                let rank = start / self.part;
                let end = place.end.min((rank + 1) * self.part);
                match pieces.last_mut().filter(|(of, _)| *of == rank) {
                    Some((_, elements)) => *elements += end - start,
                    None => pieces.push((rank, end - start)),
                }
                start = end;
            }
        }
        let (mut count, mut elements) = (0, 0);
        for (at, (_, n)) in pieces.iter().enumerate() {
            count += 1;
            elements += n;
            if elements > self.options.reduce_bucket_size || at + 1 == pieces.len() {
                // A single one is not copied.
                drop((count > 1).then(|| flat(tape, elements, self.dtype, "pieces of a bucket, in a row")));
                (count, elements) = (0, 0);
            }
        }
    }

    /// `independent_gradient_partition_epilogue`.
    fn finish(&self, tape: &Tape) {
        self.flush(tape);
        if self.overlaps() {
            tape.synchronize();
        }
        let mut pieces = Vec::new();
        for (at, leaf) in self.params.iter().enumerate().filter_map(|(at, p)| Some((at, p.leaf()?))) {
            let gradient = leaf.grad.tensor.take();
            let kept = gradient.filter(|_| self.is_own(at) && !self.is_on_host());
            if let (Some(gradient), Some(place)) = (kept, self.places.get(at)) {
                pieces.push((gradient, place.end.min(self.part) - place.start));
            }
        }
        // Those of a later micro-batch are added to the first's.
        let mut gathered = self.gathered.borrow_mut();
        if gathered.is_empty() {
            *gathered = pieces;
        } else {
            drop(pieces);
        }
        self.buckets.take();
        self.own.take();
    }
}

impl Wrapper for Partitioned {
    fn micro_batch(&self, last: bool) {
        self.boundary.set(last);
    }

    fn loss_products(&self) -> Option<u32> {
        // By the micro-batches, by the scale.
        Some(2)
    }

    fn gradient_ready(&self, tape: &Tape, at: usize, gradient: Tensor) -> Option<Tensor> {
        self.set_up(tape);
        let now = self.splits_gradients() || (self.overlaps() && self.boundary.get());
        Some(if now { self.reduce(tape, at, gradient) } else { gradient })
    }

    fn after_backward(&self, tape: &Tape) {
        if !self.splits_gradients() {
            if !self.boundary.get() {
                return;
            }
            if !self.overlaps() {
                for (at, leaf) in self.params.iter().enumerate().filter_map(|(at, p)| Some((at, p.leaf()?))) {
                    let gradient = leaf.grad.tensor.take();
                    let stays = gradient.map(|gradient| self.reduce(tape, at, gradient));
                    *leaf.grad.tensor.borrow_mut() = stays;
                }
            }
        }
        self.finish(tape);
    }

    fn before_step(&self, tape: &Tape) -> bool {
        if self.is_on_host() {
            // Whether a gradient is not finite, then the norm's sum over ranks.
            for _ in 0..2 {
                drop(tape.scalar(Dtype::F32, "over all ranks"));
            }
            return true;
        }
        let pieces = self.gathered.take();
        let sizes = pieces.iter().map(|(_, n)| *n);
        self.norm.take(tape, sizes, 1);
        let copied = pieces.len() > 1;
        let row = copied.then(|| flat(tape, self.part, self.dtype, "gradients, in a row"));
        let kept = match row {
            Some(row) if self.dtype == Dtype::F32 => Some(row),
            row => {
                let shape = Shape::new(&[Dim::plain(self.part)]);
                let wide = (self.dtype != Dtype::F32)
                    .then(|| tape.empty(shape, Dtype::F32, Part::Gradients, "gradient, in FP32"));
                drop(row);
                wide.or_else(|| pieces.first().map(|(piece, _)| piece.alias(shape)))
            }
        };
        drop(pieces);
        if let Some(leaf) = self.master.as_ref().and_then(Tensor::leaf) {
            *leaf.grad.tensor.borrow_mut() = kept;
        }
        true
    }

    fn after_step(&self, _tape: &Tape) {
        if let Some(leaf) = self.master.as_ref().and_then(Tensor::leaf) {
            leaf.grad.tensor.take();
        }
        self.norms.take();
        self.norm.settle();
    }
}

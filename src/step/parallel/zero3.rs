//! ZeRO's stage 3 of a DeepSpeed engine, as read at DeepSpeed 0.19
//! (`deepspeed/runtime/zero/{stage3,partitioned_param_coordinator,partition_parameters,parameter_offload}.py`).
//!
//! Every parameter is cut into equal parts. A module's parameters are gathered before its forward and its backward; from the
//! second forward on, what comes next in the recorded order is gathered ahead, and what is needed again soon is kept.
//! Gradients are copied into a bucket, which is reduced when it is full.
//!
//! With `offload_optimizer` gradients, FP32 masters and the optimizer's states lie in host memory: a rank's part of a reduced
//! gradient is copied there, comes back to have its norm taken, and is cast for the second copy. With `offload_param` a rank's
//! parts of the parameters lie there, and are copied to the GPU one by one for each gather; those on a disk come through host
//! memory, and are for the GPU the same. Gradients whose optimizer is on a disk are written when a bucket's are all cast; what is
//! too small for that, or leaves a remainder, stays on the GPU until the step (`swap_tensor/optimizer_utils.py`: read, not
//! measured).

use core::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::bill::Part;
use crate::model::family::{Built, Model};
use crate::plan::Plan;
use crate::recipe::parallel::DeepSpeed;
use crate::step::autograd::{Grads, Recorder};
use crate::step::log::Stream;
use crate::step::parallel::deepspeed::{GradientNorm, adopted, trained_in};
use crate::step::parallel::flat::flat;
use crate::step::parallel::{BUCKETS, ROOT, Wrapper, on_gradient};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// What is copied from host memory for a gather.
pub(crate) const FROM_HOST: &str = "part of a parameter, from the host";

/// Elements of a gradient that are cast at once for its norm (`_constant_buffered_norm2`).
const NORM_AT_ONCE: u64 = 250_000_000;

/// The fewest bytes that are written to a disk (`MIN_AIO_BYTES`, the default `aio.block_size`).
pub(crate) const LEAST_SWAPPED: u64 = 1 << 20;
/// Elements in FP32 that what is written is a multiple of (`AIO_ALIGNED_BYTES`).
pub(crate) const SWAPPED_BY: u64 = 256;

/// How far the order of modules is known (`ZeRoTraceMode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Trace {
    #[default]
    Invalid,
    Record,
    Complete,
}

/// A gather of one parameter into its storage, or of several into one buffer that they are copied out of.
#[derive(Debug)]
struct Gather {
    _flat: Option<Tensor>,
    params: Vec<usize>,
    complete: Cell<bool>,
}

#[derive(Debug)]
struct Param {
    /// What modules see. Its storage comes and goes.
    tensor: Tensor,
    elements: u64,
    /// Elements of a rank's part.
    part: u64,
    /// Whether it stays when its modules have run (`ds_persist`).
    persists: bool,
    /// Whether its optimizer's states and its gradient are written to a disk.
    swaps: Cell<bool>,
    available: Cell<bool>,
    /// The gather that has not been waited for.
    gather: RefCell<Option<Rc<Gather>>>,
    /// Modules that have not given it back.
    users: RefCell<Vec<u32>>,
    /// Modules around its own, from the outermost.
    around: Vec<u32>,
    /// Modules without parameters that run after its own.
    after: usize,
}

/// The engine's optimizer and its parameter coordinator.
#[derive(Debug)]
pub(super) struct Sharded {
    options: DeepSpeed,
    ranks: u64,
    dtype: Dtype,
    params: Vec<Param>,
    /// This rank's parts in the engine's dtype, whether a gradient is not finite, and this rank's gradients, unless they are in
    /// host memory.
    _kept: [Option<Tensor>; 3],
    /// `norm_for_param_grads`, until the step is over, where gradients lie in host memory.
    norms: RefCell<Vec<Tensor>>,
    /// Gradients in FP32 that wait for the step on their way to a disk (`unswapped_gradients`).
    unswapped: RefCell<Vec<Tensor>>,
    /// Whether the step's first micro-batch is over, and its last begun.
    accumulates: Cell<bool>,
    boundary: Cell<bool>,
    /// The same in FP32, which the optimizer steps group by group, and whether a group's gradients lie apart.
    masters: Vec<(Tensor, bool)>,
    bucket: Tensor,
    filled: Cell<u64>,
    in_bucket: RefCell<Vec<usize>>,
    trace: Cell<Trace>,
    /// The parameters of each module, in order.
    modules: RefCell<Vec<Vec<usize>>>,
    /// What of `modules` has not been gathered: each parameter and its module's place.
    queue: RefCell<VecDeque<(usize, usize)>>,
    /// One past the last place for which each parameter was gathered; 0: for none.
    gathered_for: RefCell<Vec<usize>>,
    step: Cell<usize>,
    /// Elements of gathered parameters.
    live: Cell<u64>,
    /// Modules that are running, from the outermost.
    open: RefCell<Vec<u32>>,
    backward: Cell<bool>,
    /// Modules in whose backward we are, and their parameters.
    active: RefCell<Vec<(u32, Vec<usize>)>>,
    norm: GradientNorm,
}

/// Whether gathering and reducing run on streams of their own: by default they do.
fn overlaps(options: &DeepSpeed) -> bool {
    options.overlap_comm.unwrap_or(true)
}

fn gather_stream(options: &DeepSpeed) -> Stream {
    if overlaps(options) { Stream::AllGather } else { Stream::Default }
}

/// Elements of one rank's part of a parameter.
pub(super) fn part_of(elements: u64, ranks: u64) -> u64 {
    elements.div_ceil(ranks)
}

/// The parameters that modules see, without memory.
#[inline(never)]
pub(super) fn gathered(tape: &Tape, model: &dyn Model, plan: &Plan, options: &DeepSpeed, dtype: Dtype) -> Vec<Tensor> {
    let ranks = plan.parallel.data_ranks();
    tape.on_stream(gather_stream(options), || {
        super::leaves(tape, model, |p| {
            let padded = part_of(p.shape.numel().unwrap_or(0), ranks) * ranks;
            tape.absent(Shape::new(&[Dim::plain(padded)]), dtype, Part::Weights, "gathered parameter")
        })
    })
}

/// Numbers for the modules around each parameter's own, from its name.
fn modules_around(names: &[String]) -> Vec<Vec<u32>> {
    let mut known: Vec<String> = Vec::new();
    let mut number = |prefix: String| {
        let at = known.iter().position(|name| *name == prefix).unwrap_or_else(|| {
            known.push(prefix);
            known.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    };
    let around = |name: &String| {
        let parts: Vec<&str> = name.split('.').collect();
        // The last part is the parameter; a list, which a number follows, does not run.
        let outer = (0..parts.len().saturating_sub(1)).filter(|&n| parts[n].parse::<u32>().is_err());
        outer.map(|n| number(parts[..n].join("."))).collect()
    };
    names.iter().map(around).collect()
}

/// Modules without parameters that run after a parameter's: rotary tables, activations, dropout.
fn modules_after(name: &str) -> usize {
    let last = ["embed_tokens.weight", "gate_proj.weight", "wpe.weight", "c_proj.weight", "c_fc.weight"];
    usize::from(last.iter().any(|end| name.ends_with(end)))
}

/// Elements of a rank's parts that are stepped together, and whether they are several parameters' (`_create_fp16_sub_groups`).
pub(crate) fn sub_groups(parts: &[u64], size: u64) -> Vec<(u64, bool)> {
    let mut groups = Vec::new();
    let (mut elements, mut count) = (0u64, 0);
    for (at, part) in parts.iter().enumerate() {
        elements = elements.saturating_add(*part);
        count += 1;
        if elements >= size || at + 1 == parts.len() {
            groups.push((elements, count > 1));
            (elements, count) = (0, 0);
        }
    }
    groups
}

/// Makes the optimizer. Returns it, and what is stepped.
#[inline(never)]
pub(super) fn wrap(
    tape: &Tape,
    model: &dyn Model,
    built: &dyn Built,
    plan: &Plan,
    options: &DeepSpeed,
) -> (Sharded, Vec<Tensor>) {
    let ranks = plan.parallel.data_ranks();
    let dtype = trained_in(options);
    let names = model.parameter_names();
    let params: Vec<Param> = built
        .weights()
        .iter()
        .zip(modules_around(&names))
        .zip(&names)
        .map(|((tensor, around), name)| {
            let elements = tensor.shape().numel().unwrap_or(0);
            Param {
                tensor: tensor.clone(),
                elements,
                part: part_of(elements, ranks),
                persists: elements <= options.stage3_param_persistence_threshold,
                swaps: Cell::new(false),
                available: Cell::new(false),
                gather: RefCell::default(),
                users: RefCell::default(),
                around,
                after: modules_after(name),
            }
        })
        .collect();
    let line =
        |n: u64, dtype: Dtype, part: Part, op: &'static str| tape.empty(Shape::new(&[Dim::plain(n)]), dtype, part, op);
    let (states_on_host, params_on_host) = (options.offload_optimizer.is_on(), options.offload_param.is_on());
    let shard = |p: &Param| (!params_on_host).then(|| line(p.part, dtype, Part::Weights, "part of a parameter"));
    let shards: Vec<Option<Tensor>> = if options.zero_init {
        let one = |p: &Param| {
            let whole = tape.temp(*p.tensor.shape(), dtype, "parameter");
            let shard = shard(p);
            drop(whole);
            shard
        };
        params.iter().map(one).collect()
    } else {
        adopted(tape, model, dtype).into_iter().zip(&params).map(|(_, p)| shard(p)).collect()
    };
    let all: u64 = params.iter().map(|p| p.part).sum();
    let tracker = (!states_on_host).then(|| tape.scratch(1, "whether a gradient is not finite"));
    // They pass through the host on their way into one buffer (`defragment`).
    drop(shards);
    let parts = (!params_on_host).then(|| {
        tape.empty_cache();
        line(all, dtype, Part::Weights, "this rank's parts of the parameters")
    });
    let groups = sub_groups(&params.iter().map(|p| p.part).collect::<Vec<u64>>(), options.sub_group_size);
    if options.offload_optimizer.is_on_disk() {
        let mut sizes = groups.iter().map(|(elements, _)| *elements);
        let (mut group, mut left) = (0, 0);
        for p in &params {
            if left == 0 {
                group = sizes.next().unwrap_or(0);
                left = group;
            }
            p.swaps.set(group.saturating_mul(4) >= LEAST_SWAPPED);
            left = left.saturating_sub(p.part);
        }
    }
    let mut masters = Vec::new();
    let mut converted = None;
    for (elements, _) in groups.iter().filter(|_| !states_on_host) {
        if dtype != Dtype::F32 || params_on_host {
            let wide = line(*elements, Dtype::F32, Part::States, "master weights, converted");
            // The one before goes when it is there.
            drop(converted.replace(wide));
        }
        let shape = Shape::new(&[Dim::plain(*elements)]);
        masters.push(Tensor::leaf_of(tape, 0, shape, Dtype::F32, Part::States, "master weights, this rank's part"));
    }
    drop(converted);
    let largest = groups.iter().map(|(elements, _)| *elements).max().unwrap_or(0);
    drop((!states_on_host).then(|| line(largest, Dtype::F32, Part::Gradients, "gradient, in FP32")));
    let (bucket, gradients) = tape.scope(BUCKETS, || {
        let bucket = line(options.reduce_bucket_size, dtype, Part::Gradients, "bucket of gradients");
        let gradients = || line(all, dtype, Part::Gradients, "gradients, this rank's part");
        (bucket, (!states_on_host).then(gradients))
    });
    // Each is gathered once for its hook.
    for p in &params {
        drop(line(p.part * ranks, dtype, Part::Temporary, "gathered parameter"));
    }
    for (at, p) in params.iter().enumerate() {
        on_gradient(&p.tensor, at);
    }
    let wrapper = Sharded {
        options: options.clone(),
        ranks,
        dtype,
        gathered_for: RefCell::new(vec![0; params.len()]),
        params,
        _kept: [parts, tracker, gradients],
        norms: RefCell::default(),
        unswapped: RefCell::default(),
        accumulates: Cell::new(false),
        boundary: Cell::new(true),
        masters: masters.iter().cloned().zip(groups.iter().map(|(_, copied)| *copied)).collect(),
        bucket,
        filled: Cell::new(0),
        in_bucket: RefCell::default(),
        trace: Cell::default(),
        modules: RefCell::default(),
        queue: RefCell::default(),
        step: Cell::new(0),
        live: Cell::new(0),
        open: RefCell::default(),
        backward: Cell::new(false),
        active: RefCell::default(),
        norm: GradientNorm::default(),
    };
    (wrapper, masters)
}

impl Sharded {
    fn each<'a>(&'a self, places: &'a [usize]) -> impl Iterator<Item = &'a Param> {
        places.iter().filter_map(|at| self.params.get(*at))
    }

    /// `all_gather_coalesced`.
    fn gather(&self, tape: &Tape, mut places: Vec<usize>) {
        if places.is_empty() {
            return;
        }
        places.sort_unstable();
        let elements: u64 = self.each(&places).map(|p| p.elements).sum();
        self.live.set(self.live.get() + elements);
        let parts: u64 = self.each(&places).map(|p| p.part).sum();
        let flat = (places.len() > 1).then(|| {
            tape.on_stream(gather_stream(&self.options), || {
                flat(tape, parts * self.ranks, self.dtype, "all-gather buffer")
            })
        });
        if flat.is_none() {
            self.each(&places).for_each(|p| p.tensor.provide());
        }
        let copied: Vec<Tensor> =
            tape.on_stream(gather_stream(&self.options), || self.copied(tape, self.each(&places)).collect());
        drop(copied);
        let gather = Rc::new(Gather { _flat: flat, params: places, complete: Cell::new(false) });
        for p in self.each(&gather.params) {
            *p.gather.borrow_mut() = Some(gather.clone());
        }
    }

    /// This rank's parts of parameters, copied from the host where they lie there.
    fn copied<'a>(&'a self, tape: &'a Tape, params: impl Iterator<Item = &'a Param>) -> impl Iterator<Item = Tensor> {
        let on_host = self.options.offload_param.is_on();
        params.filter(move |_| on_host).map(|p| flat(tape, p.part, self.dtype, FROM_HOST))
    }

    /// The handle's `wait`: parameters gathered together are copied out of the buffer.
    fn wait(&self, p: &Param) {
        let Some(gather) = p.gather.take() else { return };
        if !gather.complete.replace(true) {
            for p in self.each(&gather.params) {
                p.tensor.provide();
                p.available.set(true);
            }
        }
    }

    /// `__release_param`.
    fn release(&self, p: &Param) {
        if p.available.get() && p.users.borrow().is_empty() {
            p.tensor.used_on(Stream::Default);
            p.tensor.withdraw();
            p.available.set(false);
            self.live.set(self.live.get().saturating_sub(p.elements));
        }
    }

    /// `fetch_sub_module`.
    fn fetch(&self, tape: &Tape, module: u32, params: &[usize], backward: bool) {
        if self.trace.get() == Trace::Record {
            self.modules.borrow_mut().push(params.to_vec());
        }
        if backward && !params.is_empty() {
            let mut active = self.active.borrow_mut();
            active.retain(|(other, _)| *other != module);
            active.push((module, params.to_vec()));
        }
        let absent = |p: &Param| !p.available.get() && p.gather.borrow().is_none();
        let is_absent = |at: &usize| self.params.get(*at).is_some_and(absent);
        self.gather(tape, params.iter().copied().filter(is_absent).collect());
        for p in self.each(params) {
            let mut users = p.users.borrow_mut();
            if !users.contains(&module) {
                users.push(module);
            }
            drop(users);
            self.wait(p);
        }
        if self.trace.get() == Trace::Complete {
            self.advance(params);
            self.prefetch(tape, is_absent);
        }
        self.step.set(self.step.get() + 1);
    }

    /// Takes what the module needs off the queue, unless it was gathered for this place ahead.
    fn advance(&self, params: &[usize]) {
        let mut gathered_for = self.gathered_for.borrow_mut();
        let expected = params.iter().filter(|at| gathered_for[**at] <= self.step.get()).count();
        let mut taken: Vec<usize> = Vec::new();
        while taken.len() < expected
            && let Some((at, place)) = self.queue.borrow_mut().pop_front()
        {
            gathered_for[at] = place + 1;
            if !taken.contains(&at) {
                taken.push(at);
            }
        }
    }

    /// Gathers what comes next.
    fn prefetch(&self, tape: &Tape, is_absent: impl Fn(&usize) -> bool) {
        let most = self.options.stage3_max_live_parameters.saturating_sub(self.live.get());
        let most = most.min(self.options.stage3_prefetch_bucket_size);
        let (mut chosen, mut elements) = (Vec::new(), 0);
        while elements < most
            && let Some((at, place)) = self.queue.borrow_mut().pop_front()
        {
            let mut gathered_for = self.gathered_for.borrow_mut();
            gathered_for[at] = gathered_for[at].max(place + 1);
            if is_absent(&at) && !chosen.contains(&at) {
                chosen.push(at);
                elements += self.params[at].elements;
            }
        }
        self.gather(tape, chosen);
    }

    /// `release_sub_module`.
    fn give_back(&self, module: u32, params: &[usize], backward: bool) {
        let released = match self.trace.get() {
            Trace::Complete => self.released(params),
            _ => params.to_vec(),
        };
        if backward {
            self.active.borrow_mut().retain(|(other, _)| *other != module);
        }
        for at in params {
            let Some(p) = self.params.get(*at) else { continue };
            p.users.borrow_mut().retain(|user| *user != module);
            if released.contains(at) {
                self.release(p);
            }
        }
    }

    /// `__params_to_release`: what is not used again soon, nor was counted as gathered for a later use.
    fn released(&self, params: &[usize]) -> Vec<usize> {
        let step = self.step.get();
        let gathered_for = self.gathered_for.borrow();
        let mut released: Vec<usize> = params
            .iter()
            .copied()
            .filter(|at| self.params.get(*at).is_some_and(|p| !p.persists) && gathered_for[*at] <= step + 1)
            .collect();
        let mut passed = 0;
        for module in self.modules.borrow().iter().skip(step) {
            if passed >= self.options.stage3_max_reuse_distance {
                break;
            }
            for at in module {
                released.retain(|candidate| candidate != at);
                passed += self.params[*at].elements;
            }
        }
        released
    }

    /// `reset_step`, as each forward begins.
    fn reset(&self) {
        for p in &self.params {
            if p.gather.borrow().is_some() {
                self.wait(p);
                self.release(p);
            }
        }
        match self.trace.get() {
            Trace::Invalid => self.trace.set(Trace::Record),
            Trace::Record => self.trace.set(Trace::Complete),
            Trace::Complete => {}
        }
        self.gathered_for.borrow_mut().fill(0);
        self.step.set(0);
        self.live.set(0);
        let mut queue = self.queue.borrow_mut();
        queue.clear();
        if self.trace.get() == Trace::Complete {
            for (place, module) in self.modules.borrow().iter().enumerate() {
                let mut sorted = module.clone();
                sorted.sort_unstable();
                queue.extend(sorted.into_iter().map(|at| (at, place)));
            }
        }
    }

    /// Modules that begin around those with parameters.
    fn enter(&self, tape: &Tape, p: &Param, backward: bool) {
        if self.backward.replace(backward) != backward {
            self.open.borrow_mut().clear();
        }
        let before = self.open.replace(p.around.clone());
        let shared = before.iter().zip(&p.around).take_while(|(a, b)| a == b).count();
        for _ in shared..p.around.len() {
            self.fetch(tape, u32::MAX, &[], backward);
        }
    }

    /// `__reduce_and_partition_ipg_grads`.
    fn flush(&self, tape: &Tape) {
        let places = self.in_bucket.take();
        self.filled.set(0);
        let parts: u64 = self.each(&places).map(|p| p.part).sum();
        // One alone that needs no padding is reduced where it is.
        let copied = match *places {
            [] => false,
            [at] => !self.params[at].elements.is_multiple_of(self.ranks),
            _ => true,
        };
        tape.on_stream(self.reduce_stream(), || {
            let row = copied.then(|| flat(tape, parts * self.ranks, self.dtype, "gradients, by rank"));
            let (mut back, mut written) = (None, Vec::new());
            for p in self.each(&places) {
                if self.options.offload_optimizer.is_on() {
                    let wide = self.send(tape, p, &mut back).filter(|_| p.swaps.get());
                    let stays = p.part * 4 < LEAST_SWAPPED || !p.part.is_multiple_of(SWAPPED_BY);
                    match stays {
                        true => self.unswapped.borrow_mut().extend(wide),
                        false => written.extend(wide),
                    }
                }
                if let Some(leaf) = p.tensor.leaf() {
                    leaf.grad.tensor.take();
                }
            }
            drop((written, back, row));
        });
    }

    /// `partition_grads`: a rank's part of a gradient goes to the host and comes back; in the last micro-batch its norm is taken,
    /// and it is cast on its second way there; returns what goes. What came `back` before it goes when Python says so.
    fn send(&self, tape: &Tape, p: &Param, back: &mut Option<Tensor>) -> Option<Tensor> {
        if !self.accumulates.get() {
            back.take();
        }
        *back = Some(flat(tape, p.part, self.dtype, "part of a gradient, from the host"));
        if !self.boundary.get() {
            return None;
        }
        let wide = tape.scratch(p.part.min(NORM_AT_ONCE).saturating_mul(8), "gradient, in FP64 for its norm");
        self.norms.borrow_mut().push(tape.largest(&Shape::new(&[Dim::plain(p.part)]), Dtype::I64));
        drop(wide);
        let casts = self.dtype != Dtype::F32;
        if casts { Some(flat(tape, p.part, Dtype::F32, "gradient, in FP32")) } else { back.clone() }
    }

    fn reduce_stream(&self) -> Stream {
        if overlaps(&self.options) { Stream::ReduceScatter } else { Stream::Default }
    }
}

impl Wrapper for Sharded {
    fn micro_batch(&self, last: bool) {
        self.accumulates.set(!self.boundary.replace(last));
    }

    fn loss_products(&self) -> Option<u32> {
        // By the micro-batches, by the scale.
        Some(2)
    }

    fn settles_in_a_step(&self) -> bool {
        true
    }

    fn gathers_modules(&self) -> bool {
        true
    }

    fn replaces_linear(&self) -> bool {
        self.options.zero_init
    }

    fn before_forward(&self, _tape: &Tape, module: u32, _args: &mut [Tensor]) {
        if module == ROOT {
            self.reset();
            self.open.borrow_mut().clear();
            self.backward.set(false);
        }
    }

    fn before_module(&self, tape: &Tape, module: u32, params: &[usize], backward: bool) {
        let Some(p) = params.first().and_then(|at| self.params.get(*at)) else { return };
        self.enter(tape, p, backward);
        if backward {
            (0..p.after).for_each(|_| self.fetch(tape, u32::MAX, &[], true));
        }
        self.fetch(tape, module, params, backward);
    }

    fn after_module(&self, tape: &Tape, module: u32, params: &[usize], backward: bool) {
        self.give_back(module, params, backward);
        let Some(p) = params.first().and_then(|at| self.params.get(*at)).filter(|_| !backward) else { return };
        (0..p.after).for_each(|_| self.fetch(tape, u32::MAX, &[], false));
    }

    fn gradient_ready(&self, tape: &Tape, at: usize, gradient: Tensor) -> Option<Tensor> {
        let elements = self.params.get(at).map_or(0, |p| p.elements);
        let size = self.options.reduce_bucket_size;
        if self.filled.get() + elements > size && self.filled.get() > 0 {
            self.flush(tape);
        }
        let fits = self.filled.get() + elements <= size;
        self.in_bucket.borrow_mut().push(at);
        self.filled.set(self.filled.get() + elements);
        gradient.used_on(self.reduce_stream());
        Some(if fits { self.bucket.alias(*gradient.shape()) } else { gradient })
    }

    fn after_backward(&self, tape: &Tape) {
        self.flush(tape);
        tape.synchronize();
        // Modules whose inputs have no gradient do not say that their backward is over.
        for (module, params) in self.active.take().into_iter().rev() {
            for p in self.each(&params) {
                p.users.borrow_mut().retain(|user| *user != module);
                if !p.persists {
                    self.release(p);
                }
            }
        }
    }

    fn before_step(&self, tape: &Tape) -> bool {
        for p in &self.params {
            self.wait(p);
            p.users.borrow_mut().clear();
            self.release(p);
        }
        if self.options.offload_optimizer.is_on() {
            // The norm over all ranks, and whether it is a number (`mask_nan_or_inf_with_val_inplace`).
            let scalars: Vec<Tensor> = (0..6).map(|_| tape.scalar(Dtype::F32, "gradient norm")).collect();
            drop(scalars);
            return true;
        }
        self.norm.take(tape, self.params.iter().map(|p| p.part), self.masters.len() + 1);
        true
    }

    fn steps_one_by_one(&self) -> bool {
        true
    }

    /// `_prepare_fp32_grad_for_sub_group`.
    fn before_group(&self, tape: &Tape, at: usize) {
        let Some((master, copied)) = self.masters.get(at) else { return };
        let elements = master.shape().numel().unwrap_or(0);
        let mut gradient = copied.then(|| flat(tape, elements, self.dtype, "gradients, in a row"));
        if self.dtype != Dtype::F32 {
            let wide = tape.empty(*master.shape(), Dtype::F32, Part::Gradients, "gradient, in FP32");
            drop(gradient.replace(wide));
        }
        if let Some(leaf) = master.leaf() {
            *leaf.grad.tensor.borrow_mut() = gradient;
        }
    }

    fn after_group(&self, at: usize) {
        if let Some(leaf) = self.masters.get(at).and_then(|(master, _)| master.leaf()) {
            leaf.grad.tensor.take();
        }
    }

    fn after_step(&self, tape: &Tape) {
        self.norms.take();
        self.unswapped.take();
        self.norm.settle();
        let copied: Vec<Tensor> = self.copied(tape, self.params.iter().filter(|p| p.persists)).collect();
        for p in self.params.iter().filter(|p| p.persists) {
            p.tensor.provide();
            p.available.set(true);
        }
        drop(copied);
    }
}

/// `LinearFunctionForZeroStage3`, which takes `F.linear`'s place in a model made under `zero.Init`.
pub(super) fn linear(tape: &Tape, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let mut inputs = vec![x, weight];
    inputs.extend(bias);
    let r = Recorder::begin(tape, &inputs);
    let (sx, sw) = (r.save(x), r.save(weight));
    let last = x.shape().rank() - 1;
    let out = tape.product(x.shape().narrowed(last, weight.dim(0)).contiguous(), x, "matmul");
    let (xshape, wshape, needs_x) = (x.shape().contiguous(), *weight.shape(), x.requires_grad());
    let needs_w = weight.requires_grad();
    let bias = bias.map(|bias| *bias.shape());
    r.finish(out, move |t, g| {
        let mut grads = Grads::default();
        let Some(g) = g.first().and_then(Option::as_ref) else { return grads };
        let (x, w) = (sx.unpack(t), sw.unpack(t));
        grads[0] = needs_x.then(|| t.product_out(xshape, g, "grad of matmul input"));
        grads[1] = needs_w.then(|| t.product_out(wshape, g, "grad of weight"));
        if let Some(bias) = bias {
            grads[2] = Some(t.temp(bias, g.dtype(), "grad of bias"));
        }
        drop((x, w));
        grads
    })
}

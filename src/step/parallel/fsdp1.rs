//! FSDP1 (`torch.distributed.fsdp.FullyShardedDataParallel`), as read at PyTorch 2.15 (`_runtime_utils.py`, `_flat_param.py`).
//!
//! The parameters of a unit are views of one flat parameter, which is gathered into place; their gradients meet in the
//! backward of the split into views, which concatenates them. What one stream frees and another used is recorded on it.
//!
//! Under `CPUOffload` shards lie in pinned host memory. Each gather copies the unit's there, and so does every time that a unit
//! is asked for whose shard is back in place though it is still gathered (`pre_unshard`). A reduced gradient is copied to the
//! host, and stays on the device until backward is over (`_saved_grad_shard`).

use core::cell::{Cell, RefCell};

use crate::bill::Part;
use crate::model::family::{Built, Model, Parameter};
use crate::plan::Plan;
use crate::recipe::parallel::{Fsdp1, Prefetch, ShardingStrategy};
use crate::step::autograd::{Recorder, grads_of};
use crate::step::load::layer_of;
use crate::step::log::{Stream, Sync};
use crate::step::parallel::flat::flat;
use crate::step::parallel::{FROM_HOST, ROOT, Wrapper, on_backward_of, on_gradient};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// What a unit is in the middle of (`HandleTrainingState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Forward,
    BackwardPre,
    BackwardPost,
}

/// A unit of parameters (`FlatParamHandle`).
#[derive(Debug)]
struct Unit {
    /// What modules see: views of `whole`.
    views: Vec<Tensor>,
    /// The flat parameter gathered from all ranks, padded. Its storage comes and goes.
    whole: Tensor,
    /// The same as a leaf: where the views' gradients gather.
    leaf: Tensor,
    /// What is cast from this rank's part before it is gathered.
    cast: Option<Tensor>,
    /// This rank's part, copied from the host, of which the original parameters are views until they are of the shard again.
    copied: RefCell<Option<Tensor>>,
    /// Sizes of the views and of the padding between them, in elements; none of a tensor's is padding.
    sizes: Vec<(u64, bool)>,
    /// What the optimizer sees of the shard.
    trained: Vec<Tensor>,
    /// The reduced gradient.
    gradient: RefCell<Option<Tensor>>,
    phase: Cell<Phase>,
    gathered: Cell<bool>,
    needs_gather: Cell<bool>,
    prefetched: Cell<bool>,
    ran_pre_backward: Cell<bool>,
    place: Cell<Option<usize>>,
}

/// The wrapped model.
#[derive(Debug)]
pub(super) struct FullySharded {
    options: Fsdp1,
    ranks: u64,
    original: Dtype,
    compute: Dtype,
    reduce: Dtype,
    /// By module: the root's first, then the layers'.
    units: Vec<Unit>,
    order: RefCell<Vec<u32>>,
    reduces: Cell<bool>,
    initialized: Cell<bool>,
    callback_queued: Cell<bool>,
}

/// Addresses of views are multiples of so many bytes where the optimizer sees them (`_get_aligned_numel`).
const ALIGNMENT: u64 = 16;

fn compute_dtype(options: &Fsdp1, original: Dtype) -> Dtype {
    options.mixed_precision.param.map_or(original, Dtype::from)
}

fn is_sharded(options: &Fsdp1) -> bool {
    options.strategy != ShardingStrategy::NoShard
}

fn is_hybrid(options: &Fsdp1) -> bool {
    matches!(options.strategy, ShardingStrategy::HybridShard | ShardingStrategy::HybridShardZero2)
}

/// Ranks that a unit is split over.
fn ranks(plan: &Plan, options: &Fsdp1) -> u64 {
    if is_sharded(options) { (plan.parallel.data_ranks() / options.replicas.max(1)).max(1) } else { 1 }
}

/// How a unit's parameters lie one after the other, padding marked.
fn layout(options: &Fsdp1, original: Dtype, ranks: u64, numels: impl Iterator<Item = u64>) -> Vec<(u64, bool)> {
    let mut sizes = Vec::new();
    let mut total = 0u64;
    let pad = |sizes: &mut Vec<(u64, bool)>, total: &mut u64, to: u64| {
        let over = *total % to;
        if options.use_orig_params && over > 0 {
            sizes.push((to - over, true));
            *total += to - over;
        }
    };
    let aligned = ALIGNMENT / compute_dtype(options, original).bytes();
    for n in numels {
        pad(&mut sizes, &mut total, aligned);
        sizes.push((n, false));
        total = total.saturating_add(n);
    }
    pad(&mut sizes, &mut total, ranks);
    sizes
}

/// Elements of a rank's shard of each unit.
pub(crate) fn shards_of_units(model: &dyn Model, plan: &Plan, options: &Fsdp1, original: Dtype) -> Vec<u64> {
    let n = ranks(plan, options);
    let (parameters, names) = (model.parameters(), model.parameter_names());
    let modules: Vec<u32> = names.iter().map(|name| layer_of(name)).collect();
    let most = modules.iter().copied().max().unwrap_or(ROOT);
    let of = |module: u32| {
        let own = parameters.iter().zip(&modules).filter(|(_, m)| **m == module);
        let sizes = layout(options, original, n, own.filter_map(|(p, _)| p.shape.numel()));
        sizes.iter().map(|(n, _)| n).sum::<u64>().div_ceil(n)
    };
    (ROOT..=most).map(of).collect()
}

/// The parameters that modules see, in the order of the model's: views of each unit's flat parameter, without memory.
#[inline(never)]
pub(super) fn gathered(tape: &Tape, model: &dyn Model, plan: &Plan, options: &Fsdp1, original: Dtype) -> Vec<Tensor> {
    let n = ranks(plan, options);
    let dtype = compute_dtype(options, original);
    let (parameters, names) = (model.parameters(), model.parameter_names());
    let modules: Vec<u32> = names.iter().map(|name| layer_of(name)).collect();
    let most = modules.iter().copied().max().unwrap_or(ROOT);
    // Without shards and without a cast, what modules see is the flat parameter itself.
    let stream = if is_sharded(options) { Stream::AllGather } else { Stream::CopyIn };
    let whole = |module: u32| {
        let own = parameters.iter().zip(&modules).filter(|(_, m)| **m == module);
        let sizes = layout(options, original, n, own.filter_map(|(p, _)| p.shape.numel()));
        let total: u64 = sizes.iter().map(|(n, _)| n).sum();
        let shape = Shape::new(&[Dim::plain(total.div_ceil(n) * n)]);
        tape.set_layer(module);
        let (stream, part) = match is_sharded(options) || dtype != original {
            true => (stream, "gathered parameters"),
            false => (Stream::Default, "flat parameter"),
        };
        tape.on_stream(stream, || tape.absent(shape, dtype, Part::Weights, part))
    };
    let wholes: Vec<Tensor> = (ROOT..=most).map(whole).collect();
    tape.set_layer(0);
    let at = Cell::new(0usize);
    super::leaves(tape, model, |_: &Parameter| {
        let module = modules.get(at.get()).copied().unwrap_or(ROOT);
        at.set(at.get() + 1);
        wholes[module as usize].detached()
    })
}

/// Shards the parameters of `built`. Returns the wrapper, and what is trained.
#[inline(never)]
pub(super) fn wrap(
    tape: &Tape,
    model: &dyn Model,
    built: &dyn Built,
    plan: &Plan,
    options: &Fsdp1,
    original: Dtype,
) -> (FullySharded, Vec<Tensor>) {
    let n = ranks(plan, options);
    let compute = compute_dtype(options, original);
    let weights = built.weights();
    let module_of = |w: &Tensor| w.leaf().map_or(ROOT, |leaf| leaf.layer);
    let most = weights.iter().map(module_of).max().unwrap_or(ROOT);
    let mut shards: Vec<Option<Tensor>> = vec![None; most as usize + 1];
    // Layers are wrapped first.
    for module in (1..=most).chain([ROOT]) {
        let own: Vec<usize> = (0..weights.len()).filter(|at| module_of(&weights[*at]) == module).collect();
        tape.set_layer(module);
        shards[module as usize] = make_shard(tape, (options, original, n), weights, &own, &model.parameter_names());
    }
    let mut units = Vec::new();
    let mut trained = vec![Vec::new(); weights.len()];
    for module in ROOT..=most {
        let own: Vec<usize> = (0..weights.len()).filter(|at| module_of(&weights[*at]) == module).collect();
        let views: Vec<Tensor> = own.iter().map(|at| weights[*at].clone()).collect();
        let Some(first) = views.first() else { continue };
        let sizes = layout(options, original, n, views.iter().filter_map(|w| w.shape().numel()));
        let total: u64 = sizes.iter().map(|(n, _)| n).sum();
        let part = total.div_ceil(n);
        tape.set_layer(module);
        let one = |n: u64| Shape::new(&[Dim::plain(n)]);
        let whole = first.alias(one(part * n));
        let leaf = Tensor::leaf_over(tape, &whole, u32::MAX, one(total), None);
        let casts = compute != original;
        let Some(shard) = shards[module as usize].clone() else { continue };
        let cast = match (is_sharded(options), casts) {
            (true, true) => {
                Some(tape.on_stream(Stream::CopyIn, || tape.absent(one(part), compute, Part::Temporary, "shard, cast")))
            }
            _ => None,
        };
        // Without a flat parameter the optimizer sees what of each tensor lies in the shard.
        let mut of_unit = Vec::new();
        if options.use_orig_params {
            let mut offset = 0;
            let mut places = own.iter();
            for (size, padding) in &sizes {
                let inside = part.saturating_sub(offset).min(*size);
                offset += size;
                if let (false, Some(at)) = (*padding, if *padding { None } else { places.next() })
                    && inside > 0
                {
                    let id = weights[*at].leaf().map_or(0, |leaf| leaf.id);
                    let shape = if is_sharded(options) { one(inside) } else { *weights[*at].shape() };
                    let seen = Tensor::leaf_over(tape, &shard, id, shape, None);
                    trained[*at].push(seen.clone());
                    of_unit.push(seen);
                }
            }
        } else if let Some(at) = own.first() {
            let seen = Tensor::leaf_over(tape, &shard, u32::MAX, one(part), None);
            trained[*at].push(seen.clone());
            of_unit.push(seen);
        }
        on_gradient(&leaf, module as usize);
        units.push(Unit {
            views,
            whole,
            leaf,
            cast,
            copied: RefCell::default(),
            sizes,
            trained: of_unit,
            gradient: RefCell::default(),
            phase: Cell::default(),
            gathered: Cell::new(!is_sharded(options) && !casts),
            needs_gather: Cell::default(),
            prefetched: Cell::default(),
            ran_pre_backward: Cell::default(),
            place: Cell::default(),
        });
    }
    tape.set_layer(0);
    // The root's flat parameter comes first (`module.parameters()`).
    let mut all: Vec<Tensor> = Vec::new();
    if options.offload_cpu {
        // The CPU steps them.
    } else if options.use_orig_params {
        all.extend(trained.into_iter().flatten());
    } else {
        all.extend(units.iter().flat_map(|unit| unit.trained.iter().cloned()));
    }
    let reduce = options.mixed_precision.reduce.or(options.mixed_precision.param);
    let wrapper = FullySharded {
        options: options.clone(),
        ranks: n,
        original,
        compute,
        reduce: reduce.map_or(original, Dtype::from),
        units,
        order: RefCell::default(),
        reduces: Cell::new(true),
        initialized: Cell::new(false),
        callback_queued: Cell::new(false),
    };
    (wrapper, all)
}

/// A unit is put on the device, its parameters level by level of the module tree, flattened in their order, and sharded.
fn make_shard(
    tape: &Tape,
    (options, original, n): (&Fsdp1, Dtype, u64),
    weights: &[Tensor],
    own: &[usize],
    names: &[String],
) -> Option<Tensor> {
    let first = own.first()?;
    let sizes = layout(options, original, n, own.iter().filter_map(|at| weights[*at].shape().numel()));
    let total: u64 = sizes.iter().map(|(n, _)| n).sum();
    let one = |n: u64| Shape::new(&[Dim::plain(n)]);
    let depth = |at: usize| names.get(at).map_or(0, |name| name.split('.').count());
    let mut made: Vec<Option<Tensor>> = vec![None; own.len()];
    for level in 0..=own.iter().map(|at| depth(*at)).max().unwrap_or(0) {
        for (place, at) in own.iter().enumerate().filter(|(_, at)| depth(**at) == level) {
            made[place] = Some(tape.empty(*weights[*at].shape(), original, Part::Weights, "parameter"));
        }
    }
    let shard = if is_sharded(options) {
        let whole = tape.empty(one(total), original, Part::Weights, "flat parameter");
        let shard = tape.empty(one(total.div_ceil(n)), original, Part::Weights, "shard of a flat parameter");
        drop(whole);
        shard
    } else if compute_dtype(options, original) == original {
        // What modules see is the flat parameter itself.
        weights[*first].provide();
        weights[*first].alias(one(total))
    } else {
        tape.empty(one(total), original, Part::Weights, "flat parameter")
    };
    if options.use_orig_params {
        made.iter_mut().for_each(|p| *p = None);
    } else {
        made.iter_mut().rev().for_each(|p| *p = None);
    }
    if options.offload_cpu {
        let (shape, dtype) = (*shard.shape(), shard.dtype());
        drop(shard);
        return Some(tape.absent(shape, dtype, Part::Weights, "shard of a flat parameter"));
    }
    Some(shard)
}

impl FullySharded {
    fn unit(&self, module: u32) -> Option<&Unit> {
        self.units.get(module as usize)
    }

    fn casts(&self) -> bool {
        self.compute != self.original
    }

    fn sharded(&self) -> bool {
        is_sharded(&self.options)
    }

    /// Whether gathered parameters go after forward, and whether they go after a backward that reduces nothing.
    fn reshards(&self) -> bool {
        matches!(self.options.strategy, ShardingStrategy::FullShard | ShardingStrategy::HybridShard)
    }

    /// `init_flat_param_attributes`, at the first forward: what comes and goes is allocated once and freed.
    fn initialize(&self, tape: &Tape) {
        if self.initialized.replace(true) {
            return;
        }
        for unit in &self.units {
            let whole = unit.whole.shape().numel().unwrap_or(0);
            let once = |n: u64, dtype: Dtype| drop(flat(tape, n, dtype, "flat parameter, made"));
            if self.casts() {
                once(whole / self.ranks, self.compute);
            }
            if self.sharded() {
                once(whole, self.compute);
                if self.casts() {
                    once(whole, self.original);
                }
            }
        }
    }

    /// `_unshard`. What is cast is there before the host waits for memory of what was gathered before.
    fn unshard(&self, tape: &Tape, unit: &Unit) {
        let gathers = !unit.gathered.replace(true);
        let on_host = self.options.offload_cpu && (gathers || self.casts() || !self.keeps_views());
        let mut copied = None;
        if gathers || (on_host && self.casts()) {
            // Without shards the cast is what modules see.
            unit.cast.as_ref().or((!self.sharded()).then_some(&unit.whole)).inspect(|cast| cast.provide());
        }
        if on_host {
            let part = unit.whole.shape().numel().unwrap_or(0) / self.ranks;
            copied = Some(tape.on_stream(Stream::CopyIn, || flat(tape, part, self.original, FROM_HOST)));
            if self.casts() {
                copied.take();
            }
        }
        if (gathers && self.casts()) || on_host {
            tape.sync(Sync::Wait(Stream::AllGather, Stream::CopyIn));
        }
        if self.options.limit_all_gathers {
            tape.sync(Sync::Await);
        }
        if gathers {
            unit.whole.provide();
            copied.as_ref().inspect(|copied| copied.used_on(Stream::AllGather));
        }
        if let Some(copied) = copied.filter(|_| self.options.use_orig_params) {
            unit.copied.replace(Some(copied));
        }
        if let Some(cast) = unit.cast.as_ref().filter(|_| gathers || on_host) {
            cast.used_on(Stream::AllGather);
            cast.withdraw();
        }
    }

    /// Whether the flat parameter stays what was gathered between forward and backward (`skip_use_sharded_views`).
    fn keeps_views(&self) -> bool {
        self.options.use_orig_params && !self.reshards()
    }

    /// `_reshard` on `stream`.
    fn reshard(&self, tape: &Tape, unit: &Unit, free: bool, stream: Stream) {
        if !(self.keeps_views() && unit.phase.get() == Phase::Forward && tape.grad_enabled()) {
            unit.copied.take();
        }
        let goes = if self.sharded() { free } else { self.casts() };
        if goes && unit.gathered.replace(false) {
            unit.whole.used_on(stream);
            unit.whole.withdraw();
        }
        if self.sharded() && free && self.options.limit_all_gathers {
            tape.sync(Sync::Record(stream));
        }
        unit.prefetched.set(false);
    }

    /// Modules see views of the flat parameter, whose gradients meet in the backward of the split.
    fn use_views(&self, tape: &Tape, unit: &Unit) {
        let r = Recorder::begin(tape, &[&unit.leaf]);
        if !r.recorded() {
            return;
        }
        let (sizes, dtype) = (unit.sizes.clone(), self.compute);
        let outs: Vec<Tensor> = unit.views.iter().map(|v| v.alias(*v.shape())).collect();
        // The split was made on the stream that gathers: its backward and what follows it, the hook on the gradient, run there.
        let outs = r.finish_many(outs, move |tape, grads| {
            grads.iter().flatten().for_each(|gradient| gradient.used_on(Stream::AllGather));
            tape.sync(Sync::Wait(Stream::AllGather, Stream::Default));
            let all = tape.on_stream(Stream::AllGather, || {
                // Padding has no gradient: zeros.
                let padding = sizes.iter().filter(|(_, padding)| *padding);
                let zeros: Vec<Tensor> = padding.map(|(n, _)| flat(tape, *n, dtype, "gradient of padding")).collect();
                let all = flat(tape, sizes.iter().map(|(n, _)| n).sum(), dtype, "gradient of a flat parameter");
                drop(zeros);
                all
            });
            grads_of([Some(all)])
        });
        for (view, out) in unit.views.iter().zip(&outs) {
            if let Some(leaf) = view.leaf() {
                *leaf.through.borrow_mut() = out.edge();
            }
        }
    }

    /// `_prefetch_handle` in backward.
    fn prefetch(&self, tape: &Tape, unit: &Unit, when: Prefetch) {
        if self.options.backward_prefetch != when {
            return;
        }
        let before = unit.place.get().and_then(|place| place.checked_sub(1));
        let module = before.and_then(|place| self.order.borrow().get(place).copied());
        if let Some(next) = module.and_then(|module| self.unit(module))
            && next.needs_gather.get()
            && !next.prefetched.get()
        {
            self.unshard(tape, next);
            next.prefetched.set(true);
        }
    }

    /// `_reset_flat_param_grad_info_if_needed`: what `zero_grad` took from the original parameters goes.
    fn drop_cleared(&self) {
        if !self.options.use_orig_params {
            return;
        }
        for unit in &self.units {
            let cleared = |p: &Tensor| p.leaf().is_none_or(|leaf| leaf.grad.tensor.borrow().is_none());
            if unit.trained.iter().all(cleared) {
                unit.gradient.take();
            }
        }
    }

    /// `_reduce_grad`.
    fn reduce(&self, tape: &Tape, unit: &Unit, computed: Tensor) {
        let total = unit.leaf.shape().numel().unwrap_or(0);
        let part = total.div_ceil(self.ranks);
        let sharded = self.sharded();
        tape.sync(Sync::Wait(Stream::ReduceScatter, Stream::AllGather));
        let reduced = tape.on_stream(Stream::ReduceScatter, || {
            let mut gradient = computed.clone();
            if gradient.dtype() != self.reduce {
                gradient = flat(tape, total, self.reduce, "gradient, cast");
            }
            if !sharded {
                return gradient;
            }
            let padded =
                (part * self.ranks > total).then(|| flat(tape, part * self.ranks, self.reduce, "gradient, padded"));
            let reduced = flat(tape, part, self.reduce, "reduced gradient");
            drop((padded, gradient));
            reduced
        });
        let stream = if is_hybrid(&self.options) { Stream::AllReduce } else { Stream::ReduceScatter };
        if is_hybrid(&self.options) {
            tape.sync(Sync::Wait(stream, Stream::ReduceScatter));
            reduced.used_on(stream);
        }
        let mut saved = reduced;
        if saved.dtype() != self.original {
            let wide = tape.on_stream(stream, || {
                flat(tape, saved.shape().numel().unwrap_or(0), self.original, "reduced gradient, cast")
            });
            saved.used_on(stream);
            saved = wide;
        }
        let mut gradient = unit.gradient.borrow_mut();
        if sharded && !self.options.use_orig_params {
            // What the flat parameter kept of earlier micro-batches is added to (`prepare_gradient_for_backward`).
            let kept = unit.trained.first().and_then(Tensor::leaf);
            *gradient = kept.and_then(|leaf| leaf.grad.tensor.take());
        }
        if gradient.is_none() {
            tape.becomes(&saved, Part::Gradients);
            *gradient = Some(saved);
        }
        if self.options.offload_cpu {
            computed.used_on(Stream::ReduceScatter);
            return;
        }
        for leaf in unit.trained.iter().filter_map(|p| p.leaf().zip(Some(*p.shape()))) {
            let (leaf, shape) = leaf;
            *leaf.grad.tensor.borrow_mut() = gradient.as_ref().map(|g| g.alias(shape));
        }
        if !self.options.use_orig_params {
            // The flat parameter's own `grad` is the only one.
            gradient.take();
        }
        computed.used_on(Stream::ReduceScatter);
    }
}

impl Wrapper for FullySharded {
    fn micro_batch(&self, last: bool) {
        self.reduces.set(last || !self.options.no_sync);
    }

    fn before_forward(&self, tape: &Tape, module: u32, _args: &mut [Tensor]) {
        if module == ROOT {
            self.initialize(tape);
            tape.sync(Sync::Wait(Stream::AllGather, Stream::Default));
            tape.sync(Sync::Wait(Stream::CopyIn, Stream::Default));
            self.drop_cleared();
        }
        let Some(unit) = self.unit(module) else { return };
        if unit.phase.get() == Phase::BackwardPre {
            return;
        }
        unit.phase.set(Phase::Forward);
        if !unit.prefetched.get() {
            self.unshard(tape, unit);
        }
        tape.sync(Sync::Wait(Stream::Default, Stream::AllGather));
        self.use_views(tape, unit);
    }

    fn after_forward(&self, tape: &Tape, module: u32, outs: &mut [Tensor]) {
        let Some(unit) = self.unit(module) else { return };
        if unit.phase.get() == Phase::BackwardPre {
            return;
        }
        let place = self.order.borrow().len();
        self.order.borrow_mut().push(module);
        unit.place.set(Some(place));
        self.reshard(tape, unit, module != ROOT && self.reshards(), Stream::Default);
        if tape.grad_enabled() {
            if module == ROOT {
                self.callback_queued.set(false);
            }
            unit.ran_pre_backward.set(false);
            unit.needs_gather.set(outs.iter().any(Tensor::requires_grad));
            on_backward_of(tape, module, outs);
        }
        unit.phase.set(Phase::Idle);
    }

    fn before_backward(&self, tape: &Tape, module: u32) {
        let Some(unit) = self.unit(module) else { return };
        if unit.ran_pre_backward.get() {
            return;
        }
        if module == ROOT && !self.callback_queued.replace(true) {
            self.drop_cleared();
        }
        unit.phase.set(Phase::BackwardPre);
        if unit.needs_gather.get() {
            if !unit.prefetched.get() {
                self.unshard(tape, unit);
            }
            tape.sync(Sync::Wait(Stream::Default, Stream::AllGather));
        }
        unit.needs_gather.set(false);
        self.prefetch(tape, unit, Prefetch::BackwardPre);
        unit.ran_pre_backward.set(true);
    }

    /// `_post_backward_hook`.
    fn gradient_ready(&self, tape: &Tape, module: usize, gradient: Tensor) -> Option<Tensor> {
        let unit = self.units.get(module)?;
        unit.phase.set(Phase::BackwardPost);
        self.reshard(tape, unit, self.reduces.get() || self.reshards(), Stream::AllGather);
        self.prefetch(tape, unit, Prefetch::BackwardPost);
        if !self.reduces.get() {
            return Some(gradient);
        }
        self.reduce(tape, unit, gradient);
        None
    }

    /// `_post_backward_final_callback`.
    fn after_backward(&self, tape: &Tape) {
        // The engine's: where a gradient's last node ran.
        tape.sync(Sync::Wait(Stream::Default, Stream::AllGather));
        if self.reduces.get() {
            tape.sync(Sync::Wait(Stream::Default, Stream::ReduceScatter));
            if is_hybrid(&self.options) {
                tape.sync(Sync::Wait(Stream::Default, Stream::AllReduce));
            }
        }
        self.order.borrow_mut().clear();
        for unit in &self.units {
            if unit.phase.get() != Phase::BackwardPost {
                self.reshard(tape, unit, self.reduces.get() || self.reshards(), Stream::Default);
            }
            if self.options.offload_cpu && self.reduces.get() {
                unit.gradient.take();
            }
            unit.ran_pre_backward.set(false);
            unit.needs_gather.set(false);
            unit.place.set(None);
            unit.phase.set(Phase::Idle);
            unit.prefetched.set(false);
        }
        self.callback_queued.set(false);
    }

    fn checkpoints_inside(&self) -> bool {
        self.options.checkpoint_wrapper
    }
}

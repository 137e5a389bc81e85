//! FSDP2 (`torch.distributed.fsdp.fully_shard`), as read at PyTorch 2.15 (`torch/distributed/fsdp/_fully_shard/*.py`).
//!
//! Every group of parameters is gathered by one collective into one flat buffer, and copied out of it into parameters whose
//! storages are resized; its gradients are copied into one flat buffer and reduced by one collective. A parameter is sharded
//! along its first dimension, padded to a multiple of the ranks.

use core::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::bill::Part;
use crate::model::family::{Built, Model};
use crate::plan::{Plan, Version};
use crate::recipe::parallel::{Fsdp2, InitDevice, Reshard, Wrap};
use crate::step::freeze;
use crate::step::log::Stream;
use crate::step::parallel::flat::{chunk_cat_scratch, flat, split_copy_scratch};
use crate::step::parallel::{EMBEDDING, ENDS, ROOT, Wrapper, on_backward_of, on_backward_past};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Table, Tensor};

/// What a group is in the middle of (`TrainingState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Forward,
    PreBackward,
    PostBackward,
}

/// Where a group's parameters are (`ShardedState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Sharded,
    /// One part in several is kept from forward to backward.
    Kept,
    Unsharded,
}

/// A parameter (`FSDPParam`).
#[derive(Debug)]
struct Param {
    /// What modules see. Its storage comes and goes.
    unsharded: Tensor,
    /// What the optimizer sees, and its gradient.
    sharded: Tensor,
    /// Elements of all shards, padding included.
    padded: u64,
    /// Whether each tensor-parallel rank has a part of its gradient (`may_reduce_grad_outside_dp`).
    partial: bool,
    /// The part kept after forward.
    kept: RefCell<Option<Tensor>>,
}

/// Parameters that are gathered and reduced together (`FSDPParamGroup`).
#[derive(Debug)]
struct Group {
    params: Vec<Param>,
    reshard: Reshard,
    phase: Cell<Phase>,
    state: Cell<State>,
    /// The flat buffer of a gather that has not been copied out.
    gathered: RefCell<Option<Tensor>>,
    /// Its places in the order of forwards.
    places: RefCell<Vec<usize>>,
    /// What replicas reduce, until the group's next reduction.
    all_reduced: RefCell<Option<Tensor>>,
}

/// The wrapped model.
#[derive(Debug)]
pub(super) struct FullyShard {
    options: Fsdp2,
    shards: u64,
    /// What parameters are in, in what they are computed, and in what their gradients are reduced.
    original: Dtype,
    compute: Dtype,
    reduce: Dtype,
    /// By module: see [`place`].
    groups: Vec<Group>,
    /// Whether gradients are reduced in this micro-batch.
    reduces: Cell<bool>,
    /// The flat buffer copied out last in forward, kept while the next is gathered.
    last_gathered: RefCell<Option<Tensor>>,
    /// Inputs of reductions that may still run.
    reduce_inputs: RefCell<VecDeque<Tensor>>,
    /// Groups in the order in which their forwards ended.
    order: RefCell<Vec<u32>>,
    final_callback_queued: Cell<bool>,
}

/// How many inputs of reductions are kept (`reduce_scatter_max_input_buffers`).
const MAX_REDUCE_INPUTS: usize = 1;

/// What parameters are computed in.
fn compute_dtype(options: &Fsdp2, original: Dtype) -> Dtype {
    options.mixed_precision.param.map_or(original, Dtype::from)
}

/// Ranks that a parameter is split over.
fn shards(plan: &Plan, options: &Fsdp2) -> u64 {
    plan.parallel.data_ranks() / options.replicas.max(1)
}

/// The first dimension of the largest of `n` shards, and of all of them together.
fn split(shape: &Shape, n: u64) -> (Shape, Shape) {
    let mut dims = shape.dims().to_vec();
    let Some(first) = dims.first().copied() else { return (*shape, *shape) };
    let part = first.n.div_ceil(n);
    let of = |dims: &[Dim]| Shape::new(dims);
    dims[0] = if part == first.n { first } else { Dim::plain(part) };
    let one = of(&dims);
    dims[0] = if part * n == first.n { first } else { Dim::plain(part * n) };
    (one, of(&dims))
}

/// The parameters that modules see, in the order of the model's, without memory.
#[inline(never)]
pub(super) fn gathered(tape: &Tape, model: &dyn Model, plan: &Plan, options: &Fsdp2, original: Dtype) -> Vec<Tensor> {
    let dtype = compute_dtype(options, original);
    let n = shards(plan, options);
    super::leaves(tape, model, |p| {
        let (_, padded) = split(&p.shape, n);
        tape.absent(padded, dtype, Part::Weights, "gathered parameter")
    })
}

/// Shards the parameters of `built`. Returns the wrapper, and the shards that are trained.
#[inline(never)]
pub(super) fn wrap(
    tape: &Tape,
    model: &dyn Model,
    built: &dyn Built,
    plan: &Plan,
    options: &Fsdp2,
    original: Dtype,
) -> (FullyShard, Vec<Tensor>) {
    let n = shards(plan, options);
    let weights = built.weights();
    weights.iter().filter_map(Tensor::leaf).for_each(|leaf| leaf.lies_in_out.set(model.linears_lie_in_out()));
    // The freezing is read off them when they are sharded.
    drop(freeze::trained(model, &plan.recipe, weights));
    let layers = weights.iter().filter_map(|w| Some(w.leaf()?.layer)).max().unwrap_or(ROOT);
    let module_of = |w: &Tensor| match (options.wrap, w.leaf()) {
        (Wrap::Root, _) | (_, None) => ROOT,
        (Wrap::LayersAndEnds, Some(leaf)) if leaf.layer == ROOT => match leaf.table.get() {
            Table::Embedding => EMBEDDING,
            _ => ENDS,
        },
        (_, Some(leaf)) => leaf.layer,
    };
    let shard = |w: &Tensor| {
        w.enter_layer(tape);
        let id = w.leaf().map_or(0, |leaf| leaf.id);
        let (part, op) = (split(w.shape(), n).0, "shard of a parameter");
        let shard = match options.offload_cpu {
            false => Tensor::leaf_of(tape, id, part, original, Part::Weights, op),
            // In host memory it takes nothing here.
            true => Tensor::leaf_over(tape, &tape.absent(part, original, Part::Weights, op), id, part, None),
        };
        if let (Some(to), Some(from)) = (shard.leaf(), w.leaf()) {
            to.table.set(from.table.get());
            to.frozen.set(from.frozen.get());
        }
        shard
    };
    let mut made: Vec<Option<Tensor>> = vec![None; weights.len()];
    match options.init {
        InitDevice::Meta => {
            made = weights.iter().map(|w| Some(shard(w))).collect();
            // `Module.to_empty` comes to a tied head after all others, and allocates it once more.
            let table = |of: Table| weights.iter().position(|w| w.leaf().is_some_and(|leaf| leaf.table.get() == of));
            if let (Some(words), None) = (table(Table::Embedding), table(Table::Head)) {
                made[words] = Some(shard(&weights[words]));
            }
        }
        InitDevice::Cuda => {
            let whole = |w: &Tensor| {
                w.enter_layer(tape);
                Some(tape.empty(*w.shape(), original, Part::Weights, "parameter"))
            };
            let mut wholes: Vec<Option<Tensor>> = weights.iter().map(whole).collect();
            for module in (1..=layers).chain([EMBEDDING, ENDS, ROOT]) {
                let own = || (0..weights.len()).filter(|at| module_of(&weights[*at]) == module);
                own().for_each(|at| made[at] = Some(shard(&weights[at])));
                own().for_each(|at| wholes[at] = None);
            }
        }
    }
    tape.set_layer(0);
    let mut groups: Vec<Group> = (ROOT..=layers)
        .chain([EMBEDDING, ENDS])
        .map(|module| Group {
            params: Vec::new(),
            reshard: match (module, options.root_reshard_after_forward) {
                // Backward begins with it: it would be gathered again at once.
                (ROOT, None | Some(false)) | (ENDS, _) => Reshard::Never,
                (ROOT, Some(true)) => Reshard::Always,
                _ => options.reshard_after_forward,
            },
            phase: Cell::default(),
            state: Cell::default(),
            gathered: RefCell::default(),
            places: RefCell::default(),
            all_reduced: RefCell::default(),
        })
        .collect();
    // Before 2.15 gradients were reduced in the dtype that they are computed in.
    let compute = compute_dtype(options, original);
    let default = if plan.framework.pytorch >= Version(2, 15) { original } else { compute };
    let reduce = options.mixed_precision.reduce.map_or(default, Dtype::from);
    let mut trained = Vec::new();
    for (w, sharded) in weights.iter().zip(made) {
        let Some(sharded) = sharded else { continue };
        // In host memory the CPU steps them.
        if sharded.is_trained() && !options.offload_cpu {
            trained.push(sharded.clone());
        }
        set_dtype(w, Some(reduce), compute);
        let padded = split(w.shape(), n).1.numel().unwrap_or(0);
        let partial = tape.splits_sequence() && w.shape().rank() == 1;
        let param = Param { unsharded: w.clone(), sharded, padded, partial, kept: RefCell::default() };
        if let Some(group) = groups.get_mut(place(module_of(w), layers)) {
            group.params.push(param);
        }
    }
    let wrapper = FullyShard {
        shards: n,
        original,
        compute,
        reduce,
        groups,
        reduces: Cell::new(true),
        last_gathered: RefCell::default(),
        reduce_inputs: RefCell::default(),
        order: RefCell::default(),
        final_callback_queued: Cell::new(false),
        options: options.clone(),
    };
    (wrapper, trained)
}

/// Where a module's group is: the root's first, then the layers', then the ends'.
fn place(module: u32, layers: u32) -> usize {
    match module {
        EMBEDDING => layers as usize + 1,
        ENDS => layers as usize + 2,
        module => module as usize,
    }
}

/// `Tensor.grad_dtype`; none: as gradients come. The gradient of a linear layer's weight passes its transposition first, and
/// is cast when the product's backward is over.
fn set_dtype(param: &Tensor, dtype: Option<Dtype>, compute: Dtype) {
    let Some(leaf) = param.leaf() else { return };
    let transposed = param.shape().rank() == 2 && leaf.table.get() != Table::Embedding && !leaf.lies_in_out.get();
    leaf.grad.dtype.set(dtype.filter(|_| transposed));
    leaf.accumulate.set_dtype(dtype.filter(|_| !transposed).unwrap_or(compute));
}

impl FullyShard {
    fn group(&self, module: u32) -> Option<&Group> {
        // A module without parameters of its own has no group.
        let layers = u32::try_from(self.groups.len().saturating_sub(3)).unwrap_or(0);
        self.groups.get(place(module, layers)).filter(|group| !group.params.is_empty())
    }

    /// Ranks that a group is gathered from.
    fn ranks_of_gather(&self, group: &Group) -> u64 {
        match (group.state.get(), group.reshard) {
            (State::Kept, Reshard::To(n)) => n.max(1),
            _ => self.shards,
        }
    }

    /// `FSDPParamGroup.unshard`: gathers into a flat buffer.
    fn unshard(&self, tape: &Tape, group: &Group) {
        if group.gathered.borrow().is_some() || group.state.get() == State::Unsharded {
            return;
        }
        let ranks = self.ranks_of_gather(group);
        let inputs = group.elements() / ranks;
        let out = tape.on_stream(Stream::CopyIn, || {
            // What is in that dtype already is read where it is.
            let casts = self.compute != self.original && !self.options.offload_cpu;
            let cast = casts.then(|| flat(tape, inputs, self.compute, "shards, cast together"));
            let copied = self.copy_from_host(tape, group);
            let out = flat(tape, inputs * ranks, self.compute, "all-gather buffer");
            drop((cast, copied));
            out
        });
        *group.gathered.borrow_mut() = Some(out);
    }

    /// Shards in host memory are copied one by one, and cast one by one (`FSDPParam.all_gather_inputs`).
    fn copy_from_host(&self, tape: &Tape, group: &Group) -> Vec<Tensor> {
        if !self.options.offload_cpu || group.state.get() == State::Kept {
            return Vec::new();
        }
        let copy = |p: &Param| {
            let elements = p.padded / self.shards;
            let copied = flat(tape, elements, self.original, "shard, from the host");
            let casts = self.compute != self.original;
            if casts { flat(tape, elements, self.compute, "shard, cast") } else { copied }
        };
        group.params.iter().map(copy).collect()
    }

    /// `FSDPParamGroup.wait_for_unshard`: copies out of the flat buffer.
    fn wait_for_unshard(&self, tape: &Tape, group: &Group) {
        let Some(gathered) = group.gathered.take() else { return };
        let forward = group.phase.get() == Phase::Forward;
        if forward {
            self.last_gathered.take();
        }
        for p in &group.params {
            p.unsharded.provide();
        }
        let ranks = self.ranks_of_gather(group);
        let parts: Vec<u64> = group.params.iter().map(|p| p.padded / ranks * self.compute.bytes()).collect();
        split_copy_scratch(tape, &parts, ranks);
        for p in &group.params {
            p.kept.take();
        }
        group.state.set(State::Unsharded);
        if forward {
            *self.last_gathered.borrow_mut() = Some(gathered);
        }
    }

    /// `FSDPParamGroup.reshard`.
    fn reshard(&self, tape: &Tape, group: &Group) {
        if group.state.get() != State::Unsharded {
            if group.phase.get() != Phase::Forward {
                group.params.iter().for_each(|p| drop(p.kept.take()));
                group.state.set(State::Sharded);
            }
            return;
        }
        if group.phase.get() == Phase::Forward {
            match group.reshard {
                Reshard::Never => return,
                Reshard::To(n) => {
                    for p in &group.params {
                        p.unsharded.enter_layer(tape);
                        let kept = tape.empty(
                            Shape::new(&[Dim::plain(p.padded / n.max(1))]),
                            self.compute,
                            Part::Weights,
                            "part of a gathered parameter",
                        );
                        *p.kept.borrow_mut() = Some(kept);
                        p.unsharded.withdraw();
                    }
                    group.state.set(State::Kept);
                    return;
                }
                Reshard::Always => {}
            }
        }
        for p in &group.params {
            p.unsharded.withdraw();
        }
        group.state.set(State::Sharded);
    }

    /// Whether gradients arrive narrower than they are reduced: they are then cast when they are copied.
    fn widens(&self) -> bool {
        self.reduce.bytes() > self.compute.bytes()
    }

    /// `_set_unsharded_grad_dtypes`.
    fn set_gradient_dtypes(&self, tape: &Tape, group: &Group, defer: bool) {
        for p in &group.params {
            let Some(leaf) = p.unsharded.leaf() else { continue };
            if p.partial || !self.widens() {
                set_dtype(&p.unsharded, Some(self.reduce), self.compute);
                continue;
            }
            let mut gradient = leaf.grad.tensor.borrow_mut();
            if defer {
                if gradient.is_some() || self.reduces.get() {
                    set_dtype(&p.unsharded, None, self.compute);
                }
                continue;
            }
            if let Some(narrow) = gradient.take_if(|g| g.dtype() != self.reduce) {
                let wide = tape.empty(*narrow.shape(), self.reduce, Part::Gradients, "gradient, cast");
                *gradient = Some(wide);
            }
            set_dtype(&p.unsharded, Some(self.reduce), self.compute);
        }
    }

    /// `FSDPParamGroup.pre_backward`.
    fn pre_backward(&self, tape: &Tape, group: &Group) {
        if group.phase.replace(Phase::PreBackward) == Phase::PreBackward {
            return;
        }
        self.unshard(tape, group);
        self.wait_for_unshard(tape, group);
        self.set_gradient_dtypes(tape, group, true);
        // The next one in backward is gathered ahead.
        let place = group.places.borrow_mut().pop();
        let target = place.and_then(|place| self.order.borrow().get(place.checked_sub(1)?).copied());
        if let Some(next) = target.and_then(|module| self.group(module)) {
            let before = next.phase.replace(Phase::PreBackward);
            self.unshard(tape, next);
            next.phase.set(before);
        }
    }

    /// `FSDPParamGroup.post_backward`.
    fn post_backward(&self, tape: &Tape, group: &Group) {
        group.phase.set(Phase::PostBackward);
        if !self.reduces.get() {
            self.set_gradient_dtypes(tape, group, false);
            if self.options.reshard_after_backward {
                self.reshard(tape, group);
            }
            return;
        }
        let mut gradients: Vec<(&Param, Tensor)> = Vec::new();
        for p in &group.params {
            let gradient = p.unsharded.leaf().and_then(|leaf| leaf.grad.tensor.take());
            // As the parameter is split: a sum over ranks, or its own share of what is whole on each.
            let whole = |gradient: &Tensor| !gradient.shape().same_sizes(p.unsharded.shape());
            let gradient = gradient.map(|gradient| match p.partial || whole(&gradient) {
                true => tape.temp(*p.unsharded.shape(), gradient.dtype(), "gradient, redistributed"),
                false => gradient,
            });
            gradients.extend(gradient.map(|gradient| (p, gradient)));
        }
        self.set_gradient_dtypes(tape, group, false);
        if self.options.reshard_after_backward {
            self.reshard(tape, group);
        }
        while self.reduce_inputs.borrow().len() >= MAX_REDUCE_INPUTS {
            let oldest = self.reduce_inputs.borrow_mut().pop_front();
            drop(oldest);
        }
        if gradients.is_empty() {
            return;
        }
        group.all_reduced.take();
        self.reduce(tape, group, gradients);
    }

    /// `foreach_reduce`: gradients are copied into one flat buffer, reduced, and become views of the result.
    fn reduce(&self, tape: &Tape, group: &Group, mut gradients: Vec<(&Param, Tensor)>) {
        let all: u64 = gradients.iter().map(|(p, _)| p.padded).sum();
        let input = flat(tape, all, self.reduce, "reduce-scatter input");
        let parts: Vec<u64> = gradients.iter().map(|(p, _)| p.padded / self.shards * self.reduce.bytes()).collect();
        let mixed = gradients.iter().any(|(_, g)| Some(g.dtype()) != gradients.first().map(|(_, g)| g.dtype()));
        chunk_cat_scratch(tape, &parts, mixed);
        let reduced: Vec<&Param> = gradients.iter().map(|(p, _)| *p).collect();
        // A list lets go of its last item first.
        while let Some((_, gradient)) = gradients.pop() {
            drop(gradient);
        }
        let (stream, replicated) = match self.options.replicas {
            1 => (Stream::ReduceScatter, false),
            _ => (Stream::AllReduce, true),
        };
        let mut output =
            tape.on_stream(Stream::ReduceScatter, || flat(tape, all / self.shards, self.reduce, "reduced gradients"));
        if replicated {
            *group.all_reduced.borrow_mut() = Some(output.clone());
        }
        if self.reduce != self.original {
            output = tape.on_stream(stream, || flat(tape, all / self.shards, self.original, "reduced gradients, cast"));
        }
        // They go to the host, where they are added up.
        let stay = reduced.into_iter().filter(|_| !self.options.offload_cpu);
        for p in stay {
            if let Some(leaf) = p.sharded.leaf() {
                let mut gradient = leaf.grad.tensor.borrow_mut();
                if gradient.is_none() {
                    tape.becomes(&output, Part::Gradients);
                    *gradient = Some(output.alias(*p.sharded.shape()));
                }
            }
        }
        drop(output);
        self.reduce_inputs.borrow_mut().push_back(input);
    }
}

impl Group {
    /// Elements of the parameters, padding included.
    fn elements(&self) -> u64 {
        self.params.iter().map(|p| p.padded).sum()
    }
}

impl Wrapper for FullyShard {
    fn micro_batch(&self, last: bool) {
        self.reduces.set(last || !self.options.no_sync);
    }

    fn before_forward(&self, tape: &Tape, module: u32, args: &mut [Tensor]) {
        let Some(group) = self.group(module) else { return };
        // A layer that runs again in backward is gathered already.
        if group.phase.get() == Phase::PreBackward {
            return;
        }
        let entering = group.phase.replace(Phase::Forward) != Phase::Forward;
        self.unshard(tape, group);
        self.wait_for_unshard(tape, group);
        if entering {
            on_backward_past(tape, module, args);
        }
    }

    fn after_forward(&self, tape: &Tape, module: u32, outs: &mut [Tensor]) {
        if let Some(group) = self.group(module) {
            if group.phase.get() == Phase::PreBackward {
                return;
            }
            if !tape.in_backward() {
                self.reshard(tape, group);
                let place = self.order.borrow().len();
                self.order.borrow_mut().push(module);
                group.places.borrow_mut().push(place);
            }
            on_backward_of(tape, module, outs);
            group.phase.set(Phase::Idle);
        }
        if module == ROOT {
            self.last_gathered.take();
        }
    }

    fn before_backward(&self, tape: &Tape, module: u32) {
        self.final_callback_queued.set(true);
        if let Some(group) = self.group(module) {
            self.pre_backward(tape, group);
        }
    }

    fn past_backward(&self, tape: &Tape, module: u32) {
        if let Some(group) = self.group(module) {
            self.post_backward(tape, group);
        }
    }

    /// `_root_post_backward_final_callback`.
    fn after_backward(&self, tape: &Tape) {
        if !self.final_callback_queued.replace(false) {
            return;
        }
        for group in self.groups.iter().filter(|group| !group.params.is_empty()) {
            if group.phase.get() != Phase::PostBackward {
                self.post_backward(tape, group);
            }
            group.phase.set(Phase::Idle);
        }
        for group in &self.groups {
            group.all_reduced.take();
            group.gathered.take();
            group.places.borrow_mut().clear();
        }
        self.last_gathered.take();
        self.order.borrow_mut().clear();
        let inputs = self.reduce_inputs.take();
        drop(inputs);
    }

    fn checkpoints_inside(&self) -> bool {
        self.options.checkpoint_wrapper
    }
}

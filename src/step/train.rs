//! The training loop around the walk: build, two steps, what stays alive between them.
//!
//! The loop is the plain one of PyTorch's tutorials: batch, forward under autocast, backward, clip, step, `zero_grad`;
//! the loss and the batch live until they are reassigned. The first step creates the optimizer's states, the second is
//! the steady one.

use core::cell::RefCell;
use std::rc::Rc;

use crate::bill::{Instant, Part};
use crate::model::family::{Built, Model, Parameter, Run};
use crate::plan::Plan;
use crate::recipe::optimizer::{Slots, adam_mini, by_dtype};
use crate::recipe::parallel::DataParallel;
use crate::recipe::{Ema, OptimizerImpl, OptimizerName, Precision, Recipe, ZeroGrad};
use crate::step::actors::Actors;
use crate::step::autograd::backward;
use crate::step::log::{Event, Mark, Phase, TensorInfo};
use crate::step::parallel::ROOT;
use crate::step::repeat::{MIDDLES, expand, is_repeatable, over_layers, walked};
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::{Device, Pinned, Tape};
use crate::step::tensor::{Dtype, Table, Tensor};
use crate::step::{adapters, freeze, load, megatron, parallel};
use crate::units::Bytes;
use crate::versions::Rules;

/// The events of a walk and the storages they are about.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk {
    /// In order.
    pub events: Vec<Event>,
    /// By number.
    pub tensors: Vec<TensorInfo>,
    /// For how many further layers the middle one stands; 0: every layer is written out.
    pub repeats: u64,
    /// Which layer that is, counted from 1.
    pub middle: u32,
    /// The most that is kept in host memory at once of what was saved for backward, every layer counted.
    pub on_host: Bytes,
}

/// Some tensor of the step exceeds what the arithmetic carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// Walks one steady step, of identical layers only a few: all that the bill needs, and the fastest walk.
///
/// # Errors
/// [`TooLarge`] when a size passes 2⁵³ bytes.
pub fn walk_steady(model: &dyn Model, plan: &Plan, precision: Precision, device: Device) -> Result<Walk, TooLarge> {
    walk_short(model, plan, precision, device, Steps::Steady)
}

/// Which steps are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// The first, which creates the optimizer's states, and the steady one.
    FirstAndSteady,
    /// The steady one, on states that exist from the start.
    Steady,
}

/// Walks `steps` of `plan` on `model`, a few layers of it where its layers are all alike (see
/// [`crate::step::repeat`]).
///
/// # Errors
/// [`TooLarge`] when a size passes 2⁵³ bytes.
pub fn walk_short(
    model: &dyn Model,
    plan: &Plan,
    precision: Precision,
    device: Device,
    steps: Steps,
) -> Result<Walk, TooLarge> {
    if let DataParallel::Megatron(options) = &plan.parallel.data {
        return megatron::walk(model, plan, options, device, steps);
    }
    let split = parallel::tp::split(model, plan);
    let model = split.as_deref().unwrap_or(model);
    let whole = Whole::of(model, &plan.recipe, precision);
    // A wrapper works on one layer while another runs.
    let alike = layers_are_alike(&plan.recipe) && plan.parallel.is_single();
    let middles = if alike { &MIDDLES[..] } else { &[] };
    for &middle in middles {
        let walked = u64::from(walked(middle));
        if let Some(repeats @ 1..) = model.layers().checked_sub(walked)
            && let Some(short) = model.with_layers(walked)
        {
            let (walk, on_host) = run(short.as_ref(), &whole, plan, precision, device, steps)?;
            let further = on_host.get(middle as usize).copied().unwrap_or(0).saturating_mul(repeats);
            let on_host = Bytes(walk.on_host.get().saturating_add(further));
            let walk = Walk { repeats, middle, on_host, ..walk };
            if is_repeatable(&walk) {
                return Ok(walk);
            }
        }
    }
    run(model, &whole, plan, precision, device, steps).map(|(walk, _)| walk)
}

/// Walks `steps` of `plan` on `model`, every layer written out, be it by repetition. `precision` is a recipe whose
/// dtypes are walked, not the rule of thumb.
///
/// # Errors
/// [`TooLarge`] when a size passes 2⁵³ bytes.
pub fn walk(
    model: &dyn Model,
    plan: &Plan,
    precision: Precision,
    device: Device,
    steps: Steps,
) -> Result<Walk, TooLarge> {
    walk_short(model, plan, precision, device, steps).map(|short| expand(&short))
}

/// Walks every layer of `model`, written out: the reference that the repetition must equal.
///
/// # Errors
/// [`TooLarge`] when a size passes 2⁵³ bytes.
pub fn walk_literally(
    model: &dyn Model,
    plan: &Plan,
    precision: Precision,
    device: Device,
    steps: Steps,
) -> Result<Walk, TooLarge> {
    let split = parallel::tp::split(model, plan);
    let model = split.as_deref().unwrap_or(model);
    run(model, &Whole::of(model, &plan.recipe, precision), plan, precision, device, steps).map(|(walk, _)| walk)
}

/// Whether the recipe treats every layer as it does the next.
fn layers_are_alike(recipe: &Recipe) -> bool {
    recipe.checkpointing.recomputes_one_in().unwrap_or(1) == 1 && !freeze::tells_layers_apart(recipe)
}

/// Sums over a model's parameters that depend on how the recipe treats them.
pub(crate) fn over_treated<const N: usize>(
    model: &dyn Model,
    recipe: &Recipe,
    sums: &dyn Fn(&dyn Model) -> [u64; N],
) -> [u64; N] {
    if layers_are_alike(recipe) { over_layers(model, sums) } else { sums(model) }
}

/// What a few layers cannot tell of the whole model.
struct Whole {
    /// Trained tensors.
    tensors: u64,
    /// Blocks of multi-tensor kernels over all of them.
    chunks: u64,
    /// Bytes that loading allocates before it begins.
    warm_up: u64,
}

impl Whole {
    fn of(model: &dyn Model, recipe: &Recipe, precision: Precision) -> Self {
        let trained = |model: &dyn Model| {
            let Self { tensors, chunks, .. } = Self::of_shapes(adapters::trained_shapes(model, recipe).iter());
            [tensors, chunks]
        };
        let [tensors, chunks] = over_treated(model, recipe, &trained);
        let warm_up = if load::loads(recipe) {
            load::warm_up_bytes(model, recipe, load::loaded_dtype(recipe, precision))
        } else {
            0
        };
        Self { tensors, chunks, warm_up }
    }

    fn of_shapes<'a>(trained: impl Iterator<Item = &'a Shape>) -> Self {
        /// Elements per block of a multi-tensor kernel.
        const CHUNK: u64 = 65_536;
        let chunks_of = |s: &Shape| s.numel().unwrap_or(0).div_ceil(CHUNK);
        trained.fold(Self { tensors: 0, chunks: 0, warm_up: 0 }, |all, s| Self {
            tensors: all.tensors + 1,
            chunks: all.chunks.saturating_add(chunks_of(s)),
            ..all
        })
    }
}

/// What a precision keeps the weights in.
pub(crate) const fn weights_dtype(precision: Precision) -> Dtype {
    match precision {
        Precision::PureBf16 | Precision::Bf16Autocast | Precision::Bf16Master => Dtype::Bf16,
        Precision::PureFp16 => Dtype::F16,
        _ => Dtype::F32,
    }
}

/// A walk, and by layer what of it is kept in host memory when that is the most.
fn run(
    model: &dyn Model,
    whole: &Whole,
    plan: &Plan,
    precision: Precision,
    device: Device,
    steps: Steps,
) -> Result<(Walk, Vec<u64>), TooLarge> {
    let framework = &plan.framework;
    let rules = Rules::of(framework, model.family());
    let recipe = &rules.resolve(&plan.recipe);
    let tape = Tape::under(Device { workspace_kept: framework.workspace_kept(), ..device }, rules);
    let precision = parallel::precision(plan, precision);
    let weights = weights_dtype(precision);
    if !plan.parallel.is_single() {
        tape.mark(Mark::Phase(Phase::Load));
    }
    let loaded = load::loads(recipe).then(|| load::load(&tape, model, recipe, precision, whole.warm_up));
    let loaded = loaded.map(|loaded| {
        tape.supply(loaded.weights);
        (loaded.buffers, loaded.map)
    });
    let gathered = parallel::gathered(&tape, model, plan, weights);
    let on_device = loaded.is_none() && gathered.is_none();
    if let Some(gathered) = gathered {
        tape.supply(gathered);
    }
    let built = model.build(&tape, weights);
    // A head is made before it is tied to the table of words, and goes away then. A measurement empties the cache after it.
    let parameters = model.parameters();
    if on_device && let Some(words) = parameters.iter().find(|p| of_vocabulary(p)).filter(|p| p.linear) {
        drop(tape.empty(words.shape, weights, Part::Weights, "untied head"));
        tape.empty_cache();
    }
    for (w, table) in built.weights().iter().zip(tables(&parameters)) {
        if let Some(leaf) = w.leaf() {
            leaf.table.set(table);
        }
    }
    parallel::tp::parallelize(&tape, model, built.as_ref(), plan);
    tape.supply(Vec::new());
    tape.convert_to_float8(recipe.float8);
    tape.convert_to_te(recipe.float8_te);
    tape.fuse(&recipe.liger);
    let buffer = |n: u64| tape.empty(Shape::new(&[Dim::plain(n)]), Dtype::U8, Part::Weights, "buffer");
    // A model that holds its buffers itself has made those that were loaded.
    let (loaded, map) = loaded.unzip();
    let loaded = loaded.filter(|_| !built.holds_buffers());
    let mut buffers: Vec<Tensor> = loaded.unwrap_or_else(|| {
        let after = if built.holds_buffers() { Vec::new() } else { model.buffer_bytes(weights) };
        after.into_iter().map(buffer).collect()
    });
    buffers.extend(map.flatten());
    if let Some(square) = rules.mask_buffer(model) {
        for layer in (1u32..).take(usize::try_from(model.layers()).unwrap_or(0)) {
            tape.set_layer(layer);
            buffers.push(buffer(square));
        }
        tape.set_layer(0);
    }
    let recomputes = recipe.checkpointing.recomputes_one_in().is_some();
    tape.set_inputs_need_grad(recomputes && (recipe.lora.is_some() || !recipe.freeze.is_empty()));
    let engine = tape.te_state(built.weights());
    let wrapped = parallel::wrap(&tape, model, built.as_ref(), plan, weights);
    let trained = match (wrapped, &recipe.lora) {
        (Some(trained), _) => trained,
        (None, None) => freeze::trained(model, recipe, built.weights()),
        (None, Some(lora)) => adapters::attach(&tape, model, lora, built.weights()),
    };
    if recipe.optimizer.name == OptimizerName::AdamMini {
        let (head, names) = (adam_mini::head_elements(model), model.parameter_names());
        for ((at, shape), of) in adapters::trained_parts(model, recipe).into_iter().zip(&trained) {
            let name = names.get(at).map_or("", String::as_str);
            if let Some(leaf) = of.leaf() {
                leaf.second_moments.set(adam_mini::second_moments(name, &shape, head));
            }
        }
    }
    let actors = Actors::of(&tape, model, recipe, precision, whole.warm_up);
    let mut trained = trained;
    trained.extend(actors.iter().flat_map(Actors::trained).cloned());
    let mut job = Loop::new(&tape, built.as_ref(), &trained, whole, recipe, precision);
    job.actors = actors;
    job.construct_optimizer();
    job.copy_weights(model);
    let initial = tape.wrapper().and_then(|wrapper| wrapper.initial_gradients(&tape));
    if initial.is_some() {
        job.run_optimizer();
    }
    drop(initial);
    if steps == Steps::Steady {
        job.most_micro_batches = MAX_SUMMED_MICRO_BATCHES;
        job.create_states();
        job.create_scaler();
    }
    tape.empty_cache();
    tape.mark(Mark::Base);
    let settles = tape.wrapper().is_some_and(|wrapper| wrapper.settles_in_a_step());
    if steps == Steps::FirstAndSteady || settles {
        job.step();
    }
    job.step();
    if recipe.eval_after && steps == Steps::FirstAndSteady {
        job.evaluate();
    }
    job.remove_hooks();
    drop(job);
    tape.set_wrapper(None);
    if tape.0.log.overflowed() {
        return Err(TooLarge);
    }
    let on_host = tape.0.log.take_host();
    let (events, tensors) = tape.0.log.take();
    // What is torn down after the last step belongs to no step.
    drop((buffers, engine));
    drop(built);
    tape.drop_workspaces();
    let walk = Walk { events, tensors, repeats: 0, middle: 0, on_host: Bytes(on_host.iter().sum()) };
    Ok((walk, on_host))
}

/// Whether its rows are the vocabulary's.
pub(crate) fn of_vocabulary(p: &Parameter) -> bool {
    p.shape.rank() == 2 && p.shape.dims()[0].sym == Dim::named(1, Symbol::V).sym
}

/// What each parameter of the model is: a table, the output head, or neither.
pub(crate) fn tables(parameters: &[Parameter]) -> impl Iterator<Item = Table> {
    // The first one looks words up, and is the head too where that is tied to it.
    let words = parameters.iter().position(of_vocabulary);
    parameters.iter().enumerate().map(move |(at, p)| match of_vocabulary(p) {
        _ if p.shape.rank() == 2 && p.lookup_only => Table::Embedding,
        true if words == Some(at) => Table::Embedding,
        true => Table::Head,
        false => Table::No,
    })
}

/// The optimizer's states in managed memory, which no device allocation shows.
#[must_use]
pub fn paged_states(model: &dyn Model, recipe: &Recipe) -> Bytes {
    if recipe.optimizer.name.is_paged() { paged_bytes(model, recipe) } else { Bytes::ZERO }
}

#[inline(never)]
fn paged_bytes(model: &dyn Model, recipe: &Recipe) -> Bytes {
    let parameters = model.parameters();
    let of = |shape: &Shape, table: Table| {
        recipe.optimizer.paged_bytes(shape.numel().unwrap_or(0), table == Table::Embedding)
    };
    Bytes(match &recipe.lora {
        None => {
            let tables: Vec<Table> = tables(&parameters).collect();
            let trained = freeze::trained_parameters(model, recipe);
            trained.into_iter().map(|(at, shape)| of(&shape, tables[at])).sum()
        }
        Some(lora) => adapters::adapter_shapes(model, lora).iter().map(|shape| of(shape, Table::No)).sum(),
    })
}

/// A job between steps.
struct Loop<'a> {
    tape: &'a Tape,
    model: &'a dyn Built,
    /// What is trained, in the order of `model.parameters()`.
    trained: &'a [Tensor],
    /// The models beside it, where the method has such.
    actors: Option<Actors>,
    whole: &'a Whole,
    recipe: &'a Recipe,
    precision: Precision,
    most_micro_batches: u64,
    run: Run,
    slots: Slots,
    /// Each weight's own, where its optimizer steps in backward.
    own_slots: Vec<Rc<RefCell<Slots>>>,
    /// States of tensors that are stepped one by one.
    group_slots: Vec<Slots>,
    /// Megatron-style FP32 master weights and main gradients.
    master: Option<Master>,
    /// The averaged copy of the weights.
    average: Vec<Tensor>,
    /// Whether it has been updated.
    averaged: bool,
    /// The gradient scaler's scale and growth tracker, created at first use.
    scaler: Option<[Tensor; 2]>,
    batch: Option<Vec<Tensor>>,
    /// What was generated and how it was scored, for every micro-batch of the step.
    rolled_out: Vec<Tensor>,
    loss: Option<Tensor>,
    /// What the loss's graph holds beside it.
    graph_leaves: Vec<Tensor>,
    /// What the loss's graph keeps alive beside what backward releases.
    pinned: Vec<Pinned>,
    /// The model's outputs, the loss among them, where the loop keeps them.
    kept: Vec<Tensor>,
}

struct Master {
    weights: Vec<Tensor>,
    /// Alive for the whole run; each backward adds into them.
    _gradients: Vec<Tensor>,
}

impl<'a> Loop<'a> {
    fn new(
        tape: &'a Tape,
        model: &'a dyn Built,
        trained: &'a [Tensor],
        whole: &'a Whole,
        recipe: &'a Recipe,
        precision: Precision,
    ) -> Self {
        let master = (precision == Precision::Bf16Master).then(|| {
            let of = |part: Part, op: &'static str| -> Vec<Tensor> {
                let copy = |w: &Tensor| {
                    w.enter_layer(tape);
                    Tensor::leaf_of(tape, 0, *w.shape(), Dtype::F32, part, op)
                };
                trained.iter().map(copy).collect()
            };
            let weights = of(Part::States, "master weight");
            for leaf in trained.iter().filter_map(Tensor::leaf) {
                *leaf.grad.hook.borrow_mut() = Some(Box::new(|_, _| None));
            }
            let gradients = of(Part::Gradients, "main gradient");
            tape.set_layer(0);
            Master { weights, _gradients: gradients }
        });
        Self {
            tape,
            model,
            trained,
            actors: None,
            whole,
            recipe,
            precision,
            most_micro_batches: MAX_WALKED_MICRO_BATCHES,
            run: Run { loaded: load::loaded_dtype(recipe, precision), ..Run::new(tape, recipe) },
            slots: Slots::new(),
            own_slots: Vec::new(),
            group_slots: Vec::new(),
            master,
            average: Vec::new(),
            averaged: false,
            scaler: None,
            batch: None,
            rolled_out: Vec::new(),
            loss: None,
            graph_leaves: Vec::new(),
            pinned: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// What the optimizer's weights are: the FP32 masters where there are such.
    fn optimized(&self) -> &[Tensor] {
        self.master.as_ref().map_or(self.trained, |master| &master.weights)
    }

    /// Makes the optimizer, or one for each weight with the hook that steps it in backward.
    fn construct_optimizer(&mut self) {
        let optimizer = self.recipe.optimizer;
        if optimizer.in_backward {
            for w in self.trained {
                let own = Rc::new(RefCell::new(Slots::new()));
                let of = core::slice::from_ref(w);
                self.tape.scope("optimizer", || optimizer.construct(self.tape, of, &mut own.borrow_mut()));
                self.own_slots.push(own.clone());
                let param = w.clone();
                if let Some(leaf) = w.leaf() {
                    *leaf.grad.hook.borrow_mut() = Some(Box::new(move |tape, gradient| {
                        tape.scope("optimizer", || {
                            optimizer.step(tape, core::slice::from_ref(&param), &mut own.borrow_mut());
                        });
                        drop(gradient);
                        None
                    }));
                }
            }
        } else {
            let mut slots = core::mem::take(&mut self.slots);
            self.tape.scope("optimizer", || optimizer.construct(self.tape, self.optimized(), &mut slots));
            self.slots = slots;
        }
        self.tape.set_layer(0);
    }

    /// A hook holds its weight, which holds the hook.
    fn remove_hooks(&self) {
        for leaf in self.trained.iter().filter_map(Tensor::leaf) {
            leaf.grad.hook.take();
        }
    }

    /// The averaged copy of the weights, where the recipe has one.
    fn copy_weights(&mut self, model: &dyn Model) {
        let Some(ema) = self.recipe.ema else { return };
        let t = self.tape;
        let copy = |w: &Tensor, dtype: Dtype| {
            w.enter_layer(t);
            t.empty(*w.shape(), dtype, Part::States, "averaged weight")
        };
        self.average = t.scope("average", || match ema {
            Ema::Float32 => self.trained.iter().map(|w| copy(w, Dtype::F32)).collect(),
            Ema::Bfloat16 => self.trained.iter().map(|w| copy(w, Dtype::Bf16)).collect(),
            Ema::Same => {
                // What adapters add is numbered from the top.
                let known = u32::try_from(self.model.weights().len()).unwrap_or(u32::MAX);
                let added = |w: &&Tensor| w.leaf().is_some_and(|leaf| leaf.id >= known);
                let adapters = self.trained.iter().filter(added);
                let mut all: Vec<Tensor> =
                    self.model.weights().iter().chain(adapters).map(|w| copy(w, w.dtype())).collect();
                t.set_layer(0);
                let buffers = model.buffer_bytes(weights_dtype(self.precision));
                let of = |n: u64| t.empty(Shape::new(&[Dim::plain(n)]), Dtype::U8, Part::States, "buffer");
                all.extend(buffers.into_iter().map(of));
                all
            }
        });
        t.set_layer(0);
    }

    /// Brings the average up to date: one weight after the other is cast, or none (`torch._foreach_lerp_`).
    fn update_average(&mut self) {
        let dtype = match self.recipe.ema {
            None => return,
            Some(Ema::Same) => None,
            Some(Ema::Float32) => Some(Dtype::F32),
            Some(Ema::Bfloat16) => Some(Dtype::Bf16),
        };
        let t = self.tape;
        t.mark(Mark::Phase(Phase::Average));
        // The count of averaged models goes to the device, from the second update on.
        let counts = dtype.is_none() && core::mem::replace(&mut self.averaged, true);
        drop(counts.then(|| t.scalar(Dtype::I64, "number averaged")));
        for w in self.trained {
            if let Some(dtype) = dtype.filter(|d| *d != w.dtype()) {
                w.enter_layer(t);
                drop(t.temp(*w.shape(), dtype, "cast weight"));
            }
        }
        t.set_layer(0);
        t.mark(Mark::EmaEnd);
    }

    /// The optimizer's own step; the first one creates its states.
    fn run_optimizer(&mut self) {
        if self.recipe.optimizer.in_backward {
            return;
        }
        if let Some(wrapper) = self.tape.wrapper().filter(|wrapper| wrapper.steps_one_by_one()) {
            self.group_slots.resize_with(self.trained.len(), Slots::new);
            for (at, (w, slots)) in self.trained.iter().zip(&mut self.group_slots).enumerate() {
                wrapper.before_group(self.tape, at);
                let of = core::slice::from_ref(w);
                self.tape.scope("optimizer", || self.recipe.optimizer.step(self.tape, of, slots));
                wrapper.after_group(at);
            }
            return;
        }
        let mut slots = core::mem::take(&mut self.slots);
        self.tape.scope("optimizer", || self.recipe.optimizer.step(self.tape, self.optimized(), &mut slots));
        self.slots = slots;
        self.tape.set_layer(0);
    }

    /// Creates the optimizer's states before the first step that is looked at.
    fn create_states(&mut self) {
        self.averaged = true;
        let optimizer = &self.recipe.optimizer;
        let mut slots = core::mem::take(&mut self.slots);
        // Whatever a step takes beside them is gone before the first one that is looked at.
        let created = !optimizer.in_backward
            && self.tape.wrapper().is_none()
            && self.tape.scope("optimizer", || optimizer.create_states(self.tape, self.optimized(), &mut slots));
        self.slots = slots;
        if !created {
            self.run_optimizer();
        }
        for (w, own) in self.trained.iter().zip(&self.own_slots) {
            let of = core::slice::from_ref(w);
            self.tape.scope("optimizer", || self.recipe.optimizer.step(self.tape, of, &mut own.borrow_mut()));
        }
        self.tape.set_layer(0);
    }

    /// The gradient scaler's own tensors, created when it first scales a loss.
    fn create_scaler(&mut self) {
        if self.precision == Precision::AmpFp16 && self.scaler.is_none() {
            let scalar = |op: &'static str| self.tape.empty(Shape::new(&[]), Dtype::F32, Part::States, op);
            self.scaler = Some([scalar("loss scale"), scalar("growth tracker")]);
        }
    }

    fn autocast(&self) -> Option<Dtype> {
        match self.precision {
            Precision::AmpBf16 | Precision::Bf16Autocast => Some(Dtype::Bf16),
            Precision::AmpFp16 => Some(Dtype::F16),
            _ => None,
        }
    }

    fn step(&mut self) {
        let t = self.tape;
        t.mark(Mark::Step);
        if let Some(actors) = &self.actors {
            // The next completions take the place of the last ones, which live until then.
            let walked = self.most_micro_batches == MAX_WALKED_MICRO_BATCHES;
            let before = core::mem::take(&mut self.rolled_out);
            self.rolled_out = actors.roll_out(&self.run, self.model, self.autocast(), walked, before);
        }
        // Micro-batches from the second on are alike.
        let micro_batches = self.recipe.grad_accum.min(self.most_micro_batches);
        for n in 1..=micro_batches {
            if let Some(wrapper) = t.wrapper() {
                wrapper.micro_batch(n == micro_batches);
            }
            self.micro_batch(n == 1);
            if let Some(actors) = self.actors.as_ref().filter(|_| n < micro_batches) {
                actors.after_micro_batch(t);
            }
        }
        t.enter(Instant::Step);
        t.scope("optimizer", || self.update());
        t.mark(Mark::StepEnd);
        let before = t.set_scope("average");
        self.update_average();
        t.set_scope(before);
        self.zero_grad();
        if let Some(actors) = &self.actors {
            actors.after_micro_batch(t);
            actors.end_step(t);
        }
        if t.wrapper().is_some() {
            t.synchronize();
        }
        t.mark(Mark::ZeroGradEnd);
    }

    fn micro_batch(&mut self, first: bool) {
        let t = self.tape;
        t.enter(Instant::Forward);
        t.mark(Mark::MicroBatch);
        let batch = t.scope("batch", || match &self.actors {
            None => self.scattered(),
            Some(actors) => actors.batch(&self.run),
        });
        self.batch = None;
        t.mark(Mark::Inputs);
        let mut outputs = Vec::new();
        let loss = match &self.actors {
            None => t.with_autocast(self.autocast(), || {
                // Over a split model the loop computes the loss.
                let wraps_loss = t.tensor_parallel().is_none();
                if wraps_loss {
                    parallel::before_forward(t, ROOT, &mut []);
                }
                let (loss, out) = self.model.forward(&self.run.over(&batch), &batch);
                let mut outs = [loss, out];
                if wraps_loss {
                    parallel::after_forward(t, ROOT, &mut outs);
                }
                let [loss, out] = outs;
                outputs.push(out);
                outputs.extend(self.model.take_outputs());
                loss
            }),
            Some(actors) => actors.loss(&self.run, self.model, &batch, self.autocast()),
        };
        if self.recipe.keep_outputs {
            outputs.insert(0, loss.clone());
            self.kept = outputs;
        } else {
            drop(outputs);
            self.kept.clear();
        }
        self.graph_leaves = t.take_graph_leaves();
        self.loss = Some(loss);
        self.pinned = t.take_pinned();
        self.batch = Some(batch);
        if first && self.recipe.zero_grad == Some(ZeroGrad::AfterForward) {
            self.free_gradients();
        }
        t.mark(Mark::ForwardEnd);
        t.scope("loss", || self.backward());
        t.mark(Mark::BackwardEnd);
        if self.recipe.detaches_loss {
            // The value stays, without its graph.
            self.loss = self.loss.take().map(|loss| loss.detached());
            self.graph_leaves.clear();
            self.pinned.clear();
        }
    }

    /// The micro-batch, or what this device computes of one that lies here whole.
    fn scattered(&self) -> Vec<Tensor> {
        let parts = self.tape.wrapper().map_or(1, |wrapper| wrapper.scatters());
        if parts == 1 {
            return self.model.batch(&self.run);
        }
        let rows = self.run.batch;
        let whole = Run { batch: Dim::plain(rows.n.saturating_mul(parts)), ..self.run.clone() };
        self.model.batch(&whole).iter().map(|of| of.alias(of.shape().narrowed(0, rows))).collect()
    }

    /// A batch without gradients, its outputs alive at the end as in an evaluation loop.
    #[inline(never)]
    fn evaluate(&self) {
        let t = self.tape;
        t.enter(Instant::Forward);
        t.mark(Mark::Evaluation);
        t.evaluating(|| {
            let batch = t.scope("batch", || self.model.batch(&self.run));
            let run = self.run.over(&batch);
            let out = t.with_autocast(self.autocast(), || self.model.forward(&run, &batch));
            t.mark(Mark::EvaluationEnd);
            drop((out, batch));
        });
    }

    fn backward(&mut self) {
        let t = self.tape;
        let Some(mut loss) = self.loss.clone() else { return };
        let scaled_before = if let Some(products) = t.wrapper().and_then(|wrapper| wrapper.loss_products()) {
            let mut before = Vec::new();
            for _ in 0..products {
                let product = t.mul_scalar(&loss);
                before.push(core::mem::replace(&mut loss, product));
            }
            before
        } else {
            Vec::new()
        };
        if scaled_before.is_empty() && self.recipe.grad_accum > 1 {
            loss = t.mul_scalar(&loss);
            // `(loss / n).backward()` around a wrapped model, as its loops are measured; `loss = loss / n` without one.
            if t.wrapper().is_none() {
                self.loss = Some(loss.clone());
            }
        }
        let scaled = if self.precision == Precision::AmpFp16 {
            self.create_scaler();
            t.mul_scalar(&loss)
        } else {
            loss
        };
        let seed = t.scalar(scaled.dtype(), "seed gradient");
        backward(t, &scaled, seed.clone());
        t.set_layer(0);
        if let Some(wrapper) = t.wrapper() {
            wrapper.after_backward(t);
        }
        drop(seed);
    }

    fn update(&mut self) {
        let t = self.tape;
        let scaled = self.precision == Precision::AmpFp16;
        let mut found = None;
        let own = t.wrapper().filter(|wrapper| wrapper.before_step(t));
        // What lies in host memory is clipped and stepped there.
        if self.recipe.clip_grad.is_some() && own.is_none() && !self.trained.is_empty() {
            found = scaled.then(|| self.unscale());
            self.clip();
            t.mark(Mark::ClipEnd);
        }
        // The fused implementation takes the scale and the overflow flag as tensors of its own.
        let fused = scaled && self.recipe.optimizer.implementation() == OptimizerImpl::Fused;
        let scaling = if fused {
            let ready = found.is_none();
            if ready {
                found = Some(self.check_inf());
            }
            let flag = t.scalar(Dtype::F32, "found inf");
            Some((flag, ready.then(|| t.scalar(Dtype::F32, "loss scale"))))
        } else {
            if scaled && found.is_none() {
                found = Some(self.unscale());
            }
            None
        };
        self.run_optimizer();
        if let Some(wrapper) = own {
            wrapper.after_step(t);
        }
        drop(scaling);
        drop(found);
    }

    /// `GradScaler.unscale_`: gradients are divided in place; what it found lives until `update`.
    fn unscale(&self) -> Tensor {
        let t = self.tape;
        // The reciprocal is taken in FP64 (torch/amp/grad_scaler.py, 2.15).
        let double = t.scratch(8, "scale in FP64");
        let reciprocal = t.scratch(8, "inverse scale in FP64");
        drop(double);
        let inverse = t.scalar(Dtype::F32, "inverse scale");
        drop(reciprocal);
        self.unscale_by(inverse)
    }

    /// `GradScaler._check_inf_per_device`: as if unscaling by 1.
    fn check_inf(&self) -> Tensor {
        self.unscale_by(self.tape.scalar(Dtype::F32, "inverse scale"))
    }

    fn unscale_by(&self, inverse: Tensor) -> Tensor {
        let t = self.tape;
        let found = t.scalar(Dtype::F32, "found inf");
        // `_MultiDeviceReplicator` copies both even on their own device.
        let kept = t.scalar(Dtype::F32, "found inf");
        let copy = t.scalar(Dtype::F32, "inverse scale");
        drop(copy);
        drop(inverse);
        drop(found);
        kept
    }

    /// `clip_grad_norm_`: one norm per tensor, and their norm; gradients are scaled in place.
    fn clip(&self) {
        let t = self.tape;
        let groups = by_dtype(self.optimized());
        let mut norms: Vec<(&Tensor, Tensor)> = Vec::new();
        for group in &groups {
            let of_group = || Whole::of_shapes(group.iter().map(|w| w.shape()));
            let whole = if groups.len() > 1 { &of_group() } else { self.whole };
            let offsets = t.scratch(8 * (whole.tensors + 1), "norm scratch");
            let partial = t.scratch(4 * whole.chunks, "norm scratch");
            for w in group {
                w.enter_layer(t);
                norms.push((w, t.scalar(w.dtype(), "gradient norm")));
            }
            t.set_layer(0);
            drop(partial);
            drop(offsets);
        }
        let dtype = groups.iter().map(|group| group[0].dtype()).max().unwrap_or(Dtype::F32);
        let stacked = t.temp(Shape::new(&[Dim::plain(self.whole.tensors)]), dtype, "gradient norms");
        let total = t.scalar(dtype, "total norm");
        drop(stacked);
        while let Some((w, norm)) = norms.pop() {
            w.enter_layer(t);
            drop(norm);
        }
        t.set_layer(0);
        // max_norm / (total + 1e-6), clamped (torch/nn/utils/clip_grad.py, 2.15).
        let sum = t.scalar(dtype, "clip factor");
        let reciprocal = t.scalar(dtype, "clip factor");
        let factor = t.scalar(dtype, "clip factor");
        drop((reciprocal, sum));
        let clamped = t.scalar(dtype, "clip factor");
        drop((factor, clamped));
        drop(total);
    }

    fn free_gradients(&self) {
        for w in self.trained {
            w.enter_layer(self.tape);
            if let Some(leaf) = w.leaf() {
                leaf.grad.tensor.take();
            }
        }
        self.tape.set_layer(0);
    }

    fn zero_grad(&mut self) {
        if !matches!(self.recipe.zero_grad, Some(ZeroGrad::Zero | ZeroGrad::AfterForward)) {
            self.free_gradients();
        }
        self.tape.set_layer(0);
        if self.recipe.keep_variables {
            return;
        }
        self.graph_leaves.clear();
        self.loss = None;
        self.pinned.clear();
        self.kept.clear();
        self.batch = None;
    }
}

/// Micro-batches that are walked of a first and a steady step: from the second on each finds gradients and asks for the
/// same, but where the allocator puts it may settle only after some.
pub const MAX_WALKED_MICRO_BATCHES: u64 = 8;
/// Micro-batches that are walked of a steady step alone, whose sums no later one changes.
const MAX_SUMMED_MICRO_BATCHES: u64 = 3;

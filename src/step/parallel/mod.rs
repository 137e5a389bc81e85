//! Wrappers around the model: what they allocate where frameworks hook into a step.
//!
//! A wrapper acts on parameters, on modules' forward and backward, and on gradients; what a module computes it does not
//! know. The step calls it at the places of [`Wrapper`]; gradients reach it by the hooks on parameters
//! ([`crate::step::autograd`]). One file each knows one framework.

mod ddp;
mod deepspeed;
mod dp;
mod flat;
mod fsdp1;
mod fsdp2;
mod refusals;
pub(crate) mod tp;
mod zero;
mod zero3;

use core::fmt::Debug;
use std::rc::Rc;

use crate::model::family::{Built, Model, Parameter};
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::recipe::parallel::DataParallel;
use crate::step::checkpoint::Layer;
use crate::step::freeze;
use crate::step::load::layer_of;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

pub(crate) use ddp::BUCKETS;
pub(crate) use fsdp1::shards_of_units;
pub(crate) use refusals::refusals;
pub(crate) use zero::part_of_all;
pub(crate) use zero3::{FROM_HOST, LEAST_SWAPPED, SWAPPED_BY, sub_groups};

/// The model as a whole; its layers are counted from 1.
pub(crate) const ROOT: u32 = 0;
/// The input embedding, where it is wrapped by itself.
pub(crate) const EMBEDDING: u32 = u32::MAX - 1;
/// The last norm and the head, where they are wrapped together.
pub(crate) const ENDS: u32 = u32::MAX;

/// What a framework that wraps the model does around a step's parts.
pub(crate) trait Wrapper: Debug {
    /// A micro-batch begins; whether it is the step's last.
    fn micro_batch(&self, _last: bool) {}
    /// Before the forward of a module; arguments may be replaced.
    fn before_forward(&self, _tape: &Tape, _module: u32, _args: &mut [Tensor]) {}
    /// After the forward of a module; outputs may be replaced.
    fn after_forward(&self, _tape: &Tape, _module: u32, _outs: &mut [Tensor]) {}
    /// In backward, when the gradient of a module's output is there, if the wrapper asked for it ([`on_backward_of`]).
    fn before_backward(&self, _tape: &Tape, _module: u32) {}
    /// In backward, when the gradients of a module's inputs are there, if the wrapper asked for it ([`on_backward_past`]).
    fn past_backward(&self, _tape: &Tape, _module: u32) {}
    /// In backward, when a parameter's gradient is there, if the wrapper asked for it ([`on_gradient`]); returns what stays.
    fn gradient_ready(&self, _tape: &Tape, _at: usize, gradient: Tensor) -> Option<Tensor> {
        Some(gradient)
    }
    /// When backward has run (`queue_callback`).
    fn after_backward(&self, _tape: &Tape) {}
    /// How often the loss is multiplied before backward, where the framework does it and not the loop.
    fn loss_products(&self) -> Option<u32> {
        None
    }
    /// Whether the first step differs from those that follow.
    fn settles_in_a_step(&self) -> bool {
        false
    }
    /// Whether it acts around every module with parameters of its own.
    fn gathers_modules(&self) -> bool {
        false
    }
    /// Whether modules compute with copies of the parameters, which are no leaves of the graph.
    fn replicates(&self) -> bool {
        false
    }
    /// Into how many parts a batch is split that lies here whole.
    fn scatters(&self) -> u64 {
        1
    }
    /// Whether linear layers run as ZeRO's stage 3 has them.
    fn replaces_linear(&self) -> bool {
        false
    }
    /// Before the forward or backward of a module with parameters of its own, if [`Wrapper::gathers_modules`].
    fn before_module(&self, _tape: &Tape, _module: u32, _params: &[usize], _backward: bool) {}
    /// After it.
    fn after_module(&self, _tape: &Tape, _module: u32, _params: &[usize], _backward: bool) {}
    /// Gradients that are made for a step that creates the optimizer's states before the first batch.
    fn initial_gradients(&self, _tape: &Tape) -> Option<Vec<Tensor>> {
        None
    }
    /// Before the optimizer's step: readies its gradients and clips them; whether it does.
    fn before_step(&self, _tape: &Tape) -> bool {
        false
    }
    /// Whether the optimizer steps its tensors one by one, between [`Wrapper::before_group`] and [`Wrapper::after_group`].
    fn steps_one_by_one(&self) -> bool {
        false
    }
    /// Before the step of tensor `at`.
    fn before_group(&self, _tape: &Tape, _at: usize) {}
    /// After it.
    fn after_group(&self, _at: usize) {}
    /// After the optimizer's step.
    fn after_step(&self, _tape: &Tape) {}
    /// Whether a layer is checkpointed inside of what is wrapped, so that the hooks run around the checkpoint.
    fn checkpoints_inside(&self) -> bool {
        true
    }
}

/// The parameters as modules see them, where the wrapper makes them: without memory until they are gathered. `weights` is
/// the dtype of the model's own.
pub(crate) fn gathered(tape: &Tape, model: &dyn Model, plan: &Plan, weights: Dtype) -> Option<Vec<Tensor>> {
    match &plan.parallel.data {
        DataParallel::Fsdp1(options) => Some(fsdp1::gathered(tape, model, plan, options, weights)),
        DataParallel::Fsdp2(options) => Some(fsdp2::gathered(tape, model, plan, options, weights)),
        DataParallel::Dp(options) if options.gpu > 0 => Some(dp::gathered(tape, model, weights)),
        DataParallel::DeepSpeed(options) => match options.stage {
            0 => None,
            3 => Some(zero3::gathered(tape, model, plan, options, weights)),
            _ => Some(zero::gathered(tape, model, plan, weights)),
        },
        _ => None,
    }
}

/// What the model computes in: what the framework that wraps it says, or the recipe's.
pub(crate) fn precision(plan: &Plan, recipe: Precision) -> Precision {
    match &plan.parallel.data {
        DataParallel::DeepSpeed(options) => options.precision(),
        _ => recipe,
    }
}

/// Leaves in the place of the model's parameters, over storages that `make` makes.
fn leaves(tape: &Tape, model: &dyn Model, make: impl Fn(&Parameter) -> Tensor) -> Vec<Tensor> {
    let before = tape.set_scope("layers");
    let leaf = |(id, (p, name)): (u32, (&Parameter, &String))| {
        tape.set_layer(layer_of(name));
        Tensor::leaf_over(tape, &make(p), id, p.shape, None)
    };
    let all = (0u32..).zip(model.parameters().iter().zip(&model.parameter_names())).map(leaf).collect();
    tape.set_layer(0);
    tape.set_scope(before);
    all
}

/// Wraps the model that was built; returns what is trained, where those are not the model's own parameters.
pub(crate) fn wrap(
    tape: &Tape,
    model: &dyn Model,
    built: &dyn Built,
    plan: &Plan,
    weights: Dtype,
) -> Option<Vec<Tensor>> {
    let (wrapper, trained): (Rc<dyn Wrapper>, _) = match &plan.parallel.data {
        DataParallel::Fsdp2(options) => {
            let (wrapper, trained) = fsdp2::wrap(tape, model, built, plan, options, weights);
            (Rc::new(wrapper), Some(trained))
        }
        DataParallel::Fsdp1(options) => {
            let (wrapper, trained) = fsdp1::wrap(tape, model, built, plan, options, weights);
            (Rc::new(wrapper), Some(trained))
        }
        DataParallel::Ddp(options) => {
            let trained = freeze::trained(model, &plan.recipe, built.weights());
            (Rc::new(ddp::wrap(tape, options, trained, model.buffer_bytes(weights))), None)
        }
        // Over one GPU it calls the model.
        DataParallel::Dp(options) if plan.parallel.data_ranks() > 1 => {
            let wrapper = dp::wrap(built, plan, options.gpu, &model.buffer_bytes(weights));
            (Rc::new(wrapper), (options.gpu > 0).then(Vec::new))
        }
        DataParallel::DeepSpeed(options) if options.stage == 0 => {
            let (wrapper, masters) = deepspeed::wrap(tape, built, options);
            (Rc::new(wrapper), Some(masters))
        }
        DataParallel::DeepSpeed(options) if options.stage == 3 => {
            let (wrapper, masters) = zero3::wrap(tape, model, built, plan, options);
            (Rc::new(wrapper), Some(masters))
        }
        DataParallel::DeepSpeed(options) => {
            let (wrapper, masters) = zero::wrap(tape, built, plan, options);
            (Rc::new(wrapper), Some(masters))
        }
        _ => return None,
    };
    tape.set_wrapper(Some(wrapper));
    trained
}

/// Has [`Wrapper::gradient_ready`] called when the gradient of `param` is there.
fn on_gradient(param: &Tensor, at: usize) {
    if let Some(leaf) = param.leaf() {
        let hook = move |tape: &Tape, gradient: Tensor| match tape.wrapper() {
            Some(wrapper) => wrapper.gradient_ready(tape, at, gradient),
            None => Some(gradient),
        };
        *leaf.grad.hook.borrow_mut() = Some(Box::new(hook));
    }
}

/// Has [`Wrapper::before_backward`] called when the gradient of one of a module's outputs is there.
fn on_backward_of(tape: &Tape, module: u32, outs: &[Tensor]) {
    if !tape.grad_enabled() {
        return;
    }
    for out in outs {
        let hook = move |tape: &Tape| {
            if let Some(wrapper) = tape.wrapper() {
                wrapper.before_backward(tape, module);
            }
        };
        tape.before_gradient(out, Rc::new(hook));
    }
}

/// Has [`Wrapper::past_backward`] called when the gradients of a module's inputs are there.
fn on_backward_past(tape: &Tape, module: u32, args: &mut [Tensor]) {
    for arg in args {
        let hook = move |tape: &Tape| {
            if let Some(wrapper) = tape.wrapper() {
                wrapper.past_backward(tape, module);
            }
        };
        *arg = tape.pass_through(arg, Rc::new(hook));
    }
}

/// Runs the hooks before a module's forward.
pub(crate) fn before_forward(tape: &Tape, module: u32, args: &mut [Tensor]) {
    if let Some(wrapper) = tape.wrapper() {
        wrapper.before_forward(tape, module, args);
    }
}

/// Runs the hooks after a module's forward.
pub(crate) fn after_forward(tape: &Tape, module: u32, outs: &mut [Tensor]) {
    if let Some(wrapper) = tape.wrapper() {
        wrapper.after_forward(tape, module, outs);
    }
}

/// Runs a layer as `checkpointed` does, with the wrapper's hooks around it: outside of the checkpoint or inside.
pub(crate) fn wrapped(
    tape: &Tape,
    module: u32,
    x: &[Tensor],
    layer: Layer,
    checkpointed: &dyn Fn(&[Tensor], Layer) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let Some(wrapper) = tape.wrapper() else { return checkpointed(x, layer) };
    let hooked = move |tape: &Tape, x: &[Tensor], run: &dyn Fn(&[Tensor]) -> Vec<Tensor>| {
        let mut args = x.to_vec();
        before_forward(tape, module, &mut args);
        let mut outs = run(&args);
        drop(args);
        after_forward(tape, module, &mut outs);
        outs
    };
    if wrapper.checkpoints_inside() {
        hooked(tape, x, &|x| checkpointed(x, layer.clone()))
    } else {
        checkpointed(x, Rc::new(move |tape, x| hooked(tape, x, &|x| layer(tape, x))))
    }
}

/// Runs a module over `x` with parameters of its own, with the wrapper's hooks around it.
pub(crate) fn module(tape: &Tape, x: &Tensor, params: &[Option<&Tensor>], run: &dyn Fn(&Tensor) -> Tensor) -> Tensor {
    let Some(wrapper) = tape.wrapper().filter(|wrapper| wrapper.gathers_modules() && !tape.stopped()) else {
        return run(x);
    };
    let ids = params.iter().flatten().filter_map(|p| usize::try_from(p.leaf()?.id).ok());
    let own: Rc<[usize]> = ids.collect();
    // A table that is tied to the head belongs to two modules.
    let looks_up = u32::from(!x.dtype().is_floating());
    let id = own.first().and_then(|at| u32::try_from(*at).ok()).unwrap_or(u32::MAX / 2);
    let module = id.saturating_mul(2).saturating_add(looks_up);
    wrapper.before_module(tape, module, &own, false);
    let params = own.clone();
    let past = move |tape: &Tape| {
        if let Some(wrapper) = tape.wrapper() {
            wrapper.after_module(tape, module, &params, true);
        }
    };
    let through = tape.pass_through(x, Rc::new(past));
    let out = run(&through);
    drop(through);
    if !tape.stopped() {
        wrapper.after_module(tape, module, &own, false);
    }
    if tape.grad_enabled() {
        let before = move |tape: &Tape| {
            if let Some(wrapper) = tape.wrapper() {
                wrapper.before_module(tape, module, &own, true);
            }
        };
        tape.before_gradient(&out, Rc::new(before));
    }
    out
}

/// `F.linear` as the wrapper has it, where it has one of its own.
pub(crate) fn own_linear(tape: &Tape, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Option<Tensor> {
    let replaces = tape.wrapper().is_some_and(|wrapper| wrapper.replaces_linear());
    replaces.then(|| zero3::linear(tape, x, weight, bias))
}

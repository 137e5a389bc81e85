//! Optimizers that work element by element, each a short description: the states of a weight and what a step allocates
//! beside them. One routine runs them all. (torch/optim/*.py, read at 2.15; schedulefree/adamw_schedulefree.py, read at
//! 1.4.1)

use crate::bill::Part;
use crate::recipe::optimizer::{
    List, Optimizer, OptimizerImpl, OptimizerName, Slots, by_dtype, each, release, state_like,
};
use crate::step::shape::Shape;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// What one optimizer holds and allocates.
struct Rule {
    /// States, each of the weight's sizes and dtype, in the order in which they are created.
    states: &'static [&'static str],
    /// `foreach`: temporaries of all weights at once, list after list, alive until the step ends.
    lists: &'static [&'static str],
    /// One weight at a time.
    each: &'static [Op],
}

/// What Python does with a name in the loop over the weights. A name keeps its tensor until the next weight's takes its
/// place, which exists by then.
#[derive(Clone, Copy)]
enum Op {
    /// A new tensor of the weight's sizes under a name.
    Make(usize, &'static str),
    /// The name goes away.
    Free(usize),
    /// The tensor gets another name.
    Rename(usize, usize),
}
use Op::{Free, Make, Rename};

/// `(x.sqrt() / c).add_(eps)`: the root goes when the quotient exists.
const ROOT_AND_DENOMINATOR: &[Op] =
    &[Make(0, "square root of second moment"), Make(1, "denominator"), Free(0), Rename(1, 2)];
/// The lists of the foreach Adam before PyTorch 2.1.
const COPIED_DENOMINATORS: &[&str] = &["square root of second moment", "denominator"];
const ONE_ROOT: &[Op] = &[Make(0, "square root of second moment")];

/// RAdam's rectified step, which it takes from the sixth on: `m / c * lr * (c / (v.sqrt() + eps)) * rect`, where a
/// number over a tensor is the tensor's reciprocal times the number.
const RECTIFIED: &[Op] = &[
    Make(0, "corrected first moment"),
    Make(1, "update"),
    Make(2, "square root of second moment"),
    Make(3, "reciprocal"),
    Make(4, "adaptive rate"),
    Free(3),
    Free(2),
    Make(5, "update"),
    Free(1),
    Free(4),
    Make(6, "update"),
    Free(5),
    Free(6),
];

/// Sophia-G: `(m.abs() / (rho * bs * h + 1e-15)).clamp(None, 1)` and `m.sign()`.
const SOPHIA: &[Op] = &[
    Make(1, "first moment, absolute"),
    Make(2, "scaled Hessian"),
    Make(3, "Hessian above 0"),
    Free(2),
    Make(4, "ratio"),
    Free(1),
    Free(3),
    Make(5, "clamped ratio"),
    Free(4),
    Rename(5, 0),
    Make(6, "sign of first moment"),
    Free(6),
];

/// Names that [`Op`]s use.
const NAMES: usize = 7;

fn rule(o: &Optimizer) -> Rule {
    const MOMENTS: &[&str] = &["first moment", "second moment"];
    const ROOTS: &[&str] = &["square root of second moment"];
    let of = |states, lists, each| Rule { states, lists, each };
    match o.name {
        OptimizerName::Sgd => of(
            if o.momentum > 0.0 { &["momentum"] } else { &[] },
            // `foreach` adds the momentum into the gradients themselves.
            &[],
            if o.nesterov { &[Free(0), Make(0, "gradient with momentum")] } else { &[] },
        ),
        OptimizerName::RmsProp => of(
            match (o.momentum > 0.0, o.centered) {
                (false, false) => &["second moment"],
                (true, false) => &["second moment", "momentum"],
                (false, true) => &["second moment", "mean of gradient"],
                (true, true) => &["second moment", "momentum", "mean of gradient"],
            },
            ROOTS,
            ONE_ROOT,
        ),
        OptimizerName::Adagrad => of(&["sum of squares"], &["square root of sum", "scaled gradient"], ONE_ROOT),
        OptimizerName::Adamax => {
            of(&["first moment", "infinity norm"], &["gradient, absolute"], &[Make(0, "gradient, absolute"), Free(0)])
        }
        OptimizerName::Adadelta => of(
            &["second moment", "second moment of updates"],
            &["square root of second moment", "update"],
            &[Make(0, "square root of second moment"), Make(1, "update")],
        ),
        OptimizerName::RAdam => of(MOMENTS, ROOTS, RECTIFIED),
        OptimizerName::ScheduleFreeAdamW => of(&["averaged weight", "second moment"], ROOTS, ONE_ROOT),
        // From its definition, the authors' sophia.py.
        OptimizerName::Sophia => of(&["first moment", "Hessian"], &[], SOPHIA),
        OptimizerName::AdamW | OptimizerName::Adam if o.amsgrad => {
            of(&["first moment", "second moment", "largest second moment"], ROOTS, ROOT_AND_DENOMINATOR)
        }
        _ => of(MOMENTS, ROOTS, ROOT_AND_DENOMINATOR),
    }
}

/// Creates the states of `params`. The fused implementations of Adam and Adagrad count steps on the device.
pub(super) fn create_states(tape: &Tape, o: &Optimizer, params: &[Tensor], slots: &mut Slots) {
    let counted = o.implementation() == OptimizerImpl::Fused && o.name != OptimizerName::Sgd;
    let states = rule(o).states;
    for p in params {
        p.enter_layer(tape);
        let counter = counted.then(|| tape.empty(Shape::new(&[]), Dtype::F32, Part::States, "step counter"));
        slots.push(counter.into_iter().chain(states.iter().map(|name| state_like(tape, p, name))).collect());
    }
}

/// One step over `params`; the first one creates the states.
pub(super) fn step(tape: &Tape, o: &Optimizer, params: &[Tensor], slots: &mut Slots) {
    let how = o.implementation();
    // SGD's loop clones each first gradient when it comes to it.
    let in_turn = o.name == OptimizerName::Sgd && how == OptimizerImpl::Forloop;
    if slots.is_empty() && !in_turn {
        create_states(tape, o, params, slots);
    }
    match how {
        OptimizerImpl::Foreach => {
            for reads in READS {
                redistributed(tape, params, *reads);
            }
            let copies = tape.rules().adam_copies_denominators;
            let copies = copies && matches!(o.name, OptimizerName::Adam | OptimizerName::AdamW);
            foreach(tape, if copies { COPIED_DENOMINATORS } else { rule(o).lists }, params);
        }
        OptimizerImpl::Forloop => {
            let mut names: [Option<Tensor>; NAMES] = Default::default();
            for (at, p) in params.iter().enumerate() {
                if slots.len() == at {
                    // The loop names the plain gradient first.
                    names[0] = None;
                    create_states(tape, o, core::slice::from_ref(p), slots);
                }
                for reads in READS {
                    redistributed(tape, core::slice::from_ref(p), *reads);
                }
                run(tape, rule(o).each, p, &mut names);
            }
        }
        OptimizerImpl::Fused => redistributed(tape, params, 1),
    }
}

/// How often Adam's operations read the gradients: `lerp_` once, `addcmul_` twice.
const READS: &[usize] = &[1, 2];

/// One operation over gradients that are split otherwise than their weights: each time it reads them, they are redistributed
/// for its time.
fn redistributed(tape: &Tape, params: &[Tensor], reads: usize) {
    if tape.tensor_parallel().is_none() || tape.wrapper().is_some() {
        return;
    }
    let lists: Vec<List<'_>> = (0..reads)
        .map(|_| {
            let split: Vec<&Tensor> = params.iter().filter(|p| tape.redistributes_gradient(p)).collect();
            each(tape, &split, |tape, p| like(tape, p, "gradient, redistributed"))
        })
        .collect();
    lists.into_iter().rev().for_each(|list| release(tape, list));
    tape.set_layer(0);
}

fn run(tape: &Tape, ops: &[Op], p: &Tensor, names: &mut [Option<Tensor>; NAMES]) {
    p.enter_layer(tape);
    for op in ops {
        match *op {
            Make(name, what) => names[name] = Some(like(tape, p, what)),
            Free(name) => names[name] = None,
            Rename(from, to) => names[to] = names[from].take(),
        }
    }
}

/// Lists of temporaries, for the weights of each dtype in turn. A list's name keeps it until the next dtype's exists.
fn foreach(tape: &Tape, lists: &[&'static str], params: &[Tensor]) {
    let mut held: Vec<List<'_>> = lists.iter().map(|_| List::new()).collect();
    for group in by_dtype(params) {
        for (name, list) in lists.iter().zip(&mut held) {
            let made = each(tape, &group, |tape, p| like(tape, p, name));
            release(tape, core::mem::replace(list, made));
        }
    }
    held.into_iter().for_each(|list| release(tape, list));
}

fn like(tape: &Tape, p: &Tensor, op: &'static str) -> Tensor {
    tape.temp(*p.shape(), p.dtype(), op)
}

//! What the optimizers of a DeepSpeed engine share, and the one without ZeRO (stage 0 in 16 bits), as read at DeepSpeed 0.19
//! (`deepspeed/runtime/{engine.py,fp16/unfused_optimizer.py,utils.py}`).

use core::cell::{Cell, RefCell};

use crate::bill::Part;
use crate::model::family::{Built, Model, Parameter};
use crate::recipe::parallel::DeepSpeed;
use crate::step::load::layer_of;
use crate::step::parallel::Wrapper;
use crate::step::parallel::flat::flat;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};
use crate::step::train::of_vocabulary;

/// Elements that are reduced at once without ZeRO (`MEMORY_OPT_ALLREDUCE_SIZE`).
const REDUCED_AT_ONCE: u64 = 500_000_000;

/// What the engine's parameters are in.
pub(super) fn trained_in(options: &DeepSpeed) -> Dtype {
    options.dtype.into()
}

/// The parameters as the model was made: in BF16 where the engine trains in it, else in FP32, and cast one by one.
pub(super) fn adopted(tape: &Tape, model: &dyn Model, dtype: Dtype) -> Vec<Tensor> {
    let before = tape.set_scope("layers");
    let make = |dtype: Dtype| {
        let one = |(p, name): (&Parameter, &String)| {
            tape.set_layer(layer_of(name));
            tape.empty(p.shape, dtype, Part::Weights, "parameter")
        };
        let all = model.parameters();
        let made = all.iter().zip(&model.parameter_names()).map(one).collect::<Vec<Tensor>>();
        // A head is made before it is tied to the table of words, and goes away then.
        let head = all.iter().find(|p| of_vocabulary(p)).filter(|p| p.linear);
        drop(head.map(|p| tape.empty(p.shape, dtype, Part::Weights, "untied head")));
        made
    };
    let made = if dtype == Dtype::F16 {
        let wide = make(Dtype::F32);
        let cast = |wide: Tensor| tape.empty(*wide.shape(), dtype, Part::Weights, "parameter");
        wide.into_iter().map(cast).collect()
    } else {
        make(dtype)
    };
    tape.set_layer(0);
    tape.set_scope(before);
    made
}

/// The norm of all gradients: each is cast to FP64 for its own; the result lives until the next step's is known.
#[derive(Debug, Default)]
pub(super) struct GradientNorm {
    last: RefCell<Option<Tensor>>,
    /// The step's own variables.
    of_step: RefCell<Vec<Tensor>>,
}

impl GradientNorm {
    /// Of gradients of so many elements; a step keeps `variables` scalars until it ends.
    pub(super) fn take(&self, tape: &Tape, sizes: impl Iterator<Item = u64>, variables: usize) {
        let mut norms = Vec::new();
        for n in sizes {
            let wide = tape.scratch(n.saturating_mul(8), "gradient, in FP64 for its norm");
            norms.push(tape.largest(&Shape::new(&[Dim::plain(n)]), Dtype::I64));
            drop(wide);
        }
        drop(norms);
        let scalar = || tape.scalar(Dtype::F32, "gradient norm");
        let mut of_step: Vec<Tensor> = (0..variables).map(|_| scalar()).collect();
        of_step.extend(self.last.replace(Some(scalar())));
        self.of_step.replace(of_step);
    }

    /// The step is over.
    pub(super) fn settle(&self) {
        self.of_step.take();
    }
}

/// The optimizer over all parameters, each with a master copy (`FP16_UnfusedOptimizer`, which torch's optimizers take).
#[derive(Debug)]
pub(super) struct Unfused {
    params: Vec<Tensor>,
    masters: Vec<Tensor>,
    dtype: Dtype,
    boundary: Cell<bool>,
}

/// Makes it. Returns it, and what is stepped.
#[inline(never)]
pub(super) fn wrap(tape: &Tape, built: &dyn Built, options: &DeepSpeed) -> (Unfused, Vec<Tensor>) {
    let params = built.weights().to_vec();
    let dtype = trained_in(options);
    let master = |p: &Tensor| {
        p.enter_layer(tape);
        let clone = tape.temp(*p.shape(), dtype, "copy of a parameter");
        let master = Tensor::leaf_of(tape, 0, *p.shape(), Dtype::F32, Part::States, "master weight");
        drop(clone);
        master
    };
    let masters: Vec<Tensor> = params.iter().map(master).collect();
    tape.set_layer(0);
    (Unfused { params, masters: masters.clone(), dtype, boundary: Cell::new(true) }, masters)
}

fn like(tape: &Tape, p: &Tensor, dtype: Dtype) -> Tensor {
    p.enter_layer(tape);
    tape.empty(*p.shape(), dtype, Part::Gradients, "gradient")
}

impl Wrapper for Unfused {
    fn micro_batch(&self, last: bool) {
        self.boundary.set(last);
    }

    fn loss_products(&self) -> Option<u32> {
        Some(1)
    }

    fn initial_gradients(&self, tape: &Tape) -> Option<Vec<Tensor>> {
        let narrow = self.params.iter().map(|p| like(tape, p, self.dtype));
        let wide = self.params.iter().map(|p| like(tape, p, Dtype::F32));
        let made = narrow.chain(wide).collect();
        tape.set_layer(0);
        Some(made)
    }

    /// `buffered_allreduce_fallback`.
    fn after_backward(&self, tape: &Tape) {
        if !self.boundary.get() {
            return;
        }
        let (mut count, mut elements) = (0, 0);
        for (at, p) in self.params.iter().enumerate() {
            count += 1;
            elements += p.shape().numel().unwrap_or(0);
            if elements > REDUCED_AT_ONCE || at + 1 == self.params.len() {
                drop((count > 1).then(|| flat(tape, elements, self.dtype, "gradients, in a row")));
                (count, elements) = (0, 0);
            }
        }
    }

    fn before_step(&self, tape: &Tape) -> bool {
        for p in &self.params {
            drop(like(tape, p, Dtype::F32));
        }
        for (p, leaf) in self.params.iter().zip(&self.masters).filter_map(|(p, m)| Some((p, m.leaf()?))) {
            *leaf.grad.tensor.borrow_mut() = Some(like(tape, p, Dtype::F32));
        }
        tape.set_layer(0);
        true
    }

    fn after_step(&self, tape: &Tape) {
        for leaf in self.masters.iter().chain(&self.params).filter_map(Tensor::leaf) {
            leaf.grad.tensor.take();
        }
        tape.set_layer(0);
    }
}

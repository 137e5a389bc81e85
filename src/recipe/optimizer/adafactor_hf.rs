//! Adafactor of transformers (transformers/optimization.py, read at 5.24) as it is commonly set up, with
//! `scale_parameter=False, relative_step=False` and no first moment: second moments of matrices as a row and a column, of
//! vectors whole, in FP32 whatever the weights are.

use crate::recipe::optimizer::{Slots, factored, state_of};
use crate::step::ops::reduce::keepdim;
use crate::step::shape::Shape;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// One step over `params`, one at a time: FP32 copies of half-precision gradient and weight, the squared gradient, and
/// the update. Python's names hold each of them until the next parameter's takes its place. The root mean square of
/// each parameter stays with its state.
#[inline(never)]
pub(super) fn step(tape: &Tape, params: &[Tensor], slots: &mut Slots) {
    let mut held = Held::default();
    for (at, p) in params.iter().enumerate() {
        p.enter_layer(tape);
        let copy = |op: &'static str| p.dtype().is_half().then(|| full(tape, p, op));
        held.grad = None;
        held.grad = copy("FP32 copy of gradient");
        if slots.len() == at {
            slots.push(match factored(p) {
                Some([row, col]) => vec![
                    state_of(tape, row, Dtype::F32, "row of second moment"),
                    state_of(tape, col, Dtype::F32, "column of second moment"),
                ],
                None => vec![state_of(tape, *p.shape(), Dtype::F32, "second moment")],
            });
        }
        held.weight = None;
        held.weight = copy("FP32 copy of weight");
        let rms = root_mean_square(tape, p.shape(), Dtype::F32);
        tape.becomes(&rms, crate::bill::Part::States);
        let states = if factored(p).is_some() { 2 } else { 1 };
        slots[at].truncate(states + 1);
        match slots[at].get_mut(states) {
            Some(old) => *old = rms,
            None => slots[at].push(rms),
        }
        let square = full(tape, p, "square of gradient");
        let shifted = full(tape, p, "square of gradient");
        drop(square);
        held.update.replace(shifted);
        held.update.replace(over_root(tape, p));
        let rms = root_mean_square(tape, p.shape(), Dtype::F32);
        let clip = tape.scalar(Dtype::F32, "clip of update");
        drop(rms);
        drop(clip);
        drop(full(tape, p, "negated update"));
    }
}

/// What Python's names hold from one parameter to the next.
#[derive(Default)]
struct Held {
    grad: Option<Tensor>,
    weight: Option<Tensor>,
    update: Option<Tensor>,
}

pub(super) fn full(tape: &Tape, p: &Tensor, op: &'static str) -> Tensor {
    tape.temp(*p.shape(), Dtype::F32, op)
}

/// `tensor.norm(2) / tensor.numel() ** 0.5`.
pub(super) fn root_mean_square(tape: &Tape, shape: &Shape, dtype: Dtype) -> Tensor {
    let norm = tape.reduced_as(shape, &Shape::new(&[]), dtype, "norm");
    let rms = tape.scalar(dtype, "root mean square");
    drop(norm);
    rms
}

/// The gradient over the root of the second moment, after the moment has been updated.
pub(super) fn over_root(tape: &Tape, p: &Tensor) -> Tensor {
    let Some([row, _]) = factored(p) else { return full(tape, p, "update") };
    let (rank, mean) = (p.shape().rank(), |from: &Shape, i: usize| {
        tape.reduced_as(from, &keepdim(from, i), Dtype::F32, "mean of squares")
    });
    drop(mean(p.shape(), rank - 1));
    drop(mean(p.shape(), rank - 2));
    // `_approx_sq_grad`.
    let of_row = mean(&row, rank - 2);
    let row = tape.temp(row, Dtype::F32, "row factor");
    drop(of_row);
    let col = tape.temp(keepdim(p.shape(), rank - 2), Dtype::F32, "column factor");
    let update = full(tape, p, "update");
    drop(row);
    drop(col);
    update
}

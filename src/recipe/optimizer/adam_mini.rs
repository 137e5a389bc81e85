//! Adam-mini, from its definition (the authors' adam_mini/adam_mini.py, read at 1.1.1): a first moment in the weights'
//! dtype, and of matrices one second moment for each row. (Queries and keys have one for each head, norms one in all: their
//! few bytes less are not told apart.)

use crate::recipe::optimizer::{Slots, state_like, state_of};
use crate::step::ops::reduce::keepdim;
use crate::step::tape::Tape;
use crate::step::tensor::Tensor;

/// One step over `params`, one at a time. Python's names hold a tensor until the next parameter's takes its place.
pub(super) fn step(tape: &Tape, params: &[Tensor], slots: &mut Slots) {
    let [mut mean, mut denominator, mut rate, mut update]: [Option<Tensor>; 4] = Default::default();
    for (at, p) in params.iter().enumerate() {
        p.enter_layer(tape);
        let full = |op: &'static str| tape.temp(*p.shape(), p.dtype(), op);
        let rank = p.shape().rank();
        let rows = if rank > 1 { keepdim(p.shape(), rank - 1) } else { *p.shape() };
        if slots.len() == at {
            let first = state_like(tape, p, "first moment");
            slots.push(vec![first, state_of(tape, rows, p.dtype(), "second moment of rows")]);
        }
        let square = full("square of gradient");
        mean.replace(tape.reduced(p, &rows, "mean of squares"));
        drop(square);
        let of_rows = |op: &'static str| tape.temp(rows, p.dtype(), op);
        let root = of_rows("square root of second moment");
        denominator.replace(of_rows("denominator"));
        drop(root);
        let reciprocal = of_rows("reciprocal");
        rate.replace(of_rows("adaptive rate"));
        drop(reciprocal);
        update.replace(full("update"));
        drop(full("negated update"));
    }
}

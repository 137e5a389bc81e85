//! Muon of `torch.optim` (torch/optim/_muon.py, read at 2.15) on the matrices inside the layers; AdamW has the rest, as
//! its documentation asks for.

use crate::recipe::optimizer::{Optimizer, Slots, elementwise, hidden, state_like};
use crate::step::shape::Shape;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Newton-Schulz iterations of a step (`DEFAULT_NS_STEPS`).
const ITERATIONS: usize = 5;

/// One step over `params`, the matrices first. `slots` holds the matrices' states, then the others'.
#[inline(never)]
pub(super) fn step(tape: &Tape, o: &Optimizer, params: &[Tensor], slots: &mut Slots) {
    let (matrices, rest): (Vec<Tensor>, Vec<Tensor>) = params.iter().cloned().partition(hidden);
    let mut others = slots.split_off(matrices.len().min(slots.len()));
    if slots.is_empty() {
        for p in &matrices {
            p.enter_layer(tape);
            slots.push(vec![state_like(tape, p, "momentum")]);
        }
    }
    let mut update: Option<Tensor> = None;
    for p in &matrices {
        p.enter_layer(tape);
        // `grad.lerp(buf, momentum)` under the name that the last weight's update had.
        update.replace(tape.temp(*p.shape(), p.dtype(), "gradient with momentum"));
        update.replace(orthogonal(tape, p));
    }
    drop(update);
    elementwise::step(tape, o, &rest, &mut others);
    slots.append(&mut others);
}

/// `_zeropower_via_newtonschulz`, in BF16 on the wide side: Gram matrices, and the matrix times them.
fn orthogonal(tape: &Tape, p: &Tensor) -> Tensor {
    let copy = tape.temp(*p.shape(), Dtype::Bf16, "BF16 copy of gradient");
    let norm = tape.norm(&copy);
    let clamped = tape.scalar(Dtype::Bf16, "clamped norm");
    drop(norm);
    drop(clamped);
    let [rows, columns] = [p.dim(0), p.dim(1)];
    let tall = rows.n > columns.n;
    let side = if tall { columns } else { rows };
    let square = Shape::new(&[side, side]);
    let mut x = copy;
    let mut gram: Option<Tensor> = None;
    let mut of_gram: Option<Tensor> = None;
    for _ in 0..ITERATIONS {
        gram.replace(tape.product_out(square, &x, "Gram matrix"));
        of_gram.replace(tape.product_out(square, &x, "polynomial of Gram matrix"));
        let wide = if tall { Shape::new(&[columns, rows]) } else { *p.shape() };
        x = tape.product_out(wide, &x, "orthogonalised gradient");
    }
    x
}

//! CAME, from its definition (the authors' came_pytorch/CAME.py): a whole first moment, second moments and instabilities of matrices as a row and a column each, of vectors the second
//! moment whole; everything in FP32 whatever the weights are.

use crate::bill::Part;
use crate::recipe::optimizer::adafactor_hf::{full, over_root, root_mean_square};
use crate::recipe::optimizer::{Slots, factored, state_of};
use crate::step::shape::Shape;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// One step over `params`, one at a time. Python's names hold a tensor until the next parameter's takes its place.
#[inline(never)]
pub(super) fn step(tape: &Tape, params: &[Tensor], slots: &mut Slots) {
    let [mut grad, mut update, mut instability, mut approximation]: [Option<Tensor>; 4] = Default::default();
    for (at, p) in params.iter().enumerate() {
        p.enter_layer(tape);
        grad.take();
        grad = p.dtype().is_half().then(|| full(tape, p, "FP32 copy of gradient"));
        let sides = factored(p);
        if slots.len() == at {
            let of = |shape: Shape, name: &'static str| state_of(tape, shape, Dtype::F32, name);
            let mut state = vec![of(*p.shape(), "first moment")];
            match sides {
                None => state.push(of(*p.shape(), "second moment")),
                Some([row, col]) => state.extend([
                    of(row, "row of second moment"),
                    of(col, "column of second moment"),
                    of(row, "row of instability"),
                    of(col, "column of instability"),
                ]),
            }
            slots.push(state);
        }
        let rms = root_mean_square(tape, p.shape(), p.dtype());
        tape.becomes(&rms, Part::States);
        let states = if sides.is_some() { 5 } else { 2 };
        match slots[at].get_mut(states) {
            Some(old) => *old = rms,
            None => slots[at].push(rms),
        }
        let square = full(tape, p, "square of gradient");
        update.replace(full(tape, p, "square of gradient"));
        drop(square);
        update.replace(over_root(tape, p));
        let norm = root_mean_square(tape, p.shape(), Dtype::F32);
        let clip = tape.scalar(Dtype::F32, "clip of update");
        drop((norm, clip));
        let difference = full(tape, p, "deviation of update");
        let squared = full(tape, p, "square of deviation");
        drop(difference);
        instability.replace(full(tape, p, "instability"));
        drop(squared);
        if sides.is_some() {
            approximation.replace(over_root(tape, p));
            update.clone_from(&approximation);
        } else {
            update.replace(full(tape, p, "update"));
        }
        drop(full(tape, p, "negated update"));
    }
}

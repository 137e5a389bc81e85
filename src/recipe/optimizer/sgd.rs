//! SGD of `torch.optim`: with momentum one state, a copy of the first gradient; no temporaries.

use crate::recipe::optimizer::{Slots, state_like};
use crate::step::tape::Tape;
use crate::step::tensor::Tensor;

/// One step over `params` (torch/optim/sgd.py, 2.15).
pub(super) fn step(tape: &Tape, params: &[Tensor], momentum: f64, slots: &mut Slots) {
    if momentum != 0.0 && slots.is_empty() {
        slots.extend(params.iter().map(|p| {
            p.enter_layer(tape);
            vec![state_like(tape, p, "momentum")]
        }));
    }
}

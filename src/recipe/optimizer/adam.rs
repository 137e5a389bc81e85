//! Adam and AdamW of `torch.optim`: two states in the weights' dtype, created at the first step.

use crate::bill::Part;
use crate::recipe::OptimizerImpl;
use crate::recipe::optimizer::{Slots, state_like};
use crate::step::shape::Shape;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// One step over `params` (torch/optim/adam.py, 2.15).
///
/// - `foreach`: the square roots of the second moments, all at once: one more copy of the weights.
/// - `for-loop`: a square root and a denominator of one tensor; the last denominator lives until the next one exists.
/// - `fused`: nothing, but its step counters lie on the device.
pub(super) fn step(tape: &Tape, params: &[Tensor], how: OptimizerImpl, slots: &mut Slots) {
    if slots.is_empty() {
        for p in params {
            p.enter_layer(tape);
            let mut state = Vec::with_capacity(3);
            if how == OptimizerImpl::Fused {
                state.push(tape.empty(Shape::new(&[]), Dtype::F32, Part::States, "step counter"));
            }
            state.push(state_like(tape, p, "first moment"));
            state.push(state_like(tape, p, "second moment"));
            slots.push(state);
        }
    }
    let like = |p: &Tensor, op: &'static str| {
        p.enter_layer(tape);
        tape.temp(*p.shape(), p.dtype(), op)
    };
    match how {
        OptimizerImpl::Foreach => {
            let mut roots: Vec<Tensor> = params.iter().map(|p| like(p, "square root of second moment")).collect();
            for p in params.iter().rev() {
                p.enter_layer(tape);
                drop(roots.pop());
            }
        }
        OptimizerImpl::Forloop => {
            let mut last: Option<Tensor> = None;
            for p in params {
                let root = like(p, "square root of second moment");
                let denominator = like(p, "denominator");
                drop(root);
                last.replace(denominator);
            }
        }
        OptimizerImpl::Fused => {}
    }
}

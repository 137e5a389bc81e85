//! Adafactor of `torch.optim` (torch/optim/_adafactor.py, read at 2.15): second moments of matrices as a row and a
//! column, of vectors whole, all in the weights' dtype, created at the first step.

use crate::recipe::OptimizerImpl;
use crate::recipe::optimizer::{List, Slots, by_dtype, each, factored, release, state_of};
use crate::step::ops::reduce::keepdim;
use crate::step::tape::Tape;
use crate::step::tensor::Tensor;

/// One step over `params`.
///
/// - `for-loop`: an estimate of one tensor's second moment, which becomes its update; the last one lives until the next
///   one's estimate exists.
/// - `foreach`: the estimates of all matrices at once, then those of all vectors: one more copy of the weights.
#[inline(never)]
pub(super) fn step(tape: &Tape, params: &[Tensor], how: OptimizerImpl, slots: &mut Slots) {
    if slots.is_empty() {
        for p in params {
            p.enter_layer(tape);
            slots.push(match factored(p) {
                Some([row, col]) => vec![
                    state_of(tape, row, p.dtype(), "row of second moment"),
                    state_of(tape, col, p.dtype(), "column of second moment"),
                ],
                None => vec![state_of(tape, *p.shape(), p.dtype(), "second moment")],
            });
        }
    }
    if how == OptimizerImpl::Foreach { foreach(tape, params) } else { forloop(tape, params) }
}

/// `_single_tensor_adafactor`: Python's names hold each tensor until the next parameter's takes its place.
fn forloop(tape: &Tape, params: &[Tensor]) {
    let mut row_mean: Option<Tensor> = None;
    let mut col_mean: Option<Tensor> = None;
    let mut squared: Option<Tensor> = None;
    let mut estimate: Option<Tensor> = None;
    let mut update: Option<Tensor> = None;
    for p in params {
        p.enter_layer(tape);
        drop(tape.norm(p));
        if factored(p).is_some() {
            row_mean.replace(row_norm(tape, p));
            col_mean.replace(col_norm(tape, p));
            estimate.replace(outer_product(tape, p));
            drop(row_var_mean(tape, p));
        } else {
            squared.replace(like(tape, p, "square of gradient"));
            estimate.replace(like(tape, p, "second moment estimate"));
        }
        // The estimate becomes the update in place.
        update.clone_from(&estimate);
        drop(update.as_ref().map(|update| tape.norm(update)));
    }
}

/// `_multi_tensor_adafactor`, group by group, in the order of the groups' first tensors.
fn foreach(tape: &Tape, params: &[Tensor]) {
    let groups = by_dtype(params).into_iter().flat_map(|group| {
        let first = group.first().map(|p| factored(p).is_some());
        let (one, other): (Vec<&Tensor>, Vec<&Tensor>) =
            group.into_iter().partition(|p| Some(factored(p).is_some()) == first);
        [one, other]
    });
    // `updates` names a group's updates until the next group has made its own.
    let mut updates = List::new();
    for group in groups {
        let Some(first) = group.first() else { continue };
        for p in &group {
            p.enter_layer(tape);
            drop(tape.norm(p));
        }
        let estimates = if factored(first).is_some() {
            release(tape, each(tape, &group, row_norm));
            release(tape, each(tape, &group, col_norm));
            let estimates = each(tape, &group, outer_product);
            release(tape, each(tape, &group, row_var_mean));
            estimates
        } else {
            release(tape, each(tape, &group, |t, p| like(t, p, "square of gradient")));
            each(tape, &group, |t, p| like(t, p, "second moment estimate"))
        };
        release(tape, core::mem::replace(&mut updates, estimates));
        for (p, update) in &updates {
            p.enter_layer(tape);
            drop(tape.norm(update));
        }
    }
    release(tape, updates);
}

fn like(tape: &Tape, p: &Tensor, op: &'static str) -> Tensor {
    tape.temp(*p.shape(), p.dtype(), op)
}

/// `vector_norm(grad, dim=-1, keepdim=True)`.
fn row_norm(tape: &Tape, p: &Tensor) -> Tensor {
    tape.reduced(p, &keepdim(p.shape(), p.shape().rank() - 1), "row norms of gradient")
}

/// `vector_norm(grad, dim=-2, keepdim=True)`.
fn col_norm(tape: &Tape, p: &Tensor) -> Tensor {
    tape.reduced(p, &keepdim(p.shape(), p.shape().rank() - 2), "column norms of gradient")
}

/// `row_var @ col_var`: of stacks of matrices by a Triton kernel, which needs no workspace
/// (torch/_native/ops/bmm_outer_product, 2.15).
fn outer_product(tape: &Tape, p: &Tensor) -> Tensor {
    if p.shape().rank() > 2 {
        return like(tape, p, "second moment estimate");
    }
    tape.product_out(*p.shape(), p, "second moment estimate")
}

/// `row_var.mean(dim=-2, keepdim=True)`.
fn row_var_mean(tape: &Tape, p: &Tensor) -> Tensor {
    let row = keepdim(p.shape(), p.shape().rank() - 1);
    tape.reduced_as(&row, &keepdim(&row, row.rank() - 2), p.dtype(), "mean of second moment rows")
}

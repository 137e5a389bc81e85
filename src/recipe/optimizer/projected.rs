//! GaLore's and APOLLO's AdamW (galore_torch/adamw.py and galore_projector.py, read at 1.0; apollo_torch/apollo.py and
//! random_projector.py, read at 1.0.3): moments of the matrices inside the layers live in a space of low rank, to which
//! a projection of each gradient leads; all other weights have whole moments.

use crate::bill::Part;
use crate::recipe::optimizer::{Optimizer, OptimizerName, ScaleType, Slots, hidden, state_of};
use crate::step::ops::reduce::keepdim;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// What Python's names hold from one weight to the next.
#[derive(Default)]
struct Names {
    grad: Option<Tensor>,
    denominator: Option<Tensor>,
    update: Option<Tensor>,
    factor: Option<Tensor>,
    scaled: Option<Tensor>,
    norm: Option<Tensor>,
    limiter: Option<Tensor>,
}

/// One step over `params`: first the weights that are not projected, then the matrices. `slots` lies in that order.
#[inline(never)]
pub(super) fn step(tape: &Tape, o: &Optimizer, params: &[Tensor], slots: &mut Slots) {
    let (matrices, rest): (Vec<&Tensor>, Vec<&Tensor>) = params.iter().partition(|p| hidden(p));
    let mut names = Names::default();
    let moments = |shape: Shape, dtype: Dtype| {
        ["first moment", "second moment"].map(|name| state_of(tape, shape, dtype, name)).to_vec()
    };
    for (at, p) in rest.iter().enumerate() {
        p.enter_layer(tape);
        names.grad = None;
        if slots.len() == at {
            slots.push(moments(*p.shape(), p.dtype()));
        }
        names.denominator.replace(tape.temp(*p.shape(), p.dtype(), "denominator"));
        names.update.replace(tape.temp(*p.shape(), p.dtype(), "update"));
    }
    for (at, p) in matrices.into_iter().enumerate() {
        p.enter_layer(tape);
        let at = rest.len() + at;
        names.grad = None;
        let first = slots.len() == at;
        let rank = Dim::plain(o.rank());
        let (rows, columns) = (p.dim(0), p.dim(1));
        let tall = rows.n >= columns.n;
        // There are no more singular vectors than the shorter side has elements.
        let side = if tall { columns } else { rows };
        let rank = if o.name == OptimizerName::GaLoreAdamW && rank.n > side.n { side } else { rank };
        let low = Shape::new(&if tall { [rows, rank] } else { [rank, columns] });
        if first {
            let projection = if o.name == OptimizerName::GaLoreAdamW {
                singular_vectors(tape, p, rank)
            } else {
                random(tape, p, rank)
            };
            slots.push(vec![projection]);
        }
        names.grad = Some(tape.product_out(low, p, "projected gradient"));
        if first {
            slots[at].extend(moments(low, p.dtype()));
        }
        names.denominator.replace(tape.temp(low, p.dtype(), "denominator"));
        names.update.replace(tape.temp(low, p.dtype(), "update"));
        if o.name == OptimizerName::GaLoreAdamW {
            let full = tape.product_out(*p.shape(), p, "update");
            let scaled = tape.temp(*p.shape(), p.dtype(), "scaled update");
            drop(full);
            names.update.replace(scaled);
        } else {
            rescale(tape, o, p, &low, &mut names, &mut slots[at], first);
        }
    }
}

/// APOLLO's update: the gradient itself, by channel or as a whole as long as the projected update is; its growth is
/// limited against the last step's norm, which stays with the state.
fn rescale(
    tape: &Tape,
    o: &Optimizer,
    p: &Tensor,
    low: &Shape,
    names: &mut Names,
    state: &mut Vec<Tensor>,
    first: bool,
) {
    let dtype = p.dtype();
    let scalar = |op: &'static str| tape.scalar(dtype, op);
    let by = match o.scale_type {
        ScaleType::Channel => {
            let norm_dim = usize::from(p.dim(0).n >= p.dim(1).n);
            keepdim(low, norm_dim)
        }
        ScaleType::Tensor => Shape::new(&[]),
    };
    let of_update = tape.reduced_as(low, &by, dtype, "norms of update");
    let of_grad = tape.reduced_as(low, &by, dtype, "norms of gradient");
    let not_zero = tape.temp(by, dtype, "norms of gradient");
    drop(of_grad);
    let factor = tape.temp(by, dtype, "scale of gradient");
    drop((of_update, not_zero));
    names.factor.replace(factor);
    names.scaled.replace(tape.temp(*p.shape(), dtype, "scaled gradient"));
    let norm = |op: &'static str| tape.reduced_as(p.shape(), &Shape::new(&[]), dtype, op);
    if first {
        let norm = norm("norm of update");
        tape.becomes(&norm, Part::States);
        state.push(norm);
    } else {
        names.norm.replace(norm("norm of update"));
        let last = scalar("last norm");
        let growth = scalar("growth");
        drop(last);
        let larger = tape.scalar(Dtype::Bool, "whether it grew too much");
        drop(larger);
        names.limiter.replace(scalar("limiter"));
        drop(growth);
        names.scaled.replace(tape.temp(*p.shape(), dtype, "limited update"));
        let norm = scalar("norm of update");
        tape.becomes(&norm, Part::States);
        if let Some(last) = state.last_mut() {
            *last = norm;
        }
    }
    names.update.clone_from(&names.scaled);
}

/// APOLLO's projection: random, in FP32 until it is cast.
fn random(tape: &Tape, p: &Tensor, rank: Dim) -> Tensor {
    let (rows, columns) = (p.dim(0), p.dim(1));
    let shape = Shape::new(&if rows.n >= columns.n { [rank, columns] } else { [rows, rank] });
    let copy = p.dtype().is_half().then(|| tape.temp(*p.shape(), Dtype::F32, "FP32 copy of gradient"));
    let drawn = tape.temp(shape, Dtype::F32, "random numbers");
    let projection = tape.temp(shape, Dtype::F32, "projection");
    drop(drawn);
    let kept = if p.dtype().is_half() { tape.temp(shape, p.dtype(), "projection") } else { projection.clone() };
    drop(projection);
    drop(copy);
    tape.becomes(&kept, Part::States);
    kept
}

/// GaLore's projection: the leading singular vectors of the gradient on its shorter side, taken in FP32. Of FP32
/// gradients it stays a view that keeps all of them. (cuSOLVER's own workspace is not known and not counted; the
/// projection is taken again every 200 steps.)
fn singular_vectors(tape: &Tape, p: &Tensor, rank: Dim) -> Tensor {
    let temp = |shape: Shape, dtype: Dtype, op: &'static str| tape.temp(shape, dtype, op);
    let (rows, columns) = (p.dim(0), p.dim(1));
    let tall = rows.n >= columns.n;
    let side = if tall { columns } else { rows };
    let copy = p.dtype().is_half().then(|| temp(*p.shape(), Dtype::F32, "FP32 copy of gradient"));
    let left = temp(Shape::new(&[rows, side]), Dtype::F32, "left singular vectors");
    let right = temp(Shape::new(&[side, columns]), Dtype::F32, "right singular vectors");
    let values = temp(Shape::new(&[side]), Dtype::F32, "singular values");
    let info = tape.scalar(Dtype::I32, "whether it converged");
    drop(temp(*p.shape(), Dtype::F32, "what is decomposed"));
    let failed = tape.scalar(Dtype::Bool, "whether it converged");
    drop(tape.scalar(Dtype::Bool, "whether it converged"));
    drop(failed);
    drop(info);
    let diagonal = temp(Shape::new(&[rank, rank]), Dtype::F32, "singular values");
    // The other side's vectors, scaled, which nobody asks for.
    let scaled = Shape::new(&if tall { [rows, rank] } else { [rank, columns] });
    let scaled = tape.product_out(scaled, &left, "scaled singular vectors");
    drop(diagonal);
    let (kept, other) = if tall { (right, left) } else { (left, right) };
    let kept = if p.dtype().is_half() {
        let shape = Shape::new(&if tall { [rank, columns] } else { [rows, rank] });
        let cast = temp(shape, p.dtype(), "projection");
        drop(copy);
        let (first, last) = if tall { (other, kept) } else { (kept, other) };
        drop(first);
        drop(values);
        drop(last);
        cast
    } else {
        drop(other);
        drop(values);
        kept
    };
    drop(scaled);
    tape.becomes(&kept, Part::States);
    kept
}

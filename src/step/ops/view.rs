//! Views, and the copies that a reshape makes when it cannot be one.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Tape {
    /// `x.reshape(dims)` outside the graph: a view where the strides allow one, else a contiguous copy.
    pub(crate) fn reshape_raw(&self, x: &Tensor, dims: &[Dim]) -> Tensor {
        match x.shape().viewed(dims) {
            Some(shape) => x.alias(shape),
            None => {
                let copy = self.temp(x.shape().contiguous(), x.dtype(), "contiguous copy");
                let shape = copy.shape().viewed(dims).unwrap_or_else(|| copy.shape().contiguous());
                copy.alias(shape)
            }
        }
    }

    /// `x.contiguous()` outside the graph.
    pub(crate) fn contiguous_raw(&self, x: &Tensor) -> Tensor {
        if x.shape().is_contiguous() {
            x.clone()
        } else {
            self.temp(x.shape().contiguous(), x.dtype(), "contiguous copy")
        }
    }

    /// `x.reshape(dims)`.
    #[must_use]
    pub fn reshape(&self, x: &Tensor, dims: &[Dim]) -> Tensor {
        let (x, seen) = &match x.shape().viewed(dims) {
            Some(seen) => (x.clone(), seen),
            None => {
                let dense = self.contiguous(x);
                let seen = dense.shape().viewed(dims).unwrap_or_else(|| dense.shape().contiguous());
                (dense, seen)
            }
        };
        let r = Recorder::begin(self, &[x]);
        let before = *x.shape();
        let out = x.alias(*seen);
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.reshape_raw(g, before.dims()))]))
    }

    /// `x.transpose(i, j)`.
    #[must_use]
    pub fn transpose(&self, x: &Tensor, i: usize, j: usize) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = x.alias(x.shape().transposed(i, j));
        r.finish(out, move |_, g| grads_of([first(g).map(|g| g.alias(g.shape().transposed(i, j)))]))
    }

    /// `x.contiguous()`: nothing when it already is.
    #[must_use]
    pub fn contiguous(&self, x: &Tensor) -> Tensor {
        if x.shape().is_contiguous() {
            return x.clone();
        }
        let r = Recorder::begin(self, &[x]);
        let out = self.temp(x.shape().contiguous(), x.dtype(), "contiguous copy");
        r.finish(out, |_, g| grads_of([first(g).cloned()]))
    }

    /// `x[..., part]` along dimension `i`. Backward writes the gradient into zeros of the whole.
    #[must_use]
    pub fn slice(&self, x: &Tensor, i: usize, part: Dim) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let whole = *x.shape();
        let out = x.alias(x.shape().narrowed(i, part));
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.temp(whole.contiguous(), g.dtype(), "grad of slice"))]))
    }

    /// `x[..., ::2]` along dimension `i`, or the elements between. Backward as of [`Tape::slice`].
    #[must_use]
    pub fn every_second(&self, x: &Tensor, i: usize) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let whole = *x.shape();
        let out = x.alias(x.shape().halved(i));
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.temp(whole.contiguous(), g.dtype(), "grad of slice"))]))
    }

    /// `x[..., part].copy_(from)` along dimension `i`, as what `x` is from then on (`CopySlices`,
    /// torch/csrc/autograd/functions/tensor.cpp): backward copies the gradient whole, takes the part's out of it and zeroes
    /// it there.
    #[must_use]
    pub fn copy_into(&self, x: &Tensor, i: usize, from: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x, from]);
        let part = from.dim(i);
        let (needs_x, dtype) = (x.requires_grad(), from.dtype());
        let whole = *x.shape();
        let out = x.alias(whole);
        r.finish(out, move |t, g| {
            let Some(g) = first(g) else { return Grads::default() };
            let result = t.temp(whole, g.dtype(), "grad of copy");
            let of_part = || t.temp(whole.narrowed(i, part).like(), g.dtype(), "grad of copied part");
            let mut grad = of_part();
            // What the copy lets through to what it overwrote: zeros.
            let zeros = needs_x.then(of_part);
            if grad.dtype() != dtype {
                grad = t.cast_raw(&grad, dtype);
            }
            drop(zeros);
            grads_of([needs_x.then_some(result), Some(grad)])
        })
    }

    /// `x.select(i, 0)`: one element along dimension `i`, the dimension gone. Backward writes the gradient into zeros
    /// of the whole.
    #[must_use]
    pub fn select(&self, x: &Tensor, i: usize) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let whole = *x.shape();
        let out = x.alias(x.shape().selected(i));
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.temp(whole.contiguous(), g.dtype(), "grad of select"))]))
    }

    /// `x.split(part, dim=i)` into `n` equal views; the backward joins the gradients in one tensor.
    #[must_use]
    pub fn split(&self, x: &Tensor, i: usize, part: Dim, n: u64) -> Vec<Tensor> {
        let parts: Vec<Dim> = (0..n).map(|_| part).collect();
        self.split_into(x, i, &parts)
    }

    /// [`Tape::split`] into two parts of their own sizes.
    #[must_use]
    pub fn split_in_two(&self, x: &Tensor, i: usize, parts: [Dim; 2]) -> [Tensor; 2] {
        let mut outs = self.split_into(x, i, &parts).into_iter();
        [(); 2].map(|()| outs.next().unwrap_or_else(|| x.clone()))
    }

    fn split_into(&self, x: &Tensor, i: usize, parts: &[Dim]) -> Vec<Tensor> {
        let r = Recorder::begin(self, &[x]);
        let whole = *x.shape();
        let outs: Vec<Tensor> = parts.iter().map(|part| x.alias(x.shape().narrowed(i, *part))).collect();
        let shapes: Vec<Shape> = outs.iter().map(|out| out.shape().contiguous()).collect();
        let dtype = x.dtype();
        r.finish_many(outs, move |t, g| {
            // Absent gradients are zeros of the part's sizes; then one concatenation.
            let absent = g.iter().zip(&shapes).filter(|(g, _)| g.is_none());
            let zeros: Vec<Tensor> = absent.map(|(_, shape)| t.temp(*shape, dtype, "zeros")).collect();
            let out = t.temp(whole.contiguous(), dtype, "grad of split");
            drop(zeros);
            grads_of([Some(out)])
        })
    }

    /// `x.chunk(n)` along the first dimension: views of equal size, the last one of what is left; the backward joins the
    /// gradients in one tensor (`split_backward`).
    #[must_use]
    pub fn chunk(&self, x: &Tensor, n: u64) -> Vec<Tensor> {
        let rows = x.dim(0).n;
        let size = rows.div_ceil(n.max(1)).max(1);
        let r = Recorder::begin(self, &[x]);
        let (whole, dtype) = (*x.shape(), x.dtype());
        let part = |from: u64| x.alias(whole.narrowed(0, Dim::plain(size.min(rows - from))));
        let outs = (0..rows.div_ceil(size)).map(|i| part(i * size)).collect();
        r.finish_many(outs, move |t, _| grads_of([Some(t.temp(whole.contiguous(), dtype, "grad of chunk"))]))
    }

    /// `cat((nothing, x))`: a contiguous copy, whose backward narrows.
    #[must_use]
    pub fn cat_alone(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = self.temp(x.shape().contiguous(), x.dtype(), "concatenation");
        r.finish(out, |_, g| grads_of([first(g).map(|g| g.alias(*g.shape()))]))
    }

    /// `pad(x, (0, n))`: the last dimension lengthened to `to`. Backward copies what was there.
    #[must_use]
    pub fn pad_last(&self, x: &Tensor, to: Dim) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let before = *x.shape();
        let out = self.temp(before.narrowed(before.rank() - 1, to).contiguous(), x.dtype(), "padded copy");
        r.finish(out, move |t, g| {
            grads_of([first(g).map(|g| t.temp(before.contiguous(), g.dtype(), "grad of padding"))])
        })
    }

    /// `where(mask, x, c)` for a Python number; the mask is kept.
    #[must_use]
    pub fn where_else(&self, mask: &Tensor, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let s = r.save(mask);
        let scalar = self.scalar(x.dtype(), "other value");
        let out = self.elementwise(&[mask, x], x.dtype(), "choice");
        drop(scalar);
        r.finish(out, move |t, g| {
            let (Some(g), Some(mask)) = (first(g), s.unpack(t)) else { return Grads::default() };
            let scalar = t.scalar(g.dtype(), "other value");
            let grad = t.elementwise(&[&mask, g], g.dtype(), "grad of choice");
            drop(scalar);
            grads_of([Some(grad)])
        })
    }

    /// `cat((a, b), dim=i)` of two parts, in the wider of their dtypes. Backward narrows, and casts back.
    #[must_use]
    pub fn cat(&self, a: &Tensor, b: &Tensor, i: usize, whole: Dim) -> Tensor {
        let r = Recorder::begin(self, &[a, b]);
        let dtype = a.dtype().promoted(b.dtype());
        let out = self.temp(a.shape().narrowed(i, whole).contiguous(), dtype, "concatenation");
        let parts = [(a.dim(i), a.dtype()), (b.dim(i), b.dtype())];
        r.finish(out, move |t, g| {
            let narrow = |(dim, dtype): (Dim, Dtype)| {
                let part = first(g).map(|g| g.alias(g.shape().narrowed(i, dim)))?;
                Some(if part.dtype() == dtype { part } else { t.cast_raw(&part, dtype) })
            };
            grads_of(parts.map(narrow))
        })
    }

    /// `x.unsqueeze(i)`.
    #[must_use]
    pub fn unsqueeze(&self, x: &Tensor, i: usize) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let before = *x.shape();
        let out = x.alias(x.shape().unsqueezed(i));
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.reshape_raw(g, before.dims()))]))
    }

    /// `x.expand(...)` along dimension `i` of size 1. Backward sums over it.
    #[must_use]
    pub fn expand(&self, x: &Tensor, i: usize, dim: Dim) -> Tensor {
        self.expand_along(x, &[(i, dim)])
    }

    /// [`Tape::expand`] along several dimensions at once.
    #[must_use]
    pub fn expand_along(&self, x: &Tensor, to: &[(usize, Dim)]) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let before = *x.shape();
        let out = x.alias(to.iter().fold(before, |shape, (i, dim)| shape.expanded(*i, *dim)));
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.sum_to(g, &before))]))
    }
}

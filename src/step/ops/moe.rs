//! What mixtures of experts use: the grouped product over tokens sorted by expert, and the router's normalisation.

use crate::step::autograd::{Grads, Recorder};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Tape {
    /// `grouped_mm` of tokens [rows, in], sorted by expert, with the experts' weights, one product per stretch between
    /// `offsets`. `weight` is [experts, out, in], or [experts, in, out] with `transposed`.
    ///
    /// On Hopper and later BF16 runs as one CUTLASS kernel with scratch for its arguments (`bf16bf16_grouped_mm`,
    /// ATen/native/cuda/GroupMM.cu); elsewhere and in other dtypes one product per expert, each writing into the whole
    /// (`_grouped_mm_fallback`, ATen/native/GroupedMMUtils.h, read at 2.15). Each of those asks cuBLAS for its workspace, one
    /// after the other: one stands for all, however many experts get tokens, and some expert does.
    #[must_use]
    pub fn grouped_mm(&self, x: &Tensor, weight: &Tensor, offsets: &Tensor, transposed: bool) -> Tensor {
        let r = Recorder::begin(self, &[x, weight]);
        let sx = r.save_if(weight.requires_grad(), x);
        let sw = r.save_if(x.requires_grad(), weight);
        let so = r.save(offsets);
        let features = weight.dim(if transposed { 2 } else { 1 });
        let out = self.grouped_out(Shape::new(&[x.dim(0), features]), x.dtype(), weight.dim(0), "grouped matmul");
        let (xshape, wshape) = (*x.shape(), *weight.shape());
        r.finish(out, move |t, g| {
            let mut out: Grads = vec![None, None];
            let Some(g) = first(g) else { return out };
            let (x, w, offsets) = (sx.unpack(t), sw.unpack(t), so.unpack(t));
            let experts = wshape.dims()[0];
            if x.is_some() {
                out[1] = Some(t.grouped_out(wshape, g.dtype(), experts, "grad of experts' weights"));
            }
            if w.is_some() {
                out[0] = Some(t.grouped_out(xshape, g.dtype(), experts, "grad of grouped matmul input"));
            }
            drop(offsets);
            out
        })
    }

    fn grouped_out(&self, shape: Shape, dtype: Dtype, experts: Dim, op: &'static str) -> Tensor {
        let out = self.temp(shape, dtype, op);
        if dtype == Dtype::Bf16 && matches!(self.device().sm, 90 | 100) && !self.stopped() {
            /// Bytes per group: pointers, strides and problem sizes of the product's operands.
            const ARGUMENTS: u64 = 60;
            /// Bytes per multiprocessor for tensor maps.
            const TENSOR_MAPS: u64 = 512;
            let arguments = self.scratch(ARGUMENTS * experts.n, "grouped arguments");
            let maps = self.scratch(TENSOR_MAPS * self.device().multiprocessors, "grouped tensor maps");
            drop(maps);
            drop(arguments);
        } else if !self.rules().idle_experts {
            let workspace = self.blas_workspace();
            drop(workspace);
        }
        out
    }

    /// `x /= x.sum(-1, keepdim=True)`: in place, so that backward needs a copy of what `x` was.
    #[must_use]
    pub fn normalise_in_place(&self, x: &Tensor) -> Tensor {
        let sum = self.sum_last(x);
        self.div_in_place(x, &sum)
    }

    /// `x.sum(-1, keepdim=True)`.
    #[must_use]
    pub fn sum_last(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let last = x.shape().rank() - 1;
        let whole = x.shape().dims()[last];
        let out = self.temp(x.shape().narrowed(last, Dim::plain(1)).contiguous(), x.dtype(), "sum");
        r.finish(out, move |_, g| vec![first(g).map(|g| g.alias(g.shape().expanded(last, whole)))])
    }

    /// `x.div_(y)`.
    fn div_in_place(&self, x: &Tensor, y: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x, y]);
        let before = r.recorded().then(|| self.temp(x.shape().like(), x.dtype(), "copy before division"));
        let sx = before.as_ref().map(|x| r.save(x));
        let sy = r.save(y);
        drop(before);
        let out = x.alias(*x.shape());
        r.finish(out, move |t, g| {
            let mut out: Grads = vec![None, None];
            let (Some(g), Some(x), Some(y)) = (first(g), sx.as_ref().and_then(|s| s.unpack(t)), sy.unpack(t)) else {
                return out;
            };
            let of = |a: &[&Tensor]| t.elementwise(a, x.dtype(), "grad of division");
            // −grad × ((x ÷ y) ÷ y), then grad ÷ y.
            let once = of(&[&x, &y]);
            let twice = of(&[&once, &y]);
            let negated = of(&[g]);
            out[1] = Some(of(&[&negated, &twice]));
            drop(negated);
            drop(twice);
            drop(once);
            out[0] = Some(of(&[g, &y]));
            out
        })
    }

    /// `x.view(rows, k, width).sum(dim=1)` of [rows × k, width]. Backward repeats the gradient, as a copy.
    #[must_use]
    pub fn sum_groups(&self, x: &Tensor, rows: Dim, k: u64) -> Tensor {
        let grouped = self.reshape(x, &[rows, Dim::plain(k), x.dim(1)]);
        let r = Recorder::begin(self, &[&grouped]);
        let out = self.temp(Shape::new(&[rows, x.dim(1)]), x.dtype(), "sum");
        r.finish(out, move |_, g| vec![first(g).map(|g| g.alias(g.shape().unsqueezed(1).expanded(1, Dim::plain(k))))])
    }
}

//! What mixtures of experts use: the grouped product over tokens sorted by expert, and the router's normalisation.

use crate::step::autograd::{Grads, Recorder, grads_of};
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
        // `input.to(weight.dtype)`: autocast has no say here (`_grouped_mm`, integrations/moe.py).
        let x = &self.to(x, weight.dtype());
        let r = Recorder::begin(self, &[x, weight]);
        // Without a kernel transformers' own operator runs: it keeps both and makes both gradients, whichever is wanted.
        let fallback = !self.rules().grouped_kernel.runs_on(self.device().sm);
        let sx = r.save_if(fallback || weight.requires_grad(), x);
        let sw = r.save_if(fallback || x.requires_grad(), weight);
        // Released in this order, and what was unpacked in the reverse one (`GroupedMmBackward0`).
        let saved = [sw, r.save_if(!fallback, offsets), sx];
        if fallback && r.recorded() {
            // An attribute of the operator's context, which backward does not release.
            self.keep_with_graph(offsets);
        }
        let features = weight.dim(if transposed { 2 } else { 1 });
        let (xshape, wshape) = (*x.shape(), *weight.shape());
        let experts = weight.dim(0);
        let each = x.dim(0).n / experts.n.max(1);
        let out = Shape::new(&[x.dim(0), features]);
        let out = self.grouped_out(out, x.dtype(), (experts, [each, features.n]), "grouped matmul");
        r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let Some(g) = first(g) else { return out };
            let [w, offsets, x] = saved.each_ref().map(|s| s.unpack(t));
            // Without a grouped kernel the input's gradient is made first (`_grouped_mm_fallback_bwd`, integrations/moe.py).
            for input in if fallback { [true, false] } else { [false, true] } {
                if input && w.is_some() {
                    let of = (experts, [each, xshape.dims()[1].n]);
                    out[0] = Some(t.grouped_out(xshape, g.dtype(), of, "grad of grouped matmul input"));
                } else if !input && x.is_some() {
                    let of = (experts, [1, 2].map(|i| wshape.dims()[i].n));
                    out[1] = Some(t.grouped_out(wshape, g.dtype(), of, "grad of experts' weights"));
                }
            }
            drop(x);
            drop(offsets);
            drop(w);
            out
        })
    }

    /// The result of a product of as many groups as there are experts, each of about `sizes` rows and columns.
    fn grouped_out(&self, shape: Shape, dtype: Dtype, (experts, sizes): (Dim, [u64; 2]), op: &'static str) -> Tensor {
        let out = self.temp(shape, dtype, op);
        // Tensor maps, and on Blackwell what its tile scheduler shares, per multiprocessor: by the tile, which is smaller
        // where a group is (`dispatch_bf16_grouped_kernel_on_tile_size`; recorded with PyTorch 2.15).
        let per_multiprocessor = match self.device().sm {
            90 => 512,
            100 if sizes.iter().any(|&n| n <= 128) => 5376,
            100 => 5888,
            _ => return out,
        };
        if dtype == Dtype::Bf16 && !self.stopped() {
            /// Bytes per group: pointers, strides and problem sizes of the product's operands.
            const ARGUMENTS: u64 = 60;
            let arguments = self.scratch(ARGUMENTS * experts.n, "grouped arguments");
            let maps = self.scratch(per_multiprocessor * self.device().multiprocessors, "grouped tensor maps");
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

    /// `x.sum(-1, keepdim=True)`. Autocast gives it `dtype=float32` (`fp32_set_opt_dtype`).
    #[must_use]
    pub fn sum_last(&self, x: &Tensor) -> Tensor {
        let dtype = if self.autocast().is_some() { Dtype::F32 } else { x.dtype() };
        let r = Recorder::begin(self, &[x]);
        let last = x.shape().rank() - 1;
        let whole = x.shape().dims()[last];
        let out = self.temp(x.shape().narrowed(last, Dim::plain(1)).contiguous(), dtype, "sum");
        r.finish(out, move |_, g| grads_of([first(g).map(|g| g.alias(g.shape().expanded(last, whole)))]))
    }

    /// `x.div_(y)`.
    #[must_use]
    pub fn div_in_place(&self, x: &Tensor, y: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x, y]);
        let before = r.recorded().then(|| self.temp(x.shape().like(), x.dtype(), "copy before division"));
        let saved = [Some(r.save(y)), before.as_ref().map(|x| r.save(x))];
        drop(before);
        let out = x.alias(*x.shape());
        r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let [Some(y), Some(x)] = saved.each_ref().map(|s| s.as_ref().and_then(|s| s.unpack(t))) else { return out };
            let Some(g) = first(g) else { return out };
            let of = |a: &[&Tensor]| {
                let dtype = a.iter().map(|x| x.dtype()).max().unwrap_or(x.dtype());
                t.elementwise(a, dtype, "grad of division")
            };
            // −grad × ((x ÷ y) ÷ y), then grad ÷ y.
            let once = of(&[&x, &y]);
            let twice = of(&[&once, &y]);
            let negated = of(&[g]);
            out[1] = Some(of(&[&negated, &twice]));
            drop(negated);
            drop(twice);
            drop(once);
            out[0] = Some(of(&[g, &y]));
            drop(x);
            drop(y);
            out
        })
    }

    /// `x.gather(-1, places)` of [rows, n]: the places are kept. Backward adds into zeros.
    #[must_use]
    pub fn gather(&self, x: &Tensor, places: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let saved = r.save(places);
        let out = self.temp(places.shape().contiguous(), x.dtype(), "gather");
        let whole = *x.shape();
        r.finish(out, move |t, g| {
            let (Some(g), Some(_places)) = (first(g), saved.unpack(t)) else { return Grads::default() };
            grads_of([Some(t.temp(whole.contiguous(), g.dtype(), "grad of gather"))])
        })
    }

    /// `x.view(rows, k, width).sum(dim=1)` of [rows × k, width]. Backward repeats the gradient, as a copy.
    #[must_use]
    pub fn sum_groups(&self, x: &Tensor, rows: Dim, k: u64) -> Tensor {
        let grouped = self.reshape(x, &[rows, Dim::plain(k), x.dim(1)]);
        let r = Recorder::begin(self, &[&grouped]);
        let out = self.temp(Shape::new(&[rows, x.dim(1)]), x.dtype(), "sum");
        r.finish(out, move |_, g| {
            grads_of([first(g).map(|g| g.alias(g.shape().unsqueezed(1).expanded(1, Dim::plain(k))))])
        })
    }
}

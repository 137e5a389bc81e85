//! Liger's fused kernels by what their autograd functions allocate and keep (Liger Kernel 0.8, `ops/`). The kernels are
//! Triton's and need no memory of their own; what a function saves or overwrites is as written there.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{AS_LINEAR, Dtype, Tensor};

impl Tape {
    /// `LigerRMSNormFunction`: keeps the input and a reciprocal per row in FP32. Backward sums the weight's gradient from
    /// one FP32 row for each multiprocessor; `in_place`: the input's gradient takes the place of the output's.
    #[must_use]
    pub(crate) fn liger_rms_norm(&self, x: &Tensor, weight: &Tensor, in_place: bool) -> Tensor {
        let r = Recorder::begin(self, &[x, weight]);
        let dense = self.contiguous_raw(x);
        let last = x.shape().rank() - 1;
        let out = self.temp(x.shape().contiguous(), x.dtype(), "rms norm");
        let rows = dense.shape().narrowed(last, Dim::plain(1)).contiguous();
        let rstd = self.temp(rows, Dtype::F32, "reciprocal deviation");
        let (sx, sw, sr) = (r.save(&dense), r.save(weight), r.save(&rstd));
        drop((dense, rstd));
        let (needs_w, wshape, wdtype) = (weight.requires_grad(), *weight.shape(), weight.dtype());
        r.finish(out, move |t, g| {
            let (x, w, rstd) = (sx.unpack(t), sw.unpack(t), sr.unpack(t));
            let Some(g) = first(g) else { return Grads::default() };
            let dense = t.contiguous_raw(g);
            let partial = needs_w.then(|| {
                let rows = Dim::plain(t.device().multiprocessors);
                t.temp(Shape::new(&[rows, wshape.dims()[0]]), Dtype::F32, "partial grads of weight")
            });
            let dx = if in_place {
                dense.alias(*dense.shape())
            } else {
                let grad = t.temp(dense.shape().contiguous(), dense.dtype(), "grad of rms norm");
                // Seen with the input's sizes, as the gradient's own is where it lies.
                grad.alias(*grad.shape())
            };
            let dw = partial.as_ref().map(|partial| {
                let sum = t.sum_over(partial, &wshape);
                if wdtype == Dtype::F32 { sum } else { t.cast_raw(&sum, wdtype) }
            });
            drop((partial, dense, x, w, rstd));
            grads_of([Some(dx), dw])
        })
    }

    /// `LigerSiLUMulFunction` and `LigerGELUMulFunction`: `act(a) × b`, both kept; backward writes the gradients over them.
    #[must_use]
    pub(crate) fn liger_gated(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[a, b]);
        let (a, b) = (self.contiguous_raw(a), self.contiguous_raw(b));
        let out = self.temp(a.shape().contiguous(), a.dtype(), "gated activation");
        let (sa, sb) = (r.save(&a), r.save(&b));
        drop((a, b));
        r.finish(out, move |t, g| {
            let (a, b) = (sa.unpack(t), sb.unpack(t));
            let Some(g) = first(g) else { return Grads::default() };
            let dense = t.contiguous_raw(g);
            drop(dense);
            let over = |x: Option<Tensor>| x.map(|x| x.alias(*x.shape()));
            grads_of([over(a), over(b)])
        })
    }

    /// `LigerRopeFunction` of q [b, a, s, d] and k [b, g, s, d]: both are rotated where they lie, in their own dtype, once
    /// their tokens lie densely; so are the gradients.
    #[must_use]
    pub(crate) fn liger_rope(&self, q: &Tensor, k: &Tensor, [cos, sin]: [&Tensor; 2]) -> (Tensor, Tensor) {
        let r = Recorder::begin(self, &[q, k]);
        let turned = |t: &Self, x: &Tensor| {
            let dense = t.contiguous_raw(&x.alias(x.shape().transposed(1, 2)));
            dense.alias(dense.shape().transposed(1, 2))
        };
        let outs = vec![turned(self, q), turned(self, k)];
        let tables = (r.save(cos), r.save(sin));
        let mut outs = r
            .finish_many(outs, move |t, g| {
                let tables = (tables.0.unpack(t), tables.1.unpack(t));
                let grads = [0, 1].map(|at| g.get(at).and_then(Option::as_ref).map(|g| turned(t, g)));
                drop(tables);
                grads_of(grads)
            })
            .into_iter();
        match (outs.next(), outs.next()) {
            (Some(q), Some(k)) => (q, k),
            _ => (q.clone(), k.clone()),
        }
    }

    /// `LigerFusedLinearCrossEntropyFunction` of hidden states [rows, h], the head's weight [V, h] and labels: the loss, and
    /// in forward already the gradients of both, over pieces of the rows whose logits take no more than the hidden states.
    #[must_use]
    pub(crate) fn liger_linear_cross_entropy(&self, x: &Tensor, weight: &Tensor, labels: &Tensor) -> Tensor {
        let weight = &weight.in_use(AS_LINEAR);
        let r = Recorder::begin(self, &[x, weight]);
        let (rows, h) = (x.dim(0), x.dim(1));
        let v = weight.dim(0);
        let zeros = |shape: Shape, dtype: Dtype, op: &'static str| self.temp(shape, dtype, op);
        let grad_x = zeros(x.shape().contiguous(), x.dtype(), "grad of hidden states");
        let (needs_x, needs_w) = (x.requires_grad(), weight.requires_grad());
        let grad_w = (needs_x && needs_w).then(|| zeros(*weight.shape(), weight.dtype(), "grad of weight"));
        let losses = zeros(Shape::new(&[rows]), Dtype::F32, "losses");
        let wanted = self.counted_labels(labels);
        let chunk = chunk_rows(rows.n, h.n, v.n);
        // The products write where they are told only where autocast would change nothing.
        let low = self.autocast().unwrap_or(x.dtype());
        let as_is = x.dtype() == weight.dtype() && low == x.dtype();
        let logits_of = |rows: u64| Shape::new(&[Dim::plain(rows), v]);
        let buffer = as_is.then(|| self.temp(logits_of(chunk), x.dtype(), "logits"));
        let mut done = 0;
        while done < rows.n {
            let part = Dim::plain(chunk.min(rows.n - done));
            done += part.n;
            let piece = x.alias(x.shape().narrowed(0, part));
            let logits = match &buffer {
                Some(buffer) => {
                    drop(self.blas_workspace());
                    buffer.clone()
                }
                None => {
                    // The transposed weight is no leaf: autocast casts it anew each time. Arguments are cast from the last.
                    let cast_w = self.cast_below_autocast(&weight.alias(*weight.shape()), low);
                    let cast_x = self.cast_below_autocast(&piece, low);
                    let logits = self.product_out(logits_of(part.n), &cast_x, "logits");
                    drop((cast_x, cast_w));
                    logits
                }
            };
            if needs_x {
                if as_is {
                    drop(self.blas_workspace());
                } else {
                    let cast = self.autocast_lower(weight);
                    let product = self.product_out(Shape::new(&[part, h]), &logits, "grad of matmul input");
                    drop((product, cast));
                }
            }
            if let Some(grad) = &grad_w {
                if logits.dtype().is_half() && self.device().sm >= 80 {
                    let cast = self.cast_below_autocast(&piece, logits.dtype());
                    drop(self.blas_workspace());
                    drop(cast);
                } else {
                    self.add_projected(grad, &logits, &piece, low);
                }
            }
            drop(logits);
        }
        drop(buffer);
        let loss = self.sum_over(&losses, &Shape::new(&[]));
        let (sx, sw) = (r.save(&grad_x), grad_w.as_ref().map(|grad| r.save(grad)));
        drop((wanted, losses, grad_w, grad_x));
        r.finish(loss, move |t, _| {
            let grads = grads_of([sx.unpack(t), sw.as_ref().and_then(|grad| grad.unpack(t))]);
            t.compare_with_one();
            grads
        })
    }

    /// `grad += mm(logits.t(), hidden).float()`.
    fn add_projected(&self, grad: &Tensor, logits: &Tensor, piece: &Tensor, low: Dtype) {
        let cast_x = self.cast_below_autocast(piece, low);
        let product = self.product_out(*grad.shape(), logits, "grad of weight");
        drop(cast_x);
        let wide = if product.dtype() == Dtype::F32 { product } else { self.cast_raw(&product, Dtype::F32) };
        drop(wide);
    }

    /// `x` in `dtype`, copied where it is in another.
    fn cast_below_autocast(&self, x: &Tensor, dtype: Dtype) -> Tensor {
        if x.dtype() == dtype { x.clone() } else { self.cast_raw(x, dtype) }
    }

    /// `LigerCrossEntropyFunction`: backward's gradient is written over the logits in forward.
    #[must_use]
    pub(crate) fn liger_cross_entropy(&self, logits: &Tensor, labels: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[logits]);
        let losses = self.temp(Shape::new(&[logits.dim(0)]), logits.dtype(), "losses");
        let wanted = self.counted_labels(labels);
        // Whether the labels are within the vocabulary: their largest, and their smallest.
        for _ in 0..2 {
            let masked = self.temp(labels.shape().contiguous(), Dtype::I64, "labels");
            let most = self.largest(masked.shape(), Dtype::I64);
            drop(masked);
            let within = self.scalar(Dtype::Bool, "within the vocabulary");
            drop(most);
            drop(within);
        }
        let loss = self.sum_over(&losses, &Shape::new(&[]));
        drop((wanted, losses));
        let kept = r.save(logits);
        r.finish(loss, move |t, _| {
            let logits = kept.unpack(t);
            t.compare_with_one();
            grads_of([logits])
        })
    }

    /// Which labels count, and how many: read by the host.
    fn counted_labels(&self, labels: &Tensor) -> Tensor {
        let shape = labels.shape().contiguous();
        let wanted = self.temp(shape, Dtype::Bool, "labels that count");
        drop(self.counted(&shape));
        wanted
    }

    /// `torch.equal(grad, torch.tensor(1.0))`.
    fn compare_with_one(&self) {
        let one = self.scalar(Dtype::F32, "one");
        let same = self.scalar(Dtype::Bool, "is one");
        let all = self.scalar(Dtype::Bool, "is one");
        drop((same, all, one));
    }
}

/// Rows of one piece: as many as keep the logits no larger than the hidden states, a power of two.
fn chunk_rows(rows: u64, hidden: u64, vocabulary: u64) -> u64 {
    let pieces = vocabulary.div_ceil(hidden.max(1)).max(1);
    rows.div_ceil(pieces).next_power_of_two().min(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bill::Part;
    use crate::step::autograd::backward;
    use crate::step::log::Event;
    use crate::step::tape::Device;

    /// What Liger's repository publishes for a forward and backward of its cross-entropy over FP32 logits of 8 × 2048 tokens
    /// (benchmark/data/all_benchmark_data.csv, 2024-09-03, NVIDIA A100-SXM4-80GB): the logits and 336 KiB.
    #[test]
    fn cross_entropy_takes_what_is_published() {
        for (vocabulary, published) in [
            (8_192, 537_215_488),
            (16_384, 1_074_086_400),
            (32_768, 2_147_828_224),
            (65_536, 4_295_311_872),
            (131_072, 8_590_278_656),
        ] {
            let t = Tape::new(Device { sm: 80, multiprocessors: 108, workspace_kept: false });
            let rows = Dim::plain(8 * 2048);
            let logits = Tensor::parameter(&t, 0, Shape::new(&[rows, Dim::plain(vocabulary)]), Dtype::F32);
            let labels = t.empty(Shape::new(&[rows]), Dtype::I64, Part::Activations, "labels");
            let loss = t.liger_cross_entropy(&logits, &labels);
            backward(&t, &loss, t.scalar(Dtype::F32, "seed gradient"));
            drop((loss, logits, labels));
            let (events, tensors) = t.0.log.take();
            let (mut alive, mut peak) = (0_u64, 0);
            for event in events {
                let bytes = |id: u32| tensors[id as usize].bytes.get().next_multiple_of(512);
                match event {
                    Event::Alloc(id) => alive += bytes(id),
                    Event::Free(id) => alive -= bytes(id),
                    _ => {}
                }
                peak = peak.max(alive);
            }
            assert!(peak.abs_diff(published) <= 1024, "{vocabulary}: {peak}");
        }
    }

    /// Pieces are a power of two rows, as many as let the logits take what the hidden states do.
    #[test]
    fn pieces_of_the_loss() {
        assert_eq!(chunk_rows(16_384, 4096, 32_000), 2048);
        assert_eq!(chunk_rows(777, 512, 32_000), 16);
        assert_eq!(chunk_rows(5, 4096, 4096), 5);
    }
}

//! Scaled dot-product attention by backend, and softmax.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::checkpoint::Saved;
use crate::step::ops::efficient_kernel::EfficientKernel;
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::{Device, Tape};
use crate::step::tensor::{Dtype, Tensor};
use crate::versions::Rules;

/// The kernel family that runs `scaled_dot_product_attention`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SdpaPath {
    /// FlashAttention-2.
    Flash,
    /// CUTLASS memory-efficient attention.
    Efficient,
    /// cuDNN's fused attention.
    Cudnn,
    /// The composite of products and softmax.
    Math,
}

/// What the choice of backend looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Element type of query, key and value.
    pub dtype: Dtype,
    /// Head size, the larger one where values have their own.
    pub head: u64,
    /// Whether values have the head size of queries and keys.
    pub one_head_size: bool,
    /// Whether an explicit mask is given (causal alone is not one).
    pub mask: bool,
    /// Whether probabilities are dropped.
    pub dropout: bool,
    /// Whether there are fewer heads of keys and values than of queries.
    pub grouped: bool,
}

/// The largest head that cuDNN's attention trains: 256 on Hopper, 128 elsewhere (`check_cudnn_tensor_shapes`, sdp_utils.cpp;
/// recorded with PyTorch 2.15 at 256 on compute capability 9.0).
const fn cudnn_head_limit(device: &Device) -> u64 {
    if device.sm == 90 { 256 } else { 128 }
}

impl SdpaPath {
    /// The backend that PyTorch 2.15 picks (`sdp::select_sdp_backend`): cuDNN first on Hopper and Blackwell data-centre
    /// cards where nothing is dropped, if the version prefers it; else flash from Ampere on, for half precision without a
    /// mask; else memory-efficient; the composite where the version's memory-efficient kernel takes no grouped heads.
    #[must_use]
    pub fn choose(device: &Device, rules: &Rules, shape: AttentionShape) -> Self {
        let half = shape.dtype.is_half();
        if half
            && rules.prefers_cudnn
            && matches!(device.sm, 90 | 100)
            && !shape.dropout
            && shape.head <= cudnn_head_limit(device)
            && shape.head.is_multiple_of(8)
        {
            Self::Cudnn
        } else if half && device.sm >= 80 && shape.head <= 256 && shape.one_head_size && !shape.mask {
            Self::Flash
        } else if shape.grouped && !rules.efficient_takes_groups {
            Self::Math
        } else {
            Self::Efficient
        }
    }
}

impl Tape {
    /// `scaled_dot_product_attention` of q [b, a, s, d] over k, v [b, g, s, d], causal or not.
    #[must_use]
    pub fn sdpa(&self, q: &Tensor, k: &Tensor, v: &Tensor, dropout: f64, forced: Option<SdpaPath>) -> Tensor {
        self.sdpa_masked(q, k, v, None, dropout, forced)
    }

    /// [`Tape::sdpa`] under an explicit boolean mask [b, 1, s, s], if there is one.
    #[must_use]
    pub fn sdpa_masked(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        dropout: f64,
        forced: Option<SdpaPath>,
    ) -> Tensor {
        let dropout = self.dropped(dropout);
        let v = &self.autocast_lower(v);
        let k = &self.autocast_lower(k);
        let q = &self.autocast_lower(q);
        let mask = mask.map(|mask| self.additive_mask(mask, q.dtype()));
        let shape = AttentionShape {
            dtype: q.dtype(),
            head: q.dim(3).n.max(v.dim(3).n),
            one_head_size: q.dim(3).n == v.dim(3).n,
            mask: mask.is_some(),
            dropout: dropout > 0.0,
            grouped: q.dim(1).n != k.dim(1).n,
        };
        match forced.unwrap_or_else(|| SdpaPath::choose(self.device(), self.rules(), shape)) {
            SdpaPath::Flash => self.flash(q, k, v, dropout),
            SdpaPath::Efficient => self.efficient(q, k, v, mask.map(|mask| self.padded_mask(mask)).as_ref(), dropout),
            SdpaPath::Cudnn => self.cudnn(q, k, v, mask.as_ref()),
            SdpaPath::Math => self.math(q, k, v, dropout),
        }
    }

    /// [`Tape::sdpa`] with `bias` [1, a, s, s] added to the scores: it goes the memory-efficient way unless forced
    /// otherwise. Its rows are padded to a multiple of eight and it is expanded over the batch, which backward undoes.
    #[must_use]
    pub fn sdpa_biased(&self, q: &Tensor, k: &Tensor, v: &Tensor, bias: &Tensor, dropout: f64) -> Tensor {
        let dropout = self.dropped(dropout);
        let bias = self.autocast_lower(bias);
        let v = &self.autocast_lower(v);
        let k = &self.autocast_lower(k);
        let q = &self.autocast_lower(q);
        let keys = bias.dim(3);
        let bias = if keys.n.is_multiple_of(MASK_ALIGNMENT) {
            bias
        } else {
            let padded = self.pad_last(&bias, Dim::plain(keys.n.next_multiple_of(MASK_ALIGNMENT)));
            drop(bias);
            self.slice(&padded, 3, keys)
        };
        let bias = self.expand(&bias, 0, q.dim(0));
        self.efficient(q, k, v, Some(&bias), dropout)
    }

    /// A boolean mask as `sdpa` adds it to the scores: 0 or −∞ in the query's dtype (`convert_boolean_attn_mask`,
    /// ATen/native/transformers/attention.cpp).
    fn additive_mask(&self, mask: &Tensor, dtype: Dtype) -> Tensor {
        let zero = self.scalar(dtype, "attention bias");
        let least = self.scalar(dtype, "attention bias");
        let bias = self.temp(mask.shape().contiguous(), dtype, "attention bias");
        drop(least);
        drop(zero);
        bias
    }

    /// A mask with its rows padded to a multiple of eight, as the memory-efficient kernel wants it (`preprocess_mask`,
    /// ATen/native/transformers/attention.cpp).
    fn padded_mask(&self, bias: Tensor) -> Tensor {
        let last = bias.shape().rank() - 1;
        let keys = bias.dim(last);
        if keys.n.is_multiple_of(MASK_ALIGNMENT) {
            return bias;
        }
        let padded = bias.shape().narrowed(last, Dim::plain(keys.n.next_multiple_of(MASK_ALIGNMENT))).contiguous();
        let padded = self.temp(padded, bias.dtype(), "attention bias");
        padded.alias(padded.shape().narrowed(last, keys))
    }

    /// Flash: keeps q, k, v, the output, log-sum-exp and the generator's state.
    fn flash(&self, q: &Tensor, k: &Tensor, v: &Tensor, dropout: f64) -> Tensor {
        let r = Recorder::begin(self, &[q, k, v]);
        let inputs = [k, q, v].map(|x| r.save(x));
        let (b, a, s, d) = (q.dim(0), q.dim(1), q.dim(2), q.dim(3));
        let outs = self.computed(false, &|| {
            let out = self.temp(q.shape().like(), q.dtype(), "attention output");
            let lse = self.temp(Shape::new(&[b, a, s]), Dtype::F32, "log-sum-exp");
            let splits = if dropout > 0.0 { 1 } else { flash_splits(self.device(), b.n * a.n, s.n, k.dim(2).n, d.n) };
            let parts = (splits > 1).then(|| {
                let n = Dim::plain(splits);
                let lse = self.temp(Shape::new(&[n, b, a, s]), Dtype::F32, "split log-sum-exp");
                let head = Dim::plain(rounded_head(d.n));
                (lse, self.temp(Shape::new(&[n, b, a, s, head]), Dtype::F32, "split attention output"))
            });
            let state = self.rules().flash_keeps_state.then(|| {
                if dropout > 0.0 {
                    let state = self.scratch(16, "generator state");
                    let offset = self.scratch(8, "generator offset");
                    let kept = self.scratch(16, "generator state");
                    drop(state);
                    (kept, offset)
                } else {
                    (self.scratch(16, "generator state"), self.scratch(8, "generator offset"))
                }
            });
            drop(parts);
            let (seed, offset) = state.unzip();
            [Some(out), Some(lse), seed, offset].into_iter().flatten().collect()
        });
        let mut outs = outs.into_iter();
        let Some(out) = outs.next() else { return q.clone() };
        let (lse, seed, offset) = (outs.next(), outs.next(), outs.next());
        let outputs = [lse.as_ref(), Some(&out), seed.as_ref(), offset.as_ref()].map(|x| x.map(|x| r.save(x)));
        let saved = Kept { bias: None, inputs, outputs };
        drop((lse, seed, offset));
        r.finish(out, move |t, g| {
            let kept = saved.unpack(t);
            let (Some(g), [_, Some(k), Some(q), Some(v), _, out, ..]) = (first(g), &kept) else {
                return Grads::default();
            };
            // The kernel wants the gradient and the output as [b, s, a, d].
            let rows = |x: &Tensor| {
                let seen = x.shape().transposed(1, 2);
                (!seen.is_contiguous()).then(|| t.temp(seen.contiguous(), x.dtype(), "contiguous copy"))
            };
            let copies = (rows(g), out.as_ref().and_then(rows));
            let grads = [q, k, v].map(|x| Some(t.temp(x.shape().like(), x.dtype(), "grad of attention")));
            let rows = Dim::plain(s.n.next_multiple_of(128));
            let head = Dim::plain(rounded_head(d.n));
            let softmax_d = t.temp(Shape::new(&[b, a, rows]), Dtype::F32, "flash softmax sum");
            let dq = t.temp(Shape::new(&[b, rows, a, head]), Dtype::F32, "flash query gradient sum");
            let expanded = (k.dim(1).n != a.n).then(|| {
                let shape = Shape::new(&[b, k.dim(2), a, d]);
                (t.temp(shape, k.dtype(), "expanded key gradient"), t.temp(shape, v.dtype(), "expanded value gradient"))
            });
            drop(expanded);
            drop(dq);
            drop(softmax_d);
            drop(copies);
            release(kept);
            grads_of(grads)
        })
    }

    /// Memory-efficient: as flash, log-sum-exp padded to 32 rows. The generator's state is on the device only where nothing
    /// is dropped (a pair of zeros).
    fn efficient(&self, q: &Tensor, k: &Tensor, v: &Tensor, bias: Option<&Tensor>, dropout: f64) -> Tensor {
        let mut inputs = vec![q, k, v];
        inputs.extend(bias);
        let r = Recorder::begin(self, &inputs);
        let inputs = [k, q, v].map(|x| r.save(x));
        let sb = bias.map(|bias| r.save(bias));
        let trained_bias = bias.filter(|bias| bias.requires_grad()).map(|bias| (*bias.shape(), bias.dtype()));
        let (b, a, s, d) = (q.dim(0), q.dim(1), q.dim(2), q.dim(3));
        let recorded = r.recorded();
        let outs = self.computed(false, &|| {
            let state = (dropout <= 0.0 && self.rules().efficient_keeps_state)
                .then(|| (self.scratch(8, "generator state"), self.scratch(8, "generator offset")));
            // Laid out [b, s, a, d], seen as [b, a, s, d].
            let out = self.temp(Shape::new(&[b, s, a, v.dim(3)]), q.dtype(), "attention output");
            let out = {
                let seen = out.alias(out.shape().transposed(1, 2));
                drop(out);
                seen
            };
            let padded = Dim::plain(s.n.next_multiple_of(32));
            // Only where a gradient is wanted (`should_compute_logsumexp`, attention.cpp).
            let lse = recorded.then(|| self.temp(Shape::new(&[b, a, padded]), Dtype::F32, "log-sum-exp"));
            // Output of heads too large for registers gathers in FP32 (`kNeedsOutputAccumulatorBuffer`).
            if q.dtype().is_half() && d.n.max(v.dim(3).n) > 128 {
                let gathers = self.temp(*out.shape(), Dtype::F32, "attention output in FP32");
                drop(gathers);
            }
            let (seed, offset) = state.unzip();
            [Some(out), lse, seed, offset].into_iter().flatten().collect()
        });
        let mut outs = outs.into_iter();
        let Some(out) = outs.next() else { return q.clone() };
        let lse = if recorded { outs.next() } else { None };
        let (seed, offset) = (outs.next(), outs.next());
        let outputs = [lse.as_ref(), Some(&out), offset.as_ref(), seed.as_ref()].map(|x| x.map(|x| r.save(x)));
        let saved = Kept { bias: sb, inputs, outputs };
        drop((lse, seed, offset));
        r.finish(out, move |t, g| {
            let kept = saved.unpack(t);
            let (Some(g), [_, Some(k), Some(q), Some(v), _, out, ..]) = (first(g), &kept) else {
                return Grads::default();
            };
            let grads = [q, k, v].map(|x| {
                let (b, n, s, d) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3));
                let grad = t.temp(Shape::new(&[b, s, n, d]), x.dtype(), "grad of attention");
                Some(grad.alias(grad.shape().transposed(1, 2)))
            });
            // Its rows are padded to a multiple of sixteen.
            let bias_grad = trained_bias.map(|(shape, dtype)| {
                let keys = shape.dims()[3];
                let padded = shape.narrowed(3, Dim::plain(keys.n.next_multiple_of(16))).contiguous();
                let grad = t.temp(padded, dtype, "grad of attention bias");
                if grad.dim(3).n == keys.n { grad } else { grad.alias(grad.shape().narrowed(3, keys)) }
            });
            let expanded = (k.dim(1).n != a.n).then(|| {
                let shape = Shape::new(&[b, k.dim(2), a, d]);
                (t.temp(shape, k.dtype(), "expanded key gradient"), t.temp(shape, v.dtype(), "expanded value gradient"))
            });
            let delta_shape = Shape::new(&[b, a, s]);
            let delta = if q.dtype().is_half() {
                t.temp(delta_shape, Dtype::F32, "attention row sums")
            } else {
                // Without a half-precision kernel for it: (grad × output).sum(-1), made contiguous.
                let product = t.elementwise(&[g, out.as_ref().unwrap_or(g)], Dtype::F32, "attention row products");
                let sum = t.temp(delta_shape, Dtype::F32, "attention row sums");
                let copy = t.temp(delta_shape, Dtype::F32, "attention row sums");
                drop(sum);
                drop(product);
                copy
            };
            let kernel = EfficientKernel::choose(t.device(), q.dtype(), d.n.max(v.dim(3).n), dropout > 0.0);
            let workspace = kernel.workspace(b.n * a.n, s.n, k.dim(2).n, [d.n, v.dim(3).n]);
            let workspace = t.scratch(workspace, "attention workspace");
            drop(delta);
            drop(workspace);
            drop(expanded);
            release(kept);
            let [q, k, v] = grads;
            grads_of([q, k, v, bias_grad])
        })
    }

    /// cuDNN: as flash; its backward's own workspace is what the frontend asks for, an FP32 query gradient and row sums.
    fn cudnn(&self, q: &Tensor, k: &Tensor, v: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let r = Recorder::begin(self, &[q, k, v]);
        let inputs = [k, q, v].map(|x| r.save(x));
        let sb = bias.map(|bias| r.save(bias));
        let (b, a, s, d) = (q.dim(0), q.dim(1), q.dim(2), q.dim(3));
        let recorded = r.recorded();
        let outs = self.computed(false, &|| {
            let (seed, offset) = (self.scratch(8, "generator state"), self.scratch(8, "generator offset"));
            let out = self.temp(q.shape().narrowed(3, v.dim(3)).like(), q.dtype(), "attention output");
            // As in `efficient`.
            let lse = recorded.then(|| self.temp(Shape::new(&[b, a, s]), Dtype::F32, "log-sum-exp"));
            [Some(out), lse, Some(seed), Some(offset)].into_iter().flatten().collect()
        });
        let mut outs = outs.into_iter();
        let Some(out) = outs.next() else { return q.clone() };
        let lse = if recorded { outs.next() } else { None };
        let (seed, offset) = (outs.next(), outs.next());
        let outputs = [lse.as_ref(), Some(&out), offset.as_ref(), seed.as_ref()].map(|x| x.map(|x| r.save(x)));
        let saved = Kept { bias: sb, inputs, outputs };
        drop((lse, seed, offset));
        r.finish(out, move |t, g| {
            let kept = saved.unpack(t);
            let (Some(_), [_, Some(k), Some(q), Some(v), ..]) = (first(g), &kept) else { return Grads::default() };
            let grads = [q, k, v].map(|x| Some(t.temp(x.shape().like(), x.dtype(), "grad of attention")));
            let per_row = Dim::plain(4 * d.n + 4);
            let workspace = t.temp(Shape::new(&[b, a, s, per_row]), Dtype::U8, "attention workspace");
            drop(workspace);
            release(kept);
            grads_of(grads)
        })
    }

    /// `softmax(x, -1, dtype=float32)`. The conversion of BF16 is a tensor of its own, that of FP16 is fused.
    #[must_use]
    pub fn softmax_f32(&self, x: &Tensor) -> Tensor {
        let x = &if x.dtype() == Dtype::Bf16 { self.to(x, Dtype::F32) } else { x.clone() };
        self.softmax_to(x, Dtype::F32)
    }

    /// `softmax(x, -1)` in the input's dtype. Autocast gives it `dtype=float32` (`fp32_set_opt_dtype`).
    #[must_use]
    pub fn softmax(&self, x: &Tensor) -> Tensor {
        if self.autocast().is_some() && x.dtype().is_half() {
            self.softmax_f32(x)
        } else {
            self.softmax_to(x, x.dtype())
        }
    }

    /// `softmax(x, -1, dtype=dtype)`.
    #[must_use]
    pub fn softmax_as(&self, x: &Tensor, dtype: Dtype) -> Tensor {
        let x = &self.to(x, dtype);
        self.softmax_to(x, dtype)
    }

    fn softmax_to(&self, x: &Tensor, dtype: Dtype) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = self.temp(x.shape().contiguous(), dtype, "softmax");
        let s = r.save(&out);
        let input = r.save_if(self.rules().softmax_keeps_input, x);
        let from = x.dtype();
        r.finish(out, move |t, g| {
            let (Some(g), Some(y)) = (first(g), s.unpack(t)) else { return Grads::default() };
            let _input = input.unpack(t);
            let grad = t.temp(*y.shape(), from, "grad of softmax");
            let product = t.elementwise(&[g, &y], g.dtype(), "grad of softmax, product");
            drop(product);
            grads_of([Some(grad)])
        })
    }
}

/// What fused attention keeps, in the order in which it is let go: a bias, keys, queries, values, log-sum-exp, output and
/// the generator's state (`release_variables` of their nodes, torch/csrc/autograd/generated/Functions.h, 2.15).
struct Kept {
    bias: Option<Saved>,
    inputs: [Saved; 3],
    outputs: [Option<Saved>; 4],
}

impl Kept {
    /// In the order of their names.
    fn unpack(&self, t: &Tape) -> [Option<Tensor>; 8] {
        let of = |s: &Option<Saved>| s.as_ref().and_then(|s| s.unpack(t));
        let bias = of(&self.bias);
        let [k, q, v] = self.inputs.each_ref().map(|s| s.unpack(t));
        let [lse, out, offset, seed] = self.outputs.each_ref().map(of);
        [bias, k, q, v, lse, out, offset, seed]
    }
}

/// Lets go what a backward has unpacked: C++'s local names, the last one first.
fn release(mut kept: [Option<Tensor>; 8]) {
    kept.reverse();
    drop(kept);
}

/// What the rows of a mask are padded to a multiple of (`mem_eff_alignment`, ATen/native/transformers/attention.cpp).
const MASK_ALIGNMENT: u64 = 8;

/// Flash's head size in its scratch: a multiple of 32, or 256 (`set_params`, flash_api.cpp).
const fn rounded_head(d: u64) -> u64 {
    if d <= 192 { d.next_multiple_of(32) } else { 256 }
}

/// How many pieces flash cuts the keys into when queries alone do not fill the card (`num_splits_heuristic`).
pub(super) fn flash_splits(device: &Device, batch_heads: u64, queries: u64, keys: u64, head: u64) -> u64 {
    let block_n = match head {
        0..=64 => 256,
        65..=128 => 128,
        _ => 64,
    };
    let blocks_n = keys.div_ceil(block_n);
    let tiles = batch_heads.saturating_mul(queries.div_ceil(64));
    let slots = device.multiprocessors * 2;
    if 10 * tiles >= 8 * slots {
        return 1;
    }
    let most = slots.min(blocks_n).min(128);
    let eligible = |n: u64| n == 1 || blocks_n.div_ceil(n) != blocks_n.div_ceil(n - 1);
    #[expect(clippy::cast_precision_loss, reason = "tiles and slots are small here; the rule itself is in floats")]
    let efficiency = |n: u64| {
        let waves = (tiles * n) as f32 / slots as f32;
        waves / waves.ceil()
    };
    let best = (1..=most).filter(|&n| eligible(n)).map(efficiency).fold(0.0f32, f32::max);
    (1..=most).find(|&n| eligible(n) && efficiency(n) >= 0.85 * best).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: Device = Device { sm: 80, multiprocessors: 108, workspace_kept: false };

    /// Recorded with PyTorch 2.15: two sequences of 384 tokens, four heads of 64 on 108 multiprocessors: two splits.
    #[test]
    fn flash_splits_keys_when_queries_do_not_fill_the_card() {
        assert_eq!(flash_splits(&A100, 8, 384, 384, 64), 2);
        assert_eq!(flash_splits(&A100, 128, 2048, 2048, 128), 1);
    }
}

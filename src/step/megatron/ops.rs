//! The operations of Megatron-LM's layers outside of attention and experts: what each keeps for backward, and what it
//! allocates. Read at Megatron-LM d98e8a64 (`tensor_parallel/layers.py`, `fusions/`) and Transformer Engine d0067d0d
//! (`pytorch/module/{layernorm_linear,linear}.py`), both of August 2026.
//!
//! Activations are matrices of tokens × width. Gradients of norms and biases are vectors, which come and go unseen.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::checkpoint::Saved;
use crate::step::megatron::context::Cx;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Who multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// Transformer Engine, over a workspace of its own.
    Te,
    /// Megatron-LM's own layers: PyTorch's products; what a sequence is gathered into is a buffer that all share.
    Own,
}

/// A linear layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    /// Whether a norm over the input comes first, in the same operation.
    pub(super) norm: bool,
    /// Whether tokens are gathered from the tensor-parallel ranks first (sequence parallelism).
    pub(super) gather: bool,
    /// Whether the result is summed over them and each keeps its tokens (sequence parallelism).
    pub(super) scatter: bool,
    pub(super) engine: Engine,
}

/// cuBLAS's workspace in Transformer Engine: 32 MiB and 1 KiB from Hopper on (`get_cublas_workspace_size_bytes`).
pub(super) fn te_workspace(sm: u32) -> u64 {
    if sm >= 90 { 32 * 1024 * 1024 + 1024 } else { 4 * 1024 * 1024 }
}

/// The name of what weights' gradients are said to be where they were added to the main gradients already.
const DUMMY: &str = "dummy gradient of weight";

pub(super) fn temp(t: &Tape, rows: Dim, width: u64, dtype: Dtype, op: &'static str) -> Tensor {
    t.temp(Shape::new(&[rows, Dim::plain(width)]), dtype, op)
}

impl Cx {
    /// A product's result.
    pub(super) fn product(&self, t: &Tape, engine: Engine, shape: Shape, op: &'static str) -> Tensor {
        if engine == Engine::Te {
            let bytes = Dim::plain(te_workspace(t.device().sm));
            drop(self.keep(t, "Transformer Engine workspace", Shape::new(&[bytes]), Dtype::U8));
            return t.temp(shape, Dtype::Bf16, op);
        }
        let out = t.temp(shape, Dtype::Bf16, op);
        drop(t.blas_workspace());
        out
    }

    /// A weight's gradient: added to the main gradient by the product itself, or a tensor.
    pub(super) fn weight_gradient(&self, t: &Tape, engine: Engine, shape: Shape) -> Option<Tensor> {
        if self.options.gradient_accumulation_fusion {
            // One for each sizes, made at first use (`get_dummy_wgrad`).
            drop(self.keep(t, DUMMY, shape, Dtype::Bf16));
            return None;
        }
        Some(self.product(t, engine, shape, "grad of weight"))
    }

    fn gathered(&self, t: &Tape, engine: Engine, rows: Dim, width: u64) -> Tensor {
        let shape = Shape::new(&[rows, Dim::plain(width)]);
        match engine {
            Engine::Te => t.temp(shape, Dtype::Bf16, "gathered tokens"),
            // `get_global_memory_buffer`.
            Engine::Own => self.keep(t, "global memory buffer", shape, Dtype::Bf16),
        }
    }

    /// A linear layer with `weight` [out, in] of this rank.
    pub(super) fn linear(&self, t: &Tape, x: &Tensor, weight: &Tensor, how: Linear) -> Tensor {
        let r = Recorder::begin(t, &[x, weight]);
        let (kept, width) = (x.dim(0), x.dim(1).n);
        let (out_width, by) = (weight.dim(0).n, self.tensor.max(1));
        let rows = if how.gather { Dim::plain(kept.n.saturating_mul(by)) } else { kept };
        let mut normed = how.norm.then(|| self.normed(t, &r, x));
        let inner = normed.as_mut().map_or_else(|| x.clone(), |(out, _)| out.clone());
        let mut saved_inner = Some(r.save(&inner));
        let saved_norm = normed.map(|(_, saved)| saved);
        let total = how.gather.then(|| self.gathered(t, how.engine, rows, width));
        let mut out = self.product(t, how.engine, Shape::new(&[rows, Dim::plain(out_width)]), "matmul");
        drop((total, inner));
        if how.scatter {
            out = temp(t, Dim::plain(rows.n / by), out_width, Dtype::Bf16, "scattered tokens");
        }
        let cx = self.clone();
        let shape = *weight.shape();
        r.finish(out, move |t, g| {
            if g.first().is_none_or(Option::is_none) {
                return Grads::default();
            }
            let whole = how.scatter.then(|| temp(t, rows, out_width, Dtype::Bf16, "gathered gradients"));
            // What is kept of it is let go as soon as the weight's gradient is there.
            let inner = saved_inner.take().and_then(|saved| saved.unpack(t));
            let total = how.gather.then(|| cx.gathered(t, how.engine, rows, width));
            let of_input = cx.product(t, how.engine, Shape::new(&[rows, Dim::plain(width)]), "grad of matmul input");
            let scattered = how.gather.then(|| temp(t, kept, width, Dtype::Bf16, "scattered gradients"));
            let of_weight = cx.weight_gradient(t, how.engine, shape);
            drop((total, whole, inner));
            let mut grad = scattered.clone().unwrap_or_else(|| of_input.clone());
            if let Some(saved) = &saved_norm {
                grad = cx.norm_backward(t, saved);
            }
            drop((of_input, scattered));
            grads_of([Some(grad), of_weight])
        })
    }

    /// The result of a norm over `x`, and what it keeps: its input and a statistic or two for each token.
    fn normed(&self, t: &Tape, r: &Recorder, x: &Tensor) -> (Tensor, [Saved; 3]) {
        let out = temp(t, x.dim(0), x.dim(1).n, Dtype::Bf16, "norm");
        let statistic = |there: bool| {
            let shape = Shape::new(&[x.dim(0)]);
            if there { r.save(&t.temp(shape, Dtype::F32, "norm statistics")) } else { Saved::Nothing }
        };
        (out, [r.save(x), statistic(true), statistic(!self.gpt.rms)])
    }

    fn norm_backward(&self, t: &Tape, [x, scale, mean]: &[Saved; 3]) -> Tensor {
        let held = (x.unpack(t), scale.unpack(t), mean.unpack(t));
        let shape = held.0.as_ref().map_or_else(|| Shape::new(&[]), |x| x.shape().contiguous());
        let grad = t.temp(shape, Dtype::Bf16, "grad of norm");
        drop(held);
        grad
    }

    /// A norm by itself.
    pub(super) fn norm(&self, t: &Tape, x: &Tensor) -> Tensor {
        let r = Recorder::begin(t, &[x]);
        let (out, saved) = self.normed(t, &r, x);
        let cx = self.clone();
        r.finish(out, move |t, g| {
            let grad = g.first().and_then(Option::as_ref).map(|_| cx.norm_backward(t, &saved));
            grads_of([grad])
        })
    }

    /// The activation of an MLP, with its bias, as one function that keeps its input: GELU, or SwiGLU over both halves
    /// (`bias_gelu_impl`, `bias_swiglu_impl`).
    pub(super) fn activation(&self, t: &Tape, y: &Tensor, weighted: bool) -> Tensor {
        let r = Recorder::begin(t, &[y]);
        let saved = r.save(y);
        let width = y.dim(1).n / if self.gpt.gated { 2 } else { 1 };
        let weights = || t.temp(Shape::new(&[y.dim(0)]), Dtype::F32, "expert weights");
        let saved_weights = if weighted { r.save(&weights()) } else { Saved::Nothing };
        let out = temp(t, y.dim(0), width, Dtype::Bf16, "activation");
        r.finish(out, move |t, g| {
            let held = (saved.unpack(t), saved_weights.unpack(t));
            let (Some(_), Some(y)) = (g.first().and_then(Option::as_ref), &held.0) else { return Grads::default() };
            let grad = t.temp(y.shape().contiguous(), Dtype::Bf16, "grad of activation");
            drop(held);
            grads_of([Some(grad)])
        })
    }

    /// Dropout; keeps its mask of one byte an element.
    pub(super) fn dropout(&self, t: &Tape, x: &Tensor, p: f64) -> Tensor {
        if p <= 0.0 {
            return x.clone();
        }
        let r = Recorder::begin(t, &[x]);
        let out = t.temp(x.shape().contiguous(), x.dtype(), "dropout");
        let mask = t.temp(x.shape().contiguous(), Dtype::Bool, "dropout mask");
        let saved = r.save(&mask);
        drop(mask);
        r.finish(out, move |t, g| {
            let held = saved.unpack(t);
            let grad = g.first().and_then(Option::as_ref);
            let grad = grad.map(|g| t.temp(g.shape().contiguous(), g.dtype(), "grad of dropout"));
            drop(held);
            grads_of([grad])
        })
    }

    /// `x`, with a bias or without, dropped out and added to the residual (`fused_bias_dropout.py`).
    pub(super) fn add_dropped(&self, t: &Tape, x: Tensor, residual: &Tensor, bias: bool) -> Tensor {
        let p = self.options.hidden_dropout;
        if !self.options.bias_dropout_fusion {
            let biased = if bias { pointwise(t, &x, "add") } else { x.clone() };
            drop(x);
            let dropped = self.dropout(t, &biased, p);
            drop(biased);
            return sum(t, &dropped, residual, None);
        }
        let mask = (p > 0.0).then(|| t.temp(x.shape().contiguous(), Dtype::Bool, "dropout mask"));
        sum(t, &x, residual, mask)
    }

    /// Who multiplies in the layers.
    pub(super) fn own_engine(&self) -> Engine {
        if self.options.transformer_engine { Engine::Te } else { Engine::Own }
    }
}

/// An operation over `x` that keeps nothing, whose gradient is the gradient that comes.
pub(super) fn pointwise(t: &Tape, x: &Tensor, op: &'static str) -> Tensor {
    let r = Recorder::begin(t, &[x]);
    let out = t.temp(x.shape().contiguous(), x.dtype(), op);
    r.finish(out, |_, g| grads_of([g.first().cloned().flatten()]))
}

/// As [`pointwise`], the gradient laid out anew.
pub(super) fn copied(t: &Tape, x: &Tensor, shape: Shape, op: &'static str) -> Tensor {
    let r = Recorder::begin(t, &[x]);
    let before = x.shape().contiguous();
    let out = t.temp(shape, x.dtype(), op);
    r.finish(out, move |t, g| {
        let grad = g.first().and_then(Option::as_ref).map(|g| t.temp(before, g.dtype(), "grad of copy"));
        grads_of([grad])
    })
}

/// `residual + x`; with a mask, `x` is dropped out by it in the same operation.
fn sum(t: &Tape, x: &Tensor, residual: &Tensor, mask: Option<Tensor>) -> Tensor {
    let r = Recorder::begin(t, &[x, residual]);
    let saved = mask.as_ref().map(|mask| r.save(mask));
    drop(mask);
    let out = t.temp(x.shape().contiguous(), x.dtype(), "residual");
    r.finish(out, move |t, g| {
        let Some(g) = g.first().and_then(Option::as_ref) else { return Grads::default() };
        let of_x = match &saved {
            None => g.clone(),
            Some(mask) => {
                let held = mask.unpack(t);
                let grad = t.temp(g.shape().contiguous(), g.dtype(), "grad of dropout");
                drop(held);
                grad
            }
        };
        let grads: Grads = grads_of([Some(of_x), Some(g.clone())]);
        grads
    })
}

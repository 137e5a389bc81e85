//! T5's attention: scores with a bias of relative positions.

use crate::model::family::common::{AttentionPlan, Run};
use crate::model::family::t5::T5;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Projections, the norm before them, and in a stack's first layer the buckets of relative positions.
#[derive(Debug)]
pub(super) struct Attention {
    pub(super) projections: [Tensor; 4],
    pub(super) relative: Option<Tensor>,
    pub(super) norm: Tensor,
}

/// What attention runs over.
pub(super) struct Over<'a> {
    /// The encoder's states, for cross-attention; else the layer's own.
    pub(super) encoder: Option<&'a Tensor>,
    /// The bias that an earlier layer made.
    pub(super) bias: Option<Tensor>,
    /// The causal mask of eager attention in a decoder.
    pub(super) mask: Option<&'a Tensor>,
    /// Whether the stack is a decoder.
    pub(super) decoder: bool,
}

/// What attention gives: its output, the bias for the layers that follow, and the probabilities where they are a tensor.
pub(super) struct Attended {
    pub(super) out: Tensor,
    pub(super) bias: Tensor,
    pub(super) probabilities: Option<Tensor>,
}

impl Attention {
    pub(super) fn run(&self, run: &Run, p: &T5, x: &Tensor, over: Over<'_>) -> Attended {
        let t = &run.tape;
        let heads = |x: &Tensor, at: usize| {
            let projected = t.linear(x, &self.projections[at], None);
            let split = t.reshape(&projected, &[x.dim(0), x.dim(1), p.a(), p.d()]);
            t.transpose(&split, 1, 2)
        };
        let q = heads(x, 0);
        let states = over.encoder.unwrap_or(x);
        let mut k = heads(states, 1);
        let mut v = heads(states, 2);
        if let Some(cache) = &run.cache {
            [k, v] = cache.update(t, [&k, &v]);
        }
        let bias = over.bias.unwrap_or_else(|| self.bias(run, p, &q, &k, over.decoder));
        let (mut out, probabilities) = match run.attention {
            AttentionPlan::Sdpa(_) => {
                let causal = over.decoder && over.encoder.is_none();
                let added = biased_mask(t, &bias, causal);
                let out = t.sdpa_biased(&q, &k, &v, &added, p.dropout);
                (t.contiguous(&t.transpose(&out, 1, 2)), None)
            }
            // The package is refused.
            AttentionPlan::Eager | AttentionPlan::Package => {
                let (out, weights) = eager(t, (&q, &k, &v), &bias, over.mask, p.dropout);
                (out, Some(weights))
            }
        };
        out = t.reshape(&out, &[x.dim(0), x.dim(1), p.q()]);
        out = t.linear(&out, &self.projections[3], None);
        drop((q, k, v));
        Attended { out, bias, probabilities }
    }

    /// The bias of a stack's first layer: learned by relative position, or for cross-attention zeros. Those need a
    /// gradient under checkpointing.
    fn bias(&self, run: &Run, p: &T5, q: &Tensor, k: &Tensor, decoder: bool) -> Tensor {
        let t = &run.tape;
        let (rows, keys) = (q.dim(2), k.dim(2));
        let Some(table) = &self.relative else {
            let shape = Shape::new(&[Dim::plain(1), p.a(), rows, keys]);
            return if run.checkpointed() {
                t.leaf_without_parameter(shape, q.dtype(), "cross-attention bias")
            } else {
                t.temp(shape, q.dtype(), "cross-attention bias")
            };
        };
        let context = {
            let range = t.temp(Shape::new(&[rows]), Dtype::I64, "positions");
            let shifted = t.temp(Shape::new(&[rows]), Dtype::I64, "positions");
            drop(range);
            shifted
        };
        let memory = t.temp(Shape::new(&[keys]), Dtype::I64, "positions");
        let square = Shape::new(&[rows, keys]);
        let relative = t.temp(square, Dtype::I64, "relative positions");
        let buckets = buckets(t, square, !decoder);
        let values = t.embedding(&buckets, table);
        drop(buckets);
        drop((context, memory, relative));
        // [s, s, a] seen as [1, a, s, s].
        let seen = t.transpose(&t.transpose(&values, 0, 2), 1, 2);
        t.unsqueeze(&seen, 0)
    }
}

/// `_relative_position_bucket`, outside the graph: buckets by distance, logarithmic past half of them.
fn buckets(t: &Tape, square: Shape, both_ways: bool) -> Tensor {
    let ids = || t.temp(square, Dtype::I64, "buckets");
    let floats = || t.temp(square, Dtype::F32, "buckets");
    let bits = || t.temp(square, Dtype::Bool, "buckets");
    // One operation after another, each freeing what the last one made.
    let chain = |first: Tensor, then: &[Dtype]| then.iter().fold(first, |_before, &d| t.temp(square, d, "buckets"));
    let (later, distance) = if both_ways {
        let later = chain(bits(), &[Dtype::I64, Dtype::I64, Dtype::I64]);
        (Some(later), ids())
    } else {
        (None, chain(ids(), &[Dtype::I64, Dtype::I64]))
    };
    let small = bits();
    let large = {
        let large = chain(floats(), &[Dtype::F32, Dtype::F32, Dtype::F32, Dtype::F32, Dtype::I64, Dtype::I64]);
        let most = ids();
        let capped = ids();
        drop(most);
        drop(large);
        capped
    };
    let chosen = ids();
    let out = match later {
        // Added in place.
        Some(later) => {
            drop(chosen);
            later
        }
        None => chain(chosen, &[Dtype::I64]),
    };
    drop(distance);
    drop(small);
    drop(large);
    out
}

/// `create_position_bias_mask`: the bias made contiguous, with what may not be seen masked in a decoder.
fn biased_mask(t: &Tape, bias: &Tensor, causal: bool) -> Tensor {
    if !causal {
        return t.contiguous(bias);
    }
    let (rows, keys) = (bias.dim(2), bias.dim(3));
    let seen = {
        let queries = t.temp(Shape::new(&[rows]), Dtype::I64, "mask positions");
        let others = t.temp(Shape::new(&[keys]), Dtype::I64, "mask positions");
        let one = Dim::plain(1);
        let seen = t.temp(Shape::new(&[one, one, rows, keys]), Dtype::Bool, "mask");
        drop(queries);
        drop(others);
        seen
    };
    let masked = t.where_else(&seen, bias);
    let out = t.contiguous(&masked);
    drop(seen);
    drop(masked);
    out
}

/// Scores and probabilities as tensors. The softmax has whatever dtype autocast gives it.
fn eager(
    t: &Tape,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    bias: &Tensor,
    mask: Option<&Tensor>,
    dropout: f64,
) -> (Tensor, Tensor) {
    let mut weights = {
        let raw = t.matmul4(q, &t.transpose(k, 2, 3));
        t.mul_scalar(&raw)
    };
    weights = t.add(&weights, bias);
    if let Some(mask) = mask {
        weights = t.add(&weights, mask);
    }
    weights = t.softmax(&weights);
    weights = t.dropout(&weights, dropout);
    let out = t.matmul4(&weights, v);
    (t.contiguous(&t.transpose(&out, 1, 2)), weights)
}

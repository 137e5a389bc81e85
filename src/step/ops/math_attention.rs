//! The math backend of `scaled_dot_product_attention`: products and softmax as operations of their own.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Tape {
    /// Causal attention of q [b, a, s, d] over k, v [b, g, s, d] (`_scaled_dot_product_attention_math`,
    /// ATen/native/transformers/attention.cpp, read at 2.15): half precision is computed in FP32, scores and
    /// probabilities are tensors of b·a·s².
    pub(super) fn math(&self, q: &Tensor, k: &Tensor, v: &Tensor, dropout: f64) -> Tensor {
        self.with_autocast_off(|| {
            let dtype = q.dtype();
            let precise = if dtype.is_half() { Dtype::F32 } else { dtype };
            let query_acc = self.to(q, precise);
            let key_acc = self.to(k, precise);
            let value_acc = self.to(v, precise);
            let query = self.mul_scalar(&query_acc);
            let mask = self.causal_bias(q.dim(2), precise);
            let key = self.repeat_heads(&key_acc, q.dim(1));
            let value = self.repeat_heads(&value_acc, q.dim(1));
            let mut weights = {
                let scaled = self.mul_scalar(&key);
                self.matmul4(&query, &self.transpose(&scaled, 2, 3))
            };
            weights = self.safe_softmax(&weights);
            weights = self.dropout(&weights, dropout);
            // The probabilities are returned too, in the query's dtype, whoever asks for them.
            let probabilities = self.to(&weights, dtype);
            let out = self.matmul4(&weights, &value);
            let out = self.to(&out, dtype);
            drop((key, query, mask, probabilities));
            out
        })
    }

    /// `ones(s, s).tril()` as what is added to the scores, outside the graph.
    fn causal_bias(&self, s: Dim, dtype: Dtype) -> Tensor {
        let square = Shape::new(&[s, s]);
        let ones = self.temp(square, Dtype::Bool, "causal mask");
        let lower = self.temp(square, Dtype::Bool, "causal mask");
        drop(ones);
        let zero = self.scalar(dtype, "causal mask");
        let least = self.scalar(dtype, "causal mask");
        let bias = self.temp(square, dtype, "causal mask");
        drop(least);
        drop(zero);
        drop(lower);
        bias
    }

    /// `repeat_interleave` over the heads; nothing when there is one for each query head.
    fn repeat_heads(&self, x: &Tensor, heads: Dim) -> Tensor {
        let groups = heads.n / x.dim(1).n.max(1);
        if groups == 1 {
            return x.clone();
        }
        let (b, s, d) = (x.dim(0), x.dim(2), x.dim(3));
        let five = self.expand(&self.unsqueeze(x, 2), 2, Dim::plain(groups));
        let copy = self.contiguous(&five);
        self.reshape(&copy, &[b, heads, s, d])
    }

    /// `_safe_softmax(x, -1)`: rows of −∞ alone become zeros.
    fn safe_softmax(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let shape = x.shape().contiguous();
        let out = self.temp(shape, x.dtype(), "softmax");
        let masked = self.temp(shape, Dtype::Bool, "masked scores");
        let rows = self.temp(shape.narrowed(shape.rank() - 1, Dim::plain(1)).contiguous(), Dtype::Bool, "masked rows");
        let zero = self.scalar(x.dtype(), "zero");
        drop(zero);
        drop(rows);
        drop(masked);
        let s = r.save(&out);
        r.finish(out, move |t, g| {
            let (Some(g), Some(y)) = (first(g), s.unpack(t)) else { return Grads::default() };
            let grad = t.temp(*y.shape(), y.dtype(), "grad of softmax");
            let product = t.elementwise(&[g, &y], g.dtype(), "grad of softmax, product");
            drop(product);
            grads_of([Some(grad)])
        })
    }
}

//! What runs beside a linear layer with a low-rank pair (peft 0.21: `lora/layer.py`, `lora/bnb.py`, `lora/dora.py`).

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::matmul::WeightLayout;
use crate::step::ops::pointwise::first;
use crate::step::ops::quantized::Code;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Adapter, Dtype, Tensor};

impl Tape {
    /// `result + lora_B(lora_A(dropout(x))) × scaling` where the weight has a pair, in the result's dtype.
    ///
    /// Over plain weights the input is cast to the pair's dtype first and the sum is cast back; over quantised ones only
    /// without autocast, and what is added is cast back. A 4-bit layer's result is cloned.
    pub(crate) fn adapted(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        layout: WeightLayout,
        result: Tensor,
    ) -> Tensor {
        let Some(leaf) = weight.leaf().filter(|_| self.adapters_run()) else { return result };
        let Some(pair) = leaf.adapter.borrow().clone() else { return result };
        self.with_pair(x, (weight, bias, layout), &pair, result)
    }

    #[inline(never)]
    fn with_pair(
        &self,
        x: &Tensor,
        (weight, bias, layout): (&Tensor, Option<&Tensor>, WeightLayout),
        pair: &Adapter,
        mut result: Tensor,
    ) -> Tensor {
        let quantized = weight.leaf().and_then(|leaf| leaf.quantized.as_ref());
        if quantized.is_some_and(|q| q.code != Code::Int8) {
            result = self.cloned(&result);
        }
        let dtype = result.dtype();
        let converts = quantized.is_none() || self.autocast().is_none();
        let x = if converts { self.to(x, pair.a.dtype()) } else { x.clone() };
        if let Some(magnitude) = &pair.magnitude {
            let x = self.dropout(&x, pair.dropout);
            let added = self.decomposed(&x, (weight, bias, layout), pair, magnitude, &result);
            let sum = self.add(&result, &added);
            drop(added);
            drop(x);
            result = sum;
        } else {
            let mut scaled = {
                let out = {
                    let low = {
                        let kept = self.dropout(&x, pair.dropout);
                        self.linear_plain(&kept, &pair.a)
                    };
                    self.linear_plain(&low, &pair.b)
                };
                self.mul_scalar(&out)
            };
            if quantized.is_some() && converts {
                scaled = self.to(&scaled, dtype);
            }
            let sum = self.add(&result, &scaled);
            drop(scaled);
            result = sum;
        }
        let out = if converts { self.to(&result, dtype) } else { result.clone() };
        drop(result);
        drop(x);
        out
    }

    /// `x.clone()`.
    fn cloned(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = self.temp(x.shape().like(), x.dtype(), "clone");
        r.finish(out, |_, g| grads_of([first(g).cloned()]))
    }

    /// DoRA's part of the result: `(m ÷ ‖W + s·BA‖ − 1) × base + m ÷ ‖W + s·BA‖ × B(A(x)) × s`. The norm is outside the
    /// graph; BA is the pair's product with the identity matrix, in it.
    fn decomposed(
        &self,
        x: &Tensor,
        (weight, bias, layout): (&Tensor, Option<&Tensor>, WeightLayout),
        pair: &Adapter,
        magnitude: &Tensor,
        result: &Tensor,
    ) -> Tensor {
        let product = {
            let full = {
                let size = pair.a.dim(1);
                let identity = self.temp(Shape::new(&[size, size]), pair.a.dtype(), "identity");
                let low = self.linear_plain(&identity, &pair.a);
                let full = self.linear_plain(&low, &pair.b);
                drop(low);
                drop(identity);
                self.transpose(&full, 0, 1)
            };
            self.to(&full, x.dtype())
        };
        let dense = {
            let dense = self.dense_weight(weight);
            let dense = self.to(&dense, x.dtype());
            // A weight laid out [in, out] is transposed; a quantised one is [out, in] already.
            let turned = layout == WeightLayout::InOut && weight.leaf().is_some_and(|leaf| leaf.quantized.is_none());
            if turned { dense.alias(dense.shape().transposed(0, 1)) } else { dense }
        };
        let [norm, sum] = self.weight_norm(&dense, &product);
        drop(sum);
        let scale = self.quotient(magnitude, &norm);
        let one = Dim::plain(1);
        let scale = self.reshape(&scale, &[one, pair.b.dim(0)]);
        let low_rank = {
            let low = self.linear_plain(x, &pair.a);
            self.linear_plain(&low, &pair.b)
        };
        let base = match (pair.dropout > 0.0, bias) {
            (true, _) => self.linear_plain(x, &dense),
            (false, Some(bias)) => {
                // A quantised layer has cast its bias to what it computes in.
                let quantized = weight.leaf().and_then(|leaf| leaf.quantized.as_ref());
                let cast = quantized.and_then(|q| q.bias.borrow().clone());
                self.sub_constant(result, cast.as_ref().unwrap_or(bias))
            }
            (false, None) => result.clone(),
        };
        let out = {
            let rest = {
                let less = self.add_scalar(&scale);
                self.mul(&less, &base)
            };
            let added = {
                let scaled = self.mul(&scale, &low_rank);
                self.mul_scalar(&scaled)
            };
            self.add(&rest, &added)
        };
        drop(base);
        drop((product, dense, norm, scale, low_rank));
        out
    }

    /// `‖weight + s × product‖` of each row, outside the graph, and the sum.
    pub(crate) fn weight_norm(&self, weight: &Tensor, product: &Tensor) -> [Tensor; 2] {
        self.with_grad(false, || {
            let sum = {
                let scaled = self.elementwise(&[product], product.dtype(), "scaled pair");
                self.elementwise(&[weight, &scaled], weight.dtype().promoted(scaled.dtype()), "weight with its pair")
            };
            // On autocast's FP32 list by its output's dtype; cast back to the sum's.
            let wide = self.autocast().filter(|_| sum.dtype().is_half()).map_or(sum.dtype(), |_| Dtype::F32);
            let rows = Shape::new(&[sum.dim(0), Dim::plain(1)]);
            let mut norm = self.reduced_as(sum.shape(), &rows, wide, "weight norm");
            if wide != sum.dtype() {
                norm = self.cast_raw(&norm, sum.dtype());
            }
            [norm.alias(Shape::new(&[sum.dim(0)])), sum]
        })
    }

    /// `a ÷ b` for a `b` without a gradient.
    fn quotient(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[a]);
        let s = r.save(b);
        let line = Shape::new(&[a.dim(0)]);
        let out = self.temp(line, a.dtype().promoted(b.dtype()), "quotient");
        r.finish(out, move |t, g| {
            let (Some(g), Some(_)) = (first(g), s.unpack(t)) else { return Grads::default() };
            grads_of([Some(t.elementwise(&[g], g.dtype(), "grad of quotient"))])
        })
    }

    /// `a − b` for a `b` without a gradient.
    fn sub_constant(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[a]);
        let out = self.elementwise(&[a, b], a.dtype().promoted(b.dtype()), "difference");
        r.finish(out, |_, g| -> Grads { grads_of([first(g).cloned()]) })
    }
}

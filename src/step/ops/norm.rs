//! Normalisations.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::parallel;
use crate::step::shape::Dim;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Tape {
    /// `F.layer_norm` with weight and bias: saves the input, mean and reciprocal deviation (FP32 per row). On
    /// autocast's FP32 list.
    #[must_use]
    pub fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
        parallel::module(self, x, &[Some(weight), Some(bias)], &|x| self.normalised(x, weight, bias))
    }

    fn normalised(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
        let (weight, bias) = (&self.autocast_f32(weight), &self.autocast_f32(bias));
        let x = &self.autocast_f32(x);
        let r = Recorder::begin(self, &[x, weight, bias]);
        let (sb, sx, sw) = (r.save(bias), r.save(x), r.save(weight));
        let last = x.shape().rank() - 1;
        let stats = x.shape().narrowed(last, Dim::plain(1)).contiguous();
        let dense = self.contiguous_raw(x);
        let out = self.temp(x.shape().contiguous(), x.dtype(), "layer norm");
        let mean = self.temp(stats, Dtype::F32, "mean");
        let rstd = self.temp(stats, Dtype::F32, "reciprocal deviation");
        let (sm, sr) = (r.save(&mean), r.save(&rstd));
        drop((dense, mean, rstd));
        let (wshape, wdtype) = (*weight.shape(), weight.dtype());
        let (needs_x, needs_w, needs_b) = (x.requires_grad(), weight.requires_grad(), bias.requires_grad());
        r.finish(out, move |t, g| {
            let bias = sb.unpack(t);
            let (Some(g), Some(x)) = (first(g), sx.unpack(t)) else { return Grads::default() };
            let weight = sw.unpack(t);
            let stats = (sm.unpack(t), sr.unpack(t));
            let dense = [g, &x].map(|x| t.contiguous_raw(x));
            let dx = needs_x.then(|| t.temp(x.shape().contiguous(), x.dtype(), "grad of layer norm"));
            let dw = needs_w.then(|| t.temp(wshape, wdtype, "grad of layer norm weight"));
            let db = needs_b.then(|| t.temp(wshape, wdtype, "grad of layer norm bias"));
            drop((dense, stats, weight));
            drop((x, bias));
            grads_of([dx, dw, db])
        })
    }
}

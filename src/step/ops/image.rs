//! What convolutional networks run between convolutions: batch norm, pooling, and operations in place.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::Window;
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Tape {
    /// `F.batch_norm` in training over x [b, c, h, w]: saves the input, and mean and reciprocal deviation of each channel
    /// in FP32. Running figures are updated in place. cuDNN's reserve is not counted.
    #[must_use]
    pub fn batch_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x, weight, bias]);
        let sx = r.save(x);
        let out = self.temp(x.shape().like(), x.dtype(), "batch norm");
        let channels = Shape::new(&[x.dim(1)]);
        let mean = self.temp(channels, Dtype::F32, "mean");
        let rstd = self.temp(channels, Dtype::F32, "reciprocal deviation");
        let stats = [r.save(&mean), r.save(&rstd)];
        drop((mean, rstd));
        let (wshape, wdtype) = (*weight.shape(), weight.dtype());
        r.finish(out, move |t, g| {
            let (Some(_), Some(x)) = (first(g), sx.unpack(t)) else { return Grads::default() };
            let stats = stats.each_ref().map(|s| s.unpack(t));
            let dx = t.temp(x.shape().like(), x.dtype(), "grad of batch norm");
            let dw = t.temp(wshape, wdtype, "grad of batch norm weight");
            let db = t.temp(wshape, wdtype, "grad of batch norm bias");
            drop(stats);
            grads_of([Some(dx), Some(dw), Some(db)])
        })
    }

    /// `relu_(x)`: in place; the result is saved.
    #[must_use]
    pub fn relu_in_place(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = x.alias(*x.shape());
        let s = r.save(&out);
        r.finish(out, move |t, g| {
            let (Some(g), Some(y)) = (first(g), s.unpack(t)) else { return Grads::default() };
            grads_of([Some(t.elementwise(&[g, &y], g.dtype(), "grad of activation"))])
        })
    }

    /// `F.max_pool2d`: saves the input and where the largest were.
    #[must_use]
    pub fn max_pool(&self, x: &Tensor, window: Window) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let sx = r.save(x);
        let along = |i: usize| Dim::plain(window.count(x.dim(i).n));
        let sizes = Shape::new(&[x.dim(0), x.dim(1), along(2), along(3)]);
        let out = self.temp(sizes, x.dtype(), "pooling");
        let places = self.temp(sizes, Dtype::I64, "places of the largest");
        let sp = r.save(&places);
        drop(places);
        r.finish(out, move |t, g| {
            let (Some(g), Some(x)) = (first(g), sx.unpack(t)) else { return Grads::default() };
            let places = sp.unpack(t);
            let grad = t.temp(x.shape().contiguous(), g.dtype(), "grad of pooling");
            drop(places);
            grads_of([Some(grad)])
        })
    }

    /// `F.adaptive_avg_pool2d(x, 1)`: the mean of each channel.
    #[must_use]
    pub fn mean_of_channels(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let (whole, one) = (*x.shape(), Dim::plain(1));
        let out = self.temp(whole.narrowed(2, one).narrowed(3, one).contiguous(), x.dtype(), "mean");
        r.finish(out, move |t, g| {
            grads_of([first(g).map(|g| {
                let dims = whole.dims();
                let expanded = g.alias(g.shape().expanded(2, dims[2]).expanded(3, dims[3]));
                t.elementwise(&[&expanded], g.dtype(), "grad of mean")
            })])
        })
    }
}

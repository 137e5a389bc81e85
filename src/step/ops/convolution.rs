//! Convolutions over images, through cuDNN.

use crate::step::autograd::{Grads, Recorder};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::Tensor;

/// How far a window moves and how much is put around the image, the same both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Rows and columns of the window.
    pub size: u64,
    /// The step.
    pub stride: u64,
    /// Zeros on each side.
    pub padding: u64,
}

impl Window {
    /// How many windows fit along `n`.
    #[must_use]
    pub const fn count(self, n: u64) -> u64 {
        let padded = n.saturating_add(self.padding.saturating_mul(2));
        match padded.checked_sub(self.size) {
            Some(room) => room / self.stride + 1,
            None => 0,
        }
    }
}

impl Tape {
    /// `F.conv2d` of x [b, c, h, w] with weight [o, c, k, k], or `F.conv1d` of lines: saves both. On autocast's
    /// lower-precision list.
    ///
    /// cuDNN's own workspace depends on the plan it picks and is not counted.
    #[must_use]
    pub fn convolution(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, window: Window) -> Tensor {
        let bias = bias.map(|b| self.autocast_lower(b));
        let weight = &self.autocast_lower(weight);
        let x = &self.autocast_lower(x);
        let mut inputs = vec![x, weight];
        inputs.extend(bias.as_ref());
        let r = Recorder::begin(self, &inputs);
        let saved = (r.save(x), r.save(weight));
        let mut sizes = vec![x.dim(0), weight.dim(0)];
        sizes.extend(x.shape().dims()[2..].iter().map(|d| Dim::plain(window.count(d.n))));
        let sizes = Shape::new(&sizes);
        // The bias is added in place.
        let out = self.temp(sizes, x.dtype(), "convolution");
        let (needs_x, needs_w) = (x.requires_grad(), weight.requires_grad());
        let bias_shape = bias.as_ref().filter(|b| b.requires_grad()).map(|b| *b.shape());
        r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let (Some(g), Some(x), Some(w)) = (first(g), saved.0.unpack(t), saved.1.unpack(t)) else { return out };
            {
                let dense = t.contiguous_raw(g);
                out[0] = needs_x.then(|| t.temp(x.shape().contiguous(), x.dtype(), "grad of convolution input"));
                out[1] = needs_w.then(|| t.temp(w.shape().contiguous(), w.dtype(), "grad of convolution weight"));
                drop(dense);
            }
            if let Some(shape) = bias_shape {
                let mut kept = vec![Dim::plain(1); g.shape().rank()];
                kept[1] = shape.dims()[0];
                let sum = t.sum_over(g, &Shape::new(&kept));
                out[2] = Some(sum.alias(shape));
            }
            out
        })
    }
}

//! The loss of a causal language model, as transformers computes it from 4.49 on (`ForCausalLMLoss`): logits in FP32,
//! labels shifted instead of logits, log-softmax kept for backward.

use crate::step::autograd::Recorder;
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Tape {
    /// `loss(logits, labels)` for logits [b, s, V] and labels [b, s].
    #[must_use]
    pub fn causal_lm_loss(&self, logits: &Tensor, labels: &Tensor) -> Tensor {
        let logits = self.to(logits, Dtype::F32);
        let (b, s) = (labels.dim(0), labels.dim(1));
        let padded = self.temp(Shape::new(&[b, Dim::plain(s.n.saturating_add(1))]), Dtype::I64, "padded labels");
        // `padded[..., 1:].contiguous()`: one row alone is contiguous as it is.
        let shifted = if b.n == 1 {
            padded.alias(*labels.shape())
        } else {
            self.temp(*labels.shape(), Dtype::I64, "shifted labels")
        };
        let rows = b.times(s);
        let flat = self.reshape(&logits, &[rows, logits.dim(2)]);
        let out = self.cross_entropy(&flat, &shifted);
        drop(flat);
        drop(logits);
        drop(padded);
        out
    }

    /// `cross_entropy` of [rows, classes] against class numbers: `log_softmax` in the logits' own dtype, which it asks
    /// for by name and so escapes autocast (`cross_entropy_loss`, ATen/native/LossNLL.cpp), and `nll_loss`, which is on
    /// autocast's FP32 list.
    #[must_use]
    pub fn cross_entropy(&self, logits: &Tensor, labels: &Tensor) -> Tensor {
        let log_probs = {
            let r = Recorder::begin(self, &[logits]);
            let out = self.temp(logits.shape().contiguous(), logits.dtype(), "log-softmax");
            let s = r.save(&out);
            r.finish(out, move |t, g| {
                let (Some(g), Some(y)) = (first(g), s.unpack(t)) else { return vec![None] };
                vec![Some(t.temp(*y.shape(), g.dtype(), "grad of log-softmax"))]
            })
        };
        let log_probs = self.autocast_f32(&log_probs);
        let r = Recorder::begin(self, &[&log_probs]);
        // The input is saved too; it is the log-softmax's own storage.
        let (sx, sl) = (r.save(&log_probs), r.save(labels));
        let loss = self.scalar(log_probs.dtype(), "loss");
        let total = self.scalar(log_probs.dtype(), "total weight");
        let st = r.save(&total);
        drop(total);
        r.finish(loss, move |t, g| {
            let (Some(_), Some(x)) = (first(g), sx.unpack(t)) else { return vec![None] };
            let kept = (sl.unpack(t), st.unpack(t));
            let grad = t.temp(*x.shape(), x.dtype(), "grad of loss");
            drop(kept);
            vec![Some(grad)]
        })
    }

    /// A tensor of one element.
    #[must_use]
    pub fn scalar(&self, dtype: Dtype, op: &'static str) -> Tensor {
        self.temp(Shape::new(&[]), dtype, op)
    }
}

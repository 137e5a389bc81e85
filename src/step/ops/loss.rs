//! The loss of a causal language model, as transformers computes it from 4.49 on (`ForCausalLMLoss`): logits in FP32,
//! labels shifted instead of logits, log-softmax kept for backward. Before, the logits are shifted, as a copy, and become
//! FP32 elsewhere ([`crate::versions`]).

use crate::recipe::LigerKernel;
use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};
use crate::versions::Upcast;

impl Tape {
    /// `loss(logits, labels)` for logits [b, s, V] and labels [b, s], and the logits as the model returns them.
    #[must_use]
    pub fn causal_lm_loss(&self, mut logits: Tensor, labels: &Tensor) -> (Tensor, Tensor) {
        let upcast = self.rules().upcast;
        if upcast == Upcast::InModel {
            let high = self.to(&logits, Dtype::F32);
            logits = high;
        }
        let high = if upcast == Upcast::InLoss { self.to(&logits, Dtype::F32) } else { logits.clone() };
        let loss = if self.rules().shifts_logits {
            self.loss_of_shifted_logits(&high, labels)
        } else {
            self.loss_of_shifted_labels(&high, labels)
        };
        drop(high);
        (loss, logits)
    }

    /// `logits[..., :-1, :].contiguous()` against `labels[..., 1:].contiguous()`; one sequence alone is contiguous as it is.
    fn loss_of_shifted_logits(&self, logits: &Tensor, labels: &Tensor) -> Tensor {
        let b = labels.dim(0);
        let rest = Dim::plain(labels.dim(1).n.saturating_sub(1));
        let shifted = {
            let part = self.slice(logits, 1, rest);
            self.contiguous(&part)
        };
        let shape = Shape::new(&[b, rest]);
        let shifted_labels =
            if b.n == 1 { labels.alias(shape) } else { self.temp(shape, Dtype::I64, "shifted labels") };
        let flat = self.reshape(&shifted, &[b.times(rest), logits.dim(2)]);
        drop(shifted);
        self.cross_entropy(&flat, &shifted_labels)
    }

    fn loss_of_shifted_labels(&self, logits: &Tensor, labels: &Tensor) -> Tensor {
        let (b, s) = (labels.dim(0), labels.dim(1));
        let (shifted, padded) = self.shifted_labels(labels);
        let rows = b.times(s);
        let flat = self.reshape(logits, &[rows, logits.dim(2)]);
        let out = if self.fuses(LigerKernel::CrossEntropy) {
            self.liger_cross_entropy(&flat, &shifted)
        } else {
            self.cross_entropy(&flat, &shifted)
        };
        drop(flat);
        drop(padded);
        out
    }

    /// The labels one place on, and what they were taken from.
    pub(crate) fn shifted_labels(&self, labels: &Tensor) -> (Tensor, Tensor) {
        let (b, s) = (labels.dim(0), labels.dim(1));
        let padded = self.temp(Shape::new(&[b, Dim::plain(s.n.saturating_add(1))]), Dtype::I64, "padded labels");
        // `padded[..., 1:].contiguous()`: one row alone is contiguous as it is.
        let shifted = if b.n == 1 {
            padded.alias(*labels.shape())
        } else {
            self.temp(*labels.shape(), Dtype::I64, "shifted labels")
        };
        (shifted, padded)
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
            let input = r.save_if(self.rules().softmax_keeps_input, logits);
            r.finish(out, move |t, g| {
                let (Some(g), Some(y)) = (first(g), s.unpack(t)) else { return Grads::default() };
                let _input = input.unpack(t);
                grads_of([Some(t.temp(*y.shape(), g.dtype(), "grad of log-softmax"))])
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
            let (Some(_), Some(x)) = (first(g), sx.unpack(t)) else { return Grads::default() };
            let kept = (sl.unpack(t), st.unpack(t));
            let grad = t.temp(*x.shape(), x.dtype(), "grad of loss");
            drop(kept);
            grads_of([Some(grad)])
        })
    }

    /// A tensor of one element.
    #[must_use]
    pub fn scalar(&self, dtype: Dtype, op: &'static str) -> Tensor {
        self.temp(Shape::new(&[]), dtype, op)
    }
}

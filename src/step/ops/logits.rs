//! Log-probabilities from whole logits, as TRL's PPO takes them (TRL 1.10, `selective_log_softmax` in `trainer/utils.py` and
//! `experimental/ppo/ppo_trainer.py`; recorded with PyTorch 2.15).

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Tape {
    /// `part = logits[:, -n - 1:-1]; part /= temperature`: divided in place, a view of the whole. Backward goes through the
    /// whole once more (`CopySlices`, torch/csrc/autograd/functions/tensor.cpp).
    pub(crate) fn tempered(&self, logits: &Tensor, n: Dim) -> Tensor {
        let r = Recorder::begin(self, &[logits]);
        let (whole, part) = (*logits.shape(), logits.shape().narrowed(1, n).contiguous());
        let divided = logits.alias(whole);
        let divided = r.finish(divided, move |t, g| {
            let Some(g) = first(g) else { return Grads::default() };
            let result = t.temp(whole.contiguous(), g.dtype(), "grad of logits");
            let of_part = t.temp(part, g.dtype(), "grad of scored logits");
            let quotient = t.temp(part, g.dtype(), "grad of scored logits");
            drop((of_part, quotient));
            grads_of([Some(result)])
        });
        self.slice(&divided, 1, n)
    }

    /// The log-probability of each token of `index` [b, n] under `logits` [b, n, V], row by row. In half precision each row's
    /// log-softmax is made; in FP32 the sum of exponentials is taken off.
    pub(crate) fn selective_log_softmax(&self, logits: &Tensor, index: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[logits]);
        let saved_index = r.save(index);
        let dtype = logits.dtype();
        let (b, n, v) = (logits.dim(0), logits.dim(1), logits.dim(2));
        let row = Shape::new(&[n, v]);
        let line = |op: &'static str| self.temp(Shape::new(&[b, n]), dtype, op);
        let wide = dtype == Dtype::F32;
        let mut rows = Vec::new();
        let out = if wide {
            let chosen = line("chosen logits");
            for _ in 0..b.n {
                drop(self.temp(row, dtype, "exponentials"));
            }
            let sums = line("log of sums");
            let out = line("log-probabilities");
            rows.extend([r.save(logits), r.save(&sums)]);
            drop((sums, chosen));
            out
        } else {
            // Each is a variable until the next one takes its name.
            let mut last = None;
            for _ in 0..b.n {
                let all = self.temp(row, dtype, "log-softmax");
                rows.push(r.save(&all));
                last = Some(all);
            }
            let out = line("log-probabilities");
            drop(last);
            out
        };
        let whole = logits.shape().contiguous();
        r.finish(out, move |t, g| {
            let (Some(_), Some(_index)) = (first(g), saved_index.unpack(t)) else { return Grads::default() };
            let held: Vec<Option<Tensor>> = rows.iter().map(|row| row.unpack(t)).collect();
            let of_row = |op: &'static str| t.temp(row, dtype, op);
            let grads: Vec<Tensor> = (0..b.n)
                .map(|_| {
                    // In FP32 grad × exp(logits − sum); else the gather's zeros, then the log-softmax's own.
                    let between = of_row("grad of row");
                    let further = wide.then(|| of_row("grad of row"));
                    let grad = of_row("grad of row");
                    drop((between, further));
                    grad
                })
                .collect();
            drop(held);
            let stacked = t.temp(whole, dtype, "grad of scored logits");
            drop(grads);
            if wide {
                drop(t.temp(whole, dtype, "grad of chosen logits"));
            }
            grads_of([Some(stacked)])
        })
    }

    /// PPO's loss of log-probabilities [b, n] and of the critic's values [b, s, 1]: operations on one number a token.
    pub(crate) fn ppo_loss(&self, log_probs: &Tensor, values: &Tensor) -> Tensor {
        /// Numbers a token that backward or the loop keeps: masked scores, differences, ratios and both losses; as many of
        /// the values.
        const KEPT: usize = 8;
        let r = Recorder::begin(self, &[log_probs, values]);
        let line = |like: &Tensor| self.temp(*log_probs.shape(), like.dtype(), "ratios");
        let kept: Vec<_> = (0..KEPT).flat_map(|_| [r.save(&line(log_probs)), r.save(&line(values))]).collect();
        let (like, whole) = (*log_probs.shape(), values.shape().contiguous());
        let [policy, critic] = [log_probs.dtype(), values.dtype()];
        let out = self.scalar(policy.promoted(critic), "loss");
        r.finish(out, move |t, g| {
            let held: Vec<_> = kept.iter().map(|s| s.unpack(t)).collect();
            let Some(_) = first(g) else { return Grads::default() };
            let grads = [
                Some(t.temp(like, policy, "grad of log-probabilities")),
                Some(t.temp(whole, critic, "grad of values")),
            ];
            drop(held);
            grads_of(grads)
        })
    }
}

//! The ends of a Megatron-LM model: the table of words, the head, cross-entropy over a vocabulary that ranks share
//! (`megatron/core/models/common/embeddings/language_model_embedding.py`, `tensor_parallel/{layers,cross_entropy}.py`,
//! `fusions/fused_cross_entropy.py`, Transformer Engine's `pytorch/triton/cross_entropy.py`).

use crate::recipe::parallel::MegatronLoss;
use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::megatron::context::Cx;
use crate::step::megatron::ops::{Engine, Linear, copied, pointwise, temp};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Cx {
    /// The batch of a micro-batch: ids, labels, positions, the loss's mask, and attention's.
    pub(super) fn batch(&self, t: &Tape) -> Vec<Tensor> {
        let [b, s] = [self.batch, self.seq].map(Dim::plain);
        let integers = |op: &'static str| t.empty(Shape::new(&[b, s]), Dtype::I64, crate::bill::Part::Activations, op);
        let mut batch = vec![integers("token ids"), integers("labels"), integers("positions")];
        batch.push(t.empty(Shape::new(&[b, s]), Dtype::F32, crate::bill::Part::Activations, "loss mask"));
        if self.options.create_attention_mask {
            let whole = Dim::plain(self.seq.saturating_mul(self.context));
            let shape = Shape::new(&[b, Dim::plain(1), s, whole]);
            batch.push(t.empty(shape, Dtype::Bool, crate::bill::Part::Activations, "attention mask"));
        }
        batch
    }

    /// Words' vectors, with positions', dropped out.
    pub(super) fn embedding(&self, t: &Tape, weights: &[Tensor]) -> Tensor {
        let Some(words) = weights.first() else { return t.scalar(Dtype::Bf16, "nothing") };
        let (rows, h, kept) = (self.rows(), self.gpt.hidden, self.kept_rows());
        let mut x = {
            let r = Recorder::begin(t, &[words]);
            let ids = t.temp(Shape::new(&[rows]), Dtype::I64, "ids of this rank's words");
            let saved = r.save(&ids);
            drop(ids);
            let out = temp(t, rows, h, Dtype::Bf16, "embedding");
            let shape = *words.shape();
            r.finish(out, move |t, g| {
                let held = saved.unpack(t);
                let grad = g.first().and_then(Option::as_ref);
                let grad = grad.map(|_| t.temp(shape, Dtype::Bf16, "grad of embedding"));
                drop(held);
                grads_of([grad])
            })
        };
        for table in &weights[1..] {
            let r = Recorder::begin(t, &[&x, table]);
            let own = temp(t, Dim::plain(self.seq), h, Dtype::Bf16, "positions' vectors");
            let out = temp(t, rows, h, Dtype::Bf16, "embeddings");
            drop(own);
            drop(x);
            let shape = *table.shape();
            x = r.finish(out, move |t, g| {
                let Some(g) = g.first().and_then(Option::as_ref) else { return Grads::default() };
                grads_of([Some(g.clone()), Some(t.temp(shape, Dtype::Bf16, "grad of embedding"))])
            });
        }
        let scatters_early = self.sequence_parallel && weights.len() == 1;
        if self.batch > 1 && !scatters_early {
            let turned = pointwise(t, &x, "tokens by position");
            drop(x);
            x = turned;
        }
        if self.sequence_parallel {
            let own = copied(t, &x, Shape::new(&[kept, Dim::plain(h)]), "scattered tokens");
            drop(x);
            x = own;
        }
        self.dropout(t, &x, self.options.hidden_dropout)
    }

    /// The last norm, a BERT's dense layer, and the head: the logits of this rank's words.
    pub(super) fn logits(&self, t: &Tape, x: &Tensor, dense: Option<&Tensor>, head: &Tensor) -> Tensor {
        let mut hidden = self.norm(t, x);
        let own = Linear { norm: false, gather: self.sequence_parallel, scatter: false, engine: Engine::Own };
        if let Some(dense) = dense {
            // `BertLMHead`: dense, GELU, norm; the dense layer is on every rank.
            let plain = Linear { gather: false, ..own };
            let out = self.linear(t, &hidden, dense, plain);
            drop(hidden);
            let active = self.activation(t, &out, false);
            drop(out);
            hidden = self.norm(t, &active);
        }
        self.linear(t, &hidden, head, own)
    }

    /// Each token's loss.
    pub(super) fn cross_entropy(&self, t: &Tape, logits: Tensor) -> Tensor {
        let r = Recorder::begin(t, &[&logits]);
        let rows = logits.dim(0);
        let line = |dtype: Dtype, op: &'static str| t.temp(Shape::new(&[rows]), dtype, op);
        let labels = line(Dtype::I64, "labels of this rank's words");
        let kind = self.options.cross_entropy;
        // Transformer Engine writes the gradient over the logits in forward.
        let kept = if kind == MegatronLoss::Te {
            logits.detached()
        } else {
            t.temp(logits.shape().contiguous(), Dtype::F32, "logits in FP32")
        };
        let mut saved = Some(r.save(&kept));
        let saved_labels = r.save(&labels);
        drop((kept, labels));
        let shape = logits.shape().contiguous();
        let loss = line(Dtype::F32, "loss");
        let out = r.finish(loss, move |t, g| {
            if g.first().is_none_or(Option::is_none) {
                return Grads::default();
            }
            let held = saved_labels.unpack(t);
            let softmax = saved.take().and_then(|saved| saved.unpack(t));
            let grad = match kind {
                // In place, and cast to the logits' dtype where it leaves.
                MegatronLoss::Unfused | MegatronLoss::Te => softmax,
                MegatronLoss::Native => {
                    let grad = t.temp(shape, Dtype::Bf16, "grad of logits");
                    drop(softmax);
                    Some(grad)
                }
            };
            drop(held);
            grads_of([grad])
        });
        drop(logits);
        out
    }
}

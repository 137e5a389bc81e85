//! Attention in Megatron-LM: from the product of queries, keys and values to what goes into the output product
//! (`megatron/core/transformer/{attention,dot_product_attention,multi_latent_attention}.py`, Transformer Engine's
//! `pytorch/attention/dot_product_attention/{backends,context_parallel}.py`).

use crate::model::family::Latent;
use crate::recipe::parallel::{ContextCommunication, MegatronAttention, MegatronRecompute};
use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::checkpoint::Saved;
use crate::step::megatron::context::Cx;
use crate::step::megatron::ops::{Engine, Linear, copied, temp};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// The widths of a rank's queries, keys and values, and the heads that it has.
#[derive(Clone, Copy, Debug)]
struct Widths {
    q: u64,
    k: u64,
    v: u64,
    heads: u64,
}

impl Cx {
    /// Attention over `x`, its norm included, up to the output product's input. Takes `weights`, a layer's first.
    pub(super) fn attention(&self, t: &Tape, x: &Tensor, weights: &[Tensor]) -> Tensor {
        let by = self.tensor.max(1);
        match (self.gpt.latent, weights) {
            (Some(latent), _) => self.latent_attention(t, x, latent, weights),
            (None, [qkv, ..]) => {
                let [q, k, v] = self.gpt.qkv().map(|width| width / by);
                let widths = Widths { q, k, v, heads: self.gpt.heads / by };
                let how =
                    Linear { norm: true, gather: self.sequence_parallel, scatter: false, engine: self.own_engine() };
                let mixed = self.linear(t, x, qkv, how);
                let parts = self.split(t, mixed, widths);
                self.core(t, parts, widths)
            }
            (None, []) => x.clone(),
        }
    }

    /// Queries, keys and values of one product. With rotary positions each is a tensor of its own; without, they are views,
    /// save for queries that share keys.
    fn split(&self, t: &Tape, mixed: Tensor, w: Widths) -> [Tensor; 3] {
        let r = Recorder::begin(t, &[&mixed]);
        let rows = mixed.dim(0);
        let rotary = self.gpt.positions.is_none();
        let grouped = w.q != w.k;
        let shape = move |width: u64| Shape::new(&[rows, Dim::plain(width)]);
        let own = |width: u64, op: &'static str| t.temp(shape(width), Dtype::Bf16, op);
        let outs = if rotary {
            let query = grouped.then(|| own(w.q, "queries"));
            let q = own(w.q, "rotated queries");
            drop(query);
            vec![q, own(w.k, "rotated keys"), own(w.v, "values")]
        } else {
            let q = if grouped { own(w.q, "queries") } else { mixed.alias(shape(w.q)) };
            vec![q, mixed.alias(shape(w.k)), mixed.alias(shape(w.v))]
        };
        let whole = mixed.shape().contiguous();
        drop(mixed);
        let fused = self.options.attention_backend != MegatronAttention::Unfused && !rotary && !grouped;
        let outs = r.finish_many(outs, move |t, g| {
            if g.iter().all(Option::is_none) {
                return Grads::default();
            }
            // Kernels that take one tensor of all three give its gradient as one.
            if fused && let Some(Some(g)) = g.first() {
                return grads_of([Some(g.alias(whole))]);
            }
            let turned = rotary.then(|| {
                (t.temp(shape(w.q), Dtype::Bf16, "grad of queries"), t.temp(shape(w.k), Dtype::Bf16, "grad of keys"))
            });
            let grad = t.temp(whole, Dtype::Bf16, "grad of queries, keys and values");
            drop(turned);
            grads_of([Some(grad)])
        });
        three(t, outs)
    }

    fn core(&self, t: &Tape, parts: [Tensor; 3], w: Widths) -> Tensor {
        if self.options.attention_backend == MegatronAttention::Unfused && self.context == 1 {
            return self.unfused(t, parts, w);
        }
        if self.context > 1 && self.options.cp_comm_type == ContextCommunication::A2a {
            return self.all_to_all(t, parts, w);
        }
        let out = self.fused(t, parts, w, self.context > 1);
        // Flash attention's output lies [b, s, …], the layer's [s, b, …].
        if self.options.attention_backend == MegatronAttention::Flash && self.batch > 1 {
            let shape = out.shape().contiguous();
            let r = Recorder::begin(t, &[&out]);
            let turned = t.temp(shape, Dtype::Bf16, "attention output");
            drop(out);
            return r.finish(turned, |_, g| grads_of([g.first().cloned().flatten()]));
        }
        out
    }

    /// A kernel that keeps queries, keys, values, its output and the sums of each row.
    fn fused(&self, t: &Tape, [q, k, v]: [Tensor; 3], w: Widths, ring: bool) -> Tensor {
        let r = Recorder::begin(t, &[&q, &k, &v]);
        let rows = q.dim(0);
        let cp = self.context;
        let line = || t.temp(Shape::new(&[rows, Dim::plain(w.heads)]), Dtype::F32, "log-sum-exp");
        let out_width = if self.gpt.latent.is_some() { w.v } else { w.q };
        // In a ring, keys and values travel as one tensor, each step's in a buffer; each step's outputs live until the end.
        let mut travelling: Vec<Tensor> = Vec::new();
        let mut steps: Vec<Tensor> = Vec::new();
        let saved: Vec<Saved> = if ring {
            for step in 0..cp {
                travelling.push(temp(t, rows, w.k.saturating_add(w.v), Dtype::Bf16, "keys and values of another rank"));
                let part = if step == 0 { rows } else { Dim::plain(rows.n / 2) };
                steps.push(temp(t, part, out_width, Dtype::Bf16, "attention output of a step"));
            }
            let mut saved = vec![r.save(&q)];
            saved.extend(travelling.last().map(|last| r.save(last)));
            saved
        } else {
            [&q, &k, &v].into_iter().map(|part| r.save(part)).collect()
        };
        let out = temp(t, rows, out_width, Dtype::Bf16, "attention output");
        let sums = line();
        drop((travelling, steps));
        let (saved_out, saved_sums) = (r.save(&out), r.save(&sums));
        drop(sums);
        let shapes = [q, k, v].map(|part| part.shape().contiguous());
        let widths = [w.q, w.k, w.v];
        let together = self.gpt.positions.is_some() && w.q == w.k;
        r.finish(out, move |t, g| {
            if g.first().is_none_or(Option::is_none) {
                return Grads::default();
            }
            let held: Vec<Option<Tensor>> = saved.iter().map(|saved| saved.unpack(t)).collect();
            let held = (held, saved_out.unpack(t), saved_sums.unpack(t));
            // The gradient of queries is summed in FP32, and a sum for each row.
            let scratch = (
                temp(t, rows, widths[0], Dtype::F32, "gradient of queries in FP32"),
                t.temp(Shape::new(&[rows, Dim::plain(w.heads)]), Dtype::F32, "sums of attention's gradient"),
            );
            let round = ring.then(|| {
                let pair = || temp(t, rows, w.k.saturating_add(w.v), Dtype::Bf16, "gradients of keys and values");
                [pair(), pair(), pair()]
            });
            let grads = if together {
                let all = widths.iter().sum();
                let grad = temp(t, rows, all, Dtype::Bf16, "grad of queries, keys and values");
                shapes.map(|shape| Some(grad.alias(shape)))
            } else {
                shapes.map(|shape| Some(t.temp(shape, Dtype::Bf16, "grad of attention input")))
            };
            drop((scratch, round, held));
            grads_of(grads)
        })
    }

    /// Heads are exchanged for tokens before and after the kernel; the output from before it goes back is kept beside
    /// what the output product keeps (Transformer Engine 2.8 and newer).
    fn all_to_all(&self, t: &Tape, [q, k, v]: [Tensor; 3], w: Widths) -> Tensor {
        let exchanged = |x: Tensor| {
            let shape = x.shape().contiguous();
            let out = copied(t, &x, shape, "exchanged heads");
            drop(x);
            out
        };
        let parts = [exchanged(q), exchanged(k), exchanged(v)];
        let own = self.fused(t, parts, w, false);
        let shape = own.shape().contiguous();
        copied(t, &own, shape, "exchanged output")
    }

    /// Scores and probabilities as tensors (`UnfusedDotProductAttention`; Megatron-LM's own `DotProductAttention` puts the
    /// scores' buffer among those that all layers share).
    fn unfused(&self, t: &Tape, [q, k, v]: [Tensor; 3], w: Widths) -> Tensor {
        let (rows, seq) = (q.dim(0), self.seq);
        let scores = Shape::new(&[self.batch, w.heads, seq, seq].map(Dim::plain));
        let grouped = w.q != w.k && self.gpt.latent.is_none();
        let [k, v] = if grouped {
            [k, v].map(|part| copied(t, &part, Shape::new(&[rows, Dim::plain(w.q)]), "repeated keys or values"))
        } else {
            [k, v]
        };
        let again = self.options.recompute == MegatronRecompute::CoreAttention;
        let r = Recorder::begin(t, &[&q, &k, &v]);
        let inputs: Vec<Saved> = [&q, &k, &v].into_iter().map(|part| r.save(part)).collect();
        let p = self.options.attention_dropout;
        let own = !self.options.transformer_engine;
        let cx = self.clone();
        let padded = self.gpt.bert;
        let probabilities = move |t: &Tape| {
            let buffer = if own {
                cx.keep(t, "global memory buffer of scores", scores, Dtype::Bf16)
            } else {
                t.temp(scores, Dtype::Bf16, "scores")
            };
            let result = cx.product(t, Engine::Own, scores, "scores");
            drop(buffer);
            let softmax = t.temp(scores, Dtype::Bf16, "softmax");
            let filled = (padded && !own).then(|| t.temp(scores, Dtype::Bf16, "masked probabilities"));
            let dropped = (p > 0.0).then(|| {
                (t.temp(scores, Dtype::Bf16, "dropped probabilities"), t.temp(scores, Dtype::Bool, "dropout mask"))
            });
            drop(filled);
            (result, softmax, dropped)
        };
        let width = w.heads.saturating_mul(v.dim(1).n / w.heads.max(1));
        let (result, softmax, dropped) = probabilities(t);
        let mut saved: Vec<Saved> = Vec::new();
        if !again {
            saved.push(r.save(&softmax));
            if let Some((probabilities, mask)) = &dropped {
                saved.extend([r.save(probabilities), r.save(mask)]);
            }
        }
        let context = self.product(t, Engine::Own, Shape::new(&[rows, Dim::plain(width)]), "attention output");
        drop((result, softmax, dropped));
        // `context_layer.permute(2, 0, 1, 3).contiguous()`.
        let out = temp(t, rows, width, Dtype::Bf16, "attention output");
        drop(context);
        let shapes = [q, k, v].map(|part| part.shape().contiguous());
        let cx = self.clone();
        r.finish(out, move |t, g| {
            if g.first().is_none_or(Option::is_none) {
                return Grads::default();
            }
            let held: Vec<Option<Tensor>> = inputs.iter().map(|saved| saved.unpack(t)).collect();
            let run_again = again.then(|| probabilities(t));
            let mut kept: Vec<Option<Tensor>> = saved.drain(..).map(|saved| saved.unpack(t)).collect();
            let of_values = cx.product(t, Engine::Own, shapes[2], "grad of values");
            let of_dropped = cx.product(t, Engine::Own, scores, "grad of probabilities");
            // The probabilities are behind; the softmax's gradient is made in place.
            kept.truncate(1);
            let of_scores = if p > 0.0 {
                let grad = t.temp(scores, Dtype::Bf16, "grad of dropout");
                drop(of_dropped);
                grad
            } else {
                of_dropped
            };
            drop((run_again, kept));
            let of_queries = cx.product(t, Engine::Own, shapes[0], "grad of queries");
            let of_keys = cx.product(t, Engine::Own, shapes[1], "grad of keys");
            drop((of_scores, held));
            grads_of([Some(of_queries), Some(of_keys), Some(of_values)])
        })
    }

    /// Queries through their rank, keys and values through a common latent; every head gets its part of a rotated key.
    fn latent_attention(&self, t: &Tape, x: &Tensor, latent: Latent, weights: &[Tensor]) -> Tensor {
        let by = self.tensor.max(1);
        let heads = self.gpt.heads / by;
        let key = latent.plain.saturating_add(latent.rotary);
        let engine = self.own_engine();
        let plain = Linear { norm: false, gather: false, scatter: false, engine };
        let up = Linear { norm: true, gather: self.sequence_parallel, scatter: false, engine };
        let normed = self.norm(t, x);
        let mut weights = weights.iter();
        let mut next = || weights.next().cloned().unwrap_or_else(|| x.clone());
        let gathered = Linear { gather: self.sequence_parallel, ..plain };
        let queries = if latent.query.is_some() {
            let (down, up_weight) = (next(), next());
            let compressed = self.linear(t, &normed, &down, plain);
            self.linear(t, &compressed, &up_weight, up)
        } else {
            self.linear(t, &normed, &next(), gathered)
        };
        let (down, up_weight) = (next(), next());
        let compressed = self.linear(t, &normed, &down, plain);
        drop(normed);
        // The rotated key is split off; the rest is laid out by itself.
        let rows = compressed.dim(0);
        let alone = copied(t, &compressed, Shape::new(&[rows, Dim::plain(latent.key_value)]), "latent");
        drop(compressed);
        let keys_values = self.linear(t, &alone, &up_weight, up);
        drop(alone);
        let widths = Widths {
            q: heads.saturating_mul(key),
            k: heads.saturating_mul(key),
            v: heads.saturating_mul(latent.value),
            heads,
        };
        let rotated = |from: Tensor, width: u64, op: &'static str| {
            let out = copied(t, &from, Shape::new(&[from.dim(0), Dim::plain(width)]), op);
            drop(from);
            out
        };
        let q = rotated(queries, widths.q, "rotated queries");
        let [k, v] = self.keys_and_values(t, keys_values, widths);
        self.core(t, [q, k, v], widths)
    }

    /// Keys with their rotated part, and values, from one product.
    fn keys_and_values(&self, t: &Tape, both: Tensor, w: Widths) -> [Tensor; 2] {
        let r = Recorder::begin(t, &[&both]);
        let rows = both.dim(0);
        let outs = vec![temp(t, rows, w.k, Dtype::Bf16, "keys"), temp(t, rows, w.v, Dtype::Bf16, "values")];
        let whole = both.shape().contiguous();
        drop(both);
        let outs =
            r.finish_many(outs, move |t, _| grads_of([Some(t.temp(whole, Dtype::Bf16, "grad of keys and values"))]));
        let [keys, values, _] = three(t, outs);
        [keys, values]
    }
}

/// As many as were given to `finish_many`.
fn three(t: &Tape, outs: Vec<Tensor>) -> [Tensor; 3] {
    let mut outs = outs.into_iter();
    [(); 3].map(|()| outs.next().unwrap_or_else(|| t.scalar(Dtype::Bf16, "nothing")))
}

//! BLOOM (`modeling_bloom.py`, transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};
use crate::model::family::common::{AttentionPlan, Head, Returned, Run, causal_forward, eager_mask, refuse_reentrant};
use crate::model::family::{Built, Dimensions, Model, Parameter, Parameters, dotted_names, matrix, vector};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::{Attention, Recipe};
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// BLOOM's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct Bloom {
    hidden: u64,
    layers: u64,
    heads: u64,
    vocab: u64,
    tied: bool,
    /// Whether the residual is what the norm gave.
    normed_residual: bool,
    attention_dropout: f64,
    hidden_dropout: f64,
}

/// `BloomConfig`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let hidden = f.required(&["hidden_size", "n_embed"], MAX_DIMENSION);
    let layers = f.required(&["n_layer", "num_hidden_layers"], MAX_LAYERS);
    let heads = f.required(&["n_head", "num_attention_heads"], MAX_HEADS);
    let vocab = f.required(&["vocab_size"], MAX_DIMENSION);
    f.divides("hidden_size", hidden, "n_head", heads);
    if f.flag("slow_but_exact", false) && f.optional(&["pretraining_tp"], 1, MAX_HEADS) > 1 {
        f.refuse("slow_but_exact", "products in slices");
    }
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    let model = Bloom {
        hidden,
        layers,
        heads,
        vocab,
        tied: f.flag("tie_word_embeddings", true),
        normed_residual: f.flag("apply_residual_connection_post_layernorm", false),
        attention_dropout: f.probability("attention_dropout", 0.0),
        hidden_dropout: f.probability("hidden_dropout", 0.0),
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

/// How many places a layer has for parameters.
const LAYER: usize = 12;

impl Bloom {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }

    /// input_layernorm, query_key_value, dense, post_attention_layernorm, dense_h_to_4h, dense_4h_to_h: weight and bias
    /// each.
    fn layer_shapes(&self) -> [Shape; LAYER] {
        let h = self.h();
        let (h3, h4) = (Dim { n: 3 * h.n, sym: h.sym }, Dim { n: 4 * h.n, sym: h.sym });
        [
            vector(h),
            vector(h),
            matrix(h3, h),
            vector(h3),
            matrix(h, h),
            vector(h),
            vector(h),
            vector(h),
            matrix(h4, h),
            vector(h4),
            matrix(h, h4),
            vector(h),
        ]
    }

    /// What ALiBi adds to the scores, [b × a, 1, s] in `dtype`, and the slopes that Python still holds.
    fn alibi(&self, run: &Run, dtype: Dtype) -> (Tensor, Tensor) {
        let t = &run.tape;
        let line = |n: u64, dtype: Dtype| t.temp(Shape::new(&[Dim::plain(n)]), dtype, "ALiBi slopes");
        let powers_of = |n: u64| {
            let base = t.scalar(Dtype::F32, "ALiBi slopes");
            let powers = line(n, Dtype::I32);
            (line(n, Dtype::F32), base, powers)
        };
        let closest = 1u64 << self.heads.max(1).ilog2();
        let slopes = {
            let (slopes, base, powers) = powers_of(closest);
            if closest == self.heads {
                drop((base, powers));
                slopes
            } else {
                let (more, ..) = powers_of(closest.min(self.heads - closest));
                let all = line(self.heads, Dtype::F32);
                drop((more, slopes, base, powers));
                all
            }
        };
        let (a, s) = (Dim::named(self.heads, Symbol::A), run.seq);
        let one = Dim::plain(1);
        let alibi = {
            let each = {
                let positions = t.temp(Shape::new(&[s]), Dtype::I64, "positions");
                let each = t.temp(Shape::new(&[a, one, s]), Dtype::F32, "ALiBi");
                drop(positions);
                each
            };
            let repeated = t.temp(Shape::new(&[run.batch.times(a), one, s]), Dtype::F32, "ALiBi");
            drop(each);
            t.to(&repeated, dtype)
        };
        (alibi, slopes)
    }
}

#[derive(Debug)]
struct Layer([Tensor; LAYER]);

impl Model for Bloom {
    fn family(&self) -> &'static str {
        "bloom"
    }

    fn parameters(&self) -> Vec<Parameter> {
        let of = |shape: Shape| Parameter { shape, linear: shape.rank() == 2, lookup_only: false };
        let embed = matrix(self.v(), self.h());
        let mut all = vec![Parameter { shape: embed, linear: self.tied, lookup_only: !self.tied }];
        all.extend([of(vector(self.h())), of(vector(self.h()))]);
        for _ in 0..self.layers {
            all.extend(self.layer_shapes().map(of));
        }
        all.extend([of(vector(self.h())), of(vector(self.h()))]);
        if !self.tied {
            all.push(of(embed));
        }
        all
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        let mut layer = [None; LAYER];
        layer[2] = Some("query_key_value");
        layer[4] = Some("dense");
        layer[8] = Some("dense_h_to_4h");
        layer[10] = Some("dense_4h_to_h");
        let mut all = vec![None; 3];
        for _ in 0..self.layers {
            all.extend(layer);
        }
        all.extend([None, None]);
        if !self.tied {
            all.push(Some("lm_head"));
        }
        all
    }

    fn parameter_names(&self) -> Vec<String> {
        const NAMES: [&str; LAYER] = [
            "input_layernorm.weight",
            "input_layernorm.bias",
            "self_attention.query_key_value.weight",
            "self_attention.query_key_value.bias",
            "self_attention.dense.weight",
            "self_attention.dense.bias",
            "post_attention_layernorm.weight",
            "post_attention_layernorm.bias",
            "mlp.dense_h_to_4h.weight",
            "mlp.dense_h_to_4h.bias",
            "mlp.dense_4h_to_h.weight",
            "mlp.dense_4h_to_h.bias",
        ];
        const BEFORE: [&str; 3] = [
            "transformer.word_embeddings.weight",
            "transformer.word_embeddings_layernorm.weight",
            "transformer.word_embeddings_layernorm.bias",
        ];
        let all: &[&str] = &["transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"];
        let after = if self.tied { &all[..2] } else { all };
        dotted_names(&BEFORE, ("transformer.h", self.layers), |_| NAMES.into(), after)
    }

    fn buffers(&self) -> Vec<u64> {
        Vec::new()
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions { layers: self.layers, hidden: self.hidden, query_width: self.hidden, vocabulary: self.vocab }
    }

    fn is_causal_lm(&self) -> bool {
        true
    }

    fn max_positions(&self) -> Option<u64> {
        None
    }

    fn refusals(&self, recipe: &Recipe) -> Vec<Issue> {
        if recipe.attention == Some(Attention::Sdpa) {
            let what = "sdpa attention in BLOOM, which transformers runs eager".into();
            return vec![Issue::new("recipe.attention", IssueKind::NotModelled { what })];
        }
        refuse_reentrant(recipe)
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![
            ("b", recipe.micro_batch),
            ("s", recipe.seq_len),
            ("h", self.hidden),
            ("f", 4 * self.hidden),
            ("a", self.heads),
            ("d", self.hidden / self.heads),
            ("V", self.vocab),
            ("L", self.layers),
        ]
    }

    fn layers(&self) -> u64 {
        self.layers
    }

    fn with_layers(&self, layers: u64) -> Option<Box<dyn Model>> {
        Some(Box::new(Self { layers, ..self.clone() }))
    }

    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built> {
        let mut all = Parameters::new(tape, dtype);
        tape.scope("embedding", || {
            let embed = all.add(matrix(self.v(), self.h()));
            let embed_norm = [all.add(vector(self.h())), all.add(vector(self.h()))];
            tape.set_scope("layers");
            let layers: Vec<Rc<Layer>> = (1u32..)
                .take(usize::try_from(self.layers).unwrap_or(usize::MAX))
                .map(|i| {
                    tape.set_layer(i);
                    Rc::new(Layer(self.layer_shapes().map(|s| all.add(s))))
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("final norm");
            let norm = [all.add(vector(self.h())), all.add(vector(self.h()))];
            tape.set_scope("head");
            let head = if self.tied { embed.clone() } else { all.add(matrix(self.v(), self.h())) };
            Box::new(BuiltBloom {
                plan: Rc::new(self.clone()),
                embed,
                embed_norm,
                layers,
                norm,
                head,
                weights: all.finish(),
            }) as Box<dyn Built>
        })
    }
}

struct BuiltBloom {
    plan: Rc<Bloom>,
    embed: Tensor,
    embed_norm: [Tensor; 2],
    layers: Vec<Rc<Layer>>,
    norm: [Tensor; 2],
    head: Tensor,
    weights: Vec<Tensor>,
}

impl Built for BuiltBloom {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (ids, labels) = (&batch[0], &batch[1]);
        let head = Head { weight: &self.head, bias: None, softcap: false };
        causal_forward(run, labels, &|| self.hidden_states(run, ids), &head)
    }
}

impl BuiltBloom {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let (t, p) = (&run.tape, &self.plan);
        // Without `sdpa` in transformers 5.24 (`_supports_sdpa`), it runs eager unless told otherwise.
        let run = &Run { attention: AttentionPlan::Eager, ..run.clone() };
        let embedded = t.scope("embedding", || t.embedding(ids, &self.embed));
        let mut hidden = t.scope("embedding", || t.layer_norm(&embedded, &self.embed_norm[0], &self.embed_norm[1]));
        let (alibi, slopes) = t.scope("mask", || p.alibi(run, hidden.dtype()));
        let mask = t.scope("mask", || eager_mask(run, embedded.dtype(), false));
        let returned = Returned::open();
        for (i, layer) in (1u32..).zip(&self.layers) {
            t.set_layer(i);
            let call = Call {
                returned: returned.clone(),
                plan: self.plan.clone(),
                layer: layer.clone(),
                run: run.clone(),
                alibi: alibi.clone(),
                mask: mask.clone(),
            };
            hidden = run.layer(i, &hidden, move |x| call.run(x));
        }
        t.set_layer(0);
        hidden = t.scope("final norm", || t.layer_norm(&hidden, &self.norm[0], &self.norm[1]));
        returned.close();
        drop((alibi, slopes, mask, embedded));
        hidden
    }
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    returned: Rc<Returned>,
    plan: Rc<Bloom>,
    layer: Rc<Layer>,
    run: Run,
    alibi: Tensor,
    mask: Option<Tensor>,
}

impl Call {
    fn run(&self, x: &Tensor) -> Tensor {
        let (t, w, p) = (&self.run.tape, &self.layer.0, &self.plan);
        let mut normed = t.scope("attention norm", || t.layer_norm(x, &w[0], &w[1]));
        let residual = if p.normed_residual { normed.clone() } else { x.clone() };
        let (attended, probabilities) = t.scope("attention", || self.attention(&normed, &residual));
        normed = t.scope("mlp norm", || t.layer_norm(&attended, &w[6], &w[7]));
        let residual = if p.normed_residual { normed.clone() } else { attended.clone() };
        let out = t.scope("mlp", || self.mlp(&normed, &residual));
        drop((normed, residual, attended));
        self.returned.replace(Some(probabilities));
        out
    }

    fn mlp(&self, x: &Tensor, residual: &Tensor) -> Tensor {
        let (t, w, p) = (&self.run.tape, &self.layer.0, &self.plan);
        let hidden = {
            let wide = t.linear(x, &w[8], Some(&w[9]));
            t.bloom_gelu(&wide)
        };
        let fed = t.linear(&hidden, &w[10], Some(&w[11]));
        let dropped = t.dropout(&fed, p.hidden_dropout);
        t.add(residual, &dropped)
    }

    fn attention(&self, x: &Tensor, residual: &Tensor) -> (Tensor, Tensor) {
        let (t, w, p) = (&self.run.tape, &self.layer.0, &self.plan);
        let (b, s, h) = (self.run.batch, self.run.seq, p.h());
        let (a, d) = (Dim::named(p.heads, Symbol::A), Dim::named(p.hidden / p.heads, Symbol::D));
        let fused = t.linear(x, &w[2], Some(&w[3]));
        let [q, k, v] = {
            let qkv = t.reshape(&fused, &[b, s, a, Dim::plain(3), d]);
            let parts = [0, 1, 2].map(|_| t.transpose(&t.select(&qkv, 3), 1, 2));
            parts.map(|x| t.reshape(&x, &[b.times(a), s, d]))
        };
        let k = t.transpose(&k, 1, 2);
        let scores = t.baddbmm(&self.alibi, &q, &k);
        let mut weights = t.reshape(&scores, &[b, a, s, s]);
        if let Some(mask) = &self.mask {
            weights = t.add(&weights, mask);
        }
        let mut probabilities = {
            let softmax = t.softmax_f32(&weights);
            t.to(&softmax, q.dtype())
        };
        probabilities = t.dropout(&probabilities, p.attention_dropout);
        let mut context = {
            let flat = t.reshape(&probabilities, &[b.times(a), s, s]);
            t.bmm(&flat, &v)
        };
        context = {
            let seen = t.transpose(&t.reshape(&context, &[b, a, s, d]), 1, 2);
            t.reshape(&seen, &[b, s, h])
        };
        let mut out = t.linear(&context, &w[4], Some(&w[5]));
        out = {
            let dropped = t.dropout(&out, p.hidden_dropout);
            t.add(residual, &dropped)
        };
        drop((fused, q, k, v, scores, weights, context));
        (out, probabilities)
    }
}

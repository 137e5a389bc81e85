//! Falcon with rotary positions (`modeling_falcon.py`, transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::issue::Issue;
use crate::model::family::common::{
    Activation, AttentionPlan, Head, Returned, Run, causal_forward, causal_mask, position_ids, refuse_reentrant,
    rotary_tables, rotate,
};
use crate::model::family::{
    Built, Dimensions, Model, Parameter, Parameters, dotted_names, matrix, names_of, names_there, vector,
};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::{Attention, Recipe};
use crate::step::ops::WeightLayout;
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// How queries, keys and values share one projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One key and one value for all query heads.
    MultiQuery,
    /// A key and a value for each group of query heads, repeated at once.
    Grouped,
}

/// Falcon's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct Falcon {
    hidden: u64,
    mlp: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    vocab: u64,
    layout: Layout,
    /// Whether attention and MLP have a norm each.
    two_norms: bool,
    bias: bool,
    tied: bool,
    activation: Activation,
    hidden_dropout: f64,
}

/// `FalconConfig`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let hidden = f.required(&["hidden_size", "n_embed"], MAX_DIMENSION);
    let layers = f.required(&["num_hidden_layers", "n_layer"], MAX_LAYERS);
    let heads = f.required(&["num_attention_heads", "n_head"], MAX_HEADS);
    let vocab = f.required(&["vocab_size"], MAX_DIMENSION);
    f.divides("hidden_size", hidden, "num_attention_heads", heads);
    let grouped = f.flag("new_decoder_architecture", false);
    let kv_heads = if grouped { f.optional(&["num_kv_heads", "n_head_kv"], heads, MAX_HEADS) } else { 1 };
    f.divides("num_attention_heads", heads, "num_kv_heads", kv_heads);
    if f.flag("alibi", false) {
        f.refuse("alibi", "ALiBi in Falcon");
    }
    if !grouped && !f.flag("multi_query", true) {
        f.refuse("multi_query", "Falcon with a key and value for each head");
    }
    if !f.flag("parallel_attn", true) {
        f.refuse("parallel_attn", "Falcon with attention and MLP one after the other");
    }
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    let norms = f.optional(&["num_ln_in_parallel_attn"], if grouped { 2 } else { 1 }, 2);
    let model = Falcon {
        hidden,
        mlp: f.optional(&["ffn_hidden_size"], 4 * hidden, MAX_DIMENSION),
        layers,
        heads,
        kv_heads,
        vocab,
        layout: if grouped { Layout::Grouped } else { Layout::MultiQuery },
        two_norms: grouped && norms == 2,
        bias: f.flag("bias", false),
        tied: f.flag("tie_word_embeddings", true),
        activation: Activation::read(&mut f, "activation", "gelu"),
        hidden_dropout: f.probability("hidden_dropout", 0.0),
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

/// How many places a layer has for parameters.
const LAYER: usize = 12;

impl Falcon {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn f(&self) -> Dim {
        Dim::named(self.mlp, Symbol::F)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }
    fn d(&self) -> Dim {
        Dim::named(self.hidden / self.heads, Symbol::D)
    }

    /// query_key_value, dense, dense_h_to_4h, dense_4h_to_h, the norms: weight and bias each.
    fn layer_shapes(&self) -> [Option<Shape>; LAYER] {
        let (h, f) = (self.h(), self.f());
        let qkv = Dim::plain((self.heads + 2 * self.kv_heads) * self.d().n);
        let bias = |n: Dim| self.bias.then(|| vector(n));
        let second = self.two_norms.then(|| vector(h));
        [
            Some(matrix(qkv, h)),
            bias(qkv),
            Some(matrix(h, h)),
            bias(h),
            Some(matrix(f, h)),
            bias(f),
            Some(matrix(h, f)),
            bias(h),
            Some(vector(h)),
            Some(vector(h)),
            second,
            second,
        ]
    }
}

/// A layer's parameters.
#[derive(Debug)]
struct Layer([Option<Tensor>; LAYER]);

impl Layer {
    /// `x @ weight.T + bias`: the transposed weight is no leaf, so autocast casts it anew each time.
    fn linear(&self, t: &Tape, x: &Tensor, at: usize) -> Tensor {
        let Some(w) = &self.0[at] else { return x.clone() };
        let product = {
            let seen = t.reshape(w, w.shape().dims());
            t.linear(x, &seen, None)
        };
        let result = match &self.0[at + 1] {
            Some(bias) => t.add(&product, bias),
            None => product,
        };
        t.adapted(x, w, self.0[at + 1].as_ref(), WeightLayout::OutIn, result)
    }
    fn norm(&self, t: &Tape, x: &Tensor, at: usize) -> Tensor {
        match (&self.0[at], &self.0[at + 1]) {
            (Some(w), Some(b)) => t.layer_norm(x, w, b),
            _ => x.clone(),
        }
    }
}

impl Model for Falcon {
    fn family(&self) -> &'static str {
        "falcon"
    }

    fn parameters(&self) -> Vec<Parameter> {
        let of = |shape: Shape| Parameter { shape, linear: shape.rank() == 2, lookup_only: false };
        let embed = matrix(self.v(), self.h());
        let mut all = vec![Parameter { shape: embed, linear: self.tied, lookup_only: !self.tied }];
        for _ in 0..self.layers {
            all.extend(self.layer_shapes().into_iter().flatten().map(of));
        }
        all.extend([of(vector(self.h())), of(vector(self.h()))]);
        if !self.tied {
            all.push(of(embed));
        }
        all
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        const PLACES: [(usize, &str); 4] =
            [(0, "query_key_value"), (2, "dense"), (4, "dense_h_to_4h"), (6, "dense_4h_to_h")];
        let mut all = vec![None];
        for _ in 0..self.layers {
            all.extend(names_of(&self.layer_shapes(), &PLACES));
        }
        all.extend([None, None]);
        if !self.tied {
            all.push(Some("lm_head"));
        }
        all
    }

    fn parameter_names(&self) -> Vec<String> {
        const NAMES: [&str; LAYER] = [
            "self_attention.query_key_value.weight",
            "self_attention.query_key_value.bias",
            "self_attention.dense.weight",
            "self_attention.dense.bias",
            "mlp.dense_h_to_4h.weight",
            "mlp.dense_h_to_4h.bias",
            "mlp.dense_4h_to_h.weight",
            "mlp.dense_4h_to_h.bias",
            "input_layernorm.weight",
            "input_layernorm.bias",
            "",
            "",
        ];
        let of_layer = |_| {
            let mut names = NAMES;
            if self.two_norms {
                names[8..].copy_from_slice(&["ln_attn.weight", "ln_attn.bias", "ln_mlp.weight", "ln_mlp.bias"]);
            }
            names_there(&names, &self.layer_shapes())
        };
        let all: &[&str] = &["transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"];
        let after = if self.tied { &all[..2] } else { all };
        dotted_names(&["transformer.word_embeddings.weight"], ("transformer.h", self.layers), of_layer, after)
    }

    fn buffers(&self) -> Vec<u64> {
        // inv_freq and original_inv_freq.
        vec![self.d().n / 2, self.d().n / 2]
    }

    fn has_plain_linears(&self) -> bool {
        false
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
        if recipe.attention == Some(Attention::Eager) { refuse_reentrant(recipe) } else { Vec::new() }
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![
            ("b", recipe.micro_batch),
            ("s", recipe.seq_len),
            ("h", self.hidden),
            ("f", self.mlp),
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
            tape.set_scope("layers");
            let layers: Vec<Rc<Layer>> = (1u32..)
                .take(usize::try_from(self.layers).unwrap_or(usize::MAX))
                .map(|i| {
                    tape.set_layer(i);
                    Rc::new(Layer(self.layer_shapes().map(|s| s.map(|s| all.add(s)))))
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("final norm");
            let norm = [all.add(vector(self.h())), all.add(vector(self.h()))];
            tape.set_scope("head");
            let head = if self.tied { embed.clone() } else { all.add(matrix(self.v(), self.h())) };
            Box::new(BuiltFalcon { plan: Rc::new(self.clone()), embed, layers, norm, head, weights: all.finish() })
                as Box<dyn Built>
        })
    }
}

struct BuiltFalcon {
    plan: Rc<Falcon>,
    embed: Tensor,
    layers: Vec<Rc<Layer>>,
    norm: [Tensor; 2],
    head: Tensor,
    weights: Vec<Tensor>,
}

impl Built for BuiltFalcon {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (ids, labels) = (&batch[0], &batch[1]);
        let head = Head { weight: &self.head, bias: None, softcap: false };
        causal_forward(run, labels, &|| self.hidden_states(run, ids), &head)
    }
}

impl BuiltFalcon {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let (t, p) = (&run.tape, &self.plan);
        let embedded = t.scope("embedding", || t.embedding(ids, &self.embed));
        let positions = t.scope("rotary", || position_ids(run));
        let mask = t.scope("mask", || Some(causal_mask(run, embedded.dtype())));
        let mut hidden = embedded.clone();
        let (cos, sin) = t.scope("rotary", || rotary_tables(run, p.d(), hidden.dtype()));
        let returned = Returned::open();
        for (i, layer) in (1u32..).zip(&self.layers) {
            t.set_layer(i);
            let call = Call {
                returned: returned.clone(),
                plan: self.plan.clone(),
                layer: layer.clone(),
                run: run.clone(),
                cos: cos.clone(),
                sin: sin.clone(),
                mask: mask.clone(),
                _positions: positions.clone(),
            };
            hidden = run.layer(i, &hidden, move |x| call.run(x));
        }
        t.set_layer(0);
        hidden = t.scope("final norm", || t.layer_norm(&hidden, &self.norm[0], &self.norm[1]));
        returned.close();
        drop((cos, sin));
        drop(mask);
        drop(positions);
        drop(embedded);
        hidden
    }
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    returned: Rc<Returned>,
    plan: Rc<Falcon>,
    layer: Rc<Layer>,
    run: Run,
    cos: Tensor,
    sin: Tensor,
    mask: Option<Tensor>,
    /// Passed to the layer, which does not use them; a checkpointed call keeps its arguments.
    _positions: Tensor,
}

impl Call {
    fn run(&self, x: &Tensor) -> Tensor {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let normed = t.scope("attention norm", || w.norm(t, x, 8));
        let second = if p.two_norms { t.scope("mlp norm", || w.norm(t, x, 10)) } else { normed.clone() };
        let (attended, scores) = t.scope("attention", || self.attention(&normed));
        let before = t.set_scope("mlp");
        let mut fed = {
            let mut hidden = {
                let wide = w.linear(t, &second, 4);
                p.activation.apply(t, &wide)
            };
            hidden = w.linear(t, &hidden, 6);
            hidden
        };
        fed = t.add_in_place(&fed, &attended);
        let out = {
            let dropped = t.dropout(&fed, p.hidden_dropout);
            t.add(x, &dropped)
        };
        t.set_scope(before);
        drop((normed, second, attended, fed));
        self.returned.replace(scores);
        out
    }

    /// Queries [b, a, s, d], keys and values [b, 1 or a, s, d].
    fn heads(&self, fused: &Tensor) -> [Tensor; 3] {
        let (t, p) = (&self.run.tape, &self.plan);
        let (b, s, d) = (self.run.batch, self.run.seq, p.d());
        let a = Dim::named(p.heads, Symbol::A);
        let [q, k, v] = match p.layout {
            Layout::MultiQuery => {
                let qkv = t.reshape(fused, &[b, s, Dim::plain(a.n + 2), d]);
                let q = t.slice(&qkv, 2, a);
                [q, t.index_one(&qkv, 2), t.index_one(&qkv, 2)]
            }
            Layout::Grouped => {
                let (g, n) = (Dim::plain(p.kv_heads), Dim::plain(a.n / p.kv_heads));
                let qkv = t.reshape(fused, &[b, s, g, Dim::plain(n.n + 2), d]);
                let q = t.slice(&qkv, 3, n);
                let (k, v) = (t.index_one(&qkv, 3), t.index_one(&qkv, 3));
                let (k, v) = (t.expand(&k, 3, n), t.expand(&v, 3, n));
                [&q, &k, &v].map(|x| t.reshape(x, &[b, s, a, d]))
            }
        };
        [q, k, v].map(|x| t.transpose(&x, 1, 2))
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (b, s, h) = (self.run.batch, self.run.seq, p.h());
        let fused = w.linear(t, x, 0);
        let [q, k, v] = self.heads(&fused);
        let (q, k) = {
            let (cos, sin) = (t.unsqueeze(&self.cos, 1), t.unsqueeze(&self.sin, 1));
            let rotated = (rotate(t, &q, &cos, &sin), rotate(t, &k, &cos, &sin));
            drop((q, k));
            rotated
        };
        let mask = self.mask.as_ref();
        let (mut out, scores) = match self.run.attention {
            AttentionPlan::Sdpa(forced) => (t.sdpa_masked(&q, &k, &v, mask, 0.0, forced), None),
            // The package is refused.
            AttentionPlan::Eager | AttentionPlan::Package => {
                let mut scores = {
                    let kt = t.transpose(&k, 2, 3);
                    t.matmul4(&q, &kt)
                };
                scores = t.scale_in_place(&scores);
                scores = {
                    let masked = mask.map_or_else(|| scores.clone(), |mask| t.add(&scores, mask));
                    t.softmax_as(&masked, x.dtype())
                };
                (t.matmul4(&scores, &v), Some(scores))
            }
        };
        out = t.reshape(&t.transpose(&out, 1, 2), &[b, s, h]);
        out = w.linear(t, &out, 2);
        drop((fused, q, k, v));
        (out, scores)
    }
}

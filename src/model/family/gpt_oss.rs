//! GPT-OSS: attention with a learned sink beside the scores, which transformers runs eager alone, and a mixture of experts
//! with biases in every layer (`modeling_gpt_oss.py`, transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};
use crate::model::family::common::{AttentionPlan, Head, Run, causal_forward, eager_mask, position_ids, repeat_kv};
use crate::model::family::experts::{Experts, Gate, Routed};
use crate::model::family::rotary::olmo_norm;
use crate::model::family::{
    Built, Dimensions, Model, Parameter, Parameters, decoder_names, matrix, names_of, names_there, vector,
};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::{Attention, Recipe};
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// The decoder's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct GptOss {
    hidden: u64,
    width: u64,
    /// For each layer whether it attends within a window.
    sliding: Vec<bool>,
    heads: u64,
    kv_heads: u64,
    head: u64,
    vocab: u64,
    tied: bool,
    bias: bool,
    experts: u64,
    per_token: u64,
    attention_dropout: f64,
}

/// `GptOssConfig`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let layers = f.required(&["num_hidden_layers"], MAX_LAYERS);
    let model = GptOss {
        hidden: f.required(&["hidden_size"], MAX_DIMENSION),
        width: f.required(&["intermediate_size"], MAX_DIMENSION),
        sliding: f.layer_types("layer_types", layers, |i| i.is_multiple_of(2)),
        heads: f.required(&["num_attention_heads"], MAX_HEADS),
        kv_heads: f.optional(&["num_key_value_heads"], 8, MAX_HEADS),
        head: f.optional(&["head_dim"], 64, MAX_DIMENSION),
        vocab: f.required(&["vocab_size"], MAX_DIMENSION),
        tied: f.flag("tie_word_embeddings", false),
        bias: f.flag("attention_bias", true),
        experts: f.optional(&["num_local_experts", "num_experts"], 128, MAX_DIMENSION),
        per_token: f.optional(&["num_experts_per_tok"], 4, MAX_DIMENSION),
        attention_dropout: f.probability("attention_dropout", 0.0),
    };
    f.divides("num_attention_heads", model.heads, "num_key_value_heads", model.kv_heads);
    f.at_most("num_experts_per_tok", model.per_token, model.experts);
    if !model.head.is_multiple_of(2) {
        f.refuse("head_dim", "rotary embeddings over an odd head size");
    }
    if f.nullable("sliding_window", Some(128), MAX_DIMENSION).is_none() {
        f.refuse("sliding_window", "GPT-OSS without a sliding window, which transformers does not run");
    }
    if f.flag("output_router_logits", false) {
        f.refuse("output_router_logits", "the router's auxiliary loss");
    }
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    f.finish(Box::new(model) as Box<dyn Model>)
}

/// Places of a layer's parameters in registration order; where there is a bias it follows its weight.
mod at {
    pub(super) const SINKS: usize = 0;
    pub(super) const Q: usize = 1;
    pub(super) const K: usize = 3;
    pub(super) const V: usize = 5;
    pub(super) const OUT: usize = 7;
    pub(super) const ROUTER: usize = 9;
    pub(super) const GATE_UP: usize = 11;
    pub(super) const DOWN: usize = 13;
    pub(super) const NORM: usize = 15;
    pub(super) const SECOND_NORM: usize = 16;
    pub(super) const COUNT: usize = 17;
}

impl GptOss {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn a(&self) -> Dim {
        Dim::named(self.heads, Symbol::A)
    }
    fn q(&self) -> Dim {
        Dim::named(self.heads.saturating_mul(self.head), Symbol::Q)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }

    /// One layer's parameters, `None` where the config has no such parameter.
    fn layer_shapes(&self) -> [Option<Shape>; at::COUNT] {
        let (h, q, k) = (self.h(), self.q(), Dim::named(self.kv_heads.saturating_mul(self.head), Symbol::K));
        let bias = |n: Dim| self.bias.then(|| vector(n));
        let [e, one, two] = [self.experts, self.width, self.width.saturating_mul(2)].map(Dim::plain);
        [
            Some(vector(self.a())),
            Some(matrix(q, h)),
            bias(q),
            Some(matrix(k, h)),
            bias(k),
            Some(matrix(k, h)),
            bias(k),
            Some(matrix(h, q)),
            bias(h),
            Some(matrix(e, h)),
            Some(vector(e)),
            Some(Shape::new(&[e, h, two])),
            Some(matrix(e, two)),
            Some(Shape::new(&[e, one, h])),
            Some(matrix(e, h)),
            Some(vector(h)),
            Some(vector(h)),
        ]
    }
}

impl Model for GptOss {
    fn family(&self) -> &'static str {
        "gpt_oss"
    }

    fn parameters(&self) -> Vec<Parameter> {
        let embed = matrix(self.v(), self.h());
        let other = |shape: Shape| Parameter { shape, linear: false, lookup_only: false };
        let mut all = vec![Parameter { shape: embed, linear: self.tied, lookup_only: !self.tied }];
        for _ in &self.sliding {
            all.extend(self.layer_shapes().into_iter().enumerate().filter_map(|(place, shape)| {
                let linear = matches!(place, at::Q | at::K | at::V | at::OUT | at::ROUTER);
                Some(Parameter { linear, ..other(shape?) })
            }));
        }
        all.push(other(vector(self.h())));
        if !self.tied {
            all.push(Parameter { linear: true, ..other(embed) });
        }
        all
    }

    fn routed_experts(&self) -> Option<(u64, u64)> {
        Some((self.per_token, self.experts))
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        const PLACES: [(usize, &str); 4] =
            [(at::Q, "q_proj"), (at::K, "k_proj"), (at::V, "v_proj"), (at::OUT, "o_proj")];
        let mut all = vec![None];
        for _ in &self.sliding {
            all.extend(names_of(&self.layer_shapes(), &PLACES));
        }
        all.push(None);
        if !self.tied {
            all.push(Some("lm_head"));
        }
        all
    }

    fn experts_lie_in_out(&self) -> bool {
        true
    }

    fn parameter_names(&self) -> Vec<String> {
        const NAMES: [&str; at::COUNT] = [
            "self_attn.sinks",
            "self_attn.q_proj.weight",
            "self_attn.q_proj.bias",
            "self_attn.k_proj.weight",
            "self_attn.k_proj.bias",
            "self_attn.v_proj.weight",
            "self_attn.v_proj.bias",
            "self_attn.o_proj.weight",
            "self_attn.o_proj.bias",
            "mlp.router.weight",
            "mlp.router.bias",
            "mlp.experts.gate_up_proj",
            "mlp.experts.gate_up_proj_bias",
            "mlp.experts.down_proj",
            "mlp.experts.down_proj_bias",
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
        ];
        let of_layer = |_| names_there(&NAMES, &self.layer_shapes());
        decoder_names(self.layers(), of_layer, self.tied)
    }

    fn kept_in_f32(&self, dtype: Dtype) -> &'static [&'static str] {
        if dtype == Dtype::F16 { &["post_attention_layernorm", "input_layernorm", "norm"] } else { &[] }
    }

    fn buffers(&self) -> Vec<u64> {
        // inv_freq and original_inv_freq.
        vec![self.head / 2, self.head / 2]
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions {
            layers: self.layers(),
            hidden: self.hidden,
            query_width: self.heads.saturating_mul(self.head),
            vocabulary: self.vocab,
        }
    }

    fn max_positions(&self) -> Option<u64> {
        None
    }

    fn refusals(&self, recipe: &Recipe) -> Vec<Issue> {
        if recipe.attention != Some(Attention::Sdpa) {
            return Vec::new();
        }
        let what = "sdpa attention in GPT-OSS, which transformers runs eager".into();
        vec![Issue::new("recipe.attention", IssueKind::NotModelled { what })]
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![
            ("b", recipe.micro_batch),
            ("s", recipe.seq_len),
            ("h", self.hidden),
            ("q", self.heads.saturating_mul(self.head)),
            ("k", self.kv_heads.saturating_mul(self.head)),
            ("a", self.heads),
            ("V", self.vocab),
            ("L", self.layers()),
        ]
    }

    fn layers(&self) -> u64 {
        self.sliding.len() as u64
    }

    fn with_layers(&self, layers: u64) -> Option<Box<dyn Model>> {
        /// Layers from here on are repeated: the mask of either kind must be let go before.
        const REPEATED: usize = 2;
        let early = |kind: bool| self.sliding.iter().position(|&s| s == kind).is_none_or(|first| first < REPEATED);
        let sliding = self.sliding.get(..usize::try_from(layers).ok()?)?.to_vec();
        (early(true) && early(false)).then(|| Box::new(Self { sliding, ..self.clone() }) as Box<dyn Model>)
    }

    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built> {
        let mut all = Parameters::new(tape, dtype);
        tape.scope("embedding", || {
            let embed = all.add(matrix(self.v(), self.h()));
            let shapes = self.layer_shapes();
            let layers: Vec<Rc<Layer>> = (1u32..)
                .zip(&self.sliding)
                .map(|(i, _)| {
                    tape.set_scope("layers");
                    tape.set_layer(i);
                    let mut layer = Layer(core::array::from_fn(|_| None));
                    let before = all.count();
                    let listed = |place: usize| before + shapes[..place].iter().flatten().count();
                    // The sinks are made after the projections, and listed before them.
                    for place in (at::Q..at::ROUTER).chain([at::SINKS]).chain(at::ROUTER..at::COUNT) {
                        layer.0[place] = shapes[place].map(|s| all.add_listed(listed(place), s, dtype));
                    }
                    Rc::new(layer)
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("final norm");
            let norm = all.add(vector(self.h()));
            tape.set_scope("head");
            let head = if self.tied { embed.clone() } else { all.add(matrix(self.v(), self.h())) };
            let mut weights = all.finish();
            let each = shapes.iter().flatten().count();
            let before_sinks = shapes[at::Q..at::ROUTER].iter().flatten().count();
            for layer in weights[1..].chunks_exact_mut(each).take(layers.len()) {
                layer[..=before_sinks].rotate_right(1);
            }
            Box::new(BuiltGptOss { plan: Rc::new(self.clone()), embed, layers, norm, head, weights }) as Box<dyn Built>
        })
    }
}

/// A layer's parameters.
#[derive(Debug)]
struct Layer([Option<Tensor>; at::COUNT]);

impl Layer {
    fn linear(&self, t: &Tape, x: &Tensor, at: usize) -> Tensor {
        match &self.0[at] {
            Some(w) => t.linear(x, w, self.0[at + 1].as_ref()),
            None => x.clone(),
        }
    }
    fn norm(&self, t: &Tape, x: &Tensor, at: usize) -> Tensor {
        self.0[at].as_ref().map_or_else(|| x.clone(), |w| olmo_norm(t, x, w))
    }
}

struct BuiltGptOss {
    plan: Rc<GptOss>,
    embed: Tensor,
    layers: Vec<Rc<Layer>>,
    norm: Tensor,
    head: Tensor,
    weights: Vec<Tensor>,
}

impl Built for BuiltGptOss {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let run = &Run { attention: AttentionPlan::Eager, ..run.clone() };
        let head = Head { weight: &self.head, bias: None, softcap: false };
        causal_forward(run, &batch[1], &|| self.hidden_states(run, &batch[0]), &head)
    }
}

impl BuiltGptOss {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let t = &run.tape;
        let embedded = t.scope("embedding", || t.embedding(ids, &self.embed));
        let positions = t.scope("rotary", || position_ids(run));
        let dtype = embedded.dtype();
        let masks = t.scope("mask", || [false, true].map(|window| eager_mask(run, dtype, window)));
        let mut hidden = embedded.clone();
        let (cos, sin) = t.scope("rotary", || self.tables(run, dtype));
        for ((i, layer), &sliding) in (1u32..).zip(&self.layers).zip(&self.plan.sliding) {
            t.set_layer(i);
            let call = Call {
                plan: self.plan.clone(),
                layer: layer.clone(),
                run: run.clone(),
                mask: masks[usize::from(sliding)].clone(),
                sin: sin.clone(),
                cos: cos.clone(),
                _positions: positions.clone(),
            };
            hidden = run.layer(i, &hidden, move |x| call.run(x));
        }
        t.set_layer(0);
        let out = t.scope("final norm", || olmo_norm(t, &hidden, &self.norm));
        drop(hidden);
        // The embeddings are held by the masks' arguments too.
        drop((positions, masks, embedded, sin, cos));
        out
    }

    /// The cosine and sine tables, [1, s, d ÷ 2]: one angle for both halves of a head.
    fn tables(&self, run: &Run, dtype: Dtype) -> (Tensor, Tensor) {
        let t = &run.tape;
        let one = Dim::plain(1);
        let half = Shape::new(&[one, run.seq, Dim::plain(self.plan.head / 2)]);
        let positions = t.temp(Shape::new(&[one, run.seq, one]), Dtype::F32, "positions");
        let angles = t.temp(half, Dtype::F32, "rotary angles");
        drop(positions);
        let table = |op: &'static str| {
            let raw = t.temp(half, Dtype::F32, op);
            let scaled = t.temp(half, Dtype::F32, op);
            drop(raw);
            scaled
        };
        let (cos, sin) = (table("cosine table"), table("sine table"));
        let out = (t.to(&cos, dtype), t.to(&sin, dtype));
        drop((angles, cos, sin));
        out
    }
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    plan: Rc<GptOss>,
    layer: Rc<Layer>,
    run: Run,
    mask: Option<Tensor>,
    /// Sine before cosine: a tuple lets go its last item first.
    sin: Tensor,
    cos: Tensor,
    /// Passed to the layer, which does not use them; a checkpointed call keeps its arguments.
    _positions: Tensor,
}

impl Call {
    fn run(&self, x: &Tensor) -> Tensor {
        let (t, w) = (&self.run.tape, &self.layer);
        let residual = x.clone();
        let normed = t.scope("attention norm", || w.norm(t, x, at::NORM));
        // The probabilities live in `_` until the scores of the experts take their place.
        let (attended, probabilities) = t.scope("attention", || self.attention(&normed));
        drop(normed);
        let hidden = t.scope("attention", || t.add(&residual, &attended));
        drop(attended);
        drop(residual);
        let normed = t.scope("mlp norm", || w.norm(t, &hidden, at::SECOND_NORM));
        let (fed, scores) = t.scope("mlp", || self.experts(&normed));
        drop(normed);
        drop(probabilities);
        let out = t.scope("mlp", || t.add(&hidden, &fed));
        drop(fed);
        drop((hidden, scores));
        out
    }

    /// `GptOssMLP`: the experts' weighted sum, and the chosen experts' scores.
    fn experts(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let parts = [at::GATE_UP, at::GATE_UP + 1, at::DOWN, at::DOWN + 1].map(|at| w.0[at].clone());
        let [Some(gate_up), Some(gate_up_bias), Some(down), Some(down_bias)] = parts else { return (x.clone(), None) };
        let (b, s, h) = (self.run.batch, self.run.seq, p.h());
        let flat = t.reshape(x, &[b.times(s), h]);
        // The router's logits live in `_` until the block returns.
        let logits = w.linear(t, &flat, at::ROUTER);
        let (weights, experts) = {
            let (best, places) = t.topk(&logits, p.per_token);
            (t.softmax_as(&best, best.dtype()), places)
        };
        let biases = Some([gate_up_bias, down_bias]);
        let layers = Experts { gate_up, down, biases, gate: Gate::Clamped, transposed: true };
        let mut out = layers.run(t, &flat, &Routed { weights: &weights, experts: &experts });
        drop(flat);
        out = t.reshape(&out, &[b, s, h]);
        drop((logits, experts));
        (out, Some(weights))
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Tensor) {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (b, s) = (self.run.batch, self.run.seq);
        let (a, g) = (p.a(), Dim::named(p.kv_heads, Symbol::G));
        let heads = |at: usize, n: Dim| {
            let projected = w.linear(t, x, at);
            t.transpose(&t.reshape(&projected, &[b, s, n, Dim::named(p.head, Symbol::D)]), 1, 2)
        };
        let (q, k, v) = (heads(at::Q, a), heads(at::K, g), heads(at::V, g));
        let (q, k) = {
            let (cos, sin) = (t.unsqueeze(&self.cos, 1), t.unsqueeze(&self.sin, 1));
            let rotated = (rotate_halves(t, &q, &cos, &sin), rotate_halves(t, &k, &cos, &sin));
            drop(q);
            drop(k);
            rotated
        };
        let (mut out, probabilities) = self.attend((&q, &k, &v));
        out = t.reshape(&out, &[b, s, p.q()]);
        out = w.linear(t, &out, at::OUT);
        drop((q, k, v));
        (out, probabilities)
    }

    /// `eager_attention_forward`: a column of sinks beside the scores takes part in the softmax and is cut off.
    fn attend(&self, (q, k, v): (&Tensor, &Tensor, &Tensor)) -> (Tensor, Tensor) {
        let (t, p) = (&self.run.tape, &self.plan);
        let (k, v) = (repeat_kv(t, k, p.a()), repeat_kv(t, v, p.a()));
        let mut weights = {
            let raw = t.matmul4(q, &t.transpose(&k, 2, 3));
            t.mul_scalar(&raw)
        };
        if let Some(mask) = &self.mask {
            weights = t.add(&weights, mask);
        }
        let one = Dim::plain(1);
        let sinks = self.layer.0[at::SINKS].as_ref().map(|sinks| {
            let seen = t.reshape(sinks, &[one, p.a(), one, one]);
            t.expand_along(&seen, &[(0, q.dim(0)), (2, q.dim(2))])
        });
        let keys = weights.dim(3);
        let mut combined = weights.clone();
        if let Some(sinks) = &sinks {
            // Autocast gives all parts the widest dtype.
            let widest = weights.dtype().max(sinks.dtype());
            let (left, right) = (t.to(&weights, widest), t.to(sinks, widest));
            combined = t.cat(&left, &right, 3, Dim::plain(keys.n.saturating_add(1)));
        }
        combined = {
            let most = t.max_last(&combined);
            t.sub(&combined, &most)
        };
        let probabilities = t.softmax_as(&combined, combined.dtype());
        let scores = t.slice(&probabilities, 3, keys);
        weights = t.to(&t.dropout(&scores, p.attention_dropout), v.dtype());
        let mut out = t.matmul4(&weights, &v);
        out = t.contiguous(&t.transpose(&out, 1, 2));
        drop((k, v, sinks, combined, probabilities, scores));
        (out, weights)
    }
}

/// `_apply_rotary_emb`: both halves turned by the same angles.
fn rotate_halves(t: &Tape, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    let whole = x.dim(3);
    let halves = t.split(x, 3, Dim::plain(whole.n / 2), 2);
    let (first, second) = (&halves[0], &halves[1]);
    let turned = {
        let (left, right) = (t.mul(first, cos), t.mul(second, sin));
        let out = t.sub(&left, &right);
        drop(left);
        drop(right);
        out
    };
    let other = {
        let (left, right) = (t.mul(second, cos), t.mul(first, sin));
        let out = t.add(&left, &right);
        drop(left);
        drop(right);
        out
    };
    let out = t.cat(&turned, &other, 3, whole);
    drop(turned);
    drop(other);
    out
}

//! Gemma, Gemma 2 and the text model of Gemma 3 (`modeling_gemma.py`, `modeling_gemma2.py`, `modeling_gemma3.py`,
//! transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};
use crate::model::family::common::{
    Activation, Attend, AttentionPlan, Head, Run, attend_by, causal_forward, eager_mask, gated_mlp, position_ids,
    rotary_tables, rotate_both, window_mask,
};
use crate::model::family::{
    Built, Dimensions, Model, Parameter, Parameters, decoder_names, matrix, names_of, names_there, vector,
};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::{Attention, LigerKernel, Loss, Recipe};
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generation {
    Gemma,
    Gemma2,
    Gemma3,
}

/// A Gemma's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct Gemma {
    generation: Generation,
    hidden: u64,
    mlp: u64,
    /// For each layer, whether it attends within the window alone.
    sliding: Vec<bool>,
    /// Whether there are layers of both kinds, which are then given a rotary table each (Gemma 3).
    kinds: u64,
    heads: u64,
    kv_heads: u64,
    head: u64,
    vocab: u64,
    tied: bool,
    bias: bool,
    activation: Activation,
    attention_dropout: f64,
    window: u64,
    attention_cap: bool,
    logits_cap: bool,
}

/// `GemmaConfig`.
pub(super) fn read_gemma(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Generation::Gemma, config)
}

/// `Gemma2Config`.
pub(super) fn read_gemma2(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Generation::Gemma2, config)
}

/// `Gemma3TextConfig`.
pub(super) fn read_gemma3(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Generation::Gemma3, config)
}

fn read(generation: Generation, config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let first = generation == Generation::Gemma;
    let mut f = Fields::new(config);
    let hidden = f.required(&["hidden_size"], MAX_DIMENSION);
    let mlp = f.required(&["intermediate_size"], MAX_DIMENSION);
    let layers = f.required(&["num_hidden_layers"], MAX_LAYERS);
    let heads = f.required(&["num_attention_heads"], MAX_HEADS);
    let vocab = f.required(&["vocab_size"], MAX_DIMENSION);
    let kv_heads = f.optional(&["num_key_value_heads"], if first { 16 } else { 4 }, MAX_HEADS);
    let head = f.optional(&["head_dim"], 256, MAX_DIMENSION);
    f.divides("num_attention_heads", heads, "num_key_value_heads", kv_heads);
    if !head.is_multiple_of(2) {
        f.refuse("head_dim", "rotary embeddings over an odd head size");
    }
    let act = if first { "hidden_act" } else { "hidden_activation" };
    let activation = Activation::read(&mut f, act, "gelu_pytorch_tanh");
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    if f.flag("use_bidirectional_attention", false) {
        f.refuse("use_bidirectional_attention", "attention in both directions in Gemma");
    }
    let sliding = match generation {
        Generation::Gemma => vec![false; usize::try_from(layers).unwrap_or(0)],
        Generation::Gemma2 => f.layer_types("layer_types", layers, |i| !(i + 1).is_multiple_of(2)),
        Generation::Gemma3 => {
            let pattern = f.optional(&["sliding_window_pattern"], 6, MAX_LAYERS);
            f.layer_types("layer_types", layers, |i| !(i + 1).is_multiple_of(pattern))
        }
    };
    let window = if first { MAX_DIMENSION } else { f.optional(&["sliding_window"], 4096, MAX_DIMENSION) };
    let second = generation == Generation::Gemma2;
    let cap = |name: &'static str| !first && f.has_or(name, second);
    let (attention_cap, logits_cap) = (cap("attn_logit_softcapping"), cap("final_logit_softcapping"));
    let kinds = if sliding.iter().any(|&s| s) && sliding.iter().any(|&s| !s) { 2 } else { 1 };
    let model = Gemma {
        generation,
        hidden,
        mlp,
        sliding,
        kinds,
        heads,
        kv_heads,
        head,
        vocab,
        tied: f.flag("tie_word_embeddings", true),
        bias: f.flag("attention_bias", false),
        activation,
        attention_dropout: f.probability("attention_dropout", 0.0),
        window,
        // Gemma 3 reads the field and does not use it.
        attention_cap: attention_cap && second,
        logits_cap,
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

impl Gemma {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn f(&self) -> Dim {
        Dim::named(self.mlp, Symbol::F)
    }
    fn q(&self) -> Dim {
        Dim::named(self.heads * self.head, Symbol::Q)
    }
    fn k(&self) -> Dim {
        Dim::named(self.kv_heads * self.head, Symbol::K)
    }
    fn d(&self) -> Dim {
        Dim::named(self.head, Symbol::D)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }

    /// One layer's parameters in registration order, `None` where this generation or config has no such parameter.
    fn layer_shapes(&self) -> [Option<Shape>; LAYER] {
        let (h, f, q, k, d) = (self.h(), self.f(), self.q(), self.k(), self.d());
        let bias = |n: Dim| self.bias.then(|| vector(n));
        let third = self.generation == Generation::Gemma3;
        let sandwich = self.generation != Generation::Gemma;
        [
            Some(matrix(q, h)),
            bias(q),
            Some(matrix(k, h)),
            bias(k),
            Some(matrix(k, h)),
            bias(k),
            Some(matrix(h, q)),
            bias(h),
            third.then(|| vector(d)),
            third.then(|| vector(d)),
            Some(matrix(f, h)),
            Some(matrix(f, h)),
            Some(matrix(h, f)),
            Some(vector(h)),
            Some(vector(h)),
            sandwich.then(|| vector(h)),
            sandwich.then(|| vector(h)),
        ]
    }

    /// RMSNorm in FP32 with the weight counted from one, cast back at the end.
    fn rms_norm(&self, t: &Tape, x: &Tensor, weight: &Tensor) -> Tensor {
        if t.fuses(LigerKernel::RmsNorm) {
            // The later generations' residuals need the gradient that would be overwritten.
            return t.liger_rms_norm(x, weight, self.generation == Generation::Gemma);
        }
        let mut out = {
            let x = t.to(x, Dtype::F32);
            let rstd = {
                let shifted = {
                    let mean = {
                        let square = t.pow(&x);
                        t.mean_last(&square)
                    };
                    t.add_scalar(&mean)
                };
                t.rsqrt(&shifted)
            };
            t.mul(&x, &rstd)
        };
        out = {
            let shifted = {
                let weight = t.to(weight, Dtype::F32);
                t.add_scalar(&weight)
            };
            t.mul(&out, &shifted)
        };
        t.to(&out, x.dtype())
    }

    /// Gemma 2 has no `sdpa` in transformers 5.24 (`_supports_sdpa`): without a choice it runs eager.
    fn run(&self, run: &Run) -> Run {
        match self.generation {
            Generation::Gemma2 if run.attention != AttentionPlan::Package => {
                Run { attention: AttentionPlan::Eager, ..run.clone() }
            }
            _ => run.clone(),
        }
    }
}

/// How many places a layer has for parameters.
const LAYER: usize = 17;

/// A layer's parameters.
#[derive(Debug)]
struct Layer([Option<Tensor>; LAYER]);

impl Layer {
    fn linear(&self, t: &Tape, x: &Tensor, at: usize) -> Tensor {
        match &self.0[at] {
            Some(w) => t.linear(x, w, self.0[at + 1].as_ref()),
            None => x.clone(),
        }
    }
    /// The norm, where the generation has it.
    fn norm(&self, p: &Gemma, t: &Tape, x: Tensor, at: usize) -> Tensor {
        match &self.0[at] {
            Some(w) => p.rms_norm(t, &x, w),
            None => x,
        }
    }
}

impl Model for Gemma {
    fn family(&self) -> &'static str {
        match self.generation {
            Generation::Gemma => "gemma",
            Generation::Gemma2 => "gemma2",
            Generation::Gemma3 => "gemma3_text",
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        let mut all = vec![Parameter { shape: matrix(self.v(), self.h()), linear: self.tied, lookup_only: !self.tied }];
        let of = |shape: Shape| Parameter { shape, linear: shape.rank() == 2, lookup_only: false };
        for _ in &self.sliding {
            all.extend(self.layer_shapes().into_iter().flatten().map(of));
        }
        all.push(of(vector(self.h())));
        if !self.tied {
            all.push(of(matrix(self.v(), self.h())));
        }
        all
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        const NAMES: [(usize, &str); 7] = [
            (0, "q_proj"),
            (2, "k_proj"),
            (4, "v_proj"),
            (6, "o_proj"),
            (10, "gate_proj"),
            (11, "up_proj"),
            (12, "down_proj"),
        ];
        let mut all = vec![None];
        for _ in &self.sliding {
            all.extend(names_of(&self.layer_shapes(), &NAMES));
        }
        all.push(None);
        if !self.tied {
            all.push(Some("lm_head"));
        }
        all
    }

    fn parameter_names(&self) -> Vec<String> {
        const NAMES: [&str; LAYER] = [
            "self_attn.q_proj.weight",
            "self_attn.q_proj.bias",
            "self_attn.k_proj.weight",
            "self_attn.k_proj.bias",
            "self_attn.v_proj.weight",
            "self_attn.v_proj.bias",
            "self_attn.o_proj.weight",
            "self_attn.o_proj.bias",
            "self_attn.q_norm.weight",
            "self_attn.k_norm.weight",
            "mlp.gate_proj.weight",
            "mlp.up_proj.weight",
            "mlp.down_proj.weight",
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
            "pre_feedforward_layernorm.weight",
            "post_feedforward_layernorm.weight",
        ];
        let of_layer = |_| names_there(&NAMES, &self.layer_shapes());
        decoder_names(self.layers(), of_layer, self.tied)
    }

    fn buffers(&self) -> Vec<u64> {
        // The embedding's scale; inv_freq and original_inv_freq, for each kind of layer in Gemma 3.
        let tables = if self.generation == Generation::Gemma3 { self.kinds } else { 1 };
        let mut all = vec![1];
        for _ in 0..2 * tables {
            all.push(self.head / 2);
        }
        all
    }

    fn liger(&self) -> &'static [LigerKernel] {
        &LigerKernel::ALL
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions {
            layers: self.layers(),
            hidden: self.hidden,
            query_width: self.heads * self.head,
            vocabulary: self.vocab,
        }
    }

    fn packs(&self) -> bool {
        true
    }

    fn takes_flash_package(&self) -> bool {
        true
    }

    fn is_causal_lm(&self) -> bool {
        true
    }

    fn max_positions(&self) -> Option<u64> {
        None
    }

    fn refusals(&self, recipe: &Recipe) -> Vec<Issue> {
        if self.generation == Generation::Gemma2 && recipe.attention == Some(Attention::Sdpa) {
            let what = "sdpa attention in Gemma 2, which transformers runs eager".into();
            return vec![Issue::new("recipe.attention", IssueKind::NotModelled { what })];
        }
        if self.logits_cap
            && matches!(recipe.loss, Loss::Chunked(_) | Loss::ChunkedOutputs(_) | Loss::LinearCrossEntropy(_))
        {
            let what = "a loss in pieces over logits that are capped".into();
            return vec![Issue::new("recipe.loss", IssueKind::NotModelled { what })];
        }
        Vec::new()
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![
            ("b", recipe.micro_batch),
            ("s", recipe.seq_len),
            ("h", self.hidden),
            ("f", self.mlp),
            ("q", self.heads * self.head),
            ("k", self.kv_heads * self.head),
            ("a", self.heads),
            ("g", self.kv_heads),
            ("d", self.head),
            ("V", self.vocab),
            ("L", self.layers()),
        ]
    }

    fn layers(&self) -> u64 {
        self.sliding.len() as u64
    }

    /// Layers of both kinds are alike under eager attention. Under `sdpa` the windowed ones take another backend once
    /// the sequence is as long as the window.
    fn with_layers(&self, layers: u64) -> Option<Box<dyn Model>> {
        let alike = self.generation != Generation::Gemma3 || self.kinds == 1;
        let mut short = self.clone();
        short.sliding.truncate(usize::try_from(layers).ok()?);
        alike.then(|| Box::new(short) as Box<dyn Model>)
    }

    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built> {
        let mut all = Parameters::new(tape, dtype);
        tape.scope("embedding", || {
            let embed = all.add(matrix(self.v(), self.h()));
            let layers: Vec<Rc<Layer>> = (1u32..)
                .zip(&self.sliding)
                .map(|(i, _)| {
                    tape.set_scope("layers");
                    tape.set_layer(i);
                    Rc::new(Layer(self.layer_shapes().map(|s| s.map(|s| all.add(s)))))
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("final norm");
            let norm = all.add(vector(self.h()));
            tape.set_scope("head");
            let head = if self.tied { embed.clone() } else { all.add(matrix(self.v(), self.h())) };
            Box::new(BuiltGemma { plan: Rc::new(self.clone()), embed, layers, norm, head, weights: all.finish() })
                as Box<dyn Built>
        })
    }
}

struct BuiltGemma {
    plan: Rc<Gemma>,
    embed: Tensor,
    layers: Vec<Rc<Layer>>,
    norm: Tensor,
    head: Tensor,
    weights: Vec<Tensor>,
}

impl Built for BuiltGemma {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (ids, labels) = (&batch[0], &batch[1]);
        let head = Head { weight: &self.head, bias: None, softcap: self.plan.logits_cap };
        causal_forward(run, labels, &|| self.hidden_states(&self.plan.run(run), ids), &head)
    }
}

impl BuiltGemma {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let (t, p) = (&run.tape, &self.plan);
        let embedded = t.scope("embedding", || {
            let raw = t.look_up(ids, &self.embed);
            // A buffer in the weights' dtype.
            let scale = t.buffer(Shape::new(&[]), self.embed.dtype());
            t.as_input(t.mul(&raw, &scale), &self.embed)
        });
        let positions = t.scope("rotary", || position_ids(run));
        let dtype = embedded.dtype();
        let masks = t.scope("mask", || {
            let full = eager_mask(run, dtype, false);
            let near = if p.generation == Generation::Gemma { None } else { window_mask(run, dtype, p.window) };
            [full, near]
        });
        let mut hidden = embedded.clone();
        let tables = t.scope("rotary", || {
            let count = if p.generation == Generation::Gemma3 { p.kinds } else { 1 };
            (0..count).map(|_| rotary_tables(run, p.d(), dtype)).collect::<Vec<_>>()
        });
        for ((i, layer), &sliding) in (1u32..).zip(&self.layers).zip(&p.sliding) {
            t.set_layer(i);
            // Which table is made first is the order of a Python set of strings, which varies from run to run.
            let (cos, sin) = &tables[if sliding { 0 } else { tables.len() - 1 }];
            let call = Call {
                plan: self.plan.clone(),
                layer: layer.clone(),
                run: run.clone(),
                cos: cos.clone(),
                sin: sin.clone(),
                mask: masks[usize::from(sliding)].clone(),
                _positions: positions.clone(),
            };
            hidden = run.layer(i, &hidden, move |x| call.run(x));
        }
        t.set_layer(0);
        let out = t.scope("final norm", || p.rms_norm(t, &hidden, &self.norm));
        drop(hidden);
        drop(tables);
        drop(masks);
        drop(positions);
        drop(embedded);
        out
    }
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    plan: Rc<Gemma>,
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
        let sandwich = self.plan.generation != Generation::Gemma;
        let residual = x.clone();
        let normed = t.scope("attention norm", || w.norm(p, t, x.clone(), 13));
        // The probabilities live in `_` until the layer returns.
        let (mut attended, probabilities) = t.scope("attention", || self.attention(&normed));
        drop(normed);
        if sandwich {
            attended = t.scope("attention norm", || w.norm(p, t, attended, 14));
        }
        let hidden = t.scope("attention", || t.add(&residual, &attended));
        drop(attended);
        drop(residual);
        let normed = t.scope("mlp norm", || w.norm(p, t, hidden.clone(), if sandwich { 15 } else { 14 }));
        let mut fed = t.scope("mlp", || match [&w.0[10], &w.0[11], &w.0[12]] {
            [Some(gate), Some(up), Some(down)] => gated_mlp(t, &normed, [gate, up, down], self.plan.activation),
            _ => normed.clone(),
        });
        drop(normed);
        if sandwich {
            fed = t.scope("mlp norm", || w.norm(p, t, fed, 16));
        }
        let out = t.scope("mlp", || t.add(&hidden, &fed));
        drop(fed);
        drop(hidden);
        drop(probabilities);
        out
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (b, s) = (self.run.batch, self.run.seq);
        let (a, g) = (Dim::named(p.heads, Symbol::A), Dim::named(p.kv_heads, Symbol::G));
        let heads = |at: usize, n: Dim| {
            let x = t.reshape(&w.linear(t, x, at), &[b, s, n, p.d()]);
            t.transpose(&x, 1, 2)
        };
        let (q, k, v) = (heads(0, a), heads(2, g), heads(4, g));
        let (q, k) = (w.norm(p, t, q, 8), w.norm(p, t, k, 9));
        let (q, k) = {
            // Unsqueezed over the heads, as views.
            let (cos, sin) = (t.unsqueeze(&self.cos, 1), t.unsqueeze(&self.sin, 1));
            let rotated = rotate_both(t, &q, &k, [&cos, &sin]);
            drop(q);
            drop(k);
            rotated
        };
        let with =
            Attend { mask: self.mask.as_ref(), dropout: p.attention_dropout, width: p.q(), softcap: p.attention_cap };
        let (mut out, probabilities) = attend_by(&self.run, (&q, &k, &v), &with);
        out = w.linear(t, &out, 6);
        drop((q, k, v));
        (out, probabilities)
    }
}

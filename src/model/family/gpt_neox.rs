//! GPT-NeoX and Pythia (`modeling_gpt_neox.py`, transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::issue::Issue;
use crate::model::family::common::{
    Activation, Head, Run, attend, causal_forward, eager_mask, position_ids, rotary_tables, rotate_part, rotated_parts,
};
use crate::model::family::{
    Built, Dimensions, Model, Parameter, Parameters, dotted_names, matrix, names_of, names_there, vector,
};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::Recipe;
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// GPT-NeoX's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct GptNeox {
    hidden: u64,
    mlp: u64,
    layers: u64,
    heads: u64,
    vocab: u64,
    /// How many dimensions of a head are rotated.
    rotary: u64,
    tied: bool,
    bias: bool,
    parallel: bool,
    activation: Activation,
    attention_dropout: f64,
    hidden_dropout: f64,
}

/// `GPTNeoXConfig`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let hidden = f.required(&["hidden_size"], MAX_DIMENSION);
    let mlp = f.required(&["intermediate_size"], MAX_DIMENSION);
    let layers = f.required(&["num_hidden_layers"], MAX_LAYERS);
    let heads = f.required(&["num_attention_heads"], MAX_HEADS);
    let vocab = f.required(&["vocab_size"], MAX_DIMENSION);
    f.divides("hidden_size", hidden, "num_attention_heads", heads);
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    let model = GptNeox {
        hidden,
        mlp,
        layers,
        heads,
        vocab,
        rotary: f.rotary_part((hidden / heads).max(1), "rotary_pct", 0.25),
        tied: f.flag("tie_word_embeddings", false),
        bias: f.flag("attention_bias", true),
        parallel: f.flag("use_parallel_residual", true),
        activation: Activation::read(&mut f, "hidden_act", "gelu"),
        attention_dropout: f.probability("attention_dropout", 0.0),
        hidden_dropout: f.probability("hidden_dropout", 0.0),
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

impl GptNeox {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn f(&self) -> Dim {
        Dim::named(self.mlp, Symbol::F)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }

    /// Both norms, query_key_value, dense, dense_h_to_4h, dense_4h_to_h: weight and bias each.
    fn layer_shapes(&self) -> [Option<Shape>; LAYER] {
        let (h, f) = (self.h(), self.f());
        let h3 = Dim { n: 3 * h.n, sym: h.sym };
        let bias = |n: Dim| self.bias.then(|| vector(n));
        [
            Some(vector(h)),
            Some(vector(h)),
            Some(vector(h)),
            Some(vector(h)),
            Some(matrix(h3, h)),
            bias(h3),
            Some(matrix(h, h)),
            bias(h),
            Some(matrix(f, h)),
            Some(vector(f)),
            Some(matrix(h, f)),
            Some(vector(h)),
        ]
    }
}

/// How many places a layer has for parameters.
const LAYER: usize = 12;

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
    fn norm(&self, t: &Tape, x: &Tensor, at: usize) -> Tensor {
        match (&self.0[at], &self.0[at + 1]) {
            (Some(w), Some(b)) => t.layer_norm(x, w, b),
            _ => x.clone(),
        }
    }
}

impl Model for GptNeox {
    fn family(&self) -> &'static str {
        "gpt_neox"
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
        const NAMES: [(usize, &str); 4] =
            [(4, "query_key_value"), (6, "dense"), (8, "dense_h_to_4h"), (10, "dense_4h_to_h")];
        let mut all = vec![None];
        for _ in 0..self.layers {
            all.extend(names_of(&self.layer_shapes(), &NAMES));
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
            "post_attention_layernorm.weight",
            "post_attention_layernorm.bias",
            "attention.query_key_value.weight",
            "attention.query_key_value.bias",
            "attention.dense.weight",
            "attention.dense.bias",
            "mlp.dense_h_to_4h.weight",
            "mlp.dense_h_to_4h.bias",
            "mlp.dense_4h_to_h.weight",
            "mlp.dense_4h_to_h.bias",
        ];
        let of_layer = |_| names_there(&NAMES, &self.layer_shapes());
        let all: &[&str] = &["gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias", "lm_head.weight"];
        let after = if self.tied { &all[..2] } else { all };
        dotted_names(&["gpt_neox.embed_in.weight"], ("gpt_neox.layers", self.layers), of_layer, after)
    }

    fn buffers(&self) -> Vec<u64> {
        // inv_freq and original_inv_freq.
        vec![self.rotary / 2, self.rotary / 2]
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions { layers: self.layers, hidden: self.hidden, query_width: self.hidden, vocabulary: self.vocab }
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

    fn refusals(&self, _: &Recipe) -> Vec<Issue> {
        Vec::new()
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
            Box::new(BuiltGptNeox { plan: Rc::new(self.clone()), embed, layers, norm, head, weights: all.finish() })
                as Box<dyn Built>
        })
    }
}

struct BuiltGptNeox {
    plan: Rc<GptNeox>,
    embed: Tensor,
    layers: Vec<Rc<Layer>>,
    norm: [Tensor; 2],
    head: Tensor,
    weights: Vec<Tensor>,
}

impl Built for BuiltGptNeox {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (ids, labels) = (&batch[0], &batch[1]);
        let head = Head { weight: &self.head, bias: None, softcap: false };
        causal_forward(run, labels, &|| self.hidden_states(run, ids), &head)
    }
}

impl BuiltGptNeox {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let (t, p) = (&run.tape, &self.plan);
        let embedded = t.scope("embedding", || t.embedding(ids, &self.embed));
        let positions = t.scope("rotary", || position_ids(run));
        let mask = t.scope("mask", || eager_mask(run, embedded.dtype(), false));
        let mut hidden = t.scope("embedding", || t.dropout(&embedded, p.hidden_dropout));
        let (cos, sin) = t.scope("rotary", || rotary_tables(run, Dim::plain(p.rotary), hidden.dtype()));
        for (i, layer) in (1u32..).zip(&self.layers) {
            t.set_layer(i);
            let call = Call {
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
        drop((cos, sin));
        drop(mask);
        drop(positions);
        drop(embedded);
        hidden
    }
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    plan: Rc<GptNeox>,
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
        // The probabilities live in `_` until the layer returns.
        let (mut attended, probabilities) = {
            let normed = t.scope("attention norm", || w.norm(t, x, 0));
            t.scope("attention", || self.attention(&normed))
        };
        attended = t.scope("attention", || t.dropout(&attended, p.hidden_dropout));
        if !p.parallel {
            attended = t.scope("attention", || t.add(&attended, x));
        }
        let mut fed = {
            let normed = t.scope("mlp norm", || w.norm(t, if p.parallel { x } else { &attended }, 2));
            t.scope("mlp", || self.mlp(&normed))
        };
        let before = t.set_scope("mlp");
        fed = t.dropout(&fed, p.hidden_dropout);
        let out = {
            let sum = t.add(&fed, &attended);
            if p.parallel { t.add(&sum, x) } else { sum }
        };
        t.set_scope(before);
        drop(attended);
        drop(probabilities);
        drop(fed);
        out
    }

    fn mlp(&self, x: &Tensor) -> Tensor {
        let (t, w) = (&self.run.tape, &self.layer);
        let mut hidden = w.linear(t, x, 8);
        hidden = self.plan.activation.apply(t, &hidden);
        w.linear(t, &hidden, 10)
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (b, s) = (self.run.batch, self.run.seq);
        let a = Dim::named(p.heads, Symbol::A);
        let d = Dim::named(p.hidden / p.heads, Symbol::D);
        let qkv = {
            let flat = t.reshape(&w.linear(t, x, 4), &[b, s, a, Dim { n: 3 * d.n, sym: d.sym }]);
            t.transpose(&flat, 1, 2)
        };
        let parts = t.split(&qkv, 3, d, 3);
        let (q, k) = {
            let (cos, sin) = (t.unsqueeze(&self.cos, 1), t.unsqueeze(&self.sin, 1));
            let (q, k) = (rotated_parts(t, &parts[0], p.rotary), rotated_parts(t, &parts[1], p.rotary));
            let mut rotated = [rotate_part(t, &q, &cos, &sin), rotate_part(t, &k, &cos, &sin)];
            for (rotated, [_, pass]) in rotated.iter_mut().zip([&q, &k]) {
                *rotated = t.cat(rotated, pass, 3, d);
            }
            let [q, k] = rotated;
            (q, k)
        };
        let v = &parts[2];
        let (mut out, probabilities) = attend(&self.run, (&q, &k, v), self.mask.as_ref(), p.attention_dropout, p.h());
        out = w.linear(t, &out, 6);
        (out, probabilities)
    }
}

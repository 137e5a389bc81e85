//! OPT (`modeling_opt.py`, transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};
use crate::model::family::common::{Activation, Head, Run, attend, causal_forward, eager_mask};
use crate::model::family::{
    Built, Dimensions, Model, Parameter, Parameters, dotted_names, matrix, names_of, names_there, vector,
};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::Recipe;
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// OPT's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct Opt {
    hidden: u64,
    mlp: u64,
    layers: u64,
    heads: u64,
    vocab: u64,
    positions: u64,
    /// Width of the token embeddings; other than `hidden` they are projected.
    embedding: u64,
    before: bool,
    final_norm: bool,
    bias: bool,
    tied: bool,
    activation: Activation,
    dropout: f64,
    attention_dropout: f64,
}

/// `OPTConfig`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let hidden = f.required(&["hidden_size"], MAX_DIMENSION);
    let layers = f.required(&["num_hidden_layers"], MAX_LAYERS);
    let heads = f.required(&["num_attention_heads"], MAX_HEADS);
    let vocab = f.required(&["vocab_size"], MAX_DIMENSION);
    let mlp = f.required(&["ffn_dim"], MAX_DIMENSION);
    f.divides("hidden_size", hidden, "num_attention_heads", heads);
    if f.number("layerdrop", 0.0) != 0.0 {
        f.refuse("layerdrop", "layers that are left out at random");
    }
    if !f.flag("layer_norm_elementwise_affine", true) {
        f.refuse("layer_norm_elementwise_affine", "layer norms without weights");
    }
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    let before = f.flag("do_layer_norm_before", true);
    let model = Opt {
        hidden,
        mlp,
        layers,
        heads,
        vocab,
        positions: f.optional(&["max_position_embeddings"], 2048, MAX_DIMENSION),
        embedding: f.optional(&["word_embed_proj_dim"], hidden, MAX_DIMENSION),
        before,
        final_norm: before && !f.flag("_remove_final_layer_norm", false),
        bias: f.flag("enable_bias", true),
        tied: f.flag("tie_word_embeddings", true),
        activation: Activation::read(&mut f, "activation_function", "relu"),
        dropout: f.probability("dropout", 0.1),
        attention_dropout: f.probability("attention_dropout", 0.0),
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

/// The position table has two rows before the first position.
const OFFSET: u64 = 2;
/// How many places a layer has for parameters.
const LAYER: usize = 16;

impl Opt {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn f(&self) -> Dim {
        Dim::named(self.mlp, Symbol::F)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }
    fn e(&self) -> Dim {
        if self.projected() { Dim::plain(self.embedding) } else { self.h() }
    }
    fn table(&self) -> Shape {
        matrix(Dim::named(self.positions + OFFSET, Symbol::P), self.h())
    }
    fn projected(&self) -> bool {
        self.embedding != self.hidden
    }

    /// k, v, q, out, the attention's norm, fc1, fc2, the final norm: weight and bias each.
    fn layer_shapes(&self) -> [Option<Shape>; LAYER] {
        let (h, f) = (self.h(), self.f());
        let bias = |n: Dim| self.bias.then(|| vector(n));
        let square = Some(matrix(h, h));
        [
            square,
            bias(h),
            square,
            bias(h),
            square,
            bias(h),
            square,
            bias(h),
            Some(vector(h)),
            Some(vector(h)),
            Some(matrix(f, h)),
            bias(f),
            Some(matrix(h, f)),
            bias(h),
            Some(vector(h)),
            Some(vector(h)),
        ]
    }

    /// What comes before and after the layers, in registration order: the output and input projections, the final norm.
    fn outer_shapes(&self) -> [Option<Shape>; 4] {
        let (h, e) = (self.h(), self.e());
        [
            self.projected().then(|| matrix(e, h)),
            self.projected().then(|| matrix(h, e)),
            self.final_norm.then(|| vector(h)),
            self.final_norm.then(|| vector(h)),
        ]
    }
}

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

impl Model for Opt {
    fn family(&self) -> &'static str {
        "opt"
    }

    fn parameters(&self) -> Vec<Parameter> {
        let of = |shape: Shape| Parameter { shape, linear: shape.rank() == 2, lookup_only: false };
        let embed = matrix(self.v(), self.e());
        let mut all = vec![
            Parameter { shape: embed, linear: self.tied, lookup_only: !self.tied },
            Parameter { shape: self.table(), linear: false, lookup_only: true },
        ];
        all.extend(self.outer_shapes().into_iter().flatten().map(of));
        for _ in 0..self.layers {
            all.extend(self.layer_shapes().into_iter().flatten().map(of));
        }
        if !self.tied {
            all.push(of(embed));
        }
        all
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        const PLACES: [(usize, &str); 6] =
            [(0, "k_proj"), (2, "v_proj"), (4, "q_proj"), (6, "out_proj"), (10, "fc1"), (12, "fc2")];
        let mut all = vec![None, None];
        all.extend(names_of(&self.outer_shapes(), &[(0, "project_out"), (1, "project_in")]));
        for _ in 0..self.layers {
            all.extend(names_of(&self.layer_shapes(), &PLACES));
        }
        if !self.tied {
            all.push(Some("lm_head"));
        }
        all
    }

    fn parameter_names(&self) -> Vec<String> {
        const NAMES: [&str; LAYER] = [
            "self_attn.k_proj.weight",
            "self_attn.k_proj.bias",
            "self_attn.v_proj.weight",
            "self_attn.v_proj.bias",
            "self_attn.q_proj.weight",
            "self_attn.q_proj.bias",
            "self_attn.out_proj.weight",
            "self_attn.out_proj.bias",
            "self_attn_layer_norm.weight",
            "self_attn_layer_norm.bias",
            "fc1.weight",
            "fc1.bias",
            "fc2.weight",
            "fc2.bias",
            "final_layer_norm.weight",
            "final_layer_norm.bias",
        ];
        const OUTER: [&str; 4] = [
            "model.decoder.project_out.weight",
            "model.decoder.project_in.weight",
            "model.decoder.final_layer_norm.weight",
            "model.decoder.final_layer_norm.bias",
        ];
        let of_layer = |_| names_there(&NAMES, &self.layer_shapes());
        let mut before = vec!["model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight"];
        before.extend(names_there(&OUTER, &self.outer_shapes()));
        let after: &[&str] = if self.tied { &[] } else { &["lm_head.weight"] };
        dotted_names(&before, ("model.decoder.layers", self.layers), of_layer, after)
    }

    fn buffers(&self) -> Vec<u64> {
        Vec::new()
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions { layers: self.layers, hidden: self.hidden, query_width: self.hidden, vocabulary: self.vocab }
    }

    fn takes_flash_package(&self) -> bool {
        true
    }

    fn is_causal_lm(&self) -> bool {
        true
    }

    fn max_positions(&self) -> Option<u64> {
        Some(self.positions)
    }

    fn refusals(&self, recipe: &Recipe) -> Vec<Issue> {
        if recipe.seq_len <= self.positions {
            return Vec::new();
        }
        let kind = IssueKind::OutOfRange { min: 1, max: self.positions, found: recipe.seq_len.to_string() };
        vec![Issue::new("recipe.seq_len", kind)]
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
            ("p", self.positions + OFFSET),
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
            let embed = all.add(matrix(self.v(), self.e()));
            let table = all.add(self.table());
            tape.set_scope("final norm");
            let outer = self.outer_shapes().map(|s| s.map(|s| all.add(s)));
            tape.set_scope("layers");
            let layers: Vec<Rc<Layer>> = (1u32..)
                .take(usize::try_from(self.layers).unwrap_or(usize::MAX))
                .map(|i| {
                    tape.set_layer(i);
                    Rc::new(Layer(self.layer_shapes().map(|s| s.map(|s| all.add(s)))))
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("head");
            let head = if self.tied { embed.clone() } else { all.add(matrix(self.v(), self.e())) };
            let plan = Rc::new(self.clone());
            Box::new(BuiltOpt { plan, embed, table, outer, layers, head, weights: all.finish() }) as Box<dyn Built>
        })
    }
}

struct BuiltOpt {
    plan: Rc<Opt>,
    embed: Tensor,
    table: Tensor,
    outer: [Option<Tensor>; 4],
    layers: Vec<Rc<Layer>>,
    head: Tensor,
    weights: Vec<Tensor>,
}

impl Built for BuiltOpt {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (ids, labels) = (&batch[0], &batch[1]);
        let head = Head { weight: &self.head, bias: None, softcap: false };
        causal_forward(run, labels, &|| self.hidden_states(run, ids), &head)
    }
}

impl BuiltOpt {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let t = &run.tape;
        let before = t.set_scope("embedding");
        let mut embedded = t.embedding(ids, &self.embed);
        // A mask of ones, counted along each sequence.
        let grid = Shape::new(&[run.batch, run.seq]);
        let ones = t.temp(grid, Dtype::F32, "attention mask");
        let positions = {
            let counted = t.temp(grid, Dtype::F32, "positions");
            let masked = t.temp(grid, Dtype::F32, "positions");
            let shifted = t.temp(grid, Dtype::F32, "positions");
            drop(masked);
            let whole = t.temp(grid, Dtype::I64, "positions");
            drop(shifted);
            drop(counted);
            whole
        };
        t.set_scope("mask");
        let mask = eager_mask(run, embedded.dtype(), false);
        t.set_scope("embedding");
        let placed = {
            let offset = t.temp(grid, Dtype::I64, "positions");
            t.embedding(&offset, &self.table)
        };
        if let Some(project) = &self.outer[1] {
            embedded = t.linear(&embedded, project, None);
        }
        let mut hidden = t.add(&embedded, &placed);
        for (i, layer) in (1u32..).zip(&self.layers) {
            t.set_layer(i);
            let call = Call {
                plan: self.plan.clone(),
                layer: layer.clone(),
                run: run.clone(),
                mask: mask.clone(),
                _positions: positions.clone(),
            };
            hidden = run.layer(i, &hidden, move |x| call.run(x));
        }
        t.set_layer(0);
        t.set_scope("final norm");
        if let (Some(w), Some(b)) = (&self.outer[2], &self.outer[3]) {
            hidden = t.layer_norm(&hidden, w, b);
        }
        t.set_scope("head");
        if let Some(project) = &self.outer[0] {
            hidden = t.linear(&hidden, project, None);
        }
        drop((embedded, ones, positions, mask, placed));
        t.set_scope(before);
        hidden
    }
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    plan: Rc<Opt>,
    layer: Rc<Layer>,
    run: Run,
    mask: Option<Tensor>,
    /// Passed to the layer, which does not use them; a checkpointed call keeps its arguments.
    _positions: Tensor,
}

impl Call {
    fn run(&self, x: &Tensor) -> Tensor {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let mut hidden = x.clone();
        if p.before {
            hidden = t.scope("attention norm", || w.norm(t, &hidden, 8));
        }
        // The probabilities live in `_` until the layer returns.
        let (attended, probabilities) = t.scope("attention", || self.attention(&hidden));
        hidden = attended;
        hidden = t.scope("attention", || t.dropout(&hidden, p.dropout));
        hidden = t.scope("attention", || t.add(x, &hidden));
        if !p.before {
            hidden = t.scope("attention norm", || w.norm(t, &hidden, 8));
        }
        let (b, s, h) = (self.run.batch, self.run.seq, p.h());
        hidden = t.reshape(&hidden, &[b.times(s), h]);
        let residual = hidden.clone();
        if p.before {
            hidden = t.scope("mlp norm", || w.norm(t, &hidden, 14));
        }
        let before = t.set_scope("mlp");
        hidden = w.linear(t, &hidden, 10);
        hidden = p.activation.apply(t, &hidden);
        hidden = w.linear(t, &hidden, 12);
        hidden = t.dropout(&hidden, p.dropout);
        hidden = {
            let sum = t.add(&residual, &hidden);
            t.reshape(&sum, &[b, s, h])
        };
        t.set_scope(before);
        if !p.before {
            hidden = t.scope("mlp norm", || w.norm(t, &hidden, 14));
        }
        drop(probabilities);
        drop(residual);
        hidden
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (b, s) = (self.run.batch, self.run.seq);
        let (a, d) = (Dim::named(p.heads, Symbol::A), Dim::named(p.hidden / p.heads, Symbol::D));
        let heads = |x: Tensor| t.transpose(&t.reshape(&x, &[b, s, a, d]), 1, 2);
        let q = {
            let q = w.linear(t, x, 4);
            t.mul_scalar(&q)
        };
        let q = heads(q);
        let (k, v) = (w.linear(t, x, 0), w.linear(t, x, 2));
        let (k, v) = (heads(k), heads(v));
        let (mut out, probabilities) = attend(&self.run, (&q, &k, &v), self.mask.as_ref(), p.attention_dropout, p.h());
        out = w.linear(t, &out, 6);
        drop((q, k, v));
        (out, probabilities)
    }
}

//! Decoders with rotary positions that are built differently from Llama: Phi, Phi-3, OLMo 2 and StarCoder2
//! (`modeling_phi.py`, `modeling_phi3.py`, `modeling_olmo2.py`, `modeling_starcoder2.py`, transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::issue::Issue;
use crate::model::family::common::{
    Activation, Head, Run, attend, causal_forward, eager_mask, gated_mlp, position_ids, rms_norm, rotary_tables,
    rotate, rotate_both, rotated_parts, window_mask,
};
use crate::model::family::{
    Built, Dimensions, Model, Parameter, Parameters, dotted_names, matrix, names_of, names_there, vector,
};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::{LigerKernel, Recipe};
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Phi,
    Phi3,
    Olmo2,
    Starcoder2,
}

/// A decoder's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct Decoder {
    kind: Kind,
    hidden: u64,
    mlp: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head: u64,
    /// How many dimensions of a head are rotated.
    rotary: u64,
    vocab: u64,
    tied: bool,
    bias: bool,
    activation: Activation,
    attention_dropout: f64,
    residual_dropout: f64,
    embedding_dropout: f64,
    window: Option<u64>,
}

/// `PhiConfig`.
pub(super) fn read_phi(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::Phi, config)
}

/// `Phi3Config`.
pub(super) fn read_phi3(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::Phi3, config)
}

/// `Olmo2Config`.
pub(super) fn read_olmo2(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::Olmo2, config)
}

/// `Starcoder2Config`.
pub(super) fn read_starcoder2(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::Starcoder2, config)
}

fn read(kind: Kind, config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let hidden = f.required(&["hidden_size"], MAX_DIMENSION);
    let mlp = f.required(&["intermediate_size"], MAX_DIMENSION);
    let layers = f.required(&["num_hidden_layers"], MAX_LAYERS);
    let heads = f.required(&["num_attention_heads"], MAX_HEADS);
    let vocab = f.required(&["vocab_size"], MAX_DIMENSION);
    let kv_heads = f.optional(&["num_key_value_heads"], if kind == Kind::Starcoder2 { 2 } else { heads }, MAX_HEADS);
    let head = if f.has("head_dim") {
        f.required(&["head_dim"], MAX_DIMENSION)
    } else {
        f.divides("hidden_size", hidden, "num_attention_heads", heads);
        (hidden / heads).max(1)
    };
    f.divides("num_attention_heads", heads, "num_key_value_heads", kv_heads);
    let rotary = match kind {
        Kind::Phi => f.rotary_part(head, "partial_rotary_factor", 0.5),
        Kind::Phi3 => f.rotary_part(head, "partial_rotary_factor", 1.0),
        Kind::Olmo2 | Kind::Starcoder2 => f.rotary_part(head, "rotary_factor", 1.0),
    };
    if kind == Kind::Phi && f.flag("qk_layernorm", false) {
        f.refuse("qk_layernorm", "norms of queries and keys in Phi");
    }
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    let windowed = matches!(kind, Kind::Phi3 | Kind::Starcoder2);
    let activation = match kind {
        Kind::Phi => "gelu_new",
        Kind::Phi3 | Kind::Olmo2 => "silu",
        Kind::Starcoder2 => "gelu_pytorch_tanh",
    };
    let model = Decoder {
        kind,
        hidden,
        mlp,
        layers,
        heads,
        kv_heads,
        head,
        rotary,
        vocab,
        tied: f.flag("tie_word_embeddings", kind == Kind::Starcoder2),
        bias: match kind {
            Kind::Phi => true,
            Kind::Phi3 => false,
            Kind::Olmo2 => f.flag("attention_bias", false),
            Kind::Starcoder2 => f.flag("use_bias", true),
        },
        activation: Activation::read(&mut f, "hidden_act", activation),
        attention_dropout: f.probability("attention_dropout", 0.0),
        residual_dropout: match kind {
            Kind::Phi | Kind::Phi3 => f.probability("resid_pdrop", 0.0),
            Kind::Olmo2 => 0.0,
            Kind::Starcoder2 => f.probability("residual_dropout", 0.0),
        },
        embedding_dropout: match kind {
            Kind::Phi => f.probability("embd_pdrop", 0.0),
            // Phi-3 reads its field and does not use it.
            Kind::Phi3 | Kind::Olmo2 => 0.0,
            Kind::Starcoder2 => f.probability("embedding_dropout", 0.0),
        },
        window: if windowed { f.nullable("sliding_window", None, MAX_DIMENSION) } else { None },
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

/// Places of a layer's parameters; where there is a bias it follows its weight.
mod at {
    pub(super) const FUSED_OUT: usize = 0;
    pub(super) const FUSED_QKV: usize = 1;
    pub(super) const Q: usize = 2;
    pub(super) const K: usize = 4;
    pub(super) const V: usize = 6;
    pub(super) const OUT: usize = 8;
    pub(super) const Q_NORM: usize = 10;
    pub(super) const K_NORM: usize = 11;
    pub(super) const GATE_UP: usize = 12;
    pub(super) const GATE: usize = 13;
    pub(super) const UP: usize = 14;
    pub(super) const FIRST: usize = 15;
    pub(super) const LAST: usize = 17;
    pub(super) const NORM: usize = 19;
    pub(super) const SECOND_NORM: usize = 21;
    pub(super) const COUNT: usize = 23;
}

impl Decoder {
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
    /// Whether norms have a bias: LayerNorm instead of RMSNorm.
    fn layer_norms(&self) -> bool {
        matches!(self.kind, Kind::Phi | Kind::Starcoder2)
    }

    /// One layer's parameters in registration order, `None` where the family has no such parameter.
    fn layer_shapes(&self) -> [Option<Shape>; at::COUNT] {
        let (h, f, q, k) = (self.h(), self.f(), self.q(), self.k());
        let mut all = [None; at::COUNT];
        let mut with_bias = |place: usize, rows: Dim, columns: Dim, bias: bool| {
            all[place] = Some(matrix(rows, columns));
            all[place + 1] = bias.then(|| vector(rows));
        };
        let mlp_bias = self.bias && self.kind != Kind::Olmo2;
        if self.kind != Kind::Phi3 {
            with_bias(at::Q, q, h, self.bias);
            with_bias(at::K, k, h, self.bias);
            with_bias(at::V, k, h, self.bias);
            with_bias(at::OUT, h, q, self.bias);
        }
        if self.layer_norms() {
            with_bias(at::FIRST, f, h, mlp_bias);
        }
        with_bias(at::LAST, h, f, mlp_bias);
        match self.kind {
            Kind::Phi3 => {
                all[at::FUSED_OUT] = Some(matrix(h, q));
                all[at::FUSED_QKV] = Some(matrix(Dim::plain(q.n + 2 * k.n), h));
                all[at::GATE_UP] = Some(matrix(Dim::plain(2 * f.n), h));
            }
            Kind::Olmo2 => {
                all[at::Q_NORM] = Some(vector(q));
                all[at::K_NORM] = Some(vector(k));
                all[at::GATE] = Some(matrix(f, h));
                all[at::UP] = Some(matrix(f, h));
            }
            Kind::Phi | Kind::Starcoder2 => {}
        }
        let mut norm = |place: usize| {
            all[place] = Some(vector(h));
            all[place + 1] = self.layer_norms().then(|| vector(h));
        };
        norm(at::NORM);
        if self.kind != Kind::Phi {
            norm(at::SECOND_NORM);
        }
        all
    }

    /// `last`: the norm after all layers.
    fn norm(&self, t: &Tape, x: &Tensor, [weight, bias]: [Option<&Tensor>; 2], last: bool) -> Tensor {
        match (self.kind, weight, bias) {
            (_, Some(w), Some(b)) => t.layer_norm(x, w, b),
            (Kind::Olmo2, Some(w), None) if t.fuses(LigerKernel::RmsNorm) => t.liger_rms_norm(x, w, last),
            (Kind::Olmo2, Some(w), None) => olmo_norm(t, x, w),
            (_, Some(w), None) => rms_norm(t, x, w),
            (_, None, _) => x.clone(),
        }
    }
}

/// RMSNorm whose product with the weight is in FP32.
pub(super) fn olmo_norm(t: &Tape, x: &Tensor, weight: &Tensor) -> Tensor {
    let dtype = x.dtype();
    let mut x = t.to(x, Dtype::F32);
    let variance = {
        let square = t.pow(&x);
        t.mean_last(&square)
    };
    x = {
        let rstd = {
            let shifted = t.add_scalar(&variance);
            t.rsqrt(&shifted)
        };
        t.mul(&x, &rstd)
    };
    let out = {
        let product = t.mul(weight, &x);
        t.to(&product, dtype)
    };
    drop(x);
    drop(variance);
    out
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
    /// A place without one for a bias.
    fn plain(&self, t: &Tape, x: &Tensor, at: usize) -> Tensor {
        self.0[at].as_ref().map_or_else(|| x.clone(), |w| t.linear(x, w, None))
    }
    fn pair(&self, at: usize) -> [Option<&Tensor>; 2] {
        [self.0[at].as_ref(), self.0[at + 1].as_ref()]
    }
}

impl Model for Decoder {
    fn family(&self) -> &'static str {
        match self.kind {
            Kind::Phi => "phi",
            Kind::Phi3 => "phi3",
            Kind::Olmo2 => "olmo2",
            Kind::Starcoder2 => "starcoder2",
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        let of = |shape: Shape| Parameter { shape, linear: shape.rank() == 2, lookup_only: false };
        let embed = matrix(self.v(), self.h());
        let mut all = vec![Parameter { shape: embed, linear: self.tied, lookup_only: !self.tied }];
        for _ in 0..self.layers {
            all.extend(self.layer_shapes().into_iter().flatten().map(of));
        }
        all.push(of(vector(self.h())));
        if self.layer_norms() {
            all.push(of(vector(self.h())));
        }
        if !self.tied {
            all.push(of(embed));
        }
        if self.kind == Kind::Phi {
            all.push(of(vector(self.v())));
        }
        all
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        let (out, first, last) = match self.kind {
            Kind::Phi => ("dense", "fc1", "fc2"),
            Kind::Phi3 | Kind::Olmo2 => ("o_proj", "", "down_proj"),
            Kind::Starcoder2 => ("o_proj", "c_fc", "c_proj"),
        };
        let places = [
            (at::FUSED_OUT, out),
            (at::FUSED_QKV, "qkv_proj"),
            (at::Q, "q_proj"),
            (at::K, "k_proj"),
            (at::V, "v_proj"),
            (at::OUT, out),
            (at::GATE_UP, "gate_up_proj"),
            (at::GATE, "gate_proj"),
            (at::UP, "up_proj"),
            (at::FIRST, first),
            (at::LAST, last),
        ];
        let mut all = vec![None];
        for _ in 0..self.layers {
            all.extend(names_of(&self.layer_shapes(), &places));
        }
        all.extend([None].repeat(if self.layer_norms() { 2 } else { 1 }));
        if !self.tied {
            all.push(Some("lm_head"));
        }
        if self.kind == Kind::Phi {
            all.push(None);
        }
        all
    }

    fn parameter_names(&self) -> Vec<String> {
        let mut names = [""; at::COUNT];
        let mut pairs = |at: usize, both: [&'static str; 2]| names[at..at + 2].copy_from_slice(&both);
        pairs(at::FUSED_OUT, ["self_attn.o_proj.weight", "self_attn.qkv_proj.weight"]);
        pairs(at::Q, ["self_attn.q_proj.weight", "self_attn.q_proj.bias"]);
        pairs(at::K, ["self_attn.k_proj.weight", "self_attn.k_proj.bias"]);
        pairs(at::V, ["self_attn.v_proj.weight", "self_attn.v_proj.bias"]);
        pairs(at::Q_NORM, ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]);
        pairs(at::GATE, ["mlp.gate_proj.weight", "mlp.up_proj.weight"]);
        let (out, first, last) = match self.kind {
            Kind::Phi => (
                ["self_attn.dense.weight", "self_attn.dense.bias"],
                ["mlp.fc1.weight", "mlp.fc1.bias"],
                ["mlp.fc2.weight", "mlp.fc2.bias"],
            ),
            _ => (
                ["self_attn.o_proj.weight", "self_attn.o_proj.bias"],
                ["mlp.c_fc.weight", "mlp.c_fc.bias"],
                match self.kind {
                    Kind::Starcoder2 => ["mlp.c_proj.weight", "mlp.c_proj.bias"],
                    _ => ["mlp.down_proj.weight", ""],
                },
            ),
        };
        pairs(at::OUT, out);
        pairs(at::FIRST, first);
        pairs(at::LAST, last);
        let after_attention = ["post_attention_layernorm.weight", "post_attention_layernorm.bias"];
        let (norm, second) = match self.kind {
            Kind::Olmo2 => (after_attention, ["post_feedforward_layernorm.weight", ""]),
            _ => (["input_layernorm.weight", "input_layernorm.bias"], after_attention),
        };
        pairs(at::NORM, norm);
        pairs(at::SECOND_NORM, second);
        names[at::GATE_UP] = "mlp.gate_up_proj.weight";
        let of_layer = |_| names_there(&names, &self.layer_shapes());
        let mut after = match self.kind {
            Kind::Phi => vec!["model.final_layernorm.weight", "model.final_layernorm.bias"],
            Kind::Starcoder2 => vec!["model.norm.weight", "model.norm.bias"],
            Kind::Phi3 | Kind::Olmo2 => vec!["model.norm.weight"],
        };
        if !self.tied {
            after.push("lm_head.weight");
        }
        if self.kind == Kind::Phi {
            after.push("lm_head.bias");
        }
        dotted_names(&["model.embed_tokens.weight"], ("model.layers", self.layers), of_layer, &after)
    }

    fn buffers(&self) -> Vec<u64> {
        // inv_freq and original_inv_freq.
        vec![self.rotary / 2, self.rotary / 2]
    }

    fn liger(&self) -> &'static [LigerKernel] {
        if matches!(self.kind, Kind::Phi3 | Kind::Olmo2) { &LigerKernel::ALL } else { &[] }
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions {
            layers: self.layers,
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

    fn refusals(&self, _: &Recipe) -> Vec<Issue> {
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
            ("L", self.layers),
        ]
    }

    fn layers(&self) -> u64 {
        self.layers
    }

    fn untied(&self) -> Option<Box<dyn Model>> {
        Some(Box::new(Self { tied: false, ..self.clone() }))
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
            let norm = [Some(all.add(vector(self.h()))), self.layer_norms().then(|| all.add(vector(self.h())))];
            tape.set_scope("head");
            let head = if self.tied { embed.clone() } else { all.add(matrix(self.v(), self.h())) };
            let head_bias = (self.kind == Kind::Phi).then(|| all.add(vector(self.v())));
            let plan = Rc::new(self.clone());
            Box::new(BuiltDecoder { plan, embed, layers, norm, head, head_bias, weights: all.finish() })
                as Box<dyn Built>
        })
    }
}

struct BuiltDecoder {
    plan: Rc<Decoder>,
    embed: Tensor,
    layers: Vec<Rc<Layer>>,
    norm: [Option<Tensor>; 2],
    head: Tensor,
    head_bias: Option<Tensor>,
    weights: Vec<Tensor>,
}

impl Built for BuiltDecoder {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (ids, labels) = (&batch[0], &batch[1]);
        let head = Head { weight: &self.head, bias: self.head_bias.as_ref(), softcap: false };
        causal_forward(run, labels, &|| self.hidden_states(run, ids), &head)
    }
}

impl BuiltDecoder {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let (t, p) = (&run.tape, &self.plan);
        let mut embedded = t.scope("embedding", || t.embedding(ids, &self.embed));
        let positions = t.scope("rotary", || position_ids(run));
        let dtype = embedded.dtype();
        let mask = t.scope("mask", || match p.window {
            Some(window) => window_mask(run, dtype, window),
            None => eager_mask(run, dtype, false),
        });
        let mut hidden = t.scope("embedding", || t.dropout(&embedded, p.embedding_dropout));
        if p.kind == Kind::Phi {
            embedded = hidden.clone();
        }
        // OLMo 2 keeps its tables in FP32.
        let tables = if p.kind == Kind::Olmo2 { Dtype::F32 } else { hidden.dtype() };
        let (cos, sin) = t.scope("rotary", || rotary_tables(run, Dim::plain(p.rotary), tables));
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
        let norm = [self.norm[0].as_ref(), self.norm[1].as_ref()];
        let out = t.scope("final norm", || p.norm(t, &hidden, norm, true));
        drop(hidden);
        drop((cos, sin));
        drop(mask);
        drop(positions);
        drop(embedded);
        out
    }
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    plan: Rc<Decoder>,
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
        match self.plan.kind {
            Kind::Phi => self.parallel(x),
            Kind::Olmo2 => self.normed_after(x),
            Kind::Phi3 | Kind::Starcoder2 => self.normed_before(x),
        }
    }

    /// Attention and MLP on the same normed input.
    fn parallel(&self, x: &Tensor) -> Tensor {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let normed = t.scope("attention norm", || p.norm(t, x, w.pair(at::NORM), false));
        // The probabilities live in `_` until the layer returns.
        let (mut attended, probabilities) = t.scope("attention", || self.attention(&normed));
        attended = t.scope("attention", || t.dropout(&attended, p.residual_dropout));
        let fed = t.scope("mlp", || {
            let fed = self.mlp(&normed);
            t.dropout(&fed, p.residual_dropout)
        });
        let out = t.scope("mlp", || {
            let sum = t.add(&attended, &fed);
            t.add(&sum, x)
        });
        drop(normed);
        drop((attended, probabilities, fed));
        out
    }

    fn normed_before(&self, x: &Tensor) -> Tensor {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let dropped = |x: Tensor| if p.kind == Kind::Phi3 { t.dropout(&x, p.residual_dropout) } else { x };
        let residual = x.clone();
        let normed = t.scope("attention norm", || p.norm(t, x, w.pair(at::NORM), false));
        let (attended, probabilities) = t.scope("attention", || self.attention(&normed));
        drop(normed);
        let hidden = t.scope("attention", || {
            let dropped = dropped(attended.clone());
            t.add(&residual, &dropped)
        });
        drop(attended);
        drop(residual);
        let normed = t.scope("mlp norm", || p.norm(t, &hidden, w.pair(at::SECOND_NORM), false));
        let fed = t.scope("mlp", || self.mlp(&normed));
        drop(normed);
        let out = t.scope("mlp", || {
            let dropped = dropped(fed.clone());
            t.add(&hidden, &dropped)
        });
        drop(fed);
        drop(hidden);
        drop(probabilities);
        out
    }

    fn normed_after(&self, x: &Tensor) -> Tensor {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (mut attended, probabilities) = t.scope("attention", || self.attention(x));
        attended = t.scope("attention norm", || p.norm(t, &attended, w.pair(at::NORM), false));
        let hidden = t.scope("attention", || t.add(x, &attended));
        drop(attended);
        let mut fed = t.scope("mlp", || self.mlp(&hidden));
        fed = t.scope("mlp norm", || p.norm(t, &fed, w.pair(at::SECOND_NORM), false));
        let out = t.scope("mlp", || t.add(&hidden, &fed));
        drop(fed);
        drop(hidden);
        drop(probabilities);
        out
    }

    fn mlp(&self, x: &Tensor) -> Tensor {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        match p.kind {
            Kind::Olmo2 => match [&w.0[at::GATE], &w.0[at::UP], &w.0[at::LAST]] {
                [Some(gate), Some(up), Some(down)] => gated_mlp(t, x, [gate, up, down], p.activation),
                _ => x.clone(),
            },
            Kind::Phi3 => {
                let parts = t.split(&w.plain(t, x, at::GATE_UP), 2, p.f(), 2);
                let product = if t.fuses(LigerKernel::Swiglu) {
                    t.liger_gated(&parts[0], &parts[1])
                } else {
                    let gate = p.activation.apply(t, &parts[0]);
                    t.mul(&parts[1], &gate)
                };
                w.linear(t, &product, at::LAST)
            }
            Kind::Phi | Kind::Starcoder2 => {
                let mut hidden = w.linear(t, x, at::FIRST);
                hidden = p.activation.apply(t, &hidden);
                hidden = w.linear(t, &hidden, at::LAST);
                if p.kind == Kind::Starcoder2 { t.dropout(&hidden, p.residual_dropout) } else { hidden }
            }
        }
    }

    /// Queries, keys and values, [b, heads, s, d] each.
    fn projections(&self, x: &Tensor) -> [Tensor; 3] {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (b, s) = (self.run.batch, self.run.seq);
        let (a, g) = (Dim::named(p.heads, Symbol::A), Dim::named(p.kv_heads, Symbol::G));
        let heads = |x: Tensor, n: Dim| t.transpose(&t.reshape(&x, &[b, s, n, p.d()]), 1, 2);
        match p.kind {
            Kind::Phi3 => {
                let qkv = w.plain(t, x, at::FUSED_QKV);
                let [q, k, v] = [p.q(), p.k(), p.k()].map(|part| t.slice(&qkv, 2, part));
                [heads(q, a), heads(k, g), heads(v, g)]
            }
            Kind::Olmo2 => {
                let normed = |from: usize, norm: usize| {
                    let x = w.linear(t, x, from);
                    w.0[norm].as_ref().map_or_else(|| x.clone(), |w| olmo_norm(t, &x, w))
                };
                let (q, k) = (normed(at::Q, at::Q_NORM), normed(at::K, at::K_NORM));
                let v = w.linear(t, x, at::V);
                [heads(q, a), heads(k, g), heads(v, g)]
            }
            Kind::Phi | Kind::Starcoder2 => {
                [heads(w.linear(t, x, at::Q), a), heads(w.linear(t, x, at::K), g), heads(w.linear(t, x, at::V), g)]
            }
        }
    }

    /// Rotated queries and keys, and what Python still holds of the way there.
    fn rotated(&self, q: Tensor, k: Tensor) -> ([Tensor; 2], Vec<Tensor>) {
        let (t, p) = (&self.run.tape, &self.plan);
        let (cos, sin) = (t.unsqueeze(&self.cos, 1), t.unsqueeze(&self.sin, 1));
        if t.fuses(LigerKernel::Rope) {
            let (turned_q, turned_k) = rotate_both(t, &q, &k, [&cos, &sin]);
            drop((q, k));
            return ([turned_q, turned_k], Vec::new());
        }
        let rotated = |x: &Tensor| rotate(t, x, &cos, &sin);
        match p.kind {
            Kind::Starcoder2 => {
                let both = [rotated(&q), rotated(&k)];
                drop((q, k));
                (both, Vec::new())
            }
            Kind::Olmo2 => {
                let both = [rotated(&q), rotated(&k)];
                let cast = [t.to(&both[0], q.dtype()), t.to(&both[1], k.dtype())];
                drop(both);
                drop((q, k));
                (cast, Vec::new())
            }
            Kind::Phi3 => {
                let parts = [rotated_parts(t, &q, p.rotary), rotated_parts(t, &k, p.rotary)];
                let both = parts.each_ref().map(|[part, pass]| {
                    let part = rotated(part);
                    t.cat(&part, pass, 3, p.d())
                });
                drop((q, k));
                (both, Vec::new())
            }
            Kind::Phi => {
                let parts = [rotated_parts(t, &q, p.rotary), rotated_parts(t, &k, p.rotary)];
                let turned = parts.each_ref().map(|[part, _]| rotated(part));
                let first = t.cat(&turned[0], &parts[0][1], 3, p.d());
                drop(q);
                let second = t.cat(&turned[1], &parts[1][1], 3, p.d());
                drop(k);
                ([first, second], turned.into_iter().chain(parts.into_iter().flatten()).collect())
            }
        }
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let [q, k, v] = self.projections(x);
        let ([q, k], held) = self.rotated(q, k);
        let (mut out, probabilities) = attend(&self.run, (&q, &k, &v), self.mask.as_ref(), p.attention_dropout, p.q());
        out = match p.kind {
            Kind::Phi3 => w.plain(t, &out, at::FUSED_OUT),
            _ => w.linear(t, &out, at::OUT),
        };
        if p.kind == Kind::Starcoder2 {
            out = t.dropout(&out, p.residual_dropout);
        }
        drop((q, k, v, held));
        (out, probabilities)
    }
}

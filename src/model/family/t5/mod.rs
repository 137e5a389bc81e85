//! T5 (`modeling_t5.py`, transformers 5.24) under its head for generation: an encoder over `s` tokens and a decoder over
//! `t`, with learned biases of relative positions that a stack's layers share.

mod attention;
mod forward;

use serde_json::{Map, Value};

use crate::issue::Issue;
use crate::model::family::common::Activation;
use crate::model::family::t5::forward::BuiltT5;
use crate::model::family::{Built, Dimensions, Model, Parameter, matrix, vector};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::Recipe;
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::Dtype;

/// T5's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct T5 {
    hidden: u64,
    mlp: u64,
    head: u64,
    heads: u64,
    encoder_layers: u64,
    decoder_layers: u64,
    vocab: u64,
    buckets: u64,
    dropout: f64,
    activation: Activation,
    gated: bool,
    /// Whether the decoder's output is scaled before the head: configs of T5 1.0, which do not untie the head.
    scaled: bool,
}

/// `T5Config`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let encoder_layers = f.required(&["num_layers", "num_hidden_layers"], MAX_LAYERS);
    let projection = f.text("feed_forward_proj", "relu");
    let (gated, name) = match projection.split_once('-') {
        Some(("gated", name)) => (true, name),
        _ => (false, projection.as_str()),
    };
    let activation = match name {
        "gelu" if gated => Activation::GeluNew,
        "relu" => Activation::Relu,
        "gelu_new" => Activation::GeluNew,
        "silu" | "swish" | "gelu" => Activation::Fused,
        other => {
            let what = format!("the activation `{other}`");
            f.refuse("feed_forward_proj", what);
            Activation::Fused
        }
    };
    let model = T5 {
        hidden: f.required(&["d_model", "hidden_size"], MAX_DIMENSION),
        mlp: f.required(&["d_ff"], MAX_DIMENSION),
        head: f.optional(&["d_kv", "head_dim"], 64, MAX_DIMENSION),
        heads: f.required(&["num_heads", "num_attention_heads"], MAX_HEADS),
        encoder_layers,
        decoder_layers: f.optional(&["num_decoder_layers"], encoder_layers, MAX_LAYERS),
        vocab: f.required(&["vocab_size"], MAX_DIMENSION),
        buckets: f.optional(&["relative_attention_num_buckets"], 32, MAX_DIMENSION),
        dropout: f.probability("dropout_rate", 0.1),
        activation,
        gated,
        scaled: f.flag("tie_word_embeddings", true),
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

/// A layer's parameters in registration order, by what they are.
struct LayerShapes {
    /// Query, key, value, output.
    projections: [Shape; 4],
    /// Buckets of relative positions; the first layer of a stack has them.
    relative: Option<Shape>,
    norm: Shape,
    /// One or two in, one out.
    mlp: Vec<Shape>,
    /// Whether there is attention over the encoder's states, with projections and norm like the layer's own.
    cross: bool,
}

impl LayerShapes {
    fn all(&self) -> Vec<Shape> {
        let mut all: Vec<Shape> = self.projections.into();
        all.extend(self.relative);
        all.push(self.norm);
        if self.cross {
            all.extend(self.projections);
            all.push(self.norm);
        }
        all.extend(&self.mlp);
        all.push(self.norm);
        all
    }

    /// The names of the linear layers among them.
    fn names(&self) -> Vec<Option<&'static str>> {
        let attention = ["q", "k", "v", "o"].map(Some);
        let mut all: Vec<Option<&'static str>> = attention.into();
        all.extend(self.relative.map(|_| None));
        all.push(None);
        if self.cross {
            all.extend(attention);
            all.push(None);
        }
        let mlp: &[&'static str] = if self.mlp.len() == 3 { &["wi_0", "wi_1", "wo"] } else { &["wi", "wo"] };
        all.extend(mlp.iter().copied().map(Some));
        all.push(None);
        all
    }
}

impl T5 {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn a(&self) -> Dim {
        Dim::named(self.heads, Symbol::A)
    }
    fn d(&self) -> Dim {
        Dim::named(self.head, Symbol::D)
    }
    fn q(&self) -> Dim {
        Dim::named(self.heads.saturating_mul(self.head), Symbol::Q)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }

    fn layer_shapes(&self, first: bool, cross: bool) -> LayerShapes {
        let (h, f, q) = (self.h(), Dim::named(self.mlp, Symbol::F), self.q());
        let mut mlp = vec![matrix(f, h); if self.gated { 2 } else { 1 }];
        mlp.push(matrix(h, f));
        LayerShapes {
            projections: [matrix(q, h), matrix(q, h), matrix(q, h), matrix(h, q)],
            relative: first.then(|| matrix(Dim::plain(self.buckets), self.a())),
            norm: vector(h),
            mlp,
            cross,
        }
    }
}

impl Model for T5 {
    fn family(&self) -> &'static str {
        "t5"
    }

    fn parameters(&self) -> Vec<Parameter> {
        let relative = matrix(Dim::plain(self.buckets), self.a());
        let of = |shape: Shape| {
            let lookup_only = shape == relative;
            Parameter { shape, linear: shape.rank() == 2 && !lookup_only, lookup_only }
        };
        let mut all = vec![of(matrix(self.v(), self.h()))];
        for (layers, cross) in [(self.encoder_layers, false), (self.decoder_layers, true)] {
            for i in 0..layers {
                all.extend(self.layer_shapes(i == 0, cross).all().into_iter().map(of));
            }
            all.push(of(vector(self.h())));
        }
        all
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        let mut all = vec![None];
        for (layers, cross) in [(self.encoder_layers, false), (self.decoder_layers, true)] {
            for i in 0..layers {
                all.extend(self.layer_shapes(i == 0, cross).names());
            }
            all.push(None);
        }
        all
    }

    fn parameter_names(&self) -> Vec<String> {
        const ATTENTION: [&str; 4] = ["q", "k", "v", "o"];
        const MLP: [&[&str]; 2] = [&["wi", "wo"], &["wi_0", "wi_1", "wo"]];
        let mut all = vec![String::from("shared.weight")];
        for (stack, layers, cross) in [("encoder", self.encoder_layers, false), ("decoder", self.decoder_layers, true)]
        {
            for i in 0..layers {
                let mut place = 0;
                let mut block = |module: &str, weights: &[&str], relative: bool| {
                    let at = [stack, ".block.", &i.to_string(), ".layer.", &place.to_string(), "."].concat();
                    all.extend(weights.iter().map(|w| [&at, module, ".", w, ".weight"].concat()));
                    all.extend(relative.then(|| [&at, module, ".relative_attention_bias.weight"].concat()));
                    all.push(at + "layer_norm.weight");
                    place += 1;
                };
                block("SelfAttention", &ATTENTION, i == 0);
                if cross {
                    block("EncDecAttention", &ATTENTION, false);
                }
                block("DenseReluDense", MLP[usize::from(self.gated)], false);
            }
            all.push([stack, ".final_layer_norm.weight"].concat());
        }
        all
    }

    fn buffers(&self) -> Vec<u64> {
        Vec::new()
    }

    fn kept_in_f32(&self, dtype: Dtype) -> &'static [&'static str] {
        if dtype == Dtype::F16 { &["wo"] } else { &[] }
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
        forward::refusals(recipe)
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![
            ("b", recipe.micro_batch),
            ("s", recipe.seq_len),
            ("t", recipe.dec_seq.unwrap_or(recipe.seq_len)),
            ("h", self.hidden),
            ("f", self.mlp),
            ("a", self.heads),
            ("d", self.head),
            ("q", self.heads.saturating_mul(self.head)),
            ("V", self.vocab),
            ("L", self.layers()),
        ]
    }

    fn layers(&self) -> u64 {
        self.encoder_layers + self.decoder_layers
    }

    fn counts_tokens(&self) -> bool {
        false
    }

    /// Two stacks are not one row of layers alike.
    fn with_layers(&self, _layers: u64) -> Option<Box<dyn Model>> {
        None
    }

    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built> {
        Box::new(BuiltT5::new(self, tape, dtype))
    }
}

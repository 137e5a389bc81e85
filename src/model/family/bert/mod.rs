//! BERT, RoBERTa and DistilBERT (`modeling_bert.py` and its relatives, transformers 5.24): encoders with the norm after
//! each block, under a head for masked words or one for sequences.

mod forward;

use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};
use crate::model::family::bert::forward::BuiltBert;
use crate::model::family::common::Activation;
use crate::model::family::{Built, Dimensions, Model, Parameter, dotted_names, matrix, names_of, vector};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::Recipe;
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::Dtype;

/// Which of the relatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bert,
    /// Positions counted from the ids, padding left out; a classification head over the first token itself.
    Roberta,
    /// No token types, no pooler.
    DistilBert,
}

/// What stands on the encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Head {
    /// Every token's word, over the tied look-up table.
    MaskedLm,
    /// One of `labels` classes for the sequence.
    Classifier { labels: u64, dropout: f64 },
}

/// An encoder's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct Bert {
    kind: Kind,
    head: Head,
    hidden: u64,
    mlp: u64,
    layers: u64,
    heads: u64,
    vocab: u64,
    positions: u64,
    /// Token types; DistilBERT has none.
    types: Option<u64>,
    /// The id of padding, whose position RoBERTa does not count.
    padding: u64,
    dropout: f64,
    attention_dropout: f64,
    activation: Activation,
}

/// `BertForMaskedLM`.
pub(super) fn read_bert(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::Bert, false, config)
}

/// `BertForSequenceClassification`.
pub(super) fn read_bert_classifier(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::Bert, true, config)
}

/// `RobertaForMaskedLM`.
pub(super) fn read_roberta(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::Roberta, false, config)
}

/// `RobertaForSequenceClassification`.
pub(super) fn read_roberta_classifier(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::Roberta, true, config)
}

/// `DistilBertForMaskedLM`.
pub(super) fn read_distilbert(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::DistilBert, false, config)
}

/// `DistilBertForSequenceClassification`.
pub(super) fn read_distilbert_classifier(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    read(Kind::DistilBert, true, config)
}

fn read(kind: Kind, classifier: bool, config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let distil = kind == Kind::DistilBert;
    let hidden = f.required(if distil { &["dim", "hidden_size"] } else { &["hidden_size"] }, MAX_DIMENSION);
    let mlp = f.required(if distil { &["hidden_dim"] } else { &["intermediate_size"] }, MAX_DIMENSION);
    let layers =
        f.required(if distil { &["n_layers", "num_hidden_layers"] } else { &["num_hidden_layers"] }, MAX_LAYERS);
    let heads =
        f.required(if distil { &["n_heads", "num_attention_heads"] } else { &["num_attention_heads"] }, MAX_HEADS);
    f.divides("hidden_size", hidden, "num_attention_heads", heads);
    let vocab = f.required(&["vocab_size"], MAX_DIMENSION);
    let positions = f.optional(&["max_position_embeddings"], 512, MAX_DIMENSION);
    let types = (!distil).then(|| f.optional(&["type_vocab_size"], 2, MAX_DIMENSION));
    let padding = if kind == Kind::Roberta { f.optional_from_zero("pad_token_id", 1, MAX_DIMENSION) } else { 0 };
    let dropout = f.probability(if distil { "dropout" } else { "hidden_dropout_prob" }, 0.1);
    let attention_dropout =
        f.probability(if distil { "attention_dropout" } else { "attention_probs_dropout_prob" }, 0.1);
    let activation = Activation::read(&mut f, if distil { "activation" } else { "hidden_act" }, "gelu");
    let head = if classifier {
        let labels = f.labels();
        let dropout = match kind {
            Kind::DistilBert => f.probability("seq_classif_dropout", 0.2),
            Kind::Bert | Kind::Roberta => f.probability("classifier_dropout", dropout),
        };
        Head::Classifier { labels, dropout }
    } else {
        Head::MaskedLm
    };
    for (name, what) in [
        ("is_decoder", "an encoder used as a decoder"),
        ("add_cross_attention", "cross-attention in an encoder"),
        ("sinusoidal_pos_embds", "frozen sinusoidal positions"),
    ] {
        if f.flag(name, false) {
            f.refuse(name, what);
        }
    }
    if f.optional_from_zero("chunk_size_feed_forward", 0, MAX_DIMENSION) != 0 {
        f.refuse("chunk_size_feed_forward", "an MLP in chunks");
    }
    if !f.flag("tie_word_embeddings", true) && !classifier {
        f.refuse("tie_word_embeddings", "a head for masked words with a table of its own");
    }
    let model = Bert {
        kind,
        head,
        hidden,
        mlp,
        layers,
        heads,
        vocab,
        positions,
        types,
        padding,
        dropout,
        attention_dropout,
        activation,
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

impl Bert {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn f(&self) -> Dim {
        Dim::named(self.mlp, Symbol::F)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }
    fn p(&self) -> Dim {
        Dim::named(self.positions, Symbol::P)
    }
    fn a(&self) -> Dim {
        Dim::named(self.heads, Symbol::A)
    }
    fn d(&self) -> Dim {
        Dim::named(self.hidden / self.heads, Symbol::D)
    }

    /// The embeddings' parameters in registration order, and where words, types, positions and the norm are.
    fn embedding_shapes(&self) -> (Vec<Shape>, Places) {
        let (h, word, position) = (self.h(), matrix(self.v(), self.h()), matrix(self.p(), self.h()));
        let types = matrix(Dim::plain(self.types.unwrap_or(0)), h);
        let norm = vector(h);
        match self.kind {
            Kind::Bert => (vec![word, position, types, norm, norm], Places { position: 1, types: Some(2), norm: 3 }),
            Kind::Roberta => (vec![word, types, norm, norm, position], Places { types: Some(1), norm: 2, position: 4 }),
            Kind::DistilBert => (vec![word, position, norm, norm], Places { position: 1, types: None, norm: 2 }),
        }
    }

    /// Query, key, value, output, norm, in, out, norm: weight and bias each.
    fn layer_shapes(&self) -> [Shape; LAYER] {
        let (h, f) = (self.h(), self.f());
        let square = [matrix(h, h), vector(h)];
        let [w, b] = square;
        let n = vector(h);
        [w, b, w, b, w, b, w, b, n, n, matrix(f, h), vector(f), matrix(h, f), n, n, n]
    }

    /// The head's parameters in registration order.
    fn head_shapes(&self) -> Vec<Shape> {
        let (h, dense) = (self.h(), matrix(self.h(), self.h()));
        match self.head {
            // BERT and RoBERTa register the output's bias on the head itself, before the head's modules.
            Head::MaskedLm if self.kind == Kind::DistilBert => {
                vec![dense, vector(h), vector(h), vector(h), vector(self.v())]
            }
            Head::MaskedLm => vec![vector(self.v()), dense, vector(h), vector(h), vector(h)],
            Head::Classifier { labels, .. } => {
                vec![dense, vector(h), matrix(Dim::plain(labels), h), vector(Dim::plain(labels))]
            }
        }
    }
}

/// How many parameters a layer has.
const LAYER: usize = 16;

/// Where the embeddings' parameters are in registration order; words come first.
#[derive(Clone, Copy, Debug)]
struct Places {
    position: usize,
    types: Option<usize>,
    norm: usize,
}

impl Model for Bert {
    fn family(&self) -> &'static str {
        match self.kind {
            Kind::Bert => "bert",
            Kind::Roberta => "roberta",
            Kind::DistilBert => "distilbert",
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        let of = |shape: Shape| Parameter { shape, linear: shape.rank() == 2, lookup_only: false };
        let lookup = |shape: Shape| Parameter { shape, linear: false, lookup_only: shape.rank() == 2 };
        let mut all: Vec<Parameter> = self.embedding_shapes().0.into_iter().map(lookup).collect();
        if self.head == Head::MaskedLm {
            all[0] = of(all[0].shape);
        }
        for _ in 0..self.layers {
            all.extend(self.layer_shapes().map(of));
        }
        all.extend(self.head_shapes().into_iter().map(of));
        all
    }

    fn attends_both_ways(&self) -> bool {
        true
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        let places: [(usize, &str); 6] = match self.kind {
            Kind::DistilBert => [(0, "q_lin"), (2, "k_lin"), (4, "v_lin"), (6, "out_lin"), (10, "lin1"), (12, "lin2")],
            Kind::Bert | Kind::Roberta => {
                [(0, "query"), (2, "key"), (4, "value"), (6, "dense"), (10, "dense"), (12, "dense")]
            }
        };
        let mut all: Vec<Option<&'static str>> = self.embedding_shapes().0.iter().map(|_| None).collect();
        for _ in 0..self.layers {
            all.extend(names_of(&self.layer_shapes().map(Some), &places));
        }
        let head: [Option<&'static str>; 5] = match (self.head, self.kind) {
            (Head::MaskedLm, Kind::DistilBert) => [Some("vocab_transform"), None, None, None, None],
            (Head::MaskedLm, _) => [None, Some("dense"), None, None, None],
            (Head::Classifier { .. }, Kind::DistilBert) => {
                [Some("pre_classifier"), None, Some("classifier"), None, None]
            }
            (Head::Classifier { .. }, Kind::Bert) => [Some("dense"), None, Some("classifier"), None, None],
            (Head::Classifier { .. }, Kind::Roberta) => [Some("dense"), None, Some("out_proj"), None, None],
        };
        all.extend(&head[..self.head_shapes().len()]);
        all
    }

    fn parameter_names(&self) -> Vec<String> {
        const NORM: [&str; 2] = ["LayerNorm.weight", "LayerNorm.bias"];
        const DISTILLED: [&str; LAYER] = [
            "attention.q_lin.weight",
            "attention.q_lin.bias",
            "attention.k_lin.weight",
            "attention.k_lin.bias",
            "attention.v_lin.weight",
            "attention.v_lin.bias",
            "attention.out_lin.weight",
            "attention.out_lin.bias",
            "sa_layer_norm.weight",
            "sa_layer_norm.bias",
            "ffn.lin1.weight",
            "ffn.lin1.bias",
            "ffn.lin2.weight",
            "ffn.lin2.bias",
            "output_layer_norm.weight",
            "output_layer_norm.bias",
        ];
        const PLAIN: [&str; LAYER] = [
            "attention.self.query.weight",
            "attention.self.query.bias",
            "attention.self.key.weight",
            "attention.self.key.bias",
            "attention.self.value.weight",
            "attention.self.value.bias",
            "attention.output.dense.weight",
            "attention.output.dense.bias",
            "attention.output.LayerNorm.weight",
            "attention.output.LayerNorm.bias",
            "intermediate.dense.weight",
            "intermediate.dense.bias",
            "output.dense.weight",
            "output.dense.bias",
            "output.LayerNorm.weight",
            "output.LayerNorm.bias",
        ];
        let (words, positions, types) =
            ("word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight");
        let embeddings: Vec<&str> = match self.kind {
            Kind::Bert => vec![words, positions, types, NORM[0], NORM[1]],
            Kind::Roberta => vec![words, types, NORM[0], NORM[1], positions],
            Kind::DistilBert => vec![words, positions, NORM[0], NORM[1]],
        };
        let head: [&str; 5] = match (self.head, self.kind) {
            (Head::MaskedLm, Kind::Bert) => [
                "cls.predictions.bias",
                "cls.predictions.transform.dense.weight",
                "cls.predictions.transform.dense.bias",
                "cls.predictions.transform.LayerNorm.weight",
                "cls.predictions.transform.LayerNorm.bias",
            ],
            (Head::MaskedLm, Kind::Roberta) => [
                "lm_head.bias",
                "lm_head.dense.weight",
                "lm_head.dense.bias",
                "lm_head.layer_norm.weight",
                "lm_head.layer_norm.bias",
            ],
            (Head::MaskedLm, Kind::DistilBert) => [
                "vocab_transform.weight",
                "vocab_transform.bias",
                "vocab_layer_norm.weight",
                "vocab_layer_norm.bias",
                "vocab_projector.bias",
            ],
            (Head::Classifier { .. }, Kind::Bert) => {
                ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias", ""]
            }
            (Head::Classifier { .. }, Kind::Roberta) => [
                "classifier.dense.weight",
                "classifier.dense.bias",
                "classifier.out_proj.weight",
                "classifier.out_proj.bias",
                "",
            ],
            (Head::Classifier { .. }, Kind::DistilBert) => {
                ["pre_classifier.weight", "pre_classifier.bias", "classifier.weight", "classifier.bias", ""]
            }
        };
        let family = self.family();
        let before: Vec<String> = embeddings.iter().map(|name| [family, ".embeddings.", name].concat()).collect();
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        let (stack, of_layer) = match self.kind {
            Kind::DistilBert => (".transformer.layer", DISTILLED),
            Kind::Bert | Kind::Roberta => (".encoder.layer", PLAIN),
        };
        let prefix = [family, stack].concat();
        let head = &head[..self.head_shapes().len()];
        dotted_names(&before, (&prefix, self.layers), |_| of_layer.into(), head)
    }

    fn buffers(&self) -> Vec<u64> {
        // Position ids, and token types where there are any: 64-bit integers, two FP32 elements each.
        let ids = 2 * self.positions;
        if self.types.is_some() { vec![ids, ids] } else { vec![ids] }
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions { layers: self.layers, hidden: self.hidden, query_width: self.hidden, vocabulary: self.vocab }
    }

    fn max_positions(&self) -> Option<u64> {
        // RoBERTa's positions begin after the padding id.
        let unused = if self.kind == Kind::Roberta { self.padding + 1 } else { 0 };
        Some(self.positions.saturating_sub(unused))
    }

    fn refusals(&self, recipe: &Recipe) -> Vec<Issue> {
        let max = self.max_positions().unwrap_or(u64::MAX);
        if recipe.seq_len <= max {
            return Vec::new();
        }
        let kind = IssueKind::OutOfRange { min: 1, max, found: recipe.seq_len.to_string() };
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
            ("p", self.positions),
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
        Box::new(BuiltBert::new(self, tape, dtype))
    }
}

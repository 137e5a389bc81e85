//! ViT (`modeling_vit.py`, transformers 5.24) under its head for image classes. A micro-batch is of images, and their
//! size is the config's: a recipe's sequence length means nothing here, `s` is the patches of an image and one token.

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::bill::{Instant, Part};
use crate::issue::Issue;
use crate::model::family::common::{Activation, Run, attend};
use crate::model::family::{Built, Dimensions, Model, Parameter, Parameters, dotted_names, matrix, names_of, vector};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::Recipe;
use crate::step::ops::Window;
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// ViT's dimensions and dropouts.
#[derive(Clone, Debug, PartialEq)]
struct Vit {
    hidden: u64,
    mlp: u64,
    layers: u64,
    heads: u64,
    head: u64,
    channels: u64,
    image: [u64; 2],
    patch: u64,
    labels: u64,
    qkv_bias: bool,
    dropout: f64,
    attention_dropout: f64,
    activation: Activation,
}

/// `ViTConfig`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let hidden = f.required(&["hidden_size"], MAX_DIMENSION);
    let heads = f.required(&["num_attention_heads"], MAX_HEADS);
    let head = if f.has("head_dim") {
        f.required(&["head_dim"], MAX_DIMENSION)
    } else {
        f.divides("hidden_size", hidden, "num_attention_heads", heads);
        (hidden / heads).max(1)
    };
    let image = f.pair("image_size", 224, MAX_DIMENSION);
    let [patch, columns] = f.pair("patch_size", 16, MAX_DIMENSION);
    if patch != columns {
        f.refuse("patch_size", "patches that are not square");
    }
    if image.iter().any(|&n| n < patch) {
        f.refuse("image_size", "images smaller than a patch");
    }
    let model = Vit {
        hidden,
        mlp: f.required(&["intermediate_size"], MAX_DIMENSION),
        layers: f.required(&["num_hidden_layers"], MAX_LAYERS),
        heads,
        head,
        channels: f.optional(&["num_channels"], 3, MAX_DIMENSION),
        image,
        patch,
        labels: f.labels(),
        qkv_bias: f.flag("qkv_bias", true),
        dropout: f.probability("hidden_dropout_prob", 0.0),
        attention_dropout: f.probability("attention_probs_dropout_prob", 0.0),
        activation: Activation::read(&mut f, "hidden_act", "gelu"),
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

impl Vit {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn f(&self) -> Dim {
        Dim::named(self.mlp, Symbol::F)
    }
    fn q(&self) -> Dim {
        Dim::named(self.heads * self.head, Symbol::Q)
    }
    /// Tokens of an image: its patches and one for the class.
    fn tokens(&self) -> u64 {
        self.patches().saturating_add(1)
    }
    fn patches(&self) -> u64 {
        self.image.iter().map(|n| n / self.patch).fold(1, u64::saturating_mul)
    }
    fn s(&self) -> Dim {
        Dim::named(self.tokens(), Symbol::S)
    }

    /// The token for the class, positions, and the patches' convolution.
    fn embedding_shapes(&self) -> [Shape; 4] {
        let (one, patch) = (Dim::plain(1), Dim::plain(self.patch));
        [
            Shape::new(&[one, one, self.h()]),
            Shape::new(&[one, self.s(), self.h()]),
            Shape::new(&[self.h(), Dim::plain(self.channels), patch, patch]),
            vector(self.h()),
        ]
    }

    /// Query, key, value, output, norm before, norm after, in, out: weight and bias each.
    fn layer_shapes(&self) -> [Option<Shape>; LAYER] {
        let (h, f, q) = (self.h(), self.f(), self.q());
        let (projection, bias) = (Some(matrix(q, h)), self.qkv_bias.then(|| vector(q)));
        let n = Some(vector(h));
        let (out, wide, narrow) = (Some(matrix(h, q)), Some(matrix(f, h)), Some(matrix(h, f)));
        let wide_bias = Some(vector(f));
        [projection, bias, projection, bias, projection, bias, out, n, n, n, n, n, wide, wide_bias, narrow, n]
    }

    /// The norm after the layers, and the classes.
    fn head_shapes(&self) -> [Shape; 4] {
        let (h, labels) = (self.h(), Dim::plain(self.labels));
        [vector(h), vector(h), matrix(labels, h), vector(labels)]
    }
}

/// How many places a layer has for parameters.
const LAYER: usize = 16;

impl Model for Vit {
    fn family(&self) -> &'static str {
        "vit"
    }

    fn parameters(&self) -> Vec<Parameter> {
        // Autocast casts the convolution's weight as it does a linear layer's.
        let of = |shape: Shape| Parameter { shape, linear: matches!(shape.rank(), 2 | 4), lookup_only: false };
        let mut all: Vec<Parameter> = self.embedding_shapes().map(of).into();
        for _ in 0..self.layers {
            all.extend(self.layer_shapes().into_iter().flatten().map(of));
        }
        all.extend(self.head_shapes().map(of));
        all
    }

    fn parameter_names(&self) -> Vec<String> {
        const NAMES: [&str; LAYER] = [
            "attention.q_proj.weight",
            "attention.q_proj.bias",
            "attention.k_proj.weight",
            "attention.k_proj.bias",
            "attention.v_proj.weight",
            "attention.v_proj.bias",
            "attention.o_proj.weight",
            "attention.o_proj.bias",
            "layernorm_before.weight",
            "layernorm_before.bias",
            "layernorm_after.weight",
            "layernorm_after.bias",
            "mlp.fc1.weight",
            "mlp.fc1.bias",
            "mlp.fc2.weight",
            "mlp.fc2.bias",
        ];
        let before = [
            "vit.embeddings.cls_token",
            "vit.embeddings.position_embeddings",
            "vit.embeddings.patch_embeddings.projection.weight",
            "vit.embeddings.patch_embeddings.projection.bias",
        ];
        let after = ["vit.layernorm.weight", "vit.layernorm.bias", "classifier.weight", "classifier.bias"];
        let shapes = self.layer_shapes();
        let of_layer =
            |_| NAMES.iter().zip(&shapes).filter(|(_, shape)| shape.is_some()).map(|(name, _)| *name).collect();
        dotted_names(&before, ("vit.layers", self.layers), of_layer, &after)
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        const NAMES: [(usize, &str); 6] =
            [(0, "q_proj"), (2, "k_proj"), (4, "v_proj"), (6, "o_proj"), (12, "fc1"), (14, "fc2")];
        let mut all = vec![None; 4];
        for _ in 0..self.layers {
            all.extend(names_of(&self.layer_shapes(), &NAMES));
        }
        all.extend([None, None, Some("classifier"), None]);
        all
    }

    fn buffers(&self) -> Vec<u64> {
        Vec::new()
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions {
            layers: self.layers,
            hidden: self.hidden,
            query_width: self.heads * self.head,
            vocabulary: self.labels,
        }
    }

    fn max_positions(&self) -> Option<u64> {
        None
    }

    fn refusals(&self, _recipe: &Recipe) -> Vec<Issue> {
        Vec::new()
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![
            ("b", recipe.micro_batch),
            ("s", self.tokens()),
            ("h", self.hidden),
            ("f", self.mlp),
            ("a", self.heads),
            ("d", self.head),
            ("q", self.heads * self.head),
            ("L", self.layers),
        ]
    }

    fn layers(&self) -> u64 {
        self.layers
    }

    fn counts_tokens(&self) -> bool {
        false
    }

    fn with_layers(&self, layers: u64) -> Option<Box<dyn Model>> {
        Some(Box::new(Self { layers, ..self.clone() }))
    }

    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built> {
        let mut all = Parameters::new(tape, dtype);
        tape.scope("embedding", || {
            // Positions are made after the patches' convolution, and listed before it.
            let [class, positions, weight, bias] = self.embedding_shapes();
            let made = [(0, class), (2, weight), (3, bias), (1, positions)];
            let [class, weight, bias, positions] = made.map(|(place, s)| all.add_listed(place, s, dtype));
            let embedding = [class, positions, weight, bias];
            tape.set_scope("layers");
            let layers = (1u32..)
                .take(usize::try_from(self.layers).unwrap_or(usize::MAX))
                .map(|i| {
                    tape.set_layer(i);
                    Rc::new(Layer(self.layer_shapes().map(|s| s.map(|s| all.add(s)))))
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("head");
            let head = self.head_shapes().map(|s| all.add(s));
            let plan = Rc::new(self.clone());
            let mut weights = all.finish();
            weights[1..4].rotate_right(1);
            Box::new(BuiltVit { plan, embedding, layers, head, dtype, weights }) as Box<dyn Built>
        })
    }
}

#[derive(Debug)]
struct Layer([Option<Tensor>; LAYER]);

struct BuiltVit {
    plan: Rc<Vit>,
    embedding: [Tensor; 4],
    layers: Vec<Rc<Layer>>,
    head: [Tensor; 4],
    dtype: Dtype,
    weights: Vec<Tensor>,
}

impl Built for BuiltVit {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn batch(&self, run: &Run) -> Vec<Tensor> {
        let p = &self.plan;
        let [rows, columns] = p.image.map(Dim::plain);
        let sizes = Shape::new(&[run.batch, Dim::plain(p.channels), rows, columns]);
        let pixels = run.tape.empty(sizes, self.dtype, Part::Activations, "pixels");
        vec![pixels, run.integers(&[run.batch], "labels")]
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (t, pixels, labels) = (&run.tape, &batch[0], &batch[1]);
        let hidden = self.hidden_states(run, pixels);
        let pooled = t.select(&hidden, 1);
        let logits = t.scope("head", || t.linear(&pooled, &self.head[2], Some(&self.head[3])));
        t.enter(Instant::Loss);
        let loss = t.scope("loss", || t.cross_entropy(&logits, labels));
        drop((pooled, hidden));
        (loss, logits)
    }
}

impl BuiltVit {
    fn hidden_states(&self, run: &Run, pixels: &Tensor) -> Tensor {
        let t = &run.tape;
        // Pixels come in the dtype of the recipe's weights; a quantised model may have loaded its own in another.
        let pixels = &t.scope("embedding", || t.to(pixels, self.embedding[2].dtype()));
        let embedded = t.scope("embedding", || self.embed(run, pixels));
        let mut hidden = embedded.clone();
        for (i, layer) in (1u32..).zip(&self.layers) {
            t.set_layer(i);
            let call = Call { plan: self.plan.clone(), layer: layer.clone(), run: run.clone() };
            hidden = run.layer(i, &hidden, move |x| call.run(x));
        }
        t.set_layer(0);
        let out = t.scope("final norm", || t.layer_norm(&hidden, &self.head[0], &self.head[1]));
        drop((hidden, embedded));
        out
    }

    fn embed(&self, run: &Run, pixels: &Tensor) -> Tensor {
        let (t, p) = (&run.tape, &self.plan);
        let [class, positions, weight, bias] = &self.embedding;
        let mut embedded = {
            let window = Window { size: p.patch, stride: p.patch, padding: 0 };
            let patches = t.convolution(pixels, weight, Some(bias), window);
            let flat = t.reshape(&patches, &[run.batch, p.h(), Dim::plain(p.patches())]);
            // The patches' module is what transformers calls the input embedding.
            t.input(t.transpose(&flat, 1, 2))
        };
        let class = t.expand(class, 0, run.batch);
        embedded = t.cat(&class, &embedded, 1, p.s());
        embedded = t.add(&embedded, positions);
        t.dropout(&embedded, p.dropout)
    }
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    plan: Rc<Vit>,
    layer: Rc<Layer>,
    run: Run,
}

impl Call {
    fn run(&self, x: &Tensor) -> Tensor {
        let (t, dropout) = (&self.run.tape, self.plan.dropout);
        let mut residual = x.clone();
        let mut hidden = t.scope("attention norm", || self.norm(x, 8));
        // The probabilities live in `_` until the layer returns.
        let (attended, probabilities) = t.scope("attention", || self.attention(&hidden));
        hidden = attended;
        let before = t.set_scope("attention");
        hidden = t.dropout(&hidden, dropout);
        hidden = t.add(&hidden, &residual);
        residual = hidden.clone();
        t.set_scope("mlp norm");
        hidden = self.norm(&hidden, 10);
        t.set_scope("mlp");
        hidden = self.mlp(&hidden);
        hidden = t.dropout(&hidden, dropout);
        hidden = t.add(&hidden, &residual);
        t.set_scope(before);
        drop(residual);
        drop(probabilities);
        hidden
    }

    fn linear(&self, x: &Tensor, at: usize) -> Tensor {
        match &self.layer.0[at] {
            Some(w) => self.run.tape.linear(x, w, self.layer.0[at + 1].as_ref()),
            None => x.clone(),
        }
    }

    fn norm(&self, x: &Tensor, at: usize) -> Tensor {
        match (&self.layer.0[at], &self.layer.0[at + 1]) {
            (Some(w), Some(b)) => self.run.tape.layer_norm(x, w, b),
            _ => x.clone(),
        }
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, p) = (&self.run.tape, &self.plan);
        let (a, d) = (Dim::named(p.heads, Symbol::A), Dim::named(p.head, Symbol::D));
        let heads = |at: usize| t.transpose(&t.reshape(&self.linear(x, at), &[self.run.batch, p.s(), a, d]), 1, 2);
        let (q, k, v) = (heads(0), heads(2), heads(4));
        let (mut out, probabilities) = attend(&self.run, (&q, &k, &v), None, p.attention_dropout, p.q());
        out = self.linear(&out, 6);
        drop((q, k, v));
        (out, probabilities)
    }

    fn mlp(&self, x: &Tensor) -> Tensor {
        let mut hidden = self.linear(x, 12);
        hidden = self.plan.activation.apply(&self.run.tape, &hidden);
        self.linear(&hidden, 14)
    }
}

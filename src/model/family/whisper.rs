//! Whisper (`modeling_whisper.py`, transformers 5.24): log-mel features through two convolutions and an encoder, labels
//! through a decoder that attends to it. The features' length is the config's; a recipe's sequence length is that of the
//! labels.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::bill::{Instant, Part};
use crate::issue::Issue;
use crate::model::family::common::{Activation, AttentionPlan, Run, eager_mask, refuse_checkpointing};
use crate::model::family::{
    Built, Dimensions, Model, Parameter, Parameters, dotted_names, matrix, names_of, names_there, vector,
};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::{Checkpointing, Recipe};
use crate::step::ops::Window;
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Whisper's dimensions and dropouts; of pairs, the encoder's is first.
#[derive(Clone, Debug, PartialEq)]
struct Whisper {
    hidden: u64,
    mlp: [u64; 2],
    heads: [u64; 2],
    layers: [u64; 2],
    vocab: u64,
    mel: u64,
    /// Positions of the encoder, half as many as frames of features, and of the decoder.
    positions: [u64; 2],
    tied: bool,
    dropout: f64,
    attention_dropout: f64,
    activation_dropout: f64,
    activation: Activation,
}

/// `WhisperConfig`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let hidden = f.required(&["d_model", "hidden_size"], MAX_DIMENSION);
    let heads = ["encoder_attention_heads", "decoder_attention_heads"].map(|name| {
        let heads = f.optional(&[name], 6, MAX_HEADS);
        f.divides("d_model", hidden, name, heads);
        heads
    });
    for name in ["encoder_layerdrop", "decoder_layerdrop"] {
        if f.number(name, 0.0) != 0.0 {
            f.refuse(name, "layers that are skipped at random");
        }
    }
    if f.flag("apply_spec_augment", false) {
        f.refuse("apply_spec_augment", "SpecAugment's masks");
    }
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    if !hidden.is_multiple_of(2) && f.sound(&["d_model"]) {
        f.refuse("d_model", "sinusoidal positions of an odd width");
    }
    let model = Whisper {
        hidden,
        mlp: ["encoder_ffn_dim", "decoder_ffn_dim"].map(|name| f.optional(&[name], 1536, MAX_DIMENSION)),
        heads,
        layers: ["encoder_layers", "decoder_layers"].map(|name| f.required(&[name], MAX_LAYERS)),
        vocab: f.required(&["vocab_size"], MAX_DIMENSION),
        mel: f.optional(&["num_mel_bins"], 80, MAX_DIMENSION),
        positions: [
            f.optional(&["max_source_positions"], 1500, MAX_DIMENSION),
            f.optional(&["max_target_positions"], 448, MAX_DIMENSION),
        ],
        tied: f.flag("tie_word_embeddings", true),
        dropout: f.probability("dropout", 0.0),
        attention_dropout: f.probability("attention_dropout", 0.0),
        activation_dropout: f.probability("activation_dropout", 0.0),
        activation: Activation::read(&mut f, "activation_function", "gelu"),
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

/// Places of a layer's parameters in registration order; a bias follows its weight. Those of the encoder's attention and
/// its norm are in decoder layers alone.
mod at {
    pub(super) const K: usize = 0;
    pub(super) const V: usize = 1;
    pub(super) const Q: usize = 3;
    pub(super) const OUT: usize = 5;
    pub(super) const NORM: usize = 7;
    /// Where the attention to the encoder begins, laid out as the layer's own.
    pub(super) const CROSS: usize = 9;
    pub(super) const FIRST: usize = 18;
    pub(super) const LAST: usize = 20;
    pub(super) const MLP_NORM: usize = 22;
    pub(super) const COUNT: usize = 24;
}

/// The place of the encoder's positions among all parameters: after two convolutions with biases. They are not trained.
const ENCODER_POSITIONS: usize = 4;

impl Whisper {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }

    /// `sinusoids`: what the encoder's positions start from. Where these temporaries were, the decoder's parameters go.
    fn sinusoids(&self, tape: &Tape, dtype: Dtype) {
        let half = Dim::plain(self.hidden / 2);
        let length = Dim::plain(self.positions[0]);
        let temp = |dims: &[Dim], dtype: Dtype| tape.temp(Shape::new(dims), dtype, "sinusoids");
        let inverse = {
            let scaled = {
                let range = temp(&[half], Dtype::I64);
                let scaled = temp(&[half], dtype);
                drop(range);
                scaled
            };
            let inverse = temp(&[half], dtype);
            drop(scaled);
            inverse
        };
        let range = temp(&[length], Dtype::I64);
        let times = temp(&[length, half], dtype);
        drop(range);
        let (sine, cosine) = (temp(&[length, half], dtype), temp(&[length, half], dtype));
        let both = temp(&[length, self.h()], dtype);
        drop((sine, cosine, inverse, times, both));
    }

    /// Convolutions and positions.
    fn stem_shapes(&self) -> [Shape; 5] {
        let (h, mel, three) = (self.h(), Dim::plain(self.mel), Dim::plain(3));
        [
            Shape::new(&[h, mel, three]),
            vector(h),
            Shape::new(&[h, h, three]),
            vector(h),
            matrix(Dim::plain(self.positions[0]), h),
        ]
    }

    fn layer_shapes(&self, decoder: bool) -> [Option<Shape>; at::COUNT] {
        let (h, f) = (self.h(), Dim::named(self.mlp[usize::from(decoder)], Symbol::F));
        let (square, line) = (Some(matrix(h, h)), Some(vector(h)));
        let attention = [square, square, line, square, line, square, line, line, line];
        let mlp = [Some(matrix(f, h)), Some(vector(f)), Some(matrix(h, f)), line, line, line];
        let mut all = [None; at::COUNT];
        all[..at::CROSS].copy_from_slice(&attention);
        if decoder {
            all[at::CROSS..at::FIRST].copy_from_slice(&attention);
        }
        all[at::FIRST..].copy_from_slice(&mlp);
        all
    }

    /// Every parameter's shape with its name among the linear layers.
    fn all(&self) -> Vec<(Shape, Option<&'static str>)> {
        const PLACES: [(usize, &str); 10] = [
            (at::K, "k_proj"),
            (at::V, "v_proj"),
            (at::Q, "q_proj"),
            (at::OUT, "out_proj"),
            (at::CROSS + at::K, "k_proj"),
            (at::CROSS + at::V, "v_proj"),
            (at::CROSS + at::Q, "q_proj"),
            (at::CROSS + at::OUT, "out_proj"),
            (at::FIRST, "fc1"),
            (at::LAST, "fc2"),
        ];
        let (h, unnamed) = (self.h(), |shape: Shape| (shape, None));
        let mut all: Vec<_> = self.stem_shapes().map(unnamed).into();
        for decoder in [false, true] {
            if decoder {
                all.extend([matrix(self.v(), h), matrix(Dim::plain(self.positions[1]), h)].map(unnamed));
            }
            let shapes = self.layer_shapes(decoder);
            for _ in 0..self.layers[usize::from(decoder)] {
                all.extend(shapes.into_iter().flatten().zip(names_of(&shapes, &PLACES)));
            }
            all.extend([vector(h); 2].map(unnamed));
        }
        if !self.tied {
            all.push((matrix(self.v(), h), None));
        }
        all
    }
}

impl Model for Whisper {
    fn family(&self) -> &'static str {
        "whisper"
    }

    fn parameters(&self) -> Vec<Parameter> {
        let words = matrix(self.v(), self.h());
        let of = |(shape, name): (Shape, Option<&str>)| Parameter {
            shape,
            // Autocast casts the convolutions' weights as it does a linear layer's.
            linear: name.is_some() || shape.rank() == 3 || shape == words,
            lookup_only: shape.rank() == 2 && name.is_none() && shape != words,
        };
        self.all().into_iter().map(of).collect()
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        self.all().into_iter().map(|(_, name)| name).collect()
    }

    fn untrained(&self) -> Option<usize> {
        Some(ENCODER_POSITIONS)
    }

    fn parameter_names(&self) -> Vec<String> {
        const NAMES: [&str; at::COUNT] = [
            "self_attn.k_proj.weight",
            "self_attn.v_proj.weight",
            "self_attn.v_proj.bias",
            "self_attn.q_proj.weight",
            "self_attn.q_proj.bias",
            "self_attn.out_proj.weight",
            "self_attn.out_proj.bias",
            "self_attn_layer_norm.weight",
            "self_attn_layer_norm.bias",
            "encoder_attn.k_proj.weight",
            "encoder_attn.v_proj.weight",
            "encoder_attn.v_proj.bias",
            "encoder_attn.q_proj.weight",
            "encoder_attn.q_proj.bias",
            "encoder_attn.out_proj.weight",
            "encoder_attn.out_proj.bias",
            "encoder_attn_layer_norm.weight",
            "encoder_attn_layer_norm.bias",
            "fc1.weight",
            "fc1.bias",
            "fc2.weight",
            "fc2.bias",
            "final_layer_norm.weight",
            "final_layer_norm.bias",
        ];
        const ENCODER: [&str; 5] = [
            "model.encoder.conv1.weight",
            "model.encoder.conv1.bias",
            "model.encoder.conv2.weight",
            "model.encoder.conv2.bias",
            "model.encoder.embed_positions.weight",
        ];
        const DECODER: [&str; 2] = ["model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight"];
        let of_layer = |decoder: bool| move |_| names_there(&NAMES, &self.layer_shapes(decoder));
        let norm = ["model.encoder.layer_norm.weight", "model.encoder.layer_norm.bias"];
        let mut all = dotted_names(&ENCODER, ("model.encoder.layers", self.layers[0]), of_layer(false), &norm);
        let after = ["model.decoder.layer_norm.weight", "model.decoder.layer_norm.bias", "proj_out.weight"];
        let after = if self.tied { &after[..2] } else { &after[..] };
        all.extend(dotted_names(&DECODER, ("model.decoder.layers", self.layers[1]), of_layer(true), after));
        all
    }

    fn buffers(&self) -> Vec<u64> {
        Vec::new()
    }

    fn counts_tokens(&self) -> bool {
        false
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions { layers: self.layers(), hidden: self.hidden, query_width: self.hidden, vocabulary: self.vocab }
    }

    fn max_positions(&self) -> Option<u64> {
        Some(self.positions[1])
    }

    fn refusals(&self, recipe: &Recipe) -> Vec<Issue> {
        use Checkpointing as C;
        refuse_checkpointing(recipe, &[C::Reentrant, C::FullOffload])
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![
            ("b", recipe.micro_batch),
            ("s", recipe.seq_len),
            ("h", self.hidden),
            ("f", self.mlp[1]),
            ("a", self.heads[1]),
            ("V", self.vocab),
            ("L", self.layers()),
        ]
    }

    fn layers(&self) -> u64 {
        self.layers.iter().sum()
    }

    /// Two stacks are not one row of layers alike.
    fn with_layers(&self, _layers: u64) -> Option<Box<dyn Model>> {
        None
    }

    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built> {
        let mut all = Parameters::new(tape, dtype);
        let h = self.h();
        tape.scope("embedding", || {
            let stem = self.stem_shapes().map(|s| all.add(s));
            stem[ENCODER_POSITIONS].freeze();
            let mut from = 0;
            let mut stack = |decoder: bool, all: &mut Parameters<'_>| {
                let shapes = self.layer_shapes(decoder);
                tape.set_scope("layers");
                let layers = (0..self.layers[usize::from(decoder)])
                    .map(|_| {
                        from += 1;
                        tape.set_layer(from);
                        Rc::new(Layer(shapes.map(|s| s.map(|s| all.add(s)))))
                    })
                    .collect();
                tape.set_layer(0);
                tape.set_scope("final norm");
                Stack { layers, norm: [(); 2].map(|()| all.add(vector(h))) }
            };
            let encoder = stack(false, &mut all);
            tape.set_scope("embedding");
            self.sinusoids(tape, dtype);
            let words = all.add(matrix(self.v(), h));
            let positions = all.add(matrix(Dim::plain(self.positions[1]), h));
            let decoder = stack(true, &mut all);
            tape.set_scope("head");
            let head = if self.tied { words.clone() } else { all.add(matrix(self.v(), h)) };
            let (plan, weights) = (Rc::new(self.clone()), all.finish());
            let kept = RefCell::default();
            let built = BuiltWhisper { plan, stem, encoder, words, positions, decoder, head, dtype, weights, kept };
            Box::new(built) as Box<dyn Built>
        })
    }
}

/// A layer's parameters.
#[derive(Debug)]
struct Layer([Option<Tensor>; at::COUNT]);

struct Stack {
    layers: Vec<Rc<Layer>>,
    norm: [Tensor; 2],
}

struct BuiltWhisper {
    plan: Rc<Whisper>,
    stem: [Tensor; 5],
    encoder: Stack,
    words: Tensor,
    positions: Tensor,
    decoder: Stack,
    head: Tensor,
    dtype: Dtype,
    weights: Vec<Tensor>,
    /// The encoder's states, which the model's outputs hold.
    kept: RefCell<Option<Tensor>>,
}

impl Built for BuiltWhisper {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn batch(&self, run: &Run) -> Vec<Tensor> {
        let frames = Dim::plain(self.plan.positions[0].saturating_mul(2));
        let sizes = Shape::new(&[run.batch, Dim::plain(self.plan.mel), frames]);
        let features = run.tape.empty(sizes, self.dtype, Part::Activations, "features");
        vec![features, run.integers(&[run.batch, run.seq], "labels")]
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (t, features, labels) = (&run.tape, &batch[0], &batch[1]);
        let ids = t.scope("embedding", || shifted_right(run));
        let encoded = self.encode(run, features);
        let decoded = self.decode(run, &ids, &encoded);
        let logits = t.scope("head", || t.linear(&decoded, &self.head, None));
        t.enter(Instant::Loss);
        let loss = t.scope("loss", || {
            let flat = t.reshape(&logits, &[run.batch.times(run.seq), self.plan.v()]);
            t.cross_entropy(&flat, labels)
        });
        drop((ids, decoded));
        *self.kept.borrow_mut() = Some(encoded);
        (loss, logits)
    }

    fn take_outputs(&self) -> Vec<Tensor> {
        self.kept.take().into_iter().collect()
    }
}

/// `shift_tokens_right`: the labels one place on, as the decoder's ids.
fn shifted_right(run: &Run) -> Tensor {
    let t = &run.tape;
    let ids = t.temp(Shape::new(&[run.batch, run.seq]), Dtype::I64, "decoder ids");
    let fewer = Dim::plain(run.seq.n.saturating_sub(1));
    drop(t.temp(Shape::new(&[run.batch, fewer]), Dtype::I64, "decoder ids"));
    drop(t.temp(*ids.shape(), Dtype::Bool, "padding labels"));
    ids
}

impl BuiltWhisper {
    fn encode(&self, run: &Run, features: &Tensor) -> Tensor {
        let (t, p) = (&run.tape, &self.plan);
        let [first, first_bias, second, second_bias, places] = &self.stem;
        let before = t.set_scope("embedding");
        let (embedded, positions, mut hidden) = {
            let window = |stride: u64| Window { size: 3, stride, padding: 1 };
            let mut x = {
                let x = t.convolution(features, first, Some(first_bias), window(1));
                t.activation(&t.input(x), "activation")
            };
            x = {
                let x = t.convolution(&x, second, Some(second_bias), window(2));
                t.activation(&x, "activation")
            };
            let embedded = t.transpose(&x, 1, 2);
            drop(x);
            let positions = t.temp(Shape::new(&[places.dim(0)]), Dtype::I64, "positions");
            let placed = t.look_up(&positions, places);
            let hidden = t.add(&embedded, &placed);
            drop(placed);
            (embedded, positions, hidden)
        };
        hidden = t.dropout(&hidden, p.dropout);
        t.set_scope(before);
        hidden = self.stack(run, hidden, None);
        drop((embedded, positions));
        hidden
    }

    fn decode(&self, run: &Run, ids: &Tensor, encoded: &Tensor) -> Tensor {
        let (t, p) = (&run.tape, &self.plan);
        let before = t.set_scope("embedding");
        let embedded = t.input(t.look_up(ids, &self.words));
        let positions = {
            let range = t.temp(Shape::new(&[run.seq]), Dtype::I64, "positions");
            let shifted = t.temp(*range.shape(), Dtype::I64, "positions");
            drop(range);
            let repeated = t.temp(Shape::new(&[run.batch, run.seq]), Dtype::I64, "positions");
            drop(shifted);
            repeated
        };
        let placed = t.index_table(&self.positions, &positions);
        let mut hidden = t.add(&embedded, &placed);
        hidden = t.dropout(&hidden, p.dropout);
        t.set_scope(before);
        let mask = t.scope("mask", || eager_mask(run, embedded.dtype(), false));
        let over = Over { encoded: encoded.clone(), mask: mask.clone() };
        hidden = self.stack(run, hidden, Some(over));
        drop((embedded, positions, placed, mask));
        hidden
    }

    /// The layers and the norm after them.
    fn stack(&self, run: &Run, mut hidden: Tensor, over: Option<Over>) -> Tensor {
        let t = &run.tape;
        let (stack, from) = match over {
            None => (&self.encoder, 0),
            Some(_) => (&self.decoder, self.encoder.layers.len()),
        };
        for (i, layer) in stack.layers.iter().enumerate() {
            t.set_layer(u32::try_from(from + i + 1).unwrap_or(u32::MAX));
            let call = Call { plan: self.plan.clone(), layer: layer.clone(), run: run.clone(), over: over.clone() };
            let number = u32::try_from(from + i + 1).unwrap_or(u32::MAX);
            hidden = run.layer(number, &hidden, move |x| call.run(x));
        }
        t.set_layer(0);
        t.scope("final norm", || t.layer_norm(&hidden, &stack.norm[0], &stack.norm[1]))
    }
}

/// What a decoder layer is given beside its input.
#[derive(Clone)]
struct Over {
    mask: Option<Tensor>,
    encoded: Tensor,
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    plan: Rc<Whisper>,
    layer: Rc<Layer>,
    run: Run,
    over: Option<Over>,
}

impl Call {
    fn run(&self, x: &Tensor) -> Tensor {
        let (t, p) = (&self.run.tape, &self.plan);
        let mut hidden = x.clone();
        // The probabilities live in `_` until the next ones take their place or the layer returns.
        let mut probabilities = self.attention_block(&mut hidden, 0, None);
        if let Some(over) = &self.over {
            let next = self.attention_block(&mut hidden, at::CROSS, Some(&over.encoded));
            drop(core::mem::replace(&mut probabilities, next));
        }
        let before = t.set_scope("mlp norm");
        let residual = hidden.clone();
        hidden = self.norm(&hidden, at::MLP_NORM);
        t.set_scope("mlp");
        hidden = {
            let wide = self.linear(&hidden, at::FIRST);
            p.activation.apply(t, &wide)
        };
        hidden = t.dropout(&hidden, p.activation_dropout);
        hidden = self.linear(&hidden, at::LAST);
        hidden = t.dropout(&hidden, p.dropout);
        hidden = t.add(&residual, &hidden);
        // The encoder's layers alone.
        if self.over.is_none() && hidden.dtype() == Dtype::F16 {
            hidden = t.clamp(&hidden, true);
        }
        drop(residual);
        t.set_scope(before);
        drop(probabilities);
        hidden
    }

    fn attention_block(&self, hidden: &mut Tensor, from: usize, encoded: Option<&Tensor>) -> Option<Tensor> {
        let (t, p) = (&self.run.tape, &self.plan);
        let before = t.set_scope("attention norm");
        let residual = hidden.clone();
        *hidden = self.norm(hidden, from + at::NORM);
        t.set_scope(if encoded.is_some() { "cross-attention" } else { "attention" });
        let (out, probabilities) = self.attention(hidden, from, encoded);
        *hidden = out;
        *hidden = t.dropout(hidden, p.dropout);
        *hidden = t.add(&residual, hidden);
        t.set_scope(before);
        probabilities
    }

    fn linear(&self, x: &Tensor, at: usize) -> Tensor {
        const CROSS_K: usize = at::CROSS + at::K;
        let bias = if matches!(at, at::K | CROSS_K) { None } else { self.layer.0[at + 1].as_ref() };
        self.layer.0[at].as_ref().map_or_else(|| x.clone(), |w| self.run.tape.linear(x, w, bias))
    }

    fn norm(&self, x: &Tensor, at: usize) -> Tensor {
        match (&self.layer.0[at], &self.layer.0[at + 1]) {
            (Some(w), Some(b)) => self.run.tape.layer_norm(x, w, b),
            _ => x.clone(),
        }
    }

    fn attention(&self, x: &Tensor, from: usize, encoded: Option<&Tensor>) -> (Tensor, Option<Tensor>) {
        let (t, p) = (&self.run.tape, &self.plan);
        let a = p.heads[usize::from(self.over.is_some())];
        let (b, h) = (x.dim(0), p.h());
        let heads = |x: &Tensor| {
            let seen = t.reshape(x, &[b, x.dim(1), Dim::named(a, Symbol::A), Dim::plain(p.hidden / a)]);
            t.contiguous(&t.transpose(&seen, 1, 2))
        };
        let q = {
            let scaled = {
                let projected = self.linear(x, from + at::Q);
                t.mul_scalar(&projected)
            };
            heads(&scaled)
        };
        let states = encoded.unwrap_or(x);
        let k = heads(&self.linear(states, from + at::K));
        let v = heads(&self.linear(states, from + at::V));
        let mask = self.over.as_ref().filter(|_| encoded.is_none()).and_then(|over| over.mask.as_ref());
        let (mut out, probabilities) = self.attend((&q, &k, &v), mask);
        out = t.reshape(&out, &[b, x.dim(1), h]);
        out = self.linear(&out, from + at::OUT);
        drop((q, k, v));
        (out, probabilities)
    }

    /// Attention whose queries are scaled already; the softmax has whatever dtype autocast gives it.
    fn attend(&self, (q, k, v): (&Tensor, &Tensor, &Tensor), mask: Option<&Tensor>) -> (Tensor, Option<Tensor>) {
        let (t, dropout) = (&self.run.tape, self.plan.attention_dropout);
        let (out, probabilities) = match self.run.attention {
            AttentionPlan::Sdpa(forced) => (t.sdpa(q, k, v, dropout, forced), None),
            // The package is refused.
            AttentionPlan::Eager | AttentionPlan::Package => {
                let mut weights = {
                    let raw = t.matmul4(q, &t.transpose(k, 2, 3));
                    t.mul_scalar(&raw)
                };
                if let Some(mask) = mask {
                    weights = t.add(&weights, mask);
                }
                weights = t.softmax(&weights);
                weights = t.dropout(&weights, dropout);
                (t.matmul4(&weights, v), Some(weights))
            }
        };
        (t.contiguous(&t.transpose(&out, 1, 2)), probabilities)
    }
}

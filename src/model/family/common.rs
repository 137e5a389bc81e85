//! Pieces that several families share, in the order of transformers' own code (5.24).

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::bill::{Instant, Part};
use crate::issue::{Issue, IssueKind};
use crate::model::family::flash::attend_by_package;
use crate::model::fields::Fields;
use crate::recipe::{Attention, Checkpointing, LigerKernel, LinearCrossEntropy, Loss, Recipe, SdpaBackend};
use crate::step::actors::CACHE;
use crate::step::checkpoint::{Keeps, Layer, checkpointed, on_host, reentrant};
use crate::step::ops::SdpaPath;
use crate::step::parallel::{ENDS, ROOT, after_forward, before_forward, module, wrapped};
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// What a forward needs to know of the recipe.
#[derive(Clone, Debug)]
pub struct Run {
    /// The tape.
    pub tape: Tape,
    /// Sequences per micro-batch.
    pub batch: Dim,
    /// Tokens per sequence.
    pub seq: Dim,
    /// Tokens per decoder sequence, of models with an encoder and a decoder.
    pub decoder_seq: Dim,
    /// How attention runs.
    pub attention: AttentionPlan,
    /// Which layers are run again in backward, and what is kept where.
    pub checkpointing: Checkpointing,
    /// How the loss is computed.
    pub loss: Loss,
    /// Whether attention takes a mask of the padding.
    pub padded: bool,
    /// The keys and values of earlier tokens, while text is generated.
    pub cache: Option<Rc<Cache>>,
    /// The dtype in which the model was loaded (`config.dtype`).
    pub loaded: Dtype,
    /// How many sequences the only row of the batch holds, where it holds several (`DataCollatorWithFlattening`).
    pub packed: Option<u64>,
    /// The tokens' places in their own sequences, where it is.
    pub positions: Option<Tensor>,
    /// Where each layer's input goes, of a forward that returns them (`output_hidden_states`).
    pub captured: Option<Rc<RefCell<Vec<Tensor>>>>,
}

/// The keys and values of earlier tokens, by layer (`DynamicCache`).
#[derive(Debug, Default)]
pub struct Cache {
    layers: RefCell<Vec<[Tensor; 2]>>,
    length: Cell<u64>,
    /// Whether it holds what one forward over whole sequences made, which may be learnt from.
    whole: bool,
}

impl Cache {
    /// Of a forward over whole sequences of `length` tokens, which returns it.
    pub(crate) fn of_whole(length: u64) -> Self {
        Self { length: Cell::new(length), whole: true, ..Self::default() }
    }

    /// What it holds.
    pub(crate) fn held(&self) -> Vec<Tensor> {
        self.layers.take().into_iter().flatten().collect()
    }

    /// Says how many tokens it holds after the forward that follows.
    pub(crate) fn grow_to(&self, length: u64) {
        self.length.set(length);
    }

    /// The layer's keys and values with those of new tokens, [b, g, s, d], as copies; the old ones go one by one.
    pub(super) fn update(&self, t: &Tape, new: [&Tensor; 2]) -> [Tensor; 2] {
        if self.whole {
            let held = new.map(|of| t.cat_alone(of));
            self.layers.borrow_mut().push(held.clone());
            return held;
        }
        let layer = (t.layer() as usize).saturating_sub(1);
        let whole = Dim::plain(self.length.get());
        let grown =
            |of: &Tensor| t.empty(of.shape().narrowed(2, whole).contiguous(), of.dtype(), Part::Activations, CACHE);
        let mut layers = self.layers.borrow_mut();
        match layers.get_mut(layer) {
            Some(held) => {
                for (held, new) in held.iter_mut().zip(new) {
                    *held = grown(new);
                }
                held.clone()
            }
            None => {
                let held = new.map(grown);
                layers.push(held.clone());
                held
            }
        }
    }
}

/// How attention runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionPlan {
    /// Scores and probabilities as tensors.
    Eager,
    /// `scaled_dot_product_attention`, by the backend PyTorch chooses or a forced one.
    Sdpa(Option<SdpaPath>),
    /// The kernels of the package flash-attn.
    Package,
}

impl Run {
    /// The run of `recipe` on `tape`.
    #[must_use]
    pub fn new(tape: &Tape, recipe: &Recipe) -> Self {
        let attention = match recipe.attention.unwrap_or(Attention::Sdpa) {
            Attention::Eager => AttentionPlan::Eager,
            Attention::FlashAttention2 => AttentionPlan::Package,
            Attention::Sdpa => AttentionPlan::Sdpa(recipe.sdpa_backend.map(|b| match b {
                SdpaBackend::FlashAttention => SdpaPath::Flash,
                SdpaBackend::EfficientAttention => SdpaPath::Efficient,
                SdpaBackend::CudnnAttention => SdpaPath::Cudnn,
                SdpaBackend::Math => SdpaPath::Math,
            })),
        };
        Self {
            tape: tape.clone(),
            batch: Dim::named(recipe.sequences(), Symbol::B),
            seq: Dim::named(recipe.seq_len, Symbol::S),
            decoder_seq: Dim::named(recipe.dec_seq.unwrap_or(recipe.seq_len), Symbol::T),
            attention,
            checkpointing: recipe.checkpointing,
            loss: recipe.loss,
            padded: recipe.padded || recipe.method.is_some_and(|m| m.padded()),
            cache: None,
            loaded: Dtype::F32,
            packed: (!recipe.packed.is_empty()).then_some(recipe.packed.len() as u64),
            positions: None,
            captured: None,
        }
    }

    /// This run over `batch`, whose third tensor says where packed tokens stand.
    #[must_use]
    pub fn over(&self, batch: &[Tensor]) -> Self {
        Self { positions: batch.get(2).filter(|_| self.packed.is_some()).cloned(), ..self.clone() }
    }

    /// Whether the model's own flag of gradient checkpointing is on.
    #[must_use]
    pub(super) fn checkpointed(&self) -> bool {
        self.checkpointing.recomputes_one_in().is_some() && self.tape.training()
    }

    /// Runs the layer with this number, counted from 1, as the recipe checkpoints it (`GradientCheckpointingLayer`).
    pub(super) fn layer(&self, number: u32, x: &Tensor, layer: impl Fn(&Tensor) -> Tensor + 'static) -> Tensor {
        if let Some(captured) = &self.captured {
            captured.borrow_mut().push(x.clone());
        }
        let layer: Layer = Rc::new(move |_, x| x.first().map(&layer).into_iter().collect());
        self.layer_many(number, core::slice::from_ref(x), layer).pop().unwrap_or_else(|| x.clone())
    }

    /// As [`Run::layer`] for a layer of several outputs, or of several tensors as positional arguments.
    pub(super) fn layer_many(&self, number: u32, x: &[Tensor], layer: Layer) -> Vec<Tensor> {
        wrapped(&self.tape, number, x, layer, &|x, layer| self.checkpointed_layer(number, x, layer))
    }

    fn checkpointed_layer(&self, number: u32, x: &[Tensor], layer: Layer) -> Vec<Tensor> {
        let t = &self.tape;
        if !t.training() {
            return layer(t, x);
        }
        match self.checkpointing {
            Checkpointing::Full => checkpointed(t, x, layer, Keeps::Nothing),
            Checkpointing::Selective => checkpointed(t, x, layer, Keeps::Products),
            Checkpointing::SelectiveHalf => checkpointed(t, x, layer, Keeps::EverySecondProduct),
            Checkpointing::Every(k) if u64::from(number).saturating_sub(1).is_multiple_of(k) => {
                checkpointed(t, x, layer, Keeps::Nothing)
            }
            Checkpointing::None | Checkpointing::Every(_) => layer(t, x),
            Checkpointing::Reentrant => reentrant(t, x, layer),
            Checkpointing::Offload => on_host(t, &|| layer(t, x)),
            Checkpointing::FullOffload => on_host(t, &|| checkpointed(t, x, layer.clone(), Keeps::Nothing)),
        }
    }

    /// Tokens that attention sees: those before too, while text is generated.
    fn keys(&self) -> Dim {
        self.cache.as_ref().map_or(self.seq, |cache| Dim::plain(cache.length.get()))
    }

    /// A tensor of 64-bit integers of the batch: ids, labels.
    #[must_use]
    pub fn integers(&self, dims: &[Dim], name: &'static str) -> Tensor {
        self.tape.empty(Shape::new(dims), Dtype::I64, Part::Activations, name)
    }
}

/// The activation of an MLP (transformers' `ACT2FN`), by what it allocates and keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    /// One kernel that keeps its input: SiLU, GELU.
    Fused,
    /// One kernel that keeps its result.
    Relu,
    /// GPT-2's tanh formula, operation by operation in Python.
    GeluNew,
}

impl Activation {
    /// Reads the field `name`; refuses what is not modelled.
    pub(super) fn read(f: &mut Fields<'_>, name: &'static str, default: &str) -> Self {
        match f.text(name, default).as_str() {
            "silu" | "swish" | "gelu" | "gelu_pytorch_tanh" => Self::Fused,
            "relu" => Self::Relu,
            "gelu_new" => Self::GeluNew,
            other => {
                let what = format!("the activation `{other}`");
                f.refuse(name, what);
                Self::Fused
            }
        }
    }

    /// Applies it.
    pub(super) fn apply(self, t: &Tape, x: &Tensor) -> Tensor {
        match self {
            Self::Fused => t.activation(x, "activation"),
            Self::Relu => t.relu(x),
            Self::GeluNew => gelu_new(t, x),
        }
    }
}

/// `0.5 × x × (1 + tanh(√(2/π) × (x + 0.044715 × x³)))`, as written in Python.
fn gelu_new(t: &Tape, x: &Tensor) -> Tensor {
    let half = t.mul_scalar(x);
    let shifted = {
        let tanh = {
            let scaled = {
                let inner = {
                    let term = {
                        let cube = t.pow(x);
                        t.mul_scalar(&cube)
                    };
                    t.add(x, &term)
                };
                t.mul_scalar(&inner)
            };
            t.tanh(&scaled)
        };
        t.add_scalar(&tanh)
    };
    t.mul(&half, &shifted)
}

/// RMSNorm written in Python, as in Llama: the mean square in FP32, the product with the weight in the input's dtype.
pub(super) fn rms_norm(t: &Tape, x: &Tensor, weight: &Tensor) -> Tensor {
    module(t, x, &[Some(weight)], &|x| t.on_split_sequence(|| scaled_by_root_mean_square(t, x, weight)))
}

fn scaled_by_root_mean_square(t: &Tape, x: &Tensor, weight: &Tensor) -> Tensor {
    if t.fuses(LigerKernel::RmsNorm) {
        return t.liger_rms_norm(x, weight, true);
    }
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
        let cast = t.to(&x, dtype);
        t.mul(weight, &cast)
    };
    drop(x);
    drop(variance);
    out
}

/// `down(act(gate(x)) × up(x))`, without biases.
pub(super) fn gated_mlp(t: &Tape, x: &Tensor, [gate, up, down]: [&Tensor; 3], by: Activation) -> Tensor {
    let product = gated(t, by, [gate, up].map(|weight| || t.linear(x, weight, None)));
    t.linear(&product, down, None)
}

/// `act(gate()) × up()`.
pub(super) fn gated(t: &Tape, by: Activation, [gate, up]: [impl FnOnce() -> Tensor; 2]) -> Tensor {
    if t.fuses(LigerKernel::Swiglu) {
        let (gate, up) = (gate(), up());
        return t.liger_gated(&gate, &up);
    }
    let gate = {
        let gate = gate();
        by.apply(t, &gate)
    };
    let up = up();
    product_of(t, gate, up)
}

/// `a * b` of two temporaries: Python releases an operator's operands from the left.
pub(super) fn product_of(t: &Tape, a: Tensor, b: Tensor) -> Tensor {
    let product = t.mul(&a, &b);
    drop(a);
    drop(b);
    product
}

/// `torch.arange(s) + 0`, unsqueezed: the position ids of a whole sequence.
pub(super) fn position_ids(run: &Run) -> Tensor {
    if let Some(given) = &run.positions {
        return given.clone();
    }
    let t = &run.tape;
    if run.cache.is_some() {
        // Given, as a copy of the last ones.
        return t.temp(Shape::new(&[run.batch, run.seq]), Dtype::I64, "positions");
    }
    if let Some(given) = t.given_positions() {
        return given;
    }
    let range = t.temp(Shape::new(&[run.seq]), Dtype::I64, "positions");
    let ids = t.temp(Shape::new(&[Dim::plain(1), run.seq]), Dtype::I64, "positions");
    drop(range);
    ids
}

/// The cosine and sine tables of rotary embeddings, [1, s, d], of sequences with positions of their own [b, s, d], computed in FP32 and cast to `dtype`.
pub(super) fn rotary_tables(run: &Run, head: Dim, dtype: Dtype) -> (Tensor, Tensor) {
    let t = &run.tape;
    let given = run.cache.is_some() || run.positions.is_some();
    let one = if given { run.batch } else { Dim::plain(1) };
    let half = Dim::plain(head.n / 2);
    let whole = Shape::new(&[one, run.seq, head]);
    let positions = t.temp(Shape::new(&[one, run.seq, Dim::plain(1)]), Dtype::F32, "positions");
    let freqs = t.temp(Shape::new(&[one, run.seq, half]), Dtype::F32, "rotary angles");
    drop(positions);
    let emb = t.temp(whole, Dtype::F32, "rotary angles");
    let table = |op: &'static str| {
        let raw = t.temp(whole, Dtype::F32, op);
        let scaled = t.temp(whole, Dtype::F32, op);
        drop(raw);
        scaled
    };
    let cos = table("cosine table");
    let sin = table("sine table");
    let out = (t.to(&cos, dtype), t.to(&sin, dtype));
    drop(freqs);
    drop(emb);
    drop(cos);
    drop(sin);
    out
}

/// `x × cos + rotate_half(x) × sin`.
pub(super) fn rotate(t: &Tape, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    let direct = t.mul(x, cos);
    let turned = {
        let rotated = {
            let d = x.dim(3);
            let half = Dim::plain(d.n / 2);
            let first = t.slice(x, 3, half);
            let second = t.slice(x, 3, half);
            let negated = t.neg(&second);
            t.cat(&negated, &first, 3, d)
        };
        t.mul(&rotated, sin)
    };
    let sum = t.add(&direct, &turned);
    // As in `product_of`.
    drop(direct);
    drop(turned);
    sum
}

/// Queries and keys rotated.
pub(super) fn rotate_both(t: &Tape, q: &Tensor, k: &Tensor, tables: [&Tensor; 2]) -> (Tensor, Tensor) {
    if t.fuses(LigerKernel::Rope) {
        return t.liger_rope(q, k, tables);
    }
    let [cos, sin] = tables;
    (rotate(t, q, cos, sin), rotate(t, k, cos, sin))
}

/// The first `rotary` dimensions of each head, and the rest, as views.
pub(super) fn rotated_parts(t: &Tape, x: &Tensor, rotary: u64) -> [Tensor; 2] {
    let d = x.dim(3);
    // A slice of everything is the tensor itself under another name.
    let rotated = if rotary == d.n { t.reshape(x, x.shape().dims()) } else { t.slice(x, 3, Dim::plain(rotary)) };
    let pass = t.slice(x, 3, Dim::plain(d.n - rotary));
    [rotated, pass]
}

/// [`rotate`] of the part that is rotated.
pub(super) fn rotate_part(t: &Tape, [x, _]: &[Tensor; 2], cos: &Tensor, sin: &Tensor) -> Tensor {
    rotate(t, x, cos, sin)
}

/// `repeat_kv`: each key or value head repeated for its query heads, as a copy; nothing when there is one each.
pub(super) fn repeat_kv(t: &Tape, x: &Tensor, heads: Dim) -> Tensor {
    let groups = heads.n / x.dim(1).n.max(1);
    if groups == 1 {
        return x.clone();
    }
    let (b, s, d) = (x.dim(0), x.dim(2), x.dim(3));
    let five = t.unsqueeze(x, 2);
    let five = t.expand(&five, 2, Dim::plain(groups));
    // A single head is repeated as a view.
    t.reshape(&five, &[b, heads, s, d])
}

/// Causal attention of q [b, a, s, d] over k, v [b, g, s, d]; returns [b, s, a·d], and the probabilities where they are
/// a tensor.
pub(super) fn attend(
    run: &Run,
    qkv: (&Tensor, &Tensor, &Tensor),
    mask: Option<&Tensor>,
    dropout: f64,
    width: Dim,
) -> (Tensor, Option<Tensor>) {
    attend_by(run, qkv, &Attend { mask, dropout, width, softcap: false })
}

/// What else attention does.
pub(super) struct Attend<'a> {
    /// Additive under eager attention, boolean under `sdpa`.
    pub(super) mask: Option<&'a Tensor>,
    pub(super) dropout: f64,
    /// The output's last dimension, heads × head size of the values.
    pub(super) width: Dim,
    /// Scores go through `cap × tanh(scores ÷ cap)` (eager only).
    pub(super) softcap: bool,
}

/// [`attend`] with everything said.
pub(super) fn attend_by(
    run: &Run,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    with: &Attend<'_>,
) -> (Tensor, Option<Tensor>) {
    let t = &run.tape;
    let (b, a, s) = (q.dim(0), q.dim(1), q.dim(2));
    let (out, probabilities) = match run.attention {
        AttentionPlan::Sdpa(forced) => {
            let out = match with.mask {
                None if v.dim(3).n <= MAX_GROUPED_HEAD && !t.rules().repeats_groups => {
                    let [q, k, v] = for_sdpa(t, [q, k, v]);
                    t.sdpa(&q, &k, &v, with.dropout, forced)
                }
                // A single token's heads are packed over those of keys and values (`pack_gqa`).
                mask if run.cache.is_some() && s.n == 1 => {
                    let (g, groups) = (k.dim(1), Dim::plain(a.n / k.dim(1).n.max(1)));
                    let packed = t.reshape(q, &[b, g, groups, q.dim(3)]);
                    let out = t.sdpa_masked(&packed, k, v, mask, with.dropout, forced);
                    t.reshape(&out, &[b, a, s, v.dim(3)])
                }
                mask => {
                    let k = repeat_kv(t, k, a);
                    let v = repeat_kv(t, v, a);
                    let [q, k, v] = for_sdpa(t, [q, &k, &v]);
                    t.sdpa_masked(&q, &k, &v, mask, with.dropout, forced)
                }
            };
            let out = t.transpose(&out, 1, 2);
            (t.contiguous(&out), None)
        }
        AttentionPlan::Package => return (attend_by_package(run, [q, k, v], with.dropout, with.width), None),
        AttentionPlan::Eager => {
            let k = repeat_kv(t, k, a);
            let v = repeat_kv(t, v, a);
            let mut weights = {
                let kt = t.transpose(&k, 2, 3);
                let raw = t.matmul4(q, &kt);
                t.mul_scalar(&raw)
            };
            if with.softcap {
                weights = softcap(t, weights);
            }
            if let Some(mask) = with.mask {
                weights = t.add(&weights, mask);
            }
            weights = {
                let softmax = t.softmax_f32(&weights);
                t.to(&softmax, q.dtype())
            };
            weights = t.dropout(&weights, with.dropout);
            let out = t.matmul4(&weights, &v);
            let out = t.transpose(&out, 1, 2);
            (t.contiguous(&out), Some(weights))
        }
    };
    (t.reshape(&out, &[b, s, with.width]), probabilities)
}

/// Query, key and value as versions that copy them give them to `sdpa`.
pub(super) fn for_sdpa(t: &Tape, qkv: [&Tensor; 3]) -> [Tensor; 3] {
    qkv.map(|x| if t.rules().copies_for_sdpa { t.contiguous(x) } else { x.clone() })
}

/// The largest head for which transformers leaves grouped keys and values to `sdpa` (`use_gqa_in_sdpa`).
const MAX_GROUPED_HEAD: u64 = 256;

/// `cap × tanh(x ÷ cap)`.
pub(super) fn softcap(t: &Tape, x: Tensor) -> Tensor {
    let tanh = {
        let scaled = t.mul_scalar(&x);
        drop(x);
        t.tanh(&scaled)
    };
    t.mul_scalar(&tanh)
}

/// The kinds of checkpointing in which a family was not found to hold what the recorded steps do.
pub(super) fn refuse_checkpointing(recipe: &Recipe, kinds: &[Checkpointing]) -> Vec<Issue> {
    if !kinds.contains(&recipe.checkpointing) {
        return Vec::new();
    }
    let what = "this kind of checkpointing in this family".into();
    vec![Issue::new("recipe.checkpointing", IssueKind::NotModelled { what })]
}

/// Reentrant checkpointing of layers that return their probabilities: backward makes zeros for the gradient that nobody
/// has for them.
pub(super) fn refuse_reentrant(recipe: &Recipe) -> Vec<Issue> {
    if recipe.checkpointing != Checkpointing::Reentrant {
        return Vec::new();
    }
    let what = "reentrant checkpointing of layers that return their attention's probabilities".into();
    vec![Issue::new("recipe.checkpointing", IssueKind::NotModelled { what })]
}

/// The probabilities that a layer returned, in models whose loop holds them until the next layer returns (Falcon, BLOOM).
#[derive(Default)]
pub(super) struct Returned(RefCell<Option<Option<Tensor>>>);

impl Returned {
    pub(super) fn open() -> Rc<Self> {
        Rc::new(Self(RefCell::new(Some(None))))
    }
    /// Takes the place of what was returned before; a recomputed layer returns to nobody.
    pub(super) fn replace(&self, probabilities: Option<Tensor>) {
        let before = self.0.borrow_mut().as_mut().map(|held| core::mem::replace(held, probabilities));
        drop(before);
    }
    pub(super) fn close(&self) {
        let last = self.0.borrow_mut().take();
        drop(last);
    }
}

/// The additive causal mask of eager attention, [b, 1, s, s] expanded to what broadcasts, in the hidden states' dtype
/// (`eager_mask`, transformers 5.24). None under `sdpa`, which masks by itself, unless sequences are packed: then a boolean
/// one.
pub(super) fn eager_mask(run: &Run, dtype: Dtype, window: bool) -> Option<Tensor> {
    match run.attention {
        AttentionPlan::Sdpa(_) => return run.packed.map(|_| boolean_mask(run, window)),
        AttentionPlan::Package => {
            // Which sequence each token belongs to is found all the same.
            drop(run.packed.map(|_| run.tape.packed_sequences(run.seq)));
            return None;
        }
        AttentionPlan::Eager => {}
    }
    let t = &run.tape;
    let (allowed, sequences) = allowed(run, window);
    let zero = t.scalar(dtype, "mask");
    let least = t.scalar(dtype, "mask");
    let square = [run.batch, Dim::plain(1), run.seq, run.keys()];
    let mask = t.temp(Shape::new(&square), dtype, "causal mask");
    drop(least);
    drop(zero);
    drop(allowed);
    drop(sequences);
    Some(mask)
}

/// The mask of plain causal attention over padded sequences, as `sdpa` or eager attention takes it; else [`eager_mask`].
pub(super) fn padded_mask(run: &Run, dtype: Dtype) -> Option<Tensor> {
    match run.attention {
        AttentionPlan::Sdpa(_) if run.padded => Some(allowed(run, false).0),
        _ => eager_mask(run, dtype, false),
    }
}

/// The mask of layers that attend within `window` tokens. Under `sdpa` a boolean one, when the sequence is at least as
/// long as the window or sequences are packed (`sdpa_mask` and `_ignore_causal_mask_sdpa`, transformers 5.24); none
/// otherwise.
pub(super) fn window_mask(run: &Run, dtype: Dtype, window: u64) -> Option<Tensor> {
    match run.attention {
        AttentionPlan::Eager => eager_mask(run, dtype, true),
        AttentionPlan::Sdpa(_) => (run.packed.is_some() || run.seq.n >= window).then(|| boolean_mask(run, true)),
        AttentionPlan::Package => eager_mask(run, dtype, true),
    }
}

/// A causal mask that is made even where `sdpa` could do without (`allow_is_causal_skip=False`).
pub(super) fn causal_mask(run: &Run, dtype: Dtype) -> Tensor {
    eager_mask(run, dtype, false).unwrap_or_else(|| boolean_mask(run, false))
}

fn boolean_mask(run: &Run, window: bool) -> Tensor {
    let (allowed, sequences) = allowed(run, window);
    drop(sequences);
    allowed.alias(allowed.shape().expanded(0, run.batch))
}

/// Which keys a query may see, [1, 1, s, s], of padded sequences [b, 1, s, s]: those before it, with a window near it, and
/// with packed sequences in its own; then also which sequence each token belongs to.
fn allowed(run: &Run, window: bool) -> (Tensor, Option<Tensor>) {
    let t = &run.tape;
    let line = |n: Dim| Shape::new(&[n]);
    let sequences = run.packed.map(|_| t.packed_sequences(run.seq));
    let batch = t.temp(line(run.batch), Dtype::I64, "mask positions");
    let head = t.temp(line(Dim::plain(1)), Dtype::I64, "mask positions");
    let range = |n: Dim| {
        let raw = t.temp(line(n), Dtype::I64, "mask positions");
        let shifted = t.temp(line(n), Dtype::I64, "mask positions");
        drop(raw);
        shifted
    };
    let seen = run.keys();
    let (queries, keys) = (range(run.seq), range(seen));
    let one = Dim::plain(1);
    let square = Shape::new(&[one, one, run.seq, seen]);
    let padding = run.padded.then(|| t.temp(Shape::new(&[run.batch, seen]), Dtype::Bool, "padding"));
    let part = || t.temp(square, Dtype::Bool, "mask");
    let unit = || t.temp(Shape::new(&[]), Dtype::Bool, "mask");
    let own = || {
        if !window {
            return part();
        }
        // One mask per rule, and their conjunction.
        let unit = unit();
        let lower = t.temp(Shape::new(&[one, one, run.seq, one]), Dtype::I64, "mask positions");
        let near = part();
        drop(lower);
        let both = part();
        drop(near);
        drop(unit);
        let causal = part();
        let all = part();
        drop(causal);
        drop(both);
        all
    };
    let allowed = if run.padded {
        let unit = unit();
        let causal = part();
        let both = part();
        drop(causal);
        drop(unit);
        let row = Shape::new(&[run.batch, one, one, seen]);
        let kept = {
            let indices = [(); 2].map(|()| t.temp(row, Dtype::I64, "mask positions"));
            let kept = t.temp(row, Dtype::Bool, "mask");
            drop(indices);
            kept
        };
        let all = t.temp(Shape::new(&[run.batch, one, run.seq, seen]), Dtype::Bool, "mask");
        drop(kept);
        drop(both);
        all
    } else if sequences.is_none() {
        own()
    } else {
        // The places in their own sequences, or the sequences, of queries and keys: the index expanded, and what it finds.
        let looked_up = || (range(run.seq), range(run.seq));
        let unit = unit();
        let places = looked_up();
        let own = own();
        drop(places);
        let first = part();
        drop(own);
        drop(unit);
        let of = looked_up();
        let same = part();
        drop(of);
        let all = part();
        drop(same);
        drop(first);
        all
    };
    drop((batch, head, queries, keys));
    drop(padding);
    (allowed, sequences)
}

/// Attention of every token over every token, as the encoders of transformers 5.24 write it: no mask, the softmax in
/// whatever dtype autocast gives it. q, k, v are [b, a, s, d]; returns [b, s, a·d], and the probabilities where they
/// are a tensor.
pub(super) fn attend_to_all(
    run: &Run,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    dropout: f64,
    width: Dim,
) -> (Tensor, Option<Tensor>) {
    let t = &run.tape;
    let (b, s) = (q.dim(0), q.dim(2));
    let (out, probabilities) = match run.attention {
        AttentionPlan::Sdpa(forced) => {
            let [q, k, v] = for_sdpa(t, [q, k, v]);
            let out = t.sdpa(&q, &k, &v, dropout, forced);
            (t.contiguous(&t.transpose(&out, 1, 2)), None)
        }
        AttentionPlan::Package => return (attend_by_package(run, [q, k, v], dropout, width), None),
        AttentionPlan::Eager => {
            let mut weights = {
                let kt = t.transpose(k, 2, 3);
                let raw = t.matmul4(q, &kt);
                t.mul_scalar(&raw)
            };
            weights = t.softmax(&weights);
            weights = t.dropout(&weights, dropout);
            let out = t.matmul4(&weights, v);
            (t.contiguous(&t.transpose(&out, 1, 2)), Some(weights))
        }
    };
    (t.reshape(&out, &[b, s, width]), probabilities)
}

/// The head of a causal language model.
pub(super) struct Head<'a> {
    pub(super) weight: &'a Tensor,
    pub(super) bias: Option<&'a Tensor>,
    /// Logits go through [`softcap`].
    pub(super) softcap: bool,
}

impl Head<'_> {
    fn logits(&self, t: &Tape, hidden: &Tensor) -> Tensor {
        let logits = t.linear(hidden, self.weight, self.bias);
        if self.softcap { softcap(t, logits) } else { logits }
    }
}

/// A causal language model's forward: hidden states, head and loss as the recipe asks for it. Returns the loss, and the
/// logits where a loop could keep them.
pub(super) fn causal_forward(
    run: &Run,
    labels: &Tensor,
    hidden: &dyn Fn() -> Tensor,
    head: &Head<'_>,
) -> (Tensor, Tensor) {
    let t = &run.tape;
    if t.tensor_parallel().is_some() {
        return split_forward(run, labels, hidden, head);
    }
    if run.loss == Loss::Hf {
        let hidden = hidden();
        if t.fuses(LigerKernel::FusedLinearCrossEntropy) && t.training() {
            t.enter(Instant::Loss);
            let loss = t.scope("loss", || {
                let (shifted, padded) = t.shifted_labels(labels);
                let flat = t.reshape(&hidden, &[run.batch.times(run.seq), hidden.dim(2)]);
                let loss = t.liger_linear_cross_entropy(&flat, head.weight, &shifted);
                drop(padded);
                drop(shifted);
                drop((flat, hidden));
                loss
            });
            return (loss.clone(), loss);
        }
        let mut ends = [t.scope("head", || head.logits(t, &hidden))];
        after_forward(t, ENDS, &mut ends);
        let [logits] = ends;
        t.enter(Instant::Loss);
        let out = t.scope("loss", || t.causal_lm_loss(logits, labels));
        drop(hidden);
        return out;
    }
    // `pad(labels, (0, 1))[:, 1:]`, before the model runs.
    let padded = t.scope("loss", || {
        let longer = Dim::plain(run.seq.n.saturating_add(1));
        let padded = t.temp(Shape::new(&[run.batch, longer]), Dtype::I64, "padded labels");
        padded.alias(padded.shape().narrowed(1, run.seq))
    });
    let hidden = hidden();
    let loss = match run.loss {
        Loss::LinearCrossEntropy(options) => linear_cross_entropy(run, hidden, head, padded, options),
        Loss::LogitsToKeep(n) => last_tokens_loss(run, hidden, head, padded, n),
        Loss::Chunked(n) => chunked_loss(run, hidden, head, padded, n),
        Loss::ChunkedOutputs(n) => chunked_outputs_loss(run, hidden, head, &padded, n),
        Loss::Hf => t.scalar(Dtype::F32, "loss"),
    };
    (loss.clone(), loss)
}

/// As loops run a model that tensor-parallel ranks share: it is given positions, and the loss is
/// `cross_entropy(logits.float().flatten(0, 1), labels.flatten())`.
fn split_forward(run: &Run, labels: &Tensor, hidden: &dyn Fn() -> Tensor, head: &Head<'_>) -> (Tensor, Tensor) {
    let t = &run.tape;
    let positions = t.temp(Shape::new(&[Dim::plain(1), run.seq]), Dtype::I64, "positions");
    t.give_positions(Some(positions));
    before_forward(t, ROOT, &mut []);
    let hidden = hidden();
    let mut ends = [t.scope("head", || head.logits(t, &hidden))];
    after_forward(t, ENDS, &mut ends);
    drop(hidden);
    after_forward(t, ROOT, &mut ends);
    let [logits] = ends;
    t.enter(Instant::Loss);
    let loss = t.scope("loss", || {
        let rows = run.batch.times(run.seq);
        let wide = t.to(&logits, Dtype::F32);
        drop(logits);
        let flat = t.reshape(&wide, &[rows, wide.dim(2)]);
        drop(wide);
        let loss = t.split_cross_entropy(&flat, &t.reshape_raw(labels, &[rows]));
        t.give_positions(None);
        loss
    });
    (loss.clone(), loss)
}

/// `model(..., logits_to_keep=n)`, and the cross-entropy of those logits in FP32.
fn last_tokens_loss(run: &Run, hidden: Tensor, head: &Head<'_>, labels: Tensor, n: u64) -> Tensor {
    let t = &run.tape;
    let kept = Dim::plain(n);
    let logits = t.scope("head", || {
        let last = if n == run.seq.n { hidden.clone() } else { t.slice(&hidden, 1, kept) };
        head.logits(t, &last)
    });
    drop(hidden);
    t.enter(Instant::Loss);
    t.scope("loss", || {
        let wide = t.to(&logits, Dtype::F32);
        drop(logits);
        let rows = run.batch.times(kept);
        let flat = t.reshape(&wide, &[rows, wide.dim(2)]);
        let last = t.reshape_raw(&labels.alias(labels.shape().narrowed(1, kept)), &[rows]);
        let loss = t.cross_entropy(&flat, &last);
        drop((flat, wide, labels));
        loss
    })
}

/// The head over `n` pieces of each sequence, then the sum of the pieces' losses over their logits in FP32, divided by the
/// tokens; the logits go before backward, as the recipe's `del logits` says (torchtune 0.4, `modules/transformer.py`,
/// `modules/loss/ce_chunked_output_loss.py`).
fn chunked_outputs_loss(run: &Run, hidden: Tensor, head: &Head<'_>, labels: &Tensor, n: u64) -> Tensor {
    let t = &run.tape;
    let length = run.seq.n.div_ceil(n.max(1)).max(1);
    let logits: Vec<Tensor> = t.scope("head", || {
        let starts = (0..run.seq.n).step_by(usize::try_from(length).unwrap_or(1));
        starts.map(|at| head.logits(t, &t.slice(&hidden, 1, Dim::plain(length.min(run.seq.n - at))))).collect()
    });
    drop(hidden);
    t.enter(Instant::Loss);
    t.scope("loss", || {
        let mut sum: Option<Tensor> = None;
        for piece in &logits {
            let rows = run.batch.times(piece.dim(1));
            let loss = {
                let flat = t.reshape(piece, &[rows, piece.dim(2)]);
                let wide = t.to(&flat, Dtype::F32);
                drop(flat);
                t.cross_entropy(&wide, &labels.alias(Shape::new(&[rows])))
            };
            sum = Some(match &sum {
                None => t.add_scalar(&loss),
                Some(sum) => t.add(sum, &loss),
            });
        }
        drop(logits);
        sum.map_or_else(|| t.scalar(Dtype::F32, "loss"), |sum| t.mul_scalar(&sum))
    })
}

/// `linear_cross_entropy(hidden.flatten(0, 1), head.weight, labels.flatten(), linear_bias=head.bias, options=…)`.
fn linear_cross_entropy(
    run: &Run,
    hidden: Tensor,
    head: &Head<'_>,
    labels: Tensor,
    options: LinearCrossEntropy,
) -> Tensor {
    let t = &run.tape;
    let rows = run.batch.times(run.seq);
    t.enter(Instant::Loss);
    t.scope("loss", || {
        let flat = t.reshape(&hidden, &[rows, hidden.dim(2)]);
        let labels_flat = t.reshape_raw(&labels, &[rows]);
        let loss = if options.reference {
            let logits = head.logits(t, &flat);
            t.cross_entropy(&logits, &labels_flat)
        } else {
            t.linear_cross_entropy(&flat, head.weight, head.bias, &labels_flat, &options)
        };
        drop((labels_flat, flat, labels, hidden));
        loss
    })
}

/// The sum of the losses of `n` pieces of the tokens, each a checkpoint of head and cross-entropy, divided by the tokens.
fn chunked_loss(run: &Run, hidden: Tensor, head: &Head<'_>, labels: Tensor, n: u64) -> Tensor {
    let t = &run.tape;
    t.enter(Instant::Loss);
    t.scope("loss", || {
        let rows = run.batch.times(run.seq);
        let labels = {
            let flat = t.reshape_raw(&labels, &[rows]);
            drop(labels);
            flat
        };
        let flat = t.reshape(&hidden, &[rows, hidden.dim(2)]);
        let pieces = t.chunk(&flat, n);
        drop(flat);
        drop(hidden);
        let (weight, bias) = (head.weight, head.bias);
        let mut sum: Option<Tensor> = None;
        for piece in &pieces {
            let labels = labels.alias(Shape::new(&[piece.dim(0)]));
            let (weight, bias) = (weight.clone(), bias.cloned());
            let layer: Layer = Rc::new(move |t, x| {
                let Some(x) = x.first() else { return Vec::new() };
                let logits = {
                    let logits = t.linear(x, &weight, bias.as_ref());
                    t.to(&logits, Dtype::F32)
                };
                vec![t.cross_entropy(&logits, &labels)]
            });
            let losses = checkpointed(t, core::slice::from_ref(piece), layer, Keeps::Nothing);
            // Python's `sum` begins with 0.
            sum = losses.first().map(|loss| match &sum {
                None => t.add_scalar(loss),
                Some(sum) => t.add(sum, loss),
            });
        }
        drop(pieces);
        drop(labels);
        match sum {
            Some(sum) => t.mul_scalar(&sum),
            None => t.scalar(Dtype::F32, "loss"),
        }
    })
}

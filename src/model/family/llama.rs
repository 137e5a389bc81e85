//! Llama and the families that share its decoder: Mistral, Qwen2, Qwen3 (`modeling_llama.py` and its derivatives,
//! transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::issue::Issue;
use crate::model::family::common::{
    Activation, Head, Run, attend, causal_forward, eager_mask, gated, padded_mask, position_ids, rms_norm,
    rotary_tables, rotate_both, window_mask,
};
use crate::model::family::experts::{
    ExpertNames, Experts, Gate, MIXTRAL_EXPERTS, MIXTRAL_TARGETS, MOE_EXPERTS, MOE_TARGETS, Routed,
};
use crate::model::family::{
    Built, Dimensions, Gpt, MegatronExperts, Model, Parameter, Parameters, dotted_names, matrix, names_of, names_there,
    vector,
};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::{LigerKernel, Recipe};
use crate::step::parallel::{ENDS, before_forward};
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// A decoder's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct Decoder {
    family: &'static str,
    hidden: u64,
    mlp: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head: u64,
    vocab: u64,
    tied: bool,
    /// Biases of the q, k, v projections, and of the output projection.
    qkv_bias: bool,
    out_bias: bool,
    mlp_bias: bool,
    /// RMSNorm over each query and key head (Qwen3).
    qk_norm: bool,
    activation: Activation,
    attention_dropout: f64,
    windows: Windows,
    moe: Option<Moe>,
    /// Whether the head is one score.
    scored: bool,
}

/// A mixture of experts in place of the MLP (Mixtral, Qwen3-MoE).
#[derive(Clone, Debug, PartialEq)]
struct Moe {
    experts: u64,
    per_token: u64,
    width: u64,
    /// Whether the chosen experts' probabilities are divided by their sum.
    normalised: bool,
    /// For each layer whether it has an MLP instead.
    dense: Vec<bool>,
}

/// Which layers attend within a window of tokens alone.
#[derive(Clone, Debug, PartialEq)]
enum Windows {
    /// None.
    None,
    /// All (Mistral).
    All(u64),
    /// Those marked; there is a mask of either kind (Qwen).
    Some(u64, Vec<bool>),
}

/// Defaults that transformers applies to absent fields, where the families differ.
struct Defaults {
    kv_heads: Option<u64>,
    head: Option<u64>,
    qkv_bias: Option<bool>,
    qk_norm: bool,
    window: Option<u64>,
}

/// `LlamaConfig`.
pub(super) fn read_llama(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let defaults = Defaults { kv_heads: None, head: None, qkv_bias: None, qk_norm: false, window: None };
    read("llama", config, &defaults)
}

/// `MistralConfig`.
pub(super) fn read_mistral(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let defaults =
        Defaults { kv_heads: Some(8), head: None, qkv_bias: Some(false), qk_norm: false, window: Some(4096) };
    read("mistral", config, &defaults)
}

/// `Qwen2Config`: biases on q, k and v alone.
pub(super) fn read_qwen2(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let defaults = Defaults { kv_heads: Some(32), head: None, qkv_bias: Some(true), qk_norm: false, window: None };
    read("qwen2", config, &defaults)
}

/// `Qwen3Config`.
pub(super) fn read_qwen3(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let defaults = Defaults { kv_heads: Some(32), head: Some(128), qkv_bias: None, qk_norm: true, window: None };
    read("qwen3", config, &defaults)
}

/// `MixtralConfig`.
pub(super) fn read_mixtral(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let defaults = Defaults { kv_heads: Some(8), head: None, qkv_bias: Some(false), qk_norm: false, window: None };
    read("mixtral", config, &defaults)
}

/// `Qwen3MoeConfig`.
pub(super) fn read_qwen3_moe(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let defaults = Defaults { kv_heads: Some(4), head: None, qkv_bias: None, qk_norm: true, window: None };
    read("qwen3_moe", config, &defaults)
}

fn read(family: &'static str, config: &Map<String, Value>, or: &Defaults) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let hidden = f.required(&["hidden_size"], MAX_DIMENSION);
    let mlp = f.required(&["intermediate_size"], MAX_DIMENSION);
    let layers = f.required(&["num_hidden_layers"], MAX_LAYERS);
    let heads = f.required(&["num_attention_heads"], MAX_HEADS);
    let vocab = f.required(&["vocab_size"], MAX_DIMENSION);
    let kv_heads = f.optional(&["num_key_value_heads"], or.kv_heads.unwrap_or(heads), MAX_HEADS);
    let head = match (f.has("head_dim"), or.head) {
        (true, _) => f.required(&["head_dim"], MAX_DIMENSION),
        (false, Some(d)) => d,
        (false, None) => {
            f.divides("hidden_size", hidden, "num_attention_heads", heads);
            (hidden / heads).max(1)
        }
    };
    f.divides("num_attention_heads", heads, "num_key_value_heads", kv_heads);
    if !head.is_multiple_of(2) && f.sound(&["hidden_size", "num_attention_heads", "head_dim"]) {
        f.refuse("head_dim", "rotary embeddings over an odd head size");
    }
    let tied = f.flag("tie_word_embeddings", false);
    let bias = match or.qkv_bias {
        Some(fixed) => fixed,
        None => f.flag("attention_bias", false),
    };
    let out_bias = or.qkv_bias.is_none() && bias;
    let mlp_bias = family == "llama" && f.flag("mlp_bias", false);
    let attention_dropout = f.probability("attention_dropout", 0.0);
    let activation = Activation::read(&mut f, "hidden_act", "silu");
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    let windows = match family {
        "mistral" | "mixtral" => {
            f.nullable("sliding_window", or.window, MAX_DIMENSION).map_or(Windows::None, Windows::All)
        }
        "qwen3_moe" if f.flag("use_sliding_window", false) => {
            f.nullable("sliding_window", Some(4096), MAX_DIMENSION).map_or(Windows::None, Windows::All)
        }
        "qwen2" | "qwen3" => read_windows(&mut f, layers),
        _ => Windows::None,
    };
    let moe = match family {
        "mixtral" => Some(read_mixtral_experts(&mut f, layers, mlp)),
        "qwen3_moe" => Some(read_qwen3_experts(&mut f, layers)),
        _ => None,
    };
    let decoder = Decoder {
        family,
        hidden,
        mlp,
        layers,
        heads,
        kv_heads,
        head,
        vocab,
        tied,
        qkv_bias: bias,
        out_bias,
        mlp_bias,
        qk_norm: or.qk_norm,
        activation,
        attention_dropout,
        windows,
        moe,
        scored: false,
    };
    f.finish(Box::new(decoder) as Box<dyn Model>)
}

fn read_mixtral_experts(f: &mut Fields<'_>, layers: u64, width: u64) -> Moe {
    refuse_router_extras(f);
    let moe = Moe {
        experts: f.optional(&["num_local_experts"], 8, MAX_EXPERTS),
        per_token: f.optional(&["num_experts_per_tok"], 2, MAX_EXPERTS),
        width,
        normalised: true,
        dense: (0..layers).map(|_| false).collect(),
    };
    f.at_most("num_experts_per_tok", moe.per_token, moe.experts);
    moe
}

fn read_qwen3_experts(f: &mut Fields<'_>, layers: u64) -> Moe {
    refuse_router_extras(f);
    let every = f.optional(&["decoder_sparse_step"], 1, MAX_LAYERS);
    let dense = f.numbers("mlp_only_layers", MAX_LAYERS);
    let moe = Moe {
        experts: f.optional(&["num_experts"], 128, MAX_EXPERTS),
        per_token: f.optional(&["num_experts_per_tok"], 8, MAX_EXPERTS),
        width: f.optional(&["moe_intermediate_size"], 768, MAX_DIMENSION),
        normalised: f.flag("norm_topk_prob", false),
        dense: (0..layers).map(|i| dense.contains(&i) || !(i + 1).is_multiple_of(every)).collect(),
    };
    f.at_most("num_experts_per_tok", moe.per_token, moe.experts);
    moe
}

/// The router's auxiliary loss and noise are not modelled.
fn refuse_router_extras(f: &mut Fields<'_>) {
    if f.flag("output_router_logits", false) {
        f.refuse("output_router_logits", "the router's auxiliary loss");
    }
    if f.number("router_jitter_noise", 0.0) != 0.0 {
        f.refuse("router_jitter_noise", "noise on the router's input");
    }
}

/// Qwen's: with `use_sliding_window`, layers from `max_window_layers` on, unless `layer_types` lists them.
fn read_windows(f: &mut Fields<'_>, layers: u64) -> Windows {
    let used = f.flag("use_sliding_window", false);
    let window = f.nullable("sliding_window", Some(4096), MAX_DIMENSION).filter(|_| used);
    let from = f.optional(&["max_window_layers"], 28, MAX_LAYERS);
    let sliding = f.layer_types("layer_types", layers, |i| window.is_some() && i >= from);
    match window {
        Some(window) if sliding.contains(&true) => Windows::Some(window, sliding),
        None if sliding.contains(&true) => {
            f.refuse("layer_types", "layers with a sliding window whose length is not given");
            Windows::None
        }
        _ => Windows::None,
    }
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
    /// The sizes of the head.
    fn head_shape(&self) -> Shape {
        matrix(if self.scored { Dim::plain(1) } else { self.v() }, self.h())
    }

    /// One layer's parameters in registration order, `None` where the config has no such parameter.
    fn layer_shapes(&self, layer: usize) -> [Option<Shape>; LAYER] {
        let (h, f, q, k, d) = (self.h(), self.f(), self.q(), self.k(), self.d());
        let bias = |on: bool, n: Dim| on.then(|| vector(n));
        let moe = self.moe.as_ref().filter(|m| m.dense.get(layer) == Some(&false));
        let dense = moe.is_none();
        let mlp = |rows: Dim, columns: Dim| dense.then(|| matrix(rows, columns));
        let mlp_bias = |n: Dim| bias(dense && self.mlp_bias, n);
        let experts = moe.map(|m| [m.experts, 2 * m.width, m.width].map(Dim::plain));
        let gate = experts.map(|[e, ..]| matrix(e, h));
        let mixtral = self.family == "mixtral";
        [
            Some(matrix(q, h)),
            bias(self.qkv_bias, q),
            Some(matrix(k, h)),
            bias(self.qkv_bias, k),
            Some(matrix(k, h)),
            bias(self.qkv_bias, k),
            Some(matrix(h, q)),
            bias(self.out_bias, h),
            bias(self.qk_norm, d),
            bias(self.qk_norm, d),
            mlp(f, h),
            mlp_bias(f),
            mlp(f, h),
            mlp_bias(f),
            mlp(h, f),
            mlp_bias(h),
            gate.filter(|_| mixtral),
            experts.map(|[e, two, _]| Shape::new(&[e, two, h])),
            experts.map(|[e, _, one]| Shape::new(&[e, h, one])),
            gate.filter(|_| !mixtral),
            Some(vector(h)),
            Some(vector(h)),
        ]
    }
}

/// How many places a layer has for parameters.
const LAYER: usize = 22;
/// The most experts of a layer.
const MAX_EXPERTS: u64 = 65_536;

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
        match &self.0[at] {
            Some(w) => rms_norm(t, x, w),
            None => x.clone(),
        }
    }
}

impl Model for Decoder {
    fn family(&self) -> &'static str {
        self.family
    }

    fn megatron(&self) -> Option<Gpt> {
        // Megatron-LM's dense layers come first.
        let experts = match &self.moe {
            None => None,
            Some(moe) => {
                let dense_layers = moe.dense.iter().take_while(|dense| **dense).count();
                if moe.dense[dense_layers..].contains(&true) {
                    return None;
                }
                let (count, per_token, ffn) = (moe.experts, moe.per_token, moe.width);
                Some(MegatronExperts { count, per_token, ffn, shared: 0, dense_layers: dense_layers as u64 })
            }
        };
        let silu = self.activation == Activation::Fused && !self.mlp_bias && !self.out_bias;
        (silu && !self.scored).then_some(Gpt {
            layers: self.layers,
            hidden: self.hidden,
            ffn: self.mlp,
            heads: self.heads,
            groups: self.kv_heads,
            head: self.head,
            vocab: self.vocab,
            positions: None,
            gated: true,
            rms: true,
            bias: false,
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm,
            tied: self.tied,
            bert: false,
            latent: None,
            experts,
        })
    }

    fn parameters(&self) -> Vec<Parameter> {
        let lookup_only = !self.tied;
        let mut all = vec![Parameter { shape: matrix(self.v(), self.h()), linear: self.tied, lookup_only }];
        for i in 0..usize::try_from(self.layers).unwrap_or(0) {
            all.extend(self.layer_shapes(i).into_iter().flatten().map(|shape| Parameter {
                shape,
                linear: shape.rank() == 2,
                lookup_only: false,
            }));
        }
        all.push(Parameter { shape: vector(self.h()), linear: false, lookup_only: false });
        if !self.tied {
            all.push(Parameter { shape: self.head_shape(), linear: true, lookup_only: false });
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
            (12, "up_proj"),
            (14, "down_proj"),
        ];
        // Adapters named for the MLP go to the experts' stacked weights instead: see `Model::renamed_targets`.
        let names = if self.moe.is_some() { &NAMES[..4] } else { &NAMES[..] };
        let mut all = vec![None];
        for i in 0..usize::try_from(self.layers).unwrap_or(0) {
            all.extend(names_of(&self.layer_shapes(i), names));
        }
        all.push(None);
        if !self.tied {
            all.push(Some(if self.scored { "score" } else { "lm_head" }));
        }
        all
    }

    fn renamed_targets(&self) -> &'static [(&'static str, &'static str)] {
        match self.family {
            "mixtral" => &MIXTRAL_TARGETS,
            "qwen3_moe" => &MOE_TARGETS,
            _ => &[],
        }
    }

    fn expert_names(&self) -> Option<&'static ExpertNames> {
        match (self.family, &self.moe) {
            ("mixtral", Some(_)) => Some(&MIXTRAL_EXPERTS),
            (_, Some(_)) => Some(&MOE_EXPERTS),
            (_, None) => None,
        }
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
            "mlp.gate_proj.bias",
            "mlp.up_proj.weight",
            "mlp.up_proj.bias",
            "mlp.down_proj.weight",
            "mlp.down_proj.bias",
            "mlp.gate.weight",
            "mlp.experts.gate_up_proj",
            "mlp.experts.down_proj",
            "mlp.gate.weight",
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
        ];
        let of_layer = |i: usize| names_there(&NAMES, &self.layer_shapes(i));
        let head: &[&str] = match (self.tied, self.scored) {
            (true, _) => &["model.norm.weight"],
            (false, false) => &["model.norm.weight", "lm_head.weight"],
            (false, true) => &["model.norm.weight", "score.weight"],
        };
        dotted_names(&["model.embed_tokens.weight"], ("model.layers", self.layers), of_layer, head)
    }

    fn liger(&self) -> &'static [LigerKernel] {
        use LigerKernel as K;
        match (self.family, &self.moe) {
            // Mistral's cross-entropy is replaced where transformers 5 no longer looks for it.
            ("mistral", _) => &LigerKernel::DEFAULT,
            (_, None) => &LigerKernel::ALL,
            // Experts run in a kernel of their own.
            (_, Some(_)) => &[K::Rope, K::RmsNorm, K::FusedLinearCrossEntropy, K::CrossEntropy],
        }
    }

    fn routed_experts(&self) -> Option<(u64, u64)> {
        self.moe.as_ref().map(|moe| (moe.per_token, moe.experts))
    }

    fn untied(&self) -> Option<Box<dyn Model>> {
        Some(Box::new(Self { tied: false, ..self.clone() }))
    }

    fn scored(&self) -> Option<Box<dyn Model>> {
        let modelled = self.windows == Windows::None && self.moe.is_none();
        modelled.then(|| Box::new(Self { scored: true, tied: false, ..self.clone() }) as Box<dyn Model>)
    }

    fn takes_math_attention(&self) -> bool {
        matches!(self.windows, Windows::None)
    }

    fn buffers(&self) -> Vec<u64> {
        // inv_freq and original_inv_freq.
        vec![self.head / 2, self.head / 2]
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

    fn with_layers(&self, layers: u64) -> Option<Box<dyn Model>> {
        let mut short = Self { layers, ..self.clone() };
        if let Windows::Some(_, sliding) = &mut short.windows {
            // Under `sdpa` the two kinds take different backends.
            if sliding.contains(&false) {
                return None;
            }
            sliding.truncate(usize::try_from(layers).ok()?);
        }
        if let Some(moe) = &mut short.moe {
            if moe.dense.contains(&true) {
                return None;
            }
            moe.dense.truncate(usize::try_from(layers).ok()?);
        }
        Some(Box::new(short))
    }

    fn split(&self, n: u64) -> Option<Box<dyn Model>> {
        let whole = [self.heads, self.kv_heads, self.mlp, self.vocab].iter().all(|size| size.is_multiple_of(n));
        let plain = self.family == "llama" && !self.tied && !self.qkv_bias && !self.out_bias && !self.mlp_bias;
        (whole && plain).then(|| {
            Box::new(Self {
                heads: self.heads / n,
                kv_heads: self.kv_heads / n,
                mlp: self.mlp / n,
                vocab: self.vocab / n,
                ..self.clone()
            }) as Box<dyn Model>
        })
    }

    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built> {
        let mut all = Parameters::new(tape, dtype);
        tape.scope("embedding", || {
            let embed = all.add(matrix(self.v(), self.h()));
            let layers: Vec<Rc<Layer>> = (1u32..)
                .take(usize::try_from(self.layers).unwrap_or(usize::MAX))
                .map(|i| {
                    tape.set_scope("layers");
                    tape.set_layer(i);
                    Rc::new(Layer(self.layer_shapes(i as usize - 1).map(|s| s.map(|s| all.add(s)))))
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("final norm");
            let norm = all.add(vector(self.h()));
            tape.set_scope("head");
            let head = if self.tied { embed.clone() } else { all.add(self.head_shape()) };
            Box::new(BuiltDecoder { plan: Rc::new(self.clone()), embed, layers, norm, head, weights: all.finish() })
                as Box<dyn Built>
        })
    }
}

struct BuiltDecoder {
    plan: Rc<Decoder>,
    embed: Tensor,
    layers: Vec<Rc<Layer>>,
    norm: Tensor,
    head: Tensor,
    weights: Vec<Tensor>,
}

impl Built for BuiltDecoder {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (ids, labels) = (&batch[0], &batch[1]);
        let head = Head { weight: &self.head, bias: None, softcap: false };
        causal_forward(run, labels, &|| self.hidden_states(run, ids), &head)
    }

    fn backbone(&self, run: &Run, ids: &Tensor) -> Option<(Tensor, Tensor)> {
        Some((self.hidden_states(run, ids), self.head.clone()))
    }
}

impl BuiltDecoder {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let t = &run.tape;
        let embedded = t.scope("embedding", || t.embedding(ids, &self.embed));
        let positions = t.scope("rotary", || position_ids(run));
        let dtype = embedded.dtype();
        let [mask, near] = t.scope("mask", || match &self.plan.windows {
            Windows::None => [padded_mask(run, dtype), None],
            Windows::All(window) => [window_mask(run, dtype, *window), None],
            Windows::Some(window, _) => [eager_mask(run, dtype, false), window_mask(run, dtype, *window)],
        });
        let mut hidden = embedded.clone();
        let (cos, sin) = t.scope("rotary", || rotary_tables(run, self.plan.d(), hidden.dtype()));
        for (i, layer) in (1u32..).zip(&self.layers) {
            t.set_layer(i);
            let sliding = matches!(&self.plan.windows, Windows::Some(_, all) if all.get(i as usize - 1) == Some(&true));
            let call = Call {
                plan: self.plan.clone(),
                layer: layer.clone(),
                run: run.clone(),
                cos: cos.clone(),
                sin: sin.clone(),
                mask: if sliding { &near } else { &mask }.clone(),
                _positions: positions.clone(),
            };
            hidden = run.layer(i, &hidden, move |x| call.run(x));
        }
        t.set_layer(0);
        let mut ends = [hidden];
        before_forward(t, ENDS, &mut ends);
        let [hidden] = ends;
        let out = t.scope("final norm", || rms_norm(t, &hidden, &self.norm));
        drop(hidden);
        drop((cos, sin));
        drop((mask, near));
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
        let (t, w) = (&self.run.tape, &self.layer);
        let residual = x.clone();
        let normed = t.scope("attention norm", || w.norm(t, x, 20));
        // The probabilities live in `_` until the layer returns.
        let input = t.scope("attention", || t.module_input(&normed));
        let (attended, probabilities) = t.scope("attention", || self.attention(&input));
        drop(input);
        drop(normed);
        let hidden = t.scope("attention", || t.add(&residual, &attended));
        drop(attended);
        drop(residual);
        let normed = t.scope("mlp norm", || w.norm(t, &hidden, 21));
        let fed = t.scope("mlp", || match [&w.0[17], &w.0[18]] {
            [Some(gate_up), Some(down)] => self.experts(&normed, gate_up, down),
            _ => self.mlp(&t.module_input(&normed)),
        });
        drop(normed);
        let out = t.scope("mlp", || t.add(&hidden, &fed));
        drop(fed);
        drop(hidden);
        drop(probabilities);
        out
    }

    fn experts(&self, x: &Tensor, gate_up: &Tensor, down: &Tensor) -> Tensor {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (Some(moe), Some(gate)) = (&p.moe, w.0[16].as_ref().or(w.0[19].as_ref())) else { return x.clone() };
        let (b, s, h) = (self.run.batch, self.run.seq, p.h());
        let flat = t.reshape(x, &[b.times(s), h]);
        // The router's logits live in `_` until the block returns.
        let folded = t.fold(gate, false);
        let gate = t.folded(&folded);
        let logits = {
            // The router flattens what is flat already: a view of its own in the graph.
            let again = t.reshape(&flat, &[b.times(s), h]);
            t.linear(&again, &gate, None)
        };
        let (weights, experts) = {
            let probabilities = if p.family == "mixtral" {
                let logits = t.to(&logits, Dtype::F32);
                t.softmax(&logits)
            } else {
                t.softmax_f32(&logits)
            };
            let (mut values, places) = t.topk(&probabilities, moe.per_token);
            if moe.normalised {
                values = t.normalise_in_place(&values);
            }
            if p.family != "mixtral" {
                values = t.to(&values, logits.dtype());
            }
            drop(probabilities);
            (values, places)
        };
        drop((gate, folded));
        let layers = Experts {
            gate_up: gate_up.clone(),
            down: down.clone(),
            biases: None,
            gate: Gate::Of(p.activation),
            transposed: false,
        };
        let out = layers.run(t, &flat, &Routed { weights: &weights, experts: &experts });
        drop((logits, weights, experts));
        t.reshape(&out, &[b, s, h])
    }

    fn mlp(&self, x: &Tensor) -> Tensor {
        let (t, w) = (&self.run.tape, &self.layer);
        let product = gated(t, self.plan.activation, [10, 12].map(|at| move || w.linear(t, x, at)));
        w.linear(t, &product, 14)
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (b, s) = (self.run.batch, self.run.seq);
        let heads = |x: Tensor, n: Dim| t.reshape(&x, &[b, s, n, p.d()]);
        let (a, g) = (Dim::named(p.heads, Symbol::A), Dim::named(p.kv_heads, Symbol::G));
        let q = {
            let q = heads(w.linear(t, x, 0), a);
            let q = w.norm(t, &q, 8);
            t.transpose(&q, 1, 2)
        };
        let k = {
            let k = heads(w.linear(t, x, 2), g);
            let k = w.norm(t, &k, 9);
            t.transpose(&k, 1, 2)
        };
        let v = t.transpose(&heads(w.linear(t, x, 4), g), 1, 2);
        let (q, k) = {
            // Unsqueezed over the heads, as views.
            let (cos, sin) = (t.unsqueeze(&self.cos, 1), t.unsqueeze(&self.sin, 1));
            let rotated = rotate_both(t, &q, &k, [&cos, &sin]);
            drop(q);
            drop(k);
            rotated
        };
        let (k, v) = match &self.run.cache {
            Some(cache) => cache.update(t, [&k, &v]).into(),
            None => (k, v),
        };
        let (mut out, probabilities) = attend(&self.run, (&q, &k, &v), self.mask.as_ref(), p.attention_dropout, p.q());
        out = w.linear(t, &out, 6);
        drop((q, k, v));
        (out, probabilities)
    }
}

//! DeepSeek-V3: attention over compressed keys and values (MLA), a mixture of experts with shared ones
//! (`modeling_deepseek_v3.py`, transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::bill::Part;
use crate::issue::{Issue, IssueKind};
use crate::model::family::common::{
    Activation, Head, Run, attend, causal_forward, eager_mask, gated_mlp, position_ids, rms_norm, rotary_tables, rotate,
};
use crate::model::family::experts::{ExpertNames, Experts, Gate, MOE_EXPERTS, MOE_TARGETS, Routed};
use crate::model::family::{
    Built, Dimensions, Gpt, Latent, MegatronExperts, Model, Parameter, Parameters, decoder_names, matrix, names_of,
    names_there, vector,
};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::{Attention, LigerKernel, Precision, Recipe};
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// The decoder's dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
struct DeepSeek {
    hidden: u64,
    mlp: u64,
    layers: u64,
    heads: u64,
    vocab: u64,
    tied: bool,
    /// Biases of the projections from and to the hidden states.
    bias: bool,
    /// The rank through which queries go, if they do.
    query_rank: Option<u64>,
    /// The rank of the keys' and values' common latent.
    latent: u64,
    /// Dimensions of a query and key head without and with a rotation, and of a value head.
    plain: u64,
    rotary: u64,
    value: u64,
    interleaved: bool,
    /// How many of the first layers have an MLP instead of experts.
    dense_layers: u64,
    experts: u64,
    shared: u64,
    expert_width: u64,
    per_token: u64,
    groups: u64,
    groups_taken: u64,
    normalised: bool,
    activation: Activation,
    attention_dropout: f64,
}

/// `DeepseekV3Config`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let heads = f.required(&["num_attention_heads"], MAX_HEADS);
    let keys = f.optional(&["num_key_value_heads"], heads, MAX_HEADS);
    if keys != heads {
        f.refuse("num_key_value_heads", "fewer key and value heads than query heads in multi-head latent attention");
    }
    if f.has("quantization_config") {
        f.refuse("quantization_config", "training over quantised weights");
    }
    let model = DeepSeek {
        hidden: f.required(&["hidden_size"], MAX_DIMENSION),
        mlp: f.required(&["intermediate_size"], MAX_DIMENSION),
        layers: f.required(&["num_hidden_layers"], MAX_LAYERS),
        heads,
        vocab: f.required(&["vocab_size"], MAX_DIMENSION),
        tied: f.flag("tie_word_embeddings", false),
        bias: f.flag("attention_bias", false),
        query_rank: f.nullable("q_lora_rank", Some(1536), MAX_DIMENSION),
        latent: f.optional(&["kv_lora_rank"], 512, MAX_DIMENSION),
        plain: f.optional(&["qk_nope_head_dim"], 128, MAX_DIMENSION),
        rotary: f.optional(&["qk_rope_head_dim"], 64, MAX_DIMENSION),
        value: f.optional(&["v_head_dim"], 128, MAX_DIMENSION),
        interleaved: f.flag("rope_interleave", true),
        dense_layers: f.optional_from_zero("first_k_dense_replace", 3, MAX_LAYERS),
        experts: f.optional(&["n_routed_experts", "num_local_experts"], 256, MAX_DIMENSION),
        shared: f.optional(&["n_shared_experts"], 1, MAX_DIMENSION),
        expert_width: f.optional(&["moe_intermediate_size"], 2048, MAX_DIMENSION),
        per_token: f.optional(&["num_experts_per_tok"], 8, MAX_DIMENSION),
        groups: f.optional(&["n_group"], 8, MAX_DIMENSION),
        groups_taken: f.optional(&["topk_group"], 4, MAX_DIMENSION),
        normalised: f.flag("norm_topk_prob", true),
        activation: Activation::read(&mut f, "hidden_act", "silu"),
        attention_dropout: f.probability("attention_dropout", 0.0),
    };
    if !model.rotary.is_multiple_of(2) {
        f.refuse("qk_rope_head_dim", "rotary embeddings over an odd head size");
    }
    f.divides("n_routed_experts", model.experts, "n_group", model.groups);
    f.at_most("num_experts_per_tok", model.per_token, model.experts);
    f.at_most("topk_group", model.groups_taken, model.groups);
    // The two best of each group are added up.
    f.at_most("n_group", model.groups, (model.experts / 2).max(1));
    f.finish(Box::new(model) as Box<dyn Model>)
}

/// Places of a layer's parameters; where there is a bias it follows its weight.
mod at {
    pub(super) const Q: usize = 0;
    pub(super) const Q_DOWN: usize = 1;
    pub(super) const Q_NORM: usize = 3;
    pub(super) const Q_UP: usize = 4;
    pub(super) const KV_DOWN: usize = 5;
    pub(super) const KV_NORM: usize = 7;
    pub(super) const KV_UP: usize = 8;
    pub(super) const OUT: usize = 9;
    pub(super) const GATE_UP: usize = 11;
    pub(super) const DOWN: usize = 12;
    pub(super) const ROUTER: usize = 13;
    /// Gate, up and down of the MLP, or of the shared experts.
    pub(super) const MLP: usize = 14;
    pub(super) const NORM: usize = 17;
    pub(super) const SECOND_NORM: usize = 18;
    pub(super) const COUNT: usize = 19;
}

impl DeepSeek {
    fn h(&self) -> Dim {
        Dim::named(self.hidden, Symbol::H)
    }
    fn a(&self) -> Dim {
        Dim::named(self.heads, Symbol::A)
    }
    fn v(&self) -> Dim {
        Dim::named(self.vocab, Symbol::V)
    }
    /// Dimensions of a query and key head.
    fn head(&self) -> u64 {
        self.plain.saturating_add(self.rotary)
    }
    fn all_heads(&self, each: u64) -> Dim {
        Dim::plain(self.heads.saturating_mul(each))
    }
    /// How many layers have experts.
    fn sparse_layers(&self) -> u64 {
        self.layers.saturating_sub(self.dense_layers)
    }

    /// One layer's parameters in registration order, `None` where there is no such parameter.
    fn layer_shapes(&self, layer: u64) -> [Option<Shape>; at::COUNT] {
        let h = self.h();
        let q = self.all_heads(self.head());
        let latent = Dim::plain(self.latent);
        let down = Dim::plain(self.latent.saturating_add(self.rotary));
        let bias = |n: Dim| self.bias.then(|| vector(n));
        let rank = self.query_rank.map(Dim::plain);
        let sparse = layer >= self.dense_layers;
        let [e, one] = [self.experts, self.expert_width].map(Dim::plain);
        let two = Dim::plain(self.expert_width.saturating_mul(2));
        let f = if sparse {
            Dim::plain(self.expert_width.saturating_mul(self.shared))
        } else {
            Dim::named(self.mlp, Symbol::F)
        };
        [
            rank.is_none().then(|| matrix(q, h)),
            rank.map(|r| matrix(r, h)),
            rank.and_then(bias),
            rank.map(vector),
            rank.map(|r| matrix(q, r)),
            Some(matrix(down, h)),
            bias(down),
            Some(vector(latent)),
            Some(matrix(self.all_heads(self.plain.saturating_add(self.value)), latent)),
            Some(matrix(h, self.all_heads(self.value))),
            bias(h),
            sparse.then(|| Shape::new(&[e, two, h])),
            sparse.then(|| Shape::new(&[e, h, one])),
            sparse.then(|| matrix(e, h)),
            Some(matrix(f, h)),
            Some(matrix(f, h)),
            Some(matrix(h, f)),
            Some(vector(h)),
            Some(vector(h)),
        ]
    }
}

impl Model for DeepSeek {
    fn family(&self) -> &'static str {
        "deepseek_v3"
    }

    fn megatron(&self) -> Option<Gpt> {
        (!self.bias && self.activation == Activation::Fused).then(|| Gpt {
            layers: self.layers,
            hidden: self.hidden,
            ffn: self.mlp,
            heads: self.heads,
            groups: self.heads,
            head: self.value,
            vocab: self.vocab,
            positions: None,
            gated: true,
            rms: true,
            bias: false,
            qkv_bias: false,
            qk_norm: true,
            tied: self.tied,
            bert: false,
            latent: Some(Latent {
                query: self.query_rank,
                key_value: self.latent,
                plain: self.plain,
                rotary: self.rotary,
                value: self.value,
            }),
            experts: Some(MegatronExperts {
                count: self.experts,
                per_token: self.per_token,
                ffn: self.expert_width,
                shared: self.shared.saturating_mul(self.expert_width),
                dense_layers: self.dense_layers,
            }),
        })
    }

    fn parameters(&self) -> Vec<Parameter> {
        let of = |shape: Shape| Parameter { shape, linear: shape.rank() == 2, lookup_only: false };
        let embed = matrix(self.v(), self.h());
        let mut all = vec![Parameter { shape: embed, linear: self.tied, lookup_only: !self.tied }];
        for i in 0..self.layers {
            all.extend(self.layer_shapes(i).into_iter().flatten().map(of));
        }
        all.push(of(vector(self.h())));
        if !self.tied {
            all.push(of(embed));
        }
        all
    }

    fn routed_experts(&self) -> Option<(u64, u64)> {
        Some((self.per_token, self.experts))
    }

    /// Not the MLPs' layers: adapters named for them go to the experts' stacked weights instead.
    fn linear_names(&self) -> Vec<Option<&'static str>> {
        const PLACES: [(usize, &str); 6] = [
            (at::Q, "q_proj"),
            (at::Q_DOWN, "q_a_proj"),
            (at::Q_UP, "q_b_proj"),
            (at::KV_DOWN, "kv_a_proj_with_mqa"),
            (at::KV_UP, "kv_b_proj"),
            (at::OUT, "o_proj"),
        ];
        let mut all = vec![None];
        for i in 0..self.layers {
            all.extend(names_of(&self.layer_shapes(i), &PLACES));
        }
        all.push(None);
        if !self.tied {
            all.push(Some("lm_head"));
        }
        all
    }

    fn renamed_targets(&self) -> &'static [(&'static str, &'static str)] {
        &MOE_TARGETS
    }

    fn parameter_names(&self) -> Vec<String> {
        const NAMES: [&str; at::COUNT] = [
            "self_attn.q_proj.weight",
            "self_attn.q_a_proj.weight",
            "self_attn.q_a_proj.bias",
            "self_attn.q_a_layernorm.weight",
            "self_attn.q_b_proj.weight",
            "self_attn.kv_a_proj_with_mqa.weight",
            "self_attn.kv_a_proj_with_mqa.bias",
            "self_attn.kv_a_layernorm.weight",
            "self_attn.kv_b_proj.weight",
            "self_attn.o_proj.weight",
            "self_attn.o_proj.bias",
            "mlp.experts.gate_up_proj",
            "mlp.experts.down_proj",
            "mlp.gate.weight",
            "mlp.gate_proj.weight",
            "mlp.up_proj.weight",
            "mlp.down_proj.weight",
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
        ];
        const SHARED: [&str; 3] = [
            "mlp.shared_experts.gate_proj.weight",
            "mlp.shared_experts.up_proj.weight",
            "mlp.shared_experts.down_proj.weight",
        ];
        let of_layer = |i: usize| {
            let (mut names, layer) = (NAMES, i as u64);
            if layer >= self.dense_layers {
                names[at::MLP..at::MLP + 3].copy_from_slice(&SHARED);
            }
            names_there(&names, &self.layer_shapes(layer))
        };
        decoder_names(self.layers, of_layer, self.tied)
    }

    fn kept_in_f32(&self, _: Dtype) -> &'static [&'static str] {
        &["gate"]
    }

    fn corrects_routers(&self) -> bool {
        true
    }

    fn expert_names(&self) -> Option<&'static ExpertNames> {
        Some(&MOE_EXPERTS)
    }

    /// Each router's correction of its scores, then inv_freq and original_inv_freq.
    fn buffers(&self) -> Vec<u64> {
        let mut all: Vec<u64> = (0..self.sparse_layers()).map(|_| self.experts).collect();
        all.extend([self.rotary / 2; 2]);
        all
    }

    fn liger(&self) -> &'static [LigerKernel] {
        use LigerKernel as K;
        &[K::RmsNorm, K::FusedLinearCrossEntropy, K::CrossEntropy]
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions {
            layers: self.layers,
            hidden: self.hidden,
            query_width: self.heads.saturating_mul(self.head()),
            vocabulary: self.vocab,
        }
    }

    fn max_positions(&self) -> Option<u64> {
        None
    }

    fn refusals(&self, recipe: &Recipe) -> Vec<Issue> {
        let refuse = |field: &str, what: &str| Issue::new(field, IssueKind::NotModelled { what: what.into() });
        let mut issues = Vec::new();
        if recipe.sdpa_backend.is_some() && recipe.attention != Some(Attention::Eager) {
            issues.push(refuse("recipe.sdpa_backend", "a forced backend of sdpa in multi-head latent attention"));
        }
        // The router's weights are FP32 already.
        if recipe.precision == Some(Precision::Bf16Master) {
            issues.push(refuse("recipe.precision", "FP32 master weights over a router in FP32"));
        }
        issues
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![
            ("b", recipe.micro_batch),
            ("s", recipe.seq_len),
            ("h", self.hidden),
            ("f", self.mlp),
            ("a", self.heads),
            ("V", self.vocab),
            ("L", self.layers),
        ]
    }

    fn layers(&self) -> u64 {
        self.layers
    }

    fn with_layers(&self, layers: u64) -> Option<Box<dyn Model>> {
        // Experts' layers are written out: their routers' FP32 weights are a group of their own to the optimizer.
        (self.sparse_layers() == 0)
            .then(|| Box::new(Self { layers, dense_layers: layers, ..self.clone() }) as Box<dyn Model>)
    }

    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built> {
        let mut all = Parameters::new(tape, dtype);
        let buffer = |n: u64| tape.empty(Shape::new(&[Dim::plain(n)]), Dtype::F32, Part::Weights, "buffer");
        tape.scope("embedding", || {
            let embed = all.add(matrix(self.v(), self.h()));
            let mut buffers = Vec::new();
            let layers: Vec<Rc<Layer>> = (0..self.layers)
                .map(|i| {
                    tape.set_scope("layers");
                    tape.set_layer(u32::try_from(i + 1).unwrap_or(u32::MAX));
                    let mut layer = Layer(core::array::from_fn(|_| None));
                    for (place, shape) in self.layer_shapes(i).into_iter().enumerate() {
                        let router = place == at::ROUTER;
                        layer.0[place] =
                            shape.map(|s| if router { all.add_listed(all.count(), s, Dtype::F32) } else { all.add(s) });
                        if router && shape.is_some() {
                            buffers.push(buffer(self.experts));
                        }
                    }
                    Rc::new(layer)
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("final norm");
            let norm = all.add(vector(self.h()));
            buffers.extend([(); 2].map(|()| buffer(self.rotary / 2)));
            tape.set_scope("head");
            let head = if self.tied { embed.clone() } else { all.add(matrix(self.v(), self.h())) };
            let plan = Rc::new(self.clone());
            let weights = all.finish();
            Box::new(BuiltDeepSeek { plan, embed, layers, norm, head, weights, _buffers: buffers }) as Box<dyn Built>
        })
    }
}

/// A layer's parameters.
#[derive(Debug)]
struct Layer([Option<Tensor>; at::COUNT]);

impl Layer {
    fn linear(&self, t: &Tape, x: &Tensor, at: usize, bias: Option<usize>) -> Tensor {
        let bias = bias.and_then(|at| self.0[at].as_ref());
        self.0[at].as_ref().map_or_else(|| x.clone(), |w| t.linear(x, w, bias))
    }
    fn norm(&self, t: &Tape, x: &Tensor, at: usize) -> Tensor {
        self.0[at].as_ref().map_or_else(|| x.clone(), |w| rms_norm(t, x, w))
    }
}

struct BuiltDeepSeek {
    plan: Rc<DeepSeek>,
    embed: Tensor,
    layers: Vec<Rc<Layer>>,
    norm: Tensor,
    head: Tensor,
    weights: Vec<Tensor>,
    _buffers: Vec<Tensor>,
}

impl Built for BuiltDeepSeek {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn holds_buffers(&self) -> bool {
        true
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let head = Head { weight: &self.head, bias: None, softcap: false };
        causal_forward(run, &batch[1], &|| self.hidden_states(run, &batch[0]), &head)
    }
}

impl BuiltDeepSeek {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let t = &run.tape;
        let embedded = t.scope("embedding", || t.embedding(ids, &self.embed));
        let positions = t.scope("rotary", || position_ids(run));
        let mask = t.scope("mask", || eager_mask(run, embedded.dtype(), false));
        let mut hidden = embedded.clone();
        let rotary = Dim::plain(self.plan.rotary);
        let (cos, sin) = t.scope("rotary", || rotary_tables(run, rotary, hidden.dtype()));
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
        let out = t.scope("final norm", || rms_norm(t, &hidden, &self.norm));
        drop(hidden);
        // Local names are released in the order in which they first appear.
        drop((positions, embedded, mask, sin, cos));
        out
    }
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    plan: Rc<DeepSeek>,
    layer: Rc<Layer>,
    run: Run,
    /// Sine before cosine: a tuple lets go its last item first.
    sin: Tensor,
    cos: Tensor,
    mask: Option<Tensor>,
    /// Passed to the layer, which does not use them; a checkpointed call keeps its arguments.
    _positions: Tensor,
}

impl Call {
    fn run(&self, x: &Tensor) -> Tensor {
        let (t, w) = (&self.run.tape, &self.layer);
        let residual = x.clone();
        let normed = t.scope("attention norm", || w.norm(t, x, at::NORM));
        // The probabilities live in `_` until the layer returns.
        let (attended, probabilities) = t.scope("attention", || self.attention(&normed));
        drop(normed);
        let hidden = t.scope("attention", || t.add(&residual, &attended));
        drop(attended);
        drop(residual);
        let normed = t.scope("mlp norm", || w.norm(t, &hidden, at::SECOND_NORM));
        let fed = t.scope("mlp", || match (&w.0[at::GATE_UP], &w.0[at::DOWN], &w.0[at::ROUTER]) {
            (Some(gate_up), Some(down), Some(router)) => self.experts(&normed, [gate_up, down, router]),
            _ => self.mlp(&normed),
        });
        drop(normed);
        let out = t.scope("mlp", || t.add(&hidden, &fed));
        drop(fed);
        drop(hidden);
        drop(probabilities);
        out
    }

    fn mlp(&self, x: &Tensor) -> Tensor {
        let [Some(gate), Some(up), Some(down)] = [0, 1, 2].map(|i| self.layer.0[at::MLP + i].as_ref()) else {
            return x.clone();
        };
        gated_mlp(&self.run.tape, x, [gate, up, down], self.plan.activation)
    }

    /// `DeepseekV3MoE`.
    fn experts(&self, x: &Tensor, [gate_up, down, router]: [&Tensor; 3]) -> Tensor {
        let (t, p) = (&self.run.tape, &self.plan);
        let (b, s, h) = (self.run.batch, self.run.seq, p.h());
        let flat = || t.reshape(x, &[b.times(s), h]);
        // The router's logits live in `_` until the block returns.
        let (logits, weights, experts) = self.route(&flat(), router);
        let hidden = flat();
        let layers = Experts {
            gate_up: gate_up.clone(),
            down: down.clone(),
            biases: None,
            gate: Gate::Of(p.activation),
            transposed: false,
        };
        let mut out = layers.run(t, &hidden, &Routed { weights: &weights, experts: &experts });
        drop(hidden);
        out = t.reshape(&out, &[b, s, h]);
        let shared = self.mlp(x);
        let sum = t.add(&out, &shared);
        drop((shared, out, logits, weights, experts));
        sum
    }

    /// `DeepseekV3TopkRouter`: the best groups by their two best experts, then the best experts in them. Returns logits,
    /// weights and experts.
    fn route(&self, x: &Tensor, router: &Tensor) -> (Tensor, Tensor, Tensor) {
        let (t, p) = (&self.run.tape, &self.plan);
        let (tokens, experts, groups) = (x.dim(0), Dim::plain(p.experts), Dim::plain(p.groups));
        let each = Dim::plain(p.experts / p.groups);
        let folded = t.fold(router, false);
        let router = t.folded(&folded);
        let logits = {
            let x = t.to(x, Dtype::F32);
            t.linear(&x, &router, None)
        };
        let scores = t.sigmoid(&logits);
        let correction = t.buffer(Shape::new(&[experts]), Dtype::F32);
        let mut choice = t.add(&scores, &correction);
        let group_scores = {
            let grouped = t.reshape(&choice, &[tokens, groups, each]);
            let best = t.topk(&grouped, 2).0;
            let sum = t.sum_last(&best);
            t.reshape(&sum, &[tokens, groups])
        };
        let group_places = t.topk(&group_scores, p.groups_taken).1;
        let group_mask = t.temp(*group_scores.shape(), group_scores.dtype(), "groups taken");
        let score_mask = {
            let seen = t.expand(&t.unsqueeze(&group_mask, 2), 2, each);
            t.reshape(&seen, &[tokens, experts])
        };
        choice = {
            let taken = t.temp(score_mask.shape().like(), Dtype::Bool, "groups taken");
            let others = t.temp(taken.shape().like(), Dtype::Bool, "groups left");
            drop(taken);
            t.masked_fill(&choice, &others)
        };
        let places = t.topk(&choice, p.per_token).1;
        let mut weights = t.gather(&scores, &places);
        let mut denominator = None;
        if p.normalised {
            let sum = {
                let sum = t.sum_last(&weights);
                t.add_scalar(&sum)
            };
            weights = t.div_in_place(&weights, &sum);
            denominator = Some(sum);
        }
        weights = t.mul_scalar(&weights);
        drop((scores, choice, group_scores, group_places, group_mask, score_mask, denominator));
        drop((router, folded));
        (logits, weights, places)
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, w, p) = (&self.run.tape, &self.layer, &self.plan);
        let (b, s, one) = (self.run.batch, self.run.seq, Dim::plain(1));
        let [plain, rotary, value, latent] = [p.plain, p.rotary, p.value, p.latent].map(Dim::plain);
        let head = Dim::plain(p.head());
        let mut q = if p.query_rank.is_none() {
            w.linear(t, x, at::Q, None)
        } else {
            let low = {
                let low = w.linear(t, x, at::Q_DOWN, Some(at::Q_DOWN + 1));
                w.norm(t, &low, at::Q_NORM)
            };
            w.linear(t, &low, at::Q_UP, None)
        };
        q = t.transpose(&t.reshape(&q, &[b, s, p.a(), head]), 1, 2);
        let [q_pass, q_rot] = t.split_in_two(&q, 3, [plain, rotary]);
        let compressed = w.linear(t, x, at::KV_DOWN, Some(at::KV_DOWN + 1));
        let [mut kv, mut k_rot] = t.split_in_two(&compressed, 2, [latent, rotary]);
        kv = w.norm(t, &kv, at::KV_NORM);
        kv = t.reshape(&kv, &[b, one, s, latent]);
        k_rot = t.reshape(&k_rot, &[b, one, s, rotary]);
        let (q_rot, k_rot) = self.rotated(q_rot, k_rot);
        let queries = t.cat(&q_pass, &q_rot, 3, head);
        let (keys, values) = {
            let both = Dim::plain(p.plain.saturating_add(p.value));
            let states = t.reshape(&w.linear(t, &kv, at::KV_UP, None), &[b, s, p.a(), both]);
            let states = t.transpose(&states, 1, 2);
            let [k_pass, values] = t.split_in_two(&states, 3, [plain, value]);
            let k_rot = t.expand(&k_rot, 1, p.a());
            let mut keys = t.temp(Shape::new(&[b, p.a(), s, head]), states.dtype(), "keys");
            keys = t.copy_into(&keys, 3, &k_pass);
            keys = t.copy_into(&keys, 3, &k_rot);
            (keys, values)
        };
        let width = p.all_heads(p.value);
        let (mut out, probabilities) =
            attend(&self.run, (&queries, &keys, &values), self.mask.as_ref(), p.attention_dropout, width);
        out = w.linear(t, &out, at::OUT, Some(at::OUT + 1));
        drop((q, q_pass, q_rot, compressed, kv, k_rot, queries, keys, values));
        (out, probabilities)
    }

    /// `apply_rotary_pos_emb_interleave`, or the usual rotation.
    fn rotated(&self, q: Tensor, k: Tensor) -> (Tensor, Tensor) {
        let t = &self.run.tape;
        let whole = q.dim(3);
        if !self.plan.interleaved {
            let (cos, sin) = (t.unsqueeze(&self.cos, 1), t.unsqueeze(&self.sin, 1));
            return (rotate(t, &q, &cos, &sin), rotate(t, &k, &cos, &sin));
        }
        let half = Dim::plain(whole.n / 2);
        let [cos, sin] = [&self.cos, &self.sin].map(|table| t.unsqueeze(&t.slice(table, 2, half), 1));
        let pairs = |x: &Tensor| [t.every_second(x, 3), t.every_second(x, 3)];
        let (qs, ks) = (pairs(&q), pairs(&k));
        let turned = |[even, odd]: &[Tensor; 2]| {
            let part = |a: &Tensor, b: &Tensor, join: &dyn Fn(&Tensor, &Tensor) -> Tensor| {
                let left = t.mul(a, &cos);
                let right = t.mul(b, &sin);
                let out = join(&left, &right);
                drop(left);
                drop(right);
                out
            };
            let first = part(even, odd, &|a, b| t.sub(a, b));
            let second = part(odd, even, &|a, b| t.add(a, b));
            t.cat(&first, &second, 3, whole)
        };
        (turned(&qs), turned(&ks))
    }
}

//! GPT-2 (`modeling_gpt2.py`, transformers 5.24).

use std::rc::Rc;

use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};
use crate::model::family::common::{
    Activation, AttentionPlan, Head, Run, causal_forward, eager_mask, for_sdpa, position_ids,
};
use crate::model::family::flash::attend_by_package;
use crate::model::family::{Built, Dimensions, Gpt, Model, Parameter, Parameters, dotted_names, matrix, vector};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::Recipe;
use crate::step::shape::{Dim, Shape, Symbol};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// GPT-2's dimensions and dropouts.
#[derive(Clone, Debug, PartialEq)]
struct Gpt2 {
    hidden: u64,
    mlp: u64,
    layers: u64,
    heads: u64,
    vocab: u64,
    positions: u64,
    embedding_dropout: f64,
    attention_dropout: f64,
    residual_dropout: f64,
    activation: Activation,
    /// Whether the table of words is the output head.
    tied: bool,
}

/// `GPT2Config`.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let hidden = f.required(&["n_embd", "hidden_size"], MAX_DIMENSION);
    let layers = f.required(&["n_layer", "num_hidden_layers"], MAX_LAYERS);
    let heads = f.required(&["n_head", "num_attention_heads"], MAX_HEADS);
    let vocab = f.required(&["vocab_size"], MAX_DIMENSION);
    let positions = f.optional(&["n_positions", "max_position_embeddings"], 1024, MAX_DIMENSION);
    let mlp = f.nullable("n_inner", None, MAX_DIMENSION).unwrap_or(4 * hidden);
    f.divides("n_embd", hidden, "n_head", heads);
    let activation = Activation::read(&mut f, "activation_function", "gelu_new");
    for (name, what) in [
        ("add_cross_attention", "cross-attention in GPT-2"),
        ("reorder_and_upcast_attn", "reordered and upcast attention"),
    ] {
        if f.flag(name, false) {
            f.refuse(name, what);
        }
    }
    if !f.flag("tie_word_embeddings", true) {
        f.refuse("tie_word_embeddings", "GPT-2 with an output head of its own");
    }
    let model = Gpt2 {
        hidden,
        mlp,
        layers,
        heads,
        vocab,
        positions,
        embedding_dropout: f.probability("embd_pdrop", 0.1),
        attention_dropout: f.probability("attn_pdrop", 0.1),
        residual_dropout: f.probability("resid_pdrop", 0.1),
        activation,
        tied: true,
    };
    f.finish(Box::new(model) as Box<dyn Model>)
}

impl Gpt2 {
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
    fn d(&self) -> Dim {
        Dim::named(self.hidden / self.heads, Symbol::D)
    }

    /// ln_1, c_attn, c_proj, ln_2, c_fc, c_proj: weight and bias each.
    fn layer_shapes(&self) -> [Shape; 12] {
        let (h, f) = (self.h(), self.f());
        let h3 = Dim::plain(3).times(h);
        let h3 = Dim { n: 3 * h.n, sym: h3.sym };
        [
            vector(h),
            vector(h),
            matrix(h, h3),
            vector(h3),
            matrix(h, h),
            vector(h),
            vector(h),
            vector(h),
            matrix(h, f),
            vector(f),
            matrix(f, h),
            vector(h),
        ]
    }
}

impl Model for Gpt2 {
    fn family(&self) -> &'static str {
        "gpt2"
    }

    fn megatron(&self) -> Option<Gpt> {
        Some(Gpt {
            layers: self.layers,
            hidden: self.hidden,
            ffn: self.mlp,
            heads: self.heads,
            groups: self.heads,
            head: self.hidden / self.heads.max(1),
            vocab: self.vocab,
            positions: Some(self.positions),
            gated: false,
            rms: false,
            bias: true,
            qkv_bias: false,
            qk_norm: false,
            tied: self.tied,
            bert: false,
            latent: None,
            experts: None,
        })
    }

    fn parameters(&self) -> Vec<Parameter> {
        let of = |shape: Shape, linear: bool| Parameter { shape, linear, lookup_only: false };
        let mut all = vec![
            Parameter { shape: matrix(self.v(), self.h()), linear: self.tied, lookup_only: !self.tied },
            Parameter { shape: matrix(self.p(), self.h()), linear: false, lookup_only: true },
        ];
        for _ in 0..self.layers {
            all.extend(self.layer_shapes().map(|s| of(s, s.rank() == 2)));
        }
        all.push(of(vector(self.h()), false));
        all.push(of(vector(self.h()), false));
        all.extend((!self.tied).then(|| of(matrix(self.v(), self.h()), true)));
        all
    }

    fn linear_names(&self) -> Vec<Option<&'static str>> {
        let mut layer = [None; 12];
        layer[2] = Some("c_attn");
        layer[4] = Some("c_proj");
        layer[8] = Some("c_fc");
        layer[10] = Some("c_proj");
        let mut all = vec![None, None];
        for _ in 0..self.layers {
            all.extend(layer);
        }
        all.extend([None, None]);
        all.extend((!self.tied).then_some(Some("lm_head")));
        all
    }

    fn parameter_names(&self) -> Vec<String> {
        let of_layer = |_| {
            vec![
                "ln_1.weight",
                "ln_1.bias",
                "attn.c_attn.weight",
                "attn.c_attn.bias",
                "attn.c_proj.weight",
                "attn.c_proj.bias",
                "ln_2.weight",
                "ln_2.bias",
                "mlp.c_fc.weight",
                "mlp.c_fc.bias",
                "mlp.c_proj.weight",
                "mlp.c_proj.bias",
            ]
        };
        let before = ["transformer.wte.weight", "transformer.wpe.weight"];
        let after = ["transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"];
        let after = &after[..after.len() - usize::from(self.tied)];
        dotted_names(&before, ("transformer.h", self.layers), of_layer, after)
    }

    fn untied(&self) -> Option<Box<dyn Model>> {
        Some(Box::new(Self { tied: false, ..self.clone() }))
    }

    fn linears_lie_in_out(&self) -> bool {
        true
    }

    fn takes_math_attention(&self) -> bool {
        true
    }

    fn buffers(&self) -> Vec<u64> {
        Vec::new()
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
        let mut all = Parameters::new(tape, dtype);
        tape.scope("embedding", || {
            let wte = all.add(matrix(self.v(), self.h()));
            let wpe = all.add(matrix(self.p(), self.h()));
            tape.set_scope("layers");
            let layers: Vec<Rc<Layer>> = (1u32..)
                .take(usize::try_from(self.layers).unwrap_or(usize::MAX))
                .map(|i| {
                    tape.set_layer(i);
                    Rc::new(Layer(self.layer_shapes().map(|s| all.add(s))))
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("final norm");
            let norm = [all.add(vector(self.h())), all.add(vector(self.h()))];
            let head = if self.tied { wte.clone() } else { all.add(matrix(self.v(), self.h())) };
            Box::new(BuiltGpt2 { plan: Rc::new(self.clone()), wte, wpe, layers, norm, head, weights: all.finish() })
                as Box<dyn Built>
        })
    }
}

#[derive(Debug)]
struct Layer([Tensor; 12]);

struct BuiltGpt2 {
    plan: Rc<Gpt2>,
    wte: Tensor,
    wpe: Tensor,
    layers: Vec<Rc<Layer>>,
    norm: [Tensor; 2],
    head: Tensor,
    weights: Vec<Tensor>,
}

impl Built for BuiltGpt2 {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (ids, labels) = (&batch[0], &batch[1]);
        let head = Head { weight: &self.head, bias: None, softcap: false };
        causal_forward(run, labels, &|| self.hidden_states(run, ids), &head)
    }
}

impl BuiltGpt2 {
    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let t = &run.tape;
        let before = t.set_scope("embedding");
        let embedded = t.embedding(ids, &self.wte);
        let positions = position_ids(run);
        let placed = t.embedding(&positions, &self.wpe);
        let mut hidden = t.add(&embedded, &placed);
        t.set_scope("mask");
        let mask = eager_mask(run, embedded.dtype(), false);
        t.set_scope("embedding");
        hidden = t.dropout(&hidden, self.plan.embedding_dropout);
        for (i, layer) in (1u32..).zip(&self.layers) {
            t.set_layer(i);
            let call =
                Call { plan: self.plan.clone(), layer: layer.clone(), run: run.clone(), _positions: positions.clone() };
            // The mask is a positional argument too, which reentrant checkpointing saves and releases as one.
            let mut args = vec![hidden.clone()];
            args.extend(mask.clone());
            let layer = move |x: &[Tensor]| x.split_first().map(|(x, mask)| call.run(x, mask.first()));
            let outs = run.layer_many(i, &args, Rc::new(move |_, x| layer(x).into_iter().collect()));
            hidden = outs.into_iter().next().unwrap_or(hidden);
        }
        t.set_layer(0);
        t.set_scope("final norm");
        hidden = t.layer_norm(&hidden, &self.norm[0], &self.norm[1]);
        // Python releases local names in the order in which they first appear, arguments before them.
        drop(positions);
        drop(embedded);
        drop(placed);
        drop(mask);
        t.set_scope(before);
        hidden
    }
}

/// One block's call, with everything its recomputation needs.
struct Call {
    plan: Rc<Gpt2>,
    layer: Rc<Layer>,
    run: Run,
    /// Passed to the layer, which does not use them; a checkpointed call keeps its arguments.
    _positions: Tensor,
}

impl Call {
    fn run(&self, x: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let (t, w) = (&self.run.tape, &self.layer.0);
        let normed = t.scope("attention norm", || t.layer_norm(x, &w[0], &w[1]));
        // The probabilities live in `_` until the block returns.
        let (attended, probabilities) = t.scope("attention", || self.attention(&normed, mask));
        let hidden = t.scope("attention", || t.add(&attended, x));
        drop(normed);
        let normed = t.scope("mlp norm", || t.layer_norm(&hidden, &w[6], &w[7]));
        let fed = t.scope("mlp", || self.mlp(&normed));
        let out = t.scope("mlp", || t.add(&hidden, &fed));
        drop(normed);
        drop(hidden);
        drop(attended);
        drop(probabilities);
        drop(fed);
        out
    }

    fn mlp(&self, x: &Tensor) -> Tensor {
        let (t, w) = (&self.run.tape, &self.layer.0);
        let mut hidden = t.conv1d(x, &w[8], &w[9]);
        hidden = self.plan.activation.apply(t, &hidden);
        hidden = t.conv1d(&hidden, &w[10], &w[11]);
        t.dropout(&hidden, self.plan.residual_dropout)
    }

    fn attention(&self, x: &Tensor, mask: Option<&Tensor>) -> (Tensor, Option<Tensor>) {
        let (t, w, p) = (&self.run.tape, &self.layer.0, &self.plan);
        let (b, s, h) = (self.run.batch, self.run.seq, p.h());
        let a = Dim::named(p.heads, Symbol::A);
        let [q, k, v] = {
            let qkv = t.conv1d(x, &w[2], &w[3]);
            let parts = t.split(&qkv, 2, h, 3);
            drop(qkv);
            // The query is laid out last.
            let [k, v, q] = [1, 2, 0].map(|i| {
                let part = t.reshape(&parts[i], &[b, s, a, p.d()]);
                t.transpose(&part, 1, 2)
            });
            [q, k, v]
        };
        let (mut out, probabilities) = match self.run.attention {
            AttentionPlan::Sdpa(forced) => {
                let [q, k, v] = for_sdpa(t, [&q, &k, &v]);
                let out = t.sdpa_masked(&q, &k, &v, mask, p.attention_dropout, forced);
                (t.contiguous(&t.transpose(&out, 1, 2)), None)
            }
            AttentionPlan::Package => (attend_by_package(&self.run, [&q, &k, &v], p.attention_dropout, h), None),
            AttentionPlan::Eager => {
                let (out, weights) = self.eager((&q, &k, &v), mask);
                (out, Some(weights))
            }
        };
        out = t.reshape(&out, &[b, s, h]);
        out = t.conv1d(&out, &w[4], &w[5]);
        out = t.dropout(&out, p.residual_dropout);
        (out, probabilities)
    }

    /// Eager attention without an FP32 softmax of its own: autocast gives it one.
    fn eager(&self, (q, k, v): (&Tensor, &Tensor, &Tensor), mask: Option<&Tensor>) -> (Tensor, Tensor) {
        let t = &self.run.tape;
        let mut weights = {
            let kt = t.transpose(k, 2, 3);
            let raw = t.matmul4(q, &kt);
            t.mul_scalar(&raw)
        };
        if let Some(mask) = mask {
            weights = t.add(&weights, mask);
        }
        weights = t.softmax(&weights);
        weights = t.to(&weights, v.dtype());
        weights = t.dropout(&weights, self.plan.attention_dropout);
        let out = t.matmul4(&weights, v);
        (t.transpose(&out, 1, 2), weights)
    }
}

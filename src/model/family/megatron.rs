//! A model as Megatron-LM core describes it, by the names of its arguments (`megatron/training/arguments.py`, main of August
//! 2026): a GPT, or a BERT, whose layers differ in norms, biases, activation, attention and experts. Its operations are
//! in `step/megatron/`; it runs under that layout alone.

use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};
use crate::model::family::{Built, Dimensions, Model, Parameter, matrix, vector};
use crate::model::fields::{Fields, MAX_DIMENSION, MAX_HEADS, MAX_LAYERS};
use crate::recipe::Recipe;
use crate::step::shape::Dim;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// A GPT's, or a BERT's, dimensions and switches.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "one independent switch per argument")]
pub struct Gpt {
    /// `--num-layers`.
    pub layers: u64,
    /// `--hidden-size`.
    pub hidden: u64,
    /// `--ffn-hidden-size`.
    pub ffn: u64,
    /// `--num-attention-heads`.
    pub heads: u64,
    /// `--num-query-groups`.
    pub groups: u64,
    /// `--kv-channels`.
    pub head: u64,
    /// `--vocab-size`, not padded.
    pub vocab: u64,
    /// Rows of the table of positions; none where positions are rotary.
    pub positions: Option<u64>,
    /// `--swiglu`.
    pub gated: bool,
    /// `--normalization RMSNorm`.
    pub rms: bool,
    /// Biases of linear layers (no `--disable-bias-linear`).
    pub bias: bool,
    /// Biases of queries, keys and values alone (`--add-qkv-bias`).
    pub qkv_bias: bool,
    /// Norms over each query and key head (`--qk-layernorm`).
    pub qk_norm: bool,
    /// Whether the head is the table of words.
    pub tied: bool,
    /// A BERT with its two heads.
    pub bert: bool,
    /// `--multi-latent-attention`.
    pub latent: Option<Latent>,
    /// `--num-experts`.
    pub experts: Option<Experts>,
}

/// Multi-latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// `--q-lora-rank`; none: queries are projected at once.
    pub query: Option<u64>,
    /// `--kv-lora-rank`.
    pub key_value: u64,
    /// `--qk-head-dim`.
    pub plain: u64,
    /// `--qk-pos-emb-head-dim`.
    pub rotary: u64,
    /// `--v-head-dim`.
    pub value: u64,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// `--num-experts`.
    pub count: u64,
    /// `--moe-router-topk`.
    pub per_token: u64,
    /// `--moe-ffn-hidden-size`.
    pub ffn: u64,
    /// `--moe-shared-expert-intermediate-size`; 0: there are no shared ones.
    pub shared: u64,
    /// How many of the first layers have an MLP instead (`--moe-layer-freq`).
    pub dense_layers: u64,
}

/// One parameter of a layer: its sizes before it is split, how it is split, and whether it is an expert's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) rows: u64,
    /// 0: a vector.
    pub(crate) columns: u64,
    pub(crate) split: Split,
}

/// How ranks share a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Every tensor-parallel rank holds it.
    Whole,
    /// Each has a share of the rows, or of a vector.
    Rows,
    /// Each has a share of the columns.
    Columns,
    /// An expert's, of which there are so many, by rows or by columns.
    Expert(u64, bool),
}

impl Weight {
    const fn whole(rows: u64, columns: u64) -> Self {
        Self { rows, columns, split: Split::Whole }
    }

    const fn rows(rows: u64, columns: u64) -> Self {
        Self { rows, columns, split: Split::Rows }
    }

    const fn columns(rows: u64, columns: u64) -> Self {
        Self { rows, columns, split: Split::Columns }
    }
}

impl Gpt {
    /// Reads a config of Megatron-LM's arguments, without dashes before and with underscores within.
    pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
        let mut f = Fields::new(config);
        let hidden = f.required(&["hidden_size"], MAX_DIMENSION);
        let heads = f.required(&["num_attention_heads"], MAX_HEADS);
        let gated = f.flag("swiglu", false);
        // `4 * hidden_size * 2 / 3` in multiples of 64 where gated.
        let usual = if gated { hidden.saturating_mul(8) / 3 / 64 * 64 } else { hidden.saturating_mul(4) };
        let ffn = f.optional(&["ffn_hidden_size"], usual, MAX_DIMENSION);
        let rotary = match f.text("position_embedding_type", "learned_absolute").as_str() {
            "learned_absolute" => false,
            "rope" => true,
            other => {
                let what = format!("the position embedding `{other}`");
                f.refuse("position_embedding_type", what);
                true
            }
        };
        let rms = match f.text("normalization", "LayerNorm").as_str() {
            "LayerNorm" => false,
            "RMSNorm" => true,
            other => {
                let what = format!("the normalization `{other}`");
                f.refuse("normalization", what);
                true
            }
        };
        let positions = f.optional(&["max_position_embeddings"], 1024, MAX_DIMENSION);
        let latent = f.flag("multi_latent_attention", false);
        let query = f.nullable("q_lora_rank", None, MAX_DIMENSION);
        let latent_of = Latent {
            query,
            key_value: f.optional(&["kv_lora_rank"], 32, MAX_DIMENSION),
            plain: f.optional(&["qk_head_dim"], 128, MAX_DIMENSION),
            rotary: f.optional(&["qk_pos_emb_head_dim"], 64, MAX_DIMENSION),
            value: f.optional(&["v_head_dim"], 128, MAX_DIMENSION),
        };
        let count = f.nullable("num_experts", None, MAX_DIMENSION);
        let experts = Experts {
            count: count.unwrap_or(1),
            per_token: f.optional(&["moe_router_topk"], 2, MAX_DIMENSION),
            ffn: f.optional(&["moe_ffn_hidden_size"], ffn, MAX_DIMENSION),
            shared: f.optional_from_zero("moe_shared_expert_intermediate_size", 0, MAX_DIMENSION),
            dense_layers: f.optional_from_zero("moe_first_dense_layers", 0, MAX_LAYERS),
        };
        let gpt = Self {
            layers: f.required(&["num_layers"], MAX_LAYERS),
            hidden,
            ffn,
            heads,
            groups: f.optional(&["num_query_groups"], heads, MAX_HEADS),
            head: f.optional(&["kv_channels"], hidden / heads.max(1), MAX_DIMENSION),
            vocab: f.required(&["vocab_size"], MAX_DIMENSION),
            positions: (!rotary && !latent).then_some(positions),
            gated,
            rms,
            bias: f.flag("add_bias_linear", true),
            qkv_bias: f.flag("add_qkv_bias", false),
            qk_norm: f.flag("qk_layernorm", false),
            tied: !f.flag("untie_embeddings_and_output_weights", false),
            bert: f.flag("bert", false),
            latent: latent.then_some(latent_of),
            experts: count.map(|_| experts),
        };
        f.divides("num_attention_heads", gpt.heads, "num_query_groups", gpt.groups);
        f.at_most("moe_router_topk", if count.is_some() { experts.per_token } else { 1 }, experts.count);
        f.finish(Box::new(gpt) as Box<dyn Model>)
    }

    /// Whether layer `at`, from 0, has experts.
    pub(crate) fn has_experts(&self, at: u64) -> Option<Experts> {
        self.experts.filter(|experts| at >= experts.dense_layers)
    }

    /// The widths of a rank's queries, keys and values before they are split.
    pub(crate) const fn qkv(&self) -> [u64; 3] {
        let keys = self.groups.saturating_mul(self.head);
        [self.heads.saturating_mul(self.head), keys, keys]
    }

    /// The vocabulary as it is padded for `ranks`.
    pub(crate) fn padded_vocab(&self, divisible_by: u64, ranks: u64) -> u64 {
        self.vocab.next_multiple_of(divisible_by.saturating_mul(ranks).max(1))
    }

    fn norm(&self, width: u64) -> Vec<Weight> {
        let all = vec![Weight::whole(width, 0); if self.rms { 1 } else { 2 }];
        all
    }

    /// The parameters of layer `at`, from 0.
    pub(crate) fn layer(&self, at: u64) -> Vec<Weight> {
        let h = self.hidden;
        let mut all = self.norm(h);
        let heads = self.heads;
        let mut linear = |weight: Weight, bias: bool| {
            all.push(weight);
            if bias {
                let split = if weight.split == Split::Rows { Split::Rows } else { Split::Whole };
                all.push(Weight { rows: weight.rows, columns: 0, split });
            }
        };
        if let Some(latent) = self.latent {
            let key = latent.plain.saturating_add(latent.rotary);
            match latent.query {
                Some(rank) => {
                    linear(Weight::whole(rank, h), false);
                    linear(Weight::rows(heads.saturating_mul(key), rank), false);
                    linear(Weight::whole(rank, 0), false);
                }
                None => linear(Weight::rows(heads.saturating_mul(key), h), false),
            }
            let [rank, up] = [latent.key_value, latent.plain.saturating_add(latent.value)];
            linear(Weight::whole(rank.saturating_add(latent.rotary), h), false);
            linear(Weight::rows(heads.saturating_mul(up), rank), false);
            linear(Weight::whole(rank, 0), false);
            linear(Weight::columns(h, heads.saturating_mul(latent.value)), self.bias);
        } else {
            let [q, k, v] = self.qkv();
            linear(Weight::rows(q.saturating_add(k).saturating_add(v), h), self.bias || self.qkv_bias);
            if self.qk_norm {
                linear(Weight::whole(self.head, 0), false);
                linear(Weight::whole(self.head, 0), false);
            }
            linear(Weight::columns(h, q), self.bias);
        }
        all.extend(self.norm(h));
        let halves = if self.gated { 2 } else { 1 };
        let mlp = |all: &mut Vec<Weight>, ffn: u64| {
            let bias = |rows, split| self.bias.then_some(Weight { rows, columns: 0, split });
            let up = ffn.saturating_mul(halves);
            all.push(Weight::rows(up, h));
            all.extend(bias(up, Split::Rows));
            all.push(Weight::columns(h, ffn));
            all.extend(bias(h, Split::Whole));
        };
        match self.has_experts(at) {
            None => mlp(&mut all, self.ffn),
            Some(experts) => {
                all.push(Weight::whole(experts.count, h));
                let expert =
                    |rows, columns, by_rows| Weight { rows, columns, split: Split::Expert(experts.count, by_rows) };
                all.push(expert(experts.ffn.saturating_mul(halves), h, true));
                all.push(expert(h, experts.ffn, false));
                if experts.shared > 0 {
                    mlp(&mut all, experts.shared);
                }
            }
        }
        all
    }

    /// The parameters before the layers.
    pub(crate) fn before(&self, vocab: u64) -> Vec<Weight> {
        let table = |rows| Weight::whole(rows, self.hidden);
        let mut all = vec![Weight::rows(vocab, self.hidden)];
        all.extend(self.positions.map(table));
        all.extend(self.bert.then(|| table(2)));
        all
    }

    /// The parameters after the layers, the head's matrix last unless it is the table of words on the same rank.
    pub(crate) fn after(&self, vocab: u64, head: bool) -> Vec<Weight> {
        let h = self.hidden;
        let mut all = self.norm(h);
        if self.bert {
            // A dense layer and a norm before the words' head, a pooler and the binary head; the words' head has a bias.
            all.extend([Weight::whole(h, h), Weight::whole(h, 0)]);
            all.extend(self.norm(h));
            all.extend([Weight::whole(h, h), Weight::whole(h, 0), Weight::whole(2, h), Weight::whole(2, 0)]);
            all.push(Weight { rows: vocab, columns: 0, split: Split::Rows });
        }
        if head {
            all.push(Weight::rows(vocab, h));
        }
        all
    }
}

impl Model for Gpt {
    fn family(&self) -> &'static str {
        "megatron"
    }

    fn megatron(&self) -> Option<Gpt> {
        Some(self.clone())
    }

    fn parameters(&self) -> Vec<Parameter> {
        let mut all = self.before(self.vocab);
        for at in 0..self.layers {
            all.extend(self.layer(at));
        }
        all.extend(self.after(self.vocab, !self.tied));
        let one = |weight: Weight| {
            let [rows, columns] = [weight.rows, weight.columns].map(Dim::plain);
            let shape = match weight.split {
                _ if weight.columns == 0 => vector(rows),
                Split::Expert(count, _) => crate::step::shape::Shape::new(&[Dim::plain(count), rows, columns]),
                _ => matrix(rows, columns),
            };
            Parameter { shape, linear: weight.columns > 0, lookup_only: false }
        };
        all.into_iter().map(one).collect()
    }

    fn buffers(&self) -> Vec<u64> {
        Vec::new()
    }

    fn is_causal_lm(&self) -> bool {
        !self.bert
    }

    fn attends_both_ways(&self) -> bool {
        self.bert
    }

    fn routed_experts(&self) -> Option<(u64, u64)> {
        self.experts.map(|experts| (experts.per_token, experts.count))
    }

    fn dimensions(&self) -> Dimensions {
        let query_width = match self.latent {
            Some(latent) => self.heads.saturating_mul(latent.plain.saturating_add(latent.rotary)),
            None => self.qkv()[0],
        };
        Dimensions { layers: self.layers, hidden: self.hidden, query_width, vocabulary: self.vocab }
    }

    fn max_positions(&self) -> Option<u64> {
        self.positions
    }

    fn refusals(&self, _recipe: &Recipe) -> Vec<Issue> {
        Vec::new()
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![("b", recipe.micro_batch), ("s", recipe.seq_len), ("h", self.hidden), ("V", self.vocab)]
    }

    fn layers(&self) -> u64 {
        self.layers
    }

    fn with_layers(&self, _layers: u64) -> Option<Box<dyn Model>> {
        None
    }

    fn build(&self, _tape: &Tape, _dtype: Dtype) -> Box<dyn Built> {
        Box::new(Unbuilt)
    }
}

/// Megatron-LM's models are built by their layout's own walk; without that layout they are refused.
struct Unbuilt;

impl Built for Unbuilt {
    fn weights(&self) -> &[Tensor] {
        &[]
    }

    fn forward(&self, run: &super::Run, _batch: &[Tensor]) -> (Tensor, Tensor) {
        let loss = run.tape.scalar(Dtype::F32, "loss");
        (loss.clone(), loss)
    }
}

/// What is said of a Megatron-LM model without its layout.
pub(crate) fn needs_layout() -> Issue {
    let what = "a model of Megatron-LM's without its layout (parallel.data.megatron)".into();
    Issue::new("parallel.data", IssueKind::NotModelled { what })
}

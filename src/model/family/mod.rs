//! The families: one file each, with its config fields, its parameters and the operations of its forward, in the order
//! of transformers' own code. Nothing about a family lives in the walk.

mod bert;
mod bloom;
mod common;
mod deepseek;
mod experts;
mod falcon;
mod flash;
mod gemma;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod llama;
mod megatron;
mod opt;
mod resnet;
mod rotary;
mod t5;
mod vit;
mod whisper;

use core::fmt::Debug;

use serde_json::{Map, Value};

use crate::issue::Issue;
use crate::recipe::{LigerKernel, Recipe};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

pub use common::{AttentionPlan, Cache, Run};
pub use experts::ExpertNames;
pub use megatron::{Experts as MegatronExperts, Gpt, Latent};
pub(crate) use megatron::{Split, Weight as MegatronWeight, needs_layout as megatron_needs_layout};

/// A parameter of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its sizes.
    pub shape: Shape,
    /// Whether it is the weight of a linear layer, which autocast casts.
    pub linear: bool,
    /// Whether it belongs to a look-up table that takes no part in products (untied embeddings).
    pub lookup_only: bool,
}

/// What the throughput estimate needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// Layers.
    pub layers: u64,
    /// Hidden size.
    pub hidden: u64,
    /// Query width, heads × head size.
    pub query_width: u64,
    /// Vocabulary.
    pub vocabulary: u64,
}

/// A model whose config has been read: it can list its parameters and be built on a tape.
pub trait Model: Debug {
    /// The family's name, as in `model_type`.
    fn family(&self) -> &'static str;
    /// The parameters in the order of `model.parameters()`, tied ones once.
    fn parameters(&self) -> Vec<Parameter>;
    /// The names of the linear layers that adapters can target, one for each of [`Model::parameters`] that is such a
    /// layer's weight. Empty: adapters over this family are not modelled.
    fn linear_names(&self) -> Vec<Option<&'static str>> {
        Vec::new()
    }
    /// Layers that peft knows by a name and that are part of a stacked parameter now: the name, and the parameter's. Adapters
    /// named for them are folded into the parameter.
    fn renamed_targets(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    /// Whether each matrix of the experts' stacked weights lies [in, out].
    fn experts_lie_in_out(&self) -> bool {
        false
    }
    /// The dotted names of [`Model::parameters`], as in `model.named_parameters()`. Empty: not known for this family.
    fn parameter_names(&self) -> Vec<String> {
        Vec::new()
    }
    /// The place of the one parameter that is never trained, if there is one.
    fn untrained(&self) -> Option<usize> {
        None
    }
    /// Whether the linear layers' weights lie [in, out], as in GPT-2's `Conv1D`.
    fn linears_lie_in_out(&self) -> bool {
        false
    }
    /// Whether its attention is known to be plain causal attention, which the math backend can be forced to run.
    fn takes_math_attention(&self) -> bool {
        false
    }
    /// Whether it is a causal language model whose head and loss can be computed otherwise than all at once.
    fn is_causal_lm(&self) -> bool {
        false
    }
    /// Whether its linear layers are `nn.Linear` itself and no class of its own, which a quantiser passes over.
    fn has_plain_linears(&self) -> bool {
        true
    }
    /// The modules whose weights stay in FP32 when the model is loaded in `dtype` (`_keep_in_fp32_modules` in FP16,
    /// `_keep_in_fp32_modules_strict` always).
    fn kept_in_f32(&self, _dtype: Dtype) -> &'static [&'static str] {
        &[]
    }
    /// Whether its buffers begin with a correction of each router's scores, which checkpoints hold.
    fn corrects_routers(&self) -> bool {
        false
    }
    /// How a checkpoint that holds each expert's layers apart names them, and the block that they are in; none where it holds them
    /// as the model does, or there are none (`conversion_mapping.py`, transformers 5.24).
    fn expert_names(&self) -> Option<&'static ExpertNames> {
        None
    }
    /// Whether it can be run with the package flash-attn (`attn_implementation="flash_attention_2"`).
    fn takes_flash_package(&self) -> bool {
        false
    }
    /// Whether it can be given several sequences in one row, kept apart by their positions.
    fn packs(&self) -> bool {
        false
    }
    /// Which of Liger's kernels are modelled here, of those that Liger has for the family.
    fn liger(&self) -> &'static [LigerKernel] {
        &[]
    }
    /// The same layers under a head that scores a sequence (`ForSequenceClassification` with one label), of families
    /// that preferences and reinforcement learning are modelled for.
    fn scored(&self) -> Option<Box<dyn Model>> {
        None
    }
    /// The same with an output head of its own, of models whose head can be the table of words.
    fn untied(&self) -> Option<Box<dyn Model>> {
        None
    }
    /// The buffers, in FP32 elements each.
    fn buffers(&self) -> Vec<u64>;
    /// The buffers, in bytes each, of a model with weights of `weights`.
    fn buffer_bytes(&self, _weights: Dtype) -> Vec<u64> {
        self.buffers().into_iter().map(|n| n.saturating_mul(4)).collect()
    }
    /// Whether a recipe's sequence length is what the model computes over, as in one stack of layers over tokens; only
    /// then does a rate of tokens mean something.
    fn counts_tokens(&self) -> bool {
        true
    }
    /// The model as Megatron-LM core describes it, where it has it.
    fn megatron(&self) -> Option<Gpt> {
        None
    }
    /// How many routed experts a token goes to, and out of how many: a layer's experts are one parameter of three dimensions.
    fn routed_experts(&self) -> Option<(u64, u64)> {
        None
    }
    /// Whether every token attends to every other, as in an encoder, and not only to those before it.
    fn attends_both_ways(&self) -> bool {
        false
    }
    /// The dimensions.
    fn dimensions(&self) -> Dimensions;
    /// The longest sequence its positions allow, when they are a table.
    fn max_positions(&self) -> Option<u64>;
    /// What this model and recipe have that is not modelled.
    fn refusals(&self, recipe: &Recipe) -> Vec<Issue>;
    /// The symbols of the formulas and their values.
    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)>;
    /// How many layers it has.
    fn layers(&self) -> u64;
    /// The same model with another number of layers, when its layers are all alike; the walk then runs a few and
    /// repeats one.
    fn with_layers(&self, layers: u64) -> Option<Box<dyn Model>>;
    /// The model that each of `n` tensor-parallel ranks has a share of: of its heads, its MLP's width and its vocabulary.
    /// None where it cannot be split so, or that is not modelled.
    fn split(&self, _n: u64) -> Option<Box<dyn Model>> {
        None
    }
    /// Puts the model on the tape, its weights in `dtype`.
    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built>;
}

/// A model on a tape.
pub trait Built {
    /// The parameters, in the order of [`Model::parameters`].
    fn weights(&self) -> &[Tensor];
    /// Whether the buffers are part of it: of models whose modules make them between the parameters. Else they come after.
    fn holds_buffers(&self) -> bool {
        false
    }
    /// Puts a micro-batch on the device: token ids and labels of sizes [b, s], unless the family takes others.
    fn batch(&self, run: &Run) -> Vec<Tensor> {
        let third = run.packed.map(|_| "positions").or(run.padded.then_some("attention mask"));
        ["token ids", "labels"].into_iter().chain(third).map(|name| run.integers(&[run.batch, run.seq], name)).collect()
    }
    /// Runs forward on a micro-batch of [`Built::batch`]; returns loss and outputs.
    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor);
    /// The hidden states after the last norm, and the head's weight, where a family gives them apart.
    fn backbone(&self, _run: &Run, _ids: &Tensor) -> Option<(Tensor, Tensor)> {
        None
    }
    /// What the outputs of the forward just run hold beside the logits.
    fn take_outputs(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

type Read = fn(&Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>>;

/// A family as the registry knows it.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `model_type` in a config.
    pub model_type: &'static str,
    /// The class that is modelled.
    pub architecture: &'static str,
    read: Read,
}

impl Family {
    /// Every family that is modelled.
    pub const ALL: &'static [Self] = &[
        Self { model_type: "llama", architecture: "LlamaForCausalLM", read: llama::read_llama },
        Self { model_type: "mistral", architecture: "MistralForCausalLM", read: llama::read_mistral },
        Self { model_type: "qwen2", architecture: "Qwen2ForCausalLM", read: llama::read_qwen2 },
        Self { model_type: "qwen3", architecture: "Qwen3ForCausalLM", read: llama::read_qwen3 },
        Self { model_type: "mixtral", architecture: "MixtralForCausalLM", read: llama::read_mixtral },
        Self { model_type: "qwen3_moe", architecture: "Qwen3MoeForCausalLM", read: llama::read_qwen3_moe },
        Self { model_type: "gpt_oss", architecture: "GptOssForCausalLM", read: gpt_oss::read },
        Self { model_type: "deepseek_v3", architecture: "DeepseekV3ForCausalLM", read: deepseek::read },
        Self { model_type: "phi", architecture: "PhiForCausalLM", read: rotary::read_phi },
        Self { model_type: "phi3", architecture: "Phi3ForCausalLM", read: rotary::read_phi3 },
        Self { model_type: "olmo2", architecture: "Olmo2ForCausalLM", read: rotary::read_olmo2 },
        Self { model_type: "starcoder2", architecture: "Starcoder2ForCausalLM", read: rotary::read_starcoder2 },
        Self { model_type: "opt", architecture: "OPTForCausalLM", read: opt::read },
        Self { model_type: "falcon", architecture: "FalconForCausalLM", read: falcon::read },
        Self { model_type: "bloom", architecture: "BloomForCausalLM", read: bloom::read },
        Self { model_type: "gemma", architecture: "GemmaForCausalLM", read: gemma::read_gemma },
        Self { model_type: "gemma2", architecture: "Gemma2ForCausalLM", read: gemma::read_gemma2 },
        Self { model_type: "gemma3_text", architecture: "Gemma3ForCausalLM", read: gemma::read_gemma3 },
        Self { model_type: "gpt_neox", architecture: "GPTNeoXForCausalLM", read: gpt_neox::read },
        Self { model_type: "gpt2", architecture: "GPT2LMHeadModel", read: gpt2::read },
        Self { model_type: "bert", architecture: "BertForMaskedLM", read: bert::read_bert },
        Self { model_type: "bert", architecture: "BertForSequenceClassification", read: bert::read_bert_classifier },
        Self { model_type: "roberta", architecture: "RobertaForMaskedLM", read: bert::read_roberta },
        Self {
            model_type: "roberta",
            architecture: "RobertaForSequenceClassification",
            read: bert::read_roberta_classifier,
        },
        Self { model_type: "distilbert", architecture: "DistilBertForMaskedLM", read: bert::read_distilbert },
        Self {
            model_type: "distilbert",
            architecture: "DistilBertForSequenceClassification",
            read: bert::read_distilbert_classifier,
        },
        Self { model_type: "resnet18", architecture: "resnet18", read: resnet::read },
        Self { model_type: "resnet34", architecture: "resnet34", read: resnet::read },
        Self { model_type: "resnet50", architecture: "resnet50", read: resnet::read },
        Self { model_type: "resnet101", architecture: "resnet101", read: resnet::read },
        Self { model_type: "resnet152", architecture: "resnet152", read: resnet::read },
        Self { model_type: "megatron", architecture: "MegatronModel", read: Gpt::read },
        Self { model_type: "t5", architecture: "T5ForConditionalGeneration", read: t5::read },
        Self { model_type: "whisper", architecture: "WhisperForConditionalGeneration", read: whisper::read },
        Self { model_type: "vit", architecture: "ViTForImageClassification", read: vit::read },
    ];

    /// Reads a config of this family.
    ///
    /// # Errors
    /// Every issue of the config, one per field.
    pub fn read(&self, config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
        (self.read)(config)
    }
}

/// The names of the linear layers of one layer, by the places of its parameters, where the config has such a parameter.
pub(crate) fn names_of(
    shapes: &[Option<Shape>],
    places: &[(usize, &'static str)],
) -> impl Iterator<Item = Option<&'static str>> {
    let name = |at: usize| places.iter().find(|(place, _)| *place == at).map(|(_, name)| *name);
    let there: Vec<_> = shapes.iter().enumerate().filter(|(_, s)| s.is_some()).map(|(at, _)| name(at)).collect();
    there.into_iter()
}

/// The names of one layer's parameters: of `names` those whose place has a shape.
pub(crate) fn names_there(names: &[&'static str], shapes: &[Option<Shape>]) -> Vec<&'static str> {
    names.iter().zip(shapes).filter(|(_, shape)| shape.is_some()).map(|(name, _)| *name).collect()
}

/// The dotted names of a model's parameters: those before the layers, those of each layer under `prefix`, those after.
pub(crate) fn dotted_names(
    before: &[&str],
    (prefix, layers): (&str, u64),
    of_layer: impl Fn(usize) -> Vec<&'static str>,
    after: &[&str],
) -> Vec<String> {
    let mut all: Vec<String> = before.iter().map(|&name| name.into()).collect();
    for i in 0..usize::try_from(layers).unwrap_or(0) {
        for name in of_layer(i) {
            all.push([prefix, ".", &i.to_string(), ".", name].concat());
        }
    }
    all.extend(after.iter().map(|&name| String::from(name)));
    all
}

/// The dotted names of a decoder as most families lay it out: embedding, layers, norm, and the head unless it is tied.
pub(crate) fn decoder_names(layers: u64, of_layer: impl Fn(usize) -> Vec<&'static str>, tied: bool) -> Vec<String> {
    let after: &[&str] = &["model.norm.weight", "lm_head.weight"];
    dotted_names(
        &["model.embed_tokens.weight"],
        ("model.layers", layers),
        of_layer,
        &after[..after.len() - usize::from(tied)],
    )
}

/// The shape of a weight matrix.
pub(crate) fn matrix(rows: Dim, columns: Dim) -> Shape {
    Shape::new(&[rows, columns])
}

/// The shape of a weight vector.
pub(crate) fn vector(n: Dim) -> Shape {
    Shape::new(&[n])
}

/// The parameters of a model being built, in registration order.
pub(crate) struct Parameters<'a> {
    tape: &'a Tape,
    dtype: Dtype,
    all: Vec<Tensor>,
}

impl<'a> Parameters<'a> {
    pub(crate) fn new(tape: &'a Tape, dtype: Dtype) -> Self {
        Self { tape, dtype, all: Vec::new() }
    }

    /// The next parameter, allocated unless it has been loaded.
    pub(crate) fn add(&mut self, shape: Shape) -> Tensor {
        self.add_listed(self.all.len(), shape, self.dtype)
    }

    /// As [`Parameters::add`] for one that is listed elsewhere than it is made, or has a dtype of its own.
    pub(crate) fn add_listed(&mut self, place: usize, shape: Shape, dtype: Dtype) -> Tensor {
        let id = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let loaded = self.tape.supplied(place);
        let p = loaded.unwrap_or_else(|| Tensor::parameter(self.tape, id, shape, dtype));
        self.all.push(p.clone());
        p
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn finish(self) -> Vec<Tensor> {
        self.all
    }
}

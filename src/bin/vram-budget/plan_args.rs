//! Every input of a plan as a flag. Flags change a plan that was read from a file; without one they make it.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde_json::Value;
use vram_budget::machine::{CustomGpu, GpuChoice};
use vram_budget::model::ModelSource;
use vram_budget::plan::{Framework, PLAN_VERSION, Plan, Policy, Version};
use vram_budget::recipe::{
    Attention, Batching, Checkpointing, Distribution, Ema, Float8Scaling, FloatName, Lengths, LigerKernel,
    LinearCrossEntropy, Load, Lora, LoraBias, Loss, OptimizerImpl, OptimizerName, Precision, QuantKind, Quantization,
    Recipe, ScaleType, SdpaBackend, ZeroGrad,
};
use vram_budget::units::{Bytes, parse_bytes};
use vram_budget::versions::TrainerDefaults;

use crate::exit::Rejected;
use crate::input;
use crate::method_args::MethodArgs;
use crate::parallel_args::ParallelArgs;

/// The job and the machine.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// A model preset, such as llama-3.1-8b
    #[arg(value_name = "MODEL", required_unless_present_any = ["config", "plan"], conflicts_with = "config")]
    model: Option<String>,
    /// A Hugging Face config.json; - is stdin
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A plan document; other flags change it; - is stdin
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// A GPU of the catalogue, such as 'RTX 4090'
    #[arg(long, value_name = "NAME", help_heading = "Machine")]
    gpu: Option<String>,
    /// Your own card: its memory as PyTorch reports it, such as '23.6 GiB'
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "gpu", help_heading = "Machine")]
    gpu_memory: Option<Bytes>,
    /// Your own card's CUDA compute capability, such as 8.9
    #[arg(long, value_name = "X.Y", requires = "gpu_memory", help_heading = "Machine")]
    compute_capability: Option<String>,
    /// Memory of the MIG slice that the job runs in
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Machine")]
    mig_slice: Option<Bytes>,
    /// Memory that other processes hold
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Machine")]
    in_use: Option<Bytes>,
    /// The process's CUDA context [default: assumed by the GPU's generation]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Machine")]
    context: Option<Bytes>,
    /// What NCCL's communicators take in the process [default: assumed by their number]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Machine")]
    communicators: Option<Bytes>,

    /// Which dtype holds what; `unknown` tries them all [default: amp_bf16]
    #[arg(long, value_parser = precision(), help_heading = "Recipe")]
    precision: Option<Choice<Precision>>,
    /// Optimizer [default: adamw]
    #[arg(long, value_parser = optimizer(), help_heading = "Recipe")]
    optimizer: Option<OptimizerName>,
    /// Its implementation [default: foreach; Adafactor's: forloop]
    #[arg(long, value_parser = named::<OptimizerImpl>(&["foreach", "fused", "forloop"]), help_heading = "Recipe")]
    optimizer_impl: Option<OptimizerImpl>,
    /// Momentum of SGD and RMSprop [default: 0]
    #[arg(long, value_name = "M", help_heading = "Recipe")]
    momentum: Option<f64>,
    /// SGD's Nesterov momentum
    #[arg(long, help_heading = "Recipe")]
    nesterov: bool,
    /// Adam and AdamW keep the largest second moment so far
    #[arg(long, help_heading = "Recipe")]
    amsgrad: bool,
    /// RMSprop keeps the mean of the gradient
    #[arg(long, help_heading = "Recipe")]
    centered: bool,
    /// 8-bit optimizers keep FP32 states for embeddings, as the Trainer of transformers does
    #[arg(long, help_heading = "Recipe")]
    embeddings_32bit: bool,
    /// Every weight is updated in backward as soon as its gradient is there, which is then freed
    #[arg(long, help_heading = "Recipe")]
    optimizer_in_backward: bool,
    /// Rank that GaLore and APOLLO project to [default: 128]
    #[arg(long, value_name = "R", help_heading = "Recipe")]
    optimizer_rank: Option<u64>,
    /// Runs the products of linear layers in FP8, as torchao does eagerly
    #[arg(long, help_heading = "Recipe")]
    float8: bool,
    /// Runs the products of linear layers in FP8, as Transformer Engine does with this scaling (accelerate's convert_model);
    /// read in its code and not measured: no answer is "fits"
    #[arg(long, value_name = "SCALING", value_parser = named::<Float8Scaling>(
        &["delayed", "current", "mxfp8", "primary_weights"]), conflicts_with = "float8", help_heading = "Recipe")]
    float8_te: Option<Float8Scaling>,
    /// Runs under torch.compile in its default mode: shown by the eager step, without a verdict
    #[arg(long, help_heading = "Recipe")]
    compile: bool,
    /// Keeps an averaged copy of the weights
    #[arg(long, value_parser = named::<Ema>(&["same", "float32", "bfloat16"]), help_heading = "Recipe")]
    ema: Option<Ema>,
    /// What APOLLO scales by [default: channel]
    #[arg(long, value_parser = named::<ScaleType>(&["channel", "tensor"]), help_heading = "Recipe")]
    scale_type: Option<ScaleType>,
    /// Attention implementation [default: sdpa, where the versions have it]
    #[arg(long, value_parser = named::<Attention>(&["sdpa", "eager", "flash_attention_2"]), help_heading = "Recipe")]
    attention: Option<Attention>,
    /// Forces one backend of sdpa
    #[arg(long, value_parser = named::<SdpaBackend>(
        &["flash_attention", "efficient_attention", "cudnn_attention", "math"]), help_heading = "Recipe")]
    sdpa_backend: Option<SdpaBackend>,
    /// Activation checkpointing: none, full, selective, selective_half, reentrant, every=K, offload, full_offload [default:
    /// none]
    #[arg(long, value_name = "MODE", value_parser = numbered::<Checkpointing>, help_heading = "Recipe")]
    checkpointing: Option<Checkpointing>,
    /// How the loss is computed: hf, chunked=PIECES, chunked_outputs=PIECES,
    /// logits_to_keep=TOKENS, or PyTorch's linear_cross_entropy in pieces that it chooses, of linear_cross_entropy=ROWS,
    /// by its linear_cross_entropy=aspect_ratio:N, or at once: linear_cross_entropy=none [default: hf]
    #[arg(long, value_name = "HOW", value_parser = loss, help_heading = "Recipe")]
    loss: Option<Loss>,
    /// Modules that are not trained, separated by commas, such as model.embed_tokens,model.layers.0
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Recipe")]
    freeze: Option<Vec<String>>,
    /// Packs sequences of these lengths, separated by commas, into one row that is the micro-batch
    #[arg(long, value_name = "LENGTHS", value_delimiter = ',', conflicts_with_all = ["micro_batch", "seq_len"],
        help_heading = "Recipe")]
    packed: Option<Vec<u64>>,
    /// Some sequence of a micro-batch is shorter than the others: attention takes a mask of the padding
    #[arg(long, help_heading = "Recipe")]
    padded: bool,
    /// Runs kernels of Liger's in the place of what transformers writes in Python, as use_liger_kernel does; or those named
    #[arg(long, value_name = "KERNELS", value_delimiter = ',', num_args = 0.., require_equals = true,
        default_missing_value = "rope,rms_norm,swiglu,fused_linear_cross_entropy",
        value_parser = named::<LigerKernel>(
            &["rope", "rms_norm", "swiglu", "fused_linear_cross_entropy", "cross_entropy"]), help_heading = "Recipe")]
    liger: Option<Vec<LigerKernel>>,
    /// A batch is evaluated after the steps
    #[arg(long, help_heading = "Recipe")]
    eval_after: bool,
    /// Sequences per micro-batch [default: 1]
    #[arg(long, short = 'b', value_name = "N", help_heading = "Recipe")]
    micro_batch: Option<u64>,
    /// Tokens per sequence [default: 512]
    #[arg(long, short = 's', value_name = "N", help_heading = "Recipe")]
    seq_len: Option<u64>,
    /// Lengths of a run's sequences, each at most --seq-len, for `fragmentation`: fixed, uniform=MIN..MAX,
    /// log-normal=MEDIAN,SIGMA, a list such as 307,1237,1300, or a file of such
    #[arg(long, value_name = "LENGTHS", value_parser = distribution, help_heading = "Lengths")]
    lengths: Option<Distribution>,
    /// How batches are made of them [default: padded]
    #[arg(long, value_parser = named::<Batching>(&["padded", "bucketed", "packed"]), help_heading = "Lengths")]
    batching: Option<Batching>,
    /// Pads batches to a multiple of this [default: 1]
    #[arg(long, value_name = "N", help_heading = "Lengths")]
    pad_to_multiple_of: Option<u64>,
    /// The longest batch comes first
    #[arg(long, help_heading = "Lengths")]
    longest_first: bool,
    /// Optimizer steps [default: 300]
    #[arg(long, value_name = "N", help_heading = "Lengths")]
    steps: Option<u64>,
    /// Another seed draws other lengths [default: 0]
    #[arg(long, value_name = "N", help_heading = "Lengths")]
    seed: Option<u64>,
    /// Micro-batches per optimizer step [default: 1]
    #[arg(long, value_name = "N", help_heading = "Recipe")]
    grad_accum: Option<u64>,
    /// Trains low-rank adapters of this rank over frozen weights
    #[arg(long, value_name = "R", help_heading = "Recipe")]
    lora_rank: Option<u64>,
    /// Linear layers that get adapters, separated by commas, or all-linear [default: q_proj,v_proj]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora_rank", help_heading = "Recipe")]
    lora_targets: Option<Vec<String>>,
    /// Parameters that adapters are folded into, separated by commas, by the ends of their names, such as experts.down_proj
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora_rank", help_heading = "Recipe")]
    lora_parameters: Option<Vec<String>>,
    /// Share of an adapter's input that is dropped [default: 0]
    #[arg(long, value_name = "SHARE", requires = "lora_rank", help_heading = "Recipe")]
    lora_dropout: Option<f64>,
    /// Biases that are trained beside adapters [default: none]
    #[arg(long, value_parser = named::<LoraBias>(&["none", "all", "lora_only"]), requires = "lora_rank",
        help_heading = "Recipe")]
    lora_bias: Option<LoraBias>,
    /// Modules that are trained as copies of their own beside adapters, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora_rank", help_heading = "Recipe")]
    lora_save: Option<Vec<String>>,
    /// What adapters are kept in [default: FP32]
    #[arg(long, value_parser = named::<FloatName>(&["bfloat16", "float16", "float32"]), requires = "lora_rank",
        help_heading = "Recipe")]
    lora_dtype: Option<FloatName>,
    /// Weight-decomposed adapters (DoRA)
    #[arg(long, requires = "lora_rank", help_heading = "Recipe")]
    dora: bool,
    /// Keeps the linear layers' weights in 4 or 8 bits beneath the adapters (QLoRA)
    #[arg(long, value_parser = named::<QuantKind>(&["nf4", "fp4", "int8"]), help_heading = "Recipe")]
    quantization: Option<QuantKind>,
    /// Quantises the 4-bit code's scales too
    #[arg(long, requires = "quantization", help_heading = "Recipe")]
    double_quant: bool,
    /// The type in which products with 4-bit weights run [default: bfloat16]
    #[arg(long, value_parser = named::<FloatName>(&["bfloat16", "float16", "float32"]), requires = "quantization",
        help_heading = "Recipe")]
    compute_dtype: Option<FloatName>,
    /// Leaves what is not quantised as it was loaded: no prepare_model_for_kbit_training
    #[arg(long, requires = "quantization", help_heading = "Recipe")]
    no_prepare: bool,
    /// How the model gets onto the device [default: init]
    #[arg(long, value_parser = named::<Load>(&["init", "pretrained"]), help_heading = "Recipe")]
    load: Option<Load>,
    /// Clips gradients to this norm
    #[arg(long, value_name = "NORM", help_heading = "Recipe")]
    clip_grad: Option<f64>,
    /// The loop keeps the model's outputs through backward
    #[arg(long, help_heading = "Recipe")]
    keep_outputs: bool,
    /// The loop's variables live on until the next step assigns them anew
    #[arg(long, help_heading = "Recipe")]
    keep_variables: bool,
    /// What zero_grad does with gradients [default: none; before PyTorch 2.0: zero]
    #[arg(long, value_parser = named::<ZeroGrad>(&["none", "zero", "after_forward"]), help_heading = "Recipe")]
    zero_grad: Option<ZeroGrad>,

    #[command(flatten)]
    parallel: ParallelArgs,
    #[command(flatten)]
    method: MethodArgs,

    /// PyTorch's version [default: 2.15]
    #[arg(long, value_name = "VERSION", help_heading = "Versions")]
    pytorch: Option<Version>,
    /// transformers' version [default: 5.24]
    #[arg(long, value_name = "VERSION", help_heading = "Versions")]
    transformers: Option<Version>,
    /// peft's version [default: 0.21]
    #[arg(long, value_name = "VERSION", help_heading = "Versions")]
    peft: Option<Version>,
    /// bitsandbytes' version [default: 0.50]
    #[arg(long, value_name = "VERSION", help_heading = "Versions")]
    bitsandbytes: Option<Version>,
    /// Fills what is not given as transformers' Trainer does: fused AdamW where its versions have it, gradients clipped
    #[arg(long, help_heading = "Versions")]
    trainer: bool,
    /// cuBLAS workspaces outlive their calls [default: as this PyTorch does]
    #[arg(long, value_name = "BOOL", help_heading = "Versions")]
    cublas_workspace_kept: Option<bool>,
    /// The text of PYTORCH_CUDA_ALLOC_CONF
    #[arg(long, value_name = "TEXT", help_heading = "Versions")]
    alloc_conf: Option<String>,

    /// Weights, gradients and states: attention beyond this share of the card [default: 0.8]
    #[arg(long, value_name = "SHARE", help_heading = "Thresholds")]
    rigid_share: Option<f64>,
    /// Activations: attention beyond this share of what is left [default: 0.5]
    #[arg(long, value_name = "SHARE", help_heading = "Thresholds")]
    activation_share: Option<f64>,
    /// Margin: tight below this share of the card [default: 0.1]
    #[arg(long, value_name = "SHARE", help_heading = "Thresholds")]
    margin_low: Option<f64>,
    /// Margin: comfortable from this share of the card [default: 0.15]
    #[arg(long, value_name = "SHARE", help_heading = "Thresholds")]
    margin_high: Option<f64>,
}

/// A value, or that it is not known.
#[derive(Clone, Copy, Debug)]
enum Choice<T> {
    Known(T),
    Unknown,
}

fn size(text: &str) -> Result<Bytes, String> {
    parse_bytes(text)
}

/// A value by its name in documents: one spelling everywhere.
pub(crate) fn named<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    names: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(|name| serde_json::from_value(Value::String(name)))
}

/// A value by its name in documents, with a number where it takes one: `full`, `every=2`.
pub(crate) fn numbered<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let value = match text.split_once('=') {
        None => Value::String(text.to_owned()),
        Some((name, number)) => {
            let number: u64 = number.parse().map_err(|_| format!("`{number}` is not a whole number"))?;
            Value::Object([(name.to_owned(), Value::from(number))].into_iter().collect())
        }
    };
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// A loss; `linear_cross_entropy` says how it is in pieces as PyTorch's arguments do.
fn loss(text: &str) -> Result<Loss, String> {
    let Some(how) = text.strip_prefix("linear_cross_entropy") else { return numbered(text) };
    let mut options = LinearCrossEntropy::AUTO;
    let number = |text: &str| text.parse().map(Some).map_err(|_| format!("`{text}` is not a whole number"));
    match how.strip_prefix('=') {
        None if how.is_empty() => {}
        None => return numbered(text),
        Some("none") => options.reference = true,
        Some(how) => match how.strip_prefix("aspect_ratio:") {
            Some(n) => options.aspect_ratio = number(n)?,
            None => options.batch_chunk_size = number(how)?,
        },
    }
    Ok(Loss::LinearCrossEntropy(options))
}

/// Where lengths come from.
fn distribution(text: &str) -> Result<Distribution, String> {
    let read = |text: &str| {
        let expected = "write fixed, uniform=MIN..MAX, log-normal=MEDIAN,SIGMA, or lengths such as 307,1237,1300";
        Distribution::parse(text).ok_or_else(|| expected.to_owned())
    };
    if text.contains('=') || text == "fixed" || text.starts_with(|c: char| c.is_ascii_digit()) {
        return read(text);
    }
    read(&input::document(Path::new(text)).map_err(|error| format!("{error:#}"))?)
}

fn precision() -> impl TypedValueParser<Value = Choice<Precision>> {
    let names = Precision::ALL.map(Precision::name).into_iter().chain(["unknown"]);
    PossibleValuesParser::new(names)
        .map(|name| Precision::ALL.into_iter().find(|p| p.name() == name).map_or(Choice::Unknown, Choice::Known))
}

pub(crate) fn optimizer() -> impl TypedValueParser<Value = OptimizerName> {
    PossibleValuesParser::new(OptimizerName::ALL.map(OptimizerName::name))
        .try_map(|name| serde_json::from_value(Value::String(name)))
}

impl PlanArgs {
    /// The plan, and the files that follow it: where `--plan` names it, all of them are files; else the first names it, as a
    /// preset or as a plan's file.
    pub(crate) fn plan_and_files(&self, files: &[PathBuf]) -> anyhow::Result<(Plan, Vec<PathBuf>)> {
        let first = self.model.as_ref().filter(|_| self.plan.is_some()).map(PathBuf::from);
        let model = self.model.as_ref().filter(|_| first.is_none());
        let of_file = model.filter(|model| Path::new(model).extension().is_some_and(|ext| ext == "json"));
        let path = self.plan.clone().or_else(|| of_file.map(PathBuf::from));
        let preset = model.filter(|_| of_file.is_none()).map(String::as_str);
        let plan = self.plan_of(path.as_deref(), preset)?;
        Ok((plan, first.into_iter().chain(files.iter().cloned()).collect()))
    }

    /// The plan that the arguments describe.
    pub(crate) fn plan(&self) -> anyhow::Result<Plan> {
        self.plan_of(self.plan.as_deref(), self.model.as_deref())
    }

    /// The plan of a file, or a new one, with the changes that the other arguments describe.
    fn plan_of(&self, path: Option<&Path>, model: Option<&str>) -> anyhow::Result<Plan> {
        let mut plan = match path {
            Some(path) => read_plan(path)?,
            None => Plan {
                version: PLAN_VERSION,
                model: ModelSource::Preset(String::new()),
                recipe: Recipe::default(),
                parallel: Default::default(),
                machine: vram_budget::machine::Machine::default(),
                framework: Framework::default(),
                policy: Policy::default(),
                calibration: None,
            },
        };
        if let Some(path) = &self.config {
            plan.model = ModelSource::Config(read_config(path)?);
        } else if let Some(name) = model {
            plan.model = ModelSource::Preset(name.to_owned());
        }
        self.change_machine(&mut plan);
        self.change_recipe(&mut plan.recipe);
        self.parallel.change(&mut plan.parallel)?;
        set(&mut plan.framework.pytorch, self.pytorch);
        set(&mut plan.framework.transformers, self.transformers);
        set(&mut plan.framework.peft, self.peft);
        set(&mut plan.framework.bitsandbytes, self.bitsandbytes);
        replace(&mut plan.framework.cublas_workspace_kept, self.cublas_workspace_kept);
        if self.trainer {
            let defaults = TrainerDefaults::of(&plan.framework);
            if plan.recipe.optimizer.name == OptimizerName::AdamW {
                plan.recipe.optimizer.implementation.get_or_insert(defaults.optimizer);
            }
            plan.recipe.clip_grad.get_or_insert(defaults.clip_grad);
        }
        replace(&mut plan.framework.alloc_conf, self.alloc_conf.clone());
        set(&mut plan.policy.rigid_share, self.rigid_share);
        set(&mut plan.policy.activation_share, self.activation_share);
        set(&mut plan.policy.margin_low, self.margin_low);
        set(&mut plan.policy.margin_high, self.margin_high);
        Ok(plan)
    }

    fn change_machine(&self, plan: &mut Plan) {
        let machine = &mut plan.machine;
        if let Some(name) = &self.gpu {
            machine.gpu = Some(GpuChoice::Catalogue(name.clone()));
        } else if let Some(memory_bytes) = self.gpu_memory {
            machine.gpu = Some(GpuChoice::Custom(CustomGpu {
                name: "your card".into(),
                memory_bytes,
                compute_capability: self.compute_capability.clone(),
            }));
        }
        replace(&mut machine.mig_slice_bytes, self.mig_slice);
        replace(&mut machine.in_use_bytes, self.in_use);
        replace(&mut machine.context_bytes, self.context);
        replace(&mut machine.communicator_bytes, self.communicators);
    }

    fn change_recipe(&self, recipe: &mut Recipe) {
        match self.precision {
            Some(Choice::Known(precision)) => recipe.precision = Some(precision),
            Some(Choice::Unknown) => recipe.precision = None,
            None => {}
        }
        set(&mut recipe.optimizer.name, self.optimizer);
        replace(&mut recipe.optimizer.implementation, self.optimizer_impl);
        set(&mut recipe.optimizer.momentum, self.momentum);
        recipe.optimizer.nesterov |= self.nesterov;
        recipe.optimizer.amsgrad |= self.amsgrad;
        recipe.optimizer.centered |= self.centered;
        recipe.optimizer.embeddings_32bit |= self.embeddings_32bit;
        recipe.optimizer.in_backward |= self.optimizer_in_backward;
        replace(&mut recipe.optimizer.rank, self.optimizer_rank);
        recipe.float8 |= self.float8;
        replace(&mut recipe.float8_te, self.float8_te);
        recipe.compile |= self.compile;
        replace(&mut recipe.ema, self.ema);
        set(&mut recipe.optimizer.scale_type, self.scale_type);
        replace(&mut recipe.attention, self.attention);
        replace(&mut recipe.sdpa_backend, self.sdpa_backend);
        set(&mut recipe.checkpointing, self.checkpointing);
        set(&mut recipe.loss, self.loss);
        set(&mut recipe.freeze, self.freeze.clone());
        set(&mut recipe.liger, self.liger.clone());
        if let Some(lengths) = &self.packed {
            recipe.micro_batch = 1;
            recipe.seq_len = lengths.iter().fold(0, |all: u64, n| all.saturating_add(*n));
            recipe.packed.clone_from(lengths);
        }
        recipe.padded |= self.padded;
        recipe.eval_after |= self.eval_after;
        set(&mut recipe.micro_batch, self.micro_batch);
        set(&mut recipe.seq_len, self.seq_len);
        set(&mut recipe.grad_accum, self.grad_accum);
        self.change_lengths(recipe);
        if let Some(r) = self.lora_rank {
            // peft's own defaults for Llama-class models.
            let default = || vec!["q_proj".into(), "v_proj".into()];
            let target_parameters = self.lora_parameters.clone().unwrap_or_default();
            recipe.lora = Some(Lora {
                target_parameters,
                dropout: self.lora_dropout.unwrap_or(0.0),
                bias: self.lora_bias.unwrap_or_default(),
                modules_to_save: self.lora_save.clone().unwrap_or_default(),
                adapter_dtype: self.lora_dtype,
                use_dora: self.dora,
                ..Lora::new(r, self.lora_targets.clone().unwrap_or_else(default))
            });
        }
        if let Some(kind) = self.quantization {
            let (double_quant, compute_dtype, prepare) = (self.double_quant, self.compute_dtype, !self.no_prepare);
            recipe.quantization = Some(Quantization { kind, double_quant, compute_dtype, prepare });
        }
        set(&mut recipe.load, self.load);
        replace(&mut recipe.clip_grad, self.clip_grad);
        recipe.keep_outputs |= self.keep_outputs;
        recipe.keep_variables |= self.keep_variables;
        replace(&mut recipe.zero_grad, self.zero_grad);
        self.method.change(recipe);
    }
}

impl PlanArgs {
    fn change_lengths(&self, recipe: &mut Recipe) {
        let any = self.lengths.is_some()
            || self.batching.is_some()
            || self.pad_to_multiple_of.is_some()
            || self.longest_first
            || self.steps.is_some()
            || self.seed.is_some();
        if any {
            let lengths = recipe.lengths.get_or_insert_with(|| Lengths::new(Distribution::Fixed));
            set(&mut lengths.of, self.lengths.clone());
            set(&mut lengths.batching, self.batching);
            set(&mut lengths.pad_to_multiple_of, self.pad_to_multiple_of);
            lengths.longest_first |= self.longest_first;
            set(&mut lengths.steps, self.steps);
            set(&mut lengths.seed, self.seed);
        }
    }
}

pub(crate) fn set<T>(field: &mut T, flag: Option<T>) {
    if let Some(value) = flag {
        *field = value;
    }
}

fn replace<T>(field: &mut Option<T>, flag: Option<T>) {
    if flag.is_some() {
        *field = flag;
    }
}

pub(crate) fn read_plan(path: &Path) -> anyhow::Result<Plan> {
    serde_json::from_str(&input::document(path)?)
        .map_err(|error| Rejected::because(format!("{}: not a plan", input::name(path)), error.to_string()).into())
}

fn read_config(path: &Path) -> anyhow::Result<serde_json::Map<String, Value>> {
    serde_json::from_str(&input::document(path)?).map_err(|error| {
        Rejected::because(format!("{}: not a config.json", input::name(path)), error.to_string()).into()
    })
}

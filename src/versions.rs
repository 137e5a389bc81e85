//! What changed between versions of PyTorch, transformers and bitsandbytes, beside the caching allocator's own changes
//! ([`crate::allocator::rules`]): one row per rule that no longer holds, with the range in which it held and its source.
//!
//! [`Rules::NEWEST`] is what the walk does for [`Framework::default`]. A row says what an older version does instead.
//! "read" is a released version's source, "run" a step of it that was recorded. What is older than [`Library::oldest`] is
//! refused; what is newer than the newest known is taken to be as the newest, and said so.

use crate::estimate::Note;
use crate::issue::{Issue, IssueKind};
use crate::model::Model;
use crate::plan::{Framework, Version};
use crate::recipe::{Attention, Checkpointing, OptimizerImpl, Recipe, ZeroGrad};

/// A library whose version is part of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// PyTorch.
    Pytorch,
    /// Hugging Face transformers.
    Transformers,
    /// Hugging Face peft: adapters.
    Peft,
    /// bitsandbytes: 8-bit optimizers.
    Bitsandbytes,
}

impl Library {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pytorch => "PyTorch",
            Self::Transformers => "transformers",
            Self::Peft => "peft",
            Self::Bitsandbytes => "bitsandbytes",
        }
    }

    /// Every library.
    pub const ALL: [Self; 4] = [Self::Pytorch, Self::Transformers, Self::Peft, Self::Bitsandbytes];

    /// The path of its version in the plan.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Pytorch => "framework.pytorch",
            Self::Transformers => "framework.transformers",
            Self::Peft => "framework.peft",
            Self::Bitsandbytes => "framework.bitsandbytes",
        }
    }

    /// The oldest version of which anything is known here.
    #[must_use]
    pub const fn oldest(self) -> Version {
        match self {
            // The first with autocast to BF16 on CUDA.
            Self::Pytorch => Version(1, 10),
            // The oldest whose steps were recorded.
            Self::Transformers => Version(4, 45),
            // The first in which adapters over half-precision weights are FP32 (`autocast_adapter_dtype`).
            Self::Peft => Version(0, 12),
            Self::Bitsandbytes => Version(0, 37),
        }
    }

    /// Its version in `framework`.
    #[must_use]
    pub const fn version(self, framework: &Framework) -> Version {
        match self {
            Self::Pytorch => framework.pytorch,
            Self::Transformers => framework.transformers,
            Self::Peft => framework.peft,
            Self::Bitsandbytes => framework.bitsandbytes,
        }
    }
}

/// Where the loss of a causal language model gets its FP32 logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upcast {
    /// In the loss function: the model's own logits live beside them.
    InLoss,
    /// In the model's forward: they take the place of the model's own.
    InModel,
    /// Nowhere: the loss is computed in the logits' dtype.
    Never,
}

/// Where cuBLASLt's workspace comes from when cuBLAS workspaces are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LtWorkspace {
    /// It is cuBLAS's own.
    Shared,
    /// One per thread, kept.
    Kept,
    /// One per call.
    PerCall,
}

/// Where PyTorch runs experts' products as one kernel (`_can_use_grouped_mm`, integrations/moe.py).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupedKernel {
    /// From compute capability 8.0 on.
    FromAmpere,
    /// On compute capability 9.0 alone.
    Hopper,
    /// Nowhere.
    Nowhere,
}

impl GroupedKernel {
    /// Whether it runs on compute capability `sm`.
    #[must_use]
    pub const fn runs_on(self, sm: u32) -> bool {
        match self {
            Self::FromAmpere => sm >= 80,
            Self::Hopper => sm / 10 == 9,
            Self::Nowhere => false,
        }
    }
}

/// What the walk does by version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one independent switch per rule")]
pub struct Rules {
    /// `softmax` and `log_softmax` keep their input for backward.
    pub softmax_keeps_input: bool,
    /// Where cuBLASLt's workspace comes from.
    pub lt_workspace: LtWorkspace,
    /// `sdpa` prefers cuDNN on compute capabilities 9.0 and 10.0.
    pub prefers_cudnn: bool,
    /// Memory-efficient attention takes fewer heads of keys and values than of queries; `sdpa` composes it otherwise.
    pub efficient_takes_groups: bool,
    /// Memory-efficient attention keeps its generator's state on the device where nothing is dropped.
    pub efficient_keeps_state: bool,
    /// Flash attention keeps its generator's state on the device.
    pub flash_keeps_state: bool,
    /// Where experts' products run as one kernel.
    pub grouped_kernel: GroupedKernel,
    /// The foreach Adam has its denominators in a second copy.
    pub adam_copies_denominators: bool,
    /// `torch.optim` runs the for-loop unless asked.
    pub forloop_by_default: bool,
    /// `zero_grad` keeps the gradients unless asked.
    pub zeroes_by_default: bool,
    /// There is no `scaled_dot_product_attention`.
    pub no_sdpa: bool,
    /// Attention is eager unless asked.
    pub eager_by_default: bool,
    /// Grouped keys and values are repeated before `sdpa`.
    pub repeats_groups: bool,
    /// Query, key and value are laid out contiguously before `sdpa`.
    pub copies_for_sdpa: bool,
    /// Where logits become FP32.
    pub upcast: Upcast,
    /// The loss shifts the logits, as a copy, and not the labels.
    pub shifts_logits: bool,
    /// Each layer keeps a causal mask as a buffer.
    pub mask_buffers: bool,
    /// Elements that share a scale in 8-bit optimizer states.
    pub optimizer_block: u64,
    /// Whether experts get no tokens ([`Framework::idle_experts`]).
    pub idle_experts: bool,
    /// What of this version is not modelled.
    pub refused: Option<&'static str>,
}

impl Rules {
    /// The rules of the newest versions known.
    pub const NEWEST: Self = Self {
        softmax_keeps_input: false,
        lt_workspace: LtWorkspace::Shared,
        prefers_cudnn: true,
        efficient_takes_groups: true,
        efficient_keeps_state: true,
        flash_keeps_state: true,
        grouped_kernel: GroupedKernel::FromAmpere,
        adam_copies_denominators: false,
        forloop_by_default: false,
        zeroes_by_default: false,
        no_sdpa: false,
        eager_by_default: false,
        repeats_groups: false,
        copies_for_sdpa: false,
        upcast: Upcast::InLoss,
        shifts_logits: false,
        mask_buffers: false,
        optimizer_block: 256,
        idle_experts: false,
        refused: None,
    };

    /// The rules of `framework` for models of `family`.
    #[must_use]
    pub fn of(framework: &Framework, family: &str) -> Self {
        let mut rules = Self { idle_experts: framework.idle_experts, ..Self::NEWEST };
        for row in holding(framework, family) {
            (row.apply)(&mut rules);
        }
        rules
    }

    /// The bytes of the causal mask that each layer of `model` keeps, where it keeps one.
    #[must_use]
    pub fn mask_buffer(&self, model: &dyn Model) -> Option<u64> {
        model.max_positions().filter(|_| self.mask_buffers)?.checked_pow(2)
    }

    /// `recipe` with what it leaves open filled in as these versions do by default.
    #[must_use]
    pub fn resolve(&self, recipe: &Recipe) -> Recipe {
        let mut recipe = recipe.clone();
        if self.eager_by_default || self.no_sdpa {
            recipe.attention.get_or_insert(Attention::Eager);
        }
        if self.zeroes_by_default {
            recipe.zero_grad.get_or_insert(ZeroGrad::Zero);
        }
        let name = recipe.optimizer.name;
        let loops = name.is_of_torch() && name.implementations().contains(&OptimizerImpl::Forloop);
        if self.forloop_by_default && loops {
            recipe.optimizer.implementation.get_or_insert(OptimizerImpl::Forloop);
        }
        recipe
    }
}

/// One rule that held in a range of versions.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Whose version.
    pub of: Library,
    /// The first version known to have it.
    pub from: Version,
    /// The first version without it.
    pub until: Version,
    /// Of which families (`model_type`); `None`: of all.
    pub families: Option<&'static [&'static str]>,
    /// The rule.
    pub what: &'static str,
    /// How it is known.
    pub source: &'static str,
    apply: fn(&mut Rules),
}

/// A rule that held from the start.
const fn before(
    of: Library,
    until: Version,
    families: Option<&'static [&'static str]>,
    what: &'static str,
    source: &'static str,
    apply: fn(&mut Rules),
) -> Row {
    between(of, Version(0, 0), until, families, what, source, apply)
}

/// A rule that held in a range. The words are for readers of the command's output: the page's program goes without.
const fn between(
    of: Library,
    from: Version,
    until: Version,
    families: Option<&'static [&'static str]>,
    what: &'static str,
    source: &'static str,
    apply: fn(&mut Rules),
) -> Row {
    let (what, source) = if cfg!(target_family = "wasm") { ("", "") } else { (what, source) };
    Row { of, from, until, families, what, source, apply }
}

use Library::{Bitsandbytes, Pytorch, Transformers};

/// Every rule that no longer holds.
pub const ROWS: &[Row] = &[
    before(
        Pytorch,
        Version(1, 11),
        None,
        "softmax and log-softmax keep their input for backward, beside their result",
        "pytorch/pytorch#64000, fixed by #65242",
        |r| r.softmax_keeps_input = true,
    ),
    before(
        Pytorch,
        Version(2, 0),
        None,
        "there is no scaled_dot_product_attention: attention is eager",
        "PyTorch 2.0 release notes",
        |r| r.no_sdpa = true,
    ),
    before(
        Pytorch,
        Version(2, 0),
        None,
        "optimizers run the for-loop unless asked",
        "PyTorch 2.0 release notes: foreach is the default on CUDA",
        |r| r.forloop_by_default = true,
    ),
    before(
        Pytorch,
        Version(2, 0),
        None,
        "zero_grad keeps the gradients and zeroes them unless asked",
        "PyTorch 2.0 release notes: set_to_none=True is the default",
        |r| r.zeroes_by_default = true,
    ),
    before(
        Pytorch,
        Version(2, 1),
        None,
        "the foreach Adam has its denominators in a second copy",
        "read: torch/optim/adam.py of 2.0, denom = _foreach_add(exp_avg_sq_sqrt, eps)",
        |r| r.adam_copies_denominators = true,
    ),
    before(
        Pytorch,
        Version(2, 5),
        None,
        "sdpa takes no grouped heads: keys and values are repeated before it",
        "read: use_gqa_in_sdpa, transformers 4.54, asks for PyTorch 2.5",
        |r| r.repeats_groups = true,
    ),
    before(
        Pytorch,
        Version(2, 9),
        None,
        "cuBLASLt's workspace of 1 MiB is allocated for the call",
        "pytorch/pytorch#73439 (size); kept since #156495",
        |r| r.lt_workspace = LtWorkspace::PerCall,
    ),
    between(
        Pytorch,
        Version(2, 9),
        Version(2, 12),
        None,
        "cuBLASLt keeps a workspace of its own per handle and stream",
        "pytorch/pytorch#156495; shared with cuBLAS by #168175 and #175879; run: 2.11 (addmm, _scaled_mm)",
        |r| r.lt_workspace = LtWorkspace::Kept,
    ),
    before(
        Pytorch,
        Version(2, 11),
        None,
        "sdpa prefers flash attention to cuDNN on compute capabilities 9.0 and 10.0 (2.5.0 alone does not)",
        "pytorch/pytorch#138522 and check_prefer_cudnn_attention, met by the cuDNN that comes with 2.11",
        |r| r.prefers_cudnn = false,
    ),
    before(
        Pytorch,
        Version(2, 7),
        None,
        "flash attention has its generator's state on the host",
        "run: 2.6, 2.9 and 2.11",
        |r| r.flash_keeps_state = false,
    ),
    between(
        Pytorch,
        Version(2, 8),
        Version(2, 9),
        None,
        "experts' products run as one kernel on compute capability 9.0 alone",
        "read: _can_use_grouped_mm, transformers 5.24",
        |r| r.grouped_kernel = GroupedKernel::Hopper,
    ),
    before(
        Pytorch,
        Version(2, 8),
        None,
        "experts' products run one after another",
        "read: _can_use_grouped_mm, transformers 5.24; run: 2.6",
        |r| r.grouped_kernel = GroupedKernel::Nowhere,
    ),
    before(
        Pytorch,
        Version(2, 14),
        None,
        "sdpa composes attention of grouped heads where flash and cuDNN cannot run it: FP32, or before Ampere",
        "pytorch/pytorch#191085; run: 2.11, 2.12 and 2.14",
        |r| r.efficient_takes_groups = false,
    ),
    before(
        Pytorch,
        Version(2, 14),
        None,
        "memory-efficient attention has its generator's state on the host where nothing is dropped",
        "run: 2.11, 2.12 and 2.14",
        |r| r.efficient_keeps_state = false,
    ),
    before(
        Transformers,
        Version(4, 46),
        Some(&["llama", "qwen2", "phi", "gemma", "gemma2"]),
        "the model's forward makes the logits FP32",
        "read: each modeling file of 4.45 and 4.46; run: Llama 4.45",
        |r| r.upcast = Upcast::InModel,
    ),
    before(
        Transformers,
        Version(4, 47),
        Some(&["starcoder2"]),
        "the model's forward makes the logits FP32",
        "read: modeling_starcoder2.py of 4.46 and 4.47",
        |r| r.upcast = Upcast::InModel,
    ),
    before(
        Transformers,
        Version(4, 48),
        Some(&["mistral"]),
        "the model's forward makes the logits FP32",
        "read: modeling_mistral.py of 4.47 and 4.48",
        |r| r.upcast = Upcast::InModel,
    ),
    before(
        Transformers,
        Version(4, 48),
        Some(&["falcon", "bloom", "gpt2"]),
        "the loss is computed in the logits' own dtype",
        "read: each modeling file of 4.47 and 4.48",
        |r| r.upcast = Upcast::Never,
    ),
    before(
        Transformers,
        Version(4, 49),
        None,
        "the loss shifts the logits, as a copy, instead of the labels",
        "read: loss/loss_utils.py of 4.48 and 4.49; run: Llama 4.48 and 4.49",
        |r| r.shifts_logits = true,
    ),
    before(
        Transformers,
        Version(4, 54),
        None,
        "grouped keys and values are repeated before sdpa",
        "read: integrations/sdpa_attention.py of 4.53 and 4.54; run: Llama 4.53",
        |r| r.repeats_groups = true,
    ),
    between(
        Transformers,
        Version(4, 48),
        Version(4, 56),
        Some(&[
            "llama",
            "mistral",
            "mixtral",
            "qwen2",
            "qwen3",
            "qwen3_moe",
            "phi",
            "phi3",
            "olmo2",
            "starcoder2",
            "gemma",
            "gemma2",
            "gemma3_text",
            "gpt2",
            "gpt_neox",
            "vit",
        ]),
        "query, key and value are copied to lie contiguously before sdpa",
        "read: integrations/sdpa_attention.py of 4.48, 4.55 and 4.56; run: Llama 4.49 and 4.57",
        |r| r.copies_for_sdpa = true,
    ),
    before(
        Transformers,
        Version(4, 46),
        Some(&["distilbert"]),
        "attention is eager unless asked: the class has no sdpa",
        "read: _supports_sdpa of 4.45 and 4.46",
        |r| r.eager_by_default = true,
    ),
    before(
        Transformers,
        Version(5, 0),
        Some(&["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"]),
        "experts run one after another",
        "read: modeling_mixtral.py of 4.57 and 5.0",
        |r| r.refused = Some("experts that run one after another, as before transformers 5.0"),
    ),
    before(
        Transformers,
        Version(5, 16),
        Some(&["t5"]),
        "attention is written otherwise, eager alone",
        "read: modeling_t5.py of 5.12 and 5.16; run: 4.57, up to 19 % more",
        |r| r.refused = Some("T5 as it was before transformers 5.16"),
    ),
    before(
        Transformers,
        Version(4, 49),
        Some(&["gpt_neox"]),
        "each layer keeps a causal mask and has attention of its own; the loss is computed in the logits' dtype",
        "read: modeling_gpt_neox.py of 4.48 and 4.49",
        |r| r.refused = Some("GPT-NeoX as it was before transformers 4.49"),
    ),
    before(
        Transformers,
        Version(4, 48),
        Some(&["phi3"]),
        "attention and rotary tables are written otherwise",
        "run: 4.45, 0.5 % off; 4.48, exact",
        |r| r.refused = Some("Phi-3 as it was before transformers 4.48"),
    ),
    before(
        Transformers,
        Version(4, 52),
        Some(&["opt"]),
        "eager attention is written with products over batch and heads together",
        "read: modeling_opt.py of 4.51 and 4.52",
        |r| r.refused = Some("OPT as it was before transformers 4.52"),
    ),
    before(
        Transformers,
        Version(5, 4),
        Some(&["gpt2"]),
        "each layer keeps a causal mask as a buffer, a byte for each pair of positions",
        "read: modeling_gpt2.py of 5.0 and 5.4; run: 4.48 and 4.57",
        |r| r.mask_buffers = true,
    ),
    before(Transformers, Version(4, 47), Some(&["olmo2"]), "there is no such model", "read: 4.46 and 4.47", |r| {
        r.refused = Some(NO_SUCH_MODEL)
    }),
    before(
        Transformers,
        Version(4, 50),
        Some(&["gemma3_text"]),
        "there is no such model",
        "read: 4.49 and 4.50",
        |r| r.refused = Some(NO_SUCH_MODEL),
    ),
    before(
        Transformers,
        Version(4, 51),
        Some(&["qwen3", "qwen3_moe", "deepseek_v3"]),
        "there is no such model",
        "read: 4.50 and 4.51",
        |r| r.refused = Some(NO_SUCH_MODEL),
    ),
    before(
        Bitsandbytes,
        Version(0, 44),
        None,
        "2,048 elements of an 8-bit optimizer state share a scale, instead of 256",
        "bitsandbytes-foundation/bitsandbytes#1365",
        |r| r.optimizer_block = 2048,
    ),
];

/// The rows that hold under `framework` for models of `family`.
pub fn holding<'a>(framework: &'a Framework, family: &'a str) -> impl Iterator<Item = &'static Row> + 'a {
    ROWS.iter().filter(move |row| {
        let version = row.of.version(framework);
        row.from <= version && version < row.until && row.families.is_none_or(|all| all.contains(&family))
    })
}

const NO_SUCH_MODEL: &str = "a model that this version of transformers does not have";

/// What is wrong with the versions of a plan: those of which nothing is known, and what they do that is not modelled.
/// A library that the recipe does not use is not looked at.
#[must_use]
pub fn issues(framework: &Framework, recipe: &Recipe, family: Option<&str>) -> Vec<Issue> {
    let mut issues = Vec::new();
    for library in Library::ALL {
        let used = match library {
            Library::Pytorch | Library::Transformers => true,
            Library::Peft => recipe.lora.is_some(),
            Library::Bitsandbytes => recipe.optimizer.name.is_of_bitsandbytes(),
        };
        if used && library.version(framework) < library.oldest() {
            let what = format!("versions before {}", library.oldest());
            issues.push(Issue::new(library.path(), IssueKind::NotModelled { what }));
        }
    }
    let rules = Rules::of(framework, family.unwrap_or_default());
    if let Some(what) = rules.refused {
        issues.push(Issue::new(Library::Transformers.path(), IssueKind::NotModelled { what: what.into() }));
    }
    if rules.no_sdpa && recipe.attention == Some(Attention::Sdpa) {
        let what = "scaled_dot_product_attention before PyTorch 2.0".into();
        issues.push(Issue::new("recipe.attention", IssueKind::NotModelled { what }));
    }
    // Before, layers take their masks and tables as positional arguments, which these two keep otherwise.
    if matches!(recipe.checkpointing, Checkpointing::Reentrant | Checkpointing::FullOffload)
        && framework.transformers < Version(5, 0)
    {
        let what = "this checkpointing before transformers 5.0".into();
        issues.push(Issue::new("recipe.checkpointing", IssueKind::NotModelled { what }));
    }
    issues
}

/// What a reader should know of the versions: those between and beyond what was read and run.
pub fn notes(framework: &Framework) -> impl Iterator<Item = Note> {
    let newest = Framework::default();
    let newer = Library::ALL.iter().any(|l| l.version(framework) > l.version(&newest));
    let older = Library::ALL.iter().any(|l| l.version(framework) < l.version(&newest));
    [(newer, Note::NewerVersions), (older, Note::OlderVersions)].into_iter().filter(|(is, _)| *is).map(|(_, note)| note)
}

/// What transformers' `Trainer` takes where its arguments say nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainerDefaults {
    /// The implementation of its AdamW.
    pub optimizer: OptimizerImpl,
    /// The norm to which it clips gradients.
    pub clip_grad: f64,
    /// Whether `from_pretrained` keeps the checkpoint's dtype, instead of loading in FP32.
    pub keeps_checkpoint_dtype: bool,
}

impl TrainerDefaults {
    /// The defaults under these versions. `training_args.py`, read at 4.53 and 4.54: `adamw_torch_fused` from transformers
    /// 4.54 with PyTorch 2.8 on, `adamw_torch` before; `max_grad_norm` is 1. `modeling_utils.py`, read at 4.57 and 5.0:
    /// `dtype="auto"` from 5.0 on.
    #[must_use]
    pub fn of(framework: &Framework) -> Self {
        let fused = framework.transformers >= Version(4, 54) && framework.pytorch >= Version(2, 8);
        let unfused = if framework.pytorch < Version(2, 0) { OptimizerImpl::Forloop } else { OptimizerImpl::Foreach };
        Self {
            optimizer: if fused { OptimizerImpl::Fused } else { unfused },
            clip_grad: 1.0,
            keeps_checkpoint_dtype: framework.transformers >= Version(5, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(of: Library, version: Version) -> Framework {
        let mut framework = Framework::default();
        match of {
            Library::Pytorch => framework.pytorch = version,
            Library::Transformers => framework.transformers = version,
            Library::Peft => framework.peft = version,
            Library::Bitsandbytes => framework.bitsandbytes = version,
        }
        framework
    }

    #[test]
    fn every_row_holds_in_its_range_and_nowhere_else() {
        for row in ROWS {
            let family = row.families.map_or("llama", |all| all[0]);
            let mut changed = Rules::NEWEST;
            (row.apply)(&mut changed);
            assert_ne!(changed, Rules::NEWEST, "{} changes nothing", row.what);
            assert!(row.until <= row.of.version(&Framework::default()), "{} holds today", row.what);
            assert!(row.until > row.of.oldest(), "{} is about versions that are refused", row.what);
            let Version(major, minor) = row.until;
            let last = minor.checked_sub(1).map_or_else(|| Version(major - 1, u16::MAX), |minor| Version(major, minor));
            assert_ne!(Rules::of(&with(row.of, last), family), Rules::NEWEST, "{} does not hold at {last}", row.what);
        }
    }

    #[test]
    fn the_default_versions_follow_the_newest_rules() {
        assert_eq!(Rules::of(&Framework::default(), "llama"), Rules::NEWEST);
        assert_eq!(notes(&Framework::default()).count(), 0);
        let newer: Vec<Note> = notes(&with(Library::Pytorch, Version(2, 16))).collect();
        assert_eq!(newer, [Note::NewerVersions]);
    }

    #[test]
    fn what_is_not_known_is_refused_where_it_is_used() {
        let recipe = Recipe::default();
        assert_eq!(issues(&with(Library::Transformers, Version(4, 44)), &recipe, Some("llama")).len(), 1);
        assert_eq!(issues(&with(Library::Pytorch, Version(1, 9)), &recipe, Some("llama")).len(), 1);
        assert_eq!(issues(&with(Library::Peft, Version(0, 3)), &recipe, Some("llama")), []);
        assert_eq!(issues(&with(Library::Transformers, Version(4, 57)), &recipe, Some("mixtral")).len(), 1);
        assert_eq!(issues(&with(Library::Transformers, Version(4, 46)), &recipe, Some("qwen3")).len(), 1);
    }

    #[test]
    fn defaults_follow_the_versions() {
        let recipe = Rules::of(&with(Library::Pytorch, Version(1, 13)), "bert").resolve(&Recipe::default());
        assert_eq!(recipe.attention, Some(Attention::Eager));
        assert_eq!(recipe.zero_grad, Some(ZeroGrad::Zero));
        assert_eq!(recipe.optimizer.implementation, Some(OptimizerImpl::Forloop));
        assert_eq!(Rules::NEWEST.resolve(&Recipe::default()), Recipe::default());
        assert_eq!(TrainerDefaults::of(&Framework::default()).optimizer, OptimizerImpl::Fused);
        let before = TrainerDefaults::of(&with(Library::Transformers, Version(4, 53)));
        assert_eq!((before.optimizer, before.keeps_checkpoint_dtype), (OptimizerImpl::Foreach, false));
    }
}

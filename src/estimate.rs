//! One call from a plan to everything that is shown: walk, bill, tiers, readings.

mod host;
mod offload;
mod phases;
mod ranks;
mod slices;
mod transfers;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::allocator::{AllocConf, Config};
use crate::bill::{self, Bill, Instant, Provenance, ProvenanceKind, Sources, Tier, Tiers, TimelinePoint, modelled};
use crate::calibration;
use crate::issue::{Issue, IssueKind};
use crate::machine::{Capability, Hardware};
use crate::model::{Model, ModelSource, ReadModel, presets, read_config};
use crate::plan::{Framework, Plan, Version};
use crate::recipe::optimizer::adam_mini;
use crate::recipe::parallel::{DataParallel, InitDevice};
use crate::recipe::{
    Attention, Checkpointing, FloatName, LigerKernel, Loss, Method, OptimizerName, Precision, SdpaBackend,
};
use crate::rule_of_thumb::{Thumb, rule_of_thumb};
use crate::step::capacity::{SmallestCard, smallest_card};
use crate::step::log::Phase;
use crate::step::ops::FLOAT8_MULTIPLE;
use crate::step::readings::Readings;
use crate::step::repeat::over_layers;
use crate::step::replay::replay;
use crate::step::tape::Device;
use crate::step::tensor::Table;
use crate::step::train::{Steps, TooLarge, Walk, tables, walk, walk_short, walk_steady};
use crate::units::Bytes;
use crate::versions::{self, Rules};

pub use phases::{Peak, PhaseOnCard, binding_phase, phases};
use phases::{usable_beside, vllm};
pub use ranks::{RankEstimate, RankWalk, ranks, ranks_differ};
pub use slices::Slices;
pub use transfers::{Transfer, Transfers, Way, transfers};

/// Everything that follows from a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Five parts × instants of a steady step, in requested bytes.
    pub bill: Bill,
    /// Peaks per tier.
    pub tiers: Tiers,
    /// The phase that needs the most memory. `None`: nothing was replayed; then the bill's instant is all that is known.
    pub binding: Option<PhaseOnCard>,
    /// The steady step, thinned.
    pub timeline: Vec<TimelinePoint>,
    /// What a loop would read; none in the rule-of-thumb mode.
    pub readings: Option<Readings>,
    /// The replay on the plan's card. `None`: the card is not known, or nothing was replayed.
    pub on_card: Option<OnCard>,
    /// What the estimate takes for granted that the plan does not say.
    pub notes: Vec<Note>,
    /// Unique parameters, tied ones once.
    pub parameters: u64,
}

/// What a replay on the plan's card says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum OnCard {
    /// Both steps complete.
    Completes {
        /// What the card can give to the caching allocator: its total less context and what others hold.
        usable_bytes: Bytes,
    },
    /// An allocation fails even after everything cached was given back.
    RunsOut {
        /// What the card can give to the caching allocator.
        usable_bytes: Bytes,
        /// In which step, counted from 1; 0 while the model is built.
        step: u32,
        /// At which instant of it.
        instant: Instant,
        /// In which phase, if in another one than the training step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        phase: Option<Phase>,
        /// What the allocator tried to take from the device.
        tried: Bytes,
    },
}

/// Something that a reader of the figures should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Note {
    /// The config describes a model of several parts; only its text part is counted.
    TextPartOnly,
    /// No compute capability is known: kernels are chosen as on 8.0.
    CapabilityAssumed,
    /// The rule of thumb counts weights, gradients and states alone.
    RuleOfThumb,
    /// Some version is newer than the newest whose rules are known: those are used.
    NewerVersions,
    /// Some version is older than the one whose steps were measured: rules known to have changed are followed.
    OlderVersions,
    /// Steps with more micro-batches than are walked: the further ones are as the last one walked.
    MicroBatchesAlike,
    /// Some of the optimizer's states lie in managed memory, which the figures do not count.
    StatesPaged,
    /// The step is compiled, and walked as if it were not.
    Compiled,
    /// The framework's rules were read in its code; no step of it was measured here.
    ReadNotMeasured,
    /// Transformer Engine's rules were read in its code; no step of it was measured here.
    TransformerEngineRead,
    /// What lies on a disk follows rules that were read in DeepSpeed's code.
    DiskNotMeasured,
    /// The output head, tied to the table of words, is a matrix of its own under FSDP1.
    TieLost,
    /// The allocator has not been replayed: allocated memory is at least what is said, reserved memory is not known.
    NotReplayed,
}

/// A plan whose model has been read and whose recipe has been checked.
#[derive(Debug)]
pub struct Job {
    /// The model.
    pub model: Box<dyn Model>,
    /// Whether only the text part of a larger model is counted.
    pub text_part_only: bool,
    /// Whether the layout has given a tied head a matrix of its own.
    pub tie_lost: bool,
    /// The device's properties that kernels look at.
    pub device: Device,
    /// Whether they are assumed.
    pub capability_assumed: bool,
    /// The machine.
    pub hardware: Hardware,
    /// The parsed allocator settings.
    pub alloc_conf: AllocConf,
}

impl Job {
    /// Reads and checks `plan`.
    ///
    /// # Errors
    /// Every issue of the plan, one per field.
    pub fn of(plan: &Plan) -> Result<Self, Vec<Issue>> {
        let mut issues = plan.recipe.issues();
        issues.extend(plan.parallel.issues());
        let model = read_model(&plan.model).map_err(|found| issues.extend(found)).ok();
        let hardware = plan.hardware().map_err(|found| issues.extend(found)).ok();
        let alloc_conf = alloc_conf(&plan.framework).map_err(|found| issues.extend(found)).ok();
        let family = model.as_ref().map(|read| read.model.family());
        issues.extend(versions::issues(&plan.framework, &plan.recipe, family));
        if let Some(read) = &model {
            if !matches!(plan.parallel.data, DataParallel::Megatron(_)) {
                issues.extend(read.model.refusals(&plan.recipe));
            }
            let capability = hardware.as_ref().and_then(|hardware| hardware.capability);
            issues.extend(issues_of_asked(read.model.as_ref(), plan, capability));
        }
        match (model, hardware, alloc_conf) {
            (Some(read), Some(hardware), Some(alloc_conf)) if issues.is_empty() => {
                let (device, capability_assumed) = device(hardware.capability);
                let ReadModel { model, text_part_only } = read;
                let scores = matches!(plan.recipe.method, Some(Method::Reward(_)));
                let model = model.scored().filter(|_| scores).unwrap_or(model);
                let ties = model.parameters().first().is_some_and(|words| words.linear);
                let untied = model.untied().filter(|_| ties && loses_ties(&plan.parallel.data));
                let tie_lost = untied.is_some();
                let model = untied.unwrap_or(model);
                Ok(Self { model, text_part_only, tie_lost, device, capability_assumed, hardware, alloc_conf })
            }
            _ => Err(issues),
        }
    }

    /// The allocator's settings.
    #[must_use]
    pub fn config(&self, plan: &Plan) -> Config {
        let events_pending = plan.parallel.slow_device;
        Config { alloc_conf: self.alloc_conf.clone(), events_pending, ..Config::new(plan.framework.pytorch) }
    }

    /// The plan as its method's trainer changes it.
    fn as_trained<'a>(&self, plan: &'a Plan) -> Cow<'a, Plan> {
        match plan.recipe.method {
            None => Cow::Borrowed(plan),
            Some(_) => Cow::Owned(Plan { recipe: plan.recipe.prepared(), ..plan.clone() }),
        }
    }

    /// Walks two steps: the first creates the optimizer's states, the second is the steady one.
    ///
    /// # Errors
    /// [`IssueKind::TooLarge`] when a tensor exceeds what the arithmetic carries.
    pub fn walk(&self, plan: &Plan, precision: Precision) -> Result<Walk, Vec<Issue>> {
        walk(self.model.as_ref(), &self.as_trained(plan), precision, self.device, Steps::FirstAndSteady)
            .map_err(too_large)
    }

    /// As [`Job::walk`], of identical layers only a few: enough for the replay.
    ///
    /// # Errors
    /// [`IssueKind::TooLarge`] when a tensor exceeds what the arithmetic carries.
    pub fn walk_short(&self, plan: &Plan, precision: Precision) -> Result<Walk, Vec<Issue>> {
        walk_short(self.model.as_ref(), &self.as_trained(plan), precision, self.device, Steps::FirstAndSteady)
            .map_err(too_large)
    }

    /// Walks one steady step, of identical layers only a few: enough for the bill.
    ///
    /// # Errors
    /// [`IssueKind::TooLarge`] when a tensor exceeds what the arithmetic carries.
    pub fn walk_steady(&self, plan: &Plan, precision: Precision) -> Result<Walk, Vec<Issue>> {
        walk_steady(self.model.as_ref(), &self.as_trained(plan), precision, self.device).map_err(too_large)
    }
}

/// What is wrong with what a plan asks for beyond the plainest. Nothing is looked at that is not asked for: what the page does not
/// run at its start comes with the rest of its program (`scripts/split.mjs`).
fn issues_of_asked(model: &dyn Model, plan: &Plan, capability: Option<Capability>) -> Vec<Issue> {
    let recipe = &plan.recipe;
    let mut issues = Vec::new();
    let mut when = |asked: bool, of: &dyn Fn() -> Vec<Issue>| {
        if asked {
            issues.extend(of());
        }
    };
    let not_modelled = |field: &str, what: &str| {
        let what = format!("{what} {}", model.family());
        vec![Issue::new(field, IssueKind::NotModelled { what })]
    };
    let megatron = matches!(plan.parallel.data, DataParallel::Megatron(_));
    when(!recipe.liger.is_empty(), &|| liger_issues(model, plan));
    when(!recipe.packed.is_empty(), &|| packed_issues(model, plan));
    when(recipe.padded, &|| padded_issues(model, plan));
    when(recipe.attention == Some(Attention::FlashAttention2), &|| flash_package_issues(model, plan, capability));
    when(recipe.optimizer.name == OptimizerName::AdamMini, &|| adam_mini::issues(model, recipe, &plan.parallel));
    when(!recipe.freeze.is_empty(), &|| crate::step::freeze::issues(model, recipe));
    when(recipe.loss != Loss::Hf && !model.is_causal_lm(), &|| {
        not_modelled("recipe.loss", "another way to compute the loss of")
    });
    when(matches!(recipe.loss, Loss::LinearCrossEntropy(_)), &|| linear_loss_issues(plan));
    when(recipe.sdpa_backend == Some(SdpaBackend::Math) && !model.takes_math_attention(), &|| {
        not_modelled("recipe.sdpa_backend", "the math backend of scaled_dot_product_attention in")
    });
    when(crate::step::load::loads(recipe), &|| crate::step::load::issues(model, recipe));
    when(!plan.parallel.is_single() && !megatron, &|| crate::step::parallel::refusals(model, plan));
    when(megatron || model.family() == "megatron", &|| crate::step::megatron::refusals(model, plan));
    when(recipe.method.is_some(), &|| crate::step::actors::issues(model, plan));
    when(recipe.float8_te.is_some(), &|| crate::step::transformer_engine::issues(model, plan, capability));
    when(recipe.float8, &|| float8_issues(model, plan, capability));
    when(recipe.lora.is_some(), &|| crate::step::adapters::issues(model, recipe));
    issues
}

/// Whether tied weights come apart: FSDP1 puts each module of a model that was made on no device on the GPU by itself.
fn loses_ties(data: &DataParallel) -> bool {
    matches!(data, DataParallel::Fsdp1(options) if options.init == InitDevice::Meta)
}

/// What FP8 products need: matrices whose sides are multiples of 16, and compute capability 8.9.
/// What is wrong with the kernels of Liger's that the recipe asks for.
#[inline(never)]
fn liger_issues(model: &dyn Model, plan: &Plan) -> Vec<Issue> {
    let recipe = &plan.recipe;
    let asked = &recipe.liger;
    let known = model.liger();
    let absent = asked.iter().filter(|kernel| !known.contains(kernel));
    let mut wrong: Vec<String> =
        absent.map(|k| format!("Liger's {} in the family {}", k.name(), model.family())).collect();
    let mut refuse = |when: bool, what: &str| wrong.extend(when.then(|| what.into()));
    refuse(plan.framework.transformers < Version(5, 0), "Liger's kernels with transformers before 5");
    let fused = asked.contains(&LigerKernel::FusedLinearCrossEntropy);
    refuse(
        fused && asked.contains(&LigerKernel::CrossEntropy),
        "Liger's cross-entropy beside its fused one, which Liger refuses",
    );
    refuse(recipe.loss != Loss::Hf, "another way to compute the loss beside Liger's kernels");
    let on_head = recipe.lora.as_ref().is_some_and(|lora| lora.targets.iter().any(|name| name == "lm_head"));
    refuse(fused && on_head, "adapters on a head that Liger's fused cross-entropy leaves out");
    let prepared = recipe.quantization.as_ref().is_some_and(|quantization| quantization.prepare);
    let autocast = matches!(recipe.precision, Some(Precision::AmpBf16 | Precision::Bf16Autocast | Precision::AmpFp16));
    refuse(prepared && !autocast, "Liger's kernels over FP32 norms without autocast");
    wrong.into_iter().map(|what| Issue::new("recipe.liger", IssueKind::NotModelled { what })).collect()
}

/// What is not modelled of `linear_cross_entropy`, which takes the head's weight and not its module.
#[inline(never)]
fn linear_loss_issues(plan: &Plan) -> Vec<Issue> {
    let on_head = plan.recipe.lora.as_ref().is_some_and(|lora| lora.targets.iter().any(|name| name == "lm_head"));
    let refused = [
        (plan.framework.pytorch < Version(2, 15), "linear_cross_entropy before PyTorch 2.15"),
        (on_head, "adapters on a head that linear_cross_entropy leaves out"),
        (plan.parallel.data != DataParallel::None, "linear_cross_entropy on several GPUs"),
    ];
    let refused = refused.into_iter().filter(|(is, _)| *is);
    refused.map(|(_, what)| Issue::new("recipe.loss", IssueKind::NotModelled { what: what.into() })).collect()
}

#[inline(never)]
fn float8_issues(model: &dyn Model, plan: &Plan, capability: Option<Capability>) -> Vec<Issue> {
    let mut issues = Vec::new();
    let gathers_bf16 = match &plan.parallel.data {
        DataParallel::Fsdp2(options) => options.mixed_precision.param == Some(FloatName::Bfloat16),
        _ => false,
    };
    if !gathers_bf16 && !matches!(plan.recipe.precision, Some(Precision::AmpBf16 | Precision::PureBf16)) {
        let what = "FP8 products in other precisions than BF16".into();
        issues.push(Issue::new("recipe.float8", IssueKind::NotModelled { what }));
    }
    // Families whose matrices inside the layers are all weights of `nn.Linear`, each held against measured steps.
    if !["llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "phi3"].contains(&model.family()) {
        let what = format!("FP8 products in {}", model.family());
        issues.push(Issue::new("recipe.float8", IssueKind::NotModelled { what }));
    }
    let odd = |n: u64| !n.is_multiple_of(FLOAT8_MULTIPLE);
    let parameters = model.parameters();
    let mut inside = parameters.iter().zip(tables(&parameters)).filter(|(_, table)| *table == Table::No);
    if inside.any(|(p, _)| p.shape.rank() == 2 && p.shape.dims().iter().any(|d| odd(d.n))) {
        let what = format!("FP8 products of matrices whose sides are no multiples of {FLOAT8_MULTIPLE}");
        issues.push(Issue::new("recipe.float8", IssueKind::NotSupportedByHardware { what }));
    }
    if capability.is_some_and(|c| (c.0, c.1) < (8, 9)) && plan.recipe.float8 {
        let what = "FP8 products: they need compute capability 8.9".into();
        issues.push(Issue::new("recipe.float8", IssueKind::NotSupportedByHardware { what }));
    }
    issues
}

/// What is not modelled of several sequences in one row.
#[inline(never)]
fn packed_issues(model: &dyn Model, plan: &Plan) -> Vec<Issue> {
    let mut issues = Vec::new();
    let mut refuse = |path: &'static str, what: String| issues.push(Issue::new(path, IssueKind::NotModelled { what }));
    if !model.packs() {
        refuse("recipe.packed", format!("packed sequences in the family {}", model.family()));
    }
    if plan.recipe.sdpa_backend == Some(SdpaBackend::FlashAttention) {
        refuse("recipe.sdpa_backend", "flash attention over packed sequences: sdpa's takes no mask".into());
    }
    if plan.recipe.method.is_some() {
        refuse("recipe.packed", "packed sequences in preference or reinforcement learning".into());
    }
    if plan.framework.transformers < Version(5, 0) {
        refuse("recipe.packed", "packed sequences with transformers before 5".into());
    }
    issues
}

/// What is not modelled of sequences of several lengths in one micro-batch.
#[inline(never)]
fn padded_issues(model: &dyn Model, plan: &Plan) -> Vec<Issue> {
    let recipe = &plan.recipe;
    let mut wrong = Vec::new();
    let mut refuse = |when: bool, what: &str| wrong.extend(when.then(|| what.to_owned()));
    let family = format!("padded sequences in the family {}, or with windows of attention", model.family());
    refuse(model.scored().is_none(), &family);
    refuse(!recipe.packed.is_empty(), "padding beside packed sequences");
    refuse(recipe.method.is_some(), "padding apart from what preference or reinforcement learning says of it");
    refuse(recipe.sdpa_backend.is_some(), "padded sequences with one backend of scaled_dot_product_attention alone");
    refuse(recipe.attention == Some(Attention::FlashAttention2), "padded sequences with the package flash-attn");
    refuse(plan.framework.transformers < Version(5, 0), "padded sequences with transformers before 5");
    wrong.into_iter().map(|what| Issue::new("recipe.padded", IssueKind::NotModelled { what })).collect()
}

/// What the package flash-attn cannot do, and what is not modelled of it.
#[inline(never)]
fn flash_package_issues(model: &dyn Model, plan: &Plan, capability: Option<Capability>) -> Vec<Issue> {
    let recipe = &plan.recipe;
    let mut issues = Vec::new();
    let mut add = |kind| issues.push(Issue::new("recipe.attention", kind));
    let mut refuse = |wrong: bool, what: &str| {
        if wrong {
            add(IssueKind::NotModelled { what: what.into() });
        }
    };
    let family = format!("the package flash-attn in the family {}", model.family());
    refuse(!model.takes_flash_package(), &family);
    refuse(recipe.method.is_some(), "the package flash-attn in preference or reinforcement learning");
    let selective = matches!(recipe.checkpointing, Checkpointing::Selective | Checkpointing::SelectiveHalf);
    refuse(selective, "selective checkpointing of the package flash-attn");
    refuse(plan.framework.transformers < Version(5, 0), "the package flash-attn with transformers before 5");
    refuse(recipe.sdpa_backend.is_some(), "a backend of sdpa beside the package flash-attn");
    if capability.is_some_and(|c| c.0 < 8) {
        let what = "kernels of the package flash-attn: they need compute capability 8.0".into();
        add(IssueKind::NotSupportedByHardware { what });
    }
    // `FlashAttention only support fp16 and bf16 data type` (csrc/flash_attn/flash_api.cpp, 2.8.4).
    if recipe.precision == Some(Precision::Fp32) && recipe.quantization.is_none() {
        let expected = "FP16 or BF16, which is all that the package flash-attn takes".into();
        issues.push(Issue::new("recipe.precision", IssueKind::NotA { expected, found: "fp32".into() }));
    }
    issues
}

fn too_large(_: TooLarge) -> Vec<Issue> {
    vec![Issue::new("recipe", IssueKind::TooLarge)]
}

/// The model of a plan: a preset's config, or the user's.
///
/// # Errors
/// Every issue of the config, one per field; a preset that does not exist.
pub fn read_model(source: &ModelSource) -> Result<ReadModel, Vec<Issue>> {
    match source {
        ModelSource::Config(config) => read_config(config),
        ModelSource::Preset(name) => {
            let preset = presets::find(name).map_err(|kind| vec![Issue::new("model.preset", kind)])?;
            read_config(preset.config)
        }
    }
}

/// The plan's allocator settings, read as its PyTorch reads them.
pub(crate) fn alloc_conf(framework: &Framework) -> Result<AllocConf, Vec<Issue>> {
    let text = framework.alloc_conf.as_deref().unwrap_or_default();
    AllocConf::parse(text, framework.pytorch).map_err(|found| {
        found
            .into_iter()
            .map(|issue| {
                let kind = IssueKind::NotA {
                    expected: format!("a setting that PyTorch {} accepts", framework.pytorch),
                    found: issue.to_string(),
                };
                Issue::new("framework.alloc_conf", kind)
            })
            .collect()
    })
}

/// The properties of a device of this compute capability, and whether the capability is assumed.
///
/// The multiprocessor counts are those of the generation's common cards (CUDA device properties as PyTorch prints
/// them): A100 108, RTX 3090 82, RTX 4090 128, H100 132, B200 148, T4 40, V100 80, RTX 5090 170. They size some
/// kernels' scratch, nothing else.
#[must_use]
pub fn device(capability: Option<Capability>) -> (Device, bool) {
    let known = capability.map(|c| u32::from(c.0) * 10 + u32::from(c.1));
    let sm = known.unwrap_or(80);
    let multiprocessors = match sm {
        0..=74 => 80,
        75..=79 => 40,
        86..=88 => 82,
        89 => 128,
        90 => 132,
        100..=109 => 148,
        120.. => 170,
        _ => 108,
    };
    (Device { sm, multiprocessors, workspace_kept: false }, known.is_none())
}

/// Walks the plan's step, replays it through the caching allocator and reads everything off it. A plan without a
/// precision is walked as [`Precision::AmpBf16`]; the decision looks at the candidates.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn estimate(plan: &Plan) -> Result<Estimate, Vec<Issue>> {
    Slices::of(plan)?.finish()
}

/// The walk alone: the bill and the requested peak of a steady step, exact. Allocated memory is at least that; nothing is
/// said of reserved memory. The fast path for every keystroke and for searches;
/// [`estimate`] refines it.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn quick(plan: &Plan) -> Result<Estimate, Vec<Issue>> {
    let job = Job::of(plan)?;
    let precision = plan.recipe.precision.unwrap_or(Precision::AmpBf16);
    if precision == Precision::RuleOfThumb {
        return Ok(rule_of_thumb(Thumb::of(plan, job.model.as_ref())));
    }
    let mut quick = quick_of(plan, &job, precision)?;
    quick.notes.push(Note::NotReplayed);
    Ok(quick)
}

/// What a loop would read, without the bill and without a card: the fast path where a plan is held against a measurement.
///
/// # Errors
/// Every issue of the plan, one per field; the rule of thumb, which has no readings.
pub fn readings(plan: &Plan) -> Result<Readings, Vec<Issue>> {
    let job = Job::of(plan)?;
    let precision = plan.recipe.precision.unwrap_or(Precision::AmpBf16);
    if precision == Precision::RuleOfThumb {
        let what = "readings of the rule of thumb".into();
        return Err(vec![Issue::new("recipe.precision", IssueKind::NotModelled { what })]);
    }
    let walk = job.walk_short(plan, precision)?;
    let readings = replay(&walk, &job.config(plan)).map_err(|_| too_large(TooLarge))?;
    Ok(parted(readings, &walk, plan, &job, precision))
}

fn quick_of(plan: &Plan, job: &Job, precision: Precision) -> Result<Estimate, Vec<Issue>> {
    let walk = job.walk_steady(plan, precision)?;
    let (bill, timeline) = bill::bill(&walk, job.model.symbols(&plan.recipe), sources(plan));
    let requested = Tier {
        peak_bytes: bill.column(bill.binding).parts.total(),
        provenance: modelled("sizes of the tensors alive at once"),
    };
    let allocated = Tier {
        peak_bytes: requested.peak_bytes,
        provenance: modelled("at least the tensors' own bytes; the allocator has not been replayed"),
    };
    let mut notes = Vec::new();
    if job.text_part_only {
        notes.push(Note::TextPartOnly);
    }
    if job.capability_assumed {
        notes.push(Note::CapabilityAssumed);
    }
    if plan.recipe.grad_accum > crate::step::train::MAX_WALKED_MICRO_BATCHES {
        notes.push(Note::MicroBatchesAlike);
    }
    if plan.recipe.optimizer.name.is_paged() {
        notes.push(Note::StatesPaged);
    }
    if plan.recipe.compile {
        notes.push(Note::Compiled);
    }
    if plan.recipe.float8_te.is_some() {
        notes.push(Note::TransformerEngineRead);
    }
    if matches!(plan.parallel.data, DataParallel::Megatron(_)) {
        notes.push(Note::ReadNotMeasured);
    }
    if plan.parallel.data.is_on_disk() {
        notes.push(Note::DiskNotMeasured);
    }
    if job.tie_lost {
        notes.push(Note::TieLost);
    }
    notes.extend(versions::notes(&plan.framework));
    Ok(Estimate {
        bill,
        tiers: Tiers { requested, allocated, reserved: None, process: None, host: None },
        binding: None,
        timeline,
        readings: None,
        on_card: None,
        notes,
        parameters: parameter_count(job.model.as_ref()),
    })
}

/// The replay sees one part of weights; buffers are the model's other tensors in it.
fn parted(mut readings: Readings, walk: &Walk, plan: &Plan, job: &Job, precision: Precision) -> Readings {
    let buffers = job.model.buffer_bytes(crate::step::load::loaded_dtype(&plan.recipe, precision));
    let mask = Rules::of(&plan.framework, job.model.family()).mask_buffer(job.model.as_ref()).unwrap_or(0);
    let masks = mask.saturating_mul(job.model.layers());
    readings.buffers = Bytes(buffers.into_iter().fold(masks, u64::saturating_add));
    readings.params = readings.params.saturating_sub(readings.buffers);
    readings.optimizer_state_host = crate::step::train::paged_states(job.model.as_ref(), &job.as_trained(plan).recipe);
    readings.offload = offload::offload(job.model.as_ref(), &job.as_trained(plan), walk);
    readings.checkpoint = host::checkpoint(job.model.as_ref(), plan, &readings);
    readings
}

/// What the card can give to the caching allocator, where that is known: its total less context and what others hold.
#[must_use]
pub fn usable(hardware: &Hardware) -> Option<Bytes> {
    let taken = hardware.outside()?.checked_add(hardware.in_use.unwrap_or_default())?;
    Some(hardware.capacity.as_ref()?.bytes.saturating_sub(taken))
}

/// The smallest card for a plan: what a device must give to the caching allocator for its step to complete.
///
/// # Errors
/// Every issue of the plan, one per field; a plan without a precision, or with the rule of thumb, is walked as
/// [`Precision::AmpBf16`].
pub fn smallest_card_of(plan: &Plan) -> Result<SmallestCard, Vec<Issue>> {
    let job = Job::of(plan)?;
    let precision = plan.recipe.precision.filter(|p| *p != Precision::RuleOfThumb).unwrap_or(Precision::AmpBf16);
    let walk = job.walk_short(plan, precision)?;
    let config = job.config(plan);
    let readings = replay(&walk, &config).map_err(|_| vec![Issue::new("recipe", IssueKind::TooLarge)])?;
    Ok(smallest_card(&walk, &config, &readings))
}

/// Unique parameters, tied ones once.
#[must_use]
pub fn parameter_count(model: &dyn Model) -> u64 {
    let [all] = over_layers(model, &|model| [model.parameters().iter().filter_map(|p| p.shape.numel()).sum()]);
    all
}

fn sources(plan: &Plan) -> Sources {
    let Framework { pytorch, transformers, .. } = &plan.framework;
    let origin = plan.recipe.optimizer.name.origin();
    if matches!(plan.parallel.data, DataParallel::Megatron(_)) {
        let exact = |source: &str| Provenance { kind: ProvenanceKind::Exact, source: source.into() };
        return Sources {
            weights: exact("sizes of the rank's parameters, in BF16"),
            states: exact("FP32 master weights and Adam's two moments, of the rank's share"),
            autograd: modelled("Megatron-LM d98e8a64 and Transformer Engine d0067d0d, August 2026: read, not measured"),
        };
    }
    Sources {
        weights: Provenance { kind: ProvenanceKind::Exact, source: "sizes of the parameters, from the config".into() },
        states: modelled(format!("{origin}, PyTorch {pytorch}")),
        autograd: modelled(format!("PyTorch {pytorch} eager, transformers {transformers}")),
    }
}

fn tiers(readings: &Readings, phases: &[PhaseOnCard], hardware: &Hardware, plan: &Plan) -> Tiers {
    let replayed = modelled(format!("caching allocator of PyTorch {}, replayed", plan.framework.pytorch));
    let mut most = [readings.highest_allocated(), readings.highest_reserved()];
    let mut known = true;
    if vllm(plan).is_some() {
        known = phases.iter().all(|phase| phase.beside.is_some());
        let highest = |of: &dyn Fn(&PhaseOnCard) -> Bytes| phases.iter().map(of).max().unwrap_or_default();
        most = [highest(&PhaseOnCard::allocated), highest(&PhaseOnCard::reserved)];
    }
    let [allocated, reserved] = calibration::raised(plan, most);
    let reserved = known.then(|| Tier { peak_bytes: reserved, provenance: replayed.clone() });
    let process = hardware.context.as_ref().zip(reserved.as_ref()).and_then(|(context, reserved)| {
        let communicators =
            hardware.communicators.as_ref().map(|nccl| format!("; {:#}: {}", nccl.bytes, nccl.provenance.source));
        Some(Tier {
            peak_bytes: reserved.peak_bytes.checked_add(hardware.outside()?)?,
            provenance: Provenance {
                kind: ProvenanceKind::Assumed,
                source: format!(
                    "reserved, and a context of {:#}: {}{}",
                    context.bytes,
                    context.provenance.source,
                    communicators.unwrap_or_default()
                ),
            },
        })
    });
    Tiers {
        requested: Tier {
            // The run's own maxima leave loading out.
            peak_bytes: phases.iter().map(|of| of.readings.parts().total()).fold(readings.max_requested, Bytes::max),
            provenance: modelled("sizes of the tensors alive at once"),
        },
        allocated: Tier { peak_bytes: allocated, provenance: replayed },
        reserved,
        process,
        host: Some(host::tier(readings)),
    }
}

//! English.

mod reconcile;

use std::borrow::Cow;

use super::{Catalogue, Label, LinkProblem, Msg, Term};
use crate::bill::{Instant, Part, ProvenanceKind};
use crate::decide::{Caveat, Effect, Fact, PricedRemedy, Question, Reason, RemedyId, Status, VerdictKind};
use crate::estimate::Note;
use crate::issue::IssueKind;
use crate::machine::GpuChoice;
use crate::measure::{EvalReading, ImportError, ReadingName, StepReading, TierName, Which};
use crate::recipe::parallel::{DataParallel, DeepSpeed, Parallel};
use crate::recipe::{Attention, Checkpointing, Loss, Method, OptimizerImpl, OptimizerName, Precision, SdpaBackend};
use crate::rule_of_thumb::HELD;
use crate::step::log::Phase;
use crate::step::readings::Holder;
use crate::units::{Bytes, grouped, three_digits};

/// English.
pub(super) struct English;

impl Catalogue for English {
    fn part(&self, part: Part) -> &'static str {
        match part {
            Part::Weights => "Weights",
            Part::States => "Optimizer states",
            Part::Gradients => "Gradients",
            Part::Activations => "Activations",
            Part::Temporary => "Temporary",
        }
    }

    fn instant(&self, instant: Instant) -> &'static str {
        match instant {
            Instant::Forward => "Forward",
            Instant::Loss => "Loss",
            Instant::Backward => "Backward",
            Instant::Step => "Optimizer step",
        }
    }

    fn at_instant(&self, instant: Instant) -> &'static str {
        match instant {
            Instant::Forward => "at the end of forward",
            Instant::Loss => "at the loss",
            Instant::Backward => "in backward",
            Instant::Step => "at the optimizer step",
        }
    }

    fn method(&self, method: &Method) -> &'static str {
        match method {
            Method::Dpo(_) => "DPO",
            Method::Reward(_) => "reward model",
            Method::Grpo(_) => "GRPO",
            Method::Ppo(_) => "PPO",
        }
    }

    fn phase(&self, phase: Phase) -> &'static str {
        match phase {
            Phase::Load => "Load",
            Phase::Prepare => "Prepare",
            Phase::Generation => "Generation",
            Phase::OldLogProbs => "Policy’s scores",
            Phase::Reference => "Reference’s scores",
            Phase::Reward => "Rewards",
            Phase::Values => "Critic’s values",
            Phase::Update => "Training step",
            Phase::Average => "Averaged weights",
            Phase::Evaluation => "Evaluation",
        }
    }

    fn at_phase(&self, phase: Phase) -> &'static str {
        match phase {
            Phase::Load => "while the weights are loaded",
            Phase::Prepare => "while the weights are prepared",
            Phase::Generation => "while completions are generated",
            Phase::OldLogProbs => "while the policy scores its completions",
            Phase::Reference => "while the reference scores",
            Phase::Reward => "while the reward model scores",
            Phase::Values => "while the critic values",
            Phase::Update => "in the training step",
            Phase::Average => "while the averaged weights are updated",
            Phase::Evaluation => "in the evaluation",
        }
    }

    fn holder(&self, holder: Holder) -> &'static str {
        match holder {
            Holder::Weights => "weights",
            Holder::OtherModels => "other models",
            Holder::States => "states",
            Holder::Gradients => "gradients",
            Holder::Activations => "activations",
            Holder::Cache => "key-value cache",
            Holder::Temporary => "temporary",
        }
    }

    fn provenance(&self, kind: ProvenanceKind) -> &'static str {
        match kind {
            ProvenanceKind::Exact => "exact",
            ProvenanceKind::Modelled => "modelled",
            ProvenanceKind::Measured => "measured",
            ProvenanceKind::Assumed => "assumed",
        }
    }

    fn provenance_meaning(&self, kind: ProvenanceKind) -> &'static str {
        match kind {
            ProvenanceKind::Exact => "Arithmetic from the configuration.",
            ProvenanceKind::Modelled => "Follows the rules of a framework version.",
            ProvenanceKind::Measured => "Read from a run.",
            ProvenanceKind::Assumed => "A constant that you can change.",
        }
    }

    fn tier(&self, tier: TierName) -> &'static str {
        match tier {
            TierName::Requested => "Requested",
            TierName::Allocated => "Allocated",
            TierName::Reserved => "Reserved",
            TierName::Process => "Process",
            TierName::Device => "Device",
        }
    }

    fn tier_meaning(&self, tier: TierName) -> &'static str {
        match tier {
            TierName::Requested => "The bytes of the tensors themselves.",
            TierName::Allocated => "What memory_allocated() shows: blocks, with rounding.",
            TierName::Reserved => "What PyTorch’s caching allocator takes from the driver.",
            TierName::Process => {
                "Reserved, the CUDA context and, on several GPUs, NCCL's communicators: what nvidia-smi shows."
            }
            TierName::Device => "The card itself, whoever holds it.",
        }
    }

    fn precision(&self, precision: Precision) -> &'static str {
        match precision {
            Precision::Fp32 => "FP32",
            Precision::AmpBf16 => "AMP, autocast to BF16",
            Precision::AmpFp16 => "AMP, autocast to FP16",
            Precision::PureBf16 => "Pure BF16, as loaded",
            Precision::Bf16Autocast => "BF16 weights under autocast",
            Precision::PureFp16 => "Pure FP16, no scaler",
            Precision::Bf16Master => "BF16 with FP32 master weights",
            Precision::RuleOfThumb => "Rule of thumb, 12 bytes per parameter",
        }
    }

    fn precision_meaning(&self, precision: Precision) -> &'static str {
        match precision {
            Precision::Fp32 => "Weights, gradients and states in FP32: 4 + 4 + 8 bytes per parameter with AdamW.",
            Precision::AmpBf16 => {
                "FP32 weights under torch.autocast: 4 + 4 + 8 bytes per parameter with AdamW, and BF16 copies of the linear weights through backward."
            }
            Precision::AmpFp16 => {
                "FP32 weights under torch.autocast with a gradient scaler: 4 + 4 + 8 bytes per parameter with AdamW, and FP16 copies of the linear weights through backward."
            }
            Precision::PureBf16 => "Weights, gradients and states in BF16: 2 + 2 + 4 bytes per parameter with AdamW.",
            Precision::Bf16Autocast => {
                "BF16 weights, gradients and states under torch.autocast, as a model loaded in BF16 with bf16=True: 2 + 2 + 4 bytes per parameter with AdamW."
            }
            Precision::PureFp16 => {
                "Weights, gradients and states in FP16 without a gradient scaler: 2 + 2 + 4 bytes per parameter with AdamW. Small gradients become zero."
            }
            Precision::Bf16Master => {
                "BF16 weights, FP32 main gradients and FP32 master weights, as Megatron-LM: 2 + 4 + 4 + 8 bytes per parameter with AdamW."
            }
            Precision::RuleOfThumb => {
                "Parameters × (2 + 2 + 8): what readers know. No framework holds exactly this; do not decide by it."
            }
        }
    }

    fn optimizer(&self, name: OptimizerName) -> &'static str {
        match name {
            OptimizerName::AdamW => "AdamW",
            OptimizerName::Adam => "Adam",
            OptimizerName::Sgd => "SGD",
            OptimizerName::Adafactor => "Adafactor (PyTorch)",
            OptimizerName::AdafactorHf => "Adafactor (transformers)",
            OptimizerName::AdamW8bit => "AdamW 8-bit (bitsandbytes)",
            OptimizerName::AdamW32bit => "AdamW 32-bit (bitsandbytes)",
            OptimizerName::PagedAdamW8bit => "AdamW 8-bit, paged (bitsandbytes)",
            OptimizerName::PagedAdamW32bit => "AdamW 32-bit, paged (bitsandbytes)",
            OptimizerName::Lion => "Lion (bitsandbytes)",
            OptimizerName::Lion8bit => "Lion 8-bit (bitsandbytes)",
            OptimizerName::PagedLion8bit => "Lion 8-bit, paged (bitsandbytes)",
            OptimizerName::AdEmaMix => "AdEMAMix (bitsandbytes)",
            OptimizerName::AdEmaMix8bit => "AdEMAMix 8-bit (bitsandbytes)",
            OptimizerName::Muon => "Muon, AdamW for the rest",
            OptimizerName::ScheduleFreeAdamW => "AdamW, schedule-free",
            OptimizerName::GaLoreAdamW => "AdamW with GaLore",
            OptimizerName::ApolloAdamW => "AdamW with APOLLO",
            OptimizerName::RmsProp => "RMSprop",
            OptimizerName::Adagrad => "Adagrad",
            OptimizerName::NAdam => "NAdam",
            OptimizerName::RAdam => "RAdam",
            OptimizerName::Adamax => "Adamax",
            OptimizerName::Adadelta => "Adadelta",
            OptimizerName::Sophia => "Sophia-G (its authors’ code)",
            OptimizerName::Came => "CAME (its authors’ code)",
            OptimizerName::AdamMini => "Adam-mini (its authors’ code)",
        }
    }

    fn implementation(&self, implementation: OptimizerImpl) -> &'static str {
        match implementation {
            OptimizerImpl::Foreach => "foreach",
            OptimizerImpl::Fused => "fused",
            OptimizerImpl::Forloop => "for-loop",
        }
    }

    fn megatron_implementation(&self) -> &'static str {
        "fused by Transformer Engine or Apex (FusedAdam)"
    }

    fn attention(&self, attention: Attention) -> &'static str {
        match attention {
            Attention::Sdpa => "SDPA (flash)",
            Attention::Eager => "eager",
            Attention::FlashAttention2 => "flash-attn package",
        }
    }

    fn sdpa_backend(&self, backend: SdpaBackend) -> &'static str {
        match backend {
            SdpaBackend::FlashAttention => "flash",
            SdpaBackend::EfficientAttention => "memory-efficient",
            SdpaBackend::CudnnAttention => "cuDNN",
            SdpaBackend::Math => "math",
        }
    }

    fn loss(&self, loss: Loss) -> &'static str {
        match loss {
            Loss::Hf => "all tokens at once, as transformers does",
            Loss::Chunked(4) => "in 4 pieces, each run again in backward",
            Loss::Chunked(8) => "in 8 pieces, each run again in backward",
            Loss::Chunked(16) => "in 16 pieces, each run again in backward",
            Loss::Chunked(_) => "in pieces, each run again in backward",
            Loss::ChunkedOutputs(_) => "in pieces, all logits kept",
            Loss::LogitsToKeep(_) => "of the last tokens only",
            Loss::LinearCrossEntropy(_) => "PyTorch’s linear_cross_entropy, in pieces",
        }
    }

    fn checkpointing(&self, checkpointing: Checkpointing) -> &'static str {
        match checkpointing {
            Checkpointing::None => "none",
            Checkpointing::Full => "every layer",
            Checkpointing::Selective => "every layer, products and attention kept",
            Checkpointing::SelectiveHalf => "every layer, every 2nd product and attention kept",
            Checkpointing::Reentrant => "every layer, reentrant",
            Checkpointing::Every(2) => "every 2nd layer",
            Checkpointing::Every(3) => "every 3rd layer",
            Checkpointing::Every(4) => "every 4th layer",
            Checkpointing::Every(_) => "every k-th layer",
            Checkpointing::Offload => "none, saved tensors in host memory",
            Checkpointing::FullOffload => "every layer, inputs in host memory",
        }
    }

    fn issue(&self, kind: &IssueKind) -> String {
        match kind {
            IssueKind::Missing { expected } => format!("missing: expected {expected}"),
            IssueKind::NotA { expected, found } => format!("expected {expected}, found {found}"),
            IssueKind::OutOfRange { min, max, found } => {
                format!("expected {} to {}, found {found}", grouped(*min), grouped(*max))
            }
            IssueKind::NotDivisible { value, by_field, by } => {
                format!("{} is not divisible by {by_field} = {}", grouped(*value), grouped(*by))
            }
            IssueKind::UnknownArchitecture { found, known } => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                format!("`{found}` is not modelled here; known architectures: {}", self.list(&known))
            }
            IssueKind::UnknownName { found, did_you_mean } => {
                let near: Vec<&str> = did_you_mean.iter().map(String::as_str).collect();
                match near.as_slice() {
                    [] => format!("`{found}` is not in the catalogue"),
                    near => format!("`{found}` is not in the catalogue; did you mean {}?", self.list_or(near)),
                }
            }
            IssueKind::NotModelled { what } => format!("{what}: not modelled here, so no figure is given"),
            IssueKind::NotSupportedByHardware { what } => format!("this GPU has no {what}"),
            IssueKind::TooLarge => {
                "the step's tensors come to more than 8 PiB, which is past what is computed here".into()
            }
        }
    }

    fn list(&self, items: &[&str]) -> String {
        joined(items, "and")
    }
    fn verdict(&self, verdict: VerdictKind) -> &'static str {
        match verdict {
            VerdictKind::Fits => "Fits",
            VerdictKind::Tight => "Tight",
            VerdictKind::DoesNotFit => "Does not fit",
            VerdictKind::CannotTell => "Cannot tell",
        }
    }

    fn reason(&self, reason: &Reason) -> String {
        match reason {
            Reason::RoomBeyondMargin { free, margin } => {
                format!("{free} stay free; the policy keeps {margin} for fragmentation.")
            }
            Reason::InsideMargin { free, margin } => {
                format!("Only {free} stay free, less than the {margin} that the policy keeps for fragmentation.")
            }
            Reason::OnlyByFreeingCache { over } => {
                format!("It fits only if PyTorch gives back cached memory in time: with its cache it is {over} over.")
            }
            Reason::AllocatedExceeds { missing } => format!("{missing} are missing."),
            Reason::RunsOut { step, instant, phase, tried } => {
                let step = match (phase, step) {
                    (Some(phase), _) => self.at_phase(*phase).to_owned(),
                    (None, 0) => "while the model is built".to_owned(),
                    (None, n) => format!("in step {n}, {}", self.instant(*instant).to_ascii_lowercase()),
                };
                format!(
                    "Replayed on this card, PyTorch's allocator runs out {step}: it asks for {tried} more even after \
                     giving back all it had cached."
                )
            }
            Reason::Unknown(fact) => format!("One fact would decide: {}.", self.fact(*fact)),
        }
    }

    fn fact(&self, fact: Fact) -> &'static str {
        match fact {
            Fact::Gpu => "which GPU it is",
            Fact::Capacity => "how much memory PyTorch reports for this GPU",
            Fact::Context => "how much the CUDA context takes on this GPU",
            Fact::Reserved => "how much the caching allocator reserves for this step",
            Fact::Precision => "which precision recipe you use, as the candidates differ",
            Fact::DeviceLag => {
                "how far the GPU lags behind its host, as this wrapper holds memory until the GPU is done with it; these figures are those of a GPU that keeps up"
            }
            Fact::Unmeasured => {
                "what such a step was measured to take, as Transformer Engine’s rules are read in its code and no step of it was measured here"
            }
            Fact::Compiled => "what the compiled step keeps and takes, of which these figures are not",
            Fact::RealRecipe => "the precision recipe that the framework really runs; the rule of thumb is none",
        }
    }

    fn caveat(&self, caveat: &Caveat) -> String {
        match caveat {
            Caveat::Bf16Emulated { gpu } => {
                format!("{gpu} has no BF16: PyTorch emulates it, slowly. FP16 is what it has.")
            }
            Caveat::InUseNotGiven => "Memory in use by others is not known and taken as none.".into(),
            Caveat::CapacityAssumed { bytes, provenance } => {
                format!("The card’s {bytes} are assumed: {}.", provenance.source.trim_end_matches('.'))
            }
            Caveat::ContextAssumed { bytes, .. } => {
                format!("The CUDA context of {bytes} is assumed; a measurement replaces it.")
            }
            Caveat::CommunicatorsAssumed { bytes, .. } => {
                format!(
                    "NCCL's communicators are assumed to take {bytes} beside the context; a measurement replaces it."
                )
            }
            Caveat::ExpertsNotQuantized { bytes, bits, prepared } => {
                let by = if *prepared { ", into which prepare_model_for_kbit_training has taken them" } else { "" };
                format!(
                    "The experts are not quantised: bitsandbytes takes linear layers alone, and since transformers 5 experts are stacked parameters. They hold {bytes} in {bits} bits{by}."
                )
            }
            Caveat::RuleOfThumb { trained, attention, intermediate } => {
                let gb = |bytes: Bytes| format!("{} GB", three_digits(bytes.as_f64() / 1e9));
                let per = |precision: Precision| {
                    HELD.iter().find(|(of, _)| *of == precision).map_or(0, |(_, held)| held.iter().sum::<u64>())
                };
                let held = |precision: Precision| {
                    let each = per(precision);
                    format!("{each} B ({})", gb(Bytes(trained.saturating_mul(each))))
                };
                let mut said = format!(
                    "These are the rule of thumb’s figures, 2 + 2 + 8 = 12 B a trained parameter, which no framework holds exactly. With AdamW, FP32 and autocast hold {}, pure BF16 {}, BF16 with FP32 master weights {}, before activations and buffers.",
                    held(Precision::Fp32),
                    held(Precision::PureBf16),
                    held(Precision::Bf16Master),
                );
                if let (Some(attention), Some(intermediate)) = (attention, intermediate) {
                    said += &format!(
                        " By such rules a layer’s attention matrix (batch × heads × sequence² × 2 B) would take {}, if it is stored, and its feed-forward intermediate (batch × sequence × 4 × hidden × 2 B) {};",
                        gb(*attention),
                        gb(*intermediate),
                    );
                    said += " autocast would bring activations to 60 % and checkpointing the total from 16 to 9 GB for 35 % more time. A recipe counts each tensor instead, and its peak may lie elsewhere.";
                }
                said + " Choose a recipe to decide."
            }
            Caveat::PrecisionNotGiven { .. } => {
                "The precision recipe is not known: the figures are those of the dearest one.".into()
            }
        }
    }

    fn note(&self, note: Note) -> &'static str {
        match note {
            Note::NotReplayed => "PyTorch’s allocator has not been replayed: only the tensors’ own bytes are known.",
            Note::TextPartOnly => "The config describes a model of several parts; only its text part is counted.",
            Note::CapabilityAssumed => "No compute capability is known: kernels are chosen as on 8.0.",
            Note::RuleOfThumb => {
                "The rule of thumb counts weights, gradients and states; activations and buffers come on top."
            }
            Note::NewerVersions => {
                "A version is newer than any whose rules are known; the newest known rules are used, and figures may be off."
            }
            Note::OlderVersions => {
                "A version is older than those measured: every rule known to have changed is followed, but small tensors may differ."
            }
            Note::MicroBatchesAlike => {
                "The first micro-batches are walked; the further ones are taken to be as the last of them."
            }
            Note::TransformerEngineRead => {
                "Transformer Engine’s FP8: its rules are read in its code (2.19); no step of it was measured, so that no answer here is “fits”"
            }
            Note::ReadNotMeasured => {
                "Megatron-LM's rules are read in its code and held against published figures; no step of it was measured here"
            }
            Note::TieLost => {
                "FSDP1 puts each module of a model that was made on the meta device on the GPU by itself: its tied head becomes a matrix of its own, which is counted"
            }
            Note::DiskNotMeasured => {
                "What lies on a disk follows DeepSpeed’s code; no step with it was measured here, and its time is not estimated"
            }
            Note::Compiled => {
                "torch.compile: these are the eager step’s figures. In ten steps cut by its partitioner, with nothing fused (PyTorch 2.15), forward kept 52 to 99 % of what eager keeps, and the peak was 96 to 152 % of eager’s: neither bounds your step."
            }
            Note::StatesPaged => {
                "Large optimizer states lie in managed memory and are not counted: pages of it move to the GPU while there is room."
            }
        }
    }

    fn question(&self, question: Question) -> &'static str {
        match question {
            Question::Rigid => "Rigid cost",
            Question::Activations => "Activations",
            Question::Margin => "Margin",
            Question::Throughput => "Throughput",
        }
    }

    fn question_ask(&self, question: Question) -> &'static str {
        match question {
            Question::Rigid => "Do weights, gradients and optimizer states fit before any data is seen?",
            Question::Activations => "Do the saved tensors fit beside the rigid cost?",
            Question::Margin => "Is there room for what no formula knows?",
            Question::Throughput => "Among what fits, how fast is it?",
        }
    }

    fn question_why_title(&self, question: Question) -> &'static str {
        match question {
            Question::Rigid => "Why this rule",
            Question::Activations => "Why this rule",
            Question::Margin => "Why a margin",
            Question::Throughput => "Why so wide a range",
        }
    }

    fn question_why(&self, question: Question) -> &'static str {
        match question {
            Question::Rigid => {
                "What is left must hold the activations and the allocator’s slack. Above the threshold hardly any batch is small enough, so train less, hold fewer bytes per parameter, or take a larger card."
            }
            Question::Activations => {
                "Activations grow with batch and sequence; the rigid cost does not. When they take most of what is left, checkpointing buys them back for about a third more compute."
            }
            Question::Margin => {
                "The caching allocator keeps blocks that no longer fit, and more of them when shapes vary. A job without a margin runs for an hour and then stops."
            }
            Question::Throughput => {
                "Each kernel takes as long as its size lets it on this card, by shares of the peaks that published runs reached; ranks and the host add theirs. Nine of ten published runs lie in the range. It knows nothing of your data loader or clocks: measure before you decide by it."
            }
        }
    }

    fn status(&self, status: Status) -> &'static str {
        match status {
            Status::Pass => "pass",
            Status::Attention => "attention",
            Status::Stop => "stop",
            Status::Waits => "waits",
        }
    }

    fn remedy(&self, remedy: &PricedRemedy) -> String {
        let recipe = &remedy.plan.recipe;
        match remedy.id {
            RemedyId::FusedOptimizer => format!("{} fused", self.optimizer(recipe.optimizer.name)),
            RemedyId::ForloopOptimizer => format!("{} for-loop", self.optimizer(recipe.optimizer.name)),
            RemedyId::SdpaAttention => "SDPA attention".into(),
            RemedyId::Checkpointing => "Activation checkpointing".into(),
            RemedyId::SelectiveCheckpointing => "Selective checkpointing".into(),
            RemedyId::HalfCheckpointing => "Every other layer checkpointed".into(),
            RemedyId::OffloadActivations => "Activations in host memory".into(),
            RemedyId::FusedLoss => "Liger’s fused loss".into(),
            RemedyId::LigerKernels => "Liger’s kernels".into(),
            RemedyId::ChunkedLoss => "Loss in 8 pieces".into(),
            RemedyId::GradientBuckets => "Gradients as bucket views".into(),
            RemedyId::ShardMore => sharding(&remedy.plan.parallel).into(),
            RemedyId::SequenceParallel => "Sequence parallel".into(),
            RemedyId::TensorParallel => format!("Tensor parallel over {} GPUs", remedy.plan.parallel.tensor.size),
            RemedyId::MoreGpus => {
                format!("{} GPUs, {}", grouped(remedy.plan.parallel.world_size), sharding(&remedy.plan.parallel))
            }
            RemedyId::FreezeEmbedding => "Input embedding frozen".into(),
            RemedyId::NarrowAverage => "Averaged copy in BF16".into(),
            RemedyId::Float8 => "FP8 products".into(),
            RemedyId::SmallerMicroBatch | RemedyId::LargerMicroBatch => {
                format!("Micro-batch {}, accumulation {}", grouped(recipe.micro_batch), grouped(recipe.grad_accum))
            }
            RemedyId::FreeGradients => "Free gradients each step".into(),
            RemedyId::DropOutputs => "Drop the model’s outputs".into(),
            RemedyId::OptimizerInBackward => "Optimizer in backward".into(),
            RemedyId::PrecomputeReference => "Reference’s scores before training".into(),
            RemedyId::EightBitOptimizer
            | RemedyId::PagedOptimizer
            | RemedyId::PagedEightBit
            | RemedyId::Adafactor
            | RemedyId::LionEightBit => self.optimizer(recipe.optimizer.name).into(),
            RemedyId::NoCheckpointing => "Checkpointing off".into(),
            RemedyId::PureBf16 => "Pure BF16".into(),
            RemedyId::Lora => "LoRA, rank 16".into(),
            RemedyId::Qlora => "QLoRA, 4-bit weights".into(),
            RemedyId::Autocast => "Autocast to BF16".into(),
            RemedyId::Fp16 => "Autocast to FP16".into(),
            RemedyId::ExpandableSegments => "Expandable segments".into(),
            RemedyId::LargerGpu => match &remedy.plan.machine.gpu {
                Some(GpuChoice::Catalogue(name)) => name.clone(),
                Some(GpuChoice::Custom(gpu)) => gpu.name.clone(),
                None => "A larger card".into(),
            },
            RemedyId::ShorterSequence => format!("Sequence {}", grouped(recipe.seq_len)),
        }
    }

    fn remedy_note(&self, remedy: &PricedRemedy) -> &'static str {
        match remedy.id {
            RemedyId::FusedOptimizer => "Same training, no temporaries at the step",
            RemedyId::SdpaAttention => "Same training, no tensors of sequence squared",
            RemedyId::ForloopOptimizer => "Same training, temporaries of one tensor, smaller kernels",
            RemedyId::Checkpointing => "Same training, runs every layer’s forward twice",
            RemedyId::SelectiveCheckpointing => "Same training, keeps products and attention, runs the rest twice",
            RemedyId::HalfCheckpointing => "Same training, runs half of the layers’ forward twice",
            RemedyId::OffloadActivations => "Same training, copies to the host and back",
            RemedyId::FusedLoss => "Same training, logits are never whole",
            RemedyId::LigerKernels => "Same training, fused norms, embeddings, MLPs and loss",
            RemedyId::ChunkedLoss => "Same training, one piece’s logits at a time, the head runs twice",
            RemedyId::GradientBuckets => "Same training, no copies of gradients beside DDP’s buckets",
            RemedyId::ShardMore => "Same training, more communication",
            RemedyId::SequenceParallel => "Same training, norms and residuals split over the ranks",
            RemedyId::TensorParallel => "Same batch, each GPU holds its share of every matrix",
            RemedyId::MoreGpus => "Same job, each GPU holds its share of weights, gradients and states",
            RemedyId::SmallerMicroBatch => "Same tokens per step, smaller kernels",
            RemedyId::FreeGradients => "zero_grad(set_to_none=True), PyTorch’s default",
            RemedyId::DropOutputs => "Same training, logits are freed before backward ends",
            RemedyId::OptimizerInBackward => {
                "Same training: each gradient is used and freed at once, by hooks of your own"
            }
            RemedyId::PagedOptimizer => "Same training, slower where states find no room and move to the host",
            RemedyId::PrecomputeReference => "Same training, no second model in the steps",
            RemedyId::EightBitOptimizer => "Changes the numerics: states of one byte per element",
            RemedyId::PagedEightBit => {
                "Changes the numerics: states of one byte, moved to the host where they find no room"
            }
            RemedyId::Adafactor => "Changes the training: another optimizer, without a first moment",
            RemedyId::LionEightBit => "Changes the training: another optimizer, one state of one byte",
            RemedyId::FreezeEmbedding => "Changes the training: token vectors stay as they are",
            RemedyId::NarrowAverage => "Changes the numerics of the average alone",
            RemedyId::Float8 => "Changes the numerics: products of linear layers in FP8",
            RemedyId::LargerMicroBatch => "Same tokens per step, larger kernels",
            RemedyId::NoCheckpointing => "Same training, faster: no second forward",
            RemedyId::PureBf16 => "Changes the training: weights and states lose precision",
            RemedyId::Lora => "Changes the training: adapters on every linear layer, the weights freeze",
            RemedyId::Qlora => "Changes the training: adapters over NF4 weights",
            RemedyId::Autocast => "Changes the numerics: products run in BF16",
            RemedyId::Fp16 => "Changes the numerics: needs loss scaling",
            RemedyId::ExpandableSegments => "PYTORCH_ALLOC_CONF=expandable_segments:True, same training",
            RemedyId::LargerGpu => "Same training on the smallest card that fits",
            RemedyId::ShorterSequence => "Changes the training: less context",
        }
    }

    fn effect(&self, effect: Effect) -> &'static str {
        match effect {
            Effect::SameTraining => "same training",
            Effect::OtherHardware => "other hardware",
            Effect::ChangesTraining => "changes the training",
        }
    }

    fn reading(&self, name: ReadingName) -> String {
        let of_step = |reading: StepReading| match reading {
            StepReading::Base => "Before the step (base)",
            StepReading::Inputs => "The batch",
            StepReading::ForwardDelta => "Growth over forward",
            StepReading::ForwardPeak => "Peak of forward",
            StepReading::ForwardEnd => "After forward",
            StepReading::BackwardDelta => "Growth over backward",
            StepReading::BackwardPeak => "Peak of backward",
            StepReading::BackwardEnd => "After backward",
            StepReading::StepDelta => "Growth over optimizer step",
            StepReading::StepPeak => "Peak of optimizer step",
            StepReading::AfterStep => "After optimizer step",
            StepReading::EmaPeak => "Peak of the weights’ average",
            StepReading::AfterZeroGrad => "After zero_grad",
            StepReading::Grads => "Gradients",
            StepReading::Peak => "Peak of the step",
        };
        match name {
            ReadingName::LoadAllocated => "Loaded".into(),
            ReadingName::LoadReserved => "Reserved when loaded".into(),
            ReadingName::LoadMaxAllocated => "Highest allocated while loading".into(),
            ReadingName::LoadMaxReserved => "Highest reserved while loading".into(),
            ReadingName::PrepareDelta => "Growth over the preparation for training".into(),
            ReadingName::PreparePeak => "Highest during the preparation for training".into(),
            ReadingName::QuantState => "Scales of quantised weights".into(),
            ReadingName::Params => "Parameters".into(),
            ReadingName::Base => "Model and optimizer made (base)".into(),
            ReadingName::Step(Which::First, reading) => format!("{}, first step", of_step(reading)),
            ReadingName::Step(Which::Steady, reading) => format!("{}, later step", of_step(reading)),
            ReadingName::OptimizerStateHost => "Optimizer states in managed memory".into(),
            ReadingName::Phase(phase) => format!("Highest {}", self.at_phase(phase)),
            ReadingName::Eval(reading) => match reading {
                EvalReading::Base => "Before evaluation",
                EvalReading::Delta => "Growth over evaluation",
                EvalReading::Peak => "Peak of evaluation",
                EvalReading::Reserved => "Reserved after evaluation",
            }
            .into(),
            ReadingName::OptimizerState => "Optimizer states".into(),
            ReadingName::MaxAllocated => "Highest allocated".into(),
            ReadingName::MaxReserved => "Highest reserved".into(),
            // As the tools call them.
            ReadingName::Reported(_) | ReadingName::Stat(_) | ReadingName::Tracked(_) => name.to_string(),
        }
    }

    fn import_error(&self, error: &ImportError) -> String {
        match error {
            ImportError::NotThisFormat { expected } => {
                let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
                format!("This is not a format that is read here. Expected {}.", self.list_or(&expected))
            }
            ImportError::TooNew { found, newest } => format!(
                "This measurement has version {found}, and this page reads versions up to {newest}. Reload the page to get a newer one."
            ),
            ImportError::TooLarge { bytes, limit } => {
                format!("The text has {}; at most {} are read.", Bytes(*bytes), Bytes(*limit))
            }
            ImportError::NotRead { what } => format!("This is {what}."),
            ImportError::Malformed { line, column: 0, message } => format!("Line {line}: {message}."),
            ImportError::Malformed { line, column, message } => format!("Line {line}, column {column}: {message}."),
            ImportError::Fields(issues) => {
                let issues: Vec<String> =
                    issues.iter().map(|issue| format!("{}: {}", issue.field, self.issue(&issue.kind))).collect();
                format!("{}.", issues.join("; "))
            }
        }
    }

    fn tensor<'a>(&self, key: &'a str) -> Cow<'a, str> {
        key.into()
    }

    fn symbol<'a>(&self, symbol: &'a str) -> &'a str {
        match symbol {
            "b" => "micro-batch",
            "s" => "sequence",
            "h" => "hidden",
            "k" => "key and value width",
            "q" => "query width",
            "f" => "MLP width",
            "a" => "heads",
            "d" => "head width",
            "V" => "vocabulary",
            "L" => "layers",
            _ => "",
        }
    }

    fn label(&self, label: Label) -> &'static str {
        match label {
            Label::Tagline => "Where does the memory go, and will it fit?",
            Label::SkipToAnswer => "Skip to the answer",
            Label::Steps => "Steps",
            Label::Answer => "Answer",
            Label::Share => "Share",
            Label::ThemeSystem => "Theme: system",
            Label::ThemeLight => "Theme: light",
            Label::ThemeDark => "Theme: dark",
            Label::Dismiss => "Dismiss",
            Label::Privacy => "Nothing leaves this page.",
            Label::Job => "Your job",
            Label::Bill => "Bill",
            Label::Timeline => "Timeline",
            Label::Measured => "Measured",
            Label::Model => "Model",
            Label::FindModel => "Find a model",
            Label::ModelFromConfig => "From your config.json",
            Label::PasteConfig => "Paste a config.json",
            Label::ConfigJson => "config.json",
            Label::ConfigHint => "Paste the text, drop the file anywhere, or",
            Label::ChooseFile => "Choose a file",
            Label::BackToPresets => "Back to the presets",
            Label::Gpu => "GPU",
            Label::FindGpu => "Find a GPU",
            Label::GpuUnknown => "I don’t know",
            Label::GpuOwn => "My own card…",
            Label::GpuOwnName => "Its name",
            Label::GpuOwnMemory => "Its memory",
            Label::GpuOwnMemoryHint => "The total that PyTorch reports, such as 23.6 GiB",
            Label::GpuOwnCapability => "Compute capability",
            Label::GpuOwnCapabilityHint => "Such as 8.9; empty if you do not know",
            Label::MigSlice => "MIG slice",
            Label::MigSliceHint => "Such as 9.5 GiB; empty for the whole card",
            Label::InUse => "In use by others",
            Label::InUseHint => "What nvidia-smi shows before you start, such as 600 MiB",
            Label::DontKnow => "I don’t know",
            Label::Precision => "Precision",
            Label::PrecisionUnknownHint => "Every recipe is computed and the dearest is shown.",
            Label::Optimizer => "Optimizer",
            Label::Implementation => "Implementation",
            Label::Momentum => "Momentum",
            Label::Trained => "What is trained",
            Label::TrainAll => "Every weight",
            Label::TrainLora => "LoRA",
            Label::TrainQlora => "QLoRA",
            Label::Dora => "DoRA",
            Label::LoraRank => "Rank",
            Label::LoraTargets => "Beside the layers",
            Label::LessCommon => "Less common",
            Label::Batch => "Batch",
            Label::MicroBatch => "Micro-batch",
            Label::SequencesOf => "sequences of",
            Label::SeqLen => "Sequence length",
            Label::Tokens => "tokens",
            Label::GradAccum => "Gradient accumulation",
            Label::GradAccumHint => "micro-batches per optimizer step",
            Label::Attention => "Attention",
            Label::AttentionUnknown => "I don’t know (SDPA)",
            Label::Checkpointing => "Activation checkpointing",
            Label::Loss => "Loss",
            Label::More => "More: preferences and RL, fused kernels, FP8, packing, frozen parts, versions, allocator",
            Label::Gpus => "GPUs",
            Label::GpusHint => "one rank each",
            Label::TensorSize => "Tensor parallel",
            Label::TensorSizeHint => "Ranks that share each layer’s matrices; empty for none",
            Label::Pipeline => "Pipeline parallel",
            Label::PipelineHint => "Stages that the layers are dealt out to; empty for none",
            Label::ContextRanks => "Context parallel",
            Label::ContextRanksHint => "Ranks that share each sequence; empty for none",
            Label::ExpertRanks => "Expert parallel",
            Label::ExpertRanksHint => "Ranks that share the experts; empty for none",
            Label::GpusPerNode => "GPUs of a node",
            Label::GpusPerNodeHint => "Empty for 8, or all where they are fewer",
            Label::NetworkGbps => "Network, GB/s",
            Label::NetworkGbpsHint => {
                "One way from a node, for each GPU of it; empty for what is usual with these GPUs"
            }
            Label::LinkGbps => "Link in a node, GB/s",
            Label::LinkGbpsHint => "One way between its GPUs, for each; empty for the card’s own link",
            Label::Completion => "Generated tokens",
            Label::CompletionHint => "Of each sequence; the rest of its length is the prompt",
            Label::ClipGrad => "Clip gradients",
            Label::ClipGradHint => "The largest norm, such as 1.0; empty for no clipping",
            Label::Lengths => "Lengths",
            Label::LengthsAsk => "Sequences of many lengths: does it last for hundreds of steps?",
            Label::LengthsHint => {
                "In tokens, each cut to the sequence’s; a list, or a distribution; empty for all alike"
            }
            Label::LengthSteps => "Steps",
            Label::Packed => "Packed sequences",
            Label::PackedHint => "Lengths of the sequences in one row, such as 1500, 548; empty for one sequence a row",
            Label::Freeze => "Frozen parts",
            Label::FreezeHint => {
                "Beginnings of parameters’ names, such as model.embed_tokens, model.layers.0; empty to train all"
            }
            Label::Pytorch => "PyTorch version",
            Label::Transformers => "transformers version",
            Label::AllocConf => "Allocator settings",
            Label::AllocConfHint => "The text of PYTORCH_ALLOC_CONF, such as expandable_segments:True; empty if unset",
            Label::Context => "CUDA context",
            Label::ContextHint => "Such as 500 MiB; empty for the catalogue’s assumption",
            Label::Details => "Details",
            Label::Close => "Close",
            Label::ChangeFirst => "Change first",
            Label::Refining => "refining…",
            Label::RefiningWhy => "What PyTorch’s allocator keeps beside the tensors is being replayed.",
            Label::Checking => "Checking…",
            Label::TensorsAtPeak => "GiB of tensors at the peak",
            Label::HelpedBefore => "Helped before; being priced…",
            Label::Pricing => "Walking the step once more for each change…",
            Label::NothingHelps => "No single change that is priced here makes it fit. Try them one after the other.",
            Label::Try => "Try",
            Label::Undo => "Undo",
            Label::Stale => "From your last valid inputs: correct the marked fields to go on.",
            Label::NoAnswerYet => "No answer yet: correct the marked fields.",
            Label::BlockRounding => "Rounding to blocks",
            Label::FirstStepHigher => "More in the first steps",
            Label::CacheKept => "Cache kept by PyTorch",
            Label::ContextRow => "CUDA context",
            Label::CommunicatorsRow => "NCCL communicators",
            Label::InUseRow => "In use by others",
            Label::NotKnown => "not known",
            Label::Caveats => "Assumed here",
            Label::WhatHelps => "What helps here",
            Label::RuleAtMost => "Rule: at most",
            Label::RuleAtLeast => "Keep free at least",
            Label::OfTheCard => "% of the card",
            Label::OfWhatIsLeft => "% of what is left",
            Label::KeepFree => "Keep free",
            Label::Comfortable => "comfortable at",
            Label::ResetThresholds => "Back to the defaults",
            Label::PeakGib => "Peak, GiB",
            Label::ProcessGib => "Process, GiB",
            Label::Change => "Change",
            Label::Then => "Then",
            Label::TryIt => "Try it",
            Label::Rough => "rough",
            Label::CardMark => "card",
            Label::WholeCard => "100 %, the card",
            Label::WholeRest => "100 % of what is left",
            Label::NoThroughput => "Not estimated: the card’s peak for this precision is not known.",
            Label::BillCaption => {
                "GiB of tensors, by part and by the instant where each phase is highest. Open a figure for its formula."
            }
            Label::PartHead => "Part",
            Label::Binds => "binds",
            Label::BillNote => {
                "Ordered by lifetime, longest first. Parts are rounded so that each column adds up; exact bytes are in every opened cell."
            }
            Label::NothingHere => "Nothing of this part is alive at this instant.",
            Label::What => "What",
            Label::Formula => "Formula",
            Label::Numbers => "Numbers",
            Label::Source => "Source",
            Label::KnownHow => "Known how",
            Label::Total => "Together",
            Label::Phases => "Phases",
            Label::PhasesCaption => {
                "The most allocated at once in each phase of the job, and what holds it. What the bill above lists is the training step alone."
            }
            Label::PhaseHead => "Phase",
            Label::AllocatedGib => "Allocated, GiB",
            Label::HeldByGib => "Held by, GiB",
            Label::Vllm => "vLLM",
            Label::VllmNotKnown => "its share of a card that is not known",
            Label::TimelineAsk => "Memory of tensors through one training step, from the second step on.",
            Label::TimelineNote => "The order of events, not clock time.",
            Label::TimelineAlt => "Memory through one training step. The bill above has the same figures as a table.",
            Label::PasteAsk => {
                "Paste what you have, or drop a file: an out-of-memory message or the log around it, nvidia-smi, memory_summary() or memory_stats(), figures by step, the measuring script’s output, a vram-budget document."
            }
            Label::PasteLimit => "Texts up to 32 MiB and files up to 2 GiB, also compressed with gzip.",
            Label::TryExample => "Or try an example:",
            Label::ExampleOom => "out-of-memory message",
            Label::ExampleScript => "script output",
            Label::ExampleDocument => "measurement document",
            Label::Predicted => "Predicted",
            Label::MeasuredHead => "Measured",
            Label::Difference => "Difference",
            Label::ReadAs => "Read as:",
            Label::TryFirst => "Try first:",
            Label::Forget => "Forget it",
            Label::UseItsJob => "Use the job it was measured on",
            Label::NothingYet => "nothing yet",
            Label::ReadingHead => "GiB allocated",
            Label::UnitQuestion => "These figures do not look like bytes. In which unit are they?",
            Label::DropHere => "Drop the file to read it",
            Label::NoPlanNeeded => "Predicted for the job above.",
            Label::Explaining => "Working out what explains the difference…",
            Label::TakeOver => "Take it over",
            Label::OtherExplanations => "Other explanations",
            Label::CheckBy => "To make sure:",
            Label::Remedy => "Remedy:",
            Label::Calibrate => "Calibrate with this measurement",
            Label::Fitting => "Fitting…",
            Label::NothingToFit => "The measurement says nothing of what can be fitted.",
            Label::Calibration => "Calibration",
            Label::RemoveCalibration => "Remove the calibration",
            Label::NoCalibration => "no calibration",
            Label::ProblemTitle => "Please correct",
            Label::LinkCopied => "Link copied. It holds your inputs, no measurement.",
            Label::CopyFailed => "The browser did not allow copying. The address bar has the link.",
            Label::FileUnreadable => "The file could not be read. Nothing was changed.",
            Label::Cancel => "Cancel",
            Label::WorkingItOut => "working it out…",
            Label::Footer => "Computed in this page; nothing is sent.",
        }
    }

    fn term(&self, term: Term) -> &'static str {
        match term {
            Term::Weights => "weights",
            Term::States => "optimizer states",
            Term::Gradients => "gradients",
            Term::Activations => "activations",
            Term::Temporary => "temporary",
            Term::FirstSteps => "more in the first steps",
            Term::Rounding => "rounding to blocks",
            Term::Allocated => "allocated",
            Term::Cache => "cache",
            Term::Reserved => "reserved",
            Term::Context => "CUDA context",
            Term::Process => "process",
            Term::InUse => "in use by others",
            Term::MicroBatch => "micro-batch",
            Term::GradAccum => "gradient accumulation",
            Term::Momentum => "momentum",
            Term::LoraRank => "rank",
            Term::Checkpointing => "activation checkpointing",
            Term::Loss => "loss",
            Term::Foreach => "foreach",
            Term::Fused => "fused",
            Term::Forloop => "for-loop",
            Term::Sdpa => "SDPA",
            Term::FlashPackage => "flash-attn",
            Term::Eager => "eager attention",
            Term::Lora => "LoRA",
            Term::Qlora => "QLoRA",
            Term::Dora => "DoRA",
        }
    }

    fn definition(&self, term: Term) -> &'static str {
        match term {
            Term::Weights => "The model’s parameters and buffers: there from the start to the end.",
            Term::States => {
                "What the optimizer remembers of each trained weight, such as Adam’s two moments, and FP32 master weights."
            }
            Term::Gradients => "One number for each trained weight, from backward until the optimizer has used it.",
            Term::Activations => {
                "What forward keeps for backward: it grows with micro-batch and sequence, and checkpointing drops it."
            }
            Term::Temporary => {
                "What lives for one operation or a few: outputs in flight, the logits, workspaces, the optimizer’s own temporaries."
            }
            Term::FirstSteps => "What the first steps hold at their peak beyond the steady step that the parts are of.",
            Term::Rounding => "PyTorch hands out memory in blocks of 512 bytes and more: what tensors leave of theirs.",
            Term::Allocated => "What torch.cuda.memory_allocated() counts: the blocks that tensors hold.",
            Term::Cache => {
                "Freed blocks that PyTorch keeps for reuse; it gives them back before it reports that memory has run out."
            }
            Term::Reserved => {
                "What PyTorch’s caching allocator has taken from the driver: the tensors’ blocks and the cache."
            }
            Term::Context => "What CUDA and its libraries take on the card before the first tensor.",
            Term::Process => "What nvidia-smi shows for the process: reserved memory and the CUDA context.",
            Term::InUse => "What other processes, such as a desktop, hold on the card before this one starts.",
            Term::MicroBatch => "The sequences that go through the model at once; activations grow with it.",
            Term::GradAccum => {
                "Several micro-batches add up their gradients before one optimizer step: a larger batch without larger activations."
            }
            Term::Momentum => "A running mean of the gradients: above 0 it is one more state for each weight.",
            Term::LoraRank => "The inner width of each pair of adapters: their size grows with it.",
            Term::Loss => {
                "Logits take tokens × vocabulary numbers, several times over: in pieces only one piece’s are there at a time."
            }
            Term::Checkpointing => {
                "Each layer keeps only its input and is run again in backward: far fewer saved tensors, about a third more compute."
            }
            Term::Foreach => {
                "The optimizer updates all tensors in a few large calls. It is PyTorch’s default on a GPU and holds temporaries as large as the trained parameters."
            }
            Term::Fused => "The optimizer’s step is one kernel per group of tensors and holds no temporaries.",
            Term::Forloop => {
                "The optimizer updates one tensor after the other; its temporaries are as large as the largest tensor."
            }
            Term::Sdpa => {
                "PyTorch’s scaled_dot_product_attention: its fast kernels never hold a score for every pair of tokens."
            }
            Term::FlashPackage => {
                "The package flash-attn (flash_attention_2): never a score for every pair of tokens, nor a mask for packed sequences."
            }
            Term::Eager => {
                "Attention as separate products and a softmax: it holds tensors of batch × heads × sequence²."
            }
            Term::Qlora => {
                "LoRA over frozen weights in 4 bits: NF4 with double quantisation, unless your plan names another code."
            }
            Term::Dora => "Adapters with a trained length for each output: more temporaries for the weights’ norms.",
            Term::Lora => {
                "Small trained matrices beside frozen weights: gradients and optimizer states are those of the adapters alone."
            }
        }
    }

    fn say(&self, msg: &Msg<'_>) -> String {
        match msg {
            Msg::Title { verdict, needed, of } => match of {
                Some(of) => format!("{}: {} of {of}. vram-budget", self.verdict(*verdict), short_gib(*needed)),
                None => format!("{}: {needed}. vram-budget", self.verdict(*verdict)),
            },
            Msg::NeededOfUsable { usable: Some(usable) } => format!("GiB needed, {usable} usable"),
            Msg::NeededOfUsable { usable: None } => "GiB needed".into(),
            Msg::ProcessOfCard { card } => format!("GiB of {card}"),
            Msg::AllocatedAtPeak => "GiB allocated at the peak".into(),
            Msg::Binding { instant, largest, bytes } => format!(
                "The peak is {}: {} are the largest part, {bytes}.",
                self.at_instant(*instant),
                self.part(*largest).to_ascii_lowercase(),
            ),
            Msg::BindingStep { name, implementation, temporaries } => format!(
                "The peak is at the optimizer step: {} ({}) holds {temporaries} of temporaries while all gradients are still there.",
                self.optimizer(*name),
                self.implementation(*implementation),
            ),
            Msg::BarAlt { needed, card, parts } => {
                let parts: Vec<String> =
                    parts.iter().map(|(part, bytes)| format!("{} {bytes}", self.part(*part).to_ascii_lowercase())).collect();
                let card = card.map_or(String::new(), |card| format!(" of {card}"));
                format!("Needs {needed}{card}: {}", parts.join(", "))
            }
            Msg::PeakInPhase { phase } => format!("The peak of the job is {}.", self.at_phase(*phase)),
            Msg::BindingPhase { phase, largest, bytes } => format!(
                "The peak is {}, not in the training step: the largest part is {}, {bytes}.",
                self.at_phase(*phase),
                self.holder(*largest),
            ),
            Msg::SumsHead { peak } => capitalised(peak.said(self)),
            Msg::ShareOf { share } => (*share).into(),
            Msg::RigidFact { share: Some(share) } => format!("GiB = {share} of the card"),
            Msg::RigidFact { share: None } => "GiB; the card is not known".into(),
            Msg::ActivationFact { share: Some(share), left: Some(left), .. } => {
                format!("GiB = {share} of the {left} that the rigid cost leaves")
            }
            Msg::ActivationFact { instant, .. } => {
                format!("GiB {}; the rigid cost leaves nothing to compare with", self.at_instant(*instant))
            }
            Msg::ActivationsFreeAtPeak { at_peak, peak } => format!(
                "They do not decide here: {} {} of activations are left, so activation checkpointing saves nothing at the peak.",
                peak.said(self),
                if at_peak.get() == 0 { "none".into() } else { at_peak.to_string() },
            ),
            Msg::MarginFact { free: Some(free), policy, policy_bytes: Some(bytes) } => {
                format!("GiB left = {free} of the card (policy: keep {policy}, {bytes})")
            }
            Msg::MarginFact { free: Some(free), policy, policy_bytes: None } => {
                format!("GiB left = {free} of the card (policy: keep {policy})")
            }
            Msg::MarginFact { free: None, .. } => "How much stays free is not known.".into(),
            Msg::MarginOver => "Nothing is left: the process needs more than the card has.".into(),
            Msg::CacheNote { figures } => {
                let [reserved, unused] = figures.map_or(["…".into(), "…".into()], |both| both.map(|b| b.to_string()));
                format!(
                    "Of {reserved} reserved at the peak the allocator holds {unused} unused. PyTorch gives it back before it reports an error."
                )
            }
            Msg::GaugeAlt { share, rule } => format!("{share}; {rule}"),
            Msg::GaugeRule { rule } => format!("{rule} rule"),
            Msg::ThroughputFact { low, high } => format!("{low} to {high} tokens/s"),
            Msg::ThroughputNote { numbers, low, high, step_low, step_high, source } => format!(
                "{numbers}. A step takes {step_low} to {step_high} s, {low} to {high} of the peak ({source})."
            ),
            Msg::ImplementationUnknown { implementation } => {
                format!("{} ({})", self.label(Label::DontKnow), self.implementation(*implementation))
            }
            Msg::WhatIs { term } => format!("What is {term}?"),
            Msg::ModelHint { parameters, shape } => format!("{parameters} parameters, {shape}"),
            Msg::GpuHint { capacity: Some(capacity), source } => format!("{capacity}: {source}"),
            Msg::GpuHint { capacity: None, .. } => {
                "What PyTorch can use of this card is not known: the bill is computed, the verdict is not.".into()
            }
            Msg::PrecisionCandidate { name, verdict, allocated } => {
                let verdict = verdict.map_or(self.label(Label::Refining), |kind| self.verdict(kind));
                format!("{name}: {}, {allocated}", verdict.to_ascii_lowercase())
            }
            Msg::CellTitle { part, instant } => format!("{}, {}", self.part(*part), self.at_instant(*instant)),
            Msg::Count { count } => format!("{} ×", grouped(*count)),
            Msg::MoreLines { count } => format!("{count} smaller ones"),
            Msg::OfCard { card } => format!("of the card, {}", short_gib(*card)),
            Msg::PeakBinds { gib } => format!("{gib} binds"),
            Msg::Problems { count: 1 } => "One input cannot be used".into(),
            Msg::Problems { count } => format!("{count} inputs cannot be used"),
            Msg::Problem { field, issue } => format!("{field}: {}", self.issue(&issue.kind)),
            Msg::Live { verdict, needed, of } => match of {
                Some(of) => format!("{}: {needed} of {of}", self.verdict(*verdict)),
                None => format!("{}: {needed}", self.verdict(*verdict)),
            },
            Msg::MeasurementRead => "read".into(),
            Msg::ReadBack { readings, unit, producer, id } => {
                let figures = if *readings == 1 { "one figure".into() } else { format!("{readings} figures") };
                let unit = unit.map_or(String::new(), |unit| format!(" in {}", unit.symbol()));
                let what = match (producer, id) {
                    (Some(producer), Some(id)) => format!("{id}, a measurement by {producer}"),
                    (Some(producer), None) => format!("a measurement by {producer}"),
                    (None, Some(id)) => format!("{id}, a measurement"),
                    (None, None) => "a first step measured by the script".into(),
                };
                format!("{what}: {figures}{unit}.")
            }
            Msg::LastOf { shown, all } => format!("The last {shown} of {all} that the text holds:"),
            Msg::UnitOption { unit, peak } => format!("{}: a peak of {peak}", unit.symbol()),
            Msg::TextTooLarge { bytes, limit } => {
                format!("The text has {bytes}; at most {limit} are read. Nothing was changed.")
            }
            Msg::FileRead { name, read, of } => {
                let of = of.map_or_else(String::new, |of| format!(" of {of}"));
                format!("Reading {}: {read}{of}", name.unwrap_or("the text"))
            }
            Msg::FileTooLarge { name, bytes, limit } => {
                format!("{name} has {bytes}; at most {limit} are read. Nothing was changed.")
            }
            Msg::LinkRefused { why } => match why {
                LinkProblem::TooLong => "The link is longer than any that this page writes and was not read. Nothing was changed.".into(),
                LinkProblem::Malformed => "The link is broken and was not read. Nothing was changed.".into(),
                LinkProblem::TooNew => "The link is from a newer version of this page. Reload the page to read it.".into(),
            },
            Msg::ConfigTaken { name } => format!("The model is now the {name} of your config.json."),
            Msg::PlanTaken => "The whole job was taken from your plan.".into(),
            Msg::NotJson { line, column } => format!("not JSON at line {line}, column {column}"),
            Msg::NothingKnown => {
                "This is nothing that is read here. Expected a config.json, a plan, or a measurement. Nothing was changed.".into()
            }
            Msg::Tried { remedy } => format!("Tried: {remedy}."),
            Msg::Versions { pytorch, transformers } => {
                format!("Rules for PyTorch {pytorch} and transformers {transformers}.")
            }
        }
    }
}

impl English {
    fn list_or(&self, items: &[&str]) -> String {
        joined(items, "or")
    }
}

/// How data-parallel ranks share the job.
const fn sharding(parallel: &Parallel) -> &'static str {
    match &parallel.data {
        DataParallel::None => "one GPU",
        DataParallel::Ddp(_) => "DDP",
        DataParallel::Dp(_) => "nn.DataParallel",
        DataParallel::Fsdp1(_) => "FSDP1",
        DataParallel::Fsdp2(_) => "FSDP2",
        DataParallel::DeepSpeed(DeepSpeed { stage, .. }) => match stage {
            0 => "DeepSpeed",
            1 => "ZeRO-1",
            2 => "ZeRO-2",
            _ => "ZeRO-3",
        },
        DataParallel::Megatron(_) => "Distributed optimizer",
    }
}

/// The number of GiB without its unit, where the sentence has it once.
fn short_gib(bytes: Bytes) -> String {
    three_digits(bytes.as_gib())
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| core::iter::once(first.to_ascii_uppercase()).chain(chars).collect())
}

fn joined(items: &[&str], last: &str) -> String {
    match items {
        [] => String::new(),
        [one] => (*one).into(),
        [head @ .., tail] => format!("{} {last} {tail}", head.join(", ")),
    }
}

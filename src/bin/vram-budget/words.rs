//! The command's sentences until the message catalogue has them.

use vram_budget::decide::{Caveat, Effect, Fact, PricedRemedy, Question, Reason, RemedyId, Status, VerdictKind};
use vram_budget::machine::GpuChoice;
use vram_budget::text::Locale;

pub(crate) fn verdict(verdict: VerdictKind) -> &'static str {
    match verdict {
        VerdictKind::Fits => "Fits",
        VerdictKind::Tight => "Tight",
        VerdictKind::DoesNotFit => "Does not fit",
        VerdictKind::CannotTell => "Cannot tell",
    }
}

pub(crate) fn reason(reason: &Reason) -> String {
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
        Reason::RunsOut { step, tried, .. } => format!(
            "Replayed on this card, PyTorch's allocator runs out in step {step}: it asks for {tried} more even after \
             giving back all it had cached."
        ),
        Reason::Unknown(missing) => format!("One fact would decide: {}.", fact(*missing)),
    }
}

pub(crate) fn fact(fact: Fact) -> &'static str {
    match fact {
        Fact::Gpu => "which GPU it is",
        Fact::Capacity => "how much memory PyTorch reports for this GPU",
        Fact::Context => "how much the CUDA context takes on this GPU",
        Fact::Reserved => "how much the caching allocator reserves for this step",
        Fact::Precision => "which precision recipe you use, as the candidates differ",
        Fact::RealRecipe => "the precision recipe that the framework really runs; the rule of thumb is none",
    }
}

pub(crate) fn caveat(caveat: &Caveat) -> String {
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
        Caveat::RuleOfThumb => {
            "These are the rule of thumb’s figures, which no framework holds exactly. Choose a recipe to decide.".into()
        }
        Caveat::PrecisionNotGiven { .. } => {
            "The precision recipe is not known: the figures are those of the dearest one.".into()
        }
    }
}

pub(crate) fn question(question: Question) -> &'static str {
    match question {
        Question::Rigid => "Rigid cost",
        Question::Activations => "Activations",
        Question::Margin => "Margin",
        Question::Throughput => "Throughput",
    }
}

pub(crate) fn status(status: Status) -> &'static str {
    match status {
        Status::Pass => "pass",
        Status::Attention => "attention",
        Status::Stop => "stop",
        Status::Waits => "waits",
    }
}

pub(crate) fn remedy(remedy: &PricedRemedy) -> String {
    let recipe = &remedy.plan.recipe;
    match remedy.id {
        RemedyId::FusedOptimizer => format!("{} fused", Locale::En.text().optimizer(recipe.optimizer.name)),
        RemedyId::SdpaAttention => "SDPA attention".into(),
        RemedyId::Checkpointing => "Activation checkpointing".into(),
        RemedyId::SmallerMicroBatch => {
            format!("Micro-batch {}, accumulation {}", (recipe.micro_batch), (recipe.grad_accum))
        }
        RemedyId::FreeGradients => "Free gradients each step".into(),
        RemedyId::DropOutputs => "Drop the model’s outputs".into(),
        RemedyId::NoCheckpointing => "Checkpointing off".into(),
        RemedyId::PureBf16 => "Pure BF16".into(),
        RemedyId::Autocast => "Autocast to BF16".into(),
        RemedyId::Fp16 => "Autocast to FP16".into(),
        RemedyId::ExpandableSegments => "Expandable segments".into(),
        RemedyId::LargerGpu => match &remedy.plan.machine.gpu {
            Some(GpuChoice::Catalogue(name)) => name.clone(),
            Some(GpuChoice::Custom(gpu)) => gpu.name.clone(),
            None => "A larger card".into(),
        },
        RemedyId::ShorterSequence => format!("Sequence {}", (recipe.seq_len)),
    }
}

pub(crate) fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::SameTraining => "same training",
        Effect::OtherHardware => "other hardware",
        Effect::ChangesTraining => "changes the training",
    }
}

//! Does it fit? Four answers, each with the numbers and the reason.

use serde::{Deserialize, Serialize};

use crate::bill::{Instant, Tiers};
use crate::calibration::within;
use crate::estimate::OnCard;
use crate::machine::Hardware;
use crate::measure::TierName;
use crate::plan::Plan;
use crate::recipe::Precision;
use crate::recipe::parallel::{DataParallel, MegatronLoss};
use crate::step::log::Phase;
use crate::units::Bytes;

/// The four answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// Fits with the margin, even with everything that the allocator caches.
    Fits,
    /// Fits only inside the margin, or only if the allocator frees its cache in time.
    Tight,
    /// Does not fit even if nothing is cached.
    DoesNotFit,
    /// One fact is missing that would decide.
    CannotTell,
}

impl VerdictKind {
    /// The name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Tight => "tight",
            Self::DoesNotFit => "does_not_fit",
            Self::CannotTell => "cannot_tell",
        }
    }

    /// Its place among the answers, the best first.
    #[must_use]
    pub(super) const fn rank(self) -> u8 {
        match self {
            Self::Fits => 0,
            Self::Tight => 1,
            Self::CannotTell => 2,
            Self::DoesNotFit => 3,
        }
    }
}

/// An answer with what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The answer.
    pub kind: VerdictKind,
    /// Why.
    pub reason: Reason,
    /// The quantities compared.
    pub numbers: Numbers,
}

/// Why a verdict is what it is. Byte counts are the ones that the sentence quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// *Fits*: this much is left, which is at least the margin.
    RoomBeyondMargin {
        /// Left of the card by the process figure.
        free: Bytes,
        /// The margin that the policy keeps, or what a calibration leaves open where that is more.
        margin: Bytes,
    },
    /// *Tight*: something is left, but less than the margin.
    InsideMargin {
        /// Left of the card by the process figure.
        free: Bytes,
        /// The margin that the policy keeps.
        margin: Bytes,
    },
    /// *Tight*: with what the allocator caches it is too much; without, it is not.
    OnlyByFreeingCache {
        /// By how much the process figure exceeds the card.
        over: Bytes,
    },
    /// *Does not fit*: the tensors' blocks alone exceed the card.
    AllocatedExceeds {
        /// What is missing.
        missing: Bytes,
    },
    /// *Does not fit*: replayed on this card, PyTorch's allocator gives back what it caches and still runs out.
    RunsOut {
        /// In which step, counted from 1; 0 while the model is built.
        step: u32,
        /// At which instant of it.
        instant: Instant,
        /// In which phase, if in another one than the training step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        phase: Option<Phase>,
        /// What it tried to take from the device.
        tried: Bytes,
    },
    /// *Cannot tell*: this fact would decide.
    Unknown(Fact),
}

/// A fact whose absence makes a verdict impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// Which GPU.
    Gpu,
    /// How much memory PyTorch reports for this GPU.
    Capacity,
    /// The process's context on this GPU.
    Context,
    /// What the caching allocator reserves.
    Reserved,
    /// Which precision recipe: the candidates' verdicts differ.
    Precision,
    /// Which precision recipe: the articles' rule of thumb is not one that a framework runs.
    RealRecipe,
    /// What a compiled step keeps and takes.
    Compiled,
    /// What a step with Transformer Engine takes, of which none was measured.
    Unmeasured,
    /// How far the GPU lags behind its host: memory in use on another stream is held until then.
    DeviceLag,
}

impl Verdict {
    /// The verdict with a replay on the card itself: between the two peaks only it can tell.
    #[must_use]
    pub(super) fn with_replay(self, on_card: Option<&OnCard>) -> Self {
        match (self.reason, on_card) {
            (Reason::OnlyByFreeingCache { .. }, Some(&OnCard::RunsOut { step, instant, phase, tried, .. })) => {
                Self { kind: VerdictKind::DoesNotFit, reason: Reason::RunsOut { step, instant, phase, tried }, ..self }
            }
            _ => self,
        }
    }
}

/// The quantities that a verdict compares. `None`: not known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// Peak of allocated memory.
    pub allocated: Bytes,
    /// Peak of reserved memory.
    pub reserved: Option<Bytes>,
    /// The process's context.
    pub context: Option<Bytes>,
    /// What NCCL's communicators take in the process, where it has such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communicators: Option<Bytes>,
    /// Reserved and that, what `nvidia-smi` shows for the process.
    pub process: Option<Bytes>,
    /// The card: the total that PyTorch reports.
    pub capacity: Option<Bytes>,
    /// Memory that others hold, as the user gave it.
    pub in_use: Option<Bytes>,
    /// Capacity less what others hold, the context and the communicators: what PyTorch's allocator can take.
    pub usable: Option<Bytes>,
}

/// Judges peaks against a card.
///
/// *Fits* quotes the process figure, which is safe even with cache; *does not fit* the allocated one, which is
/// impossible even without; between them, *tight*. In measured runs the smallest card on which a step completes lies
/// between 1.00 and 1.27 × its allocated peak, so the allocated peak alone never proves a fit.
#[must_use]
pub fn judge(tiers: &Tiers, hardware: &Hardware, plan: &Plan) -> Verdict {
    let allocated = tiers.allocated.peak_bytes;
    let reserved = tiers.reserved.as_ref().map(|t| t.peak_bytes);
    let outside = hardware.outside();
    let capacity = hardware.capacity.as_ref().map(|c| c.bytes);
    let in_use = hardware.in_use.unwrap_or_default();
    let process = reserved.zip(outside).and_then(|(r, c)| r.checked_add(c));
    let numbers = Numbers {
        allocated,
        reserved,
        context: hardware.context.as_ref().map(|context| context.bytes),
        communicators: hardware.communicators.as_ref().map(|of| of.bytes),
        process,
        capacity,
        in_use: hardware.in_use,
        usable: capacity.zip(outside).map(|(all, c)| all.saturating_sub(in_use).saturating_sub(c)),
    };
    let (kind, reason) = decide(&numbers, hardware.name.is_some() || capacity.is_some(), in_use, plan);
    Verdict { kind, reason, numbers }
}

fn decide(numbers: &Numbers, gpu_named: bool, in_use: Bytes, plan: &Plan) -> (VerdictKind, Reason) {
    let unknown = |fact| (VerdictKind::CannotTell, Reason::Unknown(fact));
    let Plan { recipe, parallel, .. } = plan;
    if recipe.precision == Some(Precision::RuleOfThumb) {
        return unknown(Fact::RealRecipe);
    }
    if recipe.compile {
        return unknown(Fact::Compiled);
    }
    let Some(capacity) = numbers.capacity else {
        return unknown(if gpu_named { Fact::Capacity } else { Fact::Gpu });
    };
    // An unknown context is at least zero: enough to say that something cannot fit.
    let outside = [numbers.context, numbers.communicators].into_iter().flatten();
    let beside = outside.chain([in_use]).fold(0_u64, |all, bytes| all.saturating_add(bytes.0));
    let least = numbers.allocated.0.saturating_add(beside);
    if least > capacity.0 {
        return (VerdictKind::DoesNotFit, Reason::AllocatedExceeds { missing: Bytes(least - capacity.0) });
    }
    let Some(reserved) = numbers.reserved else { return unknown(Fact::Reserved) };
    if numbers.context.is_none() {
        return unknown(Fact::Context);
    }
    let Some(process) = numbers.process else { return unknown(Fact::Reserved) };
    let held = process.0.saturating_add(in_use.0);
    debug_assert!(reserved <= process);
    if held > capacity.0 {
        return (VerdictKind::Tight, Reason::OnlyByFreeingCache { over: Bytes(held - capacity.0) });
    }
    let free = Bytes(capacity.0 - held);
    // What was fitted is not known better than its interval.
    let fitted = within(plan, TierName::Device, Bytes(held), [numbers.allocated, reserved]);
    let doubt = fitted.map_or(Bytes::ZERO, |[_, high]| high.saturating_sub(Bytes(held)));
    let margin = share_of(capacity, plan.policy_in_force().margin_low).max(doubt);
    // Compiled, and seen to take a fifth more than is walked.
    if matches!(&parallel.data, DataParallel::Megatron(options) if options.cross_entropy == MegatronLoss::Native) {
        return unknown(Fact::Compiled);
    }
    // Read in its code alone.
    if recipe.float8_te.is_some() {
        return unknown(Fact::Unmeasured);
    }
    // Walked as if every event had passed; a GPU that lags has been seen to reserve up to 1.6 times as much.
    if parallel.data.waits_on_events() {
        return unknown(Fact::DeviceLag);
    }
    if free >= margin {
        (VerdictKind::Fits, Reason::RoomBeyondMargin { free, margin })
    } else {
        (VerdictKind::Tight, Reason::InsideMargin { free, margin })
    }
}

/// `share` of `whole`, rounded up: a margin is never a byte short.
pub(crate) fn share_of(whole: Bytes, share: f64) -> Bytes {
    let bytes = (whole.as_f64() * share).ceil().clamp(0.0, whole.as_f64());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a byte count above")]
    Bytes(bytes as u64)
}

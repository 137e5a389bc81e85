//! What the catalogues have words for beside the engine's own enums: the labels of the page, its terms, and the
//! sentences that carry figures.

use crate::bill::{Instant, Part};
use crate::decide::VerdictKind;
use crate::estimate::Peak;
use crate::issue::Issue;
use crate::measure::Unit;
use crate::recipe::{OptimizerImpl, OptimizerName};
use crate::step::log::Phase;
use crate::step::readings::Holder;
use crate::units::Bytes;

/// A label without figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Label {
    // The frame.
    Tagline,
    SkipToAnswer,
    Steps,
    Answer,
    Share,
    ThemeSystem,
    ThemeLight,
    ThemeDark,
    Dismiss,
    Privacy,
    // The sections.
    Job,
    Bill,
    Timeline,
    Measured,
    // The job's form.
    Model,
    FindModel,
    ModelFromConfig,
    PasteConfig,
    ConfigJson,
    ConfigHint,
    ChooseFile,
    BackToPresets,
    Gpu,
    FindGpu,
    GpuUnknown,
    GpuOwn,
    GpuOwnName,
    GpuOwnMemory,
    GpuOwnMemoryHint,
    GpuOwnCapability,
    GpuOwnCapabilityHint,
    MigSlice,
    MigSliceHint,
    InUse,
    InUseHint,
    DontKnow,
    Precision,
    PrecisionUnknownHint,
    Optimizer,
    Implementation,
    Momentum,
    Trained,
    TrainAll,
    TrainLora,
    TrainQlora,
    Dora,
    LoraRank,
    LoraTargets,
    LessCommon,
    Batch,
    MicroBatch,
    SequencesOf,
    SeqLen,
    Tokens,
    GradAccum,
    GradAccumHint,
    Attention,
    AttentionUnknown,
    Checkpointing,
    Loss,
    More,
    Gpus,
    GpusHint,
    TensorSize,
    TensorSizeHint,
    Pipeline,
    PipelineHint,
    ContextRanks,
    ContextRanksHint,
    ExpertRanks,
    ExpertRanksHint,
    GpusPerNode,
    GpusPerNodeHint,
    NetworkGbps,
    NetworkGbpsHint,
    LinkGbps,
    LinkGbpsHint,
    Completion,
    CompletionHint,
    ClipGrad,
    ClipGradHint,
    Packed,
    PackedHint,
    Freeze,
    FreezeHint,
    Lengths,
    LengthsAsk,
    LengthsHint,
    LengthSteps,
    Pytorch,
    Transformers,
    AllocConf,
    AllocConfHint,
    Context,
    ContextHint,
    // The answer.
    Details,
    Close,
    ChangeFirst,
    Pricing,
    Refining,
    RefiningWhy,
    Checking,
    TensorsAtPeak,
    HelpedBefore,
    NothingHelps,
    Try,
    Undo,
    Stale,
    NoAnswerYet,
    BlockRounding,
    FirstStepHigher,
    CacheKept,
    ContextRow,
    /// What NCCL holds beside it, in the sums.
    CommunicatorsRow,
    InUseRow,
    NotKnown,
    Caveats,
    // The steps.
    WhatHelps,
    RuleAtMost,
    RuleAtLeast,
    OfTheCard,
    OfWhatIsLeft,
    KeepFree,
    Comfortable,
    ResetThresholds,
    PeakGib,
    ProcessGib,
    Change,
    Then,
    TryIt,
    Rough,
    CardMark,
    WholeCard,
    WholeRest,
    NoThroughput,
    // The bill.
    BillCaption,
    PartHead,
    Binds,
    BillNote,
    NothingHere,
    What,
    Formula,
    Numbers,
    Source,
    KnownHow,
    Total,
    // The phases, below it.
    Phases,
    PhasesCaption,
    PhaseHead,
    AllocatedGib,
    HeldByGib,
    Vllm,
    VllmNotKnown,
    // The timeline.
    TimelineAsk,
    TimelineNote,
    TimelineAlt,
    // Measured.
    PasteAsk,
    PasteLimit,
    TryExample,
    ExampleOom,
    ExampleScript,
    ExampleDocument,
    Predicted,
    MeasuredHead,
    Difference,
    ReadAs,
    TryFirst,
    Forget,
    UseItsJob,
    NothingYet,
    ReadingHead,
    UnitQuestion,
    DropHere,
    NoPlanNeeded,
    // What explains the difference, what the texts show, what is fitted.
    Explaining,
    TakeOver,
    OtherExplanations,
    CheckBy,
    Remedy,
    Calibrate,
    Fitting,
    NothingToFit,
    Calibration,
    RemoveCalibration,
    NoCalibration,
    // Errors.
    ProblemTitle,
    LinkCopied,
    CopyFailed,
    FileUnreadable,
    Cancel,
    WorkingItOut,
    // The foot.
    Footer,
}

/// A term with its definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    Weights,
    States,
    Gradients,
    Activations,
    Temporary,
    FirstSteps,
    Rounding,
    Allocated,
    Cache,
    Reserved,
    Context,
    Process,
    InUse,
    MicroBatch,
    GradAccum,
    Momentum,
    LoraRank,
    Checkpointing,
    Loss,
    Foreach,
    Fused,
    Forloop,
    Sdpa,
    FlashPackage,
    Eager,
    Lora,
    Qlora,
    Dora,
}

impl Term {
    /// Those that open their definition where they stand; the others' is written beside them.
    pub const OPENING: [Self; 21] = [
        Self::Weights,
        Self::States,
        Self::Gradients,
        Self::Activations,
        Self::Temporary,
        Self::FirstSteps,
        Self::Rounding,
        Self::Allocated,
        Self::Cache,
        Self::Reserved,
        Self::Context,
        Self::Process,
        Self::InUse,
        Self::MicroBatch,
        Self::GradAccum,
        Self::Momentum,
        Self::LoraRank,
        Self::Dora,
        Self::Foreach,
        Self::Fused,
        Self::Forloop,
    ];

    /// The term for a part of the bill.
    #[must_use]
    pub const fn of_part(part: Part) -> Self {
        match part {
            Part::Weights => Self::Weights,
            Part::States => Self::States,
            Part::Gradients => Self::Gradients,
            Part::Activations => Self::Activations,
            Part::Temporary => Self::Temporary,
        }
    }
}

/// A sentence with figures in it.
#[derive(Clone, Debug, PartialEq)]
pub enum Msg<'a> {
    /// The page's title for an answer.
    Title { verdict: VerdictKind, needed: Bytes, of: Option<Bytes> },
    /// After the big number: what it is of.
    NeededOfUsable { usable: Option<Bytes> },
    /// After the big number, where the process figure is quoted.
    ProcessOfCard { card: Bytes },
    /// After the big number, where nothing is compared.
    AllocatedAtPeak,
    /// What the binding instant holds that makes it the peak.
    Binding { instant: Instant, largest: Part, bytes: Bytes },
    /// The optimizer's temporaries make the step the peak.
    BindingStep { name: OptimizerName, implementation: OptimizerImpl, temporaries: Bytes },
    /// What the phase that binds holds, where that is not the training step.
    BindingPhase { phase: Phase, largest: Holder, bytes: Bytes },
    /// The phase that binds.
    PeakInPhase { phase: Phase },
    /// The bar in words.
    BarAlt { needed: Bytes, card: Option<Bytes>, parts: &'a [(Part, Bytes)] },
    /// Head of the answer's sums.
    SumsHead { peak: Peak },
    /// The status of a step beside its name in the navigation.
    ShareOf { share: &'a str },
    /// Rigid cost: the figure.
    RigidFact { share: Option<&'a str> },
    /// Activations: the figure.
    ActivationFact { share: Option<&'a str>, left: Option<Bytes>, instant: Instant },
    /// Activations: they do not decide here.
    ActivationsFreeAtPeak { at_peak: Bytes, peak: Peak },
    /// Margin: the figure, `None` where nothing is left.
    MarginFact { free: Option<&'a str>, policy: &'a str, policy_bytes: Option<Bytes> },
    /// Margin: what is missing.
    MarginOver,
    /// Margin: reserved, and unused of it; `None`: being refined.
    CacheNote { figures: Option<[Bytes; 2]> },
    /// A gauge in words.
    GaugeAlt { share: &'a str, rule: &'a str },
    /// The mark of the rule on a gauge.
    GaugeRule { rule: &'a str },
    /// Throughput: tokens a second.
    ThroughputFact { low: &'a str, high: &'a str },
    /// Throughput: how the range is made.
    ThroughputNote {
        numbers: &'a str,
        low: &'a str,
        high: &'a str,
        step_low: &'a str,
        step_high: &'a str,
        source: &'a str,
    },
    /// The implementation where it is not known which: the optimizer's default.
    ImplementationUnknown { implementation: OptimizerImpl },
    /// What opens a definition.
    WhatIs { term: &'a str },
    /// The hint under the model.
    ModelHint { parameters: &'a str, shape: &'a str },
    /// The hint under a GPU.
    GpuHint { capacity: Option<Bytes>, source: &'a str },
    /// What one precision recipe comes to, where it is not known which it is; `None`: being refined.
    PrecisionCandidate { name: &'a str, verdict: Option<VerdictKind>, allocated: Bytes },
    /// The title of an opened cell.
    CellTitle { part: Part, instant: Instant },
    /// A line that stands for several tensors.
    Count { count: u64 },
    /// The lines of a cell that are not shown one by one.
    MoreLines { count: usize },
    /// The share of the card, below the bill.
    OfCard { card: Bytes },
    /// The highest moment, on the timeline.
    PeakBinds { gib: &'a str },
    /// How many issues there are.
    Problems { count: usize },
    /// One issue, with the label of its field.
    Problem { field: &'a str, issue: &'a Issue },
    /// The verdict for the live region.
    Live { verdict: VerdictKind, needed: Bytes, of: Option<Bytes> },
    /// Something was measured, beside the section's name in the navigation.
    MeasurementRead,
    /// What a measurement was read as.
    ReadBack { readings: usize, unit: Option<Unit>, producer: Option<&'a str>, id: Option<&'a str> },
    /// Of several measurements in one text, the last ones are shown.
    LastOf { shown: usize, all: usize },
    /// A unit as an answer.
    UnitOption { unit: Unit, peak: &'a str },
    /// Text past the limit.
    TextTooLarge { bytes: Bytes, limit: Bytes },
    /// A file past the limit.
    FileTooLarge { name: &'a str, bytes: Bytes, limit: Bytes },
    /// How much of a file has been read; `None`: of a text.
    FileRead { name: Option<&'a str>, read: Bytes, of: Option<Bytes> },
    /// A link that is not taken.
    LinkRefused { why: LinkProblem },
    /// A model taken from pasted or dropped text.
    ConfigTaken { name: &'a str },
    /// A whole plan taken from pasted or dropped text.
    PlanTaken,
    /// JSON that does not parse.
    NotJson { line: usize, column: usize },
    /// Text that is nothing known.
    NothingKnown,
    /// A remedy that was tried.
    Tried { remedy: &'a str },
    /// The rules' versions.
    Versions { pytorch: &'a str, transformers: &'a str },
}

/// Why a link is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkProblem {
    /// Longer than any link that this page writes.
    TooLong,
    /// Not one of this page's links, or a broken one.
    Malformed,
    /// Of a version that this page does not know.
    TooNew,
}

//! The figures of transformers' memory tracker, called as transformers calls them: `train_mem_gpu_peaked_delta`.
//!
//! At the start of each stage the tracker empties the cache, resets the peak and reads `memory_allocated()` and the
//! process's resident set; at the end it reads both again, and `max_memory_allocated()`. `alloc_delta` is the difference
//! of the two and may be negative; `peaked_delta` is what the peak was above the end, so a stage needed both together.
//! `before_init_mem_…` (since 4.12) is what there was before the trainer was made. Source:
//! `transformers/trainer_utils.py`, `TrainerMemoryTracker`.

use core::fmt;

use crate::measure::TierName;

/// What the tracker measures, in the order in which it may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// `Trainer.__init__`, which moves the model to the GPU.
    Init,
    /// `train()`, with the evaluations inside of it.
    Train,
    /// `evaluate()`.
    Eval,
    /// `predict()`.
    Test,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Init, Self::Train, Self::Eval, Self::Test];

    const fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Train => "train",
            Self::Eval => "eval",
            Self::Test => "test",
        }
    }
}

/// A figure of the tracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tracked {
    /// What there was before the trainer was made.
    Before {
        /// Of the host instead of the GPU.
        host: bool,
    },
    /// A stage's growth between its start and its end.
    Growth {
        /// The stage.
        stage: Stage,
        /// Of the host instead of the GPU.
        host: bool,
    },
    /// What a stage's peak was above its end.
    Peaked {
        /// The stage.
        stage: Stage,
        /// Of the host instead of the GPU.
        host: bool,
    },
}

impl Tracked {
    /// Every figure.
    pub fn all() -> impl Iterator<Item = Self> {
        [false, true].into_iter().flat_map(|host| {
            let stages = Stage::ALL.into_iter();
            core::iter::once(Self::Before { host })
                .chain(stages.flat_map(move |stage| [Self::Growth { stage, host }, Self::Peaked { stage, host }]))
        })
    }

    /// The figure of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        name.contains("_mem_").then(|| Self::all().find(|tracked| tracked.to_string() == name))?
    }

    /// Whether it is the host's resident set and not PyTorch's allocator.
    #[must_use]
    pub const fn host(self) -> bool {
        let (Self::Before { host } | Self::Growth { host, .. } | Self::Peaked { host, .. }) = self;
        host
    }

    /// Which of the totals it is one of.
    #[must_use]
    pub const fn tier(self) -> TierName {
        if self.host() { TierName::Process } else { TierName::Allocated }
    }

    /// Whether it may be negative.
    #[must_use]
    pub const fn is_delta(self) -> bool {
        matches!(self, Self::Growth { .. })
    }
}

impl fmt::Display for Tracked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.host() { "cpu" } else { "gpu" };
        match self {
            Self::Before { .. } => write!(f, "before_init_mem_{place}"),
            Self::Growth { stage, .. } => write!(f, "{}_mem_{place}_alloc_delta", stage.name()),
            Self::Peaked { stage, .. } => write!(f, "{}_mem_{place}_peaked_delta", stage.name()),
        }
    }
}

//! The same run under other settings: what common advice does to its reserved memory, and on which card it fails when.

use super::{Program, Run, StepFigures, Walks, steps};
use crate::allocator::{AllocConf, Config};
use crate::estimate::alloc_conf;
use crate::issue::Issue;
use crate::plan::{Framework, Plan};
use crate::recipe::{Distribution, Lengths};
use crate::units::Bytes;

/// What is changed about a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    /// Nothing: the plan's own settings.
    AsPlanned,
    /// `PYTORCH_CUDA_ALLOC_CONF` instead of the plan's; empty: unset.
    AllocConf(&'static str),
    /// The same, with `torch.cuda.set_per_process_memory_fraction`: without it, garbage collection does nothing.
    AllocConfAndFraction(&'static str, f64),
    /// The longest batch first.
    LongestFirst,
    /// Batches are padded to a multiple of this.
    PadToMultipleOf(u64),
    /// `torch.cuda.empty_cache()` after every step.
    EmptyCache,
}

/// What is compared with the plan's own settings.
pub const ADVICE: [Setting; 8] = [
    Setting::AllocConf(""),
    Setting::AllocConf("expandable_segments:True"),
    Setting::AllocConf("roundup_power2_divisions:4"),
    Setting::AllocConf("max_split_size_mb:128"),
    Setting::AllocConfAndFraction("garbage_collection_threshold:0.8", 0.99),
    Setting::LongestFirst,
    Setting::PadToMultipleOf(64),
    Setting::EmptyCache,
];

impl Setting {
    /// Whether it changes anything about `plan`.
    #[must_use]
    pub fn changes(self, plan: &Plan) -> bool {
        let lengths = plan.recipe.lengths.as_ref();
        let set = plan.framework.alloc_conf.as_deref().unwrap_or_default();
        match self {
            Self::AsPlanned => false,
            Self::AllocConf(conf) => set != conf,
            Self::LongestFirst => lengths.is_some_and(|l| !l.longest_first),
            Self::PadToMultipleOf(n) => lengths.is_some_and(|l| l.pad_to_multiple_of != n),
            Self::AllocConfAndFraction(..) | Self::EmptyCache => true,
        }
    }

    /// Whether it means something only on a card of known size.
    #[must_use]
    pub const fn needs_card(self) -> bool {
        matches!(self, Self::AllocConfAndFraction(..))
    }
}

/// How a run on a card ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every step completes.
    Completes,
    /// It runs out of memory in this step, counted from 1; in step 0, while the model is built.
    FailsInStep(usize),
}

/// A run under one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The setting.
    pub setting: Setting,
    /// Step by step, on a device without limit; on the card where the setting needs one, as far as it gets there.
    pub steps: Vec<StepFigures>,
    /// How it ends on devices that give so much to the allocator, in the order they were asked for.
    pub ends: Vec<End>,
}

impl Outcome {
    /// The most allocated at once in a step.
    #[must_use]
    pub fn peak_allocated(&self) -> Bytes {
        self.steps.iter().map(|s| s.peak_allocated).max().unwrap_or_default()
    }

    /// The most reserved at once in a step.
    #[must_use]
    pub fn peak_reserved(&self) -> Bytes {
        self.steps.iter().map(|s| s.peak_reserved).max().unwrap_or_default()
    }
}

/// A run to be replayed under several settings.
#[derive(Debug)]
pub struct Comparison {
    plan: Plan,
    lengths: Lengths,
    program: Program,
}

impl Comparison {
    /// Walks `plan` at all of its lengths.
    ///
    /// # Errors
    /// Every issue of the plan, also at single lengths, as [`Program::new`].
    pub fn new(plan: &Plan) -> Result<Self, Vec<Issue>> {
        Self::of(plan, Self::walks(plan)?)
    }

    /// The walks that [`Comparison::new`] needs, none of them done.
    pub(super) fn walks(plan: &Plan) -> Result<Walks, Vec<Issue>> {
        let issues = plan.recipe.issues();
        if !issues.is_empty() {
            return Err(issues);
        }
        Walks::new(plan, steps(&plan.recipe, &lengths(plan)))
    }

    pub(super) fn of(plan: &Plan, walks: Walks) -> Result<Self, Vec<Issue>> {
        Ok(Self { plan: plan.clone(), lengths: lengths(plan), program: walks.finish()? })
    }

    /// The steps as planned, each with the padded lengths of its micro-batches.
    #[must_use]
    pub fn steps(&self) -> &[Vec<u64>] {
        self.program.steps()
    }

    /// Replays the run under `setting` on a device without limit, and on devices that give `cards` to the allocator.
    ///
    /// # Errors
    /// What the PyTorch version refuses of the settings; what is wrong with the plan at the lengths they lead to.
    pub fn outcome(&self, setting: Setting, cards: &[Bytes]) -> Result<Outcome, Vec<Issue>> {
        let mut lengths = self.lengths.clone();
        let (mut conf, mut fraction) = (None, None);
        match setting {
            Setting::AsPlanned | Setting::EmptyCache => {}
            Setting::AllocConf(text) => conf = Some(text),
            Setting::AllocConfAndFraction(text, of_card) => (conf, fraction) = (Some(text), Some(of_card)),
            Setting::LongestFirst => lengths.longest_first = true,
            Setting::PadToMultipleOf(n) => lengths.pad_to_multiple_of = n,
        }
        let others = if lengths == self.lengths {
            None
        } else {
            Some(Program::new(&self.plan, steps(&self.plan.recipe, &lengths))?)
        };
        let program = others.as_ref().unwrap_or(&self.program);
        let framework = &self.plan.framework;
        let alloc_conf: AllocConf = match conf {
            None => alloc_conf(framework)?,
            Some(text) => alloc_conf(&Framework { alloc_conf: Some(text.into()), ..framework.clone() })?,
        };
        let events_pending = self.plan.parallel.slow_device;
        let unlimited = Config { alloc_conf, fraction, events_pending, ..Config::new(framework.pytorch) };
        let on = |card: Option<Bytes>| Config { total_bytes: card, ..unlimited.clone() };
        let empty = setting == Setting::EmptyCache;
        let whole = if setting.needs_card() { cards.first().copied() } else { None };
        let (steps, _) = replay(program, &on(whole), empty);
        let peak = steps.iter().map(|s| s.peak_reserved).max().unwrap_or_default();
        let end = |card: &Bytes| {
            // A card that holds all that is ever reserved without a limit is none.
            if !setting.needs_card() && *card >= peak {
                return End::Completes;
            }
            replay(program, &on(Some(*card)), empty).1
        };
        Ok(Outcome { setting, ends: cards.iter().map(end).collect(), steps })
    }
}

fn lengths(plan: &Plan) -> Lengths {
    plan.recipe.lengths.clone().unwrap_or_else(|| Lengths::new(Distribution::Fixed))
}

fn replay(program: &Program, config: &Config, empty_cache: bool) -> (Vec<StepFigures>, End) {
    let mut run = Run::new(program, config, empty_cache);
    let mut steps = Vec::with_capacity(program.steps().len());
    loop {
        match run.step() {
            Ok(Some(figures)) => steps.push(figures),
            Ok(None) => return (steps, End::Completes),
            Err(_) => {
                let failed = run.step_in_hand();
                return (steps, End::FailsInStep(failed));
            }
        }
    }
}

//! What is said of a run over sequences of many lengths. A catalogue of its own: the page's first program has no use for it.

use crate::fragmentation::{Card, End, Finding, Setting};
use crate::text::Locale;
use crate::units::Bytes;

/// Something that is said of such a run.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "a name says what it is")]
pub enum LengthsSaid<'a> {
    Hint,
    Example,
    Start,
    Stop,
    /// How far the work is, of how much.
    Progress(u64, u64),
    /// The figures are of earlier inputs.
    Earlier,
    /// What was run.
    Head {
        steps: usize,
        batches: usize,
        shortest: u64,
        longest: u64,
        distinct: usize,
    },
    Finding(Finding),
    Setting(Setting),
    /// How a setting ends on cards, the smallest first.
    Ends(&'a [Card], &'a [End]),
    // The heads of the table.
    SettingHead,
    Allocated,
    Reserved,
    Ratio,
    /// Reserved after this step.
    After(usize),
}

/// What one language says of such a run.
pub trait LengthsCatalogue: Sync {
    /// The words.
    fn say(&self, said: &LengthsSaid<'_>) -> String;
}

impl Locale {
    /// Its words for runs over many lengths.
    #[must_use]
    pub fn lengths(self) -> &'static dyn LengthsCatalogue {
        match self {
            Self::En => &English,
        }
    }
}

struct English;

impl LengthsCatalogue for English {
    fn say(&self, said: &LengthsSaid<'_>) -> String {
        match *said {
            LengthsSaid::Progress(done, total) => format!("{done} of {total} pieces of work are done"),
            LengthsSaid::Head { steps, batches, shortest, longest, distinct } => format!(
                "{steps} steps, {batches} micro-batches padded to {shortest} to {longest} tokens, {distinct} different lengths"
            ),
            LengthsSaid::Finding(Finding::Least { setting, reserved, less }) => {
                let setting = self.say(&LengthsSaid::Setting(setting));
                format!("The least is reserved with {setting}: {reserved}, {less} less than as planned.")
            }
            LengthsSaid::Finding(Finding::NoneHelps) => {
                "None of these settings reserves clearly less than the plan’s own: advice against fragmentation has nothing to win here.".into()
            }
            LengthsSaid::Finding(Finding::Worse { setting, reserved, more }) => {
                let setting = self.say(&LengthsSaid::Setting(setting));
                format!("Often advised, and worse here: {setting} reserves {reserved}, {more} more than as planned.")
            }
            LengthsSaid::Setting(setting) => of_setting(setting),
            LengthsSaid::Ends(cards, ends) => of_ends(cards, ends),
            LengthsSaid::After(step) => format!("After step {step}"),
            _ => plain(said).into(),
        }
    }
}

fn of_setting(setting: Setting) -> String {
    match setting {
        Setting::AsPlanned => "as planned".into(),
        Setting::AllocConf("") => "allocator's defaults".into(),
        Setting::AllocConf(conf) => conf.into(),
        Setting::AllocConfAndFraction(conf, fraction) => format!("{conf} below {fraction} of the card"),
        Setting::LongestFirst => "longest batch first".into(),
        Setting::PadToMultipleOf(n) => format!("padded to multiples of {n}"),
        Setting::EmptyCache => "empty_cache after every step".into(),
    }
}

/// The smallest card on which it completes, and what becomes of it on the next smaller one.
fn of_ends(cards: &[Card], ends: &[End]) -> String {
    let fails = |at: usize| {
        let (card, end) = (cards.get(at)?, ends.get(at)?);
        Some(match end {
            End::Completes => return None,
            End::FailsInStep(0) => format!("on {} out of memory while the model is built", card.name),
            End::FailsInStep(n) => format!("on {} out of memory in step {n}", card.name),
        })
    };
    let completes = ends.iter().position(|end| *end == End::Completes);
    let on = completes.and_then(|at| cards.get(at)).map(|card| format!("completes on {}", card.name));
    let smaller = completes.unwrap_or(ends.len()).checked_sub(1).and_then(fails);
    on.into_iter().chain(smaller).collect::<Vec<_>>().join("; ")
}

/// What has no figures in it.
fn plain(said: &LengthsSaid<'_>) -> &'static str {
    match said {
        LengthsSaid::Hint => {
            "Each length is walked as a step of its own, and all steps are replayed on one allocator: under the plan’s settings and under what is often advised."
        }
        LengthsSaid::Example => "For example:",
        LengthsSaid::Start => "Replay the run",
        LengthsSaid::Stop => "Stop",
        LengthsSaid::Earlier => "These figures are of earlier inputs.",
        LengthsSaid::SettingHead => "Setting",
        LengthsSaid::Allocated => "Allocated, peak",
        LengthsSaid::Reserved => "Reserved, peak",
        LengthsSaid::Ratio => "Ratio",
        LengthsSaid::Progress(..)
        | LengthsSaid::Head { .. }
        | LengthsSaid::Finding(_)
        | LengthsSaid::Setting(_)
        | LengthsSaid::Ends(..)
        | LengthsSaid::After(_) => "",
    }
}

/// The figures that a head says.
impl<'a> LengthsSaid<'a> {
    /// What was run, of the padded lengths of its micro-batches.
    #[must_use]
    pub fn head(steps: &[Vec<u64>]) -> Self {
        let distinct: std::collections::BTreeSet<u64> = steps.iter().flatten().copied().collect();
        Self::Head {
            steps: steps.len(),
            batches: steps.iter().map(Vec::len).sum(),
            shortest: distinct.first().copied().unwrap_or(0),
            longest: distinct.last().copied().unwrap_or(0),
            distinct: distinct.len(),
        }
    }
}

/// How much more is reserved than allocated, in words.
#[must_use]
pub fn ratio(reserved: Bytes, allocated: Bytes) -> String {
    format!("{:.2}", reserved.as_f64() / allocated.as_f64().max(1.0))
}

//! A search among the plans around a job, as the page shows it: what `vram-budget plan` prints.

use serde::{Deserialize, Serialize};

use crate::decide::Status;
use crate::decide::search::{Found, Progress, Search, Space};
use crate::issue::Issue;
use crate::machine::gpus;
use crate::plan::Plan;
use crate::text::{Locale, Searched, issue_line};
use crate::view::answer::status;

/// The memory on the labels of the cards among which the smallest is sought, in GB.
const SIZES: [u64; 7] = [12, 16, 24, 32, 48, 80, 141];
/// How many sequence lengths are tried: the plan's, and each twice the one before.
const LENGTHS: u32 = 6;
/// Into how many parts the way from the longest that fits to twice that is cut then.
const PARTS: u64 = 16;

/// What a search found, in words and figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchTable {
    /// How much was looked at.
    pub head: String,
    /// The answers, each under its heading.
    pub groups: Vec<(String, Vec<FoundRow>)>,
    /// Why nothing was searched.
    pub problems: Vec<String>,
}

/// A plan that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoundRow {
    /// What varies.
    pub name: String,
    /// What it holds.
    pub held: String,
    /// How fast it is.
    pub speed: String,
    /// The verdict's mark.
    pub status: Status,
    /// The verdict's word.
    pub verdict: String,
    /// It, to take it over.
    pub plan: Box<Plan>,
}

/// A search in hand: among the plans around a job, on its own card and on cards of other sizes; then among sequences of
/// other lengths on its own, doubled first and then in smaller steps.
#[derive(Debug)]
pub struct Searching {
    plan: Plan,
    gpu: Option<String>,
    around: Search,
    /// What varies where the length does.
    space: Space,
    doubled: Search,
    /// Begun once the longest of the doubled ones is known.
    finer: Option<Search>,
    /// How many answers were told.
    told: usize,
}

impl Searching {
    /// The search around `plan`, not begun.
    ///
    /// # Errors
    /// Every issue of the plan's machine.
    pub fn of(plan: &Plan) -> Result<Self, Vec<Issue>> {
        let mut space = Space::around(plan);
        // One sequence at a time has the most room for length.
        let seq_len = |shift: u32| plan.recipe.seq_len.checked_shl(shift);
        let seq_lens = (0..LENGTHS).filter_map(seq_len).collect();
        let lengths = Space { micro_batches: vec![1], seq_lens, ..space.clone() };
        let doubled = Search::of(plan, lengths.clone())?;
        // Of each size the latest in the catalogue that computes in BF16.
        let of_size = |size: &u64| gpus().iter().rfind(|gpu| gpu.memory_gb == *size && gpu.bf16);
        space.add_gpus(SIZES.iter().filter_map(of_size).map(|gpu| gpu.name.clone()));
        Ok(Self {
            plan: plan.clone(),
            gpu: gpu_of(plan),
            around: Search::of(plan, space)?,
            space: lengths,
            doubled,
            finer: None,
            told: 0,
        })
    }

    /// Goes on by a group of plans, or by at most `events` of a replay. True once nothing is left.
    pub fn advance(&mut self, events: usize) -> bool {
        if !is_done(&self.around) {
            self.around.advance(events);
            return false;
        }
        if !is_done(&self.doubled) {
            self.doubled.advance(events);
            return false;
        }
        if self.finer.is_none() {
            let Some(longest) = longest(&self.doubled).map(|found| found.plan.recipe.seq_len) else { return true };
            let between = |part: u64| longest.checked_add(longest.checked_mul(part)? / PARTS);
            let mut seq_lens: Vec<u64> = (1..PARTS).filter_map(between).filter(|length| *length > longest).collect();
            seq_lens.dedup();
            let space = Space { seq_lens, ..self.space.clone() };
            // A plan whose machine was read once is read again.
            self.finer = Search::of(&self.plan, space).ok();
        }
        self.finer.as_mut().is_none_or(|finer| finer.advance(events))
    }

    /// What was found so far, where that is more than was told before.
    pub fn news(&mut self, locale: Locale) -> Option<SearchTable> {
        let answered = |search: &Search| search.answers().len();
        let count = answered(&self.around).min(1) + usize::from(is_done(&self.around)) + answered(&self.doubled);
        let more = count > self.told;
        self.told = count;
        more.then(|| self.table(locale))
    }

    /// How much is done, and of how much: each machine's answers count as much as all walks.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        self.searches().fold((0, 0), |sum, search| {
            let Progress { walked, answered, .. } = search.progress();
            (sum.0 + walked.0 + answered.0 * walked.1, sum.1 + walked.1 + answered.1 * walked.1)
        })
    }

    fn searches(&self) -> impl Iterator<Item = &Search> {
        [&self.around, &self.doubled].into_iter().chain(&self.finer)
    }

    /// What was found so far. What is not known yet has no heading.
    #[must_use]
    pub fn table(&self, locale: Locale) -> SearchTable {
        let words = locale.advice();
        let progress = || self.searches().map(Search::progress);
        let looked = Searched::Looked {
            plans: progress().map(|of| of.plans).sum(),
            replayed: progress().map(|of| of.replayed).sum(),
        };
        let mut groups = Vec::new();
        if let Some(own) = self.around.answers().first() {
            let gpu = self.gpu.clone().unwrap_or_else(|| words.searched(&Searched::NoGpu));
            let front = own.front.iter().map(|found| row(found, locale)).collect();
            groups.push((words.searched(&Searched::Front { gpu: &gpu }), front));
            let longest = self.finer.as_ref().and_then(longest).or_else(|| longest(&self.doubled));
            let sought = [
                (Searched::Fastest, own.fastest.as_ref()),
                (Searched::LargestMicroBatch, own.largest_micro_batch.as_ref()),
                (Searched::LongestSequence, longest),
            ];
            let known = if is_done(&self.doubled) { sought.len() } else { sought.len() - 1 };
            for (what, found) in sought.into_iter().take(known) {
                let none = if found.is_some() { String::new() } else { words.searched(&Searched::None) };
                let rows = found.map(|found| row(found, locale)).into_iter().collect();
                groups.push((format!("{}{none}", words.searched(&what)), rows));
            }
        }
        if !is_done(&self.around) {
            return SearchTable { head: words.searched(&looked), groups, problems: Vec::new() };
        }
        let smallest = self.around.smallest().and_then(|at| self.around.answers()[at].fastest.as_ref());
        let gpu = smallest.and_then(|found| gpu_of(&found.plan));
        let rows = smallest.map(|found| row(found, locale)).into_iter().collect();
        groups.push((words.searched(&Searched::SmallestGpu { gpu: gpu.as_deref() }), rows));
        SearchTable { head: words.searched(&looked), groups, problems: Vec::new() }
    }
}

impl SearchTable {
    /// What is shown of a search that cannot be.
    #[must_use]
    pub fn refused(issues: &[Issue], locale: Locale) -> Self {
        let problems = issues.iter().map(|issue| issue_line(locale.text(), issue)).collect();
        Self { problems, ..Self::default() }
    }
}

fn is_done(search: &Search) -> bool {
    let Progress { answered: (answered, of), .. } = search.progress();
    answered == of
}

/// The plan with the longest sequence that fits on the own card.
fn longest(search: &Search) -> Option<&Found> {
    search.answers().first()?.longest_sequence.as_ref()
}

fn gpu_of(plan: &Plan) -> Option<String> {
    plan.machine.resolve().ok()?.name
}

fn row(found: &Found, locale: Locale) -> FoundRow {
    let (text, words) = (locale.text(), locale.advice());
    let speed = found.throughput.as_ref().map(|of| of.tokens_per_second);
    FoundRow {
        name: words.searched(&Searched::Plan(&found.plan)),
        held: found.held().to_string(),
        speed: words.searched(&speed.map_or(Searched::SpeedNotKnown, Searched::Speed)),
        status: status(found.verdict.kind),
        verdict: text.verdict(found.verdict.kind).into(),
        plan: Box::new(found.plan.clone()),
    }
}

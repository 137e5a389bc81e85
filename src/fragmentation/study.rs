//! A run under its plan's settings and under common advice, worked out piece by piece.

use super::{ADVICE, Comparison, Outcome, Setting, Walks};
use crate::estimate::usable;
use crate::issue::Issue;
use crate::machine::{GpuChoice, Machine, gpus};
use crate::plan::Plan;
use crate::units::Bytes;

/// After which steps growth is shown, beside the last one.
pub const SHOWN: [usize; 5] = [1, 5, 10, 50, 100];
/// The most cards of the catalogue that are looked at.
const MOST_CARDS: usize = 8;
/// Settings whose peaks differ by less are alike.
const ALIKE: f64 = 0.03;

/// A card, and what it can give to the allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// What it can give.
    pub usable: Bytes,
}

/// A setting with what it does, or why it cannot be.
pub type Row = (Setting, Result<Outcome, Vec<Issue>>);

/// What the settings come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finding {
    /// This one reserves the least, and clearly less than is planned.
    Least {
        /// The setting.
        setting: Setting,
        /// The most that it reserves.
        reserved: Bytes,
        /// How much less that is.
        less: Bytes,
    },
    /// None reserves clearly less than is planned.
    NoneHelps,
    /// This one reserves clearly more than is planned.
    Worse {
        /// The setting.
        setting: Setting,
        /// The most that it reserves.
        reserved: Bytes,
        /// How much more that is.
        more: Bytes,
    },
}

/// The work, as far as it has come.
#[derive(Debug)]
pub struct Study {
    plan: Plan,
    walks: Option<Walks>,
    comparison: Option<Comparison>,
    cards: Vec<Card>,
    /// Settings that are not tried yet, the next one last.
    todo: Vec<Setting>,
    rows: Vec<Row>,
    total: usize,
}

impl Study {
    /// Nothing is done yet.
    ///
    /// # Errors
    /// Every issue of the plan.
    pub fn new(plan: &Plan) -> Result<Self, Vec<Issue>> {
        let walks = Comparison::walks(plan)?;
        let advice = ADVICE
            .into_iter()
            .filter(|setting| setting.changes(plan) && (!setting.needs_card() || plan.machine.gpu.is_some()));
        let mut todo: Vec<Setting> = [Setting::AsPlanned].into_iter().chain(advice).collect();
        todo.reverse();
        let total = walks.left() + 1 + todo.len();
        let (walks, plan) = (Some(walks), plan.clone());
        Ok(Self { plan, walks, comparison: None, cards: Vec::new(), todo, rows: Vec::new(), total })
    }

    /// How many pieces are done, of how many.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        let to_join = usize::from(self.walks.is_some());
        let left = self.walks.as_ref().map_or(0, Walks::left) + to_join + self.todo.len();
        (self.total.saturating_sub(left), self.total)
    }

    /// Does the next piece: a walk at one length, or a replay under one setting. True once all is done.
    ///
    /// # Errors
    /// Every issue of the plan at its lengths.
    pub fn advance(&mut self) -> Result<bool, Vec<Issue>> {
        if let Some(mut walks) = self.walks.take() {
            if walks.left() > 0 {
                walks.walk()?;
                self.walks = Some(walks);
            } else {
                let comparison = Comparison::of(&self.plan, walks)?;
                self.cards = cards(&self.plan, &comparison.outcome(Setting::AsPlanned, &[])?)?;
                self.todo.retain(|setting| !setting.needs_card() || !self.cards.is_empty());
                self.comparison = Some(comparison);
            }
            return Ok(false);
        }
        if let (Some(comparison), Some(setting)) = (&self.comparison, self.todo.pop()) {
            let sizes: Vec<Bytes> = self.cards.iter().map(|card| card.usable).collect();
            self.rows.push((setting, comparison.outcome(setting, &sizes)));
        }
        Ok(self.todo.is_empty())
    }

    /// The steps as planned, each with the padded lengths of its micro-batches; none before all lengths are walked.
    #[must_use]
    pub fn steps(&self) -> &[Vec<u64>] {
        self.comparison.as_ref().map_or(&[], Comparison::steps)
    }

    /// The plan's card; of a plan without one, those cards of the catalogue that the run may or may not fit, by memory.
    #[must_use]
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// The settings that were tried, the plan's own first.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// What they come to.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        // The allocator's bounds on what it reserves, and a card's, make no figure of a run without limit.
        let peaks = self.rows.iter().filter(|(setting, _)| !setting.needs_card());
        let peaks: Vec<(Setting, Bytes)> =
            peaks.filter_map(|(setting, row)| Some((*setting, row.as_ref().ok()?.peak_reserved()))).collect();
        let Some(((_, planned), others)) = peaks.split_first() else { return Vec::new() };
        if others.is_empty() {
            return Vec::new();
        }
        let clearly = |less: Bytes, more: Bytes| more.as_f64() > less.as_f64() * (1.0 + ALIKE);
        let least = others.iter().min_by_key(|(_, reserved)| *reserved).filter(|(_, least)| clearly(*least, *planned));
        let least = least.map_or(Finding::NoneHelps, |(setting, reserved)| Finding::Least {
            setting: *setting,
            reserved: *reserved,
            less: planned.saturating_sub(*reserved),
        });
        let worse = others.iter().filter(|(_, reserved)| clearly(*planned, *reserved)).map(|(setting, reserved)| {
            Finding::Worse { setting: *setting, reserved: *reserved, more: reserved.saturating_sub(*planned) }
        });
        [least].into_iter().chain(worse).collect()
    }
}

fn cards(plan: &Plan, first: &Outcome) -> Result<Vec<Card>, Vec<Issue>> {
    if plan.machine.gpu.is_some() {
        let hardware = plan.hardware()?;
        let name = hardware.name.clone().unwrap_or_default();
        return Ok(usable(&hardware).map(|usable| Card { name, usable }).into_iter().collect());
    }
    let of = |name: &str| {
        let gpu = Some(GpuChoice::Catalogue(name.into()));
        let machine = Machine { gpu, ..plan.machine.clone() };
        let usable = usable(&Plan { machine, ..plan.clone() }.hardware().ok()?)?;
        Some(Card { name: name.into(), usable })
    };
    let mut all: Vec<Card> = gpus().iter().filter_map(|gpu| of(&gpu.name)).collect();
    all.sort_by_key(|card| card.usable);
    all.dedup_by_key(|card| card.usable);
    let smaller = all.iter().filter(|card| card.usable < first.peak_allocated()).count();
    let cards = all.into_iter().skip(smaller.saturating_sub(1));
    Ok(cards.take(MOST_CARDS).collect())
}

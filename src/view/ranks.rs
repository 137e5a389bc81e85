//! Every rank of a job as bars: what each holds at its own peak, which one binds and why.

use serde::{Deserialize, Serialize};

use crate::bill::Part;
use crate::estimate::{RankEstimate, RankWalk};
use crate::issue::Issue;
use crate::plan::Plan;
use crate::recipe::parallel::DataParallel;
use crate::text::{Locale, RankSaid, issue_line};
use crate::units::Bytes;
use crate::view::number::gib;

/// The ranks, in words and figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTable {
    /// Which one binds and why.
    pub sentence: String,
    /// The ranks, in order.
    pub rows: Vec<RankRow>,
    /// Why there are none.
    pub problems: Vec<String>,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRow {
    /// Its name.
    pub name: String,
    /// What each part takes at its peak, in the order of [`Part::ALL`], in percent of the most that any rank holds.
    pub shares: Vec<f64>,
    /// Its peak, in GiB.
    pub peak: String,
    /// The same in bytes.
    pub exact: Bytes,
    /// When the peak is, and what stands on the rank besides layers.
    pub at: String,
    /// How many layers that is, and micro-batches in flight.
    pub holds: String,
    /// Whether no rank holds more.
    pub binds: bool,
}

impl RankTable {
    /// The ranks that were walked.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a bar's length")]
    pub fn of(plan: &Plan, ranks: &[RankEstimate], locale: Locale) -> Self {
        let gpu = matches!(plan.parallel.data, DataParallel::Dp(_));
        let by_peak = |rank: &&RankEstimate| rank.peak_bytes;
        // Of those that hold the same, the first.
        let (Some(most), Some(least)) = (ranks.iter().rev().max_by_key(by_peak), ranks.iter().min_by_key(by_peak))
        else {
            return Self::default();
        };
        let longest = most.peak_bytes.0.max(1) as f64;
        let row = |of: &RankEstimate| RankRow {
            name: locale.rank(RankSaid::Rank { gpu, rank: of.rank }),
            shares: of.parts.0.iter().map(|bytes| bytes.0 as f64 / longest * 100.0).collect(),
            peak: gib(of.peak_bytes),
            exact: of.peak_bytes,
            at: locale.rank(RankSaid::At { instant: of.instant, embedding: of.embedding, head: of.head }),
            holds: locale.rank(RankSaid::Holds { layers: of.layers, in_flight: of.in_flight }),
            binds: of.peak_bytes == most.peak_bytes,
        };
        let more = |part: &Part| most.parts.get(*part).0.saturating_sub(least.parts.get(*part).0);
        let sentence = match Part::ALL.into_iter().max_by_key(more) {
            Some(part) if most.peak_bytes > least.peak_bytes => RankSaid::Binds {
                gpu,
                rank: most.rank,
                peak: most.peak_bytes,
                least: least.rank,
                more: Bytes(most.peak_bytes.0 - least.peak_bytes.0),
                part,
            },
            _ => RankSaid::Alike(most.peak_bytes),
        };
        Self { sentence: locale.rank(sentence), rows: ranks.iter().map(row).collect(), problems: Vec::new() }
    }

    /// What is shown of ranks that cannot be walked.
    #[must_use]
    pub fn refused(issues: &[Issue], locale: Locale) -> Self {
        let problems = issues.iter().map(|issue| issue_line(locale.text(), issue)).collect();
        Self { problems, ..Self::default() }
    }
}

/// The walk of `plan`'s ranks, or what is shown instead.
///
/// # Errors
/// What is shown of a plan whose ranks are alike or cannot be walked.
pub fn walking(plan: &Plan, locale: Locale) -> Result<RankWalk, RankTable> {
    RankWalk::of(plan).map_err(|issues| RankTable::refused(&issues, locale))?.ok_or_else(RankTable::default)
}

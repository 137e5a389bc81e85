//! Configurations side by side, as the page shows them: what `vram-budget compare` prints, and `vram-budget empirical` of a
//! model that is not known.

use serde::{Deserialize, Serialize};

use crate::decide::Status;
use crate::measure::Measurement;
use crate::plan::Plan;
use crate::reconcile::empirical::{Growth, Point, fit, same_job};
use crate::reconcile::{self, Comparison, Configuration, Entry};
use crate::text::{Compared, Locale, issue_line};
use crate::units::Bytes;
use crate::view::answer::status;

/// Configurations in words and figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompareTable {
    /// A row for each.
    pub rows: Vec<CompareRow>,
    /// What stands out among them.
    pub said: Vec<String>,
    /// What measurements say of a model that is not known.
    pub empirical: Vec<String>,
}

/// One configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompareRow {
    /// What it is called.
    pub name: String,
    /// Predicted, or measured in how many runs.
    pub how: String,
    /// The allocated peak.
    pub peak: String,
    /// What is predicted of a job that was measured; else empty.
    pub predicted: String,
    /// How far its runs are apart.
    pub spread: String,
    /// Samples a second.
    pub speed: String,
    /// The verdict's mark.
    pub status: Status,
    /// The verdict's word.
    pub verdict: String,
    /// What the memory that it leaves free would buy.
    pub buys: String,
    /// Why nothing is predicted of it.
    pub problems: Vec<String>,
    /// Its job, to take it over.
    pub plan: Option<Box<Plan>>,
}

/// A comparison in hand.
#[derive(Debug)]
pub struct Comparing {
    plan: Plan,
    configurations: Vec<Configuration>,
    inner: reconcile::Comparing,
}

impl Comparing {
    /// The inputs and the configurations of a document; `None` for anything else.
    #[must_use]
    pub fn read(document: &str) -> Option<Self> {
        let (plan, configurations) = serde_json::from_str::<(Plan, Vec<Configuration>)>(document).ok()?;
        let inner = reconcile::Comparing::of(plan.clone(), configurations.clone());
        Some(Self { plan, configurations, inner })
    }

    /// Goes on by a piece. True once nothing is left.
    pub fn advance(&mut self) -> bool {
        self.inner.advance()
    }

    /// How much is done, and of how much.
    #[must_use]
    pub const fn progress(&self) -> (usize, usize) {
        self.inner.progress()
    }

    /// What was found.
    #[must_use]
    pub fn table(&self, locale: Locale) -> CompareTable {
        let found = self.inner.found();
        let row = |(entry, of): (&Entry, &Configuration)| row(entry, of.plan.as_ref(), locale);
        CompareTable {
            rows: found.entries.iter().zip(&self.configurations).map(row).collect(),
            said: locale.reconcile().stands_out(&found),
            empirical: self.empirical(&found, locale),
        }
    }

    /// What the measurements of a job that cannot be predicted say of the inputs' batch.
    fn empirical(&self, found: &Comparison, locale: Locale) -> Vec<String> {
        let unknown = found.entries.iter().zip(&self.configurations).filter(|(entry, _)| !entry.issues.is_empty());
        let runs: Vec<&Measurement> = unknown.flat_map(|(_, of)| &of.runs).collect();
        let Some((first, job)) = runs.iter().find_map(|run| Some((*run, run.plan.as_ref()?))) else {
            return Vec::new();
        };
        let point = |run: &&Measurement| {
            let recipe = &run.plan.as_ref()?.recipe;
            Point::of(recipe.micro_batch, recipe.seq_len, run)
        };
        let points: Vec<Point> = runs.iter().filter(|run| same_job(first, run)).filter_map(point).collect();
        let Ok(model) = fit(&points, Growth::of(&job.recipe)) else { return Vec::new() };
        let words = locale.reconcile();
        let (micro_batch, seq_len) = (self.plan.recipe.micro_batch, self.plan.recipe.seq_len);
        let peak = match model.peak(micro_batch, seq_len) {
            Ok(peak) => words.empirical_peak(micro_batch, seq_len, &peak),
            Err(beyond) => words.beyond(beyond).into(),
        };
        let costs = model.binding(micro_batch, seq_len).map(|instant| words.costs(instant));
        [words.empirical(&model)].into_iter().chain(costs).chain([peak]).collect()
    }
}

fn row(entry: &Entry, plan: Option<&Plan>, locale: Locale) -> CompareRow {
    let (text, words) = (locale.text(), locale.reconcile());
    let size = |bytes: Option<Bytes>| bytes.map_or_else(|| "—".to_owned(), |bytes| bytes.to_string());
    let spread = entry.peaks.filter(|_| entry.runs > 1).map(|[low, high]| high.saturating_sub(low));
    let predicted = entry.predicted.map(|bytes| words.compared(&Compared::Predicted(bytes)));
    CompareRow {
        name: entry.name.clone(),
        how: words.compared(&Compared::Runs(entry.runs)),
        peak: size(entry.peak),
        predicted: predicted.unwrap_or_default(),
        spread: size(spread),
        speed: words.samples_per_second(entry.speed),
        status: status(entry.verdict),
        verdict: text.verdict(entry.verdict).into(),
        buys: words.buys(entry),
        problems: entry.issues.iter().map(|issue| issue_line(text, issue)).collect(),
        plan: plan.cloned().map(Box::new),
    }
}

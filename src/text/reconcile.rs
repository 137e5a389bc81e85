//! What is said of a measurement beside a prediction: what explains the difference. A catalogue of its own, as
//! [`super::ReportCatalogue`].

use crate::calibration::Quantity;
use crate::measure::TierName;
use crate::plan::Plan;
use crate::reconcile::empirical::{Beyond, Empirical, EmpiricalPeak, Instant, Unfit};
use crate::reconcile::{Certainty, Change, Comparison, Entry, Hypothesis, Reconciliation, Suspect, Symptom, Why};
use crate::text::Locale;
use crate::text::en::English;
use crate::throughput::Range;
use crate::units::Bytes;

/// A line of a comparison, on the page.
#[derive(Clone, Copy, Debug)]
pub enum Compared<'a> {
    /// Above all of it.
    Ask,
    /// What stands side by side.
    Hint,
    /// On the button that begins.
    Start,
    /// On the button that ends it.
    Stop,
    /// While it is worked out.
    Going,
    /// The table is of inputs that are no longer those shown.
    Earlier,
    /// On the button that keeps the inputs.
    KeepInputs,
    /// On the button that keeps what was measured.
    KeepMeasured,
    /// Above what is kept.
    Kept,
    /// On a button that takes one away.
    Remove,
    /// The name of the row of the inputs.
    Inputs,
    /// The name of what was measured and has none.
    Measured(usize),
    /// How a row's figures came about: of so many runs, or predicted.
    Runs(usize),
    /// Above the rows' names.
    NameHead,
    /// Above the peaks.
    PeakHead,
    /// Above how far runs are apart.
    SpreadHead,
    /// Above the speeds.
    SpeedHead,
    /// Above the verdicts.
    VerdictHead,
    /// Above what free memory would buy.
    BuysHead,
    /// What is predicted of a job that was measured.
    Predicted(Bytes),
    /// A plan, by what tells it from another.
    Plan(&'a Plan),
}

/// What one language says. Every method is one idea; none has a default.
pub trait ReconcileCatalogue: Sync {
    /// How many figures are as predicted, and which is furthest off, as sentences.
    fn residual(&self, found: &Reconciliation) -> String;
    /// A value of a plan's field, as a noun phrase: `precision amp_bf16`.
    fn change(&self, change: Change) -> String;
    /// A suspect, as a sentence that says it is so; `plan` is what the measurement was held against.
    fn suspect(&self, suspect: &Suspect, plan: &Plan) -> String;
    /// The same as a noun phrase: what is taken over.
    fn suspected(&self, suspect: &Suspect) -> String;
    /// How far it can be trusted, as words before a noun: `high confidence`.
    fn certainty(&self, certainty: Certainty) -> &'static str;
    /// How much of the difference it explains, how far it can be trusted, and what it makes worse.
    fn support(&self, hypothesis: &Hypothesis) -> String;
    /// What is seen, with its figures, as a sentence.
    fn symptom(&self, symptom: &Symptom) -> String;
    /// How to make sure of it, as a sentence.
    fn check(&self, symptom: &Symptom) -> &'static str;
    /// What to do about it, as a sentence.
    fn remedy(&self, symptom: &Symptom) -> &'static str;
    /// What nothing known explains, as a sentence.
    fn unexplained(&self, bytes: i64) -> String;
    /// A fitted quantity with its value and its interval, as a phrase.
    fn quantity(&self, quantity: &Quantity) -> String;
    /// What a plan was calibrated by, as a sentence before its quantities.
    fn calibrated(&self, measurements: u64) -> String;
    /// What a calibration is called, as a noun.
    fn calibration(&self) -> &'static str;
    /// The interval of a tier's peak, as a phrase.
    fn within(&self, tier: TierName, within: [Bytes; 2]) -> String;
    /// What a configuration's free memory would buy, as a phrase; empty where it buys nothing.
    fn buys(&self, entry: &Entry) -> String;
    /// A speed in samples a second, as a phrase; a dash where it is not known.
    fn samples_per_second(&self, speed: Option<Range>) -> String;
    /// What stands out among configurations, as sentences.
    fn stands_out(&self, found: &Comparison) -> Vec<String>;
    /// A line of a comparison.
    fn compared(&self, what: &Compared<'_>) -> String;
    /// What a fit to measurements of an unknown model rests on, as a sentence that labels it.
    fn empirical(&self, model: &Empirical) -> String;
    /// What an instant costs, as a phrase.
    fn costs(&self, instant: &Instant) -> String;
    /// A peak of such a fit, with its interval and whether it was measured around, as a sentence.
    fn empirical_peak(&self, micro_batch: u64, seq_len: u64, peak: &EmpiricalPeak) -> String;
    /// Why there is no such fit, as a sentence.
    fn unfit(&self, unfit: Unfit) -> &'static str;
    /// Why it says nothing about a batch, as a sentence.
    fn beyond(&self, beyond: Beyond) -> &'static str;
    /// Why a measurement was left out, as a sentence.
    fn left_out(&self, why: &Why) -> String;
}

impl Locale {
    /// Its words for what explains a difference.
    #[must_use]
    pub fn reconcile(self) -> &'static dyn ReconcileCatalogue {
        match self {
            Self::En => &English,
        }
    }
}

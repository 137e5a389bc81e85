//! What to run, as it is drawn: the recommendation, other ways, why not the rest, what each remedy costs and needs.

use crate::decide::{Decision, Declined, Outcome, VerdictKind};
use crate::text::{Advised, Locale};

/// The recommendation and what stands below it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// Its heading.
    pub head: &'static str,
    /// What to run, and why; that it is looked for.
    pub sentence: String,
    /// The name of the way that can be taken with one click.
    pub take: Option<String>,
    /// The other ways: their names, and what they come to.
    pub others: Vec<(String, String)>,
    /// Why not the rest: a reason and the remedies' names.
    pub declined: Vec<(String, String)>,
    /// Advice that holds for every job.
    pub always: [&'static str; 2],
}

/// What one remedy costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Its name.
    pub name: String,
    /// What it saves at each instant, and what a token's time becomes.
    pub saves: String,
    /// What it asks for and changes.
    pub needs: &'static str,
}

impl Recommendation {
    /// What is recommended by `decision`, as far as it is worked out.
    #[must_use]
    pub fn of(decision: &Decision, locale: Locale) -> Self {
        let (text, words) = (locale.text(), locale.advice());
        let always = [words.advised(Advised::MicroBatch), words.advised(Advised::DataLoader)];
        let head = words.advised(Advised::Recommended);
        let Some(advice) = &decision.advice else {
            let sentence = words.advised(Advised::Looking).into();
            return Self { head, sentence, take: None, others: Vec::new(), declined: Vec::new(), always };
        };
        let reasons = if decision.verdict.kind == VerdictKind::Fits || advice.outcome == Outcome::Nothing {
            &[][..]
        } else {
            &Declined::ALL
        };
        let of_reason = |why: &Declined| {
            let those = decision.remedies.iter().filter(|remedy| advice.declined(remedy) == Some(*why));
            let names: Vec<String> = those.map(|remedy| text.remedy(remedy)).collect();
            (!names.is_empty()).then(|| (words.declined(*why, decision.estimate.peak()), names.join("; ")))
        };
        Self {
            head,
            sentence: words.recommendation(decision, advice),
            take: advice.ways.first().map(|way| words.way(way)),
            others: advice.ways.iter().skip(1).map(|way| (words.way(way), words.comes_to(way))).collect(),
            declined: reasons.iter().filter_map(of_reason).collect(),
            always,
        }
    }
}

/// What each remedy that applies costs, in the decision's order.
#[must_use]
pub fn costs(decision: &Decision, locale: Locale) -> Vec<Cost> {
    let (text, words) = (locale.text(), locale.advice());
    let one = |remedy| Cost {
        name: text.remedy(remedy),
        saves: format!("{}; {}.", words.saved_at(remedy), words.time(remedy.time)),
        needs: words.needs(remedy.id),
    };
    decision.remedies.iter().map(one).collect()
}

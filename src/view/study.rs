//! What is worked out of a measurement beside the page, which must draw and listen meanwhile: what explains the difference to
//! the prediction, what the texts show, and what can be fitted to them.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::decide::RemedyId;
use crate::measure::Measurement;
use crate::plan::Plan;
use crate::reconcile::{Hypothesis, Search, Symptom, calibrate, diagnose, job_of};
use crate::text::Locale;

/// Of so many of the last measurements one is explained, and the plan is fitted to all of them: as many as are shown.
pub(super) const MOST: usize = 8;

/// What is asked about a measurement. Two questions are the same when they are one.
#[derive(Clone, Debug)]
pub struct Asked(Rc<Question>);

#[derive(Debug)]
struct Question {
    plan: Plan,
    measurements: Rc<[Measurement]>,
    fit: bool,
}

impl PartialEq for Asked {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Asked {
    pub(super) fn new(plan: Plan, measurements: Rc<[Measurement]>, fit: bool) -> Self {
        Self(Rc::new(Question { plan, measurements, fit }))
    }

    /// Whether the plan is to be fitted; else the measurement is to be explained.
    #[must_use]
    pub fn is_fit(&self) -> bool {
        self.0.fit
    }

    /// The question as a document, for [`Study::read`].
    #[must_use]
    pub fn document(&self) -> Option<String> {
        let Question { plan, measurements, fit } = &*self.0;
        serde_json::to_string(&(plan, &**measurements, fit)).ok()
    }
}

/// A question that is being worked out.
#[derive(Debug)]
pub struct Study {
    plan: Plan,
    measurements: Vec<Measurement>,
    fit: bool,
    /// What explains a measurement, as far as it has come. `None`: not begun, or nothing can be compared.
    search: Option<Search>,
    /// How many measurements are still to be looked at for one that can be compared.
    left: usize,
}

impl Study {
    /// A question that is to be worked out; `None` for anything else.
    #[must_use]
    pub fn read(document: &str) -> Option<Self> {
        let (plan, measurements, fit) = serde_json::from_str::<(Plan, Vec<Measurement>, bool)>(document).ok()?;
        let left = measurements.len();
        Some(Self { plan, measurements, fit, search: None, left })
    }

    /// Walks one plan. True once there is nothing left to walk.
    pub fn advance(&mut self) -> bool {
        if let Some(search) = &mut self.search {
            return search.advance();
        }
        let least = self.measurements.len().saturating_sub(MOST);
        let Some(next) = self.left.checked_sub(1).filter(|next| *next >= least && !self.fit) else { return true };
        self.left = next;
        // The last one that can be compared.
        let search = self.measurements.get(next).and_then(|measurement| Search::of(&self.plan, measurement).ok());
        self.search = search.filter(|search| search.found().compared > 0);
        false
    }

    /// What was found, in words.
    #[must_use]
    pub fn found(&self, locale: Locale) -> Answered {
        if self.fit { Answered::Fit(self.fitted(locale)) } else { Answered::Explained(self.explained(locale)) }
    }

    fn explained(&self, locale: Locale) -> Explained {
        let words = locale.reconcile();
        let found = self.search.as_ref().map(Search::found);
        let offer = |one: &Hypothesis| Offer {
            says: words.suspect(&one.suspect, &self.plan),
            support: words.support(one),
            take: one.plan.clone().map(|plan| (words.suspected(&one.suspect), plan)),
        };
        let shown = |symptom: &Symptom| Shows {
            evidence: words.symptom(symptom),
            check: words.check(symptom).into(),
            remedy: words.remedy(symptom).into(),
            tries: symptom.remedies().to_vec(),
        };
        // What ran out of memory is said with its causes, and so is what ranks differ by.
        let failed = self.measurements.iter().any(|measurement| measurement.failure.is_some());
        let said = |symptom: &Symptom| match symptom {
            Symptom::Limit { .. } | Symptom::Uneven { .. } => true,
            Symptom::OtherProcesses { .. } | Symptom::HostOutOfMemory => failed,
            _ => false,
        };
        Explained {
            residual: found.as_ref().map(|found| words.residual(found)),
            offers: found.iter().flat_map(|found| found.worth_saying().map(offer)).collect(),
            unexplained: found.as_ref().and_then(|found| Some(words.unexplained(found.unexplained()?))),
            shows: diagnose(&self.measurements).iter().filter(|symptom| !said(symptom)).map(shown).collect(),
        }
    }

    fn fitted(&self, locale: Locale) -> Fitted {
        let words = locale.reconcile();
        let last = self.measurements.len().saturating_sub(MOST);
        let runs: Vec<(Plan, Measurement)> =
            self.measurements.iter().skip(last).map(|one| (job_of(&self.plan, one), one.clone())).collect();
        let fit = calibrate(&runs);
        Fitted {
            name: words.calibration().into(),
            plan: (!fit.is_empty()).then(|| Box::new(fit.adopt(&self.plan))),
            notes: fit.left_out.iter().map(|left_out| words.left_out(&left_out.why)).collect(),
        }
    }
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answered {
    /// What explains a measurement.
    Explained(Explained),
    /// What was fitted.
    Fit(Fitted),
}

/// What explains a measurement, and what its texts show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// How far figures are off. `None`: nothing can be compared.
    pub residual: Option<String>,
    /// What explains that, the best supported first.
    pub offers: Vec<Offer>,
    /// What nothing known explains.
    pub unexplained: Option<String>,
    /// What the texts show beside it, the gravest first.
    pub shows: Vec<Shows>,
}

/// One explanation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// What it is.
    pub says: String,
    /// How much it explains, how far it can be trusted, what it contradicts.
    pub support: String,
    /// Its name, and the plan with it. `None`: it is no matter of the plan.
    pub take: Option<(String, Plan)>,
}

/// Something that the texts show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shows {
    /// What is seen, with its figures.
    pub evidence: String,
    /// How to make sure of it.
    pub check: String,
    /// What to do about it.
    pub remedy: String,
    /// The remedies that apply, to try those that help the inputs.
    pub tries: Vec<RemedyId>,
}

/// What was fitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fitted {
    /// What the change is called.
    pub name: String,
    /// The plan with it. `None`: the measurements say nothing.
    pub plan: Option<Box<Plan>>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

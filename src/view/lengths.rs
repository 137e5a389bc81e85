//! A run over sequences of many lengths, as the page shows it: what `vram-budget fragmentation` prints.

use serde::{Deserialize, Serialize};

use crate::fragmentation::{Row, SHOWN, Study};
use crate::issue::Issue;
use crate::text::{LengthsSaid, Locale, issue_line, ratio};

/// A run under several settings in words and figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthsTable {
    /// What was run.
    pub head: String,
    /// What the settings come to.
    pub findings: Vec<String>,
    /// The heads of what is reserved after which step.
    pub after: Vec<String>,
    /// By setting, the plan's own first.
    pub rows: Vec<LengthsRow>,
    /// Why there is no run, or none under some setting.
    pub problems: Vec<String>,
}

/// A run under one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthsRow {
    /// The setting.
    pub setting: String,
    /// How it ends on cards.
    pub end: String,
    /// The peaks of reserved and allocated, and their ratio; dashes where no step completed.
    pub peaks: [String; 3],
    /// Reserved after the steps of [`LengthsTable::after`].
    pub after: Vec<String>,
}

impl LengthsTable {
    /// What is shown of a study that is complete.
    #[must_use]
    pub fn of(study: &Study, locale: Locale) -> Self {
        let words = locale.lengths();
        let count = study.steps().len();
        let shown: Vec<usize> = SHOWN.into_iter().step_by(2).filter(|step| *step < count).chain([count]).collect();
        let mut table = Self {
            head: words.say(&LengthsSaid::head(study.steps())),
            findings: study.findings().into_iter().map(|finding| words.say(&LengthsSaid::Finding(finding))).collect(),
            after: shown.iter().map(|step| words.say(&LengthsSaid::After(*step))).collect(),
            ..Self::default()
        };
        for (setting, outcome) in study.rows() as &[Row] {
            let setting = words.say(&LengthsSaid::Setting(*setting));
            match outcome {
                Err(issues) => {
                    table.problems.extend(issues.iter().map(|issue| format!("{setting}: {}", line(issue, locale))));
                }
                Ok(outcome) => {
                    let (allocated, reserved) = (outcome.peak_allocated(), outcome.peak_reserved());
                    let after = |step: &usize| outcome.steps.get(step - 1).map(|step| step.reserved.to_string());
                    table.rows.push(LengthsRow {
                        setting,
                        end: words.say(&LengthsSaid::Ends(study.cards(), &outcome.ends)),
                        peaks: if outcome.steps.is_empty() {
                            ["–"; 3].map(str::to_owned)
                        } else {
                            [reserved.to_string(), allocated.to_string(), ratio(reserved, allocated)]
                        },
                        after: shown.iter().map(|step| after(step).unwrap_or_else(|| "–".into())).collect(),
                    });
                }
            }
        }
        table
    }

    /// What is shown of a run that cannot be.
    #[must_use]
    pub fn refused(issues: &[Issue], locale: Locale) -> Self {
        Self { problems: issues.iter().map(|issue| line(issue, locale)).collect(), ..Self::default() }
    }
}

fn line(issue: &Issue, locale: Locale) -> String {
    issue_line(locale.text(), issue)
}

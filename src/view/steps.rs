//! The four steps of the walk: each with its question, its figure, a gauge, what helps, and why.

use crate::bill::{Instant, Part};
use crate::decide::{Decision, Figure, Question, Reason, Status, TreeStep};
use crate::plan::Policy;
use crate::text::{Catalogue, Label, Msg};
use crate::units::{Bytes, three_digits};
use crate::view::number::percent;
use crate::view::remedy::{Quoted, RemedyRow, rows};
use crate::view::{Field, Section};

/// One step as it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Which.
    pub question: Question,
    /// Its section.
    pub section: Section,
    /// Its number.
    pub number: u8,
    /// Its name.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// The same in words, with the share where it is past the threshold.
    pub status_word: String,
    /// The question.
    pub ask: &'static str,
    /// The figure, in large.
    pub big: Option<String>,
    /// The exact bytes of the figure.
    pub exact: Option<Bytes>,
    /// What the figure is.
    pub fact: String,
    /// The figure against its threshold.
    pub gauge: Option<Gauge>,
    /// A remark.
    pub notes: Vec<String>,
    /// Which peak the remedies quote.
    pub quoted: Quoted,
    /// What helps.
    pub remedies: Vec<RemedyRow>,
    /// What helps too, where that is much.
    pub more_remedies: Vec<RemedyRow>,
    /// The thresholds that can be changed here.
    pub thresholds: &'static [Field],
    /// Label of the explanation.
    pub why_title: &'static str,
    /// Why this rule.
    pub why: &'static str,
}

/// A gauge: shares of its width, in percent.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    /// How much is filled.
    pub filled: f64,
    /// From where it is too much; `None`: it is not.
    pub over_from: Option<f64>,
    /// Where the rule is, and what it says.
    pub rule: (f64, String),
    /// Where the whole is, when the figure exceeds it, and what it is.
    pub whole: Option<(f64, String)>,
    /// The gauge in words.
    pub alt: String,
}

/// The four steps, with the remedies of the decision that has them priced.
#[must_use]
pub fn steps(policy: &Policy, decision: &Decision, priced: Option<&Decision>, text: &dyn Catalogue) -> Vec<Step> {
    decision.tree.iter().map(|step| one(policy, decision, priced, step, text)).collect()
}

fn one(policy: &Policy, decision: &Decision, priced: Option<&Decision>, step: &TreeStep, text: &dyn Catalogue) -> Step {
    let question = step.question;
    let share = step.figure.value.map(percent);
    let said = match question {
        Question::Rigid => rigid(&step.figure, text),
        Question::Activations => activations(decision, &step.figure, text),
        Question::Margin => margin(policy, decision, text),
        Question::Throughput => throughput(step, text),
    };
    let past = matches!(step.status, Status::Stop | Status::Attention);
    let status_word = match (&share, question) {
        (Some(share), Question::Rigid | Question::Activations) if past => {
            format!("{}, {share}", text.status(step.status))
        }
        _ if step.status == Status::Waits && decision.awaits_replay() => text.label(Label::Refining).into(),
        _ => text.status(step.status).to_owned(),
    };
    let (number, section, thresholds): (u8, _, &'static [Field]) = match question {
        Question::Rigid => (1, Section::Rigid, &[Field::RigidShare]),
        Question::Activations => (2, Section::Activations, &[Field::ActivationShare]),
        Question::Margin => (3, Section::Margin, &[Field::MarginLow, Field::MarginHigh]),
        Question::Throughput => (4, Section::Throughput, &[]),
    };
    let helping = priced.and_then(|priced| priced.tree.iter().find(|other| other.question == question));
    let quoted = match question {
        Question::Rigid | Question::Activations => Quoted::Allocated,
        Question::Margin | Question::Throughput => Quoted::Process,
    };
    let remedies = helping.zip(priced).map(|(helping, priced)| rows(priced, &helping.remedies, quoted, text));
    let (remedies, more_remedies) = folded(remedies.unwrap_or_default());
    Step {
        question,
        section,
        number,
        name: text.question(question),
        status: step.status,
        status_word,
        ask: text.question_ask(question),
        big: said.big,
        exact: said.exact,
        fact: said.fact,
        gauge: said.gauge,
        notes: said.notes,
        remedies,
        more_remedies,
        quoted,
        thresholds,
        why_title: text.question_why_title(question),
        why: text.question_why(question),
    }
}

/// How many remedies a step shows at first.
const SHOWN: usize = 6;

/// What is shown at first: all that make it fit, and as many of the others, in their order.
fn folded(rows: Vec<RemedyRow>) -> (Vec<RemedyRow>, Vec<RemedyRow>) {
    let fits = rows.iter().filter(|row| row.then == Status::Pass).count();
    let mut others = SHOWN.saturating_sub(fits);
    rows.into_iter().partition(|row| {
        let shown = row.then == Status::Pass || others > 0;
        others -= usize::from(shown && row.then != Status::Pass);
        shown
    })
}

/// What a step says beside its question.
#[derive(Default)]
struct Said {
    big: Option<String>,
    exact: Option<Bytes>,
    fact: String,
    gauge: Option<Gauge>,
    notes: Vec<String>,
}

fn in_gib(bytes: Bytes) -> String {
    three_digits(bytes.as_gib())
}

/// A gauge of a share that should be at most `threshold`.
fn at_most(share: f64, threshold: f64, whole: Label, text: &dyn Catalogue) -> Gauge {
    // The whole width is the whole, or the figure where it is more.
    let scale = share.max(threshold).max(1.0);
    let at = |x: f64| (x / scale * 100.0).clamp(0.0, 100.0);
    let rule = text.say(&Msg::GaugeRule { rule: &percent(threshold) });
    Gauge {
        filled: at(share),
        over_from: (share > threshold).then(|| at(threshold.max(share.min(1.0)))).filter(|_| share > 1.0),
        alt: text.say(&Msg::GaugeAlt { share: &percent(share), rule: &rule }),
        rule: (at(threshold), rule),
        whole: (share > 1.0).then(|| (at(1.0), text.label(whole).to_owned())),
    }
}

fn rigid(figure: &Figure, text: &dyn Catalogue) -> Said {
    let share = figure.value.map(percent);
    Said {
        big: figure.part.map(in_gib),
        exact: figure.part,
        fact: text.say(&Msg::RigidFact { share: share.as_deref() }),
        gauge: figure.value.zip(figure.threshold).map(|(share, rule)| at_most(share, rule, Label::WholeCard, text)),
        notes: Vec::new(),
    }
}

fn activations(decision: &Decision, figure: &Figure, text: &dyn Catalogue) -> Said {
    let bill = &decision.estimate.bill;
    let highest = Instant::ALL
        .into_iter()
        .max_by_key(|i| bill.column(*i).parts.get(Part::Activations))
        .unwrap_or(Instant::Forward);
    let at_peak = decision.estimate.peak_parts().get(Part::Activations);
    let highest_bytes = bill.column(highest).parts.get(Part::Activations);
    let share = figure.value.map(percent);
    let mut notes = Vec::new();
    // Less than a tenth of them at the peak: they decide something else than what binds.
    if at_peak.get() < highest_bytes.get() / 10 {
        notes.push(text.say(&Msg::ActivationsFreeAtPeak { at_peak, peak: decision.estimate.peak() }));
    }
    Said {
        big: figure.part.map(in_gib),
        exact: figure.part,
        fact: text.say(&Msg::ActivationFact { share: share.as_deref(), left: figure.whole, instant: highest }),
        gauge: figure.value.zip(figure.threshold).map(|(share, rule)| at_most(share, rule, Label::WholeRest, text)),
        notes,
    }
}

fn margin(policy: &Policy, decision: &Decision, text: &dyn Catalogue) -> Said {
    let numbers = &decision.verdict.numbers;
    let mut notes = Vec::new();
    let policy_share = percent(policy.margin_low);
    if let Some(reserved) = numbers.reserved {
        let unused = reserved.saturating_sub(numbers.allocated);
        notes.push(text.say(&Msg::CacheNote { figures: Some([reserved, unused]) }));
    }
    notes.extend(decision.estimate.readings.as_ref().and_then(|of| Some(text.in_host_memory(of.offload.as_ref()?))));
    if decision.awaits_replay() {
        // The sentences without their figures: as large as what will stand there.
        notes.push(text.say(&Msg::CacheNote { figures: None }));
        let fact = text.say(&Msg::MarginFact { free: Some("…"), policy: &policy_share, policy_bytes: None });
        let gauge = numbers.capacity.map(|_| {
            let mut gauge = at_most(0.0, 1.0 - policy.margin_low, Label::WholeCard, text);
            gauge.alt = text.label(Label::Refining).into();
            gauge
        });
        return Said { big: Some("…".into()), fact, gauge, notes, ..Said::default() };
    }
    let held = numbers.process.and_then(|p| p.checked_add(numbers.in_use.unwrap_or_default()));
    let (Some(held), Some(card)) = (held, numbers.capacity) else {
        let fact = text.say(&Msg::MarginFact { free: None, policy: "", policy_bytes: None });
        return Said { fact, notes, ..Said::default() };
    };
    let used = held.as_f64() / card.as_f64().max(1.0);
    let mut gauge = at_most(used, 1.0 - policy.margin_low, Label::WholeCard, text);
    gauge.rule.1 = percent(1.0 - policy.margin_low);
    let Some(free) = card.checked_sub(held) else {
        return Said { fact: text.say(&Msg::MarginOver), gauge: Some(gauge), notes, ..Said::default() };
    };
    Said {
        big: Some(in_gib(free)),
        exact: Some(free),
        fact: text.say(&Msg::MarginFact {
            free: Some(&percent(1.0 - used)),
            policy: &policy_share,
            policy_bytes: match decision.verdict.reason {
                Reason::RoomBeyondMargin { margin, .. } | Reason::InsideMargin { margin, .. } => Some(margin),
                _ => None,
            },
        }),
        gauge: Some(gauge),
        notes,
    }
}

fn throughput(step: &TreeStep, text: &dyn Catalogue) -> Said {
    let Some(speed) = &step.throughput else {
        return Said { fact: text.label(Label::NoThroughput).into(), ..Said::default() };
    };
    let rough = |x: f64| two_digits(x);
    Said {
        fact: text.say(&Msg::ThroughputFact {
            low: &rough(speed.tokens_per_second.low),
            high: &rough(speed.tokens_per_second.high),
        }),
        notes: vec![text.say(&Msg::ThroughputNote {
            numbers: &speed.numbers,
            low: &percent(speed.efficiency.low),
            high: &percent(speed.efficiency.high),
            step_low: &three_digits(speed.step_seconds.0.0),
            step_high: &three_digits(speed.step_seconds.1.0),
            source: &speed.provenance.source,
        })],
        ..Said::default()
    }
}

/// A rough figure with two significant digits, grouped: `2 100`.
fn two_digits(value: f64) -> String {
    if !value.is_finite() || value < 1.0 {
        return three_digits(value.max(0.0));
    }
    let scale = 10f64.powf(value.log10().floor() - 1.0);
    let rounded = (value / scale).round() * scale;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "finite and positive; saturates")]
    crate::units::grouped(rounded.round() as u64)
}

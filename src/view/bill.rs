//! The bill as a table: five parts × instants, and the cell that is open.

use crate::bill::{Instant, Part, Provenance};
use crate::decide::Decision;
use crate::estimate::Peak;
use crate::text::{Catalogue, Msg};
use crate::units::{Bytes, grouped};
use crate::view::number::{column, decimal, hundredths, percent};

/// How many lines of a cell are shown one by one; the rest is one line.
const MAX_LINES: usize = 24;

/// The table.
#[derive(Clone, Debug, PartialEq)]
pub struct BillTable {
    /// The columns: the instant, its name, whether it binds.
    pub columns: Vec<(Instant, &'static str, bool)>,
    /// The rows, in the order of [`Part::ALL`].
    pub rows: Vec<BillRow>,
    /// The columns' sums.
    pub totals: Vec<(String, Bytes)>,
    /// The sums as shares of the card; `None`: the card is not known.
    pub of_card: Option<(String, Vec<String>)>,
    /// The open cell.
    pub open: Option<OpenCell>,
}

/// One part's row.
#[derive(Clone, Debug, PartialEq)]
pub struct BillRow {
    /// The part.
    pub part: Part,
    /// Its name.
    pub name: &'static str,
    /// Its cells.
    pub cells: Vec<BillCell>,
}

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub struct BillCell {
    /// GiB.
    pub gib: String,
    /// The exact bytes.
    pub exact: Bytes,
    /// Whether it is open.
    pub open: bool,
}

/// A cell, opened.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenCell {
    /// The part.
    pub part: Part,
    /// Its title.
    pub title: String,
    /// Its lines, largest first.
    pub lines: Vec<OpenLine>,
    /// Their sum.
    pub total: (String, Bytes),
    /// The symbols of the formulas with their values.
    pub symbols: String,
    /// How the figures are known: kind, meaning, sources.
    pub known: Vec<Known>,
}

/// One line of an opened cell.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenLine {
    /// What it is.
    pub what: String,
    /// The formula.
    pub formula: String,
    /// The formula with numbers.
    pub numbers: String,
    /// GiB.
    pub gib: String,
    /// The exact bytes.
    pub exact: Bytes,
    /// How it is known, in a word.
    pub known: &'static str,
}

/// One kind of knowledge in an opened cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The kind.
    pub kind: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// Where from.
    pub sources: Vec<String>,
}

impl BillTable {
    /// The table of `decision` with `open` opened.
    #[must_use]
    pub fn new(decision: &Decision, open: Option<(Part, Instant)>, text: &dyn Catalogue) -> Self {
        let bill = &decision.estimate.bill;
        let feet: Vec<Bytes> = bill.columns.iter().map(|column| column.parts.total()).collect();
        let figures: Vec<Vec<String>> =
            bill.columns.iter().zip(&feet).map(|(c, foot)| column(&c.parts.0, hundredths(*foot))).collect();
        let rows = Part::ALL
            .into_iter()
            .map(|part| BillRow {
                part,
                name: text.part(part),
                cells: bill
                    .columns
                    .iter()
                    .zip(&figures)
                    .map(|(c, figures)| BillCell {
                        gib: figures[part as usize].clone(),
                        exact: c.parts.get(part),
                        open: open == Some((part, c.instant)),
                    })
                    .collect(),
            })
            .collect();
        let card = decision.verdict.numbers.capacity;
        Self {
            columns: bill
                .columns
                .iter()
                .map(|c| (c.instant, text.instant(c.instant), decision.estimate.peak() == Peak::Step(c.instant)))
                .collect(),
            rows,
            totals: feet.iter().map(|foot| (decimal(hundredths(*foot)), *foot)).collect(),
            of_card: card.map(|card| {
                let shares = feet.iter().map(|foot| percent(foot.as_f64() / card.as_f64().max(1.0))).collect();
                (text.say(&Msg::OfCard { card }), shares)
            }),
            open: open.map(|(part, instant)| OpenCell::new(decision, part, instant, text)),
        }
    }
}

impl OpenCell {
    fn new(decision: &Decision, part: Part, instant: Instant, text: &dyn Catalogue) -> Self {
        let bill = &decision.estimate.bill;
        let cell = bill.cell(part, instant);
        let count = |line: &crate::bill::Line| match line.count {
            1 => String::new(),
            n => format!("{} ", text.say(&Msg::Count { count: n })),
        };
        let mut lines: Vec<OpenLine> = cell
            .lines
            .iter()
            .take(MAX_LINES)
            .map(|line| OpenLine {
                what: format!("{}{}", count(line), text.tensor(&line.label)),
                formula: line.formula.clone(),
                numbers: line.numbers.clone(),
                gib: finer(line.bytes),
                exact: line.bytes,
                known: text.provenance(line.provenance.kind),
            })
            .collect();
        if cell.lines.len() > MAX_LINES {
            let rest: Bytes = cell.lines[MAX_LINES..].iter().map(|line| line.bytes).sum();
            lines.push(OpenLine {
                what: text.say(&Msg::MoreLines { count: cell.lines.len() - MAX_LINES }),
                formula: String::new(),
                numbers: String::new(),
                gib: finer(rest),
                exact: rest,
                known: "",
            });
        }
        let used = |symbol: &str| {
            let mut words = cell.lines.iter().flat_map(|line| line.formula.split(|c: char| !c.is_ascii_alphanumeric()));
            words.any(|word| word == symbol)
        };
        let symbols: Vec<String> = bill
            .symbols
            .iter()
            .filter(|(symbol, _)| used(symbol))
            .map(|(symbol, value)| format!("{symbol} {} {}", text.symbol(symbol), grouped(*value)))
            .collect();
        Self {
            part,
            title: text.say(&Msg::CellTitle { part, instant }),
            lines,
            total: (finer(cell.bytes), cell.bytes),
            symbols: symbols.join(", "),
            known: known(cell.lines.iter().map(|line| &line.provenance), text),
        }
    }
}

/// The kinds of knowledge among `provenances`, each with its sources once.
fn known<'a>(provenances: impl Iterator<Item = &'a Provenance>, text: &dyn Catalogue) -> Vec<Known> {
    let mut out: Vec<Known> = Vec::new();
    for provenance in provenances {
        let kind = text.provenance(provenance.kind);
        let at = out.iter().position(|known| known.kind == kind).unwrap_or_else(|| {
            let meaning = text.provenance_meaning(provenance.kind);
            out.push(Known { kind, meaning, sources: Vec::new() });
            out.len() - 1
        });
        if !out[at].sources.contains(&provenance.source) {
            out[at].sources.push(provenance.source.clone());
        }
    }
    out
}

/// GiB with three decimals, for the lines of one cell.
fn finer(bytes: Bytes) -> String {
    if bytes == Bytes::ZERO { "0".into() } else { format!("{:.3}", bytes.as_gib()) }
}

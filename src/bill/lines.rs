//! The lines of an opened cell, written when somebody looks: a bill only counts.

use serde::Serialize;

use crate::bill::{Bill, Instant, Part, Provenance};
use crate::order::sort_short_by;
use crate::step::shape::{Dim, MAX_RANK, Symbol};
use crate::units::Bytes;

/// Tensors of the same module, operation, element size and dimensions. One kind is one line of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// The bytes of one.
    pub bytes: Bytes,
    /// Bytes per element.
    pub element: u64,
    /// The sizes.
    pub dims: [Dim; MAX_RANK],
    /// The module.
    pub scope: &'static str,
    /// The operation.
    pub op: &'static str,
    /// The formula and the numbers in it, where they are not the product of element size and dimensions.
    pub written: Option<Box<[String; 2]>>,
}

/// How many tensors of a kind serve a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensors {
    /// The kind's position in [`Bill::kinds`].
    pub kind: usize,
    /// The part.
    pub part: Part,
    /// How many.
    pub count: u64,
}

/// One cell of the bill: a part at an instant, opened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The part.
    pub part: Part,
    /// Requested bytes.
    pub bytes: Bytes,
    /// What they are; sums to `bytes`. Largest first.
    pub lines: Vec<Line>,
}

/// One line of a cell: tensors of one kind, how many, and the formula of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// What the tensors are, such as `norm input, FP32`. A key of the message catalogue's tensor names.
    pub label: String,
    /// How many tensors of this size are alive.
    pub count: u64,
    /// The formula of one in symbols, such as `4 × b s h`.
    pub formula: String,
    /// The same with the numbers in it, such as `4 B × 1 × 2048 × 4096`.
    pub numbers: String,
    /// All of them together.
    pub bytes: Bytes,
    /// How the figure is known.
    pub provenance: Provenance,
}

impl Bill {
    /// The cell of `part` at `instant`, opened.
    #[must_use]
    pub fn cell(&self, part: Part, instant: Instant) -> Cell {
        let column = self.column(instant);
        let line = |t: &Tensors| {
            let kind = self.kinds.get(t.kind).filter(|kind| t.part == part && kind.bytes > Bytes::ZERO)?;
            Some(kind.line(t.count, self.sources.of(part)))
        };
        let mut lines: Vec<Line> = column.tensors.iter().filter_map(line).collect();
        sort_short_by(&mut lines, |a, b| (b.bytes, &a.label) < (a.bytes, &b.label));
        Cell { part, bytes: column.parts.get(part), lines }
    }
}

impl Kind {
    /// Kinds that are alike have the same.
    pub(super) fn hash(&self) -> usize {
        // The names' lengths tell most of them apart; multiplied out, the upper bits hold something of all.
        let key = self.bytes.get() ^ ((self.scope.len() * 64 + self.op.len()) as u64) << 48;
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize
    }

    fn line(&self, count: u64, provenance: &Provenance) -> Line {
        let dims = || self.dims.iter().filter(|d| d.n != 1 || d.sym.symbols().next().is_some());
        let symbol = |d: &Dim| match letters(d.sym.symbols()) {
            none if none.is_empty() => { d.n }.to_string(),
            letters => letters,
        };
        let [formula, numbers] = match &self.written {
            Some(written) => (**written).clone(),
            None => {
                [product(self.element, dims().map(symbol)), product(self.element, dims().map(|d| { d.n }.to_string()))]
            }
        };
        Line {
            label: format!("{}: {}", self.scope, self.op),
            count,
            formula,
            numbers,
            bytes: Bytes(self.bytes.get() * count),
            provenance: provenance.clone(),
        }
    }
}

fn letters(symbols: impl Iterator<Item = Symbol>) -> String {
    let all: Vec<&str> = symbols.map(Symbol::letter).collect();
    all.join(" ")
}

fn product(element: u64, factors: impl Iterator<Item = String>) -> String {
    let mut text = format!("{element} B");
    for f in factors {
        text.push_str(" × ");
        text.push_str(&f);
    }
    text
}

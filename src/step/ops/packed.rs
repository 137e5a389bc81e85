//! Sequences packed into one row.

use crate::step::ops::sort::scan_scratch;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Tape {
    /// `find_packed_sequence_indices` of one row of `n` tokens (transformers 5.24): which sequence each belongs to, a running
    /// sum of where one begins.
    pub(crate) fn packed_sequences(&self, n: Dim) -> Tensor {
        let row = |n: Dim, dtype: Dtype| self.temp(Shape::new(&[Dim::plain(1), n]), dtype, "packed sequences");
        let before = row(Dim::plain(1), Dtype::I64);
        let differences = {
            let longer = row(Dim::plain(n.n.saturating_add(1)), Dtype::I64);
            let differences = row(n, Dtype::I64);
            drop(longer);
            differences
        };
        let sequences = {
            let begins = row(n, Dtype::Bool);
            let sums = row(n, Dtype::I64);
            let cast = row(n, Dtype::I64);
            drop(self.scratch(scan_scratch(n.n), "scan scratch"));
            drop(cast);
            drop(begins);
            sums
        };
        // Whether there is one sequence alone: read by the host.
        let last = self.scalar(Dtype::Bool, "packed sequences");
        let all = self.scalar(Dtype::Bool, "packed sequences");
        drop(last);
        drop(all);
        drop(before);
        drop(differences);
        sequences
    }
}

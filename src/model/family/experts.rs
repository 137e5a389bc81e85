//! Mixtures of experts over the grouped product (`integrations/moe.py`, `grouped_mm`, the default of transformers 5.24 on
//! compute capability 8.0 and later).

use crate::model::family::common::Activation;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// How the experts' layers lie.
#[derive(Clone, Debug)]
pub(super) struct Experts {
    /// [experts, 2 × width, hidden], or [experts, hidden, 2 × width] with `transposed`.
    pub(super) gate_up: Tensor,
    /// [experts, hidden, width], or [experts, width, hidden] with `transposed`.
    pub(super) down: Tensor,
    pub(super) activation: Activation,
}

/// Which experts each token goes to.
pub(super) struct Routed<'a> {
    /// [tokens, k].
    pub(super) weights: &'a Tensor,
    /// [tokens, k].
    pub(super) experts: &'a Tensor,
}

impl Experts {
    /// The experts' weighted sum for tokens [tokens, hidden].
    pub(super) fn run(&self, t: &Tape, x: &Tensor, to: &Routed<'_>) -> Tensor {
        let (tokens, k) = (x.dim(0), to.experts.dim(1).n);
        let rows = Dim { n: tokens.n * k, sym: tokens.sym };
        let sample_weights = t.reshape(to.weights, &[rows]);
        let ids = t.reshape(to.experts, &[rows]);
        let (sorted, order) = t.sort(&ids);
        let selected = {
            let token = t.temp(Shape::new(&[rows]), Dtype::I64, "token of each row");
            t.index_rows(x, &token)
        };
        let weights = t.index_rows(&sample_weights, &order);
        let n = self.gate_up.dim(0);
        let line = |n: Dim, op: &'static str| t.temp(Shape::new(&[n]), Dtype::I32, op);
        let narrow = line(rows, "expert of each row");
        let counts = line(n, "tokens per expert");
        let offsets = line(n, "expert offsets");
        {
            // The running sum's own scratch: CUB's states for few numbers.
            let scratch = t.scratch(1023, "scan scratch");
            drop(scratch);
        }
        let mut out = t.grouped_mm(&selected, &self.gate_up, &offsets, false);
        out = self.gated(t, &out);
        out = t.grouped_mm(&out, &self.down, &offsets, false);
        let mut weighted = {
            let weights = t.unsqueeze(&weights, 1);
            t.mul(&out, &weights)
        };
        let inverse = t.temp(Shape::new(&[rows]), Dtype::I64, "inverse order");
        let range = t.temp(Shape::new(&[rows]), Dtype::I64, "range");
        drop(range);
        weighted = t.index_rows(&weighted, &inverse);
        let sum = t.sum_groups(&weighted, tokens, k);
        let cast = t.to(&sum, x.dtype());
        drop((sorted, narrow, counts));
        drop(weighted);
        drop(sum);
        drop((ids, order, selected, weights, offsets, out, inverse));
        cast
    }

    fn gated(&self, t: &Tape, x: &Tensor) -> Tensor {
        let parts = t.split(x, 1, Dim::plain(x.dim(1).n / 2), 2);
        let gate = self.activation.apply(t, &parts[0]);
        t.mul(&gate, &parts[1])
    }
}

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
    /// [experts, 2 × width] and [experts, hidden].
    pub(super) biases: Option<[Tensor; 2]>,
    pub(super) gate: Gate,
    pub(super) transposed: bool,
}

/// What peft makes of targets that are named as Mixtral's layers were before transformers 5: the parameters that hold them
/// now (`_MOE_TARGET_MODULE_MAPPING`, peft 0.21, utils/transformers_weight_conversion.py).
pub(super) const MIXTRAL_TARGETS: [(&str, &str); 4] =
    [("gate", ROUTER), ("w1", GATE_UP), ("w3", GATE_UP), ("w2", DOWN)];
/// The same of Qwen's and DeepSeek's mixtures.
pub(super) const MOE_TARGETS: [(&str, &str); 4] =
    [("gate", ROUTER), ("gate_proj", GATE_UP), ("up_proj", GATE_UP), ("down_proj", DOWN)];
/// How a checkpoint names what the model joins.
#[derive(Debug)]
pub struct ExpertNames {
    /// The block that experts and router are in, where it is not `mlp`.
    pub(crate) block: &'static str,
    /// The first expert's gate, or of the two that are joined whichever comes first, and its output.
    pub(crate) first: [&'static str; 2],
}

pub(super) const MIXTRAL_EXPERTS: ExpertNames =
    ExpertNames { block: "block_sparse_moe", first: ["0.w1.weight", "0.w2.weight"] };
pub(super) const MOE_EXPERTS: ExpertNames =
    ExpertNames { block: "mlp", first: ["0.gate_proj.weight", "0.down_proj.weight"] };

const ROUTER: &str = "gate.weight";
const GATE_UP: &str = "gate_up_proj";
const DOWN: &str = "down_proj";

/// What comes between the two products.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gate {
    /// `act(gate) × up` of two halves.
    Of(Activation),
    /// GPT-OSS's clamped SwiGLU of interleaved columns.
    Clamped,
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
        // The wrapper of the parameter that is listed last is the outermost.
        let folded_down = t.fold(&self.down, self.transposed);
        let folded_gate_up = t.fold(&self.gate_up, self.transposed);
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
        // The first bias lives until the second takes its name.
        let bias_of = |i: usize| self.biases.as_ref().map(|all| t.index_rows(&all[i], &sorted));
        let with = |out: Tensor, bias: Option<&Tensor>| bias.map_or_else(|| out.clone(), |b| t.add_in_place(&out, b));
        let gate_up = t.folded(&folded_gate_up);
        let mut bias = bias_of(0);
        let mut out = with(t.grouped_mm(&selected, &gate_up, &offsets, self.transposed), bias.as_ref());
        out = self.gated(t, &out);
        let down = t.folded(&folded_down);
        let second = bias_of(1);
        bias = second;
        out = with(t.grouped_mm(&out, &down, &offsets, self.transposed), bias.as_ref());
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
        // Local names are released in the order in which they first appear.
        drop((ids, sorted, order, selected, weights, narrow, counts, offsets, bias, out, weighted, inverse, sum));
        // What was folded is cached until the outermost wrapper returns.
        drop((folded_gate_up, gate_up, down, folded_down));
        cast
    }

    fn gated(&self, t: &Tape, x: &Tensor) -> Tensor {
        let Gate::Of(activation) = self.gate else { return clamped_swiglu(t, x) };
        let parts = t.split(x, 1, Dim::plain(x.dim(1).n / 2), 2);
        let gate = activation.apply(t, &parts[0]);
        t.mul(&gate, &parts[1])
    }
}

/// `GptOssExperts._apply_gate`.
fn clamped_swiglu(t: &Tape, x: &Tensor) -> Tensor {
    let (gate, up) = (t.every_second(x, 1), t.every_second(x, 1));
    let gate = t.clamp(&gate, false);
    let up = t.clamp(&up, true);
    let glu = {
        let slope = {
            let scaled = t.mul_scalar(&gate);
            t.sigmoid(&scaled)
        };
        t.mul(&gate, &slope)
    };
    let out = {
        let shifted = t.add_scalar(&up);
        t.mul(&shifted, &glu)
    };
    drop((gate, up, glu));
    out
}

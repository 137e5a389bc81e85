//! What a rank of a Megatron-LM job holds between steps: its share of the parameters in BF16, FP32 main gradients, and
//! master weights and Adam's moments in FP32, sharded where the optimizer is distributed
//! (`megatron/core/distributed/param_and_grad_buffer.py`, `optimizer/{distrib_optimizer,optimizer,param_layout}.py`).

use crate::bill::Part;
use crate::model::family::{MegatronWeight as Weight, Split};
use crate::step::megatron::context::Cx;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Elements at which a parameter begins in a buffer, and, with the ranks, at which a buffer ends.
const START: u64 = 64;
const END: u64 = 128;

/// Ranks that hold the same parameters: those of a model's dense part, and of its experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replicas {
    pub(super) dense: u64,
    pub(super) expert: u64,
}

/// A model chunk's parameters on this rank.
pub(super) struct Chunk {
    /// The matrices, in the order of what was given; vectors take part in nothing but what is held.
    pub(super) weights: Vec<Option<Tensor>>,
    _held: Vec<Tensor>,
}

impl Weight {
    /// Its sizes on a rank.
    fn shape(self, cx: &Cx) -> Shape {
        let by = cx.tensor.max(1);
        let [rows, columns] = [self.rows, self.columns];
        let dims = |rows: u64, columns: u64| {
            if columns == 0 { Shape::new(&[Dim::plain(rows)]) } else { Shape::new(&[rows, columns].map(Dim::plain)) }
        };
        match self.split {
            Split::Whole => dims(rows, columns),
            Split::Rows => dims(rows / by, columns),
            Split::Columns => dims(rows, columns / by),
            Split::Expert(count, by_rows) => {
                let local = count / cx.expert.max(1);
                let by = cx.expert_tensor.max(1);
                let [rows, columns] = if by_rows { [rows / by, columns] } else { [rows, columns / by] };
                Shape::new(&[local, rows, columns].map(Dim::plain))
            }
        }
    }

    const fn is_expert(self) -> bool {
        matches!(self.split, Split::Expert(..))
    }
}

/// Makes what `weights` hold on this rank.
pub(super) fn chunk(t: &Tape, cx: &Cx, weights: &[(u32, Weight)], replicas: Replicas) -> Chunk {
    let mut held = Vec::new();
    let mut out: Vec<Option<Tensor>> = weights.iter().map(|_| None).collect();
    let distributed = cx.options.use_distributed_optimizer;
    for expert in [false, true] {
        let ranks = if expert { replicas.expert } else { replicas.dense };
        let of = || weights.iter().enumerate().filter(move |(_, (_, weight))| weight.is_expert() == expert);
        if of().next().is_none() {
            continue;
        }
        let elements: u64 = of()
            .map(|(_, (_, weight))| {
                let n = weight.shape(cx).numel().unwrap_or(u64::MAX);
                if distributed { n.saturating_add(START - 1) / START * START } else { n }
            })
            .fold(0, u64::saturating_add);
        let end = lcm(ranks.max(1), END).max(1);
        let elements = if distributed { elements.div_ceil(end).saturating_mul(end) } else { elements };
        let line = |n: u64| Shape::new(&[Dim::plain(n)]);
        // Parameters are views of one buffer where the optimizer gathers them from their shards.
        let buffer = distributed.then(|| t.empty(line(elements), Dtype::Bf16, Part::Weights, "parameter buffer"));
        for (at, (layer, weight)) in of() {
            t.set_layer(*layer);
            let (id, shape) = (u32::try_from(at).unwrap_or(u32::MAX), weight.shape(cx));
            let leaf = match &buffer {
                Some(buffer) => Tensor::leaf_over(t, buffer, id, shape, None),
                None => Tensor::parameter(t, id, shape, Dtype::Bf16),
            };
            if let Some(own) = leaf.leaf() {
                // Added to the main gradient at once, and let go.
                *own.grad.hook.borrow_mut() = Some(Box::new(|_, _| None));
            }
            out[at] = Some(leaf);
        }
        t.set_layer(0);
        held.extend(buffer);
        held.push(t.empty(line(elements), Dtype::F32, Part::Gradients, "main gradients"));
        let shard = if distributed { elements / ranks.max(1) } else { elements };
        for op in ["master weights", "exp_avg", "exp_avg_sq"] {
            held.push(t.empty(line(shard), Dtype::F32, Part::States, op));
        }
    }
    Chunk { weights: out, _held: held }
}

impl Chunk {
    /// A hook holds nothing of the tape's; the tape's tensors hold theirs.
    pub(super) fn remove_hooks(&self) {
        for leaf in self.weights.iter().flatten().filter_map(Tensor::leaf) {
            leaf.grad.hook.take();
        }
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}

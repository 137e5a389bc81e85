//! The optimizers of bitsandbytes (bitsandbytes/optim/optimizer.py and ademamix.py, read at 0.50.2): states in FP32 or
//! in one byte per element with an FP32 scale per block, whatever the weights are; no temporaries.

use crate::recipe::optimizer::{Optimizer, OptimizerName, Slots, state_of};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Table, Tensor};

/// Tensors with fewer elements keep FP32 states (`min_8bit_size`).
const MIN_8BIT_SIZE: u64 = 4096;
/// Tensors with fewer elements are not paged (`get_state_buffer`).
const MIN_PAGED_SIZE: u64 = 100_000;
/// Codes of a quantization map.
const CODES: u64 = 256;

/// One of its optimizers.
struct Kind {
    /// First moments: AdEMAMix's 8-bit class keeps a fast and a slow one, in one tensor.
    firsts: u64,
    /// Whether there are second moments: Lion has none.
    second: bool,
}

fn kind(name: OptimizerName) -> Kind {
    use OptimizerName as N;
    Kind {
        firsts: if name == N::AdEmaMix8bit { 2 } else { 1 },
        second: !matches!(name, N::Lion | N::Lion8bit | N::PagedLion8bit),
    }
}

fn in_eight_bits(o: &Optimizer, n: u64, embedding: bool) -> bool {
    o.name.is_8bit() && n >= MIN_8BIT_SIZE && !(o.embeddings_32bit && embedding)
}

fn is_paged(name: OptimizerName, n: u64) -> bool {
    name.is_paged() && n >= MIN_PAGED_SIZE
}

/// Bytes in managed memory for a tensor of `n` elements.
pub(super) fn paged_bytes(o: &Optimizer, n: u64, embedding: bool) -> u64 {
    let kind = kind(o.name);
    let width = if in_eight_bits(o, n, embedding) { 1 } else { 4 };
    if is_paged(o.name, n) { n.saturating_mul(width * (kind.firsts + u64::from(kind.second))) } else { 0 }
}

/// One step over `params`; the first one creates the states.
#[inline(never)]
pub(super) fn step(tape: &Tape, o: &Optimizer, params: &[Tensor], slots: &mut Slots) {
    if !slots.is_empty() {
        return;
    }
    let kind = kind(o.name);
    let second = usize::from(kind.second);
    // One map for the first moments and one for the second, made for the first tensor that needs them.
    let mut maps: Option<Vec<Tensor>> = None;
    for p in params {
        let n = p.shape().numel().unwrap_or(u64::MAX);
        // What the Trainer of transformers asks for: embeddings keep FP32 states.
        let table = p.leaf().is_some_and(|leaf| leaf.table.get() == Table::Embedding);
        let eight_bits = in_eight_bits(o, n, table);
        let dtype = if eight_bits { Dtype::U8 } else { Dtype::F32 };
        let first = times(p.shape(), kind.firsts);
        let moment = |shape: &Shape, op: &'static str| {
            // Managed memory: nothing that PyTorch's allocator sees.
            if is_paged(o.name, n) { tape.buffer(*shape, dtype) } else { state_of(tape, *shape, dtype, op) }
        };
        if !eight_bits {
            p.enter_layer(tape);
            let mut state = vec![moment(&first, "first moment")];
            state.extend(kind.second.then(|| moment(p.shape(), "second moment")));
            slots.push(state);
            continue;
        }
        p.enter_layer(tape);
        let maps = maps.get_or_insert_with(|| {
            // All layers share them, unless each weight has an optimizer of its own.
            if !o.in_backward {
                tape.set_layer(0);
            }
            let map = |_| state_of(tape, Shape::new(&[Dim::plain(CODES)]), Dtype::F32, "quantization map");
            (0..=second).map(map).collect()
        });
        p.enter_layer(tape);
        let moments = || {
            let first = moment(&first, "8-bit first moment");
            [first].into_iter().chain(kind.second.then(|| moment(p.shape(), "8-bit second moment")))
        };
        let blocks = Shape::new(&[Dim::plain(n.div_ceil(tape.rules().optimizer_block))]);
        let scales = || {
            let of = |shape: Shape| state_of(tape, shape, Dtype::F32, "scales of 8-bit states");
            [of(times(&blocks, kind.firsts))].into_iter().chain(kind.second.then(|| of(blocks)))
        };
        // AdEMAMix makes the scales first.
        let mut state: Vec<Tensor> =
            if kind.firsts == 1 { moments().chain(scales()).collect() } else { scales().chain(moments()).collect() };
        state.extend(maps.iter().cloned());
        slots.push(state);
    }
}

/// As many tensors of these sizes in one.
fn times(shape: &Shape, n: u64) -> Shape {
    let mut dims = shape.dims().to_vec();
    if let (Some(first), 2..) = (dims.first_mut(), n) {
        *first = first.times(Dim::plain(n));
    }
    Shape::new(&dims)
}

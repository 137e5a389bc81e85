//! bitsandbytes' AdamW with 8-bit states (bitsandbytes/optim/optimizer.py, read at 0.50.2): two moments of one byte per
//! element with an FP32 scale per block, in FP32 for small tensors; no temporaries.

use crate::recipe::optimizer::{Slots, state_of};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Tensors with fewer elements keep FP32 states (`min_8bit_size`).
const MIN_8BIT_SIZE: u64 = 4096;
/// Elements that share a scale.
const BLOCK: u64 = 256;
/// Codes of a quantization map.
const CODES: u64 = 256;

/// One step over `params`; the first one creates the states.
pub(super) fn step(tape: &Tape, params: &[Tensor], slots: &mut Slots) {
    if !slots.is_empty() {
        return;
    }
    // One map for the first moments and one for the second, made for the first tensor that needs them.
    let mut maps: Option<[Tensor; 2]> = None;
    for p in params {
        let n = p.shape().numel().unwrap_or(u64::MAX);
        let of = |dtype: Dtype, op: &'static str| state_of(tape, *p.shape(), dtype, op);
        if n < MIN_8BIT_SIZE {
            p.enter_layer(tape);
            slots.push(vec![of(Dtype::F32, "first moment"), of(Dtype::F32, "second moment")]);
            continue;
        }
        let maps = maps.get_or_insert_with(|| {
            tape.set_layer(0);
            [(); 2].map(|()| state_of(tape, Shape::new(&[Dim::plain(CODES)]), Dtype::F32, "quantization map"))
        });
        p.enter_layer(tape);
        let moments = [of(Dtype::U8, "8-bit first moment"), of(Dtype::U8, "8-bit second moment")];
        let blocks = Shape::new(&[Dim::plain(n.div_ceil(BLOCK))]);
        let scales = [(); 2].map(|()| state_of(tape, blocks, Dtype::F32, "scales of 8-bit states"));
        slots.push(moments.into_iter().chain(scales).chain(maps.iter().cloned()).collect());
    }
}

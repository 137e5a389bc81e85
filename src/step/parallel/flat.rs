//! Copies between one flat buffer and many tensors, and the tables of addresses and sizes that their kernels read from the
//! device (ATen/native/cuda/TensorShape.cu, PyTorch 2.15).

use crate::step::shape::{Dim, Shape};
use crate::step::tape::{Device, Tape};
use crate::step::tensor::{Dtype, Tensor};

/// Threads of a block.
const BLOCK: u64 = 128;
/// Bytes that a block copies at once: 16 per thread.
const TILE: u64 = 16 * BLOCK;
/// Bytes of a table's entry.
const ENTRY: u64 = 8;

/// A flat tensor of `n` elements.
pub(super) fn flat(tape: &Tape, n: u64, dtype: Dtype, op: &'static str) -> Tensor {
    tape.temp(Shape::new(&[Dim::plain(n)]), dtype, op)
}

/// The most threads that a multiprocessor runs, by compute capability (CUDA's programming guide).
const fn threads_per_multiprocessor(device: &Device) -> u64 {
    match device.sm {
        75 => 1024,
        86..=89 | 120.. => 1536,
        _ => 2048,
    }
}

/// `split_with_sizes_copy` out of a buffer of `ranks` rows, each of parts of so many `bytes`.
pub(super) fn split_copy_scratch(tape: &Tape, bytes: &[u64], ranks: u64) {
    let device = tape.device();
    let blocks = |tile: u64| bytes.iter().map(|b| b.div_ceil(tile)).sum::<u64>();
    let most = device.multiprocessors * threads_per_multiprocessor(device) / BLOCK * 2;
    let factor = blocks(TILE).saturating_mul(ranks).div_ceil(most).max(1);
    let rows = (factor.isqrt() + u64::from(!is_square(factor))).min(ranks);
    let entries = 4 * bytes.len() as u64 + 1 + blocks(TILE * factor.div_ceil(rows));
    drop(tape.scratch(ENTRY * entries, "table of a split copy"));
}

const fn is_square(n: u64) -> bool {
    let root = n.isqrt();
    root * root == n
}

/// `_chunk_cat` into a buffer of several rows, each of parts of so many `bytes`. Over tensors of several dtypes two sums less
/// are kept (`fsdp::chunk_cat_mixed_dtype`, recorded with PyTorch 2.15).
pub(super) fn chunk_cat_scratch(tape: &Tape, bytes: &[u64], mixed: bool) {
    let blocks: u64 = bytes.iter().map(|b| b.div_ceil(TILE)).sum();
    let entries = 6 * bytes.len() as u64 + if mixed { 0 } else { 2 } + blocks;
    drop(tape.scratch(ENTRY * entries, "table of a concatenation"));
}

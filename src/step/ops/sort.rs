//! Sorting, prefix sums, selection of the largest: whole-tensor operations of CUB, and gathers by index.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// What CUB aligns each of its temporaries to; the pointer itself may be off by one less.
const CUB_ALIGNMENT: u64 = 256;

/// Scratch of CUB's radix sort of `n` pairs of 64-bit keys and values by the lowest `bits`: one pass per eight bits, each
/// with its histogram and the blocks' counters, and second copies of keys and values where there are several passes. Few
/// pairs are sorted by one block without scratch (`DispatchRadixSort`, "onesweep").
pub(super) const fn radix_sort_scratch(sm: u32, n: u64, bits: u64) -> u64 {
    /// Pairs that one block sorts at once.
    const SINGLE_TILE: u64 = 2304;
    const DIGITS: u64 = 256;
    if n <= SINGLE_TILE {
        return 1;
    }
    // Pairs per block otherwise, tuned for some generations.
    let tile = match sm {
        ..80 => 5632,
        80..90 => 3840,
        _ => 4608,
    };
    let passes = bits.div_ceil(8);
    let copies = if passes > 1 { 2 * (8 * n).next_multiple_of(CUB_ALIGNMENT) } else { 0 };
    let counters = (4 * passes).next_multiple_of(CUB_ALIGNMENT);
    CUB_ALIGNMENT - 1 + passes * DIGITS * 8 + n.div_ceil(tile) * DIGITS * 4 + counters + copies
}

/// Bits that hold `n`.
pub(super) const fn bits(n: u64) -> u64 {
    64 - n.leading_zeros() as u64
}

/// Scratch of CUB's prefix sum of `n` 64-bit numbers: a state per block and 32 more.
pub(super) const fn scan_scratch(n: u64) -> u64 {
    /// Numbers per block.
    const TILE: u64 = 896;
    look_back_scratch(n.div_ceil(TILE))
}

/// Scratch of CUB's selection of the first of equal 64-bit keys among `n`: as of a prefix sum, its blocks tuned for some
/// generations.
pub(super) const fn selection_scratch(sm: u32, n: u64) -> u64 {
    let tile = match sm {
        80 => 1344,
        90.. => 4928,
        _ => 320,
    };
    look_back_scratch(n.div_ceil(tile))
}

const fn look_back_scratch(blocks: u64) -> u64 {
    let states = 16 * (32 + blocks);
    CUB_ALIGNMENT - 1 + CUB_ALIGNMENT + states.next_multiple_of(CUB_ALIGNMENT)
}

impl Tape {
    /// `torch.sort` of a line of 64-bit integers: the sorted line and the order.
    #[must_use]
    pub fn sort(&self, x: &Tensor) -> (Tensor, Tensor) {
        /// Longer lines are sorted by CUB (`sort_cuda_kernel`, ATen/native/cuda/Sort.cu).
        const SMALL: u64 = 4096;
        let line = |op: &'static str| self.temp(*x.shape(), Dtype::I64, op);
        let (sorted, order) = (line("sorted"), line("order"));
        let range = line("range");
        let n = x.shape().numel().unwrap_or(0);
        if n > SMALL {
            let scratch = self.scratch(radix_sort_scratch(self.device().sm, n, 64), "sort scratch");
            drop(scratch);
        }
        drop(range);
        (sorted, order)
    }

    /// `x[indices]` along the first dimension, for a line of indices. Backward adds into zeros, sorted by index
    /// (`index_put_with_sort_kernel`, ATen/native/cuda/Indexing.cu).
    #[must_use]
    pub fn index_rows(&self, x: &Tensor, indices: &Tensor) -> Tensor {
        self.index_along(x, 0, indices)
    }

    /// `table[indices]` for indices of several dimensions: [`Tape::index_rows`] of them in a row.
    #[must_use]
    pub fn index_table(&self, table: &Tensor, indices: &Tensor) -> Tensor {
        let flat = indices.shape().dims().iter().copied().reduce(Dim::times).unwrap_or(Dim::plain(1));
        let rows = self.index_rows(table, &indices.alias(Shape::new(&[flat])));
        let mut sizes = indices.shape().dims().to_vec();
        sizes.push(table.dim(1));
        self.reshape(&rows, &sizes)
    }

    /// `x[..., [i], ...]` along dimension `at`: a list of one index, which is copied to the device.
    #[must_use]
    pub fn index_one(&self, x: &Tensor, at: usize) -> Tensor {
        let index = self.temp(Shape::new(&[Dim::plain(1)]), Dtype::I64, "index");
        self.index_along(x, at, &index)
    }

    fn index_along(&self, x: &Tensor, at: usize, indices: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let saved = r.save(indices);
        let n = indices.dim(0);
        let out = self.temp(x.shape().narrowed(at, n).contiguous(), x.dtype(), "gather");
        let before = x.shape().contiguous();
        r.finish(out, move |t, g| {
            let (Some(g), Some(indices)) = (first(g), saved.unpack(t)) else { return Grads::default() };
            let grad = t.temp(before, g.dtype(), "grad of gather");
            let line = |op: &'static str| t.temp(Shape::new(&[n]), Dtype::I64, op);
            let linear = {
                let wrapped = line("wrapped indices");
                let linear = line("linear indices");
                drop(wrapped);
                linear
            };
            let (sorted, order) = (line("sorted indices"), line("order of indices"));
            let range = line("range");
            let scratch = radix_sort_scratch(t.device().sm, n.n, bits(before.dims()[at].n.saturating_sub(1)));
            let scratch = t.scratch(scratch, "sort scratch");
            drop(scratch);
            drop((range, order, sorted, linear));
            drop(indices);
            grads_of([Some(grad)])
        })
    }

    /// `topk(x, k, dim=-1)` of [rows, n]: values and their places. Backward writes the gradient into zeros.
    #[must_use]
    pub fn topk(&self, x: &Tensor, k: u64) -> (Tensor, Tensor) {
        let r = Recorder::begin(self, &[x]);
        let last = x.shape().rank() - 1;
        let sizes = x.shape().narrowed(last, Dim::plain(k)).contiguous();
        let values = self.temp(sizes, x.dtype(), "largest values");
        let places = self.temp(sizes, Dtype::I64, "places of the largest");
        let saved = r.save(&places);
        let whole = x.shape().contiguous();
        let values = r.finish(values, move |t, g| {
            let (Some(g), Some(_places)) = (first(g), saved.unpack(t)) else { return Grads::default() };
            grads_of([Some(t.temp(whole, g.dtype(), "grad of the largest values"))])
        });
        (values, places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded with PyTorch 2.15: pairs, bits, scratch on compute capability 8.0 and on 9.0.
    #[test]
    fn scratch_is_what_cub_asks_for() {
        for (n, by, ampere, hopper) in [
            (2304, 16, 1, 1),
            (3073, 10, 55_295, 55_295),
            (4096, 8, 4607, 3583),
            (4096, 15, 72_191, 71_167),
            (16_384, 8, 7679, 6655),
            (16_384, 9, 271_871, 270_847),
            (16_384, 17, 273_919, 272_895),
            (262_144, 10, 4_269_567, 4_257_279),
        ] {
            let of = |sm: u32| radix_sort_scratch(sm, n, by);
            assert_eq!((of(80), of(90)), (ampere, hopper), "{n} pairs by {by}");
        }
        assert_eq!(radix_sort_scratch(90, 65_536, 18), 1_070_591);
        assert_eq!(radix_sort_scratch(90, 8192, 64), 150_015);
        for (n, bytes) in [(1000, 1279), (16_384, 1535), (32_000, 1791), (70_000, 2303), (131_072, 3583)] {
            assert_eq!(scan_scratch(n), bytes, "{n}");
        }
        assert_eq!([32_768, 147_456, 262_144].map(|n| selection_scratch(80, n)), [1535, 2815, 4351]);
        assert_eq!([65_536, 147_456, 262_144].map(|n| selection_scratch(90, n)), [1279, 1535, 2047]);
        assert_eq!((bits(1), bits(255), bits(256)), (1, 8, 9));
    }
}

//! Reductions. One over many inputs is split over several blocks, which meet in scratch memory; how many, the launch
//! geometry decides (`setReduceConfig`, ATen/native/cuda/Reduce.cuh, read at 2.15).

use crate::step::shape::{Dim, MAX_RANK, Shape};
use crate::step::tape::{Device, Tape};
use crate::step::tensor::{Dtype, Tensor};

/// Most threads of a reduction's block.
const MAX_THREADS: u64 = 512;
const WARP: u64 = 32;
/// Inputs that a thread of a reduction along the fastest dimension loads at once (`vt0`).
const INPUT_VECTOR: u64 = 4;
/// Bytes per element of what a reduction of floating tensors adds up in; of booleans, one.
const ACCUMULATOR: u64 = 4;

impl Tape {
    /// The sum of `x` over the dimensions that `sizes` has as 1 or lacks, outside the graph.
    pub(crate) fn sum_over(&self, x: &Tensor, sizes: &Shape) -> Tensor {
        self.reduced(x, sizes, "sum")
    }

    /// A reduction of `x` over the dimensions that `sizes` has as 1 or lacks, in `x`'s dtype, outside the graph.
    pub(crate) fn reduced(&self, x: &Tensor, sizes: &Shape, op: &'static str) -> Tensor {
        self.reduced_as(x.shape(), sizes, x.dtype(), op)
    }

    /// As [`Tape::reduced`], of a tensor of which only sizes and dtype matter.
    pub(crate) fn reduced_as(&self, x: &Shape, sizes: &Shape, dtype: Dtype, op: &'static str) -> Tensor {
        let out = self.temp(sizes.contiguous(), dtype, op);
        let iter = Iter::new(x, sizes, dtype.bytes());
        // Where the kernel cannot index with 32 bits it runs over pieces, which meet in the output if it is exact
        // enough, else in a buffer.
        let buffer = (dtype.is_half() && !iter.fits_32_bits())
            .then(|| self.temp(sizes.contiguous(), Dtype::F32, "partial sums"));
        self.reduce_pieces(iter);
        drop(buffer);
        out
    }

    /// The largest value of a tensor of these sizes, found in its own dtype.
    pub(crate) fn largest(&self, x: &Shape, dtype: Dtype) -> Tensor {
        let none = Shape::new(&[]);
        let out = self.temp(none, dtype, "largest value");
        self.reduce_into(x, &none, dtype);
        out
    }

    /// A reduction of a tensor of sizes `x` in its own dtype, whose result is written where it is told.
    pub(crate) fn reduce_into(&self, x: &Shape, sizes: &Shape, dtype: Dtype) {
        self.reduce_pieces(Iter { accumulator: dtype.bytes(), ..Iter::new(x, sizes, dtype.bytes()) });
    }

    /// How many of a boolean tensor of these sizes are true: it is summed as 64-bit integers, a cast of it.
    pub(crate) fn counted(&self, x: &Shape) -> Tensor {
        let none = Shape::new(&[]);
        let out = self.temp(none, Dtype::I64, "count");
        let cast = self.temp(x.contiguous(), Dtype::I64, "cast");
        self.reduce_pieces(Iter { accumulator: Dtype::I64.bytes(), ..Iter::new(x, &none, Dtype::I64.bytes()) });
        drop(cast);
        out
    }

    fn reduce_pieces(&self, iter: Iter) {
        if !iter.fits_32_bits()
            && let Some((first, second)) = iter.halves()
        {
            self.reduce_pieces(first);
            self.reduce_pieces(second);
            return;
        }
        if let Some((partial, semaphores)) = global_scratch(self.device(), &iter) {
            let partial = self.scratch(partial, "partial sums");
            let semaphores = self.scratch(semaphores, "semaphores");
            drop(semaphores);
            drop(partial);
        }
    }

    /// The 2-norm of all of `x` (`x.norm(2)`).
    pub(crate) fn norm(&self, x: &Tensor) -> Tensor {
        self.reduced(x, &Shape::new(&[]), "norm")
    }
}

/// The sizes of `shape` with dimension `i` reduced and kept as 1.
pub(crate) fn keepdim(shape: &Shape, i: usize) -> Shape {
    shape.narrowed(i, Dim::plain(1)).contiguous()
}

/// One dimension of a reduction's iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    n: u64,
    /// Of the input, in elements.
    stride: u64,
    reduced: bool,
}

/// A reduction's iteration as `TensorIterator` orders it: reduced dimensions first, then by stride, neighbours that lie
/// densely merged, dimensions of size 1 left out.
#[derive(Clone, Debug)]
struct Iter {
    axes: Vec<Axis>,
    /// Bytes per input element.
    element: u64,
    /// Bytes per partial result.
    accumulator: u64,
}

impl Iter {
    fn new(x: &Shape, sizes: &Shape, element: u64) -> Self {
        let lead = x.rank().saturating_sub(sizes.rank());
        let mut axes = Vec::with_capacity(MAX_RANK);
        for (i, (dim, &stride)) in x.dims().iter().zip(x.strides()).enumerate() {
            let kept = i >= lead && sizes.dims()[i - lead].n == dim.n;
            if dim.n != 1 {
                axes.push(Axis { n: dim.n, stride, reduced: !kept });
            }
        }
        axes.sort_by_key(|a| (!a.reduced, a.stride, a.n));
        axes.dedup_by(|next, before| {
            let dense = next.reduced == before.reduced && before.n.checked_mul(before.stride) == Some(next.stride);
            if dense {
                before.n = before.n.saturating_mul(next.n);
            }
            dense
        });
        Self { axes, element, accumulator: if element == 1 { 1 } else { ACCUMULATOR } }
    }

    fn product(&self, reduced: bool) -> u64 {
        self.axes.iter().filter(|a| a.reduced == reduced).fold(1, |all: u64, a| all.saturating_mul(a.n))
    }

    fn extent(&self, axis: &Axis) -> u64 {
        axis.n.saturating_sub(1).saturating_mul(axis.stride).saturating_mul(self.element)
    }

    /// `TensorIteratorBase::can_use_32bit_indexing`.
    fn fits_32_bits(&self) -> bool {
        const MAX: u64 = i32::MAX as u64;
        let numel = self.axes.iter().fold(1, |all: u64, a| all.saturating_mul(a.n));
        let bytes = self.axes.iter().fold(1, |all: u64, a| all.saturating_add(self.extent(a)));
        numel <= MAX && bytes <= MAX
    }

    /// Cut in two along the dimension of the largest extent (`get_dim_to_split`).
    fn halves(&self) -> Option<(Self, Self)> {
        let at = (0..self.axes.len()).rev().max_by_key(|&i| (self.extent(&self.axes[i]), i))?;
        let n = self.axes[at].n;
        let with = |n: u64| {
            let mut half = self.clone();
            half.axes[at].n = n;
            half
        };
        (n > 1).then(|| (with(n / 2), with(n - n / 2)))
    }
}

fn last_pow2(n: u64) -> u64 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}

/// Bytes of partial results and of semaphores, when the reduction is split over blocks.
fn global_scratch(device: &Device, iter: &Iter) -> Option<(u64, u64)> {
    let (outputs, inputs) = (iter.product(false), iter.product(true));
    let kept = iter.axes.iter().position(|a| !a.reduced);
    let reduced_dims = iter.axes.iter().filter(|a| a.reduced).count();
    let first = iter.axes.first()?;
    if !first.reduced || outputs == 0 {
        return None;
    }
    // The fastest dimension: reduced (its values meet across the lanes of a warp), or kept?
    let along = kept.is_none_or(|k| first.stride < iter.axes[k].stride);
    let (mut dim0, dim1) = if along { (inputs, outputs) } else { (outputs, inputs) };
    let fastest = if along { first.stride } else { iter.axes[kept?].stride };
    let mut vector = 1;
    if fastest == 1 {
        if along && dim0 >= 128 && reduced_dims == 1 {
            dim0 /= INPUT_VECTOR;
        } else if !along {
            vector = output_vector(iter, kept?);
            dim0 /= vector;
        }
    }
    let max_threads = MAX_THREADS / vector;
    let dim0_pow2 = last_pow2(dim0).min(max_threads);
    let dim1_pow2 = last_pow2(dim1).min(max_threads);
    let width = dim0_pow2.min(WARP);
    let height = dim1_pow2.min(max_threads / width);
    let width = dim0_pow2.min(max_threads / height);
    let threads = width * height;
    let (mut step_input, step_output) = if along { (width, 1) } else { (1, width) };
    // Across warps lie inputs, if each thread still has enough to do; else outputs, and then blocks never meet.
    if inputs.div_ceil(step_input) < (height * 16).min(256) {
        return None;
    }
    step_input *= height;
    let per_thread = inputs.div_ceil(step_input);
    let grid = (outputs / vector).div_ceil(step_output);
    let target = device.multiprocessors * (max_threads_per_sm(device.sm) / threads);
    if per_thread < 256 || grid > target {
        return None;
    }
    let blocks = target.div_ceil(grid).min(per_thread.div_ceil(16)).max(per_thread.div_ceil(256));
    if blocks <= 1 {
        return None;
    }
    let lanes = if along { 1 } else { width * vector };
    Some((iter.accumulator.checked_mul(outputs)?.checked_mul(blocks * lanes)?, 4 * grid))
}

/// Outputs that a thread takes at once: as many of 4 as every stride and the fastest kept dimension allow.
fn output_vector(iter: &Iter, kept: usize) -> u64 {
    let mut vector = 4;
    for (i, axis) in iter.axes.iter().enumerate() {
        let n = if i == kept { axis.n } else { axis.stride };
        while n % vector != 0 {
            vector /= 2;
        }
    }
    vector
}

/// `maxThreadsPerMultiProcessor` by compute capability (CUDA C programming guide, table of technical specifications).
const fn max_threads_per_sm(sm: u32) -> u64 {
    match sm {
        75 => 1024,
        86 | 89 | 120 | 121 => 1536,
        _ => 2048,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(dims: &[u64], kept: &[u64]) -> Option<(u64, u64)> {
        let device = Device { sm: 80, multiprocessors: 108, workspace_kept: false };
        let shape = |dims: &[u64]| Shape::new(&dims.iter().map(|&n| Dim::plain(n)).collect::<Vec<_>>());
        global_scratch(&device, &Iter::new(&shape(dims), &shape(kept), 2))
    }

    /// Recorded with PyTorch 2.15 on compute capability 8.0: a sum of a BF16 [4, 1024, 256] tensor to [256] takes
    /// 8,388,608 B of partial sums and 8 B of semaphores; of [2, 384, 256], none.
    #[test]
    fn a_sum_over_many_rows_meets_in_scratch() {
        assert_eq!(scratch(&[4, 1024, 256], &[256]), Some((8_388_608, 8)));
        assert_eq!(scratch(&[2, 384, 256], &[256]), None);
    }

    /// Recorded with PyTorch 2.15 on compute capability 8.0: the norm of [1000, 256] takes 128 B and 4 B, of [704, 256]
    /// 88 B and 4 B, of [256, 256] none; norms along rows or columns of these take none.
    #[test]
    fn a_norm_over_a_whole_tensor_meets_in_scratch() {
        assert_eq!(scratch(&[1000, 256], &[]), Some((128, 4)));
        assert_eq!(scratch(&[704, 256], &[]), Some((88, 4)));
        assert_eq!(scratch(&[256, 256], &[]), None);
        assert_eq!(scratch(&[1000, 256], &[1000, 1]), None);
        assert_eq!(scratch(&[1000, 256], &[1, 256]), None);
    }

    #[test]
    fn what_32_bits_cannot_index_is_cut_in_halves() {
        let iter = Iter::new(&Shape::new(&[Dim::plain(1 << 31)]), &Shape::new(&[]), 4);
        let mut stack = vec![iter];
        let mut pieces = Vec::new();
        while let Some(iter) = stack.pop() {
            match iter.halves() {
                Some((a, b)) if !iter.fits_32_bits() => stack.extend([b, a]),
                _ => pieces.push(iter.product(true)),
            }
        }
        assert_eq!(pieces, [1 << 29; 4]);
    }
}

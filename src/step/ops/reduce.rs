//! Sums. A reduction over a few long columns is split over several blocks, which meet in scratch memory; how many, the
//! launch geometry decides (`setReduceConfig`, ATen/native/cuda/Reduce.cuh, read at 2.15).

use crate::step::shape::Shape;
use crate::step::tape::{Device, Tape};
use crate::step::tensor::{Dtype, Tensor};

/// Most threads of a reduction's block.
const MAX_THREADS: u64 = 512;
const WARP: u64 = 32;

impl Tape {
    /// The sum of `x` over the dimensions that `sizes` has as 1 or lacks, outside the graph.
    pub(crate) fn sum_over(&self, x: &Tensor, sizes: &Shape) -> Tensor {
        let out = self.temp(sizes.contiguous(), x.dtype(), "sum");
        if let Some((scratch, semaphores)) = global_scratch(self.device(), x.shape(), sizes, x.dtype()) {
            let partial = self.scratch(scratch, "partial sums");
            let semaphores = self.scratch(semaphores, "semaphores");
            drop(semaphores);
            drop(partial);
        }
        out
    }
}

fn last_pow2(n: u64) -> u64 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}

/// Bytes of partial sums and of semaphores, when the sum over columns is split over blocks. Sums along the fastest
/// dimension never are at the widths of a model.
fn global_scratch(device: &Device, x: &Shape, sizes: &Shape, dtype: Dtype) -> Option<(u64, u64)> {
    let outputs = sizes.numel()?;
    let inputs = x.numel()?.checked_div(outputs)?;
    // The fastest dimension that is longer than one: reduced, or kept?
    let lead = x.rank() - sizes.rank();
    let kept = |i: usize| i >= lead && sizes.dims()[i - lead].n == x.dims()[i].n;
    let fastest = (0..x.rank()).filter(|&i| x.dims()[i].n > 1).min_by_key(|&i| x.strides()[i])?;
    if !kept(fastest) || x.strides()[fastest] != 1 {
        return None;
    }
    let mut vector = 4;
    while outputs % vector != 0 {
        vector /= 2;
    }
    let max_threads = MAX_THREADS / vector;
    let (dim0, dim1) = (outputs / vector, inputs);
    let dim0_pow2 = if dim0 < max_threads { last_pow2(dim0) } else { max_threads };
    let dim1_pow2 = if dim1 < max_threads { last_pow2(dim1) } else { max_threads };
    let width = dim0_pow2.min(WARP);
    let height = dim1_pow2.min(max_threads / width);
    let width = dim0_pow2.min(max_threads / height);
    let threads = width * height;
    // Outputs lie across a warp; inputs across warps if each thread still has enough to do.
    let warp_split = (height * 16).min(256);
    if inputs < warp_split {
        return None;
    }
    let per_thread = inputs.div_ceil(height);
    let grid = (outputs / vector).div_ceil(width);
    let per_sm = max_threads_per_sm(device.sm) / threads;
    let target = device.multiprocessors * per_sm;
    if per_thread < 256 || grid > target {
        return None;
    }
    let blocks = target.div_ceil(grid).min(per_thread.div_ceil(16)).max(per_thread.div_ceil(256));
    if blocks <= 1 {
        return None;
    }
    let accumulator = if dtype == Dtype::F32 || dtype.is_half() { 4 } else { dtype.bytes() };
    let bytes = accumulator * outputs;
    Some((bytes.checked_mul(blocks * width * vector)?, 4 * grid))
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
    use crate::step::shape::Dim;

    /// Recorded with PyTorch 2.15 on compute capability 8.0: a sum of a BF16 [4, 1024, 256] tensor to [256] takes
    /// 8,388,608 B of partial sums and 8 B of semaphores; of [2, 384, 256], none.
    #[test]
    fn a_sum_over_many_rows_meets_in_scratch() {
        let device = Device { sm: 80, multiprocessors: 108, workspace_kept: false };
        let of = |dims: &[u64]| {
            let dims: Vec<Dim> = dims.iter().map(|&n| Dim::plain(n)).collect();
            let width = [dims[dims.len() - 1]];
            global_scratch(&device, &Shape::new(&dims), &Shape::new(&width), Dtype::Bf16)
        };
        assert_eq!(of(&[4, 1024, 256]), Some((8_388_608, 8)));
        assert_eq!(of(&[2, 384, 256]), None);
    }
}

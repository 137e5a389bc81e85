//! Which kernel runs the backward of memory-efficient attention, and the scratch that it asks for.

use crate::step::tape::Device;
use crate::step::tensor::Dtype;

/// A kernel as ATen/native/transformers/cuda/mem_eff_attention/kernels/cutlassB.h lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EfficientKernel {
    /// Queries per block.
    queries: u64,
    /// Keys per block.
    keys: u64,
    /// Whether the gradients of keys and values are gathered in memory rather than in registers.
    staged: bool,
}

impl EfficientKernel {
    /// The first kernel of `dispatch_cutlassB` that takes the head size and fits the device's shared memory. The
    /// kernels' shared memory cannot be read off the sources; which of them fit was observed with PyTorch 2.15 on compute
    /// capabilities 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0, for heads of 32 to 256, with and without dropout.
    pub(super) fn choose(device: &Device, dtype: Dtype, head: u64, dropout: bool) -> Self {
        let of = |queries: u64, keys: u64| Self { queries, keys, staged: false };
        let large_shared_memory = matches!(device.sm, 80 | 87 | 90..=110);
        match (dtype.is_half(), head) {
            (_, ..=64) => of(64, 64),
            (false, _) if large_shared_memory => of(128, 64),
            (false, _) => of(64, 64),
            (true, 129..) => Self { staged: true, ..of(128, 64) },
            (true, _) if device.sm < 80 => of(128, 64),
            (true, _) if large_shared_memory => of(128, 128),
            (true, ..=96) if matches!(device.sm, 86 | 89) && !dropout => of(128, 64),
            (true, _) => Self { staged: true, ..of(64, 64) },
        }
    }

    /// Bytes of scratch for `heads` (of all sequences) of `queries` and `keys`, with the head sizes of keys and of values
    /// (`workspace_size`, kernel_backward.h).
    ///
    /// Per head: the query gradient in FP32 by blocks, each with a lock; where staged, FP32 key and value gradients of
    /// every split of the keys.
    pub(super) fn workspace(self, heads: u64, queries: u64, keys: u64, [head, value_head]: [u64; 2]) -> u64 {
        const LOCK: u64 = 16;
        let tile = LOCK + 4 * self.queries * self.keys;
        let query = queries.div_ceil(self.queries).saturating_mul(head.div_ceil(self.keys)).saturating_mul(tile);
        let staged = if self.staged {
            let splits = if heads >= 256 && keys <= 2 * self.keys { 1 } else { keys.div_ceil(self.keys) };
            let splits = splits.min(200 / heads.max(1)).max(1);
            let columns = head.next_multiple_of(self.queries) + value_head.next_multiple_of(self.queries);
            4 * splits * self.keys * columns
        } else {
            0
        };
        heads.saturating_mul(query.saturating_add(staged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compute capability, element type, head size, (heads of all sequences, tokens), bytes.
    type Recorded = (u32, Dtype, u64, (u64, u64), u64);

    const RECORDED: [Recorded; 20] = [
        (120, Dtype::Bf16, 96, (2, 65), 393_344),
        (120, Dtype::Bf16, 96, (24, 300), 11_800_320),
        (120, Dtype::F32, 160, (2, 65), 196_800),
        (120, Dtype::F32, 160, (24, 300), 5_904_000),
        (75, Dtype::F16, 128, (2, 65), 131_136),
        (75, Dtype::F16, 128, (24, 300), 4_720_896),
        (75, Dtype::F32, 128, (2, 65), 131_200),
        (75, Dtype::F32, 128, (24, 300), 3_936_000),
        (80, Dtype::Bf16, 128, (2, 65), 131_104),
        (80, Dtype::Bf16, 128, (24, 300), 4_719_744),
        (80, Dtype::F32, 128, (2, 65), 131_136),
        (80, Dtype::F32, 128, (24, 300), 4_720_896),
        (80, Dtype::F32, 64, (2, 65), 65_600),
        (80, Dtype::F32, 64, (24, 300), 1_968_000),
        (89, Dtype::Bf16, 96, (2, 65), 131_136),
        (89, Dtype::Bf16, 96, (24, 300), 4_720_896),
        (89, Dtype::F16, 128, (2, 65), 393_344),
        (89, Dtype::F16, 128, (24, 300), 11_800_320),
        (90, Dtype::Bf16, 256, (2, 65), 786_560),
        (90, Dtype::Bf16, 256, (24, 300), 25_170_432),
    ];

    /// Recorded with PyTorch 2.15, causal, without dropout.
    #[test]
    fn scratch_is_as_recorded() {
        let workspace = |sm: u32, dtype: Dtype, head: u64, (heads, s): (u64, u64)| {
            let device = Device { sm, multiprocessors: 108, workspace_kept: false };
            EfficientKernel::choose(&device, dtype, head, false).workspace(heads, s, s, [head; 2])
        };
        for (sm, dtype, head, of, recorded) in RECORDED {
            assert_eq!(workspace(sm, dtype, head, of), recorded, "{sm} {dtype:?} {head} {of:?}");
        }
    }

    /// Recorded with PyTorch 2.15: eight heads of 192 tokens.
    #[test]
    fn scratch_is_as_recorded_with_dropout_too() {
        for (sm, dtype, head, dropout, bytes) in [
            (80, Dtype::F16, 64, false, 393_600),
            (80, Dtype::F16, 96, false, 1_048_832),
            (80, Dtype::F16, 160, true, 4_719_360),
            (80, Dtype::F16, 256, false, 5_243_904),
            (80, Dtype::F32, 128, false, 1_049_088),
            (80, Dtype::F32, 192, false, 1_573_632),
            (86, Dtype::F16, 96, false, 1_049_088),
            (86, Dtype::F16, 96, true, 2_360_064),
            (86, Dtype::F16, 128, false, 2_360_064),
            (86, Dtype::F32, 96, false, 787_200),
            (75, Dtype::F16, 128, true, 1_049_088),
            (75, Dtype::F16, 192, false, 4_719_360),
            (75, Dtype::F32, 192, false, 1_180_800),
            (90, Dtype::F16, 192, true, 4_719_360),
        ] {
            let device = Device { sm, multiprocessors: 108, workspace_kept: false };
            let kernel = EfficientKernel::choose(&device, dtype, head, dropout);
            assert_eq!(kernel.workspace(8, 192, 192, [head; 2]), bytes, "{sm} {dtype:?} {head} {dropout}");
        }
    }
}

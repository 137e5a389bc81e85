//! When bitsandbytes multiplies with a 4-bit weight in one fused kernel and when it dequantises it first
//! (`_gemm_4bit_use_custom_cuda` and its caller, `backends/cuda/ops.py`, read at 0.50). Its authors measured these limits.

use crate::step::ops::quantized::BLOCK;
use crate::step::tape::Device;
use crate::step::tensor::Dtype;

/// Whether a product of `m` rows with an [n, k] weight is fused.
pub(super) fn fused_4bit(device: &Device, dtype: Dtype, m: u64, n: u64, k: u64) -> bool {
    const MOST_ROWS: u64 = 1536;
    const ALWAYS: u64 = 4;
    if m > MOST_ROWS || !k.is_multiple_of(BLOCK) {
        return false;
    }
    m <= ALWAYS || fewer_than_limit(device, dtype, m, n, k)
}

fn fewer_than_limit(device: &Device, dtype: Dtype, m: u64, n: u64, k: u64) -> bool {
    const SMALL_WEIGHT: u64 = 4 << 20;
    let (sm, sms, blocks) = (device.sm, device.multiprocessors, n.div_ceil(64));
    // FP32 has no tensor-core kernel, nor has anything before 7.5; 7.5 has FP16 alone.
    if dtype == Dtype::F32 || sm < 75 || (sm < 80 && dtype != Dtype::F16) {
        return m < 8;
    }
    // No measurements of their authors.
    if sm == 87 || (110..120).contains(&sm) {
        return false;
    }
    if (100..110).contains(&sm) {
        return match blocks {
            b if b >= sms * 3 => m <= 32,
            b if b >= sms => k < n && m <= 8,
            _ => false,
        };
    }
    if n.saturating_mul(k) < SMALL_WEIGHT {
        return m <= small_weight(sm, sms, blocks, m, n, k);
    }
    if m > 512 {
        return false;
    }
    if m < 8 {
        return few_rows(sm, sms, blocks, m, n, k);
    }
    m <= large_weight(sm, sms, blocks, n, k)
}

/// The most rows over a weight of less than 4 Mi elements.
fn small_weight(sm: u32, sms: u64, blocks: u64, m: u64, n: u64, k: u64) -> u64 {
    let (ampere, hopper, turing) = (sm == 80, (90..100).contains(&sm), sm == 75);
    if k * 2 < n {
        let low = blocks * 3 < sms;
        return match () {
            () if ampere => {
                if low {
                    1536
                } else {
                    512
                }
            }
            () if hopper => {
                if low {
                    512
                } else {
                    320
                }
            }
            () if turing && blocks < sms * 3 && k >= 1024 => 64,
            () if turing && blocks < sms * 3 && k >= 704 => 96,
            () if turing || blocks >= sms => 320,
            () => {
                if blocks * k > sms * 320 {
                    192
                } else {
                    320
                }
            }
        };
    }
    let quarter = blocks * 4 <= sms;
    if ampere && quarter {
        return match () {
            () if k < n => 384,
            () if blocks * 8 <= sms => 32,
            () => 128,
        };
    }
    if turing && blocks < sms && m > 8 {
        return 64;
    }
    match () {
        () if quarter => {
            if k < n || ampere || hopper {
                32
            } else {
                23
            }
        }
        () if blocks * 2 <= sms => 16,
        () => 0,
    }
}

/// From 5 to 7 rows over a larger weight.
fn few_rows(sm: u32, sms: u64, blocks: u64, m: u64, n: u64, k: u64) -> bool {
    let (ampere, hopper) = (sm == 80, (90..100).contains(&sm));
    let from = if hopper { 36 } else { 48 };
    if !(ampere || hopper) || m < 6 || blocks < from {
        return true;
    }
    let (below_75, below_60) = (blocks * 4 < sms * 3, blocks * 5 < sms * 3);
    !(k > n && below_75) && !(k == n && (ampere && below_60 || hopper && below_75 && !below_60))
}

/// The most rows, from 8 on, over a larger weight.
fn large_weight(sm: u32, sms: u64, blocks: u64, n: u64, k: u64) -> u64 {
    let half = blocks >= sms / 2;
    let tall = k > n * 2;
    match sm {
        75 => match () {
            () if blocks >= sms * 3 => {
                if k < n {
                    128
                } else {
                    64
                }
            }
            () if half => 64,
            () => 32,
        },
        80 => match () {
            () if blocks >= sms * 3 => 128,
            () if blocks >= sms => {
                if k < n {
                    64
                } else {
                    32
                }
            }
            () if k >= n * 3 && blocks * 4 > sms => 0,
            () if k == n && blocks >= 48 && blocks * 5 < sms * 3 => 0,
            () if blocks * 2 < sms && k <= n => 128,
            () if blocks * 2 < sms && blocks * 3 >= sms => 0,
            () if half && k < n => 128,
            () => 16,
        },
        86 => match () {
            () if blocks >= sms => 128,
            () if half => 64,
            () => 16,
        },
        90..=99 => match () {
            () if blocks >= sms * 3 => 64,
            () if blocks >= sms * 2 => 48,
            () if blocks >= sms => 32,
            () if half && !(k >= n && blocks * 4 < sms * 3) => 16,
            () => 0,
        },
        121 if blocks >= sms => 256,
        120 => match () {
            () if blocks >= sms * 3 => 256,
            () if blocks >= sms * 2 => 128,
            () if blocks * 5 >= sms * 4 => {
                if k >= n {
                    96
                } else {
                    64
                }
            }
            () if half => {
                if k * 2 >= n && blocks >= 128 {
                    64
                } else {
                    8
                }
            }
            () if tall && blocks > 64 => 16,
            () => 8,
        },
        _ => match () {
            () if blocks >= sms * 3 => 256,
            () if blocks >= sms * 2 => 128,
            () if blocks * 5 >= sms * 4 => match () {
                () if tall || blocks >= 200 => 128,
                () if k < n => 64,
                () => {
                    if sms >= 60 {
                        128
                    } else {
                        32
                    }
                }
            },
            () if half => match () {
                () if tall => 64,
                () if blocks >= 64 => 8,
                () => 32,
            },
            () if k > n && blocks <= 48 => {
                if k >= n * 3 {
                    12
                } else {
                    10
                }
            }
            () => {
                if tall || blocks < 48 {
                    16
                } else {
                    8
                }
            }
        },
    }
}

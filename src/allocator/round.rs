//! From requested bytes to the size of a block, and from that to the size of a segment.

use super::conf::AllocConf;
use super::rules::Rules;
use super::{MIN_BLOCK, MIN_LARGE_ALLOC, SMALL_BUFFER, SMALL_SIZE};

/// The block size for a request of `n` bytes (1 to [`super::MAX_REQUEST`]).
pub(super) fn block_size(n: u64, conf: &AllocConf, rules: &Rules) -> u64 {
    let divisions = u64::from(conf.divisions_for(n));
    // A division of 1 leaves the size as it is, in the versions that look at it.
    let least = if rules.division_one_unrounded { 1 } else { 2 };
    if divisions >= least && n > MIN_BLOCK * divisions {
        return if divisions == 1 { n } else { to_power2_division(n, divisions) };
    }
    n.next_multiple_of(MIN_BLOCK)
}

/// `n` rounded up to a multiple of its power of two's `divisions`-th part; a power of two stays.
fn to_power2_division(n: u64, divisions: u64) -> u64 {
    let floor = 1 << n.ilog2();
    // The caller has n > 512 × divisions, so the step is at least 512.
    n.next_multiple_of(floor >> divisions.ilog2())
}

/// The segment that a block of `size` bytes is carved from when none is free.
pub(super) fn segment_size(size: u64, conf: &AllocConf) -> u64 {
    if size <= SMALL_SIZE {
        SMALL_BUFFER
    } else if size < MIN_LARGE_ALLOC {
        conf.large_segment_size
    } else {
        size.next_multiple_of(SMALL_BUFFER)
    }
}

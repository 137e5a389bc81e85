//! The smallest card: what a device must give to the caching allocator for the step to complete.
//!
//! PyTorch frees what it caches and tries again before it gives up, so the boundary lies between the allocated and the
//! reserved peak; only a replay on a device of that size tells where.

use serde::{Deserialize, Serialize};

use crate::allocator::{Config, SMALL_BUFFER};
use crate::bill::Instant;
use crate::step::log::Phase;
use crate::step::readings::Readings;
use crate::step::replay::{Failure, replay};
use crate::step::train::Walk;
use crate::units::Bytes;

/// The boundary between devices that are too small and devices that suffice, and where the largest of the former fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallestCard {
    /// Enough: what the device must give to the allocator. A multiple of the driver's 2 MiB pages.
    pub completes_bytes: Bytes,
    /// In which step the next smaller device runs out, counted from 1; 0 while the model is built.
    pub fails_in_step: u32,
    /// At which instant.
    pub fails_at: Instant,
    /// In which phase, if in another one than the training step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails_in_phase: Option<Phase>,
}

/// Whether the walk completes on a device that gives `bytes` to the allocator.
///
/// # Errors
/// Where it fails.
pub fn completes(walk: &Walk, config: &Config, bytes: Bytes) -> Result<(), Box<Failure>> {
    replay(walk, &Config { total_bytes: Some(bytes), ..config.clone() }).map(|_| ())
}

/// Finds the boundary by bisection between the allocated and the reserved peak of `readings`, which are those of the
/// walk on a device without limit.
#[must_use]
pub fn smallest_card(walk: &Walk, config: &Config, readings: &Readings) -> SmallestCard {
    let pages = |bytes: Bytes| bytes.get().div_ceil(SMALL_BUFFER);
    let of = |pages: u64| Bytes(pages * SMALL_BUFFER);
    // Less than the allocated peak never suffices; the reserved peak always does.
    let (mut low, mut high) =
        (pages(readings.highest_allocated()).saturating_sub(1), pages(readings.highest_reserved()));
    let mut failure = completes(walk, config, of(low)).err();
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match completes(walk, config, of(middle)) {
            Ok(()) => high = middle,
            Err(found) => {
                low = middle;
                failure = Some(found);
            }
        }
    }
    let (step, at, phase) =
        failure.map_or((0, Instant::Forward, None), |f| (f.step.map_or(0, |s| s + 1), f.instant, f.phase));
    SmallestCard { completes_bytes: of(high), fails_in_step: step, fails_at: at, fails_in_phase: phase }
}

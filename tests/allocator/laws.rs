//! What must hold after every event of any script.

use proptest::prelude::*;
use vram_budget::allocator::trace::{Report, Trace};
use vram_budget::allocator::{Allocator, BlockId, BlockState, Config, Stats};
use vram_budget::units::Bytes;

use crate::scripts::{Random, script};
use crate::{data, driver};

/// The statistics, counted again from the segments.
fn check(allocator: &Allocator, config: &Config) {
    let Stats { requested, allocated, active, reserved, inactive_split, segments, .. } = allocator.stats();
    let (mut sum_reserved, mut sum_active, mut sum_allocated, mut sum_requested, mut sum_split) = (0, 0, 0, 0, 0);
    let mut classic = 0;
    for segment in allocator.segments() {
        sum_reserved += segment.size();
        classic += u64::from(!segment.expandable);
        assert!(segment.blocks.iter().all(|b| b.size >= 512), "no block is smaller than 512 bytes");
        for pair in segment.blocks.windows(2) {
            assert!(pair.iter().any(|b| b.state != BlockState::Inactive), "free neighbours are merged: {segment:?}");
        }
        let page = match (segment.small, segment.expandable) {
            (false, true) => config.alloc_conf.large_segment_size,
            _ => 2 << 20,
        };
        assert_eq!(segment.size() % page, 0, "segments are whole pages");
        for block in &segment.blocks {
            match block.state {
                BlockState::Allocated => {
                    sum_allocated += block.size;
                    sum_active += block.size;
                }
                BlockState::PendingFree => sum_active += block.size,
                BlockState::Inactive if !segment.expandable && segment.blocks.len() > 1 => sum_split += block.size,
                BlockState::Inactive => {}
            }
            assert!(block.requested <= block.size);
            sum_requested += block.requested;
        }
    }
    assert_eq!(reserved.current, Bytes(sum_reserved));
    assert_eq!(active.current, Bytes(sum_active));
    assert_eq!(allocated.current, Bytes(sum_allocated));
    assert_eq!(requested.current, Bytes(sum_requested));
    assert_eq!(inactive_split.current, Bytes(sum_split));
    assert_eq!(segments.current, classic);
    assert!(reserved.current >= active.current && active.current >= allocated.current);
    assert!(active.current >= requested.current);
    if active.current == allocated.current {
        assert!(allocated.current >= requested.current);
    }
    for gauge in [requested, allocated, active, reserved, inactive_split] {
        assert!(gauge.peak >= gauge.current);
    }
    assert!(config.total_bytes.is_none_or(|total| reserved.peak <= total));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn blocks_tile_segments_and_statistics_add_up(seed in any::<u64>()) {
        let script = script(seed);
        let trace = Trace::from_json(&script.to_string()).unwrap();
        let config = data::recorded_config(&trace, script["version"].as_str().unwrap().parse().unwrap());
        let mut driver = driver::Driver::new(&config);
        for event in script["events"].as_array().unwrap() {
            driver.event(event);
            check(&driver.allocator, &config);
        }
        // Then everything is freed, private pools are released, and nothing is left.
        driver.free_all();
        check(&driver.allocator, &config);
        let stats = driver.allocator.stats();
        let held = [stats.requested, stats.allocated, stats.active, stats.reserved, stats.inactive_split];
        prop_assert!(held.iter().all(|g| g.current == Bytes::ZERO), "{held:?}");
        prop_assert_eq!(driver.allocator.segment_count(), 0);
    }

    #[test]
    fn replays_are_deterministic(seed in any::<u64>()) {
        let script = script(seed);
        let trace = Trace::from_json(&script.to_string()).unwrap();
        let config = data::recorded_config(&trace, script["version"].as_str().unwrap().parse().unwrap());
        let report = || serde_json::to_string(&Report::new(&trace, &config, "").unwrap()).unwrap();
        prop_assert_eq!(report(), report());
    }

    /// What was allocated is freed in reverse, or in any order: nothing stays allocated, and the cache that is left
    /// serves the same requests again without growing.
    #[test]
    fn a_script_and_its_reverse_leave_nothing_allocated(
        sizes in proptest::collection::vec(1_u64..200 << 20, 1..60),
        seed in any::<u64>(),
        reverse in any::<bool>(),
    ) {
        let mut allocator = Allocator::new(&Config::new(vram_budget::plan::Version(2, 15)));
        let mut blocks: Vec<BlockId> = sizes.iter().map(|&n| allocator.malloc(n, 0).unwrap()).collect();
        let first = allocator.stats();
        let mut random = Random(seed);
        while !blocks.is_empty() {
            let at = if reverse { blocks.len() - 1 } else { usize::try_from(random.next() % blocks.len() as u64).unwrap() };
            allocator.free(blocks.remove(at));
        }
        let freed = allocator.stats();
        prop_assert_eq!(freed.allocated.current, Bytes::ZERO);
        prop_assert_eq!(freed.inactive_split.current, Bytes::ZERO);
        prop_assert_eq!(freed.reserved.current, first.reserved.current);
        // The same again, from a fork: the fork and the original do not share state.
        let mut fork = allocator.clone();
        for &n in &sizes {
            fork.malloc(n, 0).unwrap();
        }
        prop_assert_eq!(fork.stats().requested.current, first.requested.current);
        prop_assert_eq!(allocator.stats(), freed);
        allocator.empty_cache();
        prop_assert_eq!(allocator.stats().reserved.current, Bytes::ZERO);
        allocator.reset_peaks();
        prop_assert_eq!(allocator.stats().reserved.peak, Bytes::ZERO);
    }
}

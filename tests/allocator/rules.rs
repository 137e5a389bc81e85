//! Corners of single rules that neither recordings nor random scripts are sure to reach.

use vram_budget::allocator::{AllocConf, Allocator, BlockId, Config};
use vram_budget::plan::Version;
use vram_budget::units::{Bytes, MIB};

fn allocator(total_mib: u64, conf: &str) -> Allocator {
    let version = Version(2, 15);
    Allocator::new(&Config {
        total_bytes: Some(Bytes::mib(total_mib)),
        alloc_conf: AllocConf::parse(conf, version).unwrap(),
        ..Config::new(version)
    })
}

/// Three free segments of 70 MiB on a device of 230 MiB. A request of 140 MiB finds none as large, so that oversize
/// segments are given back from the largest downwards until 140 MiB are free: two of them, to the byte, and the third
/// stays cached. That is no flush.
#[test]
fn oversize_release_stops_when_it_freed_just_enough() {
    let mut allocator = allocator(230, "max_split_size_mb:64");
    let blocks: Vec<BlockId> = (0..3).map(|_| allocator.malloc(70 * MIB, 0).unwrap()).collect();
    for block in blocks {
        allocator.free(block);
    }
    allocator.malloc(140 * MIB, 0).unwrap();
    let stats = allocator.stats();
    assert_eq!(stats.reserved.current, Bytes::mib(70 + 140));
    assert_eq!((stats.num_alloc_retries, stats.segments.current), (0, 2));
}

/// More than an exbibyte is refused before anything else happens, and not counted as an out-of-memory event.
#[test]
fn absurd_requests_change_nothing() {
    let mut allocator = allocator(100, "");
    let block = allocator.malloc(30 * MIB, 0).unwrap();
    allocator.free(block);
    let before = allocator.stats();
    let error = allocator.malloc((1 << 60) + 1, 0).unwrap_err();
    assert_eq!((error.requested, error.reserved), (Bytes((1 << 60) + 1), Bytes::mib(30)));
    assert_eq!(allocator.stats(), before);
}

#[test]
fn requests_for_nothing_get_nothing() {
    let mut allocator = allocator(100, "");
    let nothing = allocator.malloc(0, 0).unwrap();
    assert_eq!(nothing, BlockId::NULL);
    allocator.record_stream(nothing, 3);
    allocator.free(nothing);
    assert_eq!((allocator.sizes(nothing), allocator.stats()), ((0, 0), Default::default()));
}

/// On a device that lags, a freed block that another stream used comes back once the host has waited for an event that lies
/// after that use, however many streams lie between; not before, and not for an event that does not.
#[test]
fn a_block_comes_back_once_the_host_waited_for_what_came_after_its_use() {
    let pending = |waits: &[(u32, u32)]| {
        let mut allocator = allocator(1000, "");
        allocator.set_events_pending(true);
        let block = allocator.malloc(30 * MIB, 0).unwrap();
        allocator.record_stream(block, 1);
        allocator.free(block);
        waits.iter().for_each(|&(stream, other)| allocator.wait_stream(stream, other));
        allocator.record_event(3);
        allocator.malloc(30 * MIB, 0).unwrap();
        let before = allocator.stats().reserved.current;
        // One event is too few for the host to wait.
        allocator.await_oldest_of(2);
        allocator.await_oldest_of(1);
        allocator.malloc(30 * MIB, 0).unwrap();
        (before, allocator.stats().reserved.current)
    };
    let (two, three) = (Bytes::mib(60), Bytes::mib(90));
    assert_eq!(pending(&[(2, 1), (3, 2)]), (two, two));
    assert_eq!(pending(&[(3, 2), (2, 1)]), (two, three));
    assert_eq!(pending(&[]), (two, three));
}

//! Any bytes as a recording of the allocator: an error or a replay. `tests/snapshots.rs` mutates real ones on every test
//! run; its files are good seeds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vram_budget::allocator::Config;
use vram_budget::plan::Version;
use vram_budget::snapshot::{History, Reader};

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Reader::new(Some(bytes.len() as u64), 256 << 20);
    if reader.push(bytes).is_err() {
        return;
    }
    let Ok(snapshot) = reader.finish() else { return };
    for device in snapshot.devices() {
        let _ = (snapshot.totals(device), snapshot.holders(device), snapshot.peak(device));
        if let Ok(history) = History::of(&snapshot, device) {
            let config = Config { total_bytes: history.capacity(), ..Config::new(Version(2, 15)) };
            let _ = (history.replay(&config, true), history.replay(&config, false));
        }
    }
});

//! Any bytes as a trace: an error or a replay. `tests/allocator/hostile.rs` does the same on every test run.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vram_budget::allocator::trace::{Report, Trace};
use vram_budget::allocator::{AllocConf, Config};
use vram_budget::plan::Version;

fuzz_target!(|text: &str| {
    let Ok(trace) = Trace::from_json(text) else { return };
    let version = trace.pytorch.unwrap_or(Version(2, 15));
    let Ok(alloc_conf) = AllocConf::parse(&trace.alloc_conf, version) else { return };
    let config = Config { total_bytes: trace.total, alloc_conf, ..Config::new(version) };
    let _ = Report::new(&trace, &config, &trace.alloc_conf);
});

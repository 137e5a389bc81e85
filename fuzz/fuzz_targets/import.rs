//! Any bytes as a measurement: an error or a document. `tests/fuzz.rs` does the same for each format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vram_budget::measure::{Options, understand};

fuzz_target!(|bytes: &[u8]| {
    let _ = understand(bytes, &Options::default());
});

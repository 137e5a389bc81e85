//! Events per second of the allocator on recorded training loops: `cargo bench --bench allocator [NAME]`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads its files and a clock")]

use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use vram_budget::allocator::trace::{Trace, replay};
use vram_budget::allocator::{AllocConf, Config};
use vram_budget::plan::Version;

/// How long each trace is replayed.
const TIME: Duration = Duration::from_secs(1);

fn main() {
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_else(|| "real-".into());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/allocator/traces");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    for file in files.iter().filter(|f| f.file_name().is_some_and(|n| n.to_string_lossy().contains(&wanted))) {
        let mut text = String::new();
        flate2::read::GzDecoder::new(std::fs::File::open(file).unwrap()).read_to_string(&mut text).unwrap();
        let mut trace = Trace::from_json(&text).unwrap();
        // The allocator alone, without the listing of segments.
        trace.checkpoints.clear();
        let version = trace.pytorch.unwrap_or(Version(2, 15));
        let config = Config {
            total_bytes: trace.total,
            alloc_conf: AllocConf::parse(&trace.alloc_conf, version).unwrap(),
            ..Config::new(version)
        };
        let mut best = Duration::MAX;
        let start = Instant::now();
        while start.elapsed() < TIME {
            let one = Instant::now();
            black_box(replay(black_box(&trace), &config, |_, _| {}).unwrap());
            best = best.min(one.elapsed());
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
        let rate = trace.events.len() as f64 / best.as_secs_f64() / 1e6;
        println!("{:45} {:6} events  {rate:6.1} million events/s (best run)", trace.name, trace.events.len());
    }
}

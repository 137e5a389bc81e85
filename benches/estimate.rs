//! Time of one estimate of the page's example, a model of 32 layers: `cargo bench --bench estimate`, and of one of its
//! parts: `cargo bench --bench estimate -- walk`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads a clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use vram_budget::estimate::{Job, estimate, quick};
use vram_budget::recipe::Precision;
use vram_budget::view::example;

/// How long each is repeated.
const TIME: Duration = Duration::from_secs(1);

/// Runs `run` again and again and says how long the fastest and the median run took.
fn time(name: &str, run: impl Fn()) {
    if std::env::args().skip(1).any(|part| !part.starts_with('-') && !name.starts_with(&part)) {
        return;
    }
    let mut all = Vec::new();
    let start = Instant::now();
    while start.elapsed() < TIME {
        let one = Instant::now();
        run();
        all.push(one.elapsed());
    }
    all.sort();
    println!("{name:48} {:>10.1?} at best, {:>10.1?} median", all[0], all[all.len() / 2]);
}

fn main() {
    let plan = example();
    let job = Job::of(&plan).unwrap();
    assert_eq!(job.model.layers(), 32);
    time("walk of a steady step, 32 layers (≤ 100 µs)", || {
        drop(black_box(job.walk_steady(black_box(&plan), Precision::PureBf16)));
    });
    time("estimate without a replay (≤ 200 µs)", || drop(black_box(quick(black_box(&plan)))));
    time("estimate with the allocator's replay", || drop(black_box(estimate(black_box(&plan)))));
}

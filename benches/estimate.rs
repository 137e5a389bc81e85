//! Time of one estimate of the page's example, a model of 32 layers: `cargo bench --bench estimate`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads a clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use vram_budget::estimate::{Job, estimate, quick};
use vram_budget::recipe::Precision;
use vram_budget::view::example;

/// How long each is repeated.
const TIME: Duration = Duration::from_secs(1);

fn best(name: &str, run: impl Fn()) {
    let mut best = Duration::MAX;
    let start = Instant::now();
    while start.elapsed() < TIME {
        let one = Instant::now();
        run();
        best = best.min(one.elapsed());
    }
    println!("{name:45} {best:10.1?} (best run)");
}

fn main() {
    let plan = example();
    let job = Job::of(&plan).unwrap();
    best("walk of a steady step", || drop(black_box(job.walk_steady(black_box(&plan), Precision::PureBf16))));
    best("bill without a replay", || drop(black_box(quick(black_box(&plan)))));
    best("estimate with the allocator's replay", || drop(black_box(estimate(black_box(&plan)))));
}

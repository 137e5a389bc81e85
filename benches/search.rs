//! How many distinct plans a second the walk judges, on one core, over a fixed grid: `cargo bench --bench search`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads a clock")]

mod grid;

use std::time::{Duration, Instant};

fn main() {
    let mut best = Duration::MAX;
    let mut plans = 0;
    for _ in 0..5 {
        let mut search = grid::search().unwrap();
        let start = Instant::now();
        plans = grid::walk(&mut search);
        best = best.min(start.elapsed());
    }
    let per_second = plans as f64 / best.as_secs_f64();
    println!("{plans} plans in {best:.1?} at best: {per_second:.0} plans a second (≥ 50,000)");
}

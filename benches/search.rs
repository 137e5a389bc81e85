//! How many distinct plans a second the walk judges, on one core, over a fixed grid: `cargo bench --bench search`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads a clock")]

use std::time::{Duration, Instant};

use vram_budget::decide::search::{Search, Space, Target};
use vram_budget::recipe::{Checkpointing, Optimizer, OptimizerName};
use vram_budget::view::example;

fn main() {
    let plan = example();
    let mut space = Space::of(&plan);
    space.target = Target::Sequences(5040);
    space.micro_batches = (1..=64).collect();
    space.seq_lens = vec![1024, 2048, 4096, 8192];
    space.checkpointing = vec![Checkpointing::None, Checkpointing::Selective, Checkpointing::Full];
    let each = |name: OptimizerName| {
        let own = name.implementations();
        let choices = if own.is_empty() { vec![None] } else { own.iter().copied().map(Some).collect() };
        choices.into_iter().map(move |implementation| Optimizer { name, implementation, ..Optimizer::default() })
    };
    space.optimizers = OptimizerName::ALL.into_iter().flat_map(each).collect();
    space.add_gpus(["A100 SXM4 40GB", "A100 SXM4 80GB", "H100 SXM5 80GB"].map(String::from));
    let mut best = Duration::MAX;
    let mut plans = 0;
    for _ in 0..5 {
        let mut search = Search::of(&plan, space.clone()).unwrap();
        let start = Instant::now();
        while search.progress().walked.0 < search.progress().walked.1 {
            search.advance(0);
        }
        best = best.min(start.elapsed());
        plans = search.progress().plans;
    }
    let per_second = plans as f64 / best.as_secs_f64();
    println!("{plans} plans in {best:.1?} at best: {per_second:.0} plans a second (≥ 50,000)");
}

//! The fixed grid of distinct plans that searches are timed on, natively and in a browser.

use vram_budget::decide::search::{Search, Space, Target};
use vram_budget::recipe::{Checkpointing, Optimizer, OptimizerName};
use vram_budget::view::example;

/// A search over it, not begun; none where its machine is refused.
pub(crate) fn search() -> Option<Search> {
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
    Search::of(&plan, space).ok()
}

/// Walks all of it: how many plans there are.
pub(crate) fn walk(search: &mut Search) -> usize {
    while search.progress().walked.0 < search.progress().walked.1 {
        search.advance(0);
    }
    search.progress().plans
}

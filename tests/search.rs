//! Searches against looking at every plan to the end.
#![allow(missing_docs, clippy::unwrap_used)]

use vram_budget::decide::search::{Answers, Found, Search, Space, Target, halve};
use vram_budget::decide::{Deliberation, VerdictKind};
use vram_budget::estimate::quick;
use vram_budget::plan::Plan;
use vram_budget::recipe::{Checkpointing, Optimizer, OptimizerImpl, OptimizerName};
use vram_budget::units::Bytes;

/// A small decoder in BF16 on a card of one's own.
fn plan(mib: u64, more: serde_json::Value) -> Plan {
    let mut plan = serde_json::json!({
        "version": 1,
        "model": { "config": {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 2000, "hidden_size": 256,
            "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2
        } },
        "recipe": { "precision": "pure_bf16", "micro_batch": 4, "grad_accum": 4, "seq_len": 256 },
        "machine": { "gpu": { "custom": { "name": "mine", "memory_bytes": mib << 20, "compute_capability": "8.0" } },
                     "context_bytes": 0, "in_use_bytes": 0 },
    });
    for (key, value) in more.as_object().unwrap() {
        plan["recipe"][key] = value.clone();
    }
    serde_json::from_value(plan).unwrap()
}

/// Every optimizer in every implementation.
fn optimizers() -> Vec<Optimizer> {
    let of = |name: OptimizerName| {
        let own = name.implementations();
        let choices: Vec<Option<OptimizerImpl>> =
            if own.is_empty() { vec![None] } else { own.iter().copied().map(Some).collect() };
        choices.into_iter().map(move |implementation| Optimizer { name, implementation, ..Optimizer::default() })
    };
    let mut all: Vec<Optimizer> = OptimizerName::ALL.into_iter().flat_map(of).collect();
    all.push(Optimizer { momentum: 0.9, nesterov: true, ..all[0] });
    all.push(Optimizer { in_backward: true, implementation: None, ..all[0] });
    all
}

fn walked(plan: &Plan, space: Space) -> Search {
    let mut search = Search::of(plan, space).unwrap();
    while search.progress().walked.0 < search.progress().walked.1 {
        search.advance(1000);
    }
    search
}

/// What few walks say of many plans is what each of them says when it is walked for itself.
#[test]
fn one_walk_speaks_for_every_optimizer() {
    let mut plans = 0;
    for more in [
        serde_json::json!({}),
        serde_json::json!({ "precision": "amp_bf16", "clip_grad": 1.0, "attention": "eager" }),
        serde_json::json!({ "precision": "amp_fp16", "ema": "same" }),
        serde_json::json!({ "precision": "bf16_master", "keep_outputs": true }),
        serde_json::json!({ "precision": "fp32", "lora": { "r": 8, "targets": ["q_proj", "v_proj"] }, "zero_grad": "zero" }),
    ] {
        let plan = plan(1 << 10, more);
        let mut space = Space::of(&plan);
        space.micro_batches = vec![1, 16];
        space.checkpointing = vec![Checkpointing::None, Checkpointing::Full];
        space.optimizers = optimizers();
        let search = walked(&plan, space.clone());
        for (plan, requested, _) in search.plans() {
            let alone = quick(&plan).unwrap().tiers.requested.peak_bytes;
            assert_eq!(requested, alone, "{:?}", plan.recipe);
            plans += 1;
        }
        // Those that are left out are refused.
        let known: Vec<Plan> = search.plans().map(|(plan, ..)| plan).collect();
        for optimizer in space.optimizers {
            let mut plan = plan.clone();
            (plan.recipe.optimizer, plan.recipe.micro_batch, plan.recipe.grad_accum) = (optimizer, 16, 1);
            assert_eq!(known.contains(&plan), quick(&plan).is_ok(), "{:?}", plan.recipe.optimizer);
        }
    }
    assert!(plans > 400, "{plans}");
}

fn all_found(search: &Search) -> Vec<Found> {
    let one = |plan: Plan| {
        let mut deliberation = Deliberation::of(&plan);
        let decision = core::iter::repeat_with(|| deliberation.refine(usize::MAX)).flatten().next()?.ok()?;
        Some(Found { plan, verdict: decision.verdict, throughput: decision.throughput })
    };
    search.plans().filter_map(|(plan, ..)| one(plan)).collect()
}

fn speed(found: &Found) -> f64 {
    found.throughput.as_ref().map_or(0.0, |t| (t.tokens_per_second.low * t.tokens_per_second.high).sqrt())
}

/// The search's answers around `plan`, and that they are those of looking at every plan of `space`. How many fit.
fn held_against_all(plan: &Plan, space: Space, what: &str) -> (Answers, usize) {
    let all = all_found(&walked(plan, space.clone()));
    assert!(all.len() > 30, "{what}: {}", all.len());
    let mut search = Search::of(plan, space).unwrap();
    while !search.advance(3000) {}
    let answers = search.answers()[0].clone();
    let Answers { front, fastest, largest_micro_batch, longest_sequence } = &answers;
    let beats = |a: &Found, b: &Found| {
        let (fast, small) = (speed(a) >= speed(b), a.held() <= b.held());
        fast && small && (speed(a) > speed(b) || a.held() < b.held())
    };
    let figures = |found: &[Found]| {
        let mut figures: Vec<(u64, Bytes)> = found.iter().map(|f| (speed(f).to_bits(), f.held())).collect();
        figures.sort_unstable();
        figures.dedup();
        figures
    };
    let unbeaten: Vec<Found> = all.iter().filter(|b| !all.iter().any(|a| beats(a, b))).cloned().collect();
    assert_eq!(figures(front), figures(&unbeaten), "{what}");
    let fits: Vec<&Found> = all.iter().filter(|f| f.verdict.kind == VerdictKind::Fits).collect();
    let most = fits.iter().map(|f| speed(f)).fold(None, |most: Option<f64>, s| Some(most.map_or(s, |m| m.max(s))));
    assert_eq!(fastest.as_ref().map(speed), most, "{what}");
    let of = |found: &Option<Found>, by: fn(&Plan) -> u64| found.as_ref().map(|f| by(&f.plan));
    let largest = |by: fn(&Plan) -> u64| fits.iter().map(|f| by(&f.plan)).max();
    let batch = |plan: &Plan| plan.recipe.micro_batch;
    let sequence = |plan: &Plan| plan.recipe.seq_len;
    assert_eq!(of(largest_micro_batch, batch), largest(batch), "{what}");
    assert_eq!(of(longest_sequence, sequence), largest(sequence), "{what}");
    assert_eq!(search.smallest(), most.map(|_| 0));
    let fits = fits.len();
    (answers, fits)
}

/// The search looks at few plans to the end and says what looking at all of them would.
#[test]
fn the_answers_are_those_of_looking_at_every_plan() {
    for (mib, gpu) in [(260, None), (120, Some("RTX 4090"))] {
        let mut plan = plan(mib, serde_json::json!({}));
        if let Some(name) = gpu {
            plan.machine = serde_json::from_value(serde_json::json!({ "gpu": { "catalogue": name } })).unwrap();
        }
        let mut space = Space::of(&plan);
        space.every_micro_batch();
        space.seq_lens = vec![128, 256];
        space.target = Target::Tokens(4096);
        space.checkpointing = vec![Checkpointing::None, Checkpointing::Full];
        let named = |name| Optimizer { name, ..Optimizer::default() };
        let fused = Optimizer { implementation: Some(OptimizerImpl::Fused), ..Optimizer::default() };
        space.optimizers = vec![Optimizer::default(), fused, named(OptimizerName::AdamW8bit)];
        let (answers, _) = held_against_all(&plan, space, &mib.to_string());
        for found in answers.front {
            assert_eq!(found.plan.recipe.micro_batch * found.plan.recipe.grad_accum * found.plan.recipe.seq_len, 4096);
        }
    }
}

/// The same over every kind of data parallelism: what a layout holds beside the allocator, how far its GPU may lag, and what
/// its ranks learn from in a step are its own.
#[test]
fn the_answers_over_layouts_are_those_of_looking_at_every_plan() {
    for (mib, gpu) in [(1000, None), (0, Some("RTX 4090"))] {
        let mut plan = plan(mib, serde_json::json!({ "micro_batch": 8, "grad_accum": 1 }));
        if let Some(name) = gpu {
            plan.machine = serde_json::from_value(serde_json::json!({ "gpu": { "catalogue": name } })).unwrap();
        }
        let mut space = Space::of(&plan);
        space.target = Target::Sequences(32);
        space.micro_batches = vec![1, 4, 8];
        space.checkpointing = vec![Checkpointing::None, Checkpointing::Full];
        space.every_layout(4, plan.recipe.precision);
        assert_eq!(space.layouts.len(), 6);
        let (answers, fits) = held_against_all(&plan, space, "layouts");
        assert!(fits > 0, "something fits");
        for found in answers.front.iter().chain(&answers.fastest) {
            let (recipe, ranks) = (&found.plan.recipe, found.plan.parallel.data_ranks());
            assert_eq!((recipe.micro_batch * recipe.grad_accum * ranks, ranks), (32, 4), "the global batch stays");
        }
        // Nothing that waits on events is said to fit.
        assert!(answers.fastest.iter().all(|found| !found.plan.parallel.data.waits_on_events()));
    }
}

#[test]
fn a_micro_batch_is_halved_until_it_fits() {
    let mut plan = plan(200, serde_json::json!({ "micro_batch": 64, "grad_accum": 1 }));
    let tried = halve(&plan).unwrap();
    let kinds: Vec<bool> = tried.iter().map(|f| f.verdict.kind == VerdictKind::Fits).collect();
    assert!(kinds.len() > 1 && kinds.iter().rev().skip(1).all(|fits| !fits), "{kinds:?}");
    assert!(tried.iter().all(|f| f.plan.recipe.micro_batch * f.plan.recipe.grad_accum == 64));
    plan.recipe.micro_batch = 0;
    assert!(halve(&plan).is_err());
}

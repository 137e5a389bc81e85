//! Laws of the walk, and the walk against recorded steps.

use proptest::prelude::*;
use vram_budget::bill::{Instant, Part, Sources, bill, modelled};
use vram_budget::estimate::{Job, estimate};
use vram_budget::measure::Case;
use vram_budget::model::ModelSource;
use vram_budget::plan::{Framework, PLAN_VERSION, Plan, Policy};
use vram_budget::recipe::{
    Attention, Checkpointing, Ema, Loss, Optimizer, OptimizerName, Precision, Recipe, ScaleType, SdpaBackend,
};
use vram_budget::step::log::Event;
use vram_budget::step::repeat::expand;
use vram_budget::step::train::{Steps, Walk, walk_literally, walk_short};

fn plan(config: serde_json::Value, recipe: Recipe) -> Plan {
    let serde_json::Value::Object(config) = config else { unreachable!("a config is an object") };
    Plan {
        version: PLAN_VERSION,
        model: ModelSource::Config(config),
        recipe,
        parallel: Default::default(),
        machine: Default::default(),
        framework: Framework::default(),
        policy: Policy::default(),
        calibration: None,
    }
}

fn llama(layers: u64, hidden: u64) -> serde_json::Value {
    serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": hidden,
        "intermediate_size": 2 * hidden + 64, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 4096
    })
}

fn gpt2(layers: u64, hidden: u64) -> serde_json::Value {
    serde_json::json!({
        "model_type": "gpt2", "vocab_size": 1000, "n_embd": hidden, "n_layer": layers, "n_head": 4, "n_positions": 1024
    })
}

/// Every optimizer in every implementation of its own, plain, with all its options, and in backward.
fn any_optimizer() -> impl Strategy<Value = Optimizer> {
    let mut all = Vec::new();
    for name in OptimizerName::ALL {
        let own = name.implementations();
        let choices = if own.is_empty() { vec![None] } else { own.iter().copied().map(Some).collect() };
        for implementation in choices {
            let plain = Optimizer { name, implementation, rank: Some(8), ..Optimizer::default() };
            let options = Optimizer {
                momentum: 0.9,
                nesterov: true,
                amsgrad: true,
                centered: true,
                embeddings_32bit: true,
                scale_type: ScaleType::Tensor,
                ..plain
            };
            all.extend([plain, options, Optimizer { in_backward: true, ..options }]);
        }
    }
    prop::sample::select(all)
}

fn any_checkpointing() -> impl Strategy<Value = Checkpointing> {
    let numbered = [Checkpointing::Every(1), Checkpointing::Every(2), Checkpointing::Every(3)];
    prop::sample::select(Checkpointing::NAMED.into_iter().chain(numbered).collect::<Vec<_>>())
}

prop_compose! {
    fn some_recipe()(
        precision in prop::sample::select(Precision::ALL.into_iter().filter(|p| *p != Precision::RuleOfThumb).collect::<Vec<_>>()),
        eager in any::<bool>(),
        checkpointing in any_checkpointing(),
        loss in prop::sample::select(vec![Loss::Hf, Loss::Chunked(3), Loss::LogitsToKeep(7)]),
        eval_after in any::<bool>(),
        optimizer in any_optimizer(),
        math in any::<bool>(),
        micro_batch in 1u64..4,
        seq in 1u64..9,
        grad_accum in 1u64..4,
        ema in prop::sample::select(vec![None, Some(Ema::Same), Some(Ema::Float32), Some(Ema::Bfloat16)]),
    ) -> Recipe {
        Recipe {
            precision: Some(precision),
            optimizer,
            sdpa_backend: math.then_some(SdpaBackend::Math),
            attention: Some(if eager { Attention::Eager } else { Attention::Sdpa }),
            checkpointing,
            loss,
            eval_after,
            micro_batch,
            seq_len: seq * 40,
            grad_accum,
            ema,
            ..Recipe::default()
        }
    }
}

fn any_recipe() -> impl Strategy<Value = Recipe> {
    some_recipe().prop_filter("a recipe that is modelled", |recipe| recipe.issues().is_empty())
}

/// What a walk does, without numbers of storages: each allocation with the bytes alive after it.
fn story(walk: &Walk) -> Vec<(u64, &'static str, &'static str, Part, u64)> {
    let mut live = 0;
    let mut story = Vec::new();
    for event in &walk.events {
        match event {
            Event::Alloc(id) => {
                let t = &walk.tensors[*id as usize];
                live += t.bytes.get();
                story.push((t.bytes.get(), t.scope, t.op, t.part, live));
            }
            Event::Free(id) => live -= walk.tensors[*id as usize].bytes.get(),
            _ => {}
        }
    }
    story
}

fn sources() -> Sources {
    Sources { weights: modelled("w"), states: modelled("s"), autograd: modelled("a") }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every storage is allocated once and freed at most once, and a free follows its allocation.
    #[test]
    fn nothing_is_freed_twice(recipe in any_recipe(), gpt in any::<bool>(), layers in 1u64..4) {
        let config = if gpt { gpt2(layers, 64) } else { llama(layers, 64) };
        let plan = plan(config, recipe);
        let walk = Job::of(&plan).unwrap().walk(&plan, plan.recipe.precision.unwrap()).unwrap();
        let mut state = vec![0u8; walk.tensors.len()];
        for event in &walk.events {
            match event {
                Event::Alloc(id) => { prop_assert_eq!(state[*id as usize], 0); state[*id as usize] = 1; }
                Event::Free(id) => { prop_assert_eq!(state[*id as usize], 1); state[*id as usize] = 2; }
                Event::Becomes(id, _) => prop_assert_eq!(state[*id as usize], 1),
                _ => {}
            }
        }
    }

    /// The cells of each column add up to it, each cell's lines add up to the cell, and no column exceeds the peak.
    #[test]
    fn the_bill_adds_up(recipe in any_recipe(), gpt in any::<bool>()) {
        let plan = plan(if gpt { gpt2(2, 64) } else { llama(2, 64) }, recipe);
        let estimate = estimate(&plan).unwrap();
        for column in &estimate.bill.columns {
            for part in Part::ALL {
                let cell = estimate.bill.cell(part, column.instant);
                prop_assert_eq!(cell.part, part);
                prop_assert_eq!(cell.bytes, column.parts.get(part));
                prop_assert_eq!(cell.lines.iter().map(|l| l.bytes).sum::<vram_budget::units::Bytes>(), cell.bytes);
            }
            prop_assert!(column.parts.total() <= estimate.tiers.requested.peak_bytes);
        }
        prop_assert!(estimate.tiers.requested.peak_bytes <= estimate.tiers.allocated.peak_bytes);
        prop_assert!(estimate.tiers.allocated.peak_bytes <= estimate.tiers.reserved.as_ref().unwrap().peak_bytes);
        prop_assert!(estimate.timeline.len() <= vram_budget::bill::MAX_TIMELINE_POINTS);
    }

    /// More batch, more tokens, more layers, more width: never less at any instant.
    #[test]
    fn more_never_needs_less(recipe in any_recipe(), gpt in any::<bool>()) {
        let make = |layers, hidden| if gpt { gpt2(layers, hidden) } else { llama(layers, hidden) };
        let of = |p: &Plan| estimate(p).unwrap().bill.columns.iter().map(|c| c.parts.total()).collect::<Vec<_>>();
        let small = of(&plan(make(2, 64), recipe.clone()));
        let larger = [
            plan(make(3, 64), recipe.clone()),
            plan(make(2, 128), recipe.clone()),
            plan(make(2, 64), Recipe { micro_batch: recipe.micro_batch + 1, ..recipe.clone() }),
            plan(make(2, 64), Recipe { seq_len: recipe.seq_len + 40, ..recipe.clone() }),
        ];
        for (i, larger) in larger.iter().enumerate() {
            for (a, b) in small.iter().zip(of(larger)) {
                prop_assert!(*a <= b, "change {}: {} > {}", i, a, b);
            }
        }
    }

    /// A model of many layers, of which a few were walked and one repeated, equals the model with every layer written
    /// out: the same allocations in the same order, the same live sums after each, the same bill.
    #[test]
    fn repeated_layers_equal_layers_written_out(recipe in any_recipe(), gpt in any::<bool>(), layers in 5u64..11, clip in any::<bool>(), frozen in 0u8..4) {
        let (embedding, first) = if gpt { ("transformer.wte", "transformer.h.0") } else { ("model.embed_tokens", "model.layers.0") };
        let freeze = [embedding, first].into_iter().enumerate().filter(|(i, _)| frozen >> i & 1 == 1).map(|(_, name)| name.to_owned());
        let alike = recipe.checkpointing.recomputes_one_in().unwrap_or(1) == 1 && frozen < 2;
        let recipe = Recipe { freeze: freeze.collect(), ..recipe };
        let clip = clip && !recipe.optimizer.in_backward;
        let recipe = Recipe { clip_grad: clip.then_some(1.0), ..recipe };
        let plan = plan(if gpt { gpt2(layers, 64) } else { llama(layers, 64) }, recipe);
        let precision = plan.recipe.precision.unwrap();
        let job = Job::of(&plan).unwrap();
        let literal = walk_literally(job.model.as_ref(), &plan, precision, job.device, Steps::FirstAndSteady).unwrap();
        prop_assert_eq!(story(&literal), story(&job.walk(&plan, precision).unwrap()));
        let short = walk_short(job.model.as_ref(), &plan, precision, job.device, Steps::FirstAndSteady).unwrap();
        // One of three walked layers is repeated, or, where those do not tell, one of five.
        let expected = if alike { [layers - 3, layers - 5] } else { [0, 0] };
        prop_assert!(expected.contains(&short.repeats), "{} of {layers}", short.repeats);
        prop_assert_eq!(story(&literal), story(&expand(&short)));
        let columns = |w: &Walk| bill(w, Vec::new(), sources()).0.columns.iter().map(|c| c.parts).collect::<Vec<_>>();
        prop_assert_eq!(columns(&literal), columns(&short));
        // A steady step on states that exist from the start is the second step.
        prop_assert_eq!(columns(&literal), columns(&job.walk_steady(&plan, precision).unwrap()));
    }

    /// Checkpointing never raises what is alive when forward ends.
    #[test]
    fn checkpointing_never_raises_the_end_of_forward(recipe in any_recipe(), gpt in any::<bool>()) {
        let end = |checkpointing| {
            let recipe = Recipe { checkpointing, grad_accum: 1, ..recipe.clone() };
            let plan = plan(if gpt { gpt2(3, 64) } else { llama(3, 64) }, recipe);
            let readings = estimate(&plan).unwrap().readings.unwrap();
            readings.steady().unwrap().forward_delta
        };
        prop_assert!(end(Checkpointing::Full) <= end(Checkpointing::None));
    }
}

#[test]
fn every_instant_of_a_step_has_a_column() {
    let plan = plan(llama(2, 64), Recipe::default());
    let bill = estimate(&plan).unwrap().bill;
    assert_eq!(bill.columns.iter().map(|c| c.instant).collect::<Vec<_>>(), Instant::ALL);
    for instant in Instant::ALL {
        assert!(bill.column(instant).parts.get(Part::Weights).get() > 0);
    }
    assert!(bill.column(Instant::Step).parts.get(Part::Gradients).get() > 0);
    assert!(bill.column(Instant::Forward).parts.get(Part::Activations).get() > 0);
}

/// The same of every family and recipe that was measured, every seventh case, with six layers where it has fewer.
#[test]
fn measured_recipes_equal_layers_written_out() {
    let tables = [
        include_str!("data/training-steps/cases.jsonl"),
        include_str!("data/training-steps/further-bloom.jsonl"),
        include_str!("data/training-steps/further-distilbert.jsonl"),
        include_str!("data/training-steps/further-falcon.jsonl"),
        include_str!("data/training-steps/further-gemma.jsonl"),
        include_str!("data/training-steps/further-gemma3_text.jsonl"),
        include_str!("data/training-steps/further-olmo2.jsonl"),
        include_str!("data/training-steps/further-opt.jsonl"),
        include_str!("data/training-steps/further-phi.jsonl"),
        include_str!("data/training-steps/further-phi3.jsonl"),
        include_str!("data/training-steps/further-qwen3_moe.jsonl"),
        include_str!("data/training-steps/further-roberta.jsonl"),
        include_str!("data/training-steps/further-starcoder2.jsonl"),
    ];
    let mut repeated = 0;
    for line in tables.into_iter().flat_map(|table| table.lines().step_by(7)) {
        let case = Case::read(line).unwrap();
        let Ok(mut plan) = case.plan else { continue };
        let ModelSource::Config(config) = &mut plan.model else { panic!("a case has a config") };
        for name in ["num_hidden_layers", "n_layer", "n_layers", "num_layers"] {
            if let Some(layers) = config.get_mut(name).filter(|n| n.as_u64().is_some_and(|n| n < 6)) {
                *layers = 6.into();
            }
        }
        let Ok(job) = Job::of(&plan) else { continue };
        let precision = plan.recipe.precision.unwrap();
        let short = job.walk_short(&plan, precision).unwrap();
        if short.repeats == 0 {
            continue;
        }
        repeated += 1;
        let literal = walk_literally(job.model.as_ref(), &plan, precision, job.device, Steps::FirstAndSteady).unwrap();
        assert!(story(&literal) == story(&expand(&short)), "{}", case.id);
        let columns = |w: &Walk| bill(w, Vec::new(), sources()).0.columns.iter().map(|c| c.parts).collect::<Vec<_>>();
        assert_eq!(columns(&literal), columns(&short), "{}", case.id);
        assert_eq!(columns(&literal), columns(&job.walk_steady(&plan, precision).unwrap()), "{}", case.id);
    }
    assert!(repeated > 90, "{repeated}");
}

//! The page without a browser: its reducer, and what its view models say about real decisions.
#![allow(clippy::unwrap_used)]

use std::rc::Rc;

use vram_budget::bill::{Instant, Part};
use vram_budget::decide::{RemedyId, VerdictKind, decide};
use vram_budget::estimate::ranks_differ;
use vram_budget::fragmentation::Study;
use vram_budget::issue::IssueKind;
use vram_budget::machine::GpuChoice;
use vram_budget::measure::{Unit, Which};
use vram_budget::model::ModelSource;
use vram_budget::plan::Plan;
use vram_budget::recipe::{Batching, Checkpointing, Distribution, OptimizerImpl, OptimizerName, Precision};
use vram_budget::snapshot;
use vram_budget::text::{Catalogue, LinkProblem, Locale};
use vram_budget::units::Bytes;
use vram_budget::view::answer::Answer;
use vram_budget::view::bill::BillTable;
use vram_budget::view::lengths::LengthsTable;
use vram_budget::view::measured::{EXAMPLE_DOCUMENT, EXAMPLE_OOM, EXAMPLE_SCRIPT, Understood, unit_options};
use vram_budget::view::phases::PhaseTable;
use vram_budget::view::ranks::{RankTable, walking};
use vram_budget::view::recording;
use vram_budget::view::run::{Errand, Run};
use vram_budget::view::search::{SearchTable, Searching};
use vram_budget::view::steps::steps;
use vram_budget::view::timeline::Timeline;
use vram_budget::view::{
    Action, Alternative, Field, Found, GpuPick, Incoming, MAX_READ, Notice, Reading, Section, State, Theme, Trained,
    example, job, link,
};

fn text() -> &'static dyn Catalogue {
    Locale::En.text()
}

fn start() -> Rc<State> {
    Rc::new(State::new(&example()))
}

/// The state once every remedy is priced.
fn priced(mut state: Rc<State>) -> Rc<State> {
    while state.is_unpriced() {
        state = state.reduce(Action::Work);
    }
    state
}

/// The state once the allocator is replayed.
fn refined(mut state: Rc<State>) -> Rc<State> {
    while state.outcome.is_refining() {
        state = state.reduce(Action::Work);
    }
    state
}

fn after(state: &Rc<State>, actions: impl IntoIterator<Item = Action>) -> Rc<State> {
    actions.into_iter().fold(Rc::clone(state), |state, action| state.reduce(action))
}

fn typed(field: Field, text: &str) -> Action {
    Action::Type(field, text.into())
}

fn shown(state: &State) -> &Plan {
    state.outcome.shown.as_ref().unwrap().plan()
}

fn allocated(state: &State) -> Bytes {
    state.outcome.shown.as_ref().unwrap().decision().verdict.numbers.allocated
}

/// Jobs that between them fit, fit tightly, do not fit, and cannot be judged.
fn jobs() -> Vec<Plan> {
    let job = |model: &str, gpu: Option<&str>, precision: Option<Precision>, seq_len: u64| {
        let mut plan = example();
        plan.model = ModelSource::Preset(model.into());
        plan.machine.gpu = gpu.map(|gpu| GpuChoice::Catalogue(gpu.into()));
        plan.recipe.precision = precision;
        plan.recipe.seq_len = seq_len;
        plan
    };
    let mut sgd = job("llama-2-7b", Some("A100 SXM4 80GB"), Some(Precision::Fp32), 512);
    sgd.recipe.optimizer.name = OptimizerName::Sgd;
    sgd.recipe.checkpointing = Checkpointing::Full;
    sgd.machine.in_use_bytes = Some(Bytes::mib(600));
    vec![
        example(),
        job("gpt2", Some("RTX 4090 24GB"), Some(Precision::AmpBf16), 1024),
        job("llama-3.1-8b", Some("A100 SXM4 80GB"), Some(Precision::PureBf16), 2048),
        job("qwen2.5-7b", None, None, 1024),
        job("llama-2-7b", Some("H200 SXM 141GB"), Some(Precision::RuleOfThumb), 1024),
        job("gpt2", Some("GB300 288GB"), Some(Precision::AmpFp16), 64),
        sgd,
    ]
}

// The reducer.

#[test]
fn every_keystroke_answers_and_half_typed_text_keeps_the_last_answer() {
    let state = start();
    let longer = state.reduce(typed(Field::SeqLen, "20480"));
    assert!(allocated(&longer) > allocated(&state));
    let half = longer.reduce(typed(Field::SeqLen, "2048x"));
    assert_eq!(half.draft.text(Field::SeqLen), "2048x");
    assert!(half.is_stale());
    assert_eq!(half.outcome.shown, longer.outcome.shown);
    let whole = half.reduce(typed(Field::SeqLen, "2048"));
    assert!(!whole.is_stale());
    assert_eq!(allocated(&whole.reduce(Action::Work)), allocated(&state));
}

/// Between an input and the replay the page shows what the walk knows of the new plan, and no figure of the old one.
#[test]
fn what_is_not_refined_yet_is_marked_and_never_said_to_fit() {
    for plan in jobs() {
        let whole = Rc::new(State::new(&plan));
        assert!(!whole.outcome.is_refining(), "what a page shows at first is refined");
        let quick = whole.reduce(typed(Field::SeqLen, "96"));
        let awaits = plan.recipe.precision != Some(Precision::RuleOfThumb);
        assert_eq!(quick.outcome.is_refining(), awaits);
        if !awaits {
            continue;
        }
        let decision = quick.outcome.shown.as_ref().unwrap().decision();
        let answer = Answer::new(shown(&quick), decision, None, text());
        assert!(answer.refining);
        assert!(["Checking…", "Does not fit", "Cannot tell"].contains(&answer.verdict), "{}", answer.verdict);
        for row in answer.sums.iter().filter(|row| row.sum) {
            assert_eq!((row.gib.as_str(), row.exact), ("refining…", None), "{}", row.name);
        }
        let margin = &steps(&plan.policy, decision, None, text())[2];
        assert!(margin.fact.contains("… of the card") && margin.exact.is_none(), "{}", margin.fact);
        // Slices done ahead or not, the result is that of the whole.
        while !quick.outcome.work_ahead(1000) {}
        let refined = quick.reduce(Action::Work);
        assert!(!refined.outcome.is_refining() && refined.is_unpriced());
        let whole = vram_budget::decide::decide(shown(&quick)).unwrap();
        assert_eq!(refined.outcome.shown.as_ref().unwrap().decision().verdict, whole.verdict);
        assert_eq!(priced(refined).outcome.priced.as_ref().unwrap().decision(), &whole);
    }
}

/// The walk below the inputs follows a fresh answer with its refinement, or earlier when that takes long.
#[test]
fn an_answer_is_fresh_until_it_is_refined_or_the_walk_follows_it() {
    let start = start();
    let quick = start.reduce(typed(Field::SeqLen, "96"));
    assert_eq!([&start, &quick].map(|state| state.outcome.fresh), [false, true]);
    assert!(!quick.reduce(Action::Work).outcome.fresh);
    let followed = quick.reduce(Action::Follow);
    assert!(!followed.outcome.fresh && followed.outcome.is_refining());
    assert!(Rc::ptr_eq(&followed, &followed.reduce(Action::Follow)));
    assert!(!quick.reduce(typed(Field::SeqLen, "many")).outcome.fresh, "what is wrong is shown everywhere at once");
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let state = after(
        &start(),
        [
            typed(Field::SeqLen, "many"),
            typed(Field::MicroBatch, "0"),
            typed(Field::InUse, "a lot"),
            Action::Config(Some(r#"{"model_type": "llama", "hidden_size": -1, "num_hidden_layers": 0}"#.into())),
        ],
    );
    let fields: Vec<&str> = state.outcome.issues.iter().map(|issue| issue.field.as_str()).collect();
    for field in [
        "recipe.seq_len",
        "recipe.micro_batch",
        "machine.in_use_bytes",
        "config.hidden_size",
        "config.num_hidden_layers",
        "config.vocab_size",
    ] {
        assert_eq!(fields.iter().filter(|f| **f == field).count(), 1, "{field} in {fields:?}");
    }
    let problems = job::problems(&state, text());
    assert_eq!(problems.len(), fields.len());
    assert!(problems.iter().any(|p| p.id == "micro-batch" && p.sentence.starts_with("Micro-batch: expected 1 to")));
    assert!(problems.iter().any(|p| p.id == "config" && p.sentence.contains("num_hidden_layers")));
    assert_eq!(job::issues_of(&state, "seq-len", text()), ["expected a whole number, found `many`"]);
}

#[test]
fn adapters_follow_the_model_and_implementations_the_optimizer() {
    let targets = |state: &State| state.draft.choices().recipe.lora.clone().unwrap().targets;
    let all = start().reduce(Action::Trained(Trained::Lora));
    assert_eq!(targets(&all), ["all-linear"]);
    assert!(!all.is_stale() && allocated(&all) < allocated(&start()));
    let but_q = all.reduce(Action::LoraTarget("q_proj"));
    assert_eq!(targets(&but_q), ["k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]);
    assert_eq!(but_q.reduce(Action::LoraTarget("q_proj")).draft, all.draft);
    assert_eq!(targets(&but_q.reduce(Action::Preset("gpt2".into()))), ["all-linear"]);
    let few = but_q.reduce(Action::Preset("qwen2.5-7b".into()));
    assert_eq!(targets(&few).len(), 6);
    let four_bit = all.reduce(Action::Trained(Trained::Qlora));
    assert!(!four_bit.is_stale() && allocated(&four_bit) < allocated(&all));
    assert_eq!(four_bit.reduce(Action::Trained(Trained::Lora)).draft, all.draft);
    assert!(shown(&all.reduce(Action::Dora(true))).recipe.lora.as_ref().unwrap().use_dora);
    let wider = few.reduce(typed(Field::LoraRank, "64"));
    assert_eq!(shown(&wider).recipe.lora.as_ref().unwrap().r, 64);
    assert!(allocated(&wider) > allocated(&few));
    assert_eq!(shown(&State::from_fragment(&wider.fragment().unwrap())), shown(&wider));
    let none = after(
        &all,
        Vec::from(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
            .into_iter()
            .map(Action::LoraTarget),
    );
    assert_eq!(job::issues_of(&none, job::LORA_ID, text()).len(), 1);
    assert_eq!(shown(&all.reduce(Action::Trained(Trained::All))), &example());
    // A family that takes none says so.
    let refused = all.reduce(Action::Preset("resnet50".into()));
    assert_eq!(job::issues_of(&refused, job::LORA_ID, text()).len(), 1);

    for name in OptimizerName::ALL {
        let fused = after(&start(), [Action::Implementation(Some(OptimizerImpl::Fused)), Action::Optimizer(name)]);
        assert!(!fused.is_stale(), "{name:?}: {:?}", fused.outcome.issues);
        for how in [OptimizerImpl::Foreach, OptimizerImpl::Fused, OptimizerImpl::Forloop] {
            let chosen = fused.reduce(Action::Implementation(Some(how)));
            assert!(!job::is_offered(&fused.draft.choices().recipe, how) || !chosen.is_stale(), "{name:?} {how:?}");
        }
    }
}

#[test]
fn several_gpus_have_a_wrapper_and_one_has_none() {
    let start = after(&start(), [typed(Field::WorldSize, "8")]);
    assert_eq!(shown(&start).parallel.data.name(), "ddp");
    let whole = allocated(&start);
    let sharded = after(&start, [Action::Alternative(Alternative::Fsdp2)]);
    assert_eq!(sharded.outcome.issues, []);
    assert!(allocated(&sharded).get() * 4 < whole.get() * 3);
    let back = after(&sharded, [typed(Field::WorldSize, "1")]);
    assert_eq!(shown(&back), &example());
    let odd = after(&sharded, [typed(Field::TensorSize, "3")]);
    assert_eq!(job::issues_of(&odd, Field::WorldSize.id(), text()), ["8 is not divisible by parallel.tensor.size = 3"]);
}

#[test]
fn megatron_is_laid_out_and_says_at_once_what_does_not_divide() {
    let start = after(&start(), [typed(Field::WorldSize, "16"), Action::Alternative(Alternative::Megatron)]);
    // Its weights are BF16 with FP32 masters, which the list of precisions has.
    assert!(!job::issues_of(&start, "precision", text()).is_empty());
    let whole = after(&start, [Action::Precision(Some(Precision::Bf16Master))]);
    assert_eq!(whole.outcome.issues, []);
    let sharded = after(&whole, [Action::Alternative(Alternative::DistributedOptimizer)]);
    assert!(allocated(&sharded) < allocated(&whole));
    let split = after(&sharded, [typed(Field::TensorSize, "2"), typed(Field::Pipeline, "4")]);
    assert_eq!((split.outcome.issues.len(), shown(&split).parallel.pipeline), (0, 4));
    let odd = after(&split, [typed(Field::ContextRanks, "3")]);
    assert!(!job::issues_of(&odd, Field::WorldSize.id(), text()).is_empty());
    assert!(odd.is_stale());
    let experts = after(&split, [typed(Field::ExpertRanks, "2")]);
    assert!(job::more_is_open(&experts));
    assert_eq!(job::issues_of(&experts, Field::ExpertRanks.id(), text()).len(), 1);
    assert_eq!(after(&experts, [typed(Field::ExpertRanks, "")]).outcome.issues, []);
}

#[test]
fn nodes_and_links_are_read_and_say_at_once_what_is_wrong() {
    assert!(!job::asks_cluster(&start()));
    let eight = after(&start(), [typed(Field::WorldSize, "8")]);
    assert!(job::asks_cluster(&eight));
    let typed_in = [(Field::GpusPerNode, "4"), (Field::NetworkGbps, "2.5"), (Field::LinkGbps, "5")];
    let said = after(&eight, typed_in.map(|(field, text)| typed(field, text)));
    assert_eq!(said.outcome.issues, []);
    let of = &shown(&said).parallel;
    assert_eq!((of.gpus_per_node, of.network_gbps, of.link_gbps), (Some(4), Some(2.5), Some(5.0)));
    assert_eq!(job::nodes(&said, text()).unwrap(), "2 nodes with 4 GPUs each");
    // A link has them, and one without them is no longer than it was.
    assert_eq!(link::decode(&link::encode(shown(&said)).unwrap()).unwrap().as_ref(), Some(shown(&said)));
    assert!(!serde_json::to_string(shown(&eight)).unwrap().contains("gbps"));
    assert_eq!(shown(&after(&said, typed_in.map(|(field, _)| typed(field, "")))), shown(&eight));
    // Slower links are a slower step of as many bytes.
    let seconds = |state: &State| {
        let decision = state.outcome.shown.as_ref().unwrap().decision();
        decision.throughput.as_ref().unwrap().likely_seconds.0
    };
    assert!(seconds(&said) > seconds(&eight));
    assert_eq!(allocated(&said), allocated(&eight));
    let odd = after(&eight, [typed(Field::GpusPerNode, "3")]);
    let rule = ["8 is not divisible by parallel.gpus_per_node = 3"];
    assert_eq!(job::issues_of(&odd, Field::WorldSize.id(), text()), rule);
    assert!(odd.is_stale() && job::nodes(&odd, text()).is_none());
    for (field, wrong) in
        [(Field::GpusPerNode, "0"), (Field::NetworkGbps, "0"), (Field::LinkGbps, "fast"), (Field::LinkGbps, "-1")]
    {
        let state = after(&eight, [typed(field, wrong)]);
        assert_eq!(job::issues_of(&state, field.id(), text()).len(), 1, "{field:?} {wrong}");
        assert!(job::more_is_open(&state));
    }
}

#[test]
fn rare_inputs_are_read_and_open_where_something_is_wrong() {
    let start = start();
    assert!(!job::more_is_open(&start));
    let packed = after(&start, [typed(Field::Packed, "1500; 548")]);
    assert_eq!(shown(&packed).recipe.packed, [1500, 548]);
    let short = after(&start, [typed(Field::Packed, "1500, 500")]);
    assert!(job::more_is_open(&short));
    let frozen = after(&start, [typed(Field::Freeze, "model.embed_tokens, model.layers.0")]);
    assert_eq!(shown(&frozen).recipe.freeze, ["model.embed_tokens", "model.layers.0"]);
    assert!(allocated(&frozen) < allocated(&start));
    let grpo = after(&start, [Action::Alternative(Alternative::Grpo), typed(Field::Completion, "1000")]);
    assert_eq!(shown(&grpo).recipe.method.unwrap().rollout().unwrap().completion, 1000);
    let none = after(&grpo, [Action::Alternative(Alternative::NextToken)]);
    assert_eq!(shown(&none), &example());
}

#[test]
fn a_job_of_several_phases_shows_each_with_its_peak_and_what_holds_it() {
    let table = |state: &State| {
        let shown = state.outcome.shown.as_ref().unwrap();
        PhaseTable::of(shown.plan(), shown.decision(), text())
    };
    let small = after(&start(), [Action::Preset("qwen2.5-0.5b".into())]);
    assert_eq!(table(&refined(Rc::clone(&small))), None, "the training step is all");
    let ppo = after(&small, [Action::Alternative(Alternative::Ppo)]);
    assert_eq!(table(&ppo), None, "the walk alone does not tell");
    let ppo = refined(ppo);
    let table = table(&ppo).unwrap();
    let names: Vec<_> = table.rows.iter().map(|row| row.name).collect();
    let all = ["Generation", "Policy’s scores", "Reference’s scores", "Rewards", "Critic’s values", "Training step"];
    assert_eq!(names, all);
    assert_eq!(table.sentence, "The peak of the job is in the training step.");
    let most = table.rows.iter().max_by_key(|row| row.exact).unwrap();
    assert!(most.binds && table.rows.iter().filter(|row| row.binds).count() == 1);
    assert_eq!(most.exact, allocated(&ppo));
    for row in &table.rows {
        // Policy and critic; reference and rewards: each in BF16 as in the published 494 million parameters.
        assert!(row.held.iter().any(|(name, gib)| *name == "other models" && gib == "1.84"), "{row:?}");
    }
    let cache = |row: usize| table.rows[row].held.iter().any(|(name, _)| *name == "key-value cache");
    assert!(cache(0) && !cache(1), "only generation keeps keys and values");
}

#[test]
fn a_search_is_asked_for_followed_stopped_and_a_plan_of_it_taken_over() {
    let small =
        after(&start(), [Action::Preset("gpt2".into()), typed(Field::SeqLen, "64"), typed(Field::GradAccum, "4")]);
    let going = small.reduce(Action::Run(Some(Errand::Search)));
    let far = going.reduce(Action::ReadSoFar(3, Some(15)));
    assert!(matches!(far.errands.search, Run::Going { done: 3, total: 15, .. }));
    let mut searching = Searching::of(shown(&small)).unwrap();
    let (mut last, mut some) = (0, Vec::new());
    while !searching.advance(4000) {
        let (done, of) = searching.progress();
        assert!(last <= done && done <= of);
        last = done;
        some.extend(searching.news(Locale::En));
    }
    // The own card is answered before the others, and all cards before other lengths.
    assert_eq!(some.iter().map(|table| table.groups.len()).collect::<Vec<_>>(), [3, 4, 5]);
    let table = searching.table(Locale::En);
    assert_eq!(some.last(), Some(&table), "no longer sequence than GPT-2's positions is tried");
    let first = far.reduce(Action::FoundSoFar(Box::new(Found::Search(Box::new(some[0].clone())))));
    assert!(matches!(&first.errands.search, Run::Going { done: 3, table: Some(shown), .. } if **shown == some[0]));
    let heads: Vec<&str> = table.groups.iter().map(|(head, _)| head.as_str()).collect();
    let fixed = ["fastest that fits", "largest micro-batch that fits", "longest sequence that fits, of those tried"];
    assert_eq!(heads[1..4], fixed);
    assert!(
        heads[0].starts_with("RTX 4090 24GB: ") && heads[4].starts_with("smallest GPU that does it: "),
        "{heads:?}"
    );
    // All four sequences at once, and no sequence beyond the 1024 positions that GPT-2 has.
    let of = |group: usize| &table.groups[group].1[0].plan.recipe;
    assert_eq!((of(2).micro_batch, of(2).grad_accum), (4, 1));
    assert_eq!(of(3).seq_len, 1024);
    for row in table.groups.iter().flat_map(|(_, rows)| rows) {
        let recipe = &row.plan.recipe;
        assert_eq!(recipe.micro_batch * recipe.grad_accum, 4, "the same sequences a step: {row:?}");
    }
    // What the worker says is the same on the other side.
    let said = serde_json::to_string(&Found::Search(Box::new(table.clone()))).unwrap();
    let found = || Action::Found(Box::new(serde_json::from_str(&said).unwrap()));
    let done = far.reduce(found());
    assert!(matches!(&done.errands.search, Run::Done { table: shown, .. } if **shown == table));
    let row = &table.groups[1].1[0];
    let taken = done.reduce(Action::TakeFound(row.plan.clone(), row.name.clone()));
    assert_eq!(shown(&taken), &*row.plan);
    assert_eq!(shown(&taken.reduce(Action::Undo)), shown(&small));
    // What comes after it was stopped is not wanted; the worker does one thing at a time.
    assert_eq!(far.reduce(Action::Run(None)).reduce(found()).errands.search, Run::None);
    assert_eq!(far.reduce(Action::Run(Some(Errand::Lengths))).errands.search, Run::None);
    let reading = Reading { name: None, read: 0, total: None };
    assert_eq!(far.reduce(Action::Reading(Some(reading))).errands.search, Run::None);
    assert!(matches!(SearchTable::refused(&[], Locale::En), SearchTable { ref groups, .. } if groups.is_empty()));
}

#[test]
fn what_changes_nothing_is_the_same_state() {
    let mut state = priced(start());
    while state.outcome.work.is_some() {
        state = state.reduce(Action::Work);
    }
    for action in [
        typed(Field::MicroBatch, "1"),
        Action::Undo,
        Action::Theme(Theme::System),
        Action::Notice(None),
        Action::Go(Section::Job),
        Action::Link(String::new()),
        Action::Link(format!("#{}", link::encode(&example()).unwrap())),
        Action::MeasuredText(String::new()),
        Action::Work,
        Action::UseMeasuredPlan,
    ] {
        assert!(Rc::ptr_eq(&state, &state.reduce(action.clone())), "{action:?}");
    }
}

#[test]
fn a_remedy_is_tried_on_the_inputs_as_they_are_and_undone_to_the_letter() {
    let before = after(&start(), [typed(Field::SeqLen, " 1024 ")]);
    let tried = before.reduce(Action::Try(RemedyId::FusedOptimizer, "AdamW fused".into()));
    assert_eq!(shown(&tried).recipe.optimizer.implementation, Some(OptimizerImpl::Fused));
    assert_eq!(shown(&tried).recipe.seq_len, 1024);
    assert!(allocated(&tried) < allocated(&before));
    assert_eq!(tried.undo[0].remedy, "AdamW fused");
    let undone = tried.reduce(Action::Undo);
    assert_eq!(undone.draft, before.draft);
    assert_eq!(undone.draft.text(Field::SeqLen), " 1024 ");
    assert!(undone.undo.is_empty());
    // A remedy that does not apply does nothing.
    let eager = before.reduce(Action::Try(RemedyId::DropOutputs, "x".into()));
    assert_eq!(eager.draft, before.draft);
}

#[test]
fn a_paste_goes_where_it_belongs() {
    let config = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 1000}"#;
    let state = start().reduce(Action::Paste(config.into()));
    assert!(matches!(shown(&state).model, ModelSource::Config(_)));
    assert_eq!(state.notice, Some(Notice::ConfigTaken("llama".into())));

    let mut plan = example();
    plan.recipe.seq_len = 77;
    let state = start().reduce(Action::Paste(serde_json::to_string(&plan).unwrap()));
    assert_eq!(shown(&state), &plan);

    let state = start().reduce(Action::Paste(EXAMPLE_SCRIPT.into()));
    assert_eq!(state.section, Section::Measured);
    assert_eq!(state.measured.taken[0].readings.len(), 5);

    let state = start().reduce(Action::Paste("x".repeat(MAX_READ + 1)));
    assert!(matches!(state.notice, Some(Notice::TextTooLarge { .. })));
    assert!(state.measured.text.is_empty());
}

/// A recording of `tests/data/snapshots`.
#[allow(clippy::disallowed_methods, reason = "a test reads its data")]
fn recorded(name: &str) -> Vec<u8> {
    let packed = std::fs::read(format!("{}/tests/data/snapshots/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(packed.as_slice()), &mut bytes).unwrap();
    bytes
}

fn found(bytes: &[u8], piece: usize) -> Found {
    let mut incoming = Incoming::default();
    bytes.chunks(piece).for_each(|piece| incoming.push(piece));
    incoming.finish(Locale::En)
}

#[test]
fn a_recording_is_shown_with_its_totals_its_holders_and_what_other_settings_would_have_done() {
    let bytes = recorded("s08-llama-oom.pickle.gz");
    let Found::Recording(shown) = found(&bytes, 4096) else { panic!("a recording") };
    let snapshot = snapshot::read(&bytes).unwrap();
    let totals = snapshot.totals(0);
    let row = |name: &str| shown.totals.iter().find(|(_, what)| what == name).unwrap().0.clone();
    assert_eq!(row("reserved"), totals.reserved.to_string());
    assert_eq!(row("allocated"), totals.allocated.to_string());
    assert!(shown.head.contains(&format!("{} entries", snapshot.trace(0).len())));
    assert_eq!(shown.held.len(), 2, "now, and at the peak");
    assert!(shown.held.iter().all(|held| !held.parts.is_empty()));
    // Beside the prediction for the page's inputs: every part that either has, and the recorded ones add up to the peak.
    let bill = &start().outcome.shown.as_ref().unwrap().decision().estimate.bill.clone();
    let rows = snapshot::beside(&shown.held[1].parts, bill.column(bill.binding).parts);
    let sum: u64 = rows.iter().map(|(_, recorded, _)| recorded.get()).sum();
    assert_eq!(sum, snapshot.peak(0).unwrap().requested.get());
    let predicted: u64 = rows.iter().filter_map(|(_, _, predicted)| Some(predicted.as_ref()?.get())).sum();
    assert_eq!(predicted, bill.column(bill.binding).parts.total().get());
    let (of, said) = recording::beside_prediction(&shown, bill, Locale::En).unwrap();
    assert!(of.contains(text().instant(bill.binding)) && said.len() == rows.len());
    let settings: Vec<&str> = shown.replays.iter().map(|replay| replay.settings.as_str()).collect();
    assert_eq!(settings[0], "as recorded: defaults");
    assert!(settings.contains(&"expandable_segments:True"), "{settings:?}");
    assert!(shown.replays[0].outcome.contains("runs out of memory at the same entry"), "{:?}", shown.replays);
    assert_eq!(shown.replays[0].figures[3], totals.reserved.to_string());
    // Whatever the pieces, and through the words in which a worker says it.
    let all = found(&bytes, usize::MAX);
    assert_eq!(all, Found::Recording(shown.clone()));
    assert_eq!(serde_json::from_str::<Found>(&serde_json::to_string(&all).unwrap()).unwrap(), all);
    // A short file is taken at once, a long one while it is read.
    let reading = Reading { name: Some("dump.pickle".into()), read: 0, total: Some(9) };
    let state = after(&start(), [Action::Reading(Some(reading)), Action::ReadSoFar(4, Some(9))]);
    assert_eq!(state.reading.as_ref().unwrap().read, 4);
    let taken = state.reduce(Action::Found(Box::new(all.clone())));
    assert_eq!((&taken.reading, taken.section), (&None, Section::Measured));
    assert_eq!(taken.measured.recording.as_deref(), Some(&*shown));
    assert_eq!(state.reduce(Action::Reading(None)).reduce(Action::Found(Box::new(all))).measured, start().measured);
}

#[test]
fn a_file_in_pieces_is_what_it_is_in_one() {
    let log = format!("{}{EXAMPLE_OOM}\n", "step 17 loss 2.3\n".repeat(9000));
    let Found::Measurements(all) = found(log.as_bytes(), 1000) else { panic!("an error message") };
    assert_eq!(all.len(), 1);
    let state = after(
        &start(),
        [
            Action::Reading(Some(Reading { name: None, read: 0, total: None })),
            Action::Found(Box::new(Found::Measurements(all))),
        ],
    );
    assert_eq!(state.measured.taken, start().reduce(Action::Paste(EXAMPLE_OOM.into())).measured.taken);
    for refused in ["", "prose, and no measurement of anything", "\u{80}"] {
        assert!(matches!(found(refused.as_bytes(), 7), Found::Refused(_)), "{refused}");
    }
    assert!(matches!(found(&recorded("snap-06-malicious-global.pickle.gz"), 64), Found::Refused(_)));
    assert!(matches!(found(&recorded("snap-07-truncated.pickle.gz"), 64), Found::Refused(_)));
    let state = start().reduce(Action::File(recorded("snap-06-malicious-global.pickle.gz")));
    assert!(state.measured.error.is_some() && state.measured.recording.is_none());
}

#[test]
fn garbage_says_what_was_expected_and_changes_nothing_else() {
    let before = after(&start(), [Action::MeasuredText(EXAMPLE_SCRIPT.into())]);
    for garbage in
        ["hello", "{\"base\": 1}", "{\"base\": 1,\n \"peak\" 2}", "[]", "nvidia-smi: command not found", "\u{0}"]
    {
        let state = before.reduce(Action::MeasuredText(garbage.into()));
        let error = state.measured.error.as_ref().unwrap_or_else(|| panic!("{garbage:?} was taken"));
        let said = text().import_error(error).to_lowercase();
        assert!(said.contains("expected") || said.contains("line "), "{garbage:?}: {said}");
        assert_eq!(state.measured.taken, before.measured.taken);
        assert_eq!((&state.draft, &state.outcome), (&before.draft, &before.outcome));
    }
}

#[test]
fn figures_without_a_unit_are_asked_about() {
    let pasted =
        r#"{"base": 14.96, "forward_delta": 13.3, "backward_delta": 1.66, "step_delta": 29.92, "peak": 74.79}"#;
    let asked = start().reduce(Action::MeasuredText(pasted.into()));
    assert!(asked.measured.taken.is_empty());
    let options = unit_options(&asked.measured.question, pasted, text());
    assert!(options.iter().any(|(unit, label)| *unit == Unit::GiB && label.contains("74.8 GiB")), "{options:?}");
    let answered = asked.reduce(Action::MeasuredUnit(Unit::GiB));
    assert_eq!(answered.measured.unit, Some(Unit::GiB));
    let peak = vram_budget::measure::ReadingName::Step(Which::First, vram_budget::measure::StepReading::Peak);
    assert_eq!(answered.measured.taken[0].bytes(peak), Some(80_305_151_017));
}

#[test]
fn links_are_taken_or_refused_whole() {
    let state = start();
    let refused = state.reduce(Action::Link("#v1=AAAA".into()));
    assert_eq!(refused.notice, Some(Notice::LinkRefused(LinkProblem::Malformed)));
    assert_eq!(refused.draft, state.draft);
    assert_eq!(state.reduce(Action::Link("#margin".into())).section, Section::Margin);
    assert_eq!(State::from_fragment("#throughput").section, Section::Throughput);
    assert_eq!(shown(&State::from_fragment("#v9=x")), &example());
    for plan in jobs() {
        let state = State::new(&plan);
        assert_eq!(shown(&State::from_fragment(&state.fragment().unwrap())), &plan);
    }
}

#[test]
fn a_link_to_a_plan_that_cannot_be_walked_says_why() {
    let mut plan = example();
    plan.model = ModelSource::Preset("no-such-model".into());
    let state = State::from_fragment(&link::encode(&plan).unwrap());
    assert!(state.outcome.shown.is_none());
    assert!(matches!(state.outcome.issues[0].kind, IssueKind::UnknownName { .. }));
    assert!(!after(&Rc::new(state), [Action::Preset("llama-2-7b".into())]).is_stale());
}

#[test]
fn lists_are_filtered_by_words_and_keep_the_choice() {
    assert!(job::presets("qwen 7b", "").iter().all(|name| name.contains("qwen") && name.contains("7b")));
    assert!(job::presets("qwen", "gpt2").contains(&"gpt2"));
    let state = after(&start(), [Action::GpuFilter("h200".into()), Action::FirstGpu]);
    assert!(matches!(state.draft.gpu(), GpuPick::Catalogue(name) if name.starts_with("H200")));
    let none = after(&start(), [Action::ModelFilter("zzz".into()), Action::FirstModel]);
    assert_eq!(none.draft, start().draft);
}

// The view models.

/// A figure of a table in hundredths.
fn hundredths(shown: &str) -> u64 {
    if shown == "0" { 0 } else { shown.replace('.', "").parse().unwrap() }
}

#[test]
fn the_answer_quotes_the_safe_figure_and_its_sums_add_up() {
    for plan in jobs() {
        let state = State::new(&plan);
        let decision = state.outcome.shown.as_ref().unwrap().decision();
        let numbers = &decision.verdict.numbers;
        let answer = Answer::new(&plan, decision, Some(decision), text());
        let held = numbers.process.map(|p| p + numbers.in_use.unwrap_or_default());
        match decision.verdict.kind {
            VerdictKind::Fits | VerdictKind::Tight => assert_eq!(Some(answer.exact), held),
            VerdictKind::DoesNotFit | VerdictKind::CannotTell => assert_eq!(answer.exact, numbers.allocated),
        }
        let mut sum = 0;
        for row in &answer.sums {
            if row.exact.is_none() {
                assert_eq!(row.gib, "not known");
                break;
            }
            if row.sum {
                assert_eq!(hundredths(&row.gib), sum, "{} in {:?}", row.name, answer.sums);
            } else {
                sum += hundredths(&row.gib);
            }
        }
        for pair in answer.bar.segments.windows(2) {
            assert!(pair[0].x + pair[0].width <= pair[1].x + 0.2, "{:?}", answer.bar);
        }
        let end = answer.bar.segments.last().map_or(0.0, |s| s.x + s.width);
        assert!((0.0..=100.5).contains(&end), "{:?}", answer.bar);
        if let Some((x, _)) = answer.bar.mark {
            assert!((0.0..=100.0).contains(&x));
        }
    }
}

#[test]
fn columns_add_up_and_open_cells_sum_to_the_cell() {
    for plan in jobs() {
        let state = State::new(&plan);
        let decision = state.outcome.shown.as_ref().unwrap().decision();
        let table = BillTable::new(decision, None, text());
        for (at, (total, exact)) in table.totals.iter().enumerate() {
            let sum: u64 = table.rows.iter().map(|row| hundredths(&row.cells[at].gib)).sum();
            assert_eq!(sum, hundredths(total));
            assert_eq!(table.rows.iter().map(|row| row.cells[at].exact).sum::<Bytes>(), *exact);
        }
        assert_eq!(table.columns.iter().filter(|(.., binds)| *binds).count(), 1);
        for part in Part::ALL {
            for instant in Instant::ALL {
                let open = BillTable::new(decision, Some((part, instant)), text()).open.unwrap();
                assert_eq!(
                    open.lines.iter().map(|line| line.exact).sum::<Bytes>(),
                    open.total.1,
                    "{part:?} {instant:?}"
                );
                assert_eq!(open.total.1, table.rows[part as usize].cells[instant as usize].exact);
                assert!(open.lines.is_empty() || !open.known.is_empty());
            }
        }
    }
}

#[test]
fn steps_show_their_figures_within_their_gauges() {
    for plan in jobs() {
        let state = State::new(&plan);
        let decision = state.outcome.shown.as_ref().unwrap().decision();
        let all = steps(&plan.policy, decision, Some(decision), text());
        assert_eq!(all.iter().map(|step| step.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        for step in &all {
            assert!(!step.fact.is_empty() && step.ask.ends_with('?'));
            let Some(gauge) = &step.gauge else { continue };
            let whole = gauge.whole.as_ref().map(|(x, _)| *x);
            for x in [Some(gauge.filled), gauge.over_from, Some(gauge.rule.0), whole].into_iter().flatten() {
                assert!((0.0..=100.0).contains(&x), "{}: {gauge:?}", step.name);
            }
        }
    }
}

#[test]
fn the_timeline_stays_in_its_frame_and_peaks_at_the_binding_instant() {
    for plan in jobs() {
        let state = State::new(&plan);
        let decision = state.outcome.shown.as_ref().unwrap().decision();
        let Some(picture) = Timeline::new(decision, text()) else {
            assert_eq!(plan.recipe.precision, Some(Precision::RuleOfThumb), "only the rule of thumb has no walk");
            continue;
        };
        for (_, d) in &picture.areas {
            assert!(d.starts_with('M') && d.ends_with('Z'));
            let numbers = d.split(|c: char| c.is_ascii_alphabetic() || c == ' ').filter(|n| !n.is_empty());
            for number in numbers {
                let number: f64 = number.parse().unwrap();
                assert!((0.0..=1000.0).contains(&number), "{number}");
            }
        }
        let (x, y, label) = &picture.peak;
        assert!((0.0..=100.0).contains(x) && (0.0..=100.0).contains(y));
        let bill = &decision.estimate.bill;
        let total = BillTable::new(decision, None, text()).totals[bill.binding as usize].0.clone();
        assert_eq!(*label, format!("{total} binds"));
    }
}

fn understood(state: &State) -> Understood {
    Understood::new(&state.measured, state.outcome.shown.as_ref(), text(), Locale::En.report()).unwrap()
}

#[test]
fn a_message_is_explained_and_changes_nothing_else() {
    let before = start();
    let state = before.reduce(Action::Paste(EXAMPLE_OOM.into()));
    assert_eq!((&state.draft, &state.outcome, &state.notice), (&before.draft, &before.outcome, &None));
    let understood = understood(&state);
    let [report] = understood.reports.as_slice() else { panic!("{understood:?}") };
    assert!(report.read_as.contains("14.7 GiB of 23.6 GiB allocated"), "{report:?}");
    assert!(report.read_as.contains("asked for 202 MiB more"), "{report:?}");
    assert!(report.causes[0].contains("7.38 GiB"), "the other process's: {report:?}");
    assert!(report.first.is_some());
    assert!(report.rows.is_empty(), "nothing of a step: {report:?}");
}

#[test]
fn what_tools_print_is_understood() {
    let rows = |text: &str| {
        let state = after(&start(), [Action::MeasuredText(text.into())]);
        assert_eq!(state.measured.error, None);
        let understood = understood(&state);
        understood.reports.into_iter().flat_map(|report| report.rows).collect::<Vec<_>>()
    };
    assert!(rows(include_str!("data/formats/smi-01-table-430.txt")).is_empty());
    // The highest allocated and the highest reserved of a run are predicted.
    for text in [
        include_str!("data/formats/stats-01-flat.json"),
        include_str!("data/formats/summary-03-pytorch-2.0-binary-units.txt"),
    ] {
        let rows = rows(text);
        assert!(!rows.is_empty() && rows.iter().all(|row| row.exact.iter().all(Option::is_some)), "{rows:?}");
    }
}

#[test]
fn of_many_measurements_the_last_are_shown() {
    let log: String = (0..20).map(|rank| EXAMPLE_OOM.replace("torch.", &format!("[rank{rank}]: torch."))).collect();
    let understood = understood(&after(&start(), [Action::MeasuredText(log)]));
    assert_eq!((understood.all, understood.reports.len()), (20, 8));
    assert!(understood.reports[7].read_as.contains("rank 19"), "{understood:?}");
}

#[test]
fn files_are_read_whatever_their_bytes() {
    let events = include_bytes!("data/formats/events-01.tfevents").to_vec();
    let state = start().reduce(Action::File(events));
    assert_eq!((&state.measured.error, state.section), (&None, Section::Measured));
    assert!(!state.measured.taken.is_empty());
    // As PowerShell writes what a program prints.
    let wide = |text: &str| [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    let state = start().reduce(Action::File(wide(EXAMPLE_OOM)));
    assert_eq!(understood(&state).reports.len(), 1);
    let plan = serde_json::to_string(&example()).unwrap();
    assert_eq!(start().reduce(Action::File(wide(&plan))).notice, Some(Notice::PlanTaken));
    assert!(start().reduce(Action::File(vec![0x80; 64])).measured.error.is_some());
}

#[test]
fn predicted_and_measured_stand_side_by_side() {
    let state = after(&start(), [Action::MeasuredText(EXAMPLE_SCRIPT.into())]);
    let understood = understood(&state);
    let [report] = understood.reports.as_slice() else { panic!("{understood:?}") };
    assert_eq!(report.rows.len(), 5);
    for row in &report.rows {
        let [predicted, measured, difference] = row.exact.map(Option::unwrap);
        assert_eq!(predicted - measured, difference);
        // The recorded run of this very job: within 1 % of its peak at every instant.
        assert!(difference.abs() < 80_302_646_784 / 100, "{row:?}");
    }
}

/// The examples on the page are real runs: the figures of the measured cases.
#[test]
fn the_examples_are_measured_cases() {
    let cases = include_str!("data/training-steps/cases.jsonl");
    let result = |id: &str| -> serde_json::Value {
        let line = cases.lines().find(|line| line.contains(&format!("\"id\":\"{id}\""))).unwrap();
        serde_json::from_str::<serde_json::Value>(line).unwrap()["result"].take()
    };
    let first = &result("llama3-8b_Lfull_sm80_pure_bf16_sdpa_nock_adamw-foreach_fullft_b1s2048")["first"];
    let script: serde_json::Value = serde_json::from_str(EXAMPLE_SCRIPT).unwrap();
    for key in ["base", "forward_delta", "backward_delta", "step_delta"] {
        assert_eq!(script[key], first[key], "{key}");
    }
    let peaks = ["forward_peak", "backward_peak", "step_peak"].map(|key| first[key].as_u64().unwrap());
    assert_eq!(script["peak"].as_u64(), peaks.into_iter().max());

    let of = result("qwen2.5-7b_Lfull_sm80_pure_bf16_sdpa_nock_adamw-foreach_fullft_b1s2048");
    let document: serde_json::Value = serde_json::from_str(EXAMPLE_DOCUMENT).unwrap();
    for reading in document["readings"].as_array().unwrap() {
        let name = reading["name"].as_str().unwrap();
        let measured = name.split('.').fold(&of, |value, key| &value[key]);
        assert_eq!(&reading["bytes"], measured, "{name}");
    }
}

/// What the worker does with a plan.
fn study(plan: &Plan) -> (LengthsTable, Vec<(usize, usize)>) {
    let mut study = Study::new(plan).unwrap();
    let mut progress = vec![study.progress()];
    while !study.advance().unwrap() {
        progress.push(study.progress());
    }
    progress.push(study.progress());
    (LengthsTable::of(&study, Locale::En), progress)
}

#[test]
fn a_run_over_many_lengths_is_asked_for_shown_and_marked_once_the_inputs_change() {
    let mut plan = example();
    plan.model = ModelSource::Preset("gpt2".into());
    plan.recipe.seq_len = 512;
    let lengths = [
        typed(Field::Lengths, "64, 500, 90, 333, 512, 17"),
        typed(Field::LengthSteps, "12"),
        Action::Alternative(Alternative::BucketedBatches),
        Action::Run(Some(Errand::Lengths)),
    ];
    let going = after(&Rc::new(State::new(&plan)), lengths);
    let Run::Going { plan: asked, done: 0, total: 0, table: None } = &going.errands.lengths else {
        panic!("{:?}", going.errands.lengths)
    };
    let of = asked.recipe.lengths.as_ref().unwrap();
    assert_eq!((of.steps, of.batching), (12, Batching::Bucketed));
    assert_eq!(of.of, Distribution::List(vec![64, 500, 90, 333, 512, 17]));
    // The link holds them.
    let again = State::from_fragment(&format!("#{}", going.fragment().unwrap()));
    assert_eq!(again.draft.plan().as_ref(), Ok(&**asked));
    assert_eq!(again.draft.text(Field::Lengths), "64, 500, 90, 333, 512, 17");
    let some = going.reduce(Action::ReadSoFar(3, Some(15)));
    assert!(matches!(some.errands.lengths, Run::Going { done: 3, total: 15, .. }));
    let (table, progress) = study(asked);
    assert!(progress.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 == pair[1].1), "{progress:?}");
    assert_eq!((progress[0].0, progress.last().unwrap().0), (0, progress[0].1));
    assert!(table.head.starts_with("12 steps, 12 micro-batches padded to 17 to 512 tokens, 6 different"), "{table:?}");
    assert_eq!(table.rows[0].setting, "as planned");
    assert_eq!(table.rows[0].end, "completes on RTX 4090 24GB");
    assert!(table.rows.iter().any(|row| row.setting == "expandable_segments:True"));
    assert!(!table.findings.is_empty() && table.problems.is_empty(), "{table:?}");
    let found = || Action::Found(Box::new(Found::Lengths(Box::new(table.clone()))));
    let done = some.reduce(found());
    assert!(matches!(&done.errands.lengths, Run::Done { table: shown, .. } if **shown == table));
    // What comes after it was stopped is not wanted; a file that is read instead stops it.
    let stopped = some.reduce(Action::Run(None)).reduce(found());
    assert_eq!(stopped.errands.lengths, Run::None);
    let reading = Reading { name: None, read: 0, total: None };
    assert_eq!(some.reduce(Action::Reading(Some(reading))).errands.lengths, Run::None);
}

#[test]
fn lengths_are_read_as_the_command_reads_them() {
    for (text, expected) in [
        ("fixed", Some(Distribution::Fixed)),
        (" uniform=64..2048 ", Some(Distribution::Uniform { min: 64, max: 2048 })),
        ("log-normal=512,0.7", Some(Distribution::LogNormal { median: 512, sigma: 0.7 })),
        ("307, 1237;1300\n88", Some(Distribution::List(vec![307, 1237, 1300, 88]))),
        ("", None),
        ("uniform=64", None),
        ("log-normal=512", None),
        ("many", None),
        ("1, -2", None),
    ] {
        let read = Distribution::parse(text);
        assert_eq!(read, expected, "{text:?}");
        assert_eq!(read.as_ref().and_then(|of| Distribution::parse(&of.to_string())), read, "{text:?}");
    }
    // What is wrong with them stands beside the field, and opens the panel.
    let state = after(&start(), [typed(Field::Lengths, "uniform=9..3")]);
    assert!(job::lengths_are_open(&state) && !job::more_is_open(&state));
    assert!(!job::issues_of(&state, Field::Lengths.id(), text()).is_empty());
}

#[test]
fn a_recording_as_json_is_read_like_a_pickle() {
    let json = include_bytes!("data/snapshots/snap-08-as-json.json");
    let Found::Recording(shown) = found(json, 100) else { panic!("a recording") };
    let state = start().reduce(Action::File(json.to_vec()));
    assert_eq!(state.measured.recording.as_deref(), Some(&*shown));
    assert_eq!(state.section, Section::Measured);
    assert!(found(&json[..json.len() / 2], 100) != found(json, 100));
    let Found::Refused(error) = found(&json[..json.len() / 2], 100) else { panic!("cut off") };
    assert!(error.to_string().contains("recording"), "{error}");
    // Other documents are what they were.
    assert!(matches!(found(EXAMPLE_SCRIPT.as_bytes(), 64), Found::Measurements(_)));
}

#[test]
fn the_ranks_of_a_job_are_walked_where_they_differ() {
    let words = Locale::En;
    let dp = after(
        &start(),
        [
            Action::Preset("gpt2".into()),
            typed(Field::SeqLen, "128"),
            typed(Field::MicroBatch, "4"),
            typed(Field::WorldSize, "4"),
            Action::Alternative(Alternative::Dp),
        ],
    );
    let plan = shown(&dp);
    assert_eq!(dp.outcome.issues, []);
    assert!(ranks_differ(plan));
    let going = dp.reduce(Action::Run(Some(Errand::Ranks))).reduce(Action::ReadSoFar(1, Some(2)));
    assert_eq!(going.errands.ranks.progress(), (1, 2));
    let mut walk = walking(plan, words).unwrap();
    while !walk.advance().unwrap() {}
    assert_eq!(walk.progress().0, 4);
    let table = RankTable::of(plan, walk.ranks(), words);
    assert!(table.sentence.starts_with("GPU 0 holds the most, "), "{}", table.sentence);
    assert_eq!(table.rows.iter().map(|row| row.binds).collect::<Vec<_>>(), [true, false, false, false]);
    for row in &table.rows {
        let longest: f64 = row.shares.iter().sum();
        assert!(longest <= 100.0 + 1e-9 && row.binds == (longest > 99.9), "{row:?}");
    }
    let found = |table: RankTable| Action::Found(Box::new(Found::Ranks(Box::new(table))));
    let done = going.reduce(found(table.clone()));
    assert!(matches!(&done.errands.ranks, Run::Done { table: shown, .. } if **shown == table));
    assert_eq!(going.reduce(Action::Run(None)).reduce(found(table)).errands.ranks, Run::None);
    // One GPU has no other to differ from.
    let one = dp.reduce(typed(Field::WorldSize, "1"));
    assert!(!ranks_differ(shown(&one)));
    assert_eq!(walking(shown(&one), words).unwrap_err(), RankTable::default());
}

/// The sequence that is called the longest fits; one that is a sixteenth of a doubling longer does not.
#[test]
fn the_longest_sequence_is_sought_between_doublings() {
    let small = after(
        &start(),
        [
            Action::Preset("gpt2".into()),
            Action::Gpu(GpuPick::Own),
            typed(Field::GpuName, "small"),
            typed(Field::GpuMemory, "2 GiB"),
            typed(Field::SeqLen, "128"),
        ],
    );
    assert_eq!(small.outcome.issues, []);
    let mut searching = Searching::of(shown(&small)).unwrap();
    while !searching.advance(usize::MAX) {}
    let table = searching.table(Locale::En);
    let longest = &table.groups[3].1[0];
    let length = longest.plan.recipe.seq_len;
    let doubled = 1 << length.ilog2();
    assert!(length > doubled, "{length}");
    let mut plan = (*longest.plan).clone();
    assert_eq!(decide(&plan).unwrap().verdict.kind, VerdictKind::Fits);
    plan.recipe.seq_len += doubled / 16;
    assert_ne!(decide(&plan).unwrap().verdict.kind, VerdictKind::Fits);
}

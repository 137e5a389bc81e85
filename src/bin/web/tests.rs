//! The whole page, rendered without a browser: what every state of it must hold.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::LazyLock;

use futures::executor::block_on;
use vram_budget::bill::{Instant, Part};
use vram_budget::calibration::{Calibration, Fitted, Quantity};
use vram_budget::decide::{RemedyId, Status};
use vram_budget::machine::GpuChoice;
use vram_budget::recipe::{
    Attention, Checkpointing, LigerKernel, Loss, Method, OptimizerImpl, OptimizerName, Ppo, Precision,
};
use vram_budget::units::Bytes;
use vram_budget::view::compare::{CompareRow, CompareTable};
use vram_budget::view::lengths::{LengthsRow, LengthsTable};
use vram_budget::view::measured::{EXAMPLE_DOCUMENT, EXAMPLE_OOM, EXAMPLE_SCRIPT};
use vram_budget::view::ranks::{RankRow, RankTable};
use vram_budget::view::run::Errand;
use vram_budget::view::search::{FoundRow, SearchTable};
use vram_budget::view::study::{Answered, Explained, Offer, Shows};
use vram_budget::view::{Action, Alternative, Field, Found, GpuPick, Kept, Notice, Panel, State, Trained, example};
use yew::LocalServerRenderer;

use crate::app::{App, Props};

fn render(state: State) -> String {
    let props = Props { start: Rc::new(state) };
    block_on(LocalServerRenderer::<App>::with_props(props).hydratable(false).render())
}

fn after(actions: impl IntoIterator<Item = Action>) -> State {
    let state = actions.into_iter().fold(Rc::new(State::new(&example())), |state, action| state.reduce(action));
    let mut state = state;
    while state.is_unpriced() {
        state = state.reduce(Action::Work);
    }
    Rc::unwrap_or_clone(state)
}

/// One element of the rendered page.
#[derive(Clone, Debug)]
struct Element {
    tag: String,
    attributes: Vec<(String, String)>,
    /// The text inside, of its descendants too.
    text: String,
    /// The tags around it, outermost first.
    around: Vec<String>,
}

impl Element {
    fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Reads what the renderer writes: well-formed tags, quoted attributes, escaped text. It fails on anything else.
fn elements(html: &str) -> Vec<Element> {
    const VOID: [&str; 2] = ["input", "br"];
    let mut all: Vec<Element> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        let (text, tag_on) = rest.split_at(at);
        for &outer in &open {
            all[outer].text.push_str(text);
        }
        let end = tag_on.find('>').unwrap();
        let inside = &tag_on[1..end];
        rest = &tag_on[end + 1..];
        if let Some(name) = inside.strip_prefix('/') {
            let closed = open.pop().unwrap();
            assert_eq!(all[closed].tag, name, "tags nest");
            continue;
        }
        let (tag, mut attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        let mut element = Element {
            tag: tag.trim_end_matches('/').to_owned(),
            attributes: Vec::new(),
            text: String::new(),
            around: open.iter().map(|&outer| all[outer].tag.clone()).collect(),
        };
        while let Some((name, after)) = attributes.trim_start().split_once("=\"") {
            let (value, after) = after.split_once('"').unwrap();
            element.attributes.push((name.to_owned(), value.to_owned()));
            attributes = after;
        }
        assert!(matches!(attributes.trim(), "" | "/"), "an attribute without quotes: {attributes}");
        let void = VOID.contains(&element.tag.as_str()) || attributes.trim() == "/";
        all.push(element);
        if !void {
            open.push(all.len() - 1);
        }
    }
    assert!(open.is_empty(), "every tag is closed");
    all
}

/// The inputs of a run over many lengths.
fn lengths() -> [Action; 3] {
    [
        Action::Panel(Panel::Lengths, true),
        Action::Type(Field::Lengths, "uniform=64..2048".into()),
        Action::Alternative(Alternative::BucketedBatches),
    ]
}

/// PPO, its allocator replayed.
fn several_phases() -> State {
    let mut plan = example();
    plan.model = vram_budget::model::ModelSource::Preset("qwen2.5-0.5b".into());
    plan.recipe.seq_len = 512;
    plan.recipe.method = Some(Method::Ppo(Ppo::default()));
    State::new(&plan)
}

/// Liger's fused loss runs in training alone: the evaluation makes the logits, and binds.
fn evaluated() -> State {
    let mut plan = example();
    plan.model = vram_budget::model::ModelSource::Preset("qwen2.5-0.5b".into());
    plan.recipe.seq_len = 1024;
    plan.recipe.liger = LigerKernel::DEFAULT.to_vec();
    plan.recipe.checkpointing = Checkpointing::Full;
    plan.recipe.lora = serde_json::from_str(r#"{"r": 8, "targets": ["q_proj"]}"#).unwrap();
    plan.recipe.eval_after = true;
    State::new(&plan)
}

/// The state after `actions`, its remedies not priced: that takes its time.
fn asked(actions: impl IntoIterator<Item = Action>) -> State {
    let start = Rc::new(State::new(&example()));
    Rc::unwrap_or_clone(actions.into_iter().fold(start, |state, action| state.reduce(action)))
}

/// The page with an answer of the worker to a measurement, after `actions`.
fn explained(actions: impl IntoIterator<Item = Action>) -> State {
    let offer = |says: &str, take| Offer { says: says.into(), support: "likely (52 %).".into(), take };
    let answer = Explained {
        residual: Some("5 figures compared.".into()),
        offers: vec![
            offer("Your numbers fit fewer tokens.", Some(("fewer tokens".into(), example()))),
            offer("Another process.", None),
            offer("More tokens.", Some(("more tokens".into(), example()))),
        ],
        unexplained: Some("Nothing we know explains 1.3 GiB.".into()),
        shows: vec![Shows {
            evidence: "A leak.".into(),
            check: "Look.".into(),
            remedy: "Close it.".into(),
            tries: Vec::new(),
        }],
    };
    let measured = [
        Action::Type(Field::SeqLen, "1024".into()),
        Action::MeasuredText(EXAMPLE_SCRIPT.into()),
        Action::Answered(Box::new(Answered::Explained(answer))),
    ];
    asked(measured.into_iter().chain(actions))
}

fn nothing_fitted() -> vram_budget::view::study::Fitted {
    vram_budget::view::study::Fitted { name: "calibration".into(), plan: None, notes: vec!["left out: one.".into()] }
}

/// The example with a calibration.
fn calibrated() -> vram_budget::plan::Plan {
    let plan = example();
    let of = |of, value| Quantity { of, value, low: value / 2.0, high: value * 2.0 };
    let calibration = Calibration {
        measurements: 2,
        quantities: vec![of(Fitted::Overhead, 7e8), of(Fitted::Context, 6e8)],
        machine: plan.machine.clone(),
        framework: plan.framework.clone(),
    };
    vram_budget::plan::Plan { calibration: Some(calibration), ..plan }
}

/// States that between them show every part of the page.
fn states() -> Vec<(&'static str, State)> {
    let mut fits = example();
    fits.model = vram_budget::model::ModelSource::Preset("gpt2".into());
    fits.recipe.seq_len = 1024;
    fits.machine.gpu = Some(GpuChoice::Catalogue("A100 SXM4 80GB".into()));
    let typed = |field: Field, text: &str| Action::Type(field, text.into());
    vec![
        ("does not fit", State::new(&example())),
        ("fits", State::new(&fits)),
        ("unknown GPU, unknown precision", after([Action::Gpu(GpuPick::Unknown), Action::Precision(None)])),
        ("rule of thumb", after([Action::Precision(Some(Precision::RuleOfThumb))])),
        ("own GPU", after([Action::Gpu(GpuPick::Own), typed(Field::GpuMemory, "96 GiB"), Action::InUseKnown(true)])),
        (
            "SGD, eager, checkpointing",
            after([
                Action::Optimizer(OptimizerName::Sgd),
                Action::Implementation(Some(OptimizerImpl::Forloop)),
                Action::Attention(Some(Attention::Eager)),
                Action::Checkpointing(Checkpointing::Full),
            ]),
        ),
        (
            "every field wrong",
            after(Field::ALL.map(|field| typed(field, "?!")).into_iter().chain([
                Action::Gpu(GpuPick::Own),
                Action::Optimizer(OptimizerName::Sgd),
                Action::Config(Some("{ not json".into())),
            ])),
        ),
        ("config box", after([Action::Panel(Panel::Config, true), Action::Panel(Panel::Answer, true)])),
        (
            "loss in pieces, every 7th layer run again",
            after([Action::Loss(Loss::Chunked(8)), Action::Checkpointing(Checkpointing::Every(7))]),
        ),
        (
            "several GPUs, rewards, every list that most people leave",
            after([
                Action::Panel(Panel::More, true),
                typed(Field::WorldSize, "16"),
                Action::Trained(Trained::Qlora),
                Action::Alternative(Alternative::Zero3),
                Action::Alternative(Alternative::GrpoVllm),
                typed(Field::TensorSize, "2"),
                typed(Field::GpusPerNode, "4"),
            ]),
        ),
        (
            "a run over many lengths that is going",
            after(lengths().into_iter().chain([Action::Run(Some(Errand::Lengths))])),
        ),
        ("a run over many lengths that is done, of earlier inputs", {
            let mut table =
                LengthsTable { head: "2 steps".into(), findings: vec!["One.".into()], ..Default::default() };
            table.after = vec!["After step 2".into()];
            let peaks = ["2 GiB", "1 GiB", "2.00"].map(str::to_owned);
            let after_step = vec!["2 GiB".to_owned()];
            table.rows =
                vec![LengthsRow { setting: "as planned".into(), end: "fits".into(), peaks, after: after_step }];
            table.problems = vec!["A problem.".into()];
            let found = Action::Found(Box::new(Found::Lengths(Box::new(table))));
            after(lengths().into_iter().chain([
                Action::Run(Some(Errand::Lengths)),
                found,
                typed(Field::LengthSteps, "7"),
            ]))
        }),
        ("phases of PPO", several_phases()),
        ("an evaluation that binds", evaluated()),
        ("a search that is going", after([Action::Panel(Panel::Search, true), Action::Run(Some(Errand::Search))])),
        ("a search that is done, of earlier inputs", {
            let row = FoundRow {
                name: "micro-batch 1".into(),
                held: "2 GiB".into(),
                speed: "speed not known".into(),
                status: Status::Pass,
                verdict: "Fits".into(),
                plan: Box::new(example()),
            };
            let groups = vec![("The front".into(), vec![row.clone(), row]), ("longest: none".into(), Vec::new())];
            let table = SearchTable { head: "2 plans".into(), groups, problems: vec!["A problem.".into()] };
            let found = Action::Found(Box::new(Found::Search(Box::new(table))));
            after([
                Action::Panel(Panel::Search, true),
                Action::Run(Some(Errand::Search)),
                found,
                typed(Field::SeqLen, "64"),
            ])
        }),
        ("every rank that holds something else, of earlier inputs", {
            let row = RankRow {
                name: "GPU 0".into(),
                shares: vec![40.0, 30.0, 20.0, 5.0, 5.0],
                peak: "2.00".into(),
                exact: Bytes(1 << 31),
                at: "at the loss".into(),
                holds: "12 layers, 1 in flight".into(),
                binds: true,
            };
            let table = RankTable {
                sentence: "GPU 0.".into(),
                rows: vec![row.clone(), row],
                problems: vec!["A problem.".into()],
            };
            let found = Action::Found(Box::new(Found::Ranks(Box::new(table))));
            after([
                Action::Preset("gpt2".into()),
                typed(Field::SeqLen, "128"),
                typed(Field::MicroBatch, "4"),
                typed(Field::WorldSize, "4"),
                Action::Alternative(Alternative::Dp),
                Action::Panel(Panel::Ranks, true),
                Action::Run(Some(Errand::Ranks)),
                found,
                typed(Field::SeqLen, "64"),
            ])
        }),
        (
            "a comparison that is going",
            after([
                Action::MeasuredText(EXAMPLE_SCRIPT.into()),
                Action::Panel(Panel::Compare, true),
                Action::Keep(Kept::Inputs),
                Action::Run(Some(Errand::Compare)),
            ]),
        ),
        ("a comparison that is done, of earlier inputs", {
            let row = |name: &str, plan| CompareRow {
                name: name.into(),
                how: "2 runs".into(),
                peak: "2 GiB".into(),
                predicted: "predicted 2 GiB".into(),
                spread: "1 MiB".into(),
                speed: "3 to 4".into(),
                status: Status::Pass,
                verdict: "Fits".into(),
                buys: "micro-batch 2".into(),
                problems: vec!["A problem.".into()],
                plan,
            };
            let rows = vec![row("these inputs", Some(Box::new(example()))), row("a run", None)];
            let table = CompareTable { rows, said: vec!["Fastest.".into()], empirical: vec!["Empirical.".into()] };
            let found = Action::Found(Box::new(Found::Compared(Box::new(table))));
            after([
                Action::Panel(Panel::Compare, true),
                Action::Run(Some(Errand::Compare)),
                found,
                typed(Field::SeqLen, "64"),
            ])
        }),
        ("open cell", after([Action::Cell(Part::Activations, Instant::Loss)])),
        ("empty cell", after([Action::Cell(Part::Gradients, Instant::Forward)])),
        (
            "LoRA",
            after([
                Action::Trained(Trained::Lora),
                Action::LoraTarget("q_proj"),
                typed(Field::LoraRank, "8"),
                Action::Optimizer(OptimizerName::Adafactor),
            ]),
        ),
        ("QLoRA with DoRA", after([Action::Trained(Trained::Qlora), Action::Dora(true)])),
        ("LoRA beside nothing", after([Action::Trained(Trained::Lora), Action::Preset("resnet50".into())])),
        ("tried", after([Action::Try(RemedyId::FusedOptimizer, "something".into())])),
        ("out of memory", after([Action::Paste(EXAMPLE_OOM.into())])),
        ("a log of ranks", after([Action::MeasuredText(EXAMPLE_OOM.repeat(20))])),
        ("measured by script", after([Action::MeasuredText(EXAMPLE_SCRIPT.into())])),
        ("measured document", after([Action::Paste(EXAMPLE_DOCUMENT.into()), Action::UseMeasuredPlan])),
        (
            "which unit",
            after([Action::MeasuredText(
                r#"{"base": 1.5, "forward_delta": 2, "backward_delta": 0.5, "step_delta": 3, "peak": 9}"#.into(),
            )]),
        ),
        ("explaining", asked([Action::MeasuredText(EXAMPLE_SCRIPT.into())])),
        ("explained", explained([])),
        ("other explanations", explained([Action::Panel(Panel::Offers, true)])),
        ("taken over", explained([Action::TakeOffer(0)])),
        ("fitting", explained([Action::Calibrate])),
        ("nothing to fit", explained([Action::Calibrate, Action::Answered(Box::new(Answered::Fit(nothing_fitted())))])),
        ("calibrated", State::new(&calibrated())),
        ("garbage pasted", after([Action::Paste("<script>alert(1)</script> \"quoted\" & more".into())])),
        ("notice", after([Action::Notice(Some(Notice::Copied))])),
    ]
}

/// Each of those states, rendered.
static PAGES: LazyLock<Vec<(&str, String)>> =
    LazyLock::new(|| states().into_iter().map(|(name, state)| (name, render(state))).collect());

#[test]
fn every_control_has_a_name_and_every_reference_a_target() {
    for (name, html) in PAGES.iter() {
        let all = elements(html);
        let ids: Vec<&str> = all.iter().filter_map(|e| e.get("id")).collect();
        let unique: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(ids.len(), unique.len(), "{name}: ids are unique");
        for element in &all {
            for reference in ["for", "aria-describedby", "aria-controls", "aria-labelledby", "popovertarget"] {
                for id in element.get(reference).unwrap_or_default().split_whitespace() {
                    assert!(unique.contains(id), "{name}: {reference}={id} leads nowhere");
                }
            }
            let hidden = element.get("hidden").is_some() || element.get("aria-hidden") == Some("true");
            if matches!(element.tag.as_str(), "input" | "select" | "textarea") && !hidden {
                let id = element.get("id").unwrap_or_default();
                let labelled = all.iter().any(|e| e.tag == "label" && e.get("for") == Some(id) && !e.text.is_empty());
                let inside = element.around.contains(&"label".into());
                assert!(labelled || inside || element.get("aria-label").is_some(), "{name}: {id} has no label");
            }
            if element.get("role") == Some("img") {
                assert!(element.get("aria-label").is_some_and(|l| !l.is_empty()), "{name}: a picture without words");
            }
        }
    }
}

#[test]
fn headings_are_in_order_and_nothing_that_speaks_is_empty() {
    for (name, html) in PAGES.iter() {
        let all = elements(html);
        let levels: Vec<u32> =
            all.iter().filter_map(|e| e.tag.strip_prefix('h').and_then(|level| level.parse().ok())).collect();
        assert_eq!(levels.iter().filter(|level| **level == 1).count(), 1, "{name}: one h1");
        assert!(levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{name}: levels are not skipped: {levels:?}");
        for element in &all {
            let speaks = matches!(
                element.tag.as_str(),
                "a" | "button"
                    | "caption"
                    | "dd"
                    | "dt"
                    | "h1"
                    | "h2"
                    | "h3"
                    | "label"
                    | "legend"
                    | "li"
                    | "option"
                    | "p"
                    | "summary"
            );
            assert!(!speaks || !element.text.trim().is_empty(), "{name}: an empty {element:?}");
        }
    }
}

#[test]
fn the_content_security_policy_has_nothing_to_refuse() {
    for (name, html) in PAGES.iter() {
        for element in elements(html) {
            assert!(element.tag != "script" && element.tag != "style", "{name}");
            for (attribute, _) in &element.attributes {
                assert!(attribute != "style" && !attribute.starts_with("on"), "{name}: {attribute} on {}", element.tag);
            }
        }
    }
}

#[test]
fn no_figure_is_a_leak_of_the_program() {
    for (name, html) in PAGES.iter() {
        let all = elements(html);
        let text = &all.iter().find(|e| e.tag == "main").unwrap().text;
        for leak in ["NaN", "inf ", "None", "Some(", "undefined", "null"] {
            assert!(!text.contains(leak), "{name}: {leak} is in the text");
        }
    }
}

#[test]
fn the_first_paint_is_a_computed_example() {
    let all = elements(&render(State::from_fragment("")));
    let by_id = |id: &str| all.iter().find(|e| e.get("id") == Some(id)).unwrap();
    assert_eq!(by_id("verdict").text, "Does not fit");
    // 74.787 GiB is the measured peak of this job.
    assert!(by_id("needed").text.starts_with("74.8"), "{}", by_id("needed").text);
}

#[test]
fn a_hostile_text_is_text() {
    let html = render(after([Action::Paste("<script>alert(1)</script>".into())]));
    assert!(!html.contains("<script>"));
    assert!(html.contains("&lt;script&gt;alert(1)"));
}

#[test]
fn wrong_fields_say_so_beside_them_and_in_the_summary() {
    let state = after([Action::Type(Field::SeqLen, "20x".into()), Action::Type(Field::MicroBatch, "0".into())]);
    let all = elements(&render(state));
    let by_id = |id: &str| all.iter().find(|e| e.get("id") == Some(id)).unwrap();
    assert_eq!(by_id("seq-len").get("aria-invalid"), Some("true"));
    assert_eq!(by_id("seq-len").get("value"), Some("20x"));
    assert!(by_id("seq-len-issue").text.contains("20x"));
    let links: Vec<&str> = all.iter().filter_map(|e| e.get("href")).collect();
    assert!(links.contains(&"#seq-len"));
    // The last good answer stays.
    assert_eq!(by_id("verdict").text, "Does not fit");
    assert!(all.iter().any(|e| e.get("class") == Some("stale")));
}

#[test]
fn a_job_of_several_phases_lists_them_below_the_bill() {
    let all = elements(&render(several_phases()));
    let table = all.iter().find(|e| e.get("id") == Some("phases")).unwrap();
    assert!(table.text.contains("Critic’s values") && table.text.contains("other models 1.84"), "{}", table.text);
    assert_eq!(table.text.matches("binds").count(), 2, "its head and one phase");
    let all = elements(&render(State::new(&example())));
    assert!(all.iter().all(|e| e.get("id") != Some("phases")));
}

#[test]
fn the_answer_is_about_the_phase_that_binds() {
    let all = elements(&PAGES.iter().find(|(of, _)| *of == "an evaluation that binds").unwrap().1);
    let because = |said: &str| all.iter().any(|e| e.get("class") == Some("because") && e.text.starts_with(said));
    assert!(because("The peak is in the evaluation, not in the training step: the largest part is temporary, "));
    let tables: Vec<&Element> = all.iter().filter(|e| e.tag == "table").collect();
    assert!(tables.iter().any(|e| e.get("class") == Some("sums") && e.text.starts_with("In the evaluation")));
    let table = |id: &str| tables.iter().find(|e| e.get("id") == Some(id)).unwrap();
    assert_eq!(table("bill-table").text.matches("binds").count(), 0, "no instant of the step");
    assert_eq!(table("phases").text.matches("binds").count(), 2, "its head and the evaluation");
    assert!(all.iter().any(|e| e.text == "The peak of the job is in the evaluation."));
}

#[test]
fn what_explains_a_measurement_is_drawn_with_what_it_offers() {
    let page = |name: &str| elements(&PAGES.iter().find(|(of, _)| *of == name).unwrap().1);
    let buttons =
        |all: &[Element], said: &str| all.iter().filter(|e| e.tag == "button" && e.text.starts_with(said)).count();
    let explained = page("explained");
    assert_eq!(buttons(&explained, "Take it over"), 1, "the others are drawn once they are asked for");
    assert_eq!(buttons(&page("other explanations"), "Take it over"), 2, "one is no matter of the plan");
    let said = &explained.iter().find(|e| e.get("id") == Some("explained")).unwrap().text;
    for part in ["Your numbers fit fewer tokens.", "Nothing we know explains 1.3 GiB.", "A leak.", "Close it."] {
        assert!(said.contains(part), "{said}");
    }
    assert!(page("taken over").iter().any(|e| e.text.starts_with("Tried: fewer tokens.")));
    let calibration = page("calibrated");
    let listed = &calibration.iter().find(|e| e.get("id") == Some("calibration")).unwrap().text;
    assert!(listed.contains("allocated beside the step 668 MiB") && listed.contains("allocated peak "), "{listed}");
    assert_eq!(buttons(&calibration, "Remove the calibration"), 1);
    for none in ["does not fit", "garbage pasted"] {
        let without = |e: &Element| !matches!(e.get("id"), Some("explained" | "calibration" | "calibrate"));
        assert!(page(none).iter().all(without), "{none}");
    }
}

#[test]
fn several_gpus_are_asked_for_their_nodes_and_links() {
    let drawn = |actions: &[Action]| {
        let more = Action::Panel(Panel::More, true);
        elements(&render(asked([more].into_iter().chain(actions.iter().cloned()))))
    };
    let typed = |field: Field, text: &str| Action::Type(field, text.into());
    let ids = [Field::GpusPerNode, Field::NetworkGbps, Field::LinkGbps].map(Field::id);
    let asked = |of: &[Element]| ids.map(|id| of.iter().any(|e| e.tag == "input" && e.get("id") == Some(id)));
    let says = |of: &[Element], text: &str| of.iter().any(|e| e.tag == "span" && e.text == text);
    assert_eq!(asked(&drawn(&[])), [false; 3]);
    let one = drawn(&[typed(Field::WorldSize, "8")]);
    assert_eq!(asked(&one), [true; 3]);
    assert!(says(&one, "1 node with 8 GPUs"));
    assert!(says(&drawn(&[typed(Field::WorldSize, "8"), typed(Field::GpusPerNode, "2")]), "4 nodes with 2 GPUs each"));
    assert!(says(&drawn(&[typed(Field::WorldSize, "12")]), "2 nodes with up to 8 GPUs"));
    let odd = drawn(&[typed(Field::WorldSize, "8"), typed(Field::GpusPerNode, "0")]);
    let wrong = |e: &Element| e.get("id") == Some(ids[0]) && e.get("aria-invalid") == Some("true");
    assert!(odd.iter().any(wrong) && !odd.iter().any(|e| e.text.starts_with("1 node")));
}

#[test]
fn a_search_is_drawn_once_it_is_asked_for_with_a_button_beside_each_plan() {
    let with = |wanted: &str| elements(&PAGES.iter().find(|(name, _)| *name == wanted).unwrap().1);
    let ids = |all: &[Element]| all.iter().filter_map(|e| e.get("id").map(str::to_owned)).collect::<BTreeSet<_>>();
    let closed = ids(&with("fits"));
    assert!(closed.contains("search-panel") && !closed.contains("start-search"));
    assert!(ids(&with("a search that is going")).contains("stop-search"));
    let all = with("a search that is done, of earlier inputs");
    let table = all.iter().find(|e| e.get("id") == Some("search-table")).unwrap();
    assert!(table.text.contains("earlier inputs") && table.text.contains("A problem."), "{}", table.text);
    let take = all.iter().filter(|e| e.tag == "button" && e.text == "Take it: micro-batch 1").count();
    assert_eq!(take, 2);
}

#[test]
fn configurations_are_drawn_side_by_side_once_that_is_asked_for() {
    let with = |wanted: &str| elements(&PAGES.iter().find(|(name, _)| *name == wanted).unwrap().1);
    let ids = |all: &[Element]| all.iter().filter_map(|e| e.get("id").map(str::to_owned)).collect::<BTreeSet<_>>();
    let closed = ids(&with("fits"));
    assert!(closed.contains("compare-panel") && !closed.contains("start-compare"));
    let going = with("a comparison that is going");
    assert!(ids(&going).is_superset(&["stop-compare", "keep-inputs", "keep-measured"].map(str::to_owned).into()));
    assert!(
        going.iter().any(|e| e.tag == "button" && e.text.starts_with("Remove: llama-3.1-8b, pure_bf16, micro-batch 1"))
    );
    let all = with("a comparison that is done, of earlier inputs");
    assert!(!ids(&all).contains("keep-measured"), "nothing was measured");
    let table = all.iter().find(|e| e.get("id") == Some("compare-table")).unwrap();
    for said in ["earlier inputs", "2 runs", "predicted 2 GiB", "micro-batch 2", "A problem.", "Fastest.", "Empirical."]
    {
        assert!(table.text.contains(said), "{said}: {}", table.text);
    }
    assert_eq!(all.iter().filter(|e| e.tag == "button" && e.text.starts_with("Take it over: ")).count(), 1);
}

#[test]
fn what_the_texts_show_offers_the_remedies_that_help() {
    let with = |tries: Vec<RemedyId>| {
        let shows = Shows { evidence: "It ran out.".into(), check: "Look.".into(), remedy: "Change it.".into(), tries };
        let explained = Explained { residual: None, offers: Vec::new(), unexplained: None, shows: vec![shows] };
        let answered = Action::Answered(Box::new(Answered::Explained(explained)));
        elements(&render(after([Action::MeasuredText(EXAMPLE_SCRIPT.into()), answered])))
    };
    let tries = |all: &[Element]| {
        let inside = all.iter().find(|e| e.get("id") == Some("explained")).unwrap();
        inside.text.matches("Try ").count()
    };
    let helps = with(vec![RemedyId::Checkpointing, RemedyId::EightBitOptimizer, RemedyId::LargerGpu]);
    assert!(tries(&helps) >= 2, "{}", tries(&helps));
    assert_eq!(tries(&with(Vec::new())), 0);
}

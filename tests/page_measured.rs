//! What the page works out of a measurement: what explains the difference, what the texts show, what is fitted.
#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::rc::Rc;

use vram_budget::calibration::Fitted;
use vram_budget::measure::{Case, Figure, Measurement, Reading, ReadingName, Reported, TierName};
use vram_budget::plan::Plan;
use vram_budget::recipe::Precision;
use vram_budget::reconcile::predict;
use vram_budget::text::Locale;
use vram_budget::units::MIB;
use vram_budget::view::compare::{CompareTable, Comparing};
use vram_budget::view::measured::Understood;
use vram_budget::view::run::{Errand, Run};
use vram_budget::view::study::{Explained, Study};
use vram_budget::view::{Action, Field, Found, Kept, Notice, Panel, State, link};

/// A recorded step of a small model under autocast, and its plan.
fn recorded() -> Measurement {
    let id = "\"id\":\"bert-base_L2_sm80_amp_bf16_sdpa_nock_adamw-foreach_fullft_b2s512\"";
    let line = include_str!("data/training-steps/cases.jsonl").lines().find(|line| line.contains(id)).unwrap();
    let case = Case::read(line).unwrap();
    // As a document has it.
    let plan = serde_json::from_str(&serde_json::to_string(&case.plan.unwrap()).unwrap()).unwrap();
    Measurement { plan: Some(plan), ..Measurement::new(case.readings) }
}

/// The page with that plan.
fn start() -> Rc<State> {
    Rc::new(State::new(&recorded().plan.unwrap()))
}

fn pasted(measured: &Measurement) -> Action {
    Action::Paste(serde_json::to_string(measured).unwrap())
}

fn after(state: &Rc<State>, actions: impl IntoIterator<Item = Action>) -> Rc<State> {
    actions.into_iter().fold(Rc::clone(state), |state, action| state.reduce(action))
}

/// What the worker does, and the state once it is done.
fn worked_out(mut state: Rc<State>) -> Rc<State> {
    while let Some(asked) = &state.measured.asked {
        let mut study = Study::read(&asked.document().unwrap()).unwrap();
        while !study.advance() {}
        state = state.reduce(Action::Answered(Box::new(study.found(Locale::En))));
    }
    state
}

fn refined(state: &Rc<State>) -> Rc<State> {
    state.reduce(Action::Work)
}

fn shown(state: &State) -> &Plan {
    state.outcome.shown.as_ref().unwrap().plan()
}

fn explained(state: &State) -> &Explained {
    state.measured.explained.as_ref().unwrap()
}

/// The shares by which the rows of the page are off.
fn off(state: &State) -> Vec<f64> {
    let text = (Locale::En.text(), Locale::En.report());
    let understood = Understood::new(&state.measured, state.outcome.shown.as_ref(), text.0, text.1).unwrap();
    let rows = understood.reports.into_iter().flat_map(|report| report.rows);
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    let share = |[_, measured, difference]: [Option<i64>; 3]| {
        difference.unwrap() as f64 / (measured.unwrap() as f64).abs().max(MIB as f64)
    };
    rows.map(|row| share(row.exact)).collect()
}

#[test]
fn what_was_measured_of_another_recipe_is_taken_over_with_one_action_and_undone() {
    let before = after(&start(), [Action::Precision(Some(Precision::PureBf16))]);
    assert_eq!((&before.measured.asked, &before.measured.explained), (&None, &None), "nothing was measured");
    let state = worked_out(after(&before, [pasted(&recorded())]));
    let found = explained(&state);
    assert!(found.residual.as_ref().unwrap().contains(" figures compared. Furthest off: "), "{found:?}");
    let best = &found.offers[0];
    assert_eq!(best.says, "Your numbers fit precision amp_bf16, not precision pure_bf16.");
    assert!(best.support.contains("explains 9") || best.support.contains("explains 100"), "{best:?}");
    assert!(found.offers.len() <= 4 && found.unexplained.is_none(), "{found:?}");

    let taken = after(&state, [Action::TakeOffer(0)]);
    assert_eq!(shown(&taken).recipe.precision, Some(Precision::AmpBf16));
    assert_eq!(taken.undo.last().unwrap().remedy, "precision amp_bf16");
    assert!(taken.measured.explained.is_none() && taken.measured.asked.is_some(), "other inputs, another answer");
    assert_eq!(after(&taken, [Action::Undo]).draft, before.draft);
    let fits = worked_out(taken);
    assert!(explained(&fits).residual.as_ref().unwrap().ends_with("compared: as predicted."), "{:?}", explained(&fits));
    assert!(explained(&fits).offers.is_empty());
    // There is no such offer.
    assert_eq!(after(&fits, [Action::TakeOffer(0)]), fits);
}

#[test]
fn what_nothing_known_explains_is_said() {
    let figure =
        |name: &str, bytes: i64| Reading::new(name.parse().unwrap(), TierName::Allocated, Figure::Bytes(bytes));
    // As much as no recipe of this model holds at once, and less than its weights before.
    let odd = Measurement::new(vec![
        figure("base", 3 << 20),
        figure("first.peak", 1 << 40),
        figure("max_allocated", 2 << 20),
    ]);
    let state = worked_out(after(&start(), [pasted(&odd)]));
    let said = explained(&state).unexplained.as_ref().unwrap();
    assert!(said.starts_with("Nothing we know explains "), "{said}");
}

#[test]
fn inputs_ask_anew_and_wrong_ones_nothing() {
    let start = start();
    let measured = after(&start, [pasted(&recorded())]);
    let asked = measured.measured.asked.clone().unwrap();
    let typed = |text: &str| Action::Type(Field::SeqLen, text.into());
    let other = after(&measured, [typed("256")]);
    assert_ne!(other.measured.asked, Some(asked.clone()));
    assert_eq!(after(&measured, [typed("?")]).measured.asked, None);
    // What changes no input asks nothing again; nor does a text that is not understood.
    for action in [Action::Work, Action::ModelFilter("q".into()), Action::MeasuredText("{".into())] {
        assert_eq!(after(&measured, [action]).measured.asked, Some(asked.clone()));
    }
    // An answer that nobody waits for.
    let mut study = Study::read(&asked.document().unwrap()).unwrap();
    while !study.advance() {}
    let answer = Action::Answered(Box::new(study.found(Locale::En)));
    assert_eq!(after(&start, [answer.clone()]), start);
    assert!(after(&measured, [answer, Action::Forget]).measured.explained.is_none());
    assert_eq!(after(&measured, [Action::Failed]).measured.asked, None);
    assert!(Study::read("nonsense").is_none());
}

/// The recorded step in a process with a context of 700 MiB, and as much kept beside it.
fn kept_beside() -> Measurement {
    let mut measured = recorded();
    let kept = 700 * i64::try_from(MIB).unwrap();
    for reading in measured.readings.iter_mut().filter(|reading| is_level(reading.name)) {
        if let Figure::Bytes(bytes) = &mut reading.figure {
            *bytes += kept;
        }
    }
    let reserved = measured.bytes(ReadingName::MaxReserved).unwrap();
    let process = ReadingName::Reported(Reported::Process);
    measured.readings.push(Reading::new(process, TierName::Process, Figure::Bytes(reserved + kept)));
    measured
}

/// Whether a figure counts everything that is alive.
fn is_level(name: ReadingName) -> bool {
    let part = |of: &str| name.to_string().contains(of);
    !name.is_delta() && !["params", "grads", "inputs", "optimizer_state", "load"].into_iter().any(part)
}

#[test]
fn a_plan_is_calibrated_and_the_calibration_is_removed() {
    let before = refined(&after(&start(), [pasted(&kept_beside())]));
    assert!(off(&before).iter().any(|share| *share < -0.05), "{:?}", off(&before));

    let asked = after(&before, [Action::Calibrate]);
    assert!(asked.measured.asked.as_ref().unwrap().is_fit());
    let state = refined(&worked_out(asked));
    let plan = shown(&state);
    let fitted = |of| plan.fitted(of).unwrap().value;
    #[expect(clippy::cast_precision_loss, reason = "a size")]
    let kept = 700.0 * MIB as f64;
    assert!((fitted(Fitted::Context) - kept).abs() < MIB as f64);
    assert!((fitted(Fitted::Overhead) / kept - 1.0).abs() < 0.2, "{}", fitted(Fitted::Overhead));
    // The rows show what the calibrated plan predicts, and there is nothing left to explain.
    assert!(off(&state).iter().all(|share| share.abs() < 0.02), "{:?}", off(&state));
    assert!(explained(&state).residual.as_ref().unwrap().ends_with("as predicted."), "{:?}", explained(&state));
    // It is part of the link.
    assert_eq!(link::decode(&state.fragment().unwrap()).unwrap().as_ref(), Some(plan));
    assert_eq!(shown(&State::from_fragment(&state.fragment().unwrap())), plan);
    // An input leaves it.
    let typed = after(&state, [Action::Type(Field::SeqLen, "256".into())]);
    assert_eq!(shown(&typed).calibration, plan.calibration);

    let removed = after(&state, [Action::RemoveCalibration("no calibration".into())]);
    assert_eq!(shown(&removed), shown(&before));
    assert_eq!(shown(&after(&removed, [Action::Undo])), plan);
    assert_eq!(shown(&after(&state, [Action::Undo])), shown(&before));
}

#[test]
fn a_measurement_that_says_nothing_changes_nothing() {
    let odd = Measurement::new(Vec::new());
    let before = after(&start(), [pasted(&odd)]);
    let state = worked_out(after(&before, [Action::Calibrate]));
    assert_eq!((&state.draft, state.undo.len()), (&before.draft, 0));
    let fitted = state.measured.fitted.as_ref().unwrap();
    assert!(fitted.plan.is_none(), "{fitted:?}");
    assert!(explained(&state).offers.is_empty());
}

#[test]
fn what_the_texts_show_is_said_with_its_remedy() {
    let mut log = "step,allocated_bytes,reserved_bytes\n".to_owned();
    for n in 0..200_u64 {
        let allocated = 10_000_000_000 + n * 3_000_000 + (n * 37) % 5 * 1_000_000;
        writeln!(log, "{n},{allocated},20000000000").unwrap();
    }
    let state = worked_out(after(&start(), [Action::Paste(log)]));
    let shows = &explained(&state).shows;
    assert!(
        shows.iter().any(|one| one.evidence.starts_with("A leak: ") && one.remedy.contains("loss.item()")),
        "{shows:?}"
    );
}

/// What the worker says of the configurations.
fn compared(state: &Rc<State>) -> CompareTable {
    let document = Errand::Compare.document(state).unwrap();
    let (errand, about) = Errand::read(&document).unwrap();
    assert_eq!(errand, Errand::Compare);
    let mut comparing = Comparing::read(about).unwrap();
    let mut last = 0;
    while !comparing.advance() {
        let (done, of) = comparing.progress();
        assert!(last < done && done <= of);
        last = done;
    }
    comparing.table(Locale::En)
}

fn names(table: &CompareTable) -> Vec<&str> {
    table.rows.iter().map(|row| row.name.as_str()).collect()
}

#[test]
fn inputs_and_what_was_measured_stand_side_by_side() {
    let run = |id: &str, more: i64| {
        let mut run = recorded();
        run.id = Some(id.into());
        for reading in &mut run.readings {
            if let Figure::Bytes(bytes) = &mut reading.figure {
                *bytes += more;
            }
        }
        run
    };
    let document = |id: &str, more: i64| serde_json::to_string(&run(id, more)).unwrap();
    // Kept: the inputs as they were; then two documents, one of them in two runs, dropped at once, with a plan and with what
    // is nothing; then further inputs.
    let kept = after(&start(), [Action::Keep(Kept::Inputs), Action::Keep(Kept::Inputs)]);
    assert_eq!(kept.kept.len(), 1);
    let other = serde_json::to_string(&vram_budget::view::example()).unwrap();
    let files = [
        ("a.json", document("first", 0)),
        ("b.json", document("first", 1 << 20)),
        ("c.json", document("second", 0)),
        ("other-plan.json", other),
        ("notes.txt", "nothing".into()),
    ];
    let files = files.map(|(name, text)| (name.to_owned(), text.into_bytes())).to_vec();
    let state = after(&kept, [Action::Files(files), Action::Type(Field::MicroBatch, "4".into())]);
    assert_eq!(state.notice, Some(Notice::FileUnreadable), "one of them is nothing");
    assert!(state.is_open(Panel::Compare) && state.measured.taken.len() == 3 && state.measured.asked.is_some());

    let table = compared(&state);
    assert_eq!(names(&table).len(), 5, "each once: {:?}", names(&table));
    assert_eq!((names(&table)[0], &names(&table)[2..]), ("these inputs", &["first", "second", "other-plan"][..]));
    assert!(names(&table)[1].starts_with("own model, amp_bf16, micro-batch 2 "), "{:?}", names(&table));
    let hows: Vec<&str> = table.rows.iter().map(|row| row.how.as_str()).collect();
    assert_eq!(hows, ["predicted", "predicted", "2 runs", "measured", "predicted"]);
    let [first, second] = [&table.rows[2], &table.rows[3]];
    assert_eq!((first.spread.as_str(), second.spread.as_str()), ("1.00 MiB", "—"));
    assert_eq!(second.predicted, format!("predicted {}", second.peak), "the walk is right to the byte");
    assert!(table.empirical.is_empty(), "the model is known");

    // A row's job is taken over, and undone; a row that is kept goes.
    let row = &table.rows[4];
    let taken = after(&state, [Action::TakeFound(row.plan.clone().unwrap(), row.name.clone())]);
    assert_eq!(shown(&taken), &vram_budget::view::example());
    assert_eq!(names(&compared(&taken)).len(), 4, "inputs that are kept are one row");
    let less = after(&state, [Action::Unkeep(0), Action::Unkeep(9)]);
    assert_eq!(less.kept.len(), 3);

    // What is pasted is a row before it is kept, and one after.
    let pasted = after(&kept, [Action::Paste(document("third", 0))]);
    assert_eq!(names(&compared(&pasted)), ["these inputs", "third"]);
    assert_eq!(names(&compared(&after(&pasted, [Action::Keep(Kept::Measured)]))), ["these inputs", "third"]);
    let forgotten = after(&pasted, [Action::Keep(Kept::Measured), Action::Forget]);
    assert_eq!(names(&compared(&forgotten)), ["these inputs", "third"]);

    // The worker does one thing at a time, and what comes for other rows is not wanted.
    let going = after(&state, [Errand::Search, Errand::Compare].map(|errand| Action::Run(Some(errand))));
    assert!(matches!(going.errands.compared, Run::Going { .. }) && going.errands.search == Run::None);
    let said = serde_json::to_string(&Found::Compared(Box::new(table.clone()))).unwrap();
    let found = || Action::Found(Box::new(serde_json::from_str(&said).unwrap()));
    assert!(matches!(&after(&going, [found()]).errands.compared, Run::Done { table: shown, .. } if **shown == table));
    assert_eq!(after(&going, [Action::Unkeep(0), found()]).errands.compared, Run::None);
    assert!(Comparing::read("nonsense").is_none());
}

/// Measurements of a model that is not known here: other batches of it are said to be empirical.
#[test]
fn a_model_that_is_not_known_is_empirical() {
    let known = serde_json::to_string(&recorded()).unwrap();
    let unknown = known.replace("\"model_type\":\"bert\"", "\"model_type\":\"nobody_knows\"");
    assert_ne!(known, unknown);
    let batch = |micro_batch: u64, id: &str| {
        let mut run: Measurement = serde_json::from_str(&unknown).unwrap();
        run.plan.as_mut().unwrap().recipe.micro_batch = micro_batch;
        run.id = Some(id.into());
        // As a step of so many sequences is predicted.
        let mut of = recorded().plan.unwrap();
        of.recipe.micro_batch = micro_batch;
        let prediction = predict(&of).unwrap();
        for reading in &mut run.readings {
            reading.figure = Figure::Bytes(prediction.0[&reading.name]);
        }
        run
    };
    let files = [batch(2, "two"), batch(8, "eight")]
        .map(|run| (format!("{}.json", run.id.clone().unwrap()), serde_json::to_string(&run).unwrap().into_bytes()));
    let state = after(&start(), [Action::Type(Field::MicroBatch, "4".into()), Action::Files(files.to_vec())]);
    let table = compared(&state);
    assert!(table.rows[1..].iter().all(|row| !row.problems.is_empty()), "{table:?}");
    assert_eq!(table.empirical.len(), 3, "{table:?}");
    assert!(table.empirical[0].starts_with("Empirical, from 2 measurements"), "{table:?}");
    assert!(table.empirical[2].starts_with("Micro-batch 4 of 512 tokens: "), "{table:?}");
}

//! Importers: what is read, what is asked, what is refused and in which words.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;
use vram_budget::measure::{
    Case, FormatId, ImportError, Imported, MAX_TEXT, Measurement, Reading, ReadingName, StepReading, Unit, Which,
    import, import_in,
};
use vram_budget::model::Family;

#[track_caller]
fn read(text: &str) -> Measurement {
    match import(text).unwrap() {
        Imported::Measurement { measurement, .. } => *measurement,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn asked(text: &str) -> Vec<Unit> {
    match import(text).unwrap() {
        Imported::WhichUnit { candidates, .. } => candidates,
        other => panic!("{other:?}"),
    }
}

fn name(text: &str) -> ReadingName {
    text.parse().unwrap()
}

const SCRIPT: &str = r#"{"base": 13476832256, "forward_delta": 4204765184, "backward_delta": 9272066048,
  "step_delta": 26953665536, "peak": 58381656064}"#;

#[test]
fn the_scripts_output_is_read_in_bytes() {
    let measurement = read(SCRIPT);
    assert_eq!(measurement.readings.len(), 5);
    assert_eq!(measurement.bytes(name("first.base")), Some(13_476_832_256));
    assert_eq!(measurement.bytes(name("first.peak")), Some(58_381_656_064));
}

#[test]
fn pythons_own_print_is_read_too() {
    assert_eq!(read(&SCRIPT.replace('"', "'")), read(SCRIPT));
}

#[test]
fn a_step_that_does_not_grow_is_a_steady_one() {
    let text = SCRIPT.replace("26953665536", "0");
    assert_eq!(read(&text).bytes(name("steady.peak")), Some(58_381_656_064));
    assert_eq!(read(&text).bytes(name("first.peak")), None);
}

#[test]
fn figures_that_are_no_bytes_are_asked_about_and_read_in_the_answer() {
    let gib = r#"{"base": 12.55, "forward_delta": 3.9, "backward_delta": 8.6, "step_delta": 25.1, "peak": 54.4}"#;
    assert_eq!(asked(gib)[0], Unit::GiB);
    let whole = r#"{"base": 12852, "forward_delta": 4010, "backward_delta": 8842, "step_delta": 25705, "peak": 55677}"#;
    assert_eq!(asked(whole), [Unit::MiB, Unit::MB]);
    let Imported::Measurement { measurement, format } = import_in(whole, Unit::MiB).unwrap() else { panic!() };
    assert_eq!(format, FormatId::Script);
    assert_eq!(measurement.bytes(name("first.base")), Some(12_852 << 20));
    let Imported::Measurement { measurement, .. } = import_in(gib, Unit::GB).unwrap() else { panic!() };
    assert_eq!(measurement.bytes(name("first.forward_delta")), Some(3_900_000_000));
}

const DOCUMENT: &str = r#"{
  "format": "vram-budget-measurement",
  "version": 1,
  "producer": {"name": "hand", "version": "1"},
  "environment": {"pytorch": "2.15.0+cu132"},
  "plan": {"version": 1, "model": {"preset": "llama-2-7b"}},
  "readings": [
    {"name": "steady.forward_peak", "tier": "allocated", "bytes": 58381656064},
    {"name": "steady.step_delta", "tier": "allocated", "scope": "process", "bytes": -512},
    {"name": "max_reserved", "tier": "reserved", "unavailable": "not recorded"}
  ]
}"#;

#[test]
fn the_document_is_read_and_written_back_unchanged() {
    let measurement = read(DOCUMENT);
    assert_eq!(measurement.bytes(name("steady.forward_peak")), Some(58_381_656_064));
    assert_eq!(measurement.bytes(name("max_reserved")), None, "unavailable is not zero");
    assert!(measurement.plan.is_some());
    let written = serde_json::to_string(&measurement).unwrap();
    assert_eq!(read(&written), measurement);
    assert_eq!(serde_json::to_string(&read(&written)).unwrap(), written);
}

#[test]
fn rejections_say_what_was_expected_and_where() {
    let cases = [
        ("empty", String::new()),
        ("garbage", "lorem ipsum".into()),
        ("other JSON", r#"{"peak": 3, "epoch": 1}"#.into()),
        ("array", "[1, 2]".into()),
        ("script, cut off", SCRIPT[..40].into()),
        ("script, a field missing", SCRIPT.replace("forward_delta", "forward")),
        ("script, a text", SCRIPT.replace("13476832256", "\"much\"")),
        ("script, negative base", SCRIPT.replace("13476832256", "-13476832256")),
        ("script, huge", SCRIPT.replace("58381656064", "1e300")),
        ("document, newer", DOCUMENT.replace("\"version\": 1,\n  \"producer\"", "\"version\": 4,\n  \"later\"")),
        (
            "document of version 0",
            DOCUMENT.replace("\"version\": 1,\n  \"producer\"", "\"version\": 0,\n  \"producer\""),
        ),
        (
            "document of version 1 with counts",
            DOCUMENT.replace("\"readings\"", "\"counts\": {\"num_ooms\": 1}, \"readings\""),
        ),
        ("document, cut off", DOCUMENT[..120].into()),
        ("document, unknown field", DOCUMENT.replace("environment", "enviroment")),
        ("document, unknown reading", DOCUMENT.replace("steady.forward_peak", "steady.forward")),
        ("document, two figures", DOCUMENT.replace("\"bytes\": -512", "\"bytes\": 1, \"unavailable\": \"no\"")),
        ("document, no figure", DOCUMENT.replace(", \"bytes\": -512", "")),
        ("document, negative peak", DOCUMENT.replace("58381656064", "-1")),
        ("document, fractional", DOCUMENT.replace("58381656064", "54.4")),
        ("document, misspelt plan", DOCUMENT.replace("\"model\"", "\"modell\"")),
    ];
    let mut told = String::new();
    for (what, text) in cases {
        let error = import(&text).expect_err(what);
        told += &format!("{what}: {error}\n");
        if let ImportError::Fields(issues) = &error {
            for issue in issues {
                let said = vram_budget::text::issue_line(vram_budget::text::Locale::En.text(), issue);
                told += &format!("    {said}\n");
            }
        }
    }
    insta::assert_snapshot!(told);
}

/// What the documentation shows is read as it stands.
#[test]
fn the_examples_of_the_documentation_are_read() {
    let text = include_str!("../docs/measurement.md");
    let examples: Vec<_> = text.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(examples.len(), 2);
    let document = read(examples[0]);
    assert_eq!(document.readings.len(), 5);
    assert!(document.plan.is_some());
    assert_eq!(read(examples[1]).bytes(name("first.peak")), Some(67_393_798_144));
    for name in ReadingName::of_runs() {
        let written = name.to_string();
        let last = written.rsplit('.').next().unwrap();
        assert!(text.contains(&format!("`{last}`")) || text.contains(&format!("`….{last}`")), "{written}");
    }
}

#[test]
fn a_text_beyond_the_limit_is_refused_before_it_is_looked_at() {
    let text = " ".repeat(MAX_TEXT + 1);
    let expected = ImportError::TooLarge { bytes: MAX_TEXT as u64 + 1, limit: MAX_TEXT as u64 };
    assert_eq!(import(&text), Err(expected));
}

#[test]
fn deep_nesting_is_an_error_and_no_crash() {
    let text = format!("{{\"base\":{}", "[".repeat(1 << 20));
    assert!(import(&text).is_err());
}

#[test]
fn every_reading_name_reads_back() {
    for name in ReadingName::all() {
        assert_eq!(name.to_string().parse::<ReadingName>(), Ok(name));
    }
    assert_eq!(name("steady.step_peak"), ReadingName::Step(Which::Steady, StepReading::StepPeak));
}

#[test]
fn every_reference_case_reads_and_keeps_its_figures() {
    let text = include_str!("data/training-steps/cases.jsonl");
    let mut modelled = 0;
    for line in text.lines() {
        let case = Case::read(line).unwrap();
        let raw: serde_json::Value = serde_json::from_str(line).unwrap();
        let lora = raw["case"]["recipe"].get("lora").is_some_and(|l| !l.is_null());
        let known = Family::ALL.iter().any(|f| f.model_type == case.family);
        // Adapters are modelled over some families only.
        assert!(case.plan.is_ok() == known || (lora && known), "{}", case.id);
        modelled += usize::from(case.plan.is_ok());
        assert_eq!(case.out_of_memory, raw["result"].get("oom").is_some(), "{}", case.id);
        if case.out_of_memory {
            assert_eq!(case.readings, []);
            continue;
        }
        let of = |text: &str| case.readings.iter().find(|r| r.name == name(text)).cloned();
        let bytes = |text: &str| match of(text) {
            Some(Reading { figure: vram_budget::measure::Figure::Bytes(bytes), .. }) => bytes,
            other => panic!("{}: {text}: {other:?}", case.id),
        };
        assert_eq!(bytes("max_reserved"), raw["result"]["max_reserved"].as_i64().unwrap());
        assert_eq!(bytes("steady.step_peak"), raw["result"]["steady"]["step_peak"].as_i64().unwrap());
        let first = &raw["result"]["first"];
        let sum = first["base"].as_i64().unwrap() + first["forward_delta"].as_i64().unwrap();
        assert_eq!(bytes("first.forward_end"), sum, "{}", case.id);
        // The overall peak is the highest of all peaks: a check of how the step's own is derived.
        let overall = bytes("first.peak").max(bytes("steady.peak"));
        assert_eq!(overall, bytes("max_allocated"), "{}", case.id);
    }
    assert!(modelled >= 300, "{modelled}");
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = import(&text);
        let _ = import_in(&text, Unit::GiB);
        let _ = Case::read(&text);
    }

    #[test]
    fn damaged_documents_never_panic(at in 0_usize..700, len in 0_usize..8, with in "[\\[\\]{}\",:0-9e.\\-a-z ]{0,6}") {
        for text in [SCRIPT, DOCUMENT] {
            let start = at.min(text.len());
            let end = (start + len).min(text.len());
            let damaged = format!("{}{with}{}", &text[..start], &text[end..]);
            if let Ok(Imported::Measurement { measurement, .. }) = import(&damaged) {
                // What is accepted can be written and read again.
                let written = serde_json::to_string(&measurement).unwrap();
                prop_assert_eq!(read(&written), *measurement);
            }
        }
    }

    #[test]
    fn script_figures_survive_in_every_unit(bytes in 0_u64..1 << 40, unit in 0_usize..5) {
        let unit = Unit::ALL[unit];
        let text = format!(
            r#"{{"base": {bytes}, "forward_delta": -1, "backward_delta": 0, "step_delta": 9999999, "peak": {bytes}}}"#
        );
        match import_in(&text, unit) {
            Ok(Imported::Measurement { measurement, .. }) => {
                prop_assert_eq!(measurement.bytes(name("first.base")), i64::try_from(bytes * unit.bytes()).ok());
            }
            Ok(other) => prop_assert!(false, "{other:?}"),
            Err(error) => {
                let over = u128::from(bytes.max(9_999_999)) * u128::from(unit.bytes()) > u128::from((1_u64 << 53) - 1);
                prop_assert!(over, "{error}");
            }
        }
    }
}

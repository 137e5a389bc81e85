//! The hand-derived vectors on every version that they were run on, and the random scripts.

use serde_json::Value;
use vram_budget::allocator::Config;
use vram_budget::allocator::trace::{Moment, Report, Trace, replay};
use vram_budget::plan::Version;
use vram_budget::units::Bytes;

use crate::data;

fn report(trace: &Trace, config: &Config) -> Value {
    serde_json::to_value(Report::new(trace, config, &trace.alloc_conf).unwrap()).unwrap()
}

#[test]
fn hand_derived_vectors_hold_on_every_version_they_were_run_on() {
    let text = data::text(&data::folder().join("vectors.json.gz"));
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 73);
    let mut runs = 0;
    for case in &cases {
        let trace = data::trace(case, &[]);
        let same = case["same_result_in"].as_array().unwrap().iter().map(|v| v.as_str().unwrap());
        let differs = case["differs_in"].as_object().unwrap();
        for version in same.chain(differs.keys().map(String::as_str)) {
            let mut expected = case["expected"].clone();
            for (field, value) in differs.get(version).and_then(Value::as_object).into_iter().flatten() {
                expected[field] = value.clone();
            }
            let tried = expected.as_object_mut().unwrap().remove("oom_tried_to_allocate");
            let config = data::recorded_config(&trace, version.parse::<Version>().unwrap());
            let found = report(&trace, &config);
            assert_eq!(data::older_names(&found["final"]), expected, "{} in {version}", case["id"]);
            if let Some(tried) = tried {
                let found = Bytes(found["first_oom"]["tried"].as_u64().unwrap());
                assert_eq!(data::size(found), tried, "{} in {version}", case["id"]);
            }
            runs += 1;
        }
    }
    assert_eq!(runs, 631);
}

#[test]
fn random_scripts_agree_at_every_checkpoint() {
    let text = data::text(&data::folder().join("vectors_fuzz.jsonl.gz"));
    let (mut scripts, mut checkpoints, mut ooms) = (0, 0, 0);
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        // `after_op` counts operations; `after_event` is the index of the last one.
        let expected = case["checkpoints"].as_array().unwrap();
        let after: Vec<u64> = expected.iter().map(|c| c["after_op"].as_u64().unwrap() - 1).collect();
        let trace = data::trace(&case, &after);
        let config = data::recorded_config(&trace, case["pytorch"].as_str().unwrap().parse().unwrap());
        let found = report(&trace, &config);
        for (found, expected) in found["checkpoints"].as_array().unwrap().iter().zip(expected) {
            let mut expected = expected.clone();
            expected.as_object_mut().unwrap().remove("after_op");
            assert_eq!(data::older_names(found), expected, "seed {} after {}", case["seed"], found["after_event"]);
            checkpoints += 1;
        }
        assert_eq!(data::older_names(&found["final"])["segments"], case["final_segments"], "seed {}", case["seed"]);
        replay(&trace, &config, |moment, _| ooms += usize::from(matches!(moment, Moment::OutOfMemory(..)))).unwrap();
        scripts += 1;
    }
    assert_eq!((scripts, checkpoints), (100, 2309));
    assert!(ooms > 100, "the scripts reach out of memory: {ooms}");
}

//! The recorded traces of PyTorch 2.15, at every checkpoint, with their peaks and error texts.

use std::collections::BTreeMap;

use serde_json::Value;
use vram_budget::allocator::trace::{Moment, Report, Trace, replay};
use vram_budget::allocator::{Allocator, OutOfMemory};
use vram_budget::units::Bytes;

use crate::data::{self, size};

#[test]
fn recorded_traces_are_repeated_to_the_byte() {
    let mut files: Vec<_> =
        std::fs::read_dir(data::folder().join("traces")).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 164);
    let (mut checkpoints, mut ooms) = (0, 0);
    for file in files {
        let text = data::text(&file);
        let recorded: Value = serde_json::from_str(&text).unwrap();
        let trace = Trace::from_json(&text).unwrap();
        let config = data::recorded_config(&trace, trace.pytorch.unwrap());
        let name = &trace.name;

        let report = Report::new(&trace, &config, &trace.alloc_conf).unwrap();
        let found = serde_json::to_value(report).unwrap();
        let expected = recorded["checkpoints"].as_array().unwrap();
        assert_eq!(trace.checkpoints.len(), expected.len());
        for (found, expected) in found["checkpoints"].as_array().unwrap().iter().zip(expected) {
            let mut found = found.clone();
            found.as_object_mut().unwrap().remove("num_segments");
            assert_eq!(in_one_order(found), in_one_order(expected.clone()), "{name}");
            checkpoints += 1;
        }
        assert_eq!(found["peaks"], recorded["peaks"], "{name}");

        ooms += error_texts(&trace, &recorded, |visit| {
            replay(&trace, &config, visit).unwrap();
        });
    }
    assert_eq!((checkpoints, ooms), (12_376, 362));
}

/// Recordings list segments by the driver's addresses, which it uses again; here they are listed by age.
fn in_one_order(mut checkpoint: Value) -> Value {
    if let Some(segments) = checkpoint["segments"].as_array_mut() {
        segments.sort_by_key(Value::to_string);
    }
    checkpoint
}

/// Every recorded failure happens here too, with the figures of its text, and no other does.
fn error_texts(trace: &Trace, recorded: &Value, run: impl FnOnce(&mut dyn FnMut(Moment, &Allocator))) -> usize {
    let events = recorded["events"].as_array().unwrap().iter().enumerate();
    let expected: BTreeMap<usize, &str> =
        events.filter_map(|(i, e)| Some((i, e["oom"]["message"].as_str()?))).collect();
    let mut found = BTreeMap::new();
    run(&mut |moment, _| {
        if let Moment::OutOfMemory(event, oom) = moment {
            found.insert(event, sentence(&oom));
        }
    });
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{}", trace.name);
    for (event, text) in &expected {
        let found = &found[event];
        assert!(text.starts_with(found.as_str()), "{} event {event}:\n{found}\n{text}", trace.name);
    }
    expected.len()
}

/// The error as PyTorch 2.15 words it, up to the advice.
fn sentence(oom: &OutOfMemory) -> String {
    let (total, free) = (oom.total.unwrap(), oom.free.unwrap());
    let allowed = oom.allowed.map_or(String::new(), |a| format!("{} allowed; ", size(a)));
    let private = oom.free_in_private_pools;
    assert_eq!(private, Bytes::ZERO, "no recorded failure has private pools");
    format!(
        "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of {} of which {} is free. Including \
         non-PyTorch memory, this process has {} memory in use. {allowed}Of the allocated memory {} is allocated by \
         PyTorch, and {} is reserved by PyTorch but unallocated.",
        size(oom.tried),
        size(total),
        size(free),
        size(total - free),
        size(oom.allocated),
        size(oom.reserved_unallocated()),
    )
}

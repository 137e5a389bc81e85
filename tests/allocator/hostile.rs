//! Traces that mean harm: an error or a replay, never a crash, and never more memory than the text is worth.

use proptest::prelude::*;
use serde_json::{Value, json};
use vram_budget::allocator::trace::{Report, Trace, replay};
use vram_budget::allocator::{AllocConf, Config};
use vram_budget::plan::Version;

/// What the command does with a text: reads it, and replays it under what it says.
fn run(text: &str) {
    let Ok(trace) = Trace::from_json(text) else { return };
    for version in [trace.pytorch.unwrap_or(Version(2, 15)), Version(2, 1), Version(2, 12)] {
        let Ok(alloc_conf) = AllocConf::parse(&trace.alloc_conf, version) else { continue };
        let config = Config { total_bytes: trace.total, alloc_conf, ..Config::new(version) };
        if let Ok(report) = Report::new(&trace, &config, "") {
            serde_json::to_string(&report).unwrap();
        }
    }
}

/// Any JSON value that someone might put into a field.
fn value() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![
        Just(json!(0)),
        Just(json!(u64::MAX)),
        Just(json!(i64::MIN)),
        Just(json!(1_u64 << 63)),
        Just(json!(1_u64 << 60)),
        Just(json!((1_u64 << 60) + 1)),
        Just(json!(1e300)),
        Just(json!(0.5)),
        (0_u64..200 << 20).prop_map(|n| json!(n)),
        (0_u64..4).prop_map(|n| json!(n)),
    ];
    let texts = prop_oneof![Just(json!("a")), Just(json!("b")), Just(json!("")), ".{0,8}".prop_map(|s| json!(s))];
    prop_oneof![
        4 => numbers,
        3 => texts,
        1 => any::<bool>().prop_map(|b| json!(b)),
        1 => Just(Value::Null),
        1 => Just(json!([[[]], {"a": 1}])),
    ]
}

/// An event whose fields are mostly right.
fn event() -> impl Strategy<Value = Value> {
    let op = prop::sample::select(vec![
        "alloc",
        "alloc",
        "alloc",
        "free",
        "free",
        "record_stream",
        "empty_cache",
        "events_pending",
        "set_fraction",
        "begin_pool",
        "end_pool",
        "release_pool",
        "malloc",
    ]);
    let id = prop_oneof![9 => (0_u32..6).prop_map(|n| json!(n.to_string())), 1 => value()];
    let bytes =
        prop_oneof![9 => (0_u64..100 << 20).prop_map(|n| json!(n)), 2 => Just(json!(1_u64 << 60)), 1 => value()];
    let stream = prop_oneof![9 => (0..3).prop_map(|n| json!(n)), 1 => value()];
    let setting = prop_oneof![4 => Just(json!(0.5)), 4 => any::<bool>().prop_map(|b| json!(b)), 1 => value()];
    let pool = prop_oneof![9 => (0..3).prop_map(|n| json!(n)), 1 => value()];
    (op, id, bytes, stream, setting, pool).prop_map(|(op, id, bytes, stream, setting, pool)| {
        json!({"op": op, "id": id, "bytes": bytes, "stream": stream, "value": setting, "pool": pool})
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        run(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn nearly_right_traces_are_replayed_or_refused(
        events in proptest::collection::vec(event(), 0..60),
        total in prop_oneof![(0_u64..300).prop_map(|n| json!(n)), Just(Value::Null), value()],
        conf in prop::sample::select(vec![
            "", "expandable_segments:True", "max_split_size_mb:25,garbage_collection_threshold:0.1",
            "expandable_segments:True,max_split_size_mb:25,per_process_memory_fraction:0.7",
            "large_segment_size_mb:1048576,expandable_segments:True", "roundup_power2_divisions:2147483648",
        ]),
        after in proptest::collection::vec(0_usize..60, 0..4),
    ) {
        let checkpoints: Vec<_> = after.iter().map(|n| json!({"after_event": n, "segments": []})).collect();
        let trace = json!({"events": events, "total_mb": total, "alloc_conf": conf, "checkpoints": checkpoints});
        run(&trace.to_string());
        // Without the first wrong event, and so on: most of the list gets replayed.
        let mut events = events;
        loop {
            let text = json!({"events": events, "total_mb": 1024, "alloc_conf": conf}).to_string();
            let index = match Trace::from_json(&text).map(|t| replay(&t, &Config::new(Version(2, 15)), |_, _| {})) {
                Err(error) | Ok(Err(error)) => error.event().expect("an event is to blame"),
                Ok(Ok(_)) => break run(&text),
            };
            events.remove(index);
        }
    }
}

#[test]
fn requests_of_an_exbibyte_do_not_overflow() {
    let events: Vec<_> = (0..40).map(|n| json!({"op": "alloc", "id": n.to_string(), "bytes": 1_u64 << 60})).collect();
    for conf in ["", "expandable_segments:True", "roundup_power2_divisions:2", "max_split_size_mb:99999999999999999999"]
    {
        for total in [json!(null), json!(8_589_934_591_u64), json!(0)] {
            run(&json!({"events": events, "total_mb": total, "alloc_conf": conf}).to_string());
        }
    }
}

#[test]
fn deep_nesting_is_refused() {
    let text = format!(r#"{{"events":[{{"op":{}"#, "[".repeat(100_000));
    assert!(Trace::from_json(&text).is_err());
    let text = format!(r#"{{"other":{}"#, "[".repeat(100_000));
    assert!(Trace::from_json(&text).is_err());
}

#[test]
fn listings_of_segments_are_bounded() {
    // 4,000 live blocks, listed at 4,000 checkpoints: 8 million listed blocks is the limit, the rest is counted.
    let events: Vec<_> =
        (0..4000).map(|n| json!({"op": "alloc", "id": n.to_string(), "bytes": 512, "stream": 0})).collect();
    let checkpoints: Vec<_> = (0..4000).map(|_| json!({"after_event": 3999, "segments": []})).collect();
    let trace = Trace::from_json(&json!({"events": events, "checkpoints": checkpoints}).to_string()).unwrap();
    let report = Report::new(&trace, &Config::new(Version(2, 15)), "").unwrap();
    let listed = report.checkpoints.iter().filter(|c| c.segments.is_some()).count();
    assert_eq!(listed, 8_000_000 / 4001, "4,000 blocks and the free rest of the last segment");
    assert!(report.checkpoints.iter().all(|c| c.num_segments == 1));
}

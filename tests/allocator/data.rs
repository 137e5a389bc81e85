//! Reads the recorded data, and brings its older spellings to the traces' format.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vram_budget::allocator::trace::Trace;
use vram_budget::allocator::{AllocConf, Config};
use vram_budget::plan::Version;
use vram_budget::units::Bytes;

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/allocator")
}

/// The text of a gzipped file.
pub(crate) fn text(path: &Path) -> String {
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

/// What the trace was recorded under.
pub(crate) fn recorded_config(trace: &Trace, version: Version) -> Config {
    Config {
        total_bytes: trace.total,
        alloc_conf: AllocConf::parse(&trace.alloc_conf, version).unwrap(),
        ..Config::new(version)
    }
}

/// A vector's or random script's operation as a trace event.
pub(crate) fn event(op: &Value) -> Value {
    let Some(list) = op.as_array() else { return op.clone() };
    let op = list[0].as_str().unwrap();
    match op {
        "alloc" => json!({"op": op, "id": list[1], "bytes": list[2], "stream": list[3]}),
        "free" => json!({"op": op, "id": list[1]}),
        "record_stream" => json!({"op": op, "id": list[1], "stream": list[2]}),
        "empty_cache" => json!({"op": op}),
        "events_complete" | "set_memory_fraction" => json!({"op": op, "value": list[1]}),
        "begin_pool" | "end_pool" | "release_pool" => json!({"op": op, "pool": list[1]}),
        other => panic!("{other} is not an operation"),
    }
}

/// A case of the older spelling as a trace with a checkpoint after each of `after`.
pub(crate) fn trace(case: &Value, after: &[u64]) -> Trace {
    let total = case["device_total_bytes"].as_u64().unwrap();
    assert_eq!(total % (1 << 20), 0);
    let trace = json!({
        "alloc_conf": case["alloc_conf"],
        "total_mb": total >> 20,
        "events": case["ops"].as_array().unwrap().iter().map(event).collect::<Vec<_>>(),
        "checkpoints": after.iter().map(|n| json!({"after_event": n})).collect::<Vec<_>>(),
    });
    Trace::from_json(&trace.to_string()).unwrap()
}

/// Our figures under the older names, with segments as they were written.
pub(crate) fn older_names(figures: &Value) -> Value {
    let mut old = json!({
        "allocated_bytes": figures["allocated"],
        "requested_bytes": figures["requested"],
        "active_bytes": figures["active"],
        "reserved_bytes": figures["reserved"],
        "inactive_split_bytes": figures["inactive_split"],
        "num_alloc_retries": figures["retries"],
        "num_ooms": figures["ooms"],
    });
    if let Some(segments) = figures["segments"].as_array() {
        old["segments"] = segments.iter().map(older_segment).collect();
    }
    old
}

fn older_segment(segment: &Value) -> Value {
    let blocks = segment[2].as_array().unwrap().iter().map(|b| match b[1].as_str().unwrap() {
        "A" => json!(["A", b[0], b[2]]),
        state => json!([state, b[0]]),
    });
    json!({
        "pool_kind": segment[3]["pool"],
        "stream": segment[3]["stream"],
        "expandable": segment[1],
        "private_pool": segment[3]["private_pool"],
        "blocks": blocks.collect::<Vec<_>>(),
    })
}

/// A size as PyTorch prints it.
pub(crate) fn size(bytes: Bytes) -> String {
    match bytes.get() {
        n if n <= 1 << 10 => format!("{n} bytes"),
        n if n <= 1 << 20 => format!("{:.2} KiB", bytes.as_f64() / 1024.0),
        n if n <= 1 << 30 => format!("{:.2} MiB", bytes.as_mib()),
        _ => format!("{:.2} GiB", bytes.as_gib()),
    }
}

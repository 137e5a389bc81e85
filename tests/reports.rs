//! Texts that people paste: every sample of each format, messages from public reports with their score, texts that are
//! no measurement, and documents that survive being written and read.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;

use serde_json::Value;
use vram_budget::measure::{Imported, Measurement, Options, Series, understand};

const REPORTS: [(&str, &str); 6] = [
    ("pytorch_oom", include_str!("data/reports/pytorch_oom.jsonl")),
    ("other_oom", include_str!("data/reports/other_oom.jsonl")),
    ("memory_lines", include_str!("data/reports/memory_lines.jsonl")),
    ("smi", include_str!("data/reports/smi.jsonl")),
    ("allocator_stats", include_str!("data/reports/allocator_stats.jsonl")),
    ("series", include_str!("data/reports/series.jsonl")),
];

fn rows(text: &str) -> impl Iterator<Item = Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn measurements(bytes: &[u8], options: &Options) -> Result<Vec<Measurement>, String> {
    let found = understand(bytes, options).map_err(|error| error.to_string())?;
    Ok(found
        .into_iter()
        .map(|one| match one {
            Imported::Measurement { measurement, .. } => *measurement,
            other => panic!("{other:?}"),
        })
        .collect())
}

fn read(text: &str) -> Result<Vec<Measurement>, String> {
    measurements(text.as_bytes(), &Options::default())
}

/// What a measurement says, in the words of the expectations.
fn said(measurement: &Measurement) -> BTreeMap<String, Value> {
    let source = measurement.source.as_ref().unwrap();
    let mut said = BTreeMap::new();
    let mut put = |key: &str, value: Value| {
        said.insert(key.to_owned(), value);
    };
    put("format", serde_json::to_value(source.format).unwrap());
    put("rank", source.rank.into());
    put("device", source.device.into());
    put("label", source.label.clone().into());
    let pytorch = |version: &Option<String>| version.clone().unwrap_or_default();
    put("pytorch", serde_json::json!([pytorch(&source.pytorch_from), pytorch(&source.pytorch_to)]));
    put("backend", serde_json::to_value(measurement.failure.as_ref().and_then(|f| f.backend)).unwrap());
    let environment = measurement.environment.clone().unwrap_or_default();
    put("driver", environment.driver.into());
    put("cuda", environment.cuda.into());
    put("counts", serde_json::to_value(&measurement.counts).unwrap());
    said
}

/// What of `expected` is not met.
fn differences(expected: &Value, measurement: &Measurement) -> Vec<String> {
    let mut wrong = Vec::new();
    let said = said(measurement);
    for (key, value) in expected.as_object().unwrap() {
        if let Some(found) = said.get(key).filter(|found| *found != value) {
            wrong.push(format!("{key}: expected {value}, found {found}"));
        }
    }
    let near = |expected: &Value, found: i64| {
        let (bytes, within) = (expected[0].as_i64().unwrap(), expected[1].as_i64().unwrap());
        (found - bytes).abs() <= within
    };
    let empty = serde_json::Map::new();
    let readings = expected.get("readings").and_then(Value::as_object).unwrap_or(&empty);
    for (name, value) in readings {
        match measurement.bytes(name.parse().unwrap()) {
            Some(found) if near(value, found) => {}
            found => wrong.push(format!("{name}: expected {value}, found {found:?}")),
        }
    }
    for reading in &measurement.readings {
        if reading.bytes().is_some() && !readings.contains_key(&reading.name.to_string()) {
            wrong.push(format!("{}: nothing expected, found {:?}", reading.name, reading.bytes()));
        }
        // The printed figure stands for the expected one.
        if let (Some([least, most]), Some(value)) = (reading.range, readings.get(&reading.name.to_string())) {
            let bytes = value[0].as_i64().unwrap();
            if !(least..=most).contains(&bytes) {
                wrong.push(format!("{}: {bytes} is not within {least} to {most}", reading.name));
            }
        }
    }
    let list = |key: &str| expected.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let processes = list("processes");
    if processes.len() != measurement.processes.len() {
        wrong.push(format!("{} processes, found {}", processes.len(), measurement.processes.len()));
    }
    for (value, process) in processes.iter().zip(&measurement.processes) {
        let bytes = process.bytes.map(|bytes| i64::try_from(bytes).unwrap());
        let right = match (value[1].as_i64(), bytes) {
            (Some(expected), Some(found)) => (found - expected).abs() <= value[2].as_i64().unwrap(),
            (expected, found) => expected == found,
        };
        if !right || value[0].as_u64() != process.pid {
            wrong.push(format!("process: expected {value}, found {process:?}"));
        }
    }
    let gpus = list("gpus");
    if gpus.len() != measurement.gpus.len() {
        wrong.push(format!("{} GPUs, found {}", gpus.len(), measurement.gpus.len()));
    }
    for (value, gpu) in gpus.iter().zip(&measurement.gpus) {
        let found = serde_json::json!({
            "index": gpu.index, "name": gpu.name, "total": gpu.total_bytes, "used": gpu.used_bytes,
            "free": gpu.free_bytes, "reserved": gpu.reserved_bytes, "mig": gpu.mig,
        });
        for key in ["index", "name", "total", "used", "free", "reserved", "mig"] {
            let (expected, found) = (value.get(key).unwrap_or(&Value::Null), &found[key]);
            if expected != found {
                wrong.push(format!("GPU {}: {key}: expected {expected}, found {found}", gpu.index));
            }
        }
    }
    let series = list("series");
    if series.len() != measurement.series.len() {
        wrong.push(format!("{} series, found {}", series.len(), measurement.series.len()));
    }
    for (value, Series { name, tier, points, .. }) in series.iter().zip(&measurement.series) {
        let found = serde_json::json!([name, tier, points]);
        if *value != found {
            wrong.push(format!("series: expected {value}, found {found}"));
        }
    }
    let buffers = list("buffers");
    for (value, buffer) in buffers.iter().zip(&measurement.buffers) {
        let bytes = i64::try_from(buffer.bytes).unwrap();
        if value[0] != buffer.shape || !near(&serde_json::json!([value[1], value[2]]), bytes) {
            wrong.push(format!("buffer: expected {value}, found {buffer:?}"));
        }
    }
    wrong
}

/// What is wrong with what is read of a report.
fn judge(report: &Value) -> Vec<String> {
    let expected = report["expected"].as_array().unwrap();
    match read(report["text"].as_str().unwrap()) {
        Err(error) => vec![error],
        Ok(found) if found.len() != expected.len() => vec![format!(
            "{} measurements, found {}: {}",
            expected.len(),
            found.len(),
            serde_json::to_string(&found).unwrap()
        )],
        Ok(found) => expected.iter().zip(&found).flat_map(|(expected, found)| differences(expected, found)).collect(),
    }
}

#[test]
fn public_reports_are_read_with_all_figures_right() {
    let (mut right, mut all) = (0, 0);
    let mut score = String::new();
    for (file, text) in REPORTS {
        let (mut of_file, mut count) = (0, 0);
        for report in rows(text) {
            count += 1;
            let wrong = judge(&report);
            of_file += usize::from(wrong.is_empty());
            if !wrong.is_empty() {
                println!("{file}: {}:\n    {}", report["id"].as_str().unwrap(), wrong.join("\n    "));
            }
        }
        score += &format!("{file:<16} {of_file:>3} of {count}\n");
        (right, all) = (right + of_file, all + count);
    }
    score += &format!("{:<16} {right:>3} of {all}\n", "all");
    println!("{score}");
    assert!(all >= 100 && right * 100 >= all * 95, "\n{score}");
    insta::assert_snapshot!("score", score);
}

#[test]
fn texts_that_are_no_measurement_are_refused() {
    for row in rows(include_str!("data/reports/refused.jsonl")) {
        let found = read(row["text"].as_str().unwrap());
        assert!(found.is_err(), "{}: {}", row["id"], serde_json::to_string(&found.unwrap()).unwrap());
    }
}

/// The samples' words for readings.
const WORDS: [(&str, &str); 25] = [
    ("tried", "tried"),
    ("total", "total"),
    ("free", "free"),
    ("allowed", "allowed"),
    ("allocated", "allocated"),
    ("allocated_peak", "max_allocated"),
    ("max_allocated", "max_allocated"),
    ("cached_unallocated", "unallocated"),
    ("reserved_unallocated", "unallocated"),
    ("private_pool_free", "private_pools"),
    ("reserved", "reserved"),
    ("reserved_peak", "max_reserved"),
    ("max_reserved", "max_reserved"),
    ("active", "active"),
    ("requested", "requested"),
    ("inactive_split", "inactive_split"),
    ("other_allocations", "other"),
    ("host_used", "host_used"),
    ("parameter", "xla.parameter"),
    ("constant", "xla.constant"),
    ("maybe_live_out", "xla.live_out"),
    ("preallocated_temp", "xla.temp"),
    ("total_allocation", "xla.total"),
    ("total_fragmentation", "xla.fragmentation"),
    ("used", "used"),
];

#[track_caller]
fn within(what: &str, expected: &Value, found: Option<i64>) {
    let (bytes, tolerance) = (expected["bytes"].as_i64().unwrap(), expected["tolerance_bytes"].as_i64().unwrap());
    assert!(
        found.is_some_and(|found| (found - bytes).abs() <= tolerance),
        "{what}: expected {expected}, found {found:?}"
    );
}

fn same(what: &str, expected: &Value, found: &Measurement) -> usize {
    let mut checked = 0;
    for (word, name) in WORDS {
        if let Some(value) = expected.get(word).filter(|value| value.is_object()) {
            within(&format!("{what}: {word}"), value, found.bytes(name.parse().unwrap()));
            checked += 1;
        }
    }
    let source = found.source.as_ref().unwrap();
    if let Some(device) = expected.get("device") {
        assert_eq!(source.device.map(u64::from), device.as_u64().filter(|_| !what.contains("mps")), "{what}");
    }
    if let Some(rank) = expected.get("rank") {
        assert_eq!(source.rank.map(u64::from), rank.as_u64(), "{what}");
    }
    if let Some(label) = expected.get("label") {
        assert_eq!(source.label.as_deref(), label.as_str(), "{what}");
    }
    assert_eq!(source.cut, expected.get("truncated").is_some(), "{what}");
    let environment = found.environment.clone().unwrap_or_default();
    for (key, version) in [("driver", environment.driver), ("cuda", environment.cuda)] {
        if let Some(expected) = expected.get(key) {
            assert_eq!(version.as_deref(), expected.as_str(), "{what}");
        }
    }
    for (name, row) in expected.get("rows").and_then(Value::as_object).into_iter().flatten() {
        checked += rows_of_summary(what, name, row, found);
    }
    let gpus = expected.get("gpus").and_then(Value::as_array);
    for (value, gpu) in gpus.into_iter().flatten().zip(&found.gpus) {
        assert_eq!(value["index"].as_u64(), Some(u64::from(gpu.index)), "{what}");
        if let Some(name) = value.get("name") {
            assert_eq!(name.as_str(), gpu.name.as_deref(), "{what}");
        }
        let fields = [
            ("total", gpu.total_bytes),
            ("used", gpu.used_bytes),
            ("free", gpu.free_bytes),
            ("reserved", gpu.reserved_bytes),
        ];
        for (key, bytes) in fields {
            match value.get(key) {
                Some(value) => {
                    within(&format!("{what}: {key}"), value, bytes.map(|bytes| i64::try_from(bytes.get()).unwrap()));
                    checked += 1;
                }
                None => assert_eq!(bytes, None, "{what}: {key}"),
            }
        }
    }
    assert_eq!(gpus.map_or(0, Vec::len), found.gpus.len(), "{what}");
    let processes = expected.get("processes").and_then(Value::as_array);
    assert_eq!(processes.map_or(0, Vec::len), found.processes.len(), "{what}");
    for (value, process) in processes.into_iter().flatten().zip(&found.processes) {
        assert_eq!(value["pid"].as_u64(), process.pid, "{what}");
        within(what, &value["used"], process.bytes.map(|bytes| i64::try_from(bytes).unwrap()));
        checked += 1;
        if let Some(own) = value.get("is_self") {
            assert_eq!(own.as_bool(), Some(process.own), "{what}");
        }
        if let Some(name) = value.get("name") {
            assert_eq!(name.as_str(), process.name.as_deref(), "{what}");
        }
        if let Some(gpu) = value.get("gpu") {
            assert_eq!(gpu.as_u64(), process.gpu.map(u64::from), "{what}");
        }
    }
    for (key, name) in
        [("num_ooms", "num_ooms"), ("num_alloc_retries", "num_alloc_retries"), ("segments", "segment.all.current")]
    {
        if let Some(value) = expected.get(key) {
            assert_eq!(value.as_i64(), found.counts.get(name).copied(), "{what}: {key}");
            checked += 1;
        }
    }
    for (value, buffer) in expected.get("buffers").and_then(Value::as_array).into_iter().flatten().zip(&found.buffers) {
        within(what, &value["size"], Some(i64::try_from(buffer.bytes).unwrap()));
        assert_eq!(value["shape"].as_str(), Some(&*buffer.shape));
        checked += 1;
    }
    if let Some(version) =
        expected.get("version_range").filter(|v| v[0].as_str().is_some_and(|v| v.starts_with(['1', '2'])))
    {
        let (from, to) = (version[0].as_str().unwrap().trim_end_matches('?'), version[1].as_str().unwrap());
        if source.format != vram_budget::measure::FormatId::NcclOom
            && found.failure.as_ref().is_some_and(|f| f.what.is_none())
        {
            assert_eq!(source.pytorch_from.as_deref(), Some(from), "{what}");
            assert_eq!(source.pytorch_to.as_deref().unwrap_or(""), to, "{what}");
        }
    }
    if expected.get("expandable_segments_on").is_some() {
        assert_eq!(found.failure.as_ref().unwrap().expandable_segments, Some(true), "{what}");
        assert_eq!(found.bytes("refused".parse().unwrap()), expected["warnings"][0]["bytes"]["bytes"].as_i64());
    }
    checked
}

/// The cells of a row of `memory_summary`: bytes from which to which, or counts.
fn rows_of_summary(what: &str, name: &str, row: &Value, found: &Measurement) -> usize {
    let groups = [
        ("Allocated memory", "allocated_bytes"),
        ("Active memory", "active_bytes"),
        ("Requested memory", "requested_bytes"),
        ("GPU reserved memory", "reserved_bytes"),
        ("Non-releasable memory", "inactive_split_bytes"),
        ("Allocations", "allocation"),
        ("Active allocs", "active"),
        ("GPU reserved segments", "segment"),
        ("Non-releasable allocs", "inactive_split"),
        ("Oversize allocations", "oversize_allocations"),
        ("Oversize GPU segments", "oversize_segments"),
    ];
    let group = groups.iter().find(|(row, _)| *row == name).unwrap().1;
    let mut checked = 0;
    for (pool, metrics) in row.as_object().unwrap() {
        for (metric, cell) in metrics.as_object().unwrap() {
            let key = format!("{group}.{pool}.{metric}");
            checked += 1;
            if let Some(count) = cell.get("count") {
                let key = if group.starts_with("oversize") { format!("{group}.{metric}") } else { key };
                let found = found.counts.get(&key).copied().unwrap_or_else(|| panic!("{what}: {key}"));
                let off = (found - count.as_i64().unwrap()).abs();
                assert!(off <= cell["tolerance"].as_i64().unwrap(), "{what}: {key}: {cell}, found {found}");
                continue;
            }
            let name = vram_budget::measure::ReadingName::of_stat(&key).unwrap();
            let reading = found.readings.iter().find(|reading| reading.name == name).unwrap();
            let bytes = reading.bytes().unwrap();
            let [least, most] = reading.range.unwrap_or([bytes, bytes]);
            assert_eq!(Some(least), cell["bytes_at_least"].as_i64(), "{what}: {key}");
            assert_eq!(Some(most + 1), cell["bytes_below"].as_i64(), "{what}: {key}");
        }
    }
    checked
}

/// Every file of `data/formats` that has expectations, and the bytes of its text.
fn samples() -> Vec<(String, Vec<u8>, Value)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/formats");
    let mut samples: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.to_string_lossy().ends_with(".expected.json") && path.extension().unwrap() != "md")
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let expected = path.with_file_name(format!("{name}.expected.json"));
            let expected = serde_json::from_str(&std::fs::read_to_string(expected).unwrap()).unwrap();
            (name, std::fs::read(path).unwrap(), expected)
        })
        .collect();
    samples.sort_by(|a, b| a.0.cmp(&b.0));
    samples
}

/// How a sample is read: the one that has no header needs the query's fields.
fn options(name: &str) -> Options {
    let columns = "index,memory.total,memory.used,utilization.gpu,fan.speed";
    Options { columns: name.contains("nounits").then(|| columns.to_owned()), ..Options::default() }
}

#[test]
fn every_sample_is_read_within_its_tolerance() {
    let (mut read, mut checked, mut refused) = (0, 0, 0);
    for (name, bytes, expected) in samples() {
        let found = measurements(&bytes, &options(&name));
        if name.starts_with("snap") {
            // Recognised by what they are; read elsewhere.
            let error = found.unwrap_err();
            assert!(error.contains("snapshot"), "{name}: {error}");
            refused += 1;
            continue;
        }
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        checked += same(&name, &expected, &found[0]);
        read += 1;
    }
    println!("{read} samples read, {checked} figures right; {refused} snapshots named");
    assert_eq!((read, refused), (38, 6));
    assert!(checked >= 373, "{checked}");
}

/// The parse of every sample, and what is said of it and of every report.
#[test]
fn what_is_understood_and_said() {
    use vram_budget::measure::explain::{causes, facts};
    let words = vram_budget::text::Locale::En.report();
    let mut parsed = String::new();
    let mut said = String::new();
    let mut say = |id: &str, found: &[Measurement]| {
        said += &format!("{id}\n");
        for measurement in found {
            said += &format!("  {}\n", words.read_back(measurement));
            let causes = causes(measurement);
            for cause in &causes {
                said += &format!("    {}\n", words.cause(cause));
            }
            if let Some(cause) = causes.first() {
                said += &format!("    First: {}\n", words.advice(cause));
            }
            for fact in facts(measurement) {
                said += &format!("    {}\n", words.fact(&fact));
            }
        }
    };
    for (name, bytes, _) in samples() {
        let Ok(found) = measurements(&bytes, &options(&name)) else { continue };
        for measurement in &found {
            parsed += &format!("{name}: {}\n", serde_json::to_string(measurement).unwrap());
        }
        say(&name, &found);
    }
    for (_, text) in REPORTS {
        for report in rows(text) {
            say(report["id"].as_str().unwrap(), &read(report["text"].as_str().unwrap()).unwrap_or_default());
        }
    }
    insta::assert_snapshot!("parsed", parsed);
    insta::assert_snapshot!("said", said);
}

#[test]
fn older_documents_become_new_ones_and_lose_nothing() {
    let [one, two] =
        [include_str!("data/measurements/version-1.json"), include_str!("data/measurements/version-2.json")];
    older(one);
    older(two);
    let early = two.replacen("\"version\": 2", "\"version\": 2, \"run\": { \"steps\": 1 }", 1);
    assert!(read(&early).unwrap_err().to_string().contains("version 2 has no `run`"));
}

#[track_caller]
fn older(old: &str) {
    let found = read(old).unwrap();
    assert_eq!((found.len(), found[0].version), (1, 3));
    let mut written = serde_json::to_value(&found[0]).unwrap();
    let mut expected: Value = serde_json::from_str(old).unwrap();
    // Defaults are written out; nothing else differs.
    for value in [&mut written, &mut expected] {
        value.as_object_mut().unwrap().remove("plan");
        value["version"] = 0.into();
        for reading in value["readings"].as_array_mut().unwrap() {
            reading.as_object_mut().unwrap().entry("scope").or_insert("process".into());
        }
    }
    assert_eq!(written, expected);
}

/// A log as long as a day of training: each rank's last message is found, whatever came before.
#[test]
fn the_last_message_of_each_rank_is_found_in_200_000_lines() {
    let mut log = String::new();
    for line in 0..200_000_u32 {
        let rank = line % 8;
        log += &format!("[rank{rank}]: step {line} loss 2.31 grad_norm 0.8 lr 0.0001\n");
        if line % 40_000 < 8 || line >= 199_992 {
            let (tried, free) = (2 * (line % 1000 + 10), line % 500);
            log += &format!(
                "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}.00 MiB. GPU {rank} has a \
                 total capacity of 79.10 GiB of which {free}.00 MiB is free. Including non-PyTorch memory, this process \
                 has 78.00 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 5.00 GiB is \
                 reserved by PyTorch but unallocated.\n"
            );
        }
    }
    let found = read(&log).unwrap();
    assert_eq!(found.len(), 8);
    for (rank, measurement) in (0..8).zip(&found) {
        let line = 199_992 + rank;
        assert_eq!(measurement.source.as_ref().unwrap().rank, Some(rank));
        assert_eq!(measurement.bytes("tried".parse().unwrap()), Some(i64::from(2 * (line % 1000 + 10)) << 20));
        assert_eq!(measurement.bytes("free".parse().unwrap()), Some(i64::from(line % 500) << 20));
    }
}

#[test]
fn runs_are_averaged_and_kept() {
    let run = |peak: i64| {
        let text =
            format!(r#"{{"base": 1000000, "forward_delta": 5, "backward_delta": 6, "step_delta": 7, "peak": {peak}}}"#);
        read(&text).unwrap().remove(0)
    };
    let runs = [run(9_000_000), run(2_000_000), run(2_000_001), run(2_000_004)];
    let mean = vram_budget::measure::average(&runs, 1).unwrap();
    let peak = mean.readings.iter().find(|r| r.name.to_string() == "steady.peak").unwrap();
    assert_eq!(peak.bytes(), Some(2_000_002), "5 over 3, to the nearest byte");
    assert_eq!((peak.runs.as_slice(), peak.spread()), (&[2_000_000, 2_000_001, 2_000_004][..], Some(4)));
    let written = serde_json::to_string(&mean).unwrap();
    assert_eq!(read(&written).unwrap(), [mean]);
    assert_eq!(vram_budget::measure::average(&[], 0), None);
    assert!(vram_budget::measure::average(&runs[..1], 5).is_some(), "one run is left");
}

/// The messages that the real allocator wrote in the recorded traces: the card has no context there, so their figures add
/// up, and the request that failed is known.
#[test]
fn the_messages_of_recorded_runs_add_up_and_say_the_request() {
    use vram_budget::measure::explain::{Cause, Fact, causes, facts};
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/allocator/traces");
    let (mut messages, mut requests, mut limits) = (0, 0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let packed = std::fs::read(entry.unwrap().path()).unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(packed.as_slice()), &mut text).unwrap();
        let trace: Value = serde_json::from_str(&text).unwrap();
        let by_default = !text.contains("roundup");
        for event in trace["events"].as_array().unwrap() {
            let Some(message) = event["oom"]["message"].as_str() else { continue };
            messages += 1;
            let found = read(message).unwrap();
            let [found] = found.as_slice() else { panic!("{message}") };
            let range = |name: &str| {
                let reading = found.readings.iter().find(|reading| reading.name.to_string() == name).unwrap();
                let bytes = reading.bytes().unwrap_or_else(|| panic!("{name}: {message}"));
                reading.range.unwrap_or([bytes, bytes])
            };
            let equal = |a: [i64; 2], b: [i64; 2]| a[0] <= b[1] && b[0] <= a[1];
            let sum = |a: [i64; 2], b: [i64; 2]| [a[0] + b[0], a[1] + b[1]];
            assert!(equal(range("total"), sum(range("free"), range("process"))), "{message}");
            assert!(equal(range("process"), sum(range("allocated"), range("unallocated"))), "{message}");
            assert!(!causes(found).is_empty(), "{message}");
            limits += usize::from(causes(found).iter().any(|cause| matches!(cause, Cause::Limit { .. })));
            let bytes = event["bytes"].as_u64().unwrap();
            for fact in facts(found) {
                if let (Fact::Request { above, at_most, or, .. }, true) = (fact, by_default) {
                    requests += 1;
                    let mut ranges = [Some([above, at_most]), or].into_iter().flatten();
                    let holds = |[above, at_most]: [vram_budget::units::Bytes; 2]| {
                        above.get() < bytes && bytes <= at_most.get()
                    };
                    assert!(ranges.any(holds), "{bytes} bytes: {message}");
                }
            }
        }
    }
    println!("{messages} messages, {requests} requests, {limits} limits");
    assert!(messages >= 362 && requests > 100 && limits > 5, "{messages} {requests} {limits}");
}

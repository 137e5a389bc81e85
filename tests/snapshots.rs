//! Recordings of the allocator: totals to the byte, replayed to the byte, and hostile files refused.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests read their data files")]

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vram_budget::allocator::{AllocConf, Config};
use vram_budget::plan::Version;
use vram_budget::snapshot::{History, MOST_BYTES, Problem, Reader, Snapshot, read, read_json};
use vram_budget::units::Bytes;

const PYTORCH: Version = Version(2, 15);
const EXPANDABLE: &str = "expandable_segments:True";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/snapshots")
}

struct Recording {
    name: String,
    bytes: Vec<u8>,
    expected: Value,
}

/// The pickles with what is expected of them.
fn recordings() -> Vec<Recording> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|path| path.to_str().unwrap().ends_with(".pickle.gz"));
    files.sort();
    let of = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().strip_suffix(".pickle.gz").unwrap().to_owned();
        let expected = std::fs::read(folder().join(format!("{name}.expected.json"))).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
        Recording { name, bytes, expected: serde_json::from_slice(&expected).unwrap() }
    };
    files.into_iter().map(of).collect()
}

fn good() -> Vec<(Recording, Snapshot)> {
    let all = recordings().into_iter().filter(|r| r.expected["kind"] != "error");
    all.map(|r| (read(&r.bytes).unwrap_or_else(|error| panic!("{}: {error}", r.name)), r))
        .map(|(s, r)| (r, s))
        .collect()
}

/// A figure of the allocator's own statistics.
fn stat(expected: &Value, name: &str) -> Option<Bytes> {
    expected["stats"][name].as_u64().map(Bytes)
}

fn holds_sample(name: &str, snapshot: &Snapshot, expected: &Value) {
    let totals = snapshot.totals(0);
    let of = |figure: &str| expected[figure]["bytes"].as_u64().map(Bytes);
    assert_eq!(Some(totals.reserved), of("reserved"), "{name}");
    assert_eq!(Some(totals.allocated), of("allocated"), "{name}");
    assert_eq!(Some(totals.active), of("active"), "{name}");
    assert_eq!(totals.requested, of("requested"), "{name}");
    assert_eq!(Some(totals.inactive_split), of("inactive_split"), "{name}");
    assert_eq!(Some(totals.segments as u64), expected["segments"].as_u64(), "{name}");
    assert_eq!(Some(snapshot.trace(0).len() as u64), expected["events"].as_u64(), "{name}");
}

#[test]
fn totals_are_exact() {
    let (mut dumps, mut samples) = (0, 0);
    for (Recording { name, expected, .. }, snapshot) in good() {
        if expected["stats"].is_null() {
            holds_sample(&name, &snapshot, &expected);
            samples += 1;
            continue;
        }
        dumps += 1;
        let totals = snapshot.totals(0);
        assert_eq!(Some(totals.reserved), stat(&expected, "reserved_bytes.all.current"), "{name}");
        assert_eq!(Some(totals.allocated), stat(&expected, "allocated_bytes.all.current"), "{name}");
        assert_eq!(Some(totals.active), stat(&expected, "active_bytes.all.current"), "{name}");
        assert_eq!(totals.requested, stat(&expected, "requested_bytes.all.current"), "{name}");
        assert_eq!(Some(totals.inactive_split), stat(&expected, "inactive_split_bytes.all.current"), "{name}");
        assert_eq!(Some(totals.segments as u64), expected["segments"].as_u64(), "{name}");
        let of_trace = &expected["device_traces"][0];
        assert_eq!(Some(snapshot.trace(0).len() as u64), of_trace["entries"].as_u64(), "{name}");
        assert_eq!(snapshot.alloc_conf.as_deref(), expected["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"].as_str());
        let held: u64 = snapshot.holders(0).iter().map(|holder| holder.bytes.get()).sum();
        assert_eq!(Some(held), stat(&expected, "requested_bytes.all.current").map(Bytes::get), "{name}");
    }
    assert_eq!((dumps, samples), (7, 3));
    let text = std::fs::read_to_string(folder().join("snap-08-as-json.json")).unwrap();
    let expected = std::fs::read(folder().join("snap-08-as-json.expected.json")).unwrap();
    holds_sample("snap-08", &read_json(&text).unwrap(), &serde_json::from_slice(&expected).unwrap());
}

#[test]
fn traces_are_replayed_to_the_byte() {
    let mut replayed = 0;
    for (Recording { name, expected, .. }, snapshot) in good() {
        let Ok(history) = History::of(&snapshot, 0) else { continue };
        let alloc_conf = AllocConf::parse(snapshot.alloc_conf.as_deref().unwrap_or_default(), PYTORCH).unwrap();
        let config = Config { alloc_conf, total_bytes: history.capacity(), ..Config::new(PYTORCH) };
        let found = history.replay(&config, true).unwrap();
        let totals = snapshot.totals(0);
        assert_eq!(found.reserved, totals.reserved, "{name}");
        assert_eq!(found.peak_reserved, history.peak_reserved, "{name}");
        assert_eq!(found.inactive_split, totals.inactive_split, "{name}");
        // What waits for another stream is still counted by a replay.
        assert_eq!(found.allocated, totals.active, "{name}");
        replayed += 1;
        let whole = expected["device_traces"][0]["frees_of_blocks_older_than_trace"] == 0;
        if let Some(peak) = stat(&expected, "reserved_bytes.all.peak").filter(|_| whole) {
            assert_eq!(found.peak_reserved, peak, "{name}");
            let asked = expected["device_traces"][0]["peak_live_requested_in_trace"].as_u64().unwrap();
            // A block that waits for another stream counts in one of them.
            assert!(snapshot.peak(0).unwrap().requested.get() <= asked, "{name}");
        }
        let failed = expected["stats"]["num_ooms"] == 1;
        assert_eq!(found.recorded_failure_fails, failed.then_some(true), "{name}");
        if failed {
            let (entry, error) = found.failed.unwrap();
            let failure = history.failure.unwrap();
            assert_eq!(
                (entry, error.free, error.reserved),
                (failure.entry, Some(failure.device_free), failure.reserved)
            );
            // On a card of twice the size, the request would have been served.
            let larger = Config { total_bytes: history.capacity().map(|b| Bytes(b.get() * 2)), ..config.clone() };
            assert_eq!(history.replay(&larger, false).unwrap().recorded_failure_fails, Some(false), "{name}");
        }
    }
    assert_eq!(replayed, 9);
}

#[test]
fn other_settings_reserve_what_the_program_reserved_under_them() {
    let folder = folder().join("settings");
    let mut bytes = Vec::new();
    let file = std::fs::File::open(folder.join("defaults.pickle.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    let history = History::of(&read(&bytes).unwrap(), 0).unwrap();
    let reserved: std::collections::BTreeMap<String, u64> =
        serde_json::from_slice(&std::fs::read(folder.join("reserved.json")).unwrap()).unwrap();
    assert_eq!(reserved.len(), 4);
    for (conf, reserved) in reserved {
        let alloc_conf = AllocConf::parse(&conf, PYTORCH).unwrap();
        let found = history.replay(&Config { alloc_conf, ..Config::new(PYTORCH) }, false).unwrap();
        assert_eq!(found.reserved, Bytes(reserved), "{conf}");
    }
}

#[test]
fn peaks_are_those_of_the_statistics_and_stacks_tell_parts() {
    let (recording, snapshot) = good().into_iter().find(|(r, _)| r.name.starts_with("s04")).unwrap();
    let peak = snapshot.peak(0).unwrap();
    assert_eq!(Some(peak.requested), stat(&recording.expected, "requested_bytes.all.peak"));
    assert_eq!(peak.holders.iter().map(|h| h.bytes.get()).sum::<u64>(), peak.requested.get());
    let part =
        |part| -> u64 { snapshot.holders(0).iter().filter(|h| h.part == Some(part)).map(|h| h.bytes.get()).sum() };
    // AdamW holds two states of the size of the weights, whose rotary frequencies are no parameters; and its steps.
    let (weights, states) = (part(vram_budget::bill::Part::Weights), part(vram_budget::bill::Part::States));
    assert_eq!(weights + states, snapshot.totals(0).requested.unwrap().get());
    assert!((states as f64 / weights as f64 - 2.0).abs() < 1e-3, "{weights} {states}");
}

#[test]
fn files_can_come_in_pieces_of_any_size() {
    let Recording { bytes, .. } = recordings().into_iter().find(|r| r.name.starts_with("s05")).unwrap();
    let whole = read(&bytes).unwrap();
    for size in [1, 7, 4096] {
        let mut reader = Reader::new(None, MOST_BYTES);
        for piece in bytes.chunks(size) {
            assert!(!reader.is_complete());
            reader.push(piece).unwrap();
        }
        assert!(reader.is_complete());
        assert_eq!(reader.offset(), bytes.len() as u64);
        let found = reader.finish().unwrap();
        assert_eq!((&found.segments, &found.blocks, &found.traces), (&whole.segments, &whole.blocks, &whole.traces));
    }
}

/// What is wrong with a pickle, and at which opcode and byte.
#[track_caller]
fn wrong(bytes: &[u8]) -> (Problem, Option<&'static str>, u64) {
    let error = read(bytes).unwrap_err();
    (error.problem, error.opcode, error.offset)
}

#[test]
fn hostile_files_are_refused_by_opcode_and_byte() {
    for Recording { name, bytes, expected } in recordings() {
        match expected["error"].as_str() {
            Some("forbidden_opcode") => assert_eq!(wrong(&bytes), (Problem::Forbidden, Some("STACK_GLOBAL"), 64)),
            Some("unexpected_end") => assert_eq!(wrong(&bytes).0, Problem::UnexpectedEnd),
            Some(other) => panic!("{name}: {other}"),
            None => {}
        }
    }
    // Everything that calls, imports or builds.
    for opcode in b"PQRSTUVbcdgilopBC012" {
        assert_eq!(wrong(&[&b"\x80\x04"[..], &[*opcode]].concat()).0, Problem::Forbidden, "{}", *opcode as char);
    }
    for opcode in (0x81..=0x84).chain(0x8e..=0x93).chain(0x96..=0x98) {
        assert_eq!(wrong(&[0x80, 4, opcode]).0, Problem::Forbidden, "{opcode:#x}");
    }
    assert_eq!(wrong(b"\x80\x04\xff"), (Problem::Unknown(0xff), None, 2));
    // Huge counts: nothing is taken for what is not there.
    let huge = |opcode: u8, count: &[u8]| wrong(&[&[0x80, 4, opcode], count].concat()).0;
    assert_eq!(huge(b'X', &[0xff; 4]), Problem::TooLong(0xffff_ffff));
    assert_eq!(huge(0x8d, &[0xff; 8]), Problem::TooLong(u64::MAX));
    assert_eq!(huge(0x8b, &[0xff; 4]), Problem::TooLong(0xffff_ffff));
    assert_eq!(huge(b'X', &[0, 0, 0xff, 0]), Problem::UnexpectedEnd);
    assert!(matches!(huge(b'r', &[0xff; 4]), Problem::Malformed(_)));
    // Deep: many marks, and containers without one.
    assert_eq!(wrong(&b"](".repeat(1_000_000)).0, Problem::TooDeep);
    assert_eq!(wrong(&b"]".repeat(1_000_000)).0, Problem::UnexpectedEnd);
    assert!(read(&[&b"]"[..], &b"\x85".repeat(1_000_000), b"."].concat()).is_err());
    // Cyclic: a list in itself, a dictionary in itself, two lists in each other.
    assert_eq!(wrong(b"\x80\x04]\x94h\x00a."), (Problem::Cyclic, Some("APPEND"), 6));
    assert_eq!(wrong(b"\x80\x04}\x94\x8c\x01ah\x00s.").0, Problem::Cyclic);
    assert_eq!(wrong(b"\x80\x04]\x94(]\x94h\x00ae.").0, Problem::Cyclic);
    // Nothing there to work on.
    for text in [&b"e"[..], b"u", b"a", b"s", b"t", b"\x85", b"\x94", b"h\x00", b".", b"(.", b"(]e", b"Ix\n", b"(\x85"]
    {
        assert!(matches!(wrong(text).0, Problem::Malformed(_) | Problem::Number), "{text:?}");
    }
}

/// A pickle of protocol 0 texts is not needed: JSON says the same, and is read into the same store.
fn segment(size: &str, blocks: &str) -> String {
    format!(r#"[{{"device":0,"address":0,"total_size":{size},"segment_type":"large","blocks":[{blocks}]}}]"#)
}

#[test]
fn sizes_that_overflow_or_do_not_add_up_are_refused_by_name() {
    let block = |size: &str| format!(r#"{{"size":{size},"state":"inactive"}}"#);
    let at = |text: &str| match read_json(text).unwrap_err().problem {
        Problem::Shape { at, .. } => at,
        other => panic!("{other:?}"),
    };
    assert!(read_json(&segment("20971520", &block("20971520"))).is_ok());
    assert_eq!(at(&segment("-1", &block("1"))), "segments[0].total_size");
    assert_eq!(at(&segment("18446744073709551615", &block("1"))), "segments[0].total_size");
    assert_eq!(at(&segment("512", &block("1125899906842624"))), "segments[0].blocks[0].size");
    assert_eq!(at(&segment("512", &block("1024"))), "segments[0].blocks[0]");
    assert_eq!(at(&segment("1024", &block("512"))), "segments[0]");
    assert_eq!(at(r#"{"segments":5}"#), "segments");
    assert_eq!(at("7"), "the file");
    let trace = r#"{"segments":[],"device_traces":[[{"action":"alloc","addr":1e300,"size":5}]]}"#;
    assert_eq!(at(trace), "device_traces[0][0]");
    assert!(read_json(&"[".repeat(100_000)).is_err());
}

#[test]
fn memory_is_bounded_also_where_shared_values_are_written_out() {
    // One segment of a thousand blocks, listed ten thousand times by reference: 50 kB that would be 700 MB.
    let mut bytes =
        b"\x80\x02]q\x00(}q\x01(X\x0a\x00\x00\x00total_sizeJ\x00\xd0\x07\x00X\x06\x00\x00\x00blocks](".to_vec();
    bytes.extend_from_slice(b"}q\x02(X\x04\x00\x00\x00sizeM\x00\x02X\x05\x00\x00\x00stateX\x08\x00\x00\x00inactiveu");
    bytes.extend(b"h\x02".repeat(999));
    bytes.extend_from_slice(b"eu");
    bytes.extend(b"h\x01".repeat(10_000));
    bytes.extend_from_slice(b"e.");
    let with = |most| {
        let mut reader = Reader::new(Some(bytes.len() as u64), most);
        reader.push(&bytes).and_then(|()| reader.finish())
    };
    assert_eq!(with(16 << 20).unwrap_err().problem, Problem::TooLarge);
    // And a file that says nothing but takes memory.
    let mut reader = Reader::new(None, 1 << 20);
    assert_eq!(reader.push(&b"]".repeat(1 << 20)).unwrap_err().problem, Problem::TooLarge);
}

/// SplitMix64: the same mutations on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n.max(1) as u64).unwrap()
    }
}

/// A few bytes changed, dropped, doubled, or replaced by what an attacker would choose.
fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    const CHOSEN: [&[u8]; 9] = [
        &[0xff; 8],
        &[0; 8],
        b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00",
        b"J\xff\xff\xff\xff",
        b"h\x00",
        b"(((((((",
        b"\x85\x86\x87",
        b"K\x00",
    ];
    let mut bytes = seed.to_vec();
    // Half of them keep their shape and change numbers alone: those get further.
    if random.below(2) == 0 {
        for _ in 0..=random.below(3) {
            let from = random.below(bytes.len());
            let number = |byte: &u8| matches!(byte, b'J' | b'K' | b'M' | 0x8a);
            let Some(at) = bytes[from..].iter().position(number) else { continue };
            let place = from + at + 2 + random.below(4);
            if let Some(byte) = bytes.get_mut(place) {
                *byte = u8::try_from(random.below(256)).unwrap();
            }
        }
        return bytes;
    }
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes.truncate(at),
            1 | 2 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = u8::try_from(random.below(256)).unwrap();
                }
            }
            3 => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + random.below(200)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let chosen = CHOSEN[random.below(CHOSEN.len())];
                let end = (at + chosen.len()).min(bytes.len());
                bytes.splice(at..end, chosen.iter().copied());
            }
        }
    }
    bytes
}

/// All that the command does with a file. Whether it was read.
fn run(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(Some(bytes.len() as u64), 64 << 20);
    if reader.push(bytes).is_err() {
        return false;
    }
    let Ok(snapshot) = reader.finish() else { return false };
    for device in snapshot.devices() {
        let _ = (snapshot.totals(device), snapshot.holders(device), snapshot.peak(device));
        let Ok(history) = History::of(&snapshot, device) else { continue };
        for conf in ["", "expandable_segments:True", "max_split_size_mb:64,roundup_power2_divisions:4"] {
            for total_bytes in [None, history.capacity(), Some(Bytes::mib(64))] {
                let alloc_conf = AllocConf::parse(conf, PYTORCH).unwrap();
                let config = Config { alloc_conf, total_bytes, ..Config::new(PYTORCH) };
                let _ = (history.replay(&config, true), history.replay(&config, false));
            }
        }
    }
    true
}

/// For as long as one likes: `FUZZ_SECONDS=600 cargo test --release --test snapshots -- --ignored`.
#[test]
#[ignore = "as long as FUZZ_SECONDS says"]
fn mutated_recordings_for_longer() {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    let (seeds, start, mut random) = (recordings(), std::time::Instant::now(), Random(1));
    while start.elapsed().as_secs() < seconds {
        run(&mutated(&seeds[random.below(seeds.len())].bytes, &mut random));
    }
}

#[test]
fn mutated_recordings_are_read_or_refused() {
    let (mut random, mut read, mut runs) = (Random(0), 0, 0);
    for Recording { bytes, .. } in recordings() {
        let count = if bytes.len() < 20_000 { 600 } else { 6 };
        for _ in 0..count {
            read += usize::from(run(&mutated(&bytes, &mut random)));
            runs += 1;
        }
    }
    // Enough of them are still recordings for the rest to be tried.
    assert!(read > runs / 20, "{read} of {runs}");
}

/// Private pools (`torch.cuda.MemPool`), recorded with PyTorch 2.15: reserved now, at most, and allocated, as it said itself.
#[test]
fn private_pools_are_replayed_to_the_byte() {
    for (name, conf, reserved, peak, allocated) in [
        ("plain", "", 293_601_280, 293_601_280, 257_772_544),
        ("release", "", 241_172_480, 293_601_280, 213_007_360),
        ("late", "", 352_321_536, 352_321_536, 292_372_480),
        ("exp", EXPANDABLE, 232_783_872, 297_795_584, 211_801_600),
        ("explate", EXPANDABLE, 339_738_624, 339_738_624, 291_166_720),
    ] {
        let file = std::fs::File::open(folder().join(format!("pools/{name}.pickle.gz"))).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        let snapshot = read(&bytes).unwrap();
        assert_eq!(snapshot.alloc_conf.as_deref().unwrap_or_default(), conf, "{name}");
        let history = History::of(&snapshot, 0).unwrap();
        let config =
            |conf: &str| Config { alloc_conf: AllocConf::parse(conf, PYTORCH).unwrap(), ..Config::new(PYTORCH) };
        let found = history.replay(&config(conf), true).unwrap();
        let figures = [found.reserved, found.peak_reserved, found.allocated].map(Bytes::get);
        assert_eq!(figures, [reserved, peak, allocated], "{name}");
        // Under other settings, what is asked for is the same.
        for other in ["", EXPANDABLE, "max_split_size_mb:32"] {
            let other = history.replay(&config(other), false).unwrap();
            assert!(other.failed.is_none() && other.peak_reserved >= other.peak_allocated, "{name}: {other:?}");
        }
    }
}

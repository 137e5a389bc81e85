//! Damaged texts: for each format its samples and reports, with bytes changed, moved, cut and repeated. Whatever comes
//! out, nothing panics, a text in pieces reads as the whole does, and what is read can be written and read again.
//!
//! Each test run tries a few hundred; for longer:
//! `FUZZ_SECONDS=600 FUZZ_TARGET=nvidia_smi cargo test --release --test fuzz -- --ignored --nocapture`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use vram_budget::measure::{Imported, Measurement, Options, Reader, Unit, understand};

/// Texts by the format that they are in.
fn corpora() -> BTreeMap<String, Vec<Vec<u8>>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let mut corpora: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    let mut add = |text: Vec<u8>| {
        let format = match understand(&text, &Options::default()).ok().and_then(|found| found.into_iter().next()) {
            Some(Imported::Measurement { format, .. } | Imported::WhichUnit { format, .. }) => {
                serde_json::to_value(format).unwrap().as_str().unwrap().to_owned()
            }
            None => "refused".to_owned(),
        };
        corpora.entry(format).or_default().push(text);
    };
    let mut files: Vec<_> = ["formats", "reports", "fuzz"]
        .iter()
        .filter_map(|part| std::fs::read_dir(format!("{folder}/{part}")).ok())
        .flatten()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    for path in files {
        let bytes = std::fs::read(&path).unwrap();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            for line in String::from_utf8(bytes).unwrap().lines() {
                let report: serde_json::Value = serde_json::from_str(line).unwrap();
                add(report["text"].as_str().unwrap().as_bytes().to_vec());
            }
        } else {
            add(bytes);
        }
    }
    add(include_bytes!("../src/view/examples/script.json").to_vec());
    add(include_bytes!("../src/view/examples/measurement.json").to_vec());
    corpora
}

/// Numbers that look random and are the same on every run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n.max(1)).unwrap()).unwrap()
    }
}

/// What breaks readers: ends of ranges, half a mark, signs of every kind.
const PIECES: [&[u8]; 24] = [
    b"18446744073709551615",
    b"17179869184.00 GiB",
    b"-1",
    b"99999999999999999999999999.9",
    b"0.0000000000001",
    b"1e308",
    b"NaN",
    b"{",
    b"}",
    b"[[[[",
    b"(",
    b"\"",
    b"'",
    b"\\u12",
    b"<a>",
    b"|",
    b"\r\n",
    b"\0",
    b"\xff\xfe",
    "é│".as_bytes(),
    b"MiB / ",
    b"CUDA out of memory. Tried to allocate ",
    b"[rank7]: ",
    b",,,,",
];

fn mutate(random: &mut Random, corpus: &[Vec<u8>], all: &[&Vec<u8>]) -> Vec<u8> {
    let mut text = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(text.len() + 1);
        let end = (at + random.below(40)).min(text.len());
        match random.below(8) {
            0 if at < text.len() => text[at] = random.next().to_le_bytes()[0],
            1 if at < text.len() => text[at] ^= 1 << random.below(8),
            2 => drop(text.drain(at..end)),
            3 => text.truncate(at),
            4 => {
                let piece = text[at..end].to_vec();
                let to = random.below(text.len() + 1);
                text.splice(to..to, piece);
            }
            5 => {
                let piece = PIECES[random.below(PIECES.len())];
                text.splice(at..end.min(at + random.below(3)), piece.iter().copied());
            }
            6 => {
                // Part of another text.
                let other = all[random.below(all.len())];
                let from = random.below(other.len());
                let to = (from + random.below(400)).min(other.len());
                text.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                let digits: Vec<usize> = (0..text.len()).filter(|at| text[*at].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    text[digits[random.below(digits.len())]] = b'0' + u8::try_from(random.below(10)).unwrap();
                }
            }
        }
    }
    text
}

fn check(text: &[u8], random: &mut Random) {
    let options = Options {
        unit: (random.below(4) == 0).then_some(Unit::GiB),
        columns: (random.below(16) == 0).then(|| "index,memory.used".to_owned()),
    };
    let whole = understand(text, &options);
    // The same bytes in pieces.
    let mut reader = Reader::new(&options);
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((1 + random.below(97)).min(rest.len()));
        reader.push(piece);
        rest = after;
    }
    assert_eq!(reader.finish(), whole, "in pieces");
    let Ok(found) = whole else { return };
    for one in found {
        let Imported::Measurement { measurement, .. } = one else { continue };
        survives(&measurement);
        let _ = vram_budget::measure::explain::causes(&measurement);
        let _ = vram_budget::measure::explain::facts(&measurement);
        let _ = vram_budget::text::Locale::En.report().read_back(&measurement);
    }
}

/// Written and read again, it is the same.
fn survives(measurement: &Measurement) {
    let written = serde_json::to_string(measurement).unwrap();
    let again =
        understand(written.as_bytes(), &Options::default()).unwrap_or_else(|error| panic!("{error}: {written}"));
    let [Imported::Measurement { measurement: again, .. }] = again.as_slice() else { panic!("{written}") };
    assert_eq!(&**again, measurement);
    assert_eq!(serde_json::to_string(again).unwrap(), written);
}

fn run(target: &str, corpora: &BTreeMap<String, Vec<Vec<u8>>>, seed: u64, mut go_on: impl FnMut(u64) -> bool) -> u64 {
    let all: Vec<&Vec<u8>> = corpora.values().flatten().collect();
    let corpus = &corpora[target];
    let mut count = 0;
    while go_on(count) {
        let mut random = Random(seed.wrapping_add(count));
        let text = mutate(&mut random, corpus, &all);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&text, &mut random)));
        if result.is_err() {
            let path = std::env::temp_dir().join(format!("{target}-{seed}-{count}"));
            std::fs::write(&path, &text).unwrap();
            panic!("{target}, seed {seed}, number {count}: written to {}", path.display());
        }
        count += 1;
    }
    count
}

#[test]
fn texts_are_read_and_written_back_unchanged() {
    for (format, texts) in corpora() {
        for text in texts {
            let found = understand(&text, &Options::default());
            assert_eq!(found.is_err(), format == "refused");
            for one in found.unwrap_or_default() {
                if let Imported::Measurement { measurement, .. } = one {
                    survives(&measurement);
                }
            }
        }
    }
}

#[test]
fn damaged_texts_never_panic() {
    let corpora = corpora();
    assert!(corpora.len() >= 20, "{:?}", corpora.keys());
    for target in corpora.keys() {
        run(target, &corpora, 1, |count| count < 60);
    }
}

#[test]
#[ignore = "runs for FUZZ_SECONDS for each format"]
fn for_long() {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let only = std::env::var("FUZZ_TARGET").ok();
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1 << 32);
    let corpora = corpora();
    for target in corpora.keys().filter(|target| only.as_ref().is_none_or(|only| only == *target)) {
        let start = Instant::now();
        let count = run(target, &corpora, seed, |_| start.elapsed() < Duration::from_secs(seconds));
        println!("{target}: {count} texts in {seconds} s without a finding");
    }
}

//! How long a recording of 100 MB takes, read, summed up and replayed: `cargo bench --bench snapshot`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads a clock")]
#![allow(clippy::cast_precision_loss, reason = "rates for display")]

use std::time::Instant;

use vram_budget::allocator::Config;
use vram_budget::plan::Version;
use vram_budget::snapshot::{History, MOST_BYTES, Reader};

const BYTES: usize = 100_000_000;
/// How much of the file is read at once, as the page would.
const PIECE: usize = 1 << 20;

/// A pickle as Python writes it: a small segment with one block handed out and freed again and again, each time from
/// another line, with the words and stacks kept under numbers.
fn recording() -> Vec<u8> {
    let mut out = b"\x80\x04}(".to_vec();
    let mut kept = 0_u32;
    let mut text = |out: &mut Vec<u8>, text: &str| {
        out.extend([0x8c, u8::try_from(text.len()).unwrap()]);
        out.extend(text.as_bytes());
        out.push(0x94);
        kept += 1;
        kept - 1
    };
    text(&mut out, "segments");
    out.extend(b"](}(");
    for (key, value) in [("address", &b"J\0\0\0\x10"[..]), ("total_size", b"J\0\0\x20\0"), ("device", b"K\0")] {
        text(&mut out, key);
        out.extend(value);
    }
    text(&mut out, "segment_type");
    text(&mut out, "small");
    text(&mut out, "blocks");
    out.extend(b"](}(");
    let size = text(&mut out, "size");
    out.extend(b"J\0\0\x20\0");
    text(&mut out, "state");
    text(&mut out, "inactive");
    out.extend(b"ueue");
    text(&mut out, "device_traces");
    out.extend(b"](](");
    // The first entry spells its words, the others recall them.
    out.extend(b"}(");
    let action = text(&mut out, "action");
    text(&mut out, "segment_alloc");
    let addr = text(&mut out, "addr");
    out.extend(b"J\0\0\0\x10h");
    out.push(u8::try_from(size).unwrap());
    out.extend(b"J\0\0\x20\0");
    let stream = text(&mut out, "stream");
    out.extend(b"K\0");
    let frames = text(&mut out, "frames");
    out.extend(b"](}(");
    text(&mut out, "filename");
    text(&mut out, "/usr/lib/python3/site-packages/model/layers.py");
    let line_key = text(&mut out, "line");
    out.extend(b"K\x07ueu");
    let words = ["alloc", "free_requested", "free_completed"].map(|word| {
        // An entry that no replay acts on, with the word under a key that nothing looks at.
        out.extend(b"}(");
        let n = text(&mut out, word);
        out.extend(b"Nh");
        out.push(u8::try_from(action).unwrap());
        text(&mut out, "snapshot");
        out.extend(b"h");
        out.push(u8::try_from(size).unwrap());
        out.extend(b"K\0u");
        n
    });
    let recall = |n: u32| [b'h', u8::try_from(n).unwrap()];
    let mut line = 0_u32;
    while out.len() < BYTES {
        out.extend(b"e(");
        for _ in 0..333 {
            line += 1;
            for word in words {
                out.push(b'}');
                out.push(b'(');
                out.extend([recall(action), recall(word), recall(addr)].concat());
                out.extend(b"\x8a\x04\0\0\0\x10");
                out.extend(recall(size));
                out.extend(b"M\0\x02");
                out.extend(recall(stream));
                out.extend(b"K\0");
                out.extend(recall(frames));
                out.extend(b"](}(");
                out.extend(recall(line_key));
                out.push(b'J');
                out.extend(line.to_le_bytes());
                out.extend(b"ueu");
            }
        }
    }
    out.extend(b"eeu.");
    out
}

fn main() {
    let bytes = recording();
    let (start, mut longest) = (Instant::now(), 0.0_f64);
    let mut reader = Reader::new(Some(bytes.len() as u64), MOST_BYTES);
    for piece in bytes.chunks(PIECE) {
        let one = Instant::now();
        reader.push(piece).unwrap();
        longest = longest.max(one.elapsed().as_secs_f64());
    }
    let snapshot = reader.finish().unwrap();
    let read = start.elapsed().as_secs_f64();
    let peak = snapshot.peak(0).unwrap();
    let held = start.elapsed().as_secs_f64();
    let history = History::of(&snapshot, 0).unwrap();
    let found = history.replay(&Config::new(Version(2, 15)), true).unwrap();
    let all = start.elapsed().as_secs_f64();
    assert_eq!(found.reserved, snapshot.totals(0).reserved);
    println!(
        "{} MB, {} entries: read in {read:.2} s (a piece of 1 MiB in at most {:.0} ms), the peak of {} in {:.2} s, \
         replayed in {:.2} s; {all:.2} s in all",
        bytes.len() / 1_000_000,
        snapshot.trace(0).len(),
        longest * 1e3,
        peak.requested,
        held - read,
        all - held
    );
}

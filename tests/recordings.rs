//! What the hook wrote of real training scripts (`make test-torch` records them anew), read back and predicted without
//! PyTorch: from the document alone.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod recorded;

use std::path::{Path, PathBuf};
use std::process::Command;

use recorded::{EXAMPLES, bars};
use vram_budget::measure::{EndedHow, Imported, Measurement, import};

const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/recordings");

/// A folder with the lines of one process, as a killed `record` leaves it.
fn left(name: &str, lines: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recordings").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("process-machine-1.jsonl"), lines).unwrap();
    folder
}

fn merged(paths: &[&Path]) -> Measurement {
    let output = Command::new(env!("CARGO_BIN_EXE_vram-budget")).arg("merge").args(paths).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let Imported::Measurement { measurement, .. } = import(std::str::from_utf8(&output.stdout).unwrap()).unwrap()
    else {
        panic!("a document")
    };
    *measurement
}

#[test]
fn every_example_is_predicted_from_its_recording_alone() {
    for (name, expect) in EXAMPLES {
        let lines = std::fs::read(format!("{RECORDINGS}/{name}.jsonl")).unwrap();
        bars(name, &merged(&[&left(name, &lines)]), expect);
    }
}

#[test]
fn what_was_measured_before_a_kill_counts_wherever_the_file_is_cut() {
    let lines = std::fs::read(format!("{RECORDINGS}/plain.jsonl")).unwrap();
    let whole = merged(&[&left("whole", &lines)]);
    let run = whole.run.as_ref().unwrap();
    assert_eq!((run.steps, run.ended.how), (4, EndedHow::Exited));
    // In the middle of the last step's line, and without the end.
    let cut = lines.len() - lines.rsplit(|b| *b == b'\n').take(4).map(|line| line.len() + 1).sum::<usize>() + 40;
    let found = merged(&[&left("cut", &lines[..cut])]);
    let run = found.run.as_ref().unwrap();
    assert_eq!((run.steps, run.ended.how), (3, EndedHow::Unknown));
    assert!(run.notes.iter().any(|note| note.contains("cut off")), "{:?}", run.notes);
    assert_eq!(found.readings, whole.readings, "the steps are alike");
    assert_eq!(found.plan, whole.plan);
}

/// The lines of `plain` as another rank wrote them, `late` milliseconds later, without its last `fewer` lines.
fn of_rank(rank: u32, world: u32, late: f64) -> Vec<u8> {
    let text = std::fs::read_to_string(format!("{RECORDINGS}/plain.jsonl")).unwrap();
    let mut out = Vec::new();
    for line in text.lines() {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        if line["t"] == "start" {
            line["rank"] = rank.into();
            line["world_size"] = world.into();
            line["host"] = format!("node{rank}").into();
        }
        if let Some(at) = line["at"].as_f64() {
            line["at"] = (at + late / 1000.0).into();
        }
        out.extend(line.to_string().into_bytes());
        out.push(b'\n');
    }
    out
}

#[test]
fn ranks_become_one_document_that_names_the_missing_and_the_late() {
    let folders =
        [left("rank0", &of_rank(0, 4, 0.0)), left("rank1", &of_rank(1, 4, 7.0)), left("rank3", &of_rank(3, 4, 5000.0))];
    let [a, b, c] = &folders;
    let whole = merged(&[c, a, b]);
    let run = whole.run.unwrap();
    assert_eq!(run.ranks.iter().map(|part| part.rank).collect::<Vec<_>>(), [0, 1, 3]);
    assert_eq!((run.rank, run.world_size, run.missing_ranks), (Some(0), Some(4), vec![2]));
    assert_eq!(run.clock_skew_ms, Some(5000));
    assert!(run.notes.iter().any(|note| note.contains("rank 2")), "{:?}", run.notes);
    assert!(run.notes.iter().any(|note| note.contains("5000 ms")), "{:?}", run.notes);
    let near = merged(&[a, b]).run.unwrap();
    assert_eq!((near.clock_skew_ms, near.missing_ranks), (Some(7), vec![2, 3]));
}

#[test]
fn a_rank_alone_misses_the_others_and_a_later_merge_finds_them() {
    let alone = merged(&[&left("alone", &of_rank(0, 2, 0.0))]).run.unwrap();
    assert_eq!((alone.missing_ranks.as_slice(), alone.clock_skew_ms), (&[1][..], None));
    // A document for each of two nodes, of which each misses the other's ranks.
    let folders = [0, 1, 2, 3].map(|rank| left(&format!("of4-{rank}"), &of_rank(rank, 4, f64::from(rank) * 700.0)));
    let nodes = [&folders[..2], &folders[2..]].map(|two| {
        let whole = merged(&[&two[0], &two[1]]);
        let file = two[0].join("merged.json");
        std::fs::write(&file, serde_json::to_vec(&whole).unwrap()).unwrap();
        assert_eq!((whole.run.unwrap().missing_ranks.len(), file.exists()), (2, true));
        file
    });
    let run = merged(&[&nodes[0], &nodes[1]]).run.unwrap();
    assert_eq!(run.ranks.iter().map(|part| part.rank).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(
        run.missing_ranks.is_empty() && !run.notes.iter().any(|note| note.contains("nothing was recorded")),
        "{run:?}"
    );
    assert_eq!(run.clock_skew_ms, Some(1400), "between the ranks whose steps are in the documents");
}

/// Lines of `padded`, of which each is changed, or left out.
fn changed(name: &str, change: impl Fn(&mut serde_json::Value) -> bool) -> Measurement {
    let text = std::fs::read_to_string(format!("{RECORDINGS}/padded.jsonl")).unwrap();
    let lines = text.lines().filter_map(|line| {
        let mut line = serde_json::from_str(line).unwrap();
        change(&mut line).then(|| format!("{line}\n"))
    });
    merged(&[&left(name, lines.collect::<String>().as_bytes())])
}

#[test]
fn the_plan_has_the_batch_of_the_step_that_peaked_highest() {
    let seq_len = |document: &Measurement| document.plan.as_ref().map(|plan| (plan.recipe.seq_len, plan.recipe.padded));
    let whole = changed("longest", |_| true);
    assert_eq!(seq_len(&whole), Some((700, true)));
    // Without a mask that reached attention nothing was padded.
    let unpadded = changed("unpadded", |line| {
        for micro in line["micro"].as_array_mut().into_iter().flatten() {
            micro["masked"] = false.into();
        }
        true
    });
    assert_eq!(seq_len(&unpadded), Some((700, false)));
    // Where the dearest batch came in the first step, a later one as long needs more.
    let early = changed("early", |line| {
        let n = line["n"].as_u64();
        match (line["t"].as_str(), n) {
            (Some("step" | "zero"), Some(n @ 4..)) => {
                line["n"] = (n - 3).into();
                true
            }
            (Some("step" | "zero"), _) => false,
            _ => true,
        }
    });
    assert_eq!(seq_len(&early), Some((700, true)));
    let notes = early.run.unwrap().notes.join("; ");
    assert!(notes.contains("came in step 1: a steady step over it needs more"), "{notes}");
}

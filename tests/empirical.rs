//! A model that is not known: each family's recorded steps are taken for one. Two or three of a job's measurements are fitted,
//! the others held.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::disallowed_methods)]

use std::collections::BTreeMap;

use vram_budget::measure::{Case, Figure, Measurement, Reading, ReadingName};
use vram_budget::reconcile::empirical::{Beyond, Growth, Point, Unfit, fit};
use vram_budget::units::Bytes;

const TABLES: [&str; 7] = [
    include_str!("data/training-steps/cases.jsonl"),
    include_str!("data/training-steps/fresh-1.jsonl"),
    include_str!("data/training-steps/fresh-2.jsonl"),
    include_str!("data/training-steps/fresh-3.jsonl"),
    include_str!("data/training-steps/recipes.jsonl"),
    include_str!("data/training-steps/workspace-kept.jsonl"),
    include_str!("data/training-steps/versions.jsonl"),
];

/// A job's measurements: what attention's memory grows with as its recipe says, and each point with the run's peak.
struct Job {
    growth: Growth,
    points: Vec<(Point, f64)>,
}

/// Recorded steps that differ in batch and sequence alone, of three sizes at the least, the smallest first.
fn jobs() -> Vec<Job> {
    let mut all: BTreeMap<String, Job> = BTreeMap::new();
    for line in TABLES.iter().flat_map(|table| table.lines()) {
        let case = Case::read(line).unwrap();
        let Ok(mut plan) = case.plan else { continue };
        let measurement = Measurement::new(case.readings);
        let Some(peak) = measurement.bytes(ReadingName::MaxAllocated) else { continue };
        let Some(point) = Point::of(plan.recipe.micro_batch, plan.recipe.seq_len, &measurement) else { continue };
        (plan.recipe.micro_batch, plan.recipe.seq_len) = (1, 1);
        let job = all.entry(serde_json::to_string(&plan).unwrap());
        let job = job.or_insert_with(|| Job { growth: Growth::of(&plan.recipe), points: Vec::new() });
        job.points.push((point, peak as f64));
    }
    let mut jobs: Vec<Job> = all.into_values().collect();
    for job in &mut jobs {
        job.points.sort_by_key(|(point, _)| (point.micro_batch * point.seq_len, point.seq_len));
        job.points.dedup_by_key(|(point, _)| (point.micro_batch, point.seq_len));
    }
    jobs.retain(|job| job.points.len() >= 3);
    jobs
}

#[derive(Default)]
struct Score {
    jobs: usize,
    near: usize,
    covered: usize,
    all: usize,
    refused: usize,
    lines: Vec<String>,
}

/// Fits those of each job that `choose` names of so many, and holds the others.
fn score(jobs: &[Job], choose: impl Fn(usize) -> Vec<usize>) -> Score {
    let mut score = Score::default();
    for job in jobs {
        let chosen = choose(job.points.len());
        let fitted: Vec<Point> = chosen.iter().map(|at| job.points[*at].0.clone()).collect();
        let Ok(model) = fit(&fitted, job.growth) else { continue };
        score.jobs += 1;
        for (_, (point, measured)) in job.points.iter().enumerate().filter(|(at, _)| !chosen.contains(at)) {
            let Ok(peak) = model.peak(point.micro_batch, point.seq_len) else {
                score.refused += 1;
                continue;
            };
            let error = peak.bytes.as_f64() / measured - 1.0;
            score.all += 1;
            score.near += usize::from(error.abs() <= 0.05);
            score.covered += usize::from((peak.low.as_f64()..=peak.high.as_f64()).contains(measured));
            if error.abs() > 0.05 {
                score.lines.push(format!("{} × {}: {:.1} %", point.micro_batch, point.seq_len, error * 100.0));
            }
        }
    }
    score
}

impl Score {
    fn said(&self, what: &str) {
        let Self { jobs, near, covered, all, refused, lines } = self;
        println!(
            "{what}: {jobs} jobs, {near} of {all} within 5 %, {covered} within their interval, {refused} refused; {lines:?}"
        );
    }
}

/// The ends of what was measured, and with more than three one between: the others are within 5 % in four of five cases.
#[test]
fn measurements_alone_give_an_unknown_models_other_peaks() {
    let jobs = jobs();
    let between = score(&jobs, |n| if n > 3 { vec![0, n / 2, n - 1] } else { vec![0, n - 1] });
    between.said("between");
    assert!(between.jobs >= 20 && between.all >= 30, "{} {}", between.jobs, between.all);
    assert!(between.near * 5 >= between.all * 4, "{} of {}", between.near, between.all);
    assert!(between.covered * 10 >= between.all * 8, "{} of {}", between.covered, between.all);
    // The smallest alone: what lies further is refused or near.
    let beyond = score(&jobs, |n| (0..n - 1).collect());
    beyond.said("beyond");
    assert!(beyond.near * 5 >= beyond.all * 4, "{} of {}", beyond.near, beyond.all);
}

/// A point with one figure.
fn point(micro_batch: u64, seq_len: u64, bytes: i64) -> Point {
    let name: ReadingName = "steady.backward_peak".parse().unwrap();
    let reading = Reading::new(name, name.tier(), Figure::Bytes(bytes));
    Point::of(micro_batch, seq_len, &Measurement::new(vec![reading])).unwrap()
}

#[test]
fn what_measurements_cannot_tell_is_refused() {
    let fixed_and = |b: i64, s: i64| 1_000_000_000 + b * s * 500_000;
    let at = |b: u64, s: u64| point(b, s, fixed_and(b.cast_signed(), s.cast_signed()));
    assert_eq!(fit(&[], Growth::Unknown), Err(Unfit::TooFew));
    assert_eq!(fit(&[at(2, 512)], Growth::Unknown), Err(Unfit::TooFew));
    assert_eq!(fit(&[at(2, 512), at(1, 1024)], Growth::Unknown), Err(Unfit::TooFew), "as many tokens");
    // One length: other batches of it, and no other length.
    let one = fit(&[at(2, 512), at(4, 512)], Growth::Unknown).unwrap();
    let peak = one.peak(6, 512).unwrap();
    assert_eq!((peak.bytes, peak.within_range), (Bytes(fixed_and(6, 512).cast_unsigned()), false));
    assert!(one.peak(3, 512).unwrap().within_range);
    assert_eq!(one.peak(3, 1024), Err(Beyond::Sequence));
    assert_eq!(one.peak(16, 512), Err(Beyond::TooFar));
    assert_eq!(one.peak(u64::MAX, 512), Err(Beyond::TooFar));
    assert_eq!(one.peak(0, 512), Err(Beyond::TooFar));
    // A run's peak does not say when it was: nothing is said beyond what was measured.
    let whole = |b: u64| {
        let mut point = at(b, 512);
        point.peaks[0].0 = ReadingName::MaxAllocated;
        point
    };
    let whole = fit(&[whole(2), whole(4)], Growth::Unknown).unwrap();
    assert_eq!(whole.peak(3, 512).unwrap().bytes, Bytes(fixed_and(3, 512).cast_unsigned()));
    assert_eq!((whole.peak(5, 512), whole.peak(1, 512)), (Err(Beyond::TooFar), Err(Beyond::TooFar)));
    // Where attention is known to be fused, only tokens count.
    let fused = fit(&[at(2, 512), at(4, 512)], Growth::Linear).unwrap();
    assert_eq!(fused.peak(2, 1024).unwrap().bytes, Bytes(fixed_and(2, 1024).cast_unsigned()));
    // Two lengths fit either growth: between them both, beyond them nothing.
    let two = fit(&[at(2, 512), at(2, 1024)], Growth::Unknown).unwrap();
    let peak = two.peak(2, 768).unwrap();
    let straight = fixed_and(2, 768).cast_unsigned();
    assert!(
        peak.low.get() < straight && straight < peak.high.get() && peak.high.get() - peak.low.get() > straight / 20
    );
    assert_eq!(two.peak(2, 1536), Err(Beyond::Sequence));
    // A third tells them apart.
    let eager =
        |b: u64, s: u64| point(b, s, fixed_and(b.cast_signed(), s.cast_signed()) + (b * s * s * 300).cast_signed());
    let three = fit(&[eager(2, 512), eager(2, 1024), eager(4, 1024)], Growth::Unknown).unwrap();
    let right = fixed_and(2, 1536).cast_unsigned() + 2 * 1536 * 1536 * 300;
    assert!(three.peak(2, 1536).unwrap().bytes.get().abs_diff(right) < 1_000_000);
    // The largest micro-batch in so much room.
    let (largest, peak) = one.largest(512, Bytes(2_400_000_000)).unwrap();
    assert!(largest == 5 && peak.high <= Bytes(2_400_000_000), "{largest} {peak:?}");
    assert_eq!(one.largest(512, Bytes(1_000_000_000)), None);
}

//! What a measurement means: why a message says that memory ran out, the figures that say so, and what is worth knowing
//! beside them. Figures alone decide; where they do not, nothing is said.

use crate::measure::{
    Failure, FailureKind, Figure, FormatId, Measurement, ReadingName, Reported, Series, Stage, TierName, Tracked,
};
use crate::units::{Bytes, GIB, MIB};

/// Why memory ran out. The figures are those of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A size that no card has: a wrong shape or index, not a full card.
    AbsurdRequest {
        /// What was asked for, where the message says so.
        tried: Option<Bytes>,
    },
    /// One request is larger than the whole card.
    BeyondCard {
        /// What was asked for.
        tried: Bytes,
        /// The card's memory.
        total: Bytes,
    },
    /// More than the device gives in one piece.
    OverAllocationLimit {
        /// What was asked for.
        tried: Option<Bytes>,
    },
    /// The driver has spilled into the machine's memory: the process holds more than the card has.
    SharedMemory {
        /// What PyTorch holds.
        held: Bytes,
        /// The card's memory.
        total: Bytes,
    },
    /// A limit that someone set: a fraction, a watermark.
    Limit {
        /// The limit.
        allowed: Option<Bytes>,
        /// What is held of it.
        held: Option<Bytes>,
        /// What is free on the card.
        free: Option<Bytes>,
    },
    /// What is reserved and unused would do, were it in one piece or given back.
    Fragmentation {
        /// Reserved and unused.
        unallocated: Bytes,
        /// Free on the card.
        free: Bytes,
        /// What was asked for.
        tried: Bytes,
        /// Whether expandable segments were on already.
        expandable: Option<bool>,
    },
    /// CUDA graphs keep blocks to themselves.
    PrivatePools {
        /// What they keep.
        pools: Bytes,
    },
    /// Other processes hold what is missing.
    OtherProcesses {
        /// What they hold together.
        held: Bytes,
        /// How many they are.
        count: u32,
    },
    /// The process holds much outside of PyTorch's allocator.
    HiddenHolder {
        /// What it holds there.
        outside: Bytes,
    },
    /// Neither this allocator nor anyone named holds it.
    Unseen {
        /// How much.
        bytes: Bytes,
    },
    /// The driver refused although there was room.
    DriverRefused {
        /// What was free.
        free: Bytes,
        /// What was asked for.
        tried: Bytes,
    },
    /// The tensors themselves are too large.
    Peak {
        /// What they hold.
        allocated: Option<Bytes>,
        /// The card's memory.
        total: Option<Bytes>,
        /// What was asked for.
        tried: Option<Bytes>,
        /// What was missing beyond everything that could be had; zero where the last request alone would have fitted.
        missing: Option<Bytes>,
    },
    /// A direct call of the driver failed: no figures.
    Driver,
    /// A library's workspace or handle did not fit beside the allocator: no figures.
    Library {
        /// The status that it returned.
        status: String,
    },
    /// NCCL's buffers did not fit beside the allocator.
    Nccl,
    /// An inference server, no training.
    Inference,
    /// The machine's own memory ran out.
    Host {
        /// What was asked for, where the message says so.
        tried: Option<Bytes>,
    },
    /// Checkpointing ran a layer again otherwise than in forward.
    Recomputation {
        /// How the two differ in dtype, where they do: autocast was on in one of them alone.
        differ: Option<String>,
    },
}

/// What is worth knowing beside the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The request that the printed segment stands for: more than the first, up to the second.
    Request {
        /// What is printed.
        printed: Bytes,
        /// More than this.
        above: Bytes,
        /// At most this.
        at_most: Bytes,
        /// Or more than the first and at most the second.
        or: Option<[Bytes; 2]>,
        /// Whether `large_segment_size_mb` (2.11) can make it another range.
        configurable: bool,
    },
    /// What the process holds beyond the allocator: context, libraries, communication.
    Gap {
        /// How much.
        bytes: Bytes,
    },
    /// The free blocks of private pools are counted as allocated.
    PrivatePoolsCounted {
        /// How much.
        pools: Bytes,
    },
    /// The allocator had to give its cache back and try again.
    Retries {
        /// How often.
        count: u64,
    },
    /// Reserved and free, inside of segments in use: it cannot be given back.
    Stuck {
        /// How much.
        bytes: Bytes,
        /// Of what is reserved.
        reserved: Bytes,
    },
    /// JAX's allocator holds more than the arrays do.
    Pool {
        /// What arrays hold.
        held: Bytes,
        /// What the allocator has taken from the driver.
        pool: Bytes,
    },
    /// What a stage of Hugging Face's trainer needed.
    Stage {
        /// The stage.
        stage: Stage,
        /// What it left in use at its end, in bytes.
        kept: i64,
        /// What its highest was above its end.
        above: Option<Bytes>,
        /// Of host memory.
        host: bool,
    },
    /// A figure that should stay level grows by more than a megabyte.
    Grows {
        /// Its name.
        name: String,
        /// By how much.
        bytes: Bytes,
        /// Over how many steps.
        steps: u64,
    },
    /// The first points of the series are warm-up.
    WarmUp {
        /// How many.
        points: u32,
    },
    /// Ranks differ by more than 5 %.
    Uneven {
        /// The least allocated.
        least: Bytes,
        /// The most.
        most: Bytes,
    },
    /// Several runs.
    Runs {
        /// How many.
        count: u64,
        /// The largest difference between two runs of one figure.
        spread: Bytes,
    },
}

/// A leak is more than this between two steps (the articles' B7).
const LEAK: i64 = 1_000_000;
/// Outside of the allocator, a context and the usual libraries stay below this.
const USUAL_OUTSIDE: u64 = 3 * GIB / 2;

fn figure(measurement: &Measurement, name: Reported) -> Option<Bytes> {
    measurement.bytes(ReadingName::Reported(name)).and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes)
}

/// What the allocator has reserved and not handed out.
#[must_use]
pub fn unallocated(measurement: &Measurement) -> Option<Bytes> {
    figure(measurement, Reported::Unallocated).or_else(|| {
        let allocated = figure(measurement, Reported::Allocated)?;
        Some(figure(measurement, Reported::Reserved)?.saturating_sub(allocated))
    })
}

/// Why memory ran out, the likeliest first. Empty where nothing failed.
#[must_use]
pub fn causes(measurement: &Measurement) -> Vec<Cause> {
    let Some(failure) = &measurement.failure else { return Vec::new() };
    let tried = figure(measurement, Reported::Tried);
    match failure.kind {
        FailureKind::AbsurdRequest => vec![Cause::AbsurdRequest { tried: None }],
        FailureKind::OverAllocationLimit => vec![Cause::OverAllocationLimit { tried }],
        FailureKind::OverLimit => vec![Cause::Limit { allowed: None, held: None, free: None }],
        FailureKind::Driver => vec![Cause::Driver],
        FailureKind::Library => vec![Cause::Library { status: failure.what.clone().unwrap_or_default() }],
        FailureKind::Nccl => vec![Cause::Nccl],
        FailureKind::InferenceStart => vec![Cause::Inference],
        FailureKind::Host => vec![Cause::Host { tried }],
        FailureKind::Recomputation => vec![Cause::Recomputation { differ: failure.what.clone() }],
        FailureKind::OutOfMemory => match tried {
            Some(tried) => of_figures(measurement, failure, tried),
            // A compiler's plan for the whole program, beside what the device has.
            None => {
                let (allocated, total) =
                    (figure(measurement, Reported::XlaTotal), figure(measurement, Reported::Allowed));
                let missing = allocated.zip(total).map(|(allocated, total)| allocated.saturating_sub(total));
                vec![Cause::Peak { allocated: total.and(allocated), total, tried: None, missing }]
            }
        },
    }
}

/// The causes that the figures of an allocator's message allow.
fn of_figures(measurement: &Measurement, failure: &Failure, tried: Bytes) -> Vec<Cause> {
    let of = |name| figure(measurement, name);
    let (total, free, allowed) = (of(Reported::Total), of(Reported::Free), of(Reported::Allowed));
    let allocated = of(Reported::Allocated);
    let unused = unallocated(measurement).unwrap_or(Bytes::ZERO);
    let held = allocated.and_then(|allocated| allocated.checked_add(unused));
    let process = of(Reported::Process);

    // No card is 32 times as large as another of its time; without a total, a tebibyte is no tensor.
    let absurd = total.map_or(Bytes(GIB << 10), |total| Bytes(total.get().saturating_mul(32)));
    if tried >= absurd {
        return vec![Cause::AbsurdRequest { tried: Some(tried) }];
    }
    let mut causes = Vec::new();
    if let (Some(held), Some(total)) = (held, total)
        && held > total
    {
        causes.push(Cause::SharedMemory { held, total });
    }
    if let Some(total) = total.filter(|total| tried > *total) {
        causes.push(Cause::BeyondCard { tried, total });
        return causes;
    }
    let outside = of(Reported::Other).or_else(|| process.zip(held).map(|(process, held)| process.saturating_sub(held)));
    if let Some(allowed) = allowed
        && free.is_none_or(|free| free >= tried)
    {
        causes.extend(
            outside
                .filter(|outside| *outside > held.unwrap_or(Bytes::ZERO))
                .map(|outside| Cause::HiddenHolder { outside }),
        );
        causes.push(Cause::Limit { allowed: Some(allowed), held, free });
        return causes;
    }
    let Some(free) = free else {
        causes.push(Cause::Peak { allocated, total, tried: Some(tried), missing: None });
        return causes;
    };
    let fragmentation =
        Cause::Fragmentation { unallocated: unused, free, tried, expandable: failure.expandable_segments };
    // The driver needs some room of its own: a twentieth of the card beyond the request is room.
    let spare = Bytes(total.map_or(0, Bytes::get) / 20);
    if free.checked_sub(tried).is_some_and(|rest| rest >= spare) {
        causes.push(Cause::DriverRefused { free, tried });
        if unused >= tried {
            causes.push(fragmentation);
        }
        return causes;
    }
    let missing = tried.saturating_sub(free);
    let needed = if missing.is_zero() { tried } else { missing };
    // A tenth of the card decides what comes first; all of it is said.
    let tenth = Bytes(total.map_or(0, Bytes::get) / 10);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut say = |bytes: Bytes, cause: Cause| {
        if bytes >= needed {
            if bytes >= tenth { first.push(cause) } else { second.push(cause) }
        }
    };
    say(unused, fragmentation);
    if let Some(pools) = of(Reported::PrivatePools) {
        say(pools, Cause::PrivatePools { pools });
    }
    let (others, count) = others(measurement, held);
    say(others, Cause::OtherProcesses { held: others, count });
    match outside {
        Some(outside) if outside > Bytes(USUAL_OUTSIDE) => say(outside, Cause::HiddenHolder { outside }),
        Some(_) => {}
        None => {
            let seen = held.and_then(|held| held.checked_add(free)?.checked_add(others));
            let unseen = total.zip(seen).map_or(Bytes::ZERO, |(total, seen)| total.saturating_sub(seen));
            if unseen > Bytes(USUAL_OUTSIDE) {
                say(unseen, Cause::Unseen { bytes: unseen });
            }
        }
    }
    causes.extend(first);
    causes.push(Cause::Peak { allocated, total, tried: Some(tried), missing: Some(missing.saturating_sub(unused)) });
    causes.extend(second);
    causes
}

/// What processes other than the measured one hold. In a container the driver may not know the process's own number:
/// a lone process that holds what the allocator holds, and a context more, is the process itself.
fn others(measurement: &Measurement, held: Option<Bytes>) -> (Bytes, u32) {
    let known_self = measurement.processes.iter().any(|process| process.own);
    let is_self = |bytes: u64| {
        !known_self && held.is_some_and(|held| (held.get()..=held.get().saturating_add(USUAL_OUTSIDE)).contains(&bytes))
    };
    let others = measurement.processes.iter().filter(|process| !process.own).filter_map(|process| process.bytes);
    let (mut sum, mut count) = (Bytes::ZERO, 0);
    for bytes in others.filter(|bytes| !is_self(*bytes)) {
        sum = sum.checked_add(Bytes(bytes)).unwrap_or(sum);
        count += 1;
    }
    (sum, count)
}

/// What is worth knowing of one measurement.
#[must_use]
pub fn facts(measurement: &Measurement) -> Vec<Fact> {
    let of = |name| figure(measurement, name);
    let mut facts = Vec::new();
    facts.extend(request(measurement));
    if let Some(pools) = of(Reported::PrivatePools) {
        facts.push(Fact::PrivatePoolsCounted { pools });
    }
    if let (Some(process), Some(allocated)) = (of(Reported::Process), of(Reported::Allocated)) {
        let held = allocated.checked_add(unallocated(measurement).unwrap_or(Bytes::ZERO)).unwrap_or(allocated);
        facts.extend(process.checked_sub(held).map(|bytes| Fact::Gap { bytes }));
    }
    let count = |name: &str| measurement.counts.get(name).and_then(|count| u64::try_from(*count).ok());
    if let Some(count) = count("num_alloc_retries").filter(|count| *count > 0) {
        facts.push(Fact::Retries { count });
    }
    if let (Some(bytes), Some(reserved)) = (of(Reported::InactiveSplit), of(Reported::Reserved))
        && bytes.get() >= reserved.get() / 10
        && bytes > Bytes::ZERO
    {
        facts.push(Fact::Stuck { bytes, reserved });
    }
    if measurement.source.as_ref().is_some_and(|source| source.format == FormatId::JaxStats)
        && let (Some(held), Some(pool)) = (of(Reported::Allocated), of(Reported::Reserved))
    {
        facts.push(Fact::Pool { held, pool });
    }
    for (host, stage) in [false, true].into_iter().flat_map(|host| Stage::ALL.map(|stage| (host, stage))) {
        if let Some(kept) = measurement.bytes(ReadingName::Tracked(Tracked::Growth { stage, host })) {
            let above = bytes(measurement, ReadingName::Tracked(Tracked::Peaked { stage, host }));
            facts.push(Fact::Stage { stage, kept, above, host });
        }
    }
    let warm_up = measurement.series.iter().map(|series| series.warm_up).max().unwrap_or(0);
    if warm_up > 0 {
        facts.push(Fact::WarmUp { points: warm_up });
    }
    facts.extend(measurement.series.iter().filter_map(grows));
    let runs = measurement.readings.iter().map(|reading| reading.runs.len() as u64).max().unwrap_or(0);
    if runs > 1 {
        let spread = measurement.readings.iter().filter_map(crate::measure::Reading::spread).max().unwrap_or(0);
        facts.push(Fact::Runs { count: runs, spread: Bytes(spread.unsigned_abs()) });
    }
    facts
}

/// What a printed size says of the request: PyTorch asks the driver for whole segments. The same from 1.4 to 2.15
/// (`c10/core/AllocatorConfig.h`): 2 MiB for up to 1 MiB, 20 MiB for less than 10 MiB, else the next 2 MiB.
fn request(measurement: &Measurement) -> Option<Fact> {
    let source = measurement.source.as_ref().filter(|source| source.format == FormatId::PytorchOom)?;
    let later = |version: &str| !matches!(version, "1.0" | "1.1" | "1.2" | "1.3");
    if !source.pytorch_from.as_deref().is_some_and(later)
        || measurement.failure.as_ref()?.kind != FailureKind::OutOfMemory
    {
        return None;
    }
    let printed = figure(measurement, Reported::Tried)?;
    let reading = measurement.readings.iter().find(|r| r.name == ReadingName::Reported(Reported::Tried))?;
    // Until 2.10 the size is fixed; an open range of versions includes the later ones.
    let configurable = source.pytorch_to.is_none() || source.pytorch_to.as_deref() == Some("2.11");
    let (above, at_most, configurable) = match printed.get() {
        n if n == 2 * MIB => (Bytes::ZERO, Bytes(MIB), false),
        // Also what is just below 20 MiB and has a segment of its own size.
        n if n == 20 * MIB => {
            let or = Some([Bytes(18 * MIB), printed]);
            return Some(Fact::Request { printed, above: Bytes(MIB), at_most: Bytes(10 * MIB), or, configurable });
        }
        // Printed in GiB, the last digit is more than a segment's step.
        n if (10 * MIB..GIB).contains(&n) && reading.range.is_none_or(|[least, most]| most - least < 1 << 20) => {
            (Bytes(n.saturating_sub(2 * MIB)), printed, false)
        }
        _ => return None,
    };
    Some(Fact::Request { printed, above, at_most, or: None, configurable })
}

/// A level figure that grows, warm-up left out. Peaks are level by nature and tell nothing here.
fn grows(series: &Series) -> Option<Fact> {
    let lower = series.name.to_ascii_lowercase();
    if !matches!(series.tier, TierName::Allocated | TierName::Reserved)
        || lower.contains("max")
        || lower.contains("peak")
    {
        return None;
    }
    let steady = series.points.get(usize::try_from(series.warm_up).ok()?..)?;
    let ([first, ..], [.., last]) = (steady, steady) else { return None };
    let grown = last[1].checked_sub(first[1])?;
    let steps = u64::try_from(last[0].checked_sub(first[0])?).ok().filter(|steps| *steps > 0)?;
    let rising = steady.windows(2).filter(|pair| pair[1][1] >= pair[0][1]).count();
    // Shapes that vary go up and down: growth is what hardly ever goes down.
    (grown > LEAK && rising * 10 >= (steady.len() - 1) * 9).then(|| Fact::Grows {
        name: series.name.clone(),
        bytes: Bytes(grown.unsigned_abs()),
        steps,
    })
}

/// What is worth knowing of several measurements together: the ranks of one run.
#[must_use]
pub fn facts_together(measurements: &[Measurement]) -> Vec<Fact> {
    let of_ranks: Vec<Bytes> = measurements
        .iter()
        .filter(|m| m.source.as_ref().is_some_and(|source| source.rank.is_some() || source.device.is_some()))
        .filter_map(|m| figure(m, Reported::Allocated).or_else(|| bytes(m, ReadingName::MaxAllocated)))
        .collect();
    match (of_ranks.iter().min(), of_ranks.iter().max()) {
        (Some(least), Some(most)) if of_ranks.len() > 1 && most.get() - least.get() > most.get() / 20 => {
            vec![Fact::Uneven { least: *least, most: *most }]
        }
        _ => Vec::new(),
    }
}

fn bytes(measurement: &Measurement, name: ReadingName) -> Option<Bytes> {
    measurement.readings.iter().find_map(|reading| match reading.figure {
        Figure::Bytes(bytes) if reading.name == name => u64::try_from(bytes).ok().map(Bytes),
        _ => None,
    })
}

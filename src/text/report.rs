//! What is said of a measurement that was read: what was understood, why memory ran out, what to try. A catalogue of its
//! own: the page's first program has no use for it.

use crate::measure::explain::{Cause, Fact};
use crate::measure::{Backend, FailureKind, FormatId, Measurement, ReadingName, Reported, Source, Stage, explain};
use crate::text::Locale;
use crate::units::Bytes;

/// What one language says. Every method is one idea; none has a default.
pub trait ReportCatalogue: Sync {
    /// What was understood, in one sentence.
    fn read_back(&self, measurement: &Measurement) -> String;
    /// Why memory ran out, with its figures, as a sentence.
    fn cause(&self, cause: &Cause) -> String;
    /// What to try first against it, as a sentence.
    fn advice(&self, cause: &Cause) -> &'static str;
    /// What is worth knowing, as a sentence.
    fn fact(&self, fact: &Fact) -> String;
}

impl Locale {
    /// Its words for measurements.
    #[must_use]
    pub fn report(self) -> &'static dyn ReportCatalogue {
        match self {
            Self::En => &English,
        }
    }
}

struct English;

impl ReportCatalogue for English {
    fn read_back(&self, measurement: &Measurement) -> String {
        let mut parts = vec![head(measurement)];
        let of = |name| figure(measurement, ReadingName::Reported(name));
        let total = of(Reported::Total);
        match (of(Reported::Allocated), total) {
            (Some(allocated), Some(total)) => parts.push(format!("{allocated} of {total} allocated")),
            (Some(allocated), None) => parts.push(format!("{allocated} allocated")),
            (None, Some(total)) => parts.push(format!("a card of {total}")),
            (None, None) => {}
        }
        if let Some(unused) = explain::unallocated(measurement) {
            parts.push(format!("{unused} reserved but unused"));
        }
        for (name, words) in [
            (ReadingName::MaxAllocated, "highest allocated"),
            (ReadingName::MaxReserved, "highest reserved"),
            (ReadingName::Reported(Reported::Other), "held outside of PyTorch"),
            (ReadingName::Reported(Reported::Allowed), "allowed"),
            (ReadingName::Reported(Reported::Free), "free"),
            (ReadingName::Reported(Reported::XlaTotal), "in the program’s buffers"),
            (ReadingName::Reported(Reported::KvCache), "left for the KV cache"),
            (ReadingName::Params, "of weights"),
        ] {
            if let Some(bytes) = figure(measurement, name) {
                parts.push(format!("{bytes} {words}"));
            }
        }
        if let Some(tried) = of(Reported::Tried) {
            parts.push(match measurement.failure.as_ref().map(|failure| failure.kind) {
                Some(FailureKind::InferenceStart) => format!("wants {tried}"),
                _ => format!("asked for {tried} more"),
            });
        }
        parts.extend(measurement.gpus.iter().take(8).map(gpu));
        if measurement.gpus.len() > 8 {
            parts.push(format!("and {} more", measurement.gpus.len() - 8));
        }
        let others: Vec<_> = measurement.processes.iter().filter(|process| !process.own).collect();
        if !others.is_empty() {
            let count = others.len();
            let held = others.iter().try_fold(0_u64, |sum, process| sum.checked_add(process.bytes?));
            let held = held.map_or_else(String::new, |held| format!(" with {}", Bytes(held)));
            parts.push(format!("{count} {} listed{held}", if count == 1 { "process" } else { "processes" }));
        }
        let points = measurement.series.iter().map(|series| series.points.len()).max().unwrap_or(0);
        if points > 0 {
            parts.push(format!(
                "{} by step, {points} {}",
                list(measurement),
                if points == 1 { "point" } else { "points" }
            ));
        }
        let of_run = measurement
            .readings
            .iter()
            .filter(|r| !matches!(r.name, ReadingName::Reported(_) | ReadingName::Stat(_) | ReadingName::Tracked(_)));
        if measurement.source.is_none() {
            parts.push(format!("{} readings", of_run.count()));
        }
        if measurement.source.as_ref().is_some_and(|source| source.cut) {
            parts.push("the text is cut off".into());
        }
        format!("{}.", parts.join(", "))
    }

    fn cause(&self, cause: &Cause) -> String {
        match cause {
            Cause::AbsurdRequest { tried: Some(tried) } => {
                format!("A wrong size: {tried} in one request is no tensor of a model. A shape or an index is wrong.")
            }
            Cause::AbsurdRequest { tried: None } => {
                "A wrong size: more than an exabyte was asked for. A shape or an index is wrong.".into()
            }
            Cause::BeyondCard { tried, total } => {
                format!("A peak: the one request of {tried} is larger than the card’s {total}.")
            }
            Cause::OverAllocationLimit { tried } => match tried {
                Some(tried) => format!("The device gives no {tried} in one piece, however much is free."),
                None => "The device gives no such size in one piece, however much is free.".into(),
            },
            Cause::SharedMemory { held, total } => format!(
                "Shared system memory: PyTorch holds {held} on a card of {total}. The driver has spilled into the machine’s own memory, which is slow."
            ),
            Cause::Limit { allowed, held, free } => {
                let mut text = match allowed {
                    Some(allowed) => format!("A limit: the process may take {allowed}"),
                    None => "A limit that was set for the process".into(),
                };
                if let Some(held) = held {
                    text += &format!(" and holds {held}");
                }
                if let Some(free) = free {
                    text += &format!("; {free} are free on the card");
                }
                text + "."
            }
            Cause::Fragmentation { unallocated, tried, .. } if unallocated >= tried => format!(
                "Fragmentation: {unallocated} are reserved and unused, in pieces that are too small for {tried}."
            ),
            Cause::Fragmentation { unallocated, free, tried, .. } => format!(
                "Fragmentation: {unallocated} are reserved and unused; with the {free} that are free they would do for {tried}."
            ),
            Cause::PrivatePools { pools } => {
                format!("A hidden holder: private pools (CUDA graphs) keep {pools} to themselves.")
            }
            Cause::OtherProcesses { held, count } => match count {
                1 => format!("Another process holds {held} of the card."),
                count => format!("{count} other processes hold {held} of the card."),
            },
            Cause::HiddenHolder { outside } => {
                format!("A hidden holder: {outside} of this process are outside of PyTorch’s allocator.")
            }
            Cause::Unseen { bytes } => {
                format!("A hidden holder: {bytes} of the card are held by something that the message does not name.")
            }
            Cause::DriverRefused { free, tried } => {
                format!("The driver refused {tried} although {free} were free when the message was written.")
            }
            Cause::Peak { allocated, total, tried, missing } => {
                let mut text = match (allocated, total) {
                    (Some(allocated), Some(total)) => format!("A peak: tensors hold {allocated} of {total}"),
                    (Some(allocated), None) => format!("A peak: tensors hold {allocated}"),
                    _ => "A peak: the tensors do not fit".into(),
                };
                if let (Some(_), Some(tried)) = (allocated, tried) {
                    text += &format!(", and {tried} more did not fit beside them");
                }
                match missing {
                    Some(missing) if !missing.is_zero() => text + &format!("; {missing} were missing."),
                    _ => text + ".",
                }
            }
            Cause::Driver => "A direct call of the driver found the card full. The message has no figures.".into(),
            Cause::Library { status } => format!(
                "{status}: a library’s workspace or handle found no room beside PyTorch’s cache. An index out of range can end in the same message."
            ),
            Cause::Nccl => "NCCL found no room for its buffers, which lie outside of PyTorch’s allocator.".into(),
            Cause::Host { tried: Some(tried) } => {
                format!("The machine’s own memory ran out: {tried} more did not fit.")
            }
            Cause::Host { tried: None } => "The machine’s own memory ran out, and the system ended a process.".into(),
            Cause::Recomputation { differ: Some(differ) } => {
                format!("Checkpointing ran a layer again under another autocast state: {differ}.")
            }
            Cause::Recomputation { differ: None } => {
                "Checkpointing ran a layer again otherwise than in forward.".into()
            }
            Cause::Inference => {
                "An inference server that found too little memory: no training is measured here.".into()
            }
        }
    }

    fn advice(&self, cause: &Cause) -> &'static str {
        match cause {
            Cause::AbsurdRequest { .. } => "Look for the shape: print it before the line of the error.",
            Cause::BeyondCard { .. } => {
                "Make that tensor smaller: attention that stores no matrix, the loss in pieces, a shorter sequence."
            }
            Cause::OverAllocationLimit { .. } => "Split the tensor: a smaller micro-batch.",
            Cause::SharedMemory { .. } => {
                "Need less, or switch the driver’s fallback to system memory off, so that it fails where it does not fit."
            }
            Cause::Limit { .. } => {
                "Raise the limit (set_per_process_memory_fraction, the watermark ratio, the MIG slice), or need less."
            }
            Cause::Fragmentation { expandable: Some(true), .. } => {
                "Expandable segments are on already: use fewer different shapes, the longest first."
            }
            Cause::Fragmentation { .. } => {
                "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; max_split_size_mb more often makes it worse."
            }
            Cause::PrivatePools { .. } => "Capture fewer graphs, or let them share one pool.",
            Cause::OtherProcesses { .. } => "End them, or choose another GPU: nvidia-smi shows whose they are.",
            Cause::HiddenHolder { .. } => {
                "Find what else uses the GPU in this process: NCCL’s buffers, another framework, a second context."
            }
            Cause::Unseen { .. } => {
                "Look at nvidia-smi (rocm-smi on AMD’s cards): another process, a dead one, the desktop."
            }
            Cause::DriverRefused { .. } => {
                "Look for a limit outside of PyTorch: a container’s, an address space’s, another process that came and went."
            }
            Cause::Peak { .. } => {
                "Halve the micro-batch and accumulate gradients, or checkpoint activations; this program prices both."
            }
            Cause::Driver | Cause::Library { .. } | Cause::Nccl => {
                "Leave room beside PyTorch’s cache: a smaller micro-batch, or set_per_process_memory_fraction(0.9)."
            }
            Cause::Host { .. } => {
                "Need less host memory: fewer workers of the data loader, no offload, one process that loads weights at a time."
            }
            Cause::Recomputation { .. } => {
                "Run the layers again under forward’s autocast, and keep functions that do not repeat out of checkpointed parts."
            }
            Cause::Inference => "Lower what the server may take, or free the GPU before it starts.",
        }
    }

    fn fact(&self, fact: &Fact) -> String {
        match fact {
            Fact::Request { printed, above, at_most, or, configurable } => {
                let mut range = if above.is_zero() {
                    format!("at most {at_most}")
                } else {
                    format!("more than {above} and at most {at_most}")
                };
                if let Some([above, at_most]) = or {
                    range += &format!(", or more than {above} and at most {at_most}");
                }
                let more = if *configurable { "; since 2.11, large_segment_size_mb can change that" } else { "" };
                format!(
                    "“Tried to allocate {printed}” is PyTorch’s segment: by default the tensor needs {range}{more}."
                )
            }
            Fact::Gap { bytes } => {
                format!("{bytes} of the process are no cache of PyTorch’s: context, libraries, communication.")
            }
            Fact::PrivatePoolsCounted { pools } => format!(
                "The {pools} “allocated in private pools” are their free blocks, counted as allocated by the message."
            ),
            Fact::Retries { count } => {
                format!("{count} times the allocator gave its cache back and tried again: it ran at the card’s limit.")
            }
            Fact::Pool { held, pool } => format!(
                "JAX has taken {pool} from the driver, which is what nvidia-smi shows; arrays hold {held} of it. By default it takes three quarters of the card at once: XLA_PYTHON_CLIENT_PREALLOCATE=false changes that."
            ),
            Fact::Stage { stage, kept, above, host } => {
                let stage = match stage {
                    Stage::Init => "Making the trainer",
                    Stage::Train => "Training",
                    Stage::Eval => "Evaluating",
                    Stage::Test => "Predicting",
                };
                let place = if *host { ", in host memory" } else { "" };
                let (bytes, more) = (Bytes(kept.unsigned_abs()), if *kept < 0 { "less" } else { "more" });
                let above =
                    above.map_or_else(String::new, |above| format!(", and at its highest {above} above its end"));
                format!("{stage}{place}: {bytes} {more} in use at its end than at its start{above}.")
            }
            Fact::Stuck { bytes, reserved } => {
                format!("{bytes} of {reserved} reserved are free inside of segments in use, and cannot be given back.")
            }
            Fact::Grows { name, bytes, steps } => {
                format!(
                    "{name} grows by {bytes} over {steps} steps: more than a megabyte is a leak, or shapes that vary."
                )
            }
            Fact::WarmUp { points: 1 } => "The first point is warm-up and left out of comparisons.".into(),
            Fact::WarmUp { points } => format!("The first {points} points are warm-up and left out of comparisons."),
            Fact::Uneven { least, most } => {
                format!("The ranks hold {least} to {most}: more than 5 % apart. Look at the batch of each rank.")
            }
            Fact::Runs { count, spread } => {
                format!("The mean of {count} runs; the same figure differs by {spread} at most.")
            }
        }
    }
}

fn figure(measurement: &Measurement, name: ReadingName) -> Option<Bytes> {
    measurement.bytes(name).and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes)
}

/// Who wrote it, and of which process.
fn head(measurement: &Measurement) -> String {
    let Some(source) = &measurement.source else {
        let producer = measurement.producer.as_ref().map(|producer| producer.name.as_str());
        return producer.map_or_else(|| "A measurement".into(), |producer| format!("A measurement by {producer}"));
    };
    let mut head = match source.format {
        FormatId::PytorchOom | FormatId::AsyncOom | FormatId::MpsOom => format!("PyTorch{}", versions(source)),
        FormatId::CudaError => "An error of the driver".into(),
        FormatId::LibraryOom => "An error of a CUDA library".into(),
        FormatId::NcclOom => "NCCL".into(),
        FormatId::HostOom => "An error about the machine’s own memory".into(),
        FormatId::Recomputation => "PyTorch’s checkpointing".into(),
        FormatId::XlaOom => "JAX".into(),
        FormatId::TensorflowOom => "TensorFlow".into(),
        FormatId::Vllm => "vLLM".into(),
        FormatId::Deepspeed => "DeepSpeed".into(),
        FormatId::Axolotl => "axolotl".into(),
        FormatId::NvidiaSmi => "nvidia-smi".into(),
        FormatId::RocmSmi => "rocm-smi".into(),
        FormatId::AmdSmi => "amd-smi".into(),
        FormatId::MemorySummary => "torch.cuda.memory_summary()".into(),
        FormatId::MemoryStats => "torch.cuda.memory_stats()".into(),
        FormatId::JaxStats => "JAX’s memory_stats()".into(),
        FormatId::TrainerMemory => "A Hugging Face trainer’s memory metrics".into(),
        FormatId::Series => "A log of figures".into(),
        FormatId::TrainerState => "A Hugging Face trainer’s state".into(),
        FormatId::Tensorboard => "TensorBoard events".into(),
        FormatId::Document | FormatId::Script => "A measurement".to_owned(),
    };
    if let Some(driver) = measurement.environment.as_ref().and_then(|environment| environment.driver.as_ref()) {
        head += &format!(", driver {driver}");
    }
    match measurement.failure.as_ref().and_then(|failure| failure.backend) {
        Some(Backend::Hip) => head += " with ROCm",
        Some(Backend::Xpu) => head += " on XPU",
        Some(Backend::Mps) => head += " on MPS",
        Some(Backend::Cuda) | None => {}
    }
    if let Some(label) = &source.label {
        head += &format!(", “{label}”");
    }
    match (source.rank, source.device) {
        (Some(rank), Some(device)) => head += &format!(", rank {rank} on GPU {device}"),
        (Some(rank), None) => head += &format!(", rank {rank}"),
        (None, Some(device)) => head += &format!(", GPU {device}"),
        (None, None) if measurement.failure.is_some() => head += ", one process",
        (None, None) => {}
    }
    head
}

/// ` 2.2 to 2.9`, ` 2.11 or later`, ` 2.1`.
fn versions(source: &Source) -> String {
    match (&source.pytorch_from, &source.pytorch_to) {
        (Some(from), Some(to)) if from == to => format!(" {from}"),
        (Some(from), Some(to)) => format!(" {from} to {to}"),
        (Some(from), None) => format!(" {from} or later"),
        (None, _) => String::new(),
    }
}

fn gpu(gpu: &crate::measure::Gpu) -> String {
    let name = match &gpu.name {
        Some(name) => format!("GPU {} ({name})", gpu.index),
        None => format!("GPU {}", gpu.index),
    };
    match (gpu.used_bytes, gpu.total_bytes) {
        (Some(used), Some(total)) => format!("{name}: {used} of {total} used"),
        (None, Some(total)) => format!("{name}: {total}"),
        (Some(used), None) => format!("{name}: {used} used"),
        (None, None) => format!("{name}: no figures"),
    }
}

/// The names of the series.
fn list(measurement: &Measurement) -> String {
    let names: Vec<&str> = measurement.series.iter().take(4).map(|series| series.name.as_str()).collect();
    let more = measurement.series.len().saturating_sub(4);
    if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
}

//! What explains the difference between a prediction and a measurement.

use super::English;
use crate::calibration::{Fitted, Quantity, whole};
use crate::measure::TierName;
use crate::model::ModelSource;
use crate::plan::Plan;
use crate::recipe::{Checkpointing, Loss, Precision, ZeroGrad};
use crate::reconcile::empirical::{Beyond, Costs, Empirical, EmpiricalPeak, Instant, Unfit};
use crate::reconcile::{
    Certainty, Change, Comparison, Entry, Grown, Hypothesis, Reconciliation, Suspect, Symptom, Trend, Why,
};
use crate::text::{Catalogue, Compared, Locale, ReconcileCatalogue, Searched, issue_line};
use crate::throughput::Range;
use crate::units::{Bytes, three_digits};

impl ReconcileCatalogue for English {
    fn residual(&self, found: &Reconciliation) -> String {
        let count = found.compared;
        let figures = if count == 1 { "1 figure".to_owned() } else { format!("{count} figures") };
        match found.residual {
            None if count == 0 => "No figure of it is predicted: nothing can be compared.".into(),
            None => format!("{figures} compared: as predicted."),
            Some((name, predicted, measured)) => format!(
                "{figures} compared. Furthest off: {}, predicted {}, measured {}.",
                self.reading(name).to_lowercase(),
                signed(predicted),
                signed(measured)
            ),
        }
    }

    fn change(&self, change: Change) -> String {
        let yes_no = |yes: bool, what: &str, not: &str| (if yes { what } else { not }).to_owned();
        match change {
            Change::Precision(precision) => format!("precision {}", precision.name()),
            Change::Attention(attention) => format!("attention {}", self.attention(attention)),
            Change::SdpaBackend(Some(backend)) => format!("sdpa’s backend {}", self.sdpa_backend(backend)),
            Change::SdpaBackend(None) => "the backend of sdpa that PyTorch chooses".into(),
            Change::Checkpointing(Checkpointing::None) => "no checkpointing".into(),
            Change::Checkpointing(Checkpointing::Every(k)) => format!("checkpointing of one layer in {k}"),
            Change::Checkpointing(mode) => format!("checkpointing {}", self.checkpointing(mode)),
            Change::Optimizer { name, implementation, momentum } => {
                let how = implementation.map(|one| format!(" ({})", self.implementation(one))).unwrap_or_default();
                let momentum = if momentum > 0.0 { " with momentum" } else { "" };
                format!("{}{how}{momentum}", self.optimizer(name))
            }
            Change::Momentum(momentum) => yes_no(momentum > 0.0, "momentum", "no momentum"),
            Change::Implementation(one) => format!("the {} implementation of the optimizer", self.implementation(one)),
            Change::InBackward(yes) => yes_no(yes, "the optimizer in backward", "the optimizer after backward"),
            Change::Clip(yes) => yes_no(yes, "clipped gradients", "gradients that are not clipped"),
            Change::ZeroGrad(ZeroGrad::None) => "gradients freed between steps".into(),
            Change::ZeroGrad(ZeroGrad::Zero) => "gradients kept and zeroed between steps".into(),
            Change::ZeroGrad(ZeroGrad::AfterForward) => "gradients freed between forward and backward".into(),
            Change::GradAccum(1) => "one micro-batch a step".into(),
            Change::GradAccum(n) => format!("{n} micro-batches a step"),
            Change::Loss(Loss::Hf) => "the logits of all tokens at once".into(),
            Change::Loss(Loss::Chunked(n)) => format!("the loss in {n} pieces"),
            Change::Loss(Loss::ChunkedOutputs(n)) => format!("the logits in {n} pieces"),
            Change::Loss(Loss::LinearCrossEntropy(_)) => "PyTorch’s linear_cross_entropy".into(),
            Change::Loss(Loss::LogitsToKeep(n)) => format!("the logits of the last {n} tokens"),
            Change::Liger(yes) => yes_no(yes, "Liger’s kernels", "no kernels of Liger’s"),
            Change::KeepOutputs(yes) => {
                yes_no(yes, "a loop that keeps the outputs through backward", "a loop that lets the outputs go")
            }
            Change::MicroBatch(n) => format!("micro-batch {n}"),
            Change::SeqLen(n) => format!("{n} tokens a sequence"),
            Change::LoraRank(Some(rank)) => format!("adapters of rank {rank}"),
            Change::LoraRank(None) => "every weight trained".into(),
            Change::LoraEverywhere => "adapters on every linear layer".into(),
            Change::WorkspaceKept(yes) => {
                yes_no(yes, "cuBLAS workspaces that are kept", "cuBLAS workspaces that are freed after each call")
            }
            Change::Pytorch(version) => format!("PyTorch {version}"),
            Change::Transformers(version) => format!("transformers {version}"),
            Change::ExpandableSegments(yes) => yes_no(yes, "expandable segments", "no expandable segments"),
        }
    }

    fn suspect(&self, suspect: &Suspect, plan: &Plan) -> String {
        match suspect {
            Suspect::Change(change) => {
                let now = change.in_plan(plan).filter(|now| now != change);
                let not = now.map(|now| format!(", not {}", self.change(now))).unwrap_or_default();
                format!("Your numbers fit {}{not}.", self.change(*change))
            }
            Suspect::Outside { bytes } => format!(
                "The process holds {bytes} outside of PyTorch’s allocator: its context, communicators, other libraries."
            ),
            Suspect::OtherProcesses { bytes } => format!("Other processes hold {bytes} of the card."),
            Suspect::Fragmentation { bytes } => {
                format!("Fragmentation: {bytes} more are reserved than steps of one shape need.")
            }
            Suspect::Holder { bytes } => format!(
                "A hidden holder: {bytes} more are alive at every instant, such as a second model or tensors that are kept."
            ),
        }
    }

    fn suspected(&self, suspect: &Suspect) -> String {
        match suspect {
            Suspect::Change(change) => self.change(*change),
            Suspect::Outside { bytes } => format!("{bytes} outside of PyTorch’s allocator"),
            Suspect::OtherProcesses { bytes } => format!("{bytes} of other processes"),
            Suspect::Fragmentation { bytes } => format!("{bytes} of fragmentation"),
            Suspect::Holder { bytes } => format!("a hidden holder of {bytes}"),
        }
    }

    fn certainty(&self, certainty: Certainty) -> &'static str {
        match certainty {
            Certainty::High => "high confidence",
            Certainty::Likely => "likely",
            Certainty::Possible => "possible",
        }
    }

    fn support(&self, hypothesis: &Hypothesis) -> String {
        let Hypothesis { explained, left, contradicts, confidence, .. } = hypothesis;
        let mut said = format!(
            "{} ({:.0} %): explains {:.0} % of the difference",
            self.certainty(hypothesis.certainty()),
            // What is not certain is not called so.
            (confidence * 100.0).floor(),
            (explained * 100.0).floor(),
        );
        if *left != 0 {
            said += &format!(" and leaves {} of that figure", signed(*left));
        }
        match contradicts.as_slice() {
            [] => {}
            [one] => said += &format!("; makes worse: {}", self.reading(*one).to_lowercase()),
            [one, more @ ..] => {
                said += &format!("; makes worse: {} and {} more", self.reading(*one).to_lowercase(), more.len());
            }
        }
        said + "."
    }

    fn symptom(&self, symptom: &Symptom) -> String {
        match symptom {
            Symptom::Gap { gap, cached: Some(cached) } => {
                let outside = gap.saturating_sub(*cached);
                format!(
                    "The process holds {gap} more than its tensors: {cached} are PyTorch’s cache, {outside} lie outside of it."
                )
            }
            Symptom::Gap { gap, cached: None } => {
                format!("The process holds {gap} more than its tensors: PyTorch’s cache, and what lies outside of it.")
            }
            Symptom::BackwardPeak { forward, peak } => format!(
                "Backward peaks at {peak}, {:.1} times the {forward} that forward leaves: intermediates are kept for it.",
                peak.as_f64() / forward.as_f64().max(1.0)
            ),
            Symptom::OutInStep => {
                "Memory ran out in optimizer.step(): its temporaries come on top of weights, gradients and states."
                    .into()
            }
            Symptom::Uneven { least, most } => {
                format!("The ranks hold {least} to {most}, more than 5 % apart: their data or their share is uneven.")
            }
            Symptom::FragmentationGrows { from, to, steps } => format!(
                "Fragmentation grows: {:.0} % of what is reserved was unused, and {:.0} % is after {steps} steps, as with shapes that vary.",
                from * 100.0,
                to * 100.0
            ),
            Symptom::Leak(Trend { slope, within: [low, high], steps }) => format!(
                "A leak: allocated memory grows by {:.1} MB a step ({:.1} to {:.1}) over {steps} steps.",
                slope / 1e6,
                low / 1e6,
                high / 1e6
            ),
            Symptom::OtherProcesses { held, count: 1 } => format!("Another process holds {held} of the card."),
            Symptom::OtherProcesses { held, count } => format!("{count} other processes hold {held} of the card."),
            Symptom::OutAtStart { step } => {
                format!("Memory ran out at the start, after step {step}: the job as it is does not fit.")
            }
            Symptom::OutAfterHours { step, grown: Some(grown) } => {
                format!(
                    "Memory ran out after step {step}, having grown by {grown} until then: the job fitted at first."
                )
            }
            Symptom::OutAfterHours { step, grown: None } => {
                format!("Memory ran out after step {step}: the job fitted until a step that needed more.")
            }
            Symptom::Limit { allowed, free } => {
                let allowed = allowed.map_or_else(String::new, |allowed| format!(" of {allowed}"));
                let free = free.map_or_else(String::new, |free| format!(" while {free} of the card were free"));
                format!("A limit{allowed} that someone set was reached{free}.")
            }
            Symptom::HostOutOfMemory => "The machine’s own memory ran out, not the card’s.".into(),
            Symptom::Recomputation { autocast: true, what } => {
                let what = what.as_deref().map_or_else(String::new, |what| format!(": {what}"));
                format!("Autocast was on in forward or in recomputation alone{what}.")
            }
            Symptom::Recomputation { autocast: false, .. } => {
                "Checkpointing ran a layer again and it saved other tensors than in forward.".into()
            }
        }
    }

    fn check(&self, symptom: &Symptom) -> &'static str {
        match symptom {
            Symptom::Gap { .. } => "Compare nvidia-smi with torch.cuda.memory_reserved(), or take a memory_snapshot().",
            Symptom::BackwardPeak { .. } => "Hooks on each module show which one keeps the most.",
            Symptom::OutInStep => {
                "Read max_memory_allocated() before and after the step, with reset_peak_memory_stats()."
            }
            Symptom::Uneven { .. } => "Print memory and batch shape for each rank.",
            Symptom::FragmentationGrows { .. } => "Watch reserved less allocated from step to step.",
            Symptom::Leak(_) => "Compare memory_allocated() before and after a step of the same shape.",
            Symptom::OtherProcesses { .. } => "nvidia-smi lists each process and its owner.",
            Symptom::OutAtStart { .. } => "Hold the plan against the card: the bill says which part is too large.",
            Symptom::OutAfterHours { .. } => {
                "Log allocated and reserved memory with the batch’s shape: growth is a leak or fragmentation, a single jump is a longer batch or an evaluation."
            }
            Symptom::Limit { .. } => "Look for set_per_process_memory_fraction, a MIG slice, a watermark ratio.",
            Symptom::HostOutOfMemory => {
                "dmesg names the process that was ended; watch its resident memory, as with mprof."
            }
            Symptom::Recomputation { .. } => "set_checkpoint_debug_enabled(True) prints the operations of both passes.",
        }
    }

    fn remedy(&self, symptom: &Symptom) -> &'static str {
        match symptom {
            Symptom::Gap { .. } => "Keep about 2 GB of the card free for context, communication buffers and cache.",
            Symptom::BackwardPeak { .. } => "Checkpoint activations, or halve the micro-batch and accumulate.",
            Symptom::OutInStep => {
                "Use the fused implementation, which holds no temporaries; shard the states; empty the cache before the step."
            }
            Symptom::Uneven { .. } => "Make the loader give every rank batches of the same size and length.",
            Symptom::FragmentationGrows { .. } => "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            Symptom::Leak(_) => {
                "Keep no tensors that carry a graph: log loss.item(), detach what is collected, clear lists and caches."
            }
            Symptom::OtherProcesses { .. } => {
                "End them, or choose another GPU, or enter what they hold as memory in use."
            }
            Symptom::OutAtStart { .. } => "Lower the rigid cost or the micro-batch: checkpointing, adapters, sharding.",
            Symptom::OutAfterHours { .. } => {
                "Put the longest batch first so that it fails at once; set expandable_segments:True; close what leaks."
            }
            Symptom::Limit { .. } => "Raise the limit, or plan for it as the card’s memory.",
            Symptom::HostOutOfMemory => {
                "Use fewer workers of the data loader and less offload, and let one process a time load weights."
            }
            Symptom::Recomputation { autocast: true, .. } => {
                "Enter autocast outside of checkpoint(), around the whole forward, so that recomputation runs under the same state."
            }
            Symptom::Recomputation { autocast: false, .. } => {
                "Keep functions that do not repeat out of checkpointed parts: random choices, caches, conditions on state."
            }
        }
    }

    fn unexplained(&self, bytes: i64) -> String {
        format!("Nothing we know explains {}.", Bytes(bytes.unsigned_abs()))
    }

    fn quantity(&self, quantity: &Quantity) -> String {
        let Quantity { of, value, low, high } = *quantity;
        let (name, about) = match of {
            Fitted::Overhead => ("allocated beside the step", ""),
            Fitted::Fragmentation => ("fragmentation", " of reserved memory beyond one shape’s"),
            Fitted::Context => ("context and libraries", ""),
            Fitted::Communicators => ("NCCL’s communicators", ""),
            Fitted::InUse => ("other processes", ""),
            Fitted::Efficiency => ("efficiency", " of what is assumed"),
        };
        #[expect(clippy::cast_possible_truncation, reason = "bytes below 2⁵³")]
        let one = |value: f64| match of.is_share() {
            true if value < 0.0 => format!("−{} %", three_digits(-value * 100.0)),
            true => format!("{} %", three_digits(value * 100.0)),
            false => signed(value.round() as i64),
        };
        format!("{name} {}{about} ({} to {})", one(value), one(low), one(high))
    }

    fn calibrated(&self, measurements: u64) -> String {
        let of = if measurements == 1 { "one measurement".into() } else { format!("{measurements} measurements") };
        format!("Fitted to {of}; nine in ten further ones are expected in the intervals.")
    }

    fn calibration(&self) -> &'static str {
        "calibration"
    }

    fn within(&self, tier: TierName, [low, high]: [Bytes; 2]) -> String {
        format!("{} peak {low} to {high}", self.tier(tier).to_lowercase())
    }

    fn buys(&self, entry: &Entry) -> String {
        let at = |grown: &Grown| {
            let most = if grown.from.is_none() { "at most " } else { "" };
            let speed = grown.speed.map(|speed| format!(", {} samples/s", rate(speed))).unwrap_or_default();
            format!(" ({most}{}{speed})", grown.peak)
        };
        let micro_batch = entry.micro_batch.as_ref().map(|grown| match grown.from {
            Some(_) => format!("micro-batch {}{}", grown.to, at(grown)),
            None => format!("{} times the micro-batch{}", grown.to, at(grown)),
        });
        let seq_len = entry.seq_len.as_ref().map(|grown| format!("{} tokens a sequence{}", grown.to, at(grown)));
        micro_batch.into_iter().chain(seq_len).collect::<Vec<String>>().join(" or ")
    }

    fn stands_out(&self, found: &Comparison) -> Vec<String> {
        let Comparison { entries, budget, fastest, fastest_grown } = found;
        let mut said = Vec::new();
        if let Some(budget) = budget {
            said.push(format!("No card is given: what is free is counted up to the highest peak, {budget}."));
        }
        let of = |at: &Option<usize>| at.and_then(|at| entries.get(at));
        if let Some((entry, speed)) = of(fastest).and_then(|entry| Some((entry, entry.speed?))) {
            said.push(format!("Fastest as it is: {}, {} samples/s.", entry.name, rate(speed)));
        }
        if let Some((entry, grown)) = of(fastest_grown).and_then(|entry| Some((entry, entry.micro_batch?))) {
            let speed = grown.speed.map(|speed| format!(", up to {} samples/s", three_digits(speed.high)));
            let how = match grown.from {
                Some(_) => format!("with micro-batch {}", grown.to),
                None => format!("with {} times the micro-batch", grown.to),
            };
            said.push(format!("With its free memory spent: {} {how}{}.", entry.name, speed.unwrap_or_default()));
        }
        said
    }

    fn samples_per_second(&self, speed: Option<Range>) -> String {
        speed.map_or_else(|| "—".to_owned(), rate)
    }

    fn compared(&self, what: &Compared<'_>) -> String {
        let said = match what {
            Compared::Measured(n) => return format!("measured {n}"),
            Compared::Runs(runs @ 2..) => return format!("{runs} runs"),
            Compared::Predicted(bytes) => return format!("predicted {bytes}"),
            Compared::Plan(plan) => {
                let model = match &plan.model {
                    ModelSource::Preset(name) => name,
                    _ => "own model",
                };
                let precision = plan.recipe.precision.map_or("precision not known", Precision::name);
                let varies = Locale::En.advice().searched(&Searched::Plan(plan));
                return format!("{model}, {precision}, {varies}");
            }
            Compared::Ask => "Compare side by side",
            Compared::Hint => {
                "These inputs, what was measured, and what you keep: peak, speed, which fits, which is fastest, and what the free memory would buy. Several files dropped at once are a row each."
            }
            Compared::Start => "Compare",
            Compared::Stop => "Stop",
            Compared::Going => "Comparing…",
            Compared::Earlier => "This is of earlier inputs.",
            Compared::KeepInputs => "Keep these inputs",
            Compared::KeepMeasured => "Keep what was measured",
            Compared::Kept => "Kept",
            Compared::Remove => "Remove",
            Compared::Inputs => "these inputs",
            Compared::Runs(0) => "predicted",
            Compared::Runs(_) => "measured",
            Compared::NameHead => "Configuration",
            Compared::PeakHead => "Peak",
            Compared::SpreadHead => "Spread",
            Compared::SpeedHead => "Samples/s",
            Compared::VerdictHead => "Verdict",
            Compared::BuysHead => "Free memory would buy",
        };
        said.into()
    }

    fn empirical(&self, model: &Empirical) -> String {
        let Empirical { tokens: [least, most], seq_len: [shortest, longest], points, .. } = model;
        let lengths = if shortest == longest { shortest.to_string() } else { format!("{shortest} to {longest}") };
        format!(
            "Empirical, from {points} measurements and nothing else: {least} to {most} tokens a micro-batch, {lengths} a sequence."
        )
    }

    fn costs(&self, instant: &Instant) -> String {
        let bytes = |bytes: f64| {
            let size = whole(bytes.abs());
            if bytes < 0.0 { format!("−{size}") } else { size.to_string() }
        };
        let one = |costs: &Costs| {
            let mut said = bytes(costs.fixed);
            for (each, what) in [(costs.per_token, "a token"), (costs.per_pair, "a token and token of its sequence")] {
                if each > 0.0 {
                    said += &format!(" + {} {what}", bytes(each));
                }
            }
            said
        };
        let all: Vec<String> = instant.costs.iter().map(one).collect();
        let least = if instant.floor > 0.0 { format!(", at least {}", bytes(instant.floor)) } else { String::new() };
        format!("{}: {}{least}", self.reading(instant.name), all.join(" or "))
    }

    fn empirical_peak(&self, micro_batch: u64, seq_len: u64, peak: &EmpiricalPeak) -> String {
        let EmpiricalPeak { bytes, low, high, within_range } = peak;
        let range = if *within_range { "inside" } else { "beyond" };
        format!(
            "Micro-batch {micro_batch} of {seq_len} tokens: {bytes} allocated at the peak ({low} to {high}), empirical, {range} what was measured."
        )
    }

    fn unfit(&self, unfit: Unfit) -> &'static str {
        match unfit {
            Unfit::TooFew => "Two measurements with different numbers of tokens are the least.",
            Unfit::NoFigure => "No peak of allocated memory is in all of them.",
        }
    }

    fn beyond(&self, beyond: Beyond) -> &'static str {
        match beyond {
            Beyond::Sequence => {
                "How memory grows with the sequence is not known there: attention may keep its scores, which grow with the square. Measure two lengths, three batches in all, or say which attention runs."
            }
            Beyond::TooFar => {
                "Too far from what was measured: at most twice as much or half as little; of peaks of whole runs no further."
            }
        }
    }

    fn left_out(&self, why: &Why) -> String {
        match why {
            Why::Refused(issues) => {
                let all: Vec<String> = issues.iter().map(|issue| issue_line(self, issue)).collect();
                format!("left out, its plan cannot be walked: {}", all.join("; "))
            }
            Why::Recipe(change) => {
                format!("left out: its figures fit {}. Adopt that first; no quantity should hide it.", self.change(*change))
            }
            Why::Unexplained => {
                "what is allocated is left out: it is off by different amounts at different instants, which no quantity explains."
                    .into()
            }
            Why::OneFigure => {
                "what is allocated is left out: one figure cannot tell what is kept beside the step from another recipe."
                    .into()
            }
        }
    }
}

/// A rate, or a range of rates.
fn rate(Range { low, high }: Range) -> String {
    let (low, high) = (three_digits(low), three_digits(high));
    if low == high { low } else { format!("{low} to {high}") }
}

/// A byte count with its sign.
fn signed(bytes: i64) -> String {
    let size = Bytes(bytes.unsigned_abs());
    if bytes < 0 { format!("−{size}") } else { size.to_string() }
}

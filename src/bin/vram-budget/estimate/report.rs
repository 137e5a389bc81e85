//! The estimate as text, for a terminal: the answer first, then the bill, the tree and what to change.

use std::io::{self, Write};

use vram_budget::bill::{Instant, Part, Tier};
use vram_budget::calibration::{Calibration, Intervals, intervals};
use vram_budget::decide::{
    Advice, Candidate, Caveat, Decision, Declined, Fact, Figure, Numbers, PricedRemedy, Question, Reason, TreeStep,
    VerdictKind,
};
use vram_budget::estimate::phases as on_card;
use vram_budget::estimate::{Note, Peak, RankEstimate, binding_phase, read_model};
use vram_budget::machine::GpuChoice;
use vram_budget::model::ModelSource;
use vram_budget::plan::Plan;
use vram_budget::recipe::parallel::DataParallel;
use vram_budget::recipe::{Checkpointing, Parallel};
use vram_budget::step::capacity::SmallestCard;
use vram_budget::step::readings::{CheckpointReadings, Holder, PhaseReadings};
use vram_budget::text::{Advised, Catalogue, Label, Locale, RankSaid};
use vram_budget::throughput::Throughput;
use vram_budget::units::{Bytes, grouped, three_digits};
use vram_budget::versions::holding;

pub(super) fn print(
    plan: &Plan,
    decision: &Decision,
    smallest: Option<&SmallestCard>,
    ranks: &[RankEstimate],
    tokens: Option<u64>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let text = Locale::En.text();
    answer(text, decision, out)?;
    job(text, plan, out)?;
    bill(text, plan, decision, out)?;
    if let Some(smallest) = smallest {
        smallest_card(text, smallest, out)?;
    }
    host(decision, out)?;
    all_ranks(text, plan, ranks, out)?;
    phases(text, plan, decision, out)?;
    tree(text, decision, out)?;
    if let Some(speed) = &decision.throughput {
        super::time::print(speed, tokens, out)?;
    }
    remedies(text, decision, out)?;
    if let Some(of) = &decision.advice {
        advice(text, decision, of, out)?;
    }
    // The rule of thumb is among the caveats too.
    for note in decision.estimate.notes.iter().filter(|note| **note != Note::RuleOfThumb) {
        writeln!(out, "note: {}", text.note(*note))?;
        if *note == Note::OlderVersions {
            older_rules(plan, out)?;
        }
    }
    for caveat in &decision.caveats {
        writeln!(out, "note: {}", text.caveat(caveat))?;
        if let Caveat::PrecisionNotGiven { candidates } = caveat {
            for Candidate { precision, verdict, allocated } in candidates {
                let verdict = text.verdict(*verdict).to_lowercase();
                writeln!(out, "      {:<12} allocates {allocated}: {verdict}", precision.name())?;
            }
        }
    }
    Ok(())
}

/// The rules of older versions that the figures follow, with their sources.
fn older_rules(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    let Ok(read) = read_model(&plan.model) else { return Ok(()) };
    for row in holding(&plan.framework, read.model.family()) {
        writeln!(out, "      before {} {}: {} ({})", row.of.name(), row.until, row.what, row.source)?;
    }
    Ok(())
}

/// The verdict, the numbers that it compares, and why.
fn answer(text: &dyn Catalogue, decision: &Decision, out: &mut dyn Write) -> io::Result<()> {
    let verdict = &decision.verdict;
    // Green, amber, red, grey; never the colour alone.
    let colour = match verdict.kind {
        VerdictKind::Fits => "32",
        VerdictKind::Tight => "33",
        VerdictKind::DoesNotFit => "31",
        VerdictKind::CannotTell => "90",
    };
    let Numbers { allocated, process, capacity, in_use, usable, .. } = verdict.numbers;
    let needs = if verdict.reason == Reason::Unknown(Fact::Precision) { "needs up to" } else { "needs" };
    write!(out, "\u{1b}[1;{colour}m{}\u{1b}[0m: {needs} ", text.verdict(verdict.kind))?;
    // What is impossible even without cache is quoted without it; everything else is quoted with it.
    match (verdict.reason, process, capacity, usable) {
        (Reason::AllocatedExceeds { .. }, _, _, Some(usable)) | (_, None, _, Some(usable)) => {
            writeln!(out, "{allocated} of {usable} usable")?;
        }
        (_, Some(process), Some(capacity), _) => match in_use {
            Some(in_use) if in_use > Bytes::ZERO => {
                writeln!(out, "{process} of {} that others leave", capacity.saturating_sub(in_use))?;
            }
            _ => writeln!(out, "{process} of {capacity}")?,
        },
        (_, _, Some(capacity), None) => writeln!(out, "{allocated} of {capacity}")?,
        (_, _, None, _) => writeln!(out, "{allocated}")?,
    }
    let estimate = &decision.estimate;
    writeln!(out, "{} The peak is {}.", text.reason(&verdict.reason), estimate.peak().said(text))
}

/// What was estimated, in two lines.
fn job(text: &dyn Catalogue, plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    let recipe = &plan.recipe;
    let model = match &plan.model {
        ModelSource::Preset(name) => name.as_str(),
        ModelSource::Config(config) => config.get("model_type").and_then(|v| v.as_str()).unwrap_or("a config.json"),
    };
    let gpu = match &plan.machine.gpu {
        Some(GpuChoice::Catalogue(name)) => name.as_str(),
        Some(GpuChoice::Custom(gpu)) => gpu.name.as_str(),
        None => "no GPU given",
    };
    let checkpointing = match recipe.checkpointing {
        Checkpointing::None => "no checkpointing".to_owned(),
        other => format!("checkpointing {}", text.checkpointing(other)),
    };
    let precision = recipe.precision.map_or("precision not known", |p| p.name());
    let method = recipe.method.map_or_else(String::new, |method| format!("{}, ", text.method(&method)));
    let mut optimizer = text.optimizer(recipe.optimizer.name).to_owned();
    if !recipe.optimizer.name.implementations().is_empty() {
        optimizer.push(' ');
        optimizer.push_str(match plan.parallel.data {
            DataParallel::Megatron(_) => text.megatron_implementation(),
            _ => text.implementation(recipe.optimizer.implementation()),
        });
    }
    writeln!(
        out,
        "\n{model} on {gpu}: {method}{precision}, {optimizer}, micro-batch {} × {} tokens, accumulation {}, {checkpointing}",
        recipe.micro_batch, recipe.seq_len, recipe.grad_accum,
    )?;
    if plan.parallel.is_single() { Ok(()) } else { writeln!(out, "{}", layout(&plan.parallel)) }
}

/// How the job is spread over GPUs.
fn layout(parallel: &Parallel) -> String {
    let wrapper = match &parallel.data {
        DataParallel::None => String::new(),
        DataParallel::Ddp(_) => "DDP over ".into(),
        DataParallel::Dp(_) => "nn.DataParallel over ".into(),
        DataParallel::Fsdp1(_) => "FSDP1 over ".into(),
        DataParallel::Fsdp2(_) => "FSDP2 over ".into(),
        DataParallel::DeepSpeed(options) => format!("DeepSpeed ZeRO-{} over ", options.stage),
        DataParallel::Megatron(_) => "Megatron-LM over ".into(),
    };
    let tensor = match parallel.tensor.size {
        0 | 1 => String::new(),
        size => format!(" times {size} tensor-parallel ranks"),
    };
    let whose = match &parallel.data {
        DataParallel::Megatron(options) => {
            let stages = parallel.pipeline;
            match options.rank {
                Some(rank) => format!("pipeline rank {rank} of {stages}"),
                None => format!("the pipeline rank, of {stages}, that holds the most"),
            }
        }
        DataParallel::Dp(of) => format!("GPU {}", of.gpu),
        _ => "rank 0".to_owned(),
    };
    format!("{wrapper}{} data-parallel ranks{tensor}; the figures are those of {whose}", parallel.data_ranks())
}

/// Every rank of a pipeline, or GPU of a process, at its own peak; the one that holds the most is marked.
fn all_ranks(text: &dyn Catalogue, plan: &Plan, ranks: &[RankEstimate], out: &mut dyn Write) -> io::Result<()> {
    let most = ranks.iter().map(|rank| rank.peak_bytes).max();
    if ranks.is_empty() {
        return Ok(());
    }
    let (title, one) = match plan.parallel.data {
        DataParallel::Dp(_) => ("GPUs, GiB", "GPU"),
        _ => ("Pipeline, GiB", "rank"),
    };
    write!(out, "\n{title:<14} {:>6} {:>9}", "layers", "in flight")?;
    for part in Part::ALL {
        write!(out, " {:>16}", text.part(part))?;
    }
    writeln!(out, " {:>12}  peak", "total")?;
    for rank in ranks {
        let mark = if Some(rank.peak_bytes) == most { "*" } else { " " };
        write!(out, "{:<14} {:>6} {:>9}", format!("{one} {}", rank.rank), rank.layers, rank.in_flight)?;
        for part in Part::ALL {
            write!(out, " {:>16}", gib(rank.parts.get(part)))?;
        }
        let at = RankSaid::At { instant: rank.instant, embedding: rank.embedding, head: rank.head };
        writeln!(out, " {:>11}{mark}  {}", gib(rank.peak_bytes), Locale::En.rank(at))?;
    }
    Ok(())
}

/// Five parts × four instants in GiB, and the tiers.
fn bill(text: &dyn Catalogue, plan: &Plan, decision: &Decision, out: &mut dyn Write) -> io::Result<()> {
    let estimate = &decision.estimate;
    write!(out, "\n{:<18}", "GiB")?;
    for instant in Instant::ALL {
        write!(out, " {:>15}", text.instant(instant))?;
    }
    writeln!(out)?;
    for part in Part::ALL {
        write!(out, "{:<18}", text.part(part))?;
        for instant in Instant::ALL {
            write!(out, " {:>15}", gib(estimate.bill.column(instant).parts.get(part)))?;
        }
        writeln!(out)?;
    }
    write!(out, "{:<18}", "Total")?;
    for instant in Instant::ALL {
        let mark = if estimate.peak() == Peak::Step(instant) { "*" } else { " " };
        write!(out, " {:>14}{mark}", gib(estimate.bill.column(instant).parts.total()))?;
    }
    let Intervals { allocated, reserved, process } = intervals(plan, &estimate.tiers);
    let within = |interval: Option<[Bytes; 2]>| {
        interval.map_or_else(String::new, |[low, high]| format!("  {} to {} in nine of ten", gib(low), gib(high)))
    };
    writeln!(out, "\n{:<18} {:>15}{}", "Allocated peak", gib(estimate.tiers.allocated.peak_bytes), within(allocated))?;
    let size = |tier: &Option<Tier>| tier.as_ref().map_or_else(|| "not known".to_owned(), |t| gib(t.peak_bytes));
    writeln!(out, "{:<18} {:>15}{}", "Reserved peak", size(&estimate.tiers.reserved), within(reserved))?;
    write!(out, "{:<18} {:>15}{}", "Process peak", size(&estimate.tiers.process), within(process))?;
    let numbers = &decision.verdict.numbers;
    if let (Some(context), Some(communicators)) = (numbers.context, numbers.communicators) {
        write!(out, "  with a context of {} and NCCL's communicators of {}", gib(context), gib(communicators))?;
    }
    writeln!(out)?;
    calibration(plan, out)
}

/// What the plan was calibrated by.
fn calibration(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    let Some(Calibration { measurements, quantities, .. }) = &plan.calibration else { return Ok(()) };
    let words = Locale::En.reconcile();
    writeln!(out, "{}", words.calibrated(*measurements))?;
    // What was fitted on another card holds there.
    for quantity in quantities.iter().filter(|quantity| plan.fitted(quantity.of).is_some()) {
        writeln!(out, "  {}", words.quantity(quantity))?;
    }
    Ok(())
}

/// What is kept in host memory, and what a checkpoint writes.
fn host(decision: &Decision, out: &mut dyn Write) -> io::Result<()> {
    let estimate = &decision.estimate;
    let Some(readings) = &estimate.readings else { return Ok(()) };
    if let Some(host) = &estimate.tiers.host {
        write!(out, "{:<18} {:>15}  ", "Host memory", gib(host.peak_bytes))?;
        writeln!(
            out,
            "beside Python; {} paged, {} offloaded",
            gib(readings.optimizer_state_host),
            gib(readings.on_host)
        )?;
    }
    if let Some(of) = &readings.offload {
        let (weights, gradients, states) = (gib(of.weights), gib(of.gradients), gib(of.states));
        write!(out, "{:<18} {:>15}  of that by the layout: ", "", gib(of.held))?;
        writeln!(out, "weights {weights}, gradients {gradients}, states {states}")?;
        let (to_device, to_host) = (gib(of.to_device), gib(of.to_host));
        writeln!(out, "{:<18} {to_device:>15}  copied to the GPU in a step, {to_host} to the host", "")?;
        if !of.on_disk.is_zero() {
            let [on_disk, read, written] = [of.on_disk, of.from_disk, of.to_disk].map(gib);
            writeln!(out, "{:<18} {on_disk:>15}  of it on disk; {read} read in a step, {written} written", "")?;
        }
    }
    let Some(CheckpointReadings { weights, states, copied, gathered }) = &readings.checkpoint else { return Ok(()) };
    let written = Bytes(weights.get().saturating_add(states.get()));
    write!(out, "{:<18} {:>15}  ", "Checkpoint", gib(written))?;
    writeln!(
        out,
        "written{}: weights {}, states {}; {} copied to the host at once",
        if gathered.is_some() { " by each rank" } else { "" },
        gib(*weights),
        gib(*states),
        gib(*copied)
    )?;
    match gathered {
        Some(gathered) => {
            writeln!(out, "{:<18} {:>15}  of host memory on rank 0, if it is gathered whole", "", gib(*gathered))
        }
        None => Ok(()),
    }
}

/// The phases of a job that is more than its training step, and what holds memory in each.
fn phases(text: &dyn Catalogue, plan: &Plan, decision: &Decision, out: &mut dyn Write) -> io::Result<()> {
    let Some(readings) = &decision.estimate.readings else { return Ok(()) };
    if readings.phases.len() < 2 {
        return Ok(());
    }
    let phases = on_card(plan, readings);
    let binding = binding_phase(&phases).map(|of| of.readings.phase);
    writeln!(out, "\n{:<18} {:>15}  held by, GiB", "Phase", "allocated, GiB")?;
    for on_card in &phases {
        let PhaseReadings { phase, held, .. } = &on_card.readings;
        let mark = if binding == Some(*phase) { "*" } else { " " };
        let mut held: Vec<String> = Holder::ALL
            .into_iter()
            .zip(held)
            .filter(|(_, bytes)| **bytes > Bytes::ZERO)
            .map(|(holder, bytes)| format!("{} {}", text.holder(holder), gib(*bytes)))
            .collect();
        match on_card.beside {
            Some(Bytes::ZERO) => {}
            Some(bytes) => held.push(format!("{} {}", text.label(Label::Vllm), gib(bytes))),
            None => held.push(format!("{}, {}", text.label(Label::Vllm), text.label(Label::VllmNotKnown))),
        }
        let allocated = gib(on_card.allocated());
        writeln!(out, "{:<18} {allocated:>14}{mark}  {}", text.phase(*phase), held.join(", "))?;
    }
    Ok(())
}

/// What a card must give to the caching allocator, which frees its cache before it gives up.
fn smallest_card(text: &dyn Catalogue, smallest: &SmallestCard, out: &mut dyn Write) -> io::Result<()> {
    let SmallestCard { completes_bytes, fails_in_step, fails_at, fails_in_phase } = smallest;
    let fails = match (fails_in_phase, fails_in_step) {
        (Some(phase), _) => text.at_phase(*phase).to_owned(),
        (None, 0) => "while the model is built".to_owned(),
        (None, step) => format!("in step {step}, {}", text.at_instant(*fails_at)),
    };
    writeln!(
        out,
        "{:<18} {:>15}  beside the context; with less it fails {fails}",
        "Smallest card",
        gib(*completes_bytes)
    )
}

fn gib(bytes: Bytes) -> String {
    format!("{:.2}", bytes.as_gib())
}

/// The four questions.
fn tree(text: &dyn Catalogue, decision: &Decision, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out)?;
    for (number, step) in (1..).zip(&decision.tree) {
        let figure = match step.question {
            Question::Throughput => step.throughput.as_ref().map_or_else(|| "not known".to_owned(), speed),
            _ => share(step),
        };
        writeln!(out, "{number} {:<12} {:<10} {figure}", text.question(step.question), text.status(step.status))?;
    }
    Ok(())
}

/// A step's figure: `59.8 GiB ÷ 23.6 GiB = 253 %, threshold 80 %`.
fn share(step: &TreeStep) -> String {
    let Figure { value, threshold, part, whole, .. } = &step.figure;
    let percent = |share: f64| format!("{} %", three_digits(share * 100.0));
    let threshold = threshold.map(percent).unwrap_or_default();
    let (Some(part), Some(whole)) = (part, whole) else { return "not known".into() };
    match (step.question, value) {
        (_, None) => format!("{part} ÷ {whole}: nothing is left"),
        (Question::Margin, Some(free)) if *free < 0.0 => {
            format!("{part} held of {whole}: {} over; keep {threshold}", part.saturating_sub(*whole))
        }
        (Question::Margin, Some(free)) => format!("{part} held of {whole}: {} free; keep {threshold}", percent(*free)),
        (_, Some(share)) => format!("{part} ÷ {whole} = {}; threshold {threshold}", percent(*share)),
    }
}

fn speed(t: &Throughput) -> String {
    let (shortest, longest) = t.step_seconds;
    format!(
        "about {} to {} tokens/s, {} to {} s a step",
        rounded(t.tokens_per_second.low),
        rounded(t.tokens_per_second.high),
        three_digits(shortest.0),
        three_digits(longest.0)
    )
}

/// Two digits of a rough figure: more would be a lie.
fn rounded(value: f64) -> String {
    if value < 100.0 {
        return three_digits(value);
    }
    let unit = 10_f64.powf(value.log10().floor() - 1.0);
    let value = (value / unit).round() * unit;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and far below 2⁵³")]
    grouped(value as u64)
}

/// What helps, the best first.
fn remedies(text: &dyn Catalogue, decision: &Decision, out: &mut dyn Write) -> io::Result<()> {
    if !matches!(decision.verdict.kind, VerdictKind::Tight | VerdictKind::DoesNotFit) {
        return Ok(());
    }
    let improves = |r: &PricedRemedy| r.verdict == VerdictKind::Fits || r.saves();
    let helpful: Vec<_> = decision.remedies.iter().filter(|r| improves(r)).collect();
    if helpful.is_empty() {
        return Ok(());
    }
    let words = Locale::En.advice();
    writeln!(out, "\nChange first")?;
    for remedy in helpful {
        let price = if remedy.saves_allocated() {
            format!("−{} → {}", Bytes(remedy.saved_bytes.unsigned_abs()), remedy.peak_bytes)
        } else if let Some(saved) = remedy.saved_process_bytes.filter(|_| remedy.saves()) {
            format!("−{} reserved", Bytes(saved.unsigned_abs()))
        } else {
            String::new()
        };
        let time = remedy.time.map_or_else(String::new, |time| format!(", {}", words.time(Some(time))));
        writeln!(
            out,
            "  {:<34} {price:<26} {:<13} {}{time}",
            text.remedy(remedy),
            text.verdict(remedy.verdict).to_lowercase(),
            text.effect(remedy.effect)
        )?;
    }
    writeln!(out)
}

/// What to run, step by step; other ways; why not the rest.
fn advice(text: &dyn Catalogue, decision: &Decision, advice: &Advice, out: &mut dyn Write) -> io::Result<()> {
    let words = Locale::En.advice();
    let heading = |what| words.advised(what);
    writeln!(out, "{}\n  {}", heading(Advised::Recommended), words.recommendation(decision, advice))?;
    for step in advice.ways.iter().take(1).flat_map(|best| &best.steps) {
        writeln!(out, "  {}: {}; {}", text.remedy(step), words.saved_at(step), words.time(step.time))?;
        writeln!(out, "    {}", words.needs(step.id))?;
    }
    if let Some(others @ [_, ..]) = advice.ways.get(1..) {
        writeln!(out, "{}", heading(Advised::OtherWays))?;
        for way in others {
            writeln!(out, "  {}: {}", words.way(way), words.comes_to(way))?;
        }
    }
    if decision.verdict.kind != VerdictKind::Fits && !advice.ways.is_empty() {
        writeln!(out, "{}", heading(Advised::WhyNot))?;
        for why in Declined::ALL {
            let names = decision.remedies.iter().filter(|remedy| advice.declined(remedy) == Some(why));
            let names: Vec<String> = names.map(|remedy| text.remedy(remedy)).collect();
            if !names.is_empty() {
                let why = words.declined(why, decision.estimate.peak());
                writeln!(out, "  {why}: {}", names.join("; "))?;
            }
        }
    }
    writeln!(out)
}

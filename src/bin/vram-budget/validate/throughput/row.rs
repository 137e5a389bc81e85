//! A published run: from the words of a table to what a step's time depends on.

use vram_budget::machine::{GpuChoice, Hardware, Machine};
use vram_budget::throughput::{Again, Card, Compute, Experts, Layout, Net, Product, Run, Shard, Stack, Trained, time};

use crate::csv::Row;

/// What is known of a published run.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) net: Net,
    run: Run,
    layout: Layout,
    card: Card,
    /// Seconds of a step, as published.
    pub(super) published: f64,
    /// Samples of a step, of all ranks, for each GPU.
    pub(super) per_gpu: f64,
}

impl Job {
    /// Seconds of a step, as predicted.
    pub(super) fn seconds(&self) -> f64 {
        time(&self.net, &self.run, &self.layout, &self.card).total()
    }

    /// Whether the published figure needs more operations a second than the card's peak.
    fn impossible(&self) -> bool {
        let (net, run) = (&self.net, &self.run);
        let tokens = run.micro_batch * run.accumulation * run.seq_len * self.layout.data as f64;
        let a_token = match run.trained {
            Trained::Share(_) => 6.0,
            Trained::Adapters { .. } => 4.0,
        };
        // Of the layers alone, a causal kernel's half of attention.
        let attention = a_token * net.layers * net.query * run.seq_len;
        let flops = a_token * (net.active() - net.head()) + attention;
        let peak = if run.float8.is_some() { self.card.float8_peak.unwrap_or(self.card.peak) } else { self.card.peak };
        flops * tokens / self.published / self.layout.world as f64 > peak
    }
}

/// The number after `name` where it stands as a word of its own: `L32 h4096`, `topk 8`.
fn number_of(text: &str, name: &str) -> Option<f64> {
    text.match_indices(name).find_map(|(at, _)| {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            return None;
        }
        let rest = text[at + name.len()..].strip_prefix(' ').unwrap_or(&text[at + name.len()..]);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    })
}

/// The first number in a text.
fn first_number(text: &str) -> Option<f64> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let digits: String = text[start..].chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    digits.trim_end_matches('.').parse().ok()
}

fn count(text: &str) -> Option<u64> {
    let whole: String = text.chars().take_while(char::is_ascii_digit).collect();
    whole.parse().ok().filter(|n| *n > 0)
}

fn has(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// The cards that published runs name, by words in their names, the more special first.
const CARDS: [(&[&str], &str); 24] = [
    (&["GB300"], "GB300 288GB"),
    (&["GB200"], "GB200 186GB"),
    (&["B300"], "B300 SXM 288GB"),
    (&["B200"], "B200 SXM 180GB"),
    (&["GH200"], "GH200 96GB"),
    (&["H200"], "H200 SXM 141GB"),
    (&["H100", "PCIe"], "H100 PCIe 80GB"),
    (&["H100"], "H100 SXM5 80GB"),
    (&["A100", "40", "PCI"], "A100 PCIe 40GB"),
    (&["A100", "40"], "A100 SXM4 40GB"),
    (&["A100", "PCI"], "A100 PCIe 80GB"),
    (&["A100"], "A100 SXM4 80GB"),
    (&["V100", "16"], "V100 SXM2 16GB"),
    (&["V100"], "V100 SXM2 32GB"),
    (&["MI300X"], "MI300X 192GB"),
    (&["A6000"], "RTX A6000"),
    (&["L40S"], "L40S"),
    (&["4090"], "RTX 4090 24GB"),
    (&["4070Ti SUPER"], "RTX 4070 Ti Super 16GB"),
    (&["3090"], "RTX 3090 24GB"),
    (&["5090"], "RTX 5090 32GB"),
    (&["A10G"], "A10G"),
    (&["L4"], "L4"),
    (&["T4"], "T4"),
];

fn hardware(gpu: &str) -> Option<Hardware> {
    let (_, name) = CARDS.iter().find(|(words, _)| words.iter().all(|word| gpu.contains(word)))?;
    Machine { gpu: Some(GpuChoice::Catalogue((*name).into())), ..Machine::default() }.resolve().ok()
}

/// Reads a row.
pub(super) fn read(row: Row<'_>) -> Result<Job, String> {
    let words = format!("{} {}", row.get("architecture_notes"), row.get("model"));
    if has(&words, &["hybrid", "mamba", "Mamba"]) {
        return Err("layers of state-space models are not modelled".into());
    }
    if row.get("offload").contains("fine-grained") {
        return Err("offloading single modules' activations is not modelled".into());
    }
    let layout = layout(row);
    let mut seq_len = first_number(row.get("seq_len")).ok_or("the sequence length is not known")?;
    let net = net(row, &words, &mut seq_len)?;
    let micro_batch = count(row.get("micro_batch_per_gpu")).ok_or("the micro-batch is not known")?;
    // Where none is given, what is called an iteration is a micro-batch.
    let accumulation = count(row.get("grad_accum")).unwrap_or(1);
    let (micro_batch, accumulation) = (micro_batch as f64, accumulation as f64);
    let precision = row.get("precision_recipe").to_lowercase();
    let hardware = hardware(row.get("gpu")).ok_or("the card is not known")?;
    let compute = match () {
        () if precision.contains("tf32") => Compute::Tf32,
        () if precision.contains("fp16") || (precision.contains("amp") && hardware.bf16 != Some(true)) => Compute::Fp16,
        () if has(&precision, &["bf16", "float8", "fp8"]) => Compute::Bf16,
        () => Compute::Fp32,
    };
    let mut card = Card::of(&hardware, compute).ok_or("the card's peak for this precision is not known")?;
    if has(row.get("gpu"), &["500W", "95", "96GB", "lower TDP"]) {
        slow_memory(&mut card);
    }
    let run = run(row, &net, &layout, compute, &precision, [micro_batch, seq_len, accumulation])?;
    let samples = micro_batch * accumulation * layout.data as f64;
    let published = published(row, &net, &card, &layout, samples, seq_len)?;
    let job = Job { per_gpu: samples * seq_len / layout.world as f64, net, run, layout, card, published };
    if job.impossible() { Err("the published figure needs more than the card's peak".into()) } else { Ok(job) }
}

/// Boards of the H100 with HBM2e and 500 W instead of HBM3 and 700 W: 2.4 instead of 3.35 TB/s (recalled), and products
/// sustain 0.9 of the others' rate (taken from torchtitan's rows of such boards).
fn slow_memory(card: &mut Card) {
    card.bytes_per_second *= 2.4 / 3.35;
    for share in card.shares.iter_mut().chain(&mut card.attention) {
        *share *= 0.9;
    }
}

fn layout(row: Row<'_>) -> Layout {
    let ranks = |column| count(row.get(column)).unwrap_or(1);
    let notes = row.get("notes");
    let wrapper = row.get("zero_or_fsdp").to_lowercase();
    let shard = match () {
        () if has(&wrapper, &["shard_grad_op"]) => Shard::Kept,
        () if has(&wrapper, &["zero-3", "zero3", "full shard", "full_shard", "optim_grads_params", "fsdp"]) => {
            Shard::Everything
        }
        () if has(&wrapper, &["zero-2", "zero2"]) => Shard::Gradients,
        () if has(&wrapper, &["zero-1", "distributed opt"]) => Shard::Optimizer,
        () => Shard::Nothing,
    };
    let world = ranks("n_gpus");
    let [tensor, pipeline, context] = ["tp", "pp", "cp"].map(ranks);
    let data = count(row.get("dp")).unwrap_or_else(|| (world / (tensor * pipeline * context)).max(1));
    let stages = number_of(notes, "VPP=");
    let a_chunk = number_of(notes, "num-layers-per-virtual-pipeline-stage=");
    let layers = number_of(row.get("architecture_notes"), "L").unwrap_or(1.0);
    let chunks = stages.or_else(|| a_chunk.map(|n| (layers / pipeline as f64 / n).max(1.0))).unwrap_or(1.0);
    let framework = framework(row);
    let shares = data * if shard == Shard::Everything { context } else { 1 };
    // The hybrid optimizers that are published share their states within a node.
    let shard_ranks = number_of(&wrapper, "within").map_or(shares, |n| shares.min(whole(n)));
    Layout {
        world: world.max(data * tensor * pipeline * context),
        data,
        tensor,
        pipeline,
        chunks: whole(chunks),
        context,
        expert: ranks("ep"),
        shard,
        shard_ranks,
        overlaps: !matches!(framework, "transformer-engine" | "megatron") || notes.contains("overlap-grad-reduce=True"),
        async_tensor: has(notes, &["async TP", "Async TP"]),
        reduce_width: (has(&row.get("precision_recipe").to_lowercase(), &["fp32 reduce", "fp32 grad", "main grads"])
            || matches!(framework, "transformer-engine" | "megatron"))
        .then_some(4.0),
        hooks: wrapper.contains("zero-3"),
        network_gbps: number_of(row.get("gpu"), "4x").or(number_of(row.get("gpu"), "4 x")).map(|g| 4.0 * g / 8.0 / 8.0),
        ..Layout::default()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts that were read from digits")]
fn whole(n: f64) -> u64 {
    (n as u64).max(1)
}

/// The stack of kernels that a source's framework runs.
fn framework(row: Row<'_>) -> &'static str {
    let text = format!("{} {}", row.get("source_url_or_repo_path"), row.get("id"));
    let attention = row.get("attention_impl");
    match () {
        () if row.get("compile").starts_with("yes") => "compiled",
        () if has(&text, &["llm-foundry", "mpt-"]) => "llm-foundry",
        () if has(&text, &["korth", "calculon"]) => "megatron",
        () if has(&text, &["Megatron", "mcore", "bridge", "NeMo", "nemo", "simumax", "SimuMax"]) => {
            "transformer-engine"
        }
        () if attention.contains("TransformerEngine") => "transformer-engine",
        () if has(&text, &["llm.c", "llmc"]) => "llm.c",
        () if has(&text, &["DeepLearningExamples", "dle-"]) => "apex",
        () if has(&text, &["nanotron", "InternEvo", "internevo", "xtuner", "fms"]) => "flash",
        () if has(
            &text,
            &["torchtitan", "torchtune", "litgpt", "thunder", "LLMs-from-scratch", "torchao", "pytorch/ao"],
        ) =>
        {
            "eager"
        }
        () => "transformers",
    }
}

fn net(row: Row<'_>, words: &str, seq_len: &mut f64) -> Result<Net, String> {
    let of = |name: &str| number_of(words, name);
    // Its layers are public, and the row does not repeat them.
    let moonlight = "L27 h2048 MLA heads16 kv_lora512 nope128 rope64 v128 ffn11264 moe_ffn1408 shared2816 experts64 topk6 \
                     dense_layers1 vocab163840 swiglu";
    if words.contains("Moonlight-16B-A3B") && of("L").is_none() {
        return net(row, moonlight, seq_len);
    }
    let layers = of("L").ok_or("no stack of transformer layers is described")?;
    let hidden = of("h").or_else(|| of("d")).ok_or("the hidden size is not known")?;
    let heads = of("heads").unwrap_or_else(|| (hidden / 64.0).max(1.0));
    let key_heads = of("kv").unwrap_or(heads);
    let size = of("headdim").unwrap_or(hidden / heads);
    let gated =
        has(words, &["SwiGLU", "swiglu", "Llama", "llama", "Qwen", "qwen", "InternLM", "Mistral", "mistral", "MLA"]);
    let images = row.get("seq_len").contains('x');
    let mut vocabulary = of("vocab").unwrap_or(if words.to_lowercase().contains("bert") { 30_522.0 } else { 50_304.0 });
    let mut head_per_sequence = row.get("model").contains("classification");
    if images {
        let patch = of("patch").ok_or("the patch size is not known")?;
        let side = (*seq_len / patch).floor();
        *seq_len = side * side + 1.0;
        (vocabulary, head_per_sequence) = (1000.0, true);
    }
    let two_thirds = words.contains("mlp_ratio 8/3").then(|| (hidden * 8.0 / 3.0 / 256.0).ceil() * 256.0);
    let inner = of("ffn").or_else(|| of("mlp")).or(two_thirds).unwrap_or(4.0 * hidden);
    let mut products = Vec::new();
    let mut add = |outputs: f64, inputs: f64, times: f64, expert: bool| {
        if outputs > 0.0 && inputs > 0.0 && times > 0.0 {
            products.push(Product { outputs, inputs, times, expert });
        }
    };
    let (query, value, keys) = if words.contains("MLA") {
        let [nope, rope, value] = [("nope", 128.0), ("rope", 64.0), ("v", 128.0)].map(|(n, d)| of(n).unwrap_or(d));
        let low = of("kv_lora").unwrap_or(512.0);
        match of("q_lora").filter(|rank| *rank > 0.0) {
            Some(rank) => {
                add(rank, hidden, layers, false);
                add(heads * (nope + rope), rank, layers, false);
            }
            None => add(heads * (nope + rope), hidden, layers, false),
        }
        add(low + rope, hidden, layers, false);
        add(heads * (nope + value), low, layers, false);
        add(hidden, heads * value, layers, false);
        (heads * (nope + rope), heads * value, heads * (nope + rope))
    } else {
        add((heads + 2.0 * key_heads) * size, hidden, layers, false);
        add(hidden, heads * size, layers, false);
        (heads * size, heads * size, key_heads * size)
    };
    let wide = if gated { 2.0 } else { 1.0 };
    let experts = of("experts").zip(of("topk")).map(|(count, per_token)| {
        let listed = words.split("[0]*").nth(1).and_then(first_number);
        let dense = of("dense_layers").or(listed).unwrap_or(0.0);
        Experts { count, per_token, layers: layers - dense }
    });
    let routed = experts.map_or(0.0, |e| e.layers);
    add(wide * inner, hidden, layers - routed, false);
    add(hidden, inner, layers - routed, false);
    let mut inners = inner * (layers - routed);
    if let Some(e) = experts {
        let narrow = of("moe_ffn").unwrap_or(inner);
        add(wide * narrow, hidden, e.layers * e.count, true);
        add(hidden, narrow, e.layers * e.count, true);
        add(e.count, hidden, e.layers, false);
        inners += narrow * e.per_token * e.layers;
        let shared = of("shared").or_else(|| of("shared_ffn")).unwrap_or(0.0);
        add(wide * shared, hidden, e.layers, false);
        add(hidden, shared, e.layers, false);
        inners += shared * e.layers;
    }
    Ok(Net {
        products,
        layers,
        hidden,
        query,
        value,
        keys,
        heads,
        inner: inners,
        vocabulary,
        head_inputs: hidden,
        head_per_sequence,
        looked_up: if words.contains("unti") { vocabulary * hidden } else { 0.0 },
        experts,
        causal: !has(&row.get("model").to_lowercase(), &["bert", "vit"]),
    })
}

fn again(row: Row<'_>, net: &Net) -> Again {
    let text = row.get("checkpointing").to_lowercase();
    match () {
        () if text.starts_with("full") => Again::layers(1.0),
        () if !text.starts_with("sel") || text.contains("[]") => Again::default(),
        // torchtitan keeps every other product, and attention.
        () if text.contains("op") => Again { products: 0.5, attention: 0.0, pointwise: 1.0 },
        () if text.contains("every layer") => Again { products: 0.5, attention: 0.0, pointwise: 1.0 },
        () if text.contains("layer)") => Again::layers(0.5),
        () => {
            let all: f64 = net.products.iter().map(Product::parameters).sum();
            let wide = |p: &&Product| p.outputs.max(p.inputs) > 2.5 * net.hidden;
            let products = if text.contains("mlp") && !text.contains("mla_up_proj,") {
                net.products.iter().filter(wide).map(Product::parameters).sum::<f64>() / all
            } else {
                0.0
            };
            let attention = if text.contains("core") { 1.0 } else { 0.0 };
            Again { products, attention, pointwise: if has(&text, &["norm", "act"]) { 0.3 } else { 0.0 } }
        }
    }
}

fn run(
    row: Row<'_>,
    net: &Net,
    layout: &Layout,
    compute: Compute,
    precision: &str,
    [micro_batch, seq_len, accumulation]: [f64; 3],
) -> Result<Run, String> {
    let framework = framework(row);
    let stack = Stack::named(framework).ok_or("its stack of kernels is not known")?;
    let attention = row.get("attention_impl").to_lowercase();
    let targets = row.get("lora_rank_targets");
    let held: f64 = net.products.iter().map(Product::parameters).sum::<f64>() + net.head() + net.looked_up;
    let trained = match number_of(targets, "r") {
        None if targets.is_empty() => Trained::Share(1.0),
        rank => {
            let rank = rank.unwrap_or(16.0);
            let dense = || net.products.iter().filter(|p| !p.expert);
            let inputs = dense().map(|p| p.inputs * p.times).sum();
            let outputs = dense().map(|p| p.outputs * p.times).sum();
            Trained::Adapters {
                parameters: rank * (inputs + outputs),
                inputs,
                outputs,
                ends: targets.contains("embedding"),
            }
        }
    };
    let adapters = matches!(trained, Trained::Adapters { .. });
    let quantised = row.get("quantization").to_lowercase();
    let dequantize = match () {
        () if quantised.contains("gptq") => 19.0,
        () if has(&quantised, &["nf4", "4-bit", "4bit", "bnb", "hqq"]) => 2.6,
        () => 0.0,
    };
    let autocast = precision.contains("amp") && layout.shard < Shard::Kept;
    let pure = has(precision, &["pure", "bf16-true", "bf16 weights"]) || row.get("id").starts_with("tune");
    let gradient = if pure { 2.0 } else { 4.0 };
    let name = row.get("optimizer").to_lowercase();
    let optimizer = match () {
        () if name.starts_with("none") => 0.0,
        () if has(&name, &["8bit", "8-bit", "fp8"]) => gradient * 3.0 + 4.0,
        () if has(&name, &["4-bit", "4bit"]) => gradient * 3.0 + 2.0,
        () if framework == "transformer-engine" || framework == "megatron" || precision.contains("master") => 30.0,
        () if name.contains("adafactor") => gradient * 6.0 * 2.5,
        () if name.contains("fused") || matches!(framework, "compiled" | "eager" | "llm-foundry" | "apex") => {
            gradient * 7.0
        }
        () => gradient * 7.0 * 2.5,
    };
    let float8 = has(precision, &["float8", "fp8"]).then(|| has(precision, &["rowwise", "block"]));
    Ok(Run {
        compute,
        float8,
        stack,
        flash: !has(&attention, &["unfused", "eager"]),
        again: again(row, net),
        micro_batch,
        seq_len,
        accumulation,
        trained,
        dequantize: if held > 0.0 { dequantize } else { 0.0 },
        cast: match (autocast, adapters) {
            (true, false) => 12.0,
            (true, true) => 6.0,
            _ => 0.0,
        },
        // Megatron's products add to the gradients themselves.
        accumulate: if framework == "transformer-engine" { 8.0 } else { 3.0 * gradient },
        optimizer,
        offloaded: if row.get("offload").contains("activation") { 2.0 * net.hidden } else { 0.0 },
    })
}

/// Seconds of a step as they were published, by the unit that they were published in.
fn published(row: Row<'_>, net: &Net, card: &Card, layout: &Layout, samples: f64, seq_len: f64) -> Result<f64, String> {
    let (value, unit) = (row.get("throughput_value"), row.get("throughput_unit"));
    let gpus = layout.world as f64;
    if let Some(low) = first_number(value) {
        // A range is taken at its middle.
        let figure = match value.split_once('-').and_then(|(_, high)| first_number(high)) {
            Some(high) => low.midpoint(high),
            None => low,
        };
        let tokens = samples * seq_len;
        return match () {
            () if unit.starts_with("tokens/s/GPU") => Ok(tokens / (figure * gpus)),
            () if unit.starts_with("tokens/s") => Ok(tokens / figure),
            () if unit.starts_with("ms/") => Ok(figure / 1e3),
            () if unit.starts_with("s/") => Ok(figure),
            () if unit.starts_with("s per 1024 samples") => Ok(figure * samples / 1024.0),
            () if has(unit, &["sequences/s", "images/s", "samples/s", "seq/s"]) => {
                let each = if unit.contains("/GPU") { gpus } else { 1.0 };
                Ok(samples / (figure * each))
            }
            () if has(unit, &["it/s", "steps/s"]) => Ok(1.0 / figure),
            () => Err(format!("published in {unit}")),
        };
    }
    // MFU counts attention in full; Megatron's TFLOP/s count the half that a causal kernel computes.
    let text = row.get("mfu_or_tflops");
    let before = |mark: &str| {
        let head = text.split_once(mark)?.0;
        first_number(&head[head.rfind(|c: char| !(c.is_ascii_digit() || c == '.')).map_or(0, |at| at + 1)..])
    };
    let flops = |attention: f64| 6.0 * net.active() + attention * net.layers * net.query * seq_len;
    let tokens = samples * seq_len / gpus;
    if let Some(percent) = before("% MFU") {
        return Ok(flops(12.0) * tokens / (percent / 100.0 * card.peak));
    }
    if let Some(tera) = before(" TFLOP/s/GPU") {
        return Ok(flops(6.0) * tokens / (tera * 1e12));
    }
    Err("no throughput was published".into())
}

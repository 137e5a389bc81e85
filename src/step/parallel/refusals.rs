//! What of a layout, or beside it, is not modelled: refused by name.

use crate::issue::{Issue, IssueKind};
use crate::model::family::Model;
use crate::plan::Plan;
use crate::recipe::optimizer::OptimizerName;
use crate::recipe::parallel::{DataParallel, DeepSpeed, Fsdp1, Fsdp2, InitDevice, ShardingStrategy, Wrap};
use crate::recipe::{Checkpointing, FloatName, Loss, OptimizerImpl, Precision, Recipe, ZeroGrad};

/// Families whose layers are one list of modules, held against recorded steps of wrapped models.
const FAMILIES: [&str; 8] = ["llama", "qwen2", "gpt2", "mistral", "qwen3", "phi3", "starcoder2", "mixtral"];

/// What of the plan's layout, or beside it, is not modelled.
#[inline(never)]
pub(crate) fn refusals(model: &dyn Model, plan: &Plan) -> Vec<Issue> {
    let (parallel, recipe) = (&plan.parallel, &plan.recipe);
    let mut issues = Vec::new();
    let mut not = |field: &str, what: String| issues.push(Issue::new(field, IssueKind::NotModelled { what }));
    for (size, field, what) in [
        (parallel.pipeline, "parallel.pipeline", "pipeline parallelism"),
        (parallel.context, "parallel.context", "context parallelism"),
        (parallel.expert, "parallel.expert", "expert parallelism"),
    ] {
        if size > 1 {
            not(field, what.into());
        }
    }
    if parallel.tensor.size > 1 && model.split(parallel.tensor.size).is_none() {
        not("parallel.tensor.size", format!("tensor parallelism of {} over so many ranks", model.family()));
    }
    let adam = matches!(recipe.optimizer.name, OptimizerName::AdamW | OptimizerName::Adam);
    if parallel.tensor.size > 1 && !adam {
        not("recipe.optimizer.name", format!("{} over tensor-parallel weights", recipe.optimizer.name.name()));
    }
    if parallel.tensor.size > 1 && (recipe.loss != Loss::Hf || recipe.clip_grad.is_some()) {
        not("parallel.tensor.size", "tensor parallelism with clipped gradients or another loss".into());
    }
    if parallel.tensor.size > 1 && !matches!(parallel.data, DataParallel::None | DataParallel::Fsdp2(_)) {
        not("parallel.data", format!("{} over tensor-parallel weights", parallel.data.name()));
    }
    if parallel.tensor.size > 1 && matches!(recipe.precision, None | Some(Precision::AmpBf16 | Precision::Bf16Autocast))
    {
        not("recipe.precision", "autocast over tensor-parallel weights".into());
    }
    if parallel.tensor.size > 1 && recipe.checkpointing.recomputes_one_in().is_some() {
        not("parallel.tensor.size", "tensor parallelism of layers that are checkpointed".into());
    }
    if parallel.tensor.sequence_parallel && !recipe.seq_len.is_multiple_of(parallel.tensor.size.max(1)) {
        let (value, by_field, by) = (recipe.seq_len, "parallel.tensor.size".into(), parallel.tensor.size);
        issues.push(Issue::new("recipe.seq_len", IssueKind::NotDivisible { value, by_field, by }));
    }
    // torch.optim raises where lists hold plain tensors beside DTensors: norms are plain unless they are split.
    let mixes = parallel.tensor.size > 1 && !parallel.tensor.sequence_parallel;
    if mixes && recipe.optimizer.implementation() != OptimizerImpl::Forloop {
        let expected = "forloop with tensor parallelism and no sequence parallelism".into();
        let found = "plain tensors beside DTensors in one list".into();
        issues.push(Issue::new("recipe.optimizer.impl", IssueKind::NotA { expected, found }));
    }
    let mut not = |field: &str, what: String| issues.push(Issue::new(field, IssueKind::NotModelled { what }));
    match &parallel.data {
        DataParallel::None | DataParallel::Ddp(_) | DataParallel::Megatron(_) => {}
        DataParallel::Dp(_) => {
            if recipe.loss != Loss::Hf {
                not("recipe.loss", "another way to compute the loss under nn.DataParallel".into());
            }
            let checkpointed = matches!(recipe.checkpointing, Checkpointing::None | Checkpointing::Full);
            if !checkpointed {
                not("recipe.checkpointing", "other checkpointing than of every layer under nn.DataParallel".into());
            }
        }
        DataParallel::Fsdp1(options) => {
            // Each module is put on the device by itself, and so a tie is lost.
            let tied = model.parameters().first().is_some_and(|words| words.linear) && model.untied().is_none();
            for (on, what) in fsdp1(options, parallel.data_ranks(), tied, recipe.grad_accum > 1) {
                if on {
                    not("parallel.data.fsdp1", what.into());
                }
            }
        }
        DataParallel::Fsdp2(options) => {
            let tied = model.parameters().first().is_some_and(|words| words.linear);
            let ends = options.wrap == Wrap::LayersAndEnds && (tied || model.family() == "gpt2");
            if options.offload_cpu && parallel.tensor.size > 1 {
                not("parallel.data.fsdp2", "shards in host memory of tensor-parallel weights".into());
            }
            for (on, what) in fsdp2(options, parallel.data_ranks(), ends) {
                if on {
                    not("parallel.data.fsdp2", what.into());
                }
            }
        }
        DataParallel::DeepSpeed(options) => {
            for (on, what) in deepspeed(options, recipe, model, parallel.data_ranks()) {
                if on {
                    not("parallel.data.deepspeed", what.into());
                }
            }
        }
    }
    // DeepSpeed's engine was recorded over the first of them.
    let known = if matches!(parallel.data, DataParallel::DeepSpeed(_)) { 3 } else { FAMILIES.len() };
    if !FAMILIES[..known].contains(&model.family()) {
        not("parallel.data", format!("several GPUs with {}", model.family()));
    }
    for (on, field, what) in recipes(recipe, &parallel.data) {
        if on {
            not(field, format!("{what} on several GPUs"));
        }
    }
    issues
}

fn fsdp1(options: &Fsdp1, ranks: u64, tied: bool, accumulates: bool) -> [(bool, &'static str); 9] {
    let whole = options.strategy == ShardingStrategy::NoShard;
    [
        (options.offload_cpu && whole, "FSDP1's parameters in host memory without shards"),
        // PyTorch overwrites them (`prepare_gradient_for_backward`).
        (
            options.offload_cpu && accumulates && !options.no_sync,
            "gradients that FSDP1 accumulates in host memory without no_sync, which loses them",
        ),
        (options.offload_cpu && options.replicas > 1, "FSDP1's replicas of shards in host memory"),
        (options.mixed_precision.output.is_some(), "a dtype for buffers"),
        (options.forward_prefetch, "parameters gathered early in forward"),
        (options.init == InitDevice::Cuda, "FSDP1 over a model that is on the device"),
        (tied, "FSDP1 over tied weights, whose tie is lost when they are put on the device, in this model"),
        (ranks / options.replicas.max(1) < 2, "FSDP1 over one rank"),
        // Reserved memory was recorded to be another, in part by more.
        (whole && accumulates, "gradients that FSDP1 accumulates without shards"),
    ]
}

fn fsdp2(options: &Fsdp2, ranks: u64, ends: bool) -> [(bool, &'static str); 6] {
    let offload = options.offload_cpu;
    [
        (offload && options.init == InitDevice::Cuda, "shards in host memory of a model that was made on the device"),
        (
            offload && !options.reshard_after_backward,
            "parameters that stay gathered after backward, of shards in host memory",
        ),
        (offload && options.replicas > 1, "replicas of shards in host memory"),
        (ends, "groups for the embedding and the head of this model"),
        (options.mixed_precision.output.is_some(), "a dtype for modules' outputs"),
        (ranks / options.replicas.max(1) < 2, "fully_shard over one rank"),
    ]
}

fn deepspeed(options: &DeepSpeed, recipe: &Recipe, model: &dyn Model, ranks: u64) -> [(bool, &'static str); 11] {
    let parts: Vec<u64> =
        model.parameters().iter().filter_map(|p| Some(p.shape.numel()?.div_ceil(ranks.max(1)))).collect();
    let largest = parts.iter().max().copied().unwrap_or(0);
    let stays = options.offload_param.max_in_cpu;
    let first = super::sub_groups(&parts, options.sub_group_size).first().map_or(0, |(elements, _)| *elements);
    let partly = (first..parts.iter().sum()).contains(&stays);
    // Experts are one module, whose parameters nobody gathers here.
    let experts = options.stage == 3 && model.family() == "mixtral";
    let checkpointed = matches!(recipe.checkpointing, Checkpointing::None | Checkpointing::Full);
    [
        (experts, "experts under ZeRO stage 3"),
        (!checkpointed, "other checkpointing than of every layer with a DeepSpeed engine"),
        (ranks < 2, "a DeepSpeed engine on one rank"),
        (options.stage == 0 && options.dtype == FloatName::Float32, "a DeepSpeed engine in FP32 without ZeRO"),
        (!options.contiguous_gradients, "gradients that are not copied together"),
        (options.stage == 0 && options.offload_optimizer.is_on(), "an optimizer in host memory without ZeRO"),
        (options.stage < 3 && options.offload_optimizer.is_on_disk(), "an optimizer on a disk below ZeRO stage 3"),
        (
            options.offload_param.is_on_disk() && !options.offload_optimizer.is_on(),
            "parameters on a disk whose optimizer is on the GPU",
        ),
        (options.offload_param.is_on_disk() && partly, "parameters of which max_in_cpu keeps a part in host memory"),
        (
            options.offload_param.is_on_disk() && largest > options.offload_param.buffer_size,
            "a part of a parameter that is larger than a buffer (offload_param.buffer_size)",
        ),
        (options.stage < 3 && options.offload_param.is_on(), "shards in host memory below ZeRO stage 3"),
    ]
}

/// What is trained otherwise than the recorded steps were.
fn recipes(recipe: &Recipe, data: &DataParallel) -> [(bool, &'static str, &'static str); 17] {
    let optimizer = &recipe.optimizer;
    let fsdp2 = matches!(data, DataParallel::Fsdp2(_));
    let plain = matches!(optimizer.name, OptimizerName::AdamW | OptimizerName::Adam | OptimizerName::Sgd);
    let precise = match (data, recipe.precision) {
        (_, None) => true,
        (DataParallel::DeepSpeed(options), Some(precision)) => precision == options.precision(),
        (_, Some(precision)) => {
            matches!(precision, Precision::Fp32 | Precision::AmpBf16 | Precision::PureBf16 | Precision::RuleOfThumb)
        }
    };
    [
        (recipe.method.is_some(), "recipe.method", "another method than plain training"),
        (recipe.lora.is_some(), "recipe.lora", "adapters"),
        (recipe.quantization.is_some(), "recipe.quantization", "quantised weights"),
        (!recipe.liger.is_empty(), "recipe.liger", "Liger's kernels"),
        (!recipe.packed.is_empty(), "recipe.packed", "packed sequences"),
        (recipe.padded, "recipe.padded", "padded sequences"),
        // Not recorded: an approximation, as the compiled step is, on which no verdict rests.
        (recipe.float8 && !(recipe.compile && fsdp2), "recipe.float8", "FP8 products"),
        (recipe.ema.is_some(), "recipe.ema", "an averaged copy of the weights"),
        (recipe.load != crate::recipe::Load::Init, "recipe.load", "loading a checkpoint"),
        (!recipe.freeze.is_empty(), "recipe.freeze", "frozen parts"),
        (recipe.eval_after, "recipe.eval_after", "an evaluation"),
        (recipe.keep_outputs, "recipe.keep_outputs", "kept outputs"),
        (recipe.keep_variables, "recipe.keep_variables", "variables that outlive a step"),
        (
            recipe.zero_grad == Some(ZeroGrad::AfterForward),
            "recipe.zero_grad",
            "gradients that are kept during the forward",
        ),
        (optimizer.in_backward, "recipe.optimizer.in_backward", "an optimizer in backward"),
        (!plain, "recipe.optimizer.name", optimizer.name.name()),
        (!precise, "recipe.precision", "this precision"),
    ]
}

//! Which layouts of Megatron-LM's exist, and what of them is not modelled.

use crate::issue::{Issue, IssueKind};
use crate::model::family::{Model, megatron_needs_layout};
use crate::plan::Plan;
use crate::recipe::parallel::{
    ContextCommunication, DataParallel, Megatron, MegatronAttention, MegatronLoss, MegatronRecompute,
};
use crate::recipe::{Checkpointing, Loss, OptimizerName, Precision};
use crate::step::megatron::schedule;

/// What of the plan's Megatron-LM layout, or beside it, is wrong or not modelled.
#[inline(never)]
pub(crate) fn refusals(model: &dyn Model, plan: &Plan) -> Vec<Issue> {
    let DataParallel::Megatron(options) = &plan.parallel.data else {
        return vec![megatron_needs_layout()];
    };
    let (parallel, recipe) = (&plan.parallel, &plan.recipe);
    let mut issues = Vec::new();
    let Some(gpt) = model.megatron() else {
        let what = format!("Megatron-LM with {}", model.family());
        return vec![Issue::new("parallel.data", IssueKind::NotModelled { what })];
    };
    if let Some(max) = gpt.positions.filter(|positions| *positions < recipe.seq_len) {
        let kind = IssueKind::OutOfRange { min: 1, max, found: recipe.seq_len.to_string() };
        issues.push(Issue::new("recipe.seq_len", kind));
    }
    let mut divides = |field: &str, value: u64, by_field: &str, by: u64| {
        if by == 0 || !value.is_multiple_of(by) {
            issues.push(Issue::new(field, IssueKind::NotDivisible { value, by_field: by_field.into(), by }));
        }
    };
    const TENSOR: &str = "parallel.tensor.size";
    let (tensor, context) = (parallel.tensor.size, parallel.context);
    divides("config.num_attention_heads", gpt.heads, TENSOR, tensor);
    divides("config.ffn_hidden_size", gpt.ffn, TENSOR, tensor);
    if gpt.latent.is_none() {
        divides("config.num_query_groups", gpt.groups, TENSOR, tensor);
    }
    // Two pieces for each rank, so that causal attention is as long on every one.
    let pieces = if context > 1 { context.saturating_mul(2) } else { 1 };
    divides("recipe.seq_len", recipe.seq_len, "parallel.context", pieces);
    let tokens = recipe.seq_len / context.max(1);
    if parallel.tensor.sequence_parallel {
        divides("recipe.seq_len", tokens, TENSOR, tensor);
    }
    if let Some(experts) = gpt.experts {
        divides("config.num_experts", experts.count, "parallel.expert", parallel.expert);
        let model_ranks = parallel.pipeline.saturating_mul(parallel.expert);
        divides("parallel.world_size", parallel.world_size, "parallel.expert", model_ranks);
    }
    if context > 1 && options.cp_comm_type == ContextCommunication::A2a {
        divides("config.num_attention_heads", gpt.heads / tensor.max(1), "parallel.context", context);
        divides("config.num_query_groups", gpt.groups / tensor.max(1), "parallel.context", context);
    }
    if options.virtual_pipeline > 1 {
        divides("recipe.grad_accum", recipe.grad_accum, "parallel.pipeline", parallel.pipeline);
    }
    let mut not_a = |field: &str, expected: &str, found: String| {
        issues.push(Issue::new(field, IssueKind::NotA { expected: expected.into(), found }));
    };
    if options.virtual_pipeline == 0 || (options.virtual_pipeline > 1 && parallel.pipeline < 2) {
        let found = options.virtual_pipeline.to_string();
        not_a("parallel.data.megatron.virtual_pipeline", "1, or more with a pipeline", found);
    } else if (0..parallel.pipeline.min(2))
        .any(|rank| schedule::layers(options, gpt.layers, parallel.pipeline, rank).is_none())
    {
        let expected = "layers that the pipeline's stages share evenly";
        not_a("config.num_layers", expected, gpt.layers.to_string());
    }
    if parallel.expert > 1 && gpt.experts.is_none() {
        not_a("parallel.expert", "1 for a model without experts", parallel.expert.to_string());
    }
    if let Some(rank) = options.rank.filter(|rank| *rank >= parallel.pipeline) {
        not_a("parallel.data.megatron.rank", "a pipeline rank, from 0", rank.to_string());
    }
    for (found, field) in [
        (options.hidden_dropout, "parallel.data.megatron.hidden_dropout"),
        (options.attention_dropout, "parallel.data.megatron.attention_dropout"),
    ] {
        if !(0.0..1.0).contains(&found) {
            not_a(field, "a probability below 1", found.to_string());
        }
    }
    if options.make_vocab_size_divisible_by == 0 {
        not_a("parallel.data.megatron.make_vocab_size_divisible_by", "1 or more", "0".into());
    }
    let mut not = |field: &str, what: &str| {
        issues.push(Issue::new(field, IssueKind::NotModelled { what: format!("{what} with Megatron-LM") }));
    };
    let adam = matches!(recipe.optimizer.name, OptimizerName::AdamW | OptimizerName::Adam);
    for (on, field, what) in [
        (!adam, "recipe.optimizer.name", "another optimizer than Adam"),
        (recipe.optimizer.in_backward, "recipe.optimizer.in_backward", "an optimizer in backward"),
        (
            !matches!(recipe.precision, Some(Precision::Bf16Master)),
            "recipe.precision",
            "another precision than bf16_master",
        ),
        (recipe.method.is_some(), "recipe.method", "another method than plain training"),
        (recipe.lora.is_some(), "recipe.lora", "adapters"),
        (recipe.quantization.is_some(), "recipe.quantization", "quantised weights"),
        (recipe.float8, "recipe.float8", "FP8 products"),
        (recipe.compile, "recipe.compile", "a compiled step"),
        (recipe.ema.is_some(), "recipe.ema", "an averaged copy of the weights"),
        (!recipe.packed.is_empty(), "recipe.packed", "packed sequences"),
        (recipe.padded, "recipe.padded", "padded sequences"),
        (!recipe.liger.is_empty(), "recipe.liger", "Liger's kernels"),
        (!recipe.freeze.is_empty(), "recipe.freeze", "frozen parts"),
        (recipe.loss != Loss::Hf, "recipe.loss", "another loss than its own"),
        (
            recipe.checkpointing != Checkpointing::None,
            "recipe.checkpointing",
            "checkpointing other than parallel.data.megatron.recompute",
        ),
        (recipe.eval_after, "recipe.eval_after", "an evaluation"),
        (recipe.keep_outputs, "recipe.keep_outputs", "kept outputs"),
        (recipe.keep_variables, "recipe.keep_variables", "variables that outlive a step"),
        (
            recipe.zero_grad == Some(crate::recipe::ZeroGrad::AfterForward),
            "recipe.zero_grad",
            "gradients that are kept during the forward",
        ),
        (recipe.load != crate::recipe::Load::Init, "recipe.load", "loading a checkpoint"),
    ] {
        if on {
            not(field, what);
        }
    }
    for (on, what) in unmodelled(options, &gpt, parallel) {
        if on {
            not("parallel.data.megatron", what);
        }
    }
    issues
}

fn unmodelled(
    options: &Megatron,
    gpt: &crate::model::family::Gpt,
    parallel: &crate::recipe::Parallel,
) -> [(bool, &'static str); 8] {
    let experts = gpt.experts.is_some();
    let shared = options.expert_tensor_parallel_size.unwrap_or(parallel.tensor.size) > 1;
    [
        (
            experts && parallel.tensor.size > 1 && !parallel.tensor.sequence_parallel,
            "experts over tensor-parallel ranks without sequence parallelism",
        ),
        (gpt.qk_norm && gpt.latent.is_none(), "norms over query and key heads"),
        (experts && shared, "experts that tensor-parallel ranks share"),
        (gpt.bert && gpt.experts.is_some(), "a BERT with experts"),
        (gpt.bert && parallel.context > 1, "a BERT over context-parallel ranks"),
        (
            parallel.context > 1 && options.attention_backend == MegatronAttention::Unfused,
            "unfused attention over context-parallel ranks",
        ),
        (
            options.recompute == MegatronRecompute::CoreAttention
                && options.attention_backend != MegatronAttention::Unfused,
            "fused attention that is run again",
        ),
        (
            options.cross_entropy == MegatronLoss::Te && !options.transformer_engine,
            "Transformer Engine's loss without its layers",
        ),
    ]
}

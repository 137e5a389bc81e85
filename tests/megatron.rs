//! Laws of Megatron-LM's layouts: what ranks hold adds up to the model, and layouts that do not exist are refused.
#![allow(missing_docs, clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Value, json};
use vram_budget::bill::Part;
use vram_budget::decide::{Fact, Reason, VerdictKind, decide};
use vram_budget::estimate::{RankEstimate, estimate, parameter_count, quick, ranks, read_model};
use vram_budget::issue::IssueKind;
use vram_budget::plan::Plan;

fn plan(config: &Value, parallel: &Value, grad_accum: u64) -> Plan {
    serde_json::from_value(json!({
        "version": 1,
        "model": { "config": config },
        "recipe": {
            "precision": "bf16_master", "optimizer": { "name": "adam" }, "micro_batch": 1, "seq_len": 256,
            "grad_accum": grad_accum,
        },
        "parallel": parallel,
        "machine": { "gpu": { "catalogue": "H100 SXM5 80GB" } },
    }))
    .unwrap()
}

fn gpt(layers: u64) -> Value {
    json!({
        "model_type": "megatron", "num_layers": layers, "hidden_size": 256, "num_attention_heads": 8,
        "vocab_size": 4096, "normalization": "RMSNorm", "position_embedding_type": "rope", "swiglu": true,
        "ffn_hidden_size": 768, "add_bias_linear": false, "untie_embeddings_and_output_weights": true,
    })
}

fn sum(all: &[RankEstimate], part: Part) -> u64 {
    all.iter().map(|rank| rank.parts.get(part).get()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every matrix is on one pipeline rank and shared by its tensor-parallel ranks; norms are on each of those.
    #[test]
    fn ranks_share_the_parameters(
        tensor in prop::sample::select(vec![1_u64, 2, 4]),
        stages in 1_u64..4,
        chunks in 1_u64..3,
        each in 1_u64..3,
        data in prop::sample::select(vec![1_u64, 2, 3]),
        distributed: bool,
    ) {
        let chunks = if stages == 1 { 1 } else { chunks };
        let layers = stages * chunks * each;
        let config = gpt(layers);
        let parallel = json!({
            "world_size": tensor * stages * data, "pipeline": stages,
            "tensor": { "size": tensor, "sequence_parallel": tensor > 1 },
            "data": { "megatron": { "virtual_pipeline": chunks, "use_distributed_optimizer": distributed } },
        });
        let plan = plan(&config, &parallel, stages);
        let all = ranks(&plan).unwrap();
        prop_assert_eq!(all.iter().map(|rank| rank.layers).sum::<u64>(), layers);
        let whole = parameter_count(read_model(&plan.model).unwrap().model.as_ref());
        let norms = (2 * layers + 1) * 256;
        let weights = sum(&all, Part::Weights);
        let (states, gradients) = (sum(&all, Part::States), sum(&all, Part::Gradients));
        // A chunk's buffer is padded to a multiple of the ranks and of 128.
        let padding = if distributed { stages * chunks * 384 } else { 0 };
        let held = tensor * weights / 2 - (tensor - 1) * norms;
        prop_assert!((whole..=whole + tensor * padding).contains(&held), "{held} of {whole}");
        prop_assert_eq!(gradients, 2 * weights, "main gradients in FP32");
        prop_assert_eq!(states * if distributed { data } else { 1 }, 6 * weights, "masters and two moments in FP32");
    }

    /// Experts' matrices are shared by their ranks, and all else is on each.
    #[test]
    fn ranks_share_the_experts(expert in prop::sample::select(vec![1_u64, 2, 4, 8])) {
        let mut config = gpt(2);
        config["num_experts"] = json!(8);
        config["moe_ffn_hidden_size"] = json!(128);
        let parallel = json!({ "world_size": 8, "expert": expert, "data": { "megatron": {} } });
        let all = ranks(&plan(&config, &parallel, 1)).unwrap();
        let experts = 2 * 8 * 3 * 128 * 256;
        let whole = parameter_count(read_model(&plan(&config, &parallel, 1).model).unwrap().model.as_ref());
        prop_assert_eq!(sum(&all, Part::Weights) / 2, whole - experts + experts / expert);
    }
}

#[test]
fn an_earlier_stage_never_holds_less_between_the_ends() {
    let parallel = json!({ "world_size": 4, "pipeline": 4, "data": { "megatron": {} } });
    let all = ranks(&plan(&gpt(8), &parallel, 8)).unwrap();
    assert_eq!(all.iter().map(|rank| rank.in_flight).collect::<Vec<_>>(), [4, 3, 2, 1]);
    assert!(all[1].parts.get(Part::Activations) > all[2].parts.get(Part::Activations));
    // The figures are those of the rank that holds the most.
    let most = all.iter().map(|rank| rank.peak_bytes).max().unwrap();
    assert_eq!(estimate(&plan(&gpt(8), &parallel, 8)).unwrap().tiers.requested.peak_bytes, most);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever its layers are, the figures are those of the rank that holds the most.
    #[test]
    fn the_rank_that_binds_is_found(
        stages in 1_u64..7, dense in 0_u64..6, experts: bool, grad_accum in 1_u64..9, first in 1_u64..4, last in 1_u64..4,
        uneven: bool,
    ) {
        let uneven = uneven && stages > 2;
        let middle = stages.saturating_sub(2);
        let mut config = gpt(if uneven { first + 2 * middle + last } else { 2 * stages });
        if experts {
            config["num_experts"] = json!(16);
            config["moe_first_dense_layers"] = json!(dense);
        }
        let mut options = json!({});
        if uneven {
            options = json!({ "decoder_first_pipeline_num_layers": first, "decoder_last_pipeline_num_layers": last });
        }
        let parallel = json!({ "world_size": stages, "pipeline": stages, "data": { "megatron": options } });
        let plan = plan(&config, &parallel, grad_accum);
        let most = ranks(&plan).unwrap().iter().map(|rank| rank.peak_bytes).max().unwrap();
        prop_assert_eq!(quick(&plan).unwrap().tiers.requested.peak_bytes, most);
    }
}

#[test]
fn layers_that_are_run_again_keep_less() {
    let peak = |recompute: Value| {
        let parallel = json!({ "world_size": 2, "pipeline": 2, "data": { "megatron": { "recompute": recompute } } });
        estimate(&plan(&gpt(8), &parallel, 4)).unwrap().tiers.requested.peak_bytes
    };
    let [none, block, uniform] = [json!("none"), json!({ "block": 2 }), json!({ "uniform": 1 })].map(peak);
    assert!(none > block && block > uniform, "{none} {block} {uniform}");
}

#[test]
fn layouts_that_do_not_exist_are_refused_by_the_rule() {
    for (parallel, field, by) in [
        (json!({ "world_size": 8, "tensor": { "size": 3 }, "data": { "megatron": {} } }), "parallel.world_size", 3),
        (
            json!({ "world_size": 16, "tensor": { "size": 16 }, "data": { "megatron": {} } }),
            "config.num_attention_heads",
            16,
        ),
        (json!({ "world_size": 3, "context": 3, "data": { "megatron": {} } }), "recipe.seq_len", 6),
    ] {
        let issues = estimate(&plan(&gpt(8), &parallel, 1)).unwrap_err();
        let found = issues.iter().any(|issue| {
            issue.field == field && matches!(issue.kind, IssueKind::NotDivisible { by: found, .. } if found == by)
        });
        assert!(found, "{parallel}: {issues:?}");
    }
    let uneven = json!({ "world_size": 3, "pipeline": 3, "data": { "megatron": {} } });
    assert!(estimate(&plan(&gpt(8), &uneven, 1)).unwrap_err().iter().any(|issue| issue.field == "config.num_layers"));
    let without = json!({ "world_size": 2, "data": { "ddp": {} } });
    assert!(estimate(&plan(&gpt(8), &without, 1)).is_err(), "a model of Megatron-LM's needs its layout");
}

#[test]
fn what_was_not_measured_needs_the_comfortable_margin() {
    let mut job = plan(&gpt(8), &json!({ "world_size": 2, "pipeline": 2, "data": { "megatron": {} } }), 4);
    assert_eq!(decide(&job).unwrap().verdict.kind, VerdictKind::Fits);
    job.policy.margin_high = 1.0;
    assert_eq!(decide(&job).unwrap().verdict.kind, VerdictKind::Tight);
    let native = json!({ "world_size": 1, "data": { "megatron": { "cross_entropy": "native" } } });
    let verdict = decide(&plan(&gpt(8), &native, 1)).unwrap().verdict;
    assert_eq!(verdict.reason, Reason::Unknown(Fact::Compiled));
}

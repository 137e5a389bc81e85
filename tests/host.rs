//! Host memory and checkpoints, against what was read from PyTorch 2.15 and transformers 5.24: `save_pretrained`, `torch.save`
//! of the optimizer, and the copies that `save_on_cpu` keeps after forward. Saving allocated nothing on the device.
#![allow(missing_docs, clippy::unwrap_used)]

use serde_json::{Value, json};
use vram_budget::estimate::estimate;
use vram_budget::plan::Plan;

fn plan(recipe: &Value) -> Plan {
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 512,
        "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4
    });
    let mut all = json!({ "micro_batch": 2, "seq_len": 512 });
    all.as_object_mut().unwrap().extend(recipe.as_object().unwrap().clone());
    serde_json::from_value(json!({ "version": 1, "model": { "config": config }, "recipe": all })).unwrap()
}

#[test]
fn checkpoints_and_copies_are_what_the_frameworks_make() {
    let adapters = json!({ "r": 8, "targets": ["q_proj", "v_proj"] });
    // Recipe; copied while the weights are saved; the optimizer's states; kept in host memory after forward.
    for (recipe, weights, states, on_host) in [
        (json!({}), 178_276_352, 356_552_704, 0),
        (json!({ "checkpointing": "offload" }), 178_276_352, 356_552_704, 160_120_928),
        (json!({ "checkpointing": "full_offload" }), 178_276_352, 356_552_704, 8_388_608),
        (json!({ "lora": adapters, "checkpointing": "offload" }), 229_376, 458_752, 109_746_272),
        (json!({ "precision": "pure_bf16", "checkpointing": "full_offload" }), 89_138_176, 178_276_352, 4_194_304),
    ] {
        let estimate = estimate(&plan(&recipe)).unwrap();
        let readings = estimate.readings.unwrap();
        let saved = readings.checkpoint.unwrap();
        let found = [saved.weights, saved.copied, saved.states, readings.on_host].map(|bytes| bytes.get());
        assert_eq!(found, [weights, weights, states, on_host], "{recipe}");
        assert_eq!(estimate.tiers.host.unwrap().peak_bytes.get(), weights.max(on_host), "{recipe}");
    }
}

/// Each rank of FSDP2 writes its shards; rank 0 gathers what one GPU would write.
#[test]
fn shards_add_up_to_the_checkpoint_of_one_gpu() {
    let recipe = json!({ "precision": "fp32" });
    let alone = estimate(&plan(&recipe)).unwrap().readings.unwrap().checkpoint.unwrap();
    let mut sharded = serde_json::to_value(plan(&recipe)).unwrap();
    sharded["parallel"] = json!({ "world_size": 4, "data": { "fsdp2": {} } });
    let plan: Plan = serde_json::from_value(sharded).unwrap();
    let saved = estimate(&plan).unwrap().readings.unwrap().checkpoint.unwrap();
    assert_eq!(4 * saved.weights.get(), alone.weights.get(), "every first dimension is a multiple of 4");
    assert_eq!(4 * saved.states.get(), alone.states.get());
    assert_eq!(saved.gathered.unwrap().get(), alone.weights.get() + alone.states.get());
    // The table of words' shard, and 10 MB ahead of the file.
    assert_eq!(saved.copied.get(), 8000 * 512 * 4 + 10_000_000);
}

/// Paged states lie in host memory all along, beside what is copied to save the weights.
#[test]
fn paged_states_count_on_the_host() {
    let estimate = estimate(&plan(&json!({ "optimizer": { "name": "paged_adamw32bit" } }))).unwrap();
    let readings = estimate.readings.unwrap();
    let paged = readings.optimizer_state_host.get();
    assert!(paged > 0);
    assert_eq!(estimate.tiers.host.unwrap().peak_bytes.get(), paged + readings.checkpoint.unwrap().copied.get());
}

/// A layer that stands for more counts for all of them.
#[test]
fn copies_of_repeated_layers_count() {
    let on_host = |layers: u64| {
        let mut plan = serde_json::to_value(plan(&json!({ "checkpointing": "full_offload" }))).unwrap();
        plan["model"]["config"]["num_hidden_layers"] = json!(layers);
        estimate(&serde_json::from_value(plan).unwrap()).unwrap().readings.unwrap().on_host.get()
    };
    assert_eq!(on_host(32), 8 * on_host(4));
}

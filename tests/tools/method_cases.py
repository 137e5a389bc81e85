#!/usr/bin/env python3
"""Draws training steps of preferences, rewards and reinforcement learning: method_cases.py SEED COUNT METHOD[,METHOD...]

One case a line, `{"id", "case"}`, in the form of tests/data/training-steps; whoever measures them adds `result`.
"""
import json
import random
import sys

FAMILIES = {
    "llama": dict(model_type="llama", architectures=["LlamaForCausalLM"]),
    "qwen2": dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"]),
    "qwen3": dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"]),
    "mistral": dict(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=None),
}


def model(r):
    name = r.choice(list(FAMILIES))
    heads, head = r.choice([4, 8, 16]), r.choice([64, 128])
    hidden = r.choice([512, 768, 1024, 1536])
    if name in ("llama", "qwen2"):
        hidden = heads * head
    config = dict(
        FAMILIES[name],
        vocab_size=r.choice([32000, 50000, 128256, 151936]),
        hidden_size=hidden,
        intermediate_size=r.choice([2, 3, 4]) * hidden,
        num_hidden_layers=r.choice([2, 4, 6, 9]),
        num_attention_heads=heads,
        num_key_value_heads=r.choice([n for n in (1, 2, 4, 8, 16) if heads % n == 0]),
        tie_word_embeddings=r.random() < 0.4,
    )
    if name in ("qwen3", "mistral"):
        config["head_dim"] = head
    return name, config


def method(r, name, seq):
    padded = r.random() < 0.7
    if name == "reward":
        return dict(padded=padded)
    completion = r.choice([seq // 4, seq // 2, seq - 16])
    if name == "dpo":
        return dict(completion=completion, reference=r.choice(["model", "model", "precomputed"]), padded=padded)
    completion = min(completion, 96)
    if name == "ppo":
        return dict(completion=completion, forward_batch=r.choice([2, 4, 64, 64]))
    return dict(completion=completion, reference=r.random() < 0.6, old_log_probs=r.random() < 0.4, padded=padded)


def case(r, name):
    family, config = model(r)
    seq = r.choice([128, 256, 384, 512, 1000, 1024])
    recipe = dict(
        precision=r.choice(["amp_bf16", "amp_bf16", "pure_bf16", "fp32", "amp_fp16"]),
        attention=r.choice(["sdpa", "sdpa", "sdpa", "eager"]),
        checkpointing=r.choice(["none", "full", "full"]),
        optimizer=dict(name="adamw", impl=r.choice(["foreach", "fused"])),
        batch=r.choice([1, 2, 3, 4]),
        seq=seq,
        grad_accum=r.choice([1, 1, 2]),
        clip_grad=r.choice([None, 1.0]),
        method={name: method(r, name, seq)},
    )
    if r.random() < 0.35:
        targets = r.choice([["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]])
        recipe["lora"] = dict(r=r.choice([8, 16, 64]), targets=targets)
        if r.random() < 0.3 and name != "reward":
            recipe["quantization"] = dict(kind="nf4", double_quant=r.random() < 0.5, prepare=r.random() < 0.5)
            recipe["precision"] = "amp_bf16"
    if name == "ppo":
        # Its trainer does not clip; loading and a gradient scaler are not modelled with it.
        recipe.pop("quantization", None)
        recipe["clip_grad"] = None
        recipe["precision"] = recipe["precision"].replace("fp16", "bf16")
    sm = r.choice([80, 89, 90])
    kind = "lora" if "lora" in recipe else "full"
    label = f"{name}-{family}_L{config['num_hidden_layers']}h{config['hidden_size']}_sm{sm}_{recipe['precision']}_{kind}"
    return f"{label}_b{recipe['batch']}s{seq}", dict(model=config, recipe=recipe, device=dict(sm=sm, total_mb=1048576))


def main():
    seed, count, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    r = random.Random(seed)
    for i in range(count):
        label, drawn = case(r, names[i % len(names)])
        print(json.dumps(dict(id=f"{seed}-{i}-{label}", case=drawn), separators=(",", ":")))


main()

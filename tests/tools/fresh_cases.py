#!/usr/bin/env python3
"""Draws training steps that no rule has seen: one JSON line each, {"id", "case": {"model", "recipe", "device"}}.

    fresh_cases.py SEED [COUNT] [--into FOLDER]
                   [--optimizers | --defined | --float8 | --adapters | --experts | --activations | --frozen |
                   --linear-loss]
                   [--families NAME,NAME]

The same seed draws the same cases everywhere. With --families those are drawn in turn instead of the usual ones, on cards
from compute capability 8.0 on; with --adapters too, each case has adapters. With --into, each case is a file of its own, for a recorder that measures
a folder. Widths, depths, odd sequence lengths, vocabularies, precisions, attention, checkpointing, optimizers, adapters,
accumulation, clipping and GPU generations are drawn one by one; what a library refuses to run (a fused Adafactor, BF16
flash attention before Ampere, a forced backend under recomputation) is not drawn. --optimizers draws the optimizers that
the plain cases do not have, with their options, optimizers in backward, weights in FP16, FP32 master weights and averages
of the weights; a for-loop RAdam runs as many steps as it takes to be rectified. --defined draws those
that their authors' code defines alone. --float8 draws steps whose linear layers torchao has converted, on cards that
have FP8. --adapters draws adapters for every case: LoRA's options, DoRA, quantised
weights, loading. --linear-loss draws PyTorch's linear_cross_entropy with its options over causal language models. --activations draws every kind of checkpointing, ways to compute the loss, frozen parts and an evaluation.
--frozen draws parts that are not trained, of --families that have names of their own for them. --experts draws adapters on the
experts of mixtures: by their layers' names before transformers 5, as all linear layers, or by their parameters' names
(`target_parameters`).
"""
import json
import os
import random
import sys

# Compute capability: the memories, in MiB, that cards of it report.
CARDS = {75: [15360, 16384], 80: [40960, 81920], 86: [12288, 24576, 49140], 89: [24564, 46068],
         90: [81559, 144384], 100: [183359]}
# Compute capabilities whose low-precision attention is drawn most, as in the table of measured steps.
GENERATIONS = [80, 80, 80, 80, 86, 89, 89, 90, 90, 100, 75]
# Family: how often it is drawn.
FAMILIES = {"llama": 5, "mistral": 3, "qwen2": 4, "qwen3": 4, "gpt2": 4, "gpt_neox": 2, "gemma": 2, "gemma2": 2,
            "gemma3_text": 2, "phi": 1, "phi3": 1, "olmo2": 2, "starcoder2": 1, "opt": 2, "mixtral": 1, "qwen3_moe": 2,
            "bert": 2, "roberta": 1, "distilbert": 1, "vit": 2}
CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM", "gpt2": "GPT2LMHeadModel", "gpt_neox": "GPTNeoXForCausalLM",
           "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
           "phi": "PhiForCausalLM", "phi3": "Phi3ForCausalLM", "olmo2": "Olmo2ForCausalLM",
           "starcoder2": "Starcoder2ForCausalLM", "opt": "OPTForCausalLM", "mixtral": "MixtralForCausalLM",
           "qwen3_moe": "Qwen3MoeForCausalLM", "bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM",
           "distilbert": "DistilBertForMaskedLM", "vit": "ViTForImageClassification"}
# Families over which adapters are drawn, with the linear layers that they may target.
LLAMA_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LINEARS = {"llama": LLAMA_LINEARS, "mistral": LLAMA_LINEARS, "qwen2": LLAMA_LINEARS, "qwen3": LLAMA_LINEARS,
           "gpt2": ["c_attn"]}
# What --families and --adapters can draw beside them.
BLOOM_LINEARS = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
FURTHER_LINEARS = LINEARS | {
    "phi": ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"], "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "olmo2": LLAMA_LINEARS, "starcoder2": ["q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"],
    "opt": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"], "falcon": BLOOM_LINEARS, "bloom": BLOOM_LINEARS,
    "vit": ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"], "gpt_oss": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "deepseek_v3": ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    "whisper": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]}
FURTHER_CLASSES = CLASSES | {"falcon": "FalconForCausalLM", "bloom": "BloomForCausalLM", "gpt_oss": "GptOssForCausalLM",
                             "deepseek_v3": "DeepseekV3ForCausalLM", "whisper": "WhisperForConditionalGeneration",
                             "t5": "T5ForConditionalGeneration"}
OPTIMIZERS = [("adamw", "foreach", 8), ("adamw", "fused", 4), ("adamw", "forloop", 3), ("adam", "foreach", 1),
              ("sgd", "foreach", 2), ("sgd", "forloop", 1), ("adafactor", "foreach", 2), ("adafactor", "forloop", 2),
              ("adafactor_hf", None, 2), ("adamw8bit", None, 3)]


# Optimizer: how often it is drawn, its implementations.
FURTHER = {"adamw": (3, ["foreach", "fused", "forloop"]), "adam": (1, ["foreach", "fused", "forloop"]),
           "sgd": (2, ["foreach", "fused", "forloop"]), "rmsprop": (3, ["foreach", "forloop"]),
           "adagrad": (3, ["foreach", "fused", "forloop"]), "nadam": (2, ["foreach", "forloop"]),
           "radam": (2, ["foreach", "forloop"]), "adamax": (2, ["foreach", "forloop"]),
           "adadelta": (2, ["foreach", "forloop"]), "muon": (4, ["foreach", "fused", "forloop"]),
           "schedulefree_adamw": (2, ["foreach", "forloop"]), "adafactor": (1, ["foreach", "forloop"]),
           "galore_adamw": (2, None), "apollo_adamw": (3, None), "adamw8bit": (2, None), "adamw32bit": (2, None),
           "lion": (2, None), "lion8bit": (2, None), "ademamix": (2, None), "ademamix8bit": (3, None),
           "paged_adamw8bit": (3, None), "paged_adamw32bit": (2, None), "paged_lion8bit": (2, None)}

# Optimizers that are defined by their authors' code alone.
DEFINED = {"sophia": (1, None), "came": (1, None), "adam_mini": (1, None)}


class Draw:
    """Numbers of one stream; only `random()` is used, whose sequence Python promises to keep."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def whole(self, low, high):
        return low + int(self.random() * (high - low + 1))

    def of(self, choices):
        return choices[self.whole(0, len(choices) - 1)]

    def weighted(self, pairs):
        at = self.random() * sum(w for _, w in pairs)
        for choice, w in pairs:
            at -= w
            if at < 0:
                return choice
        return pairs[-1][0]

    def chance(self, p):
        return self.random() < p


def heads(d, family):
    """(query heads, key and value heads, head size)."""
    head = d.of([32, 64, 64, 80, 96, 128, 128])
    groups = d.of([1, 1, 2, 4, 8])
    keys = d.whole(1, 6)
    if groups * keys < 2:
        keys = 2
    if family in ("gpt2", "gpt_neox", "phi", "opt", "bert", "roberta", "distilbert", "vit", "bloom", "deepseek_v3", "whisper"):
        return groups * keys, groups * keys, head
    return groups * keys, keys, head


def model(d, family):
    a, g, head = heads(d, family)
    h = a * head
    layers, vocab = d.whole(1, 9), d.of([d.whole(500, 5000), d.whole(8000, 60000), d.whole(100000, 160000)])
    wide = 8 * d.whole(h // 8, h // 2)
    m = {"model_type": family, "architectures": [FURTHER_CLASSES[family]]}
    if family == "gpt2":
        return m | {"vocab_size": vocab, "n_embd": h, "n_layer": layers, "n_head": a, "n_positions": 1024}
    if family == "vit":
        patch = d.of([14, 16, 32])
        return m | {"hidden_size": h, "intermediate_size": wide, "num_hidden_layers": layers, "num_attention_heads": a,
                    "image_size": patch * d.whole(7, 24), "patch_size": patch}
    if family == "distilbert":
        return m | {"vocab_size": vocab, "dim": h, "hidden_dim": wide, "n_layers": layers, "n_heads": a,
                    "max_position_embeddings": 512}
    if family == "whisper":
        return m | {"vocab_size": vocab, "d_model": h, "encoder_layers": layers, "decoder_layers": d.whole(1, 6),
                    "encoder_attention_heads": a, "decoder_attention_heads": a, "encoder_ffn_dim": wide,
                    "decoder_ffn_dim": wide, "num_mel_bins": d.of([80, 128]), "max_source_positions": d.whole(100, 1500),
                    "max_target_positions": 448, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                    "decoder_start_token_id": 1, "dropout": d.of([0.0, 0.1]), "attention_dropout": d.of([0.0, 0.1])}
    if family == "t5":
        return m | {"vocab_size": vocab, "d_model": h, "d_kv": head, "d_ff": wide, "num_layers": layers, "num_heads": a,
                    "feed_forward_proj": d.of(["relu", "gated-gelu"])}
    m |= {"vocab_size": vocab, "hidden_size": h, "num_hidden_layers": layers, "num_attention_heads": a}
    if family == "bloom":
        return {("n_layer" if k == "num_hidden_layers" else "n_head" if k == "num_attention_heads" else k): v for k, v in m.items()}
    if family == "falcon":
        new = d.chance(0.5)
        return m | ({"new_decoder_architecture": True, "num_kv_heads": g} if new else {"multi_query": d.chance(0.5)})
    m |= {"ffn_dim" if family == "opt" else "intermediate_size": wide}
    if family in ("bert", "roberta"):
        return m | {"max_position_embeddings": 514 if family == "roberta" else 512}
    m |= {"max_position_embeddings": 4096}
    if family == "opt":
        return m | {"word_embed_proj_dim": h}
    if family == "gpt_neox":
        return m | {"rotary_pct": d.of([0.25, 1.0]), "use_parallel_residual": d.chance(0.7)}
    if family == "phi":
        return m
    if family == "deepseek_v3":
        groups = d.of([1, 2, 4])
        return m | {"num_key_value_heads": a, "q_lora_rank": d.of([None, 8 * d.whole(4, 64)]), "kv_lora_rank": 8 * d.whole(4, 64),
                    "qk_nope_head_dim": head, "qk_rope_head_dim": d.of([16, 32, 64]), "v_head_dim": d.of([head, 64, 128]),
                    "moe_intermediate_size": 8 * d.whole(4, 64), "n_routed_experts": d.of([16, 32]), "n_shared_experts": d.of([1, 2]),
                    "n_group": groups, "topk_group": d.whole(1, groups), "num_experts_per_tok": d.of([2, 4, 6]),
                    "first_k_dense_replace": d.whole(0, 2), "rope_interleave": d.chance(0.7)}
    if family == "gpt_oss":
        m |= {"num_key_value_heads": g, "head_dim": head, "num_local_experts": d.of([4, 8, 16]),
              "num_experts_per_tok": d.of([2, 4]), "sliding_window": d.of([128, 300]),
              "intermediate_size": 8 * d.whole(8, 64), "attention_bias": d.chance(0.8)}
        return m
    m |= {"num_key_value_heads": g}
    if family in ("qwen3", "gemma", "gemma2", "gemma3_text", "qwen3_moe"):
        m |= {"head_dim": d.of([head, head, 128])}
    if family in ("llama", "qwen2", "qwen3", "olmo2"):
        m |= {"tie_word_embeddings": d.chance(0.4)}
    if family == "phi3":
        m |= {"pad_token_id": 0}
    if family == "mistral":
        m |= {"sliding_window": d.of([None, 4096])}
    if family == "mixtral":
        m |= {"num_local_experts": d.of([4, 8]), "num_experts_per_tok": 2, "sliding_window": None}
    if family == "qwen3_moe":
        m |= {"num_experts": d.of([8, 16]), "num_experts_per_tok": d.of([2, 4]), "moe_intermediate_size": 8 * d.whole(16, 96)}
    if family == "gemma2":
        m |= {"sliding_window": 4096}
    if family == "gemma3_text":
        m |= {"sliding_window": d.of([512, 1024])}
    return m


def recipe(d, family, sm, adapters=False):
    modes = [("fp32", 2), ("amp_fp16", 2)]
    if sm >= 80:
        modes += [("amp_bf16", 4), ("pure_bf16", 5)]
    longest = {"gpt2": 1024, "bert": 512, "roberta": 510, "distilbert": 512, "whisper": 448}.get(family, 2300)
    name, how = d.weighted([((n, i), w) for n, i, w in OPTIMIZERS])
    optimizer = {"name": name} | ({"impl": how} if how else {})
    if name == "sgd" and d.chance(0.6):
        optimizer["momentum"] = 0.9
    r = {"precision": d.weighted(modes), "attention": "eager" if family in ("gemma2", "gpt_oss", "bloom") or d.chance(0.25) else "sdpa",
         "checkpointing": d.weighted([("none", 3), ("full", 2)]), "optimizer": optimizer,
         "batch": d.of([1, 1, 2, 3, 4, 5]), "seq": d.of([d.whole(17, longest), 8 * d.whole(8, longest // 8)])}
    if adapters or family in LINEARS and d.chance(0.25):
        known = FURTHER_LINEARS[family]
        first = d.whole(0, len(known) - 1)
        r["lora"] = {"r": d.of([4, 8, 12, 16, 48]), "targets": known[first:first + d.whole(1, len(known))]}
    if d.chance(0.2):
        r["grad_accum"] = d.whole(2, 4)
    if d.chance(0.2):
        r["clip_grad"] = 1.0
    if d.chance(0.1):
        r["keep_outputs"] = True
    if d.chance(0.1):
        r["zero_grad"] = "zero"
    forced = r["attention"] == "sdpa" and r["checkpointing"] == "none" and d.chance(0.08)
    if forced and family in ("llama", "qwen2", "qwen3", "gpt2"):
        r["sdpa_backend"] = d.of(["efficient_attention", "math"])
    return r


def further(d, family, sm, table=FURTHER):
    """A recipe as the plain ones, with an optimizer that they do not have."""
    r = recipe(d, family, sm)
    r.pop("clip_grad", None)
    name = d.weighted([(n, w) for n, (w, _) in table.items()])
    how = table[name][1]
    o = {"name": name} | ({"impl": d.of(how)} if how else {})
    if name in ("sgd", "rmsprop") and d.chance(0.6):
        o["momentum"] = 0.9
    if name == "sgd" and "momentum" in o:
        o["nesterov"] = d.chance(0.7)
    if name in ("adam", "adamw"):
        o["amsgrad"] = d.chance(0.7)
    if name == "rmsprop":
        o["centered"] = d.chance(0.5)
    if name.endswith("8bit"):
        o["embeddings_32bit"] = d.chance(0.5)
    if name in ("galore_adamw", "apollo_adamw"):
        o["rank"] = d.of([1, 8, 32, 64, 128, 200])
    if name == "apollo_adamw":
        o["scale_type"] = d.of(["channel", "tensor"])
    if name in ("radam",) and o["impl"] == "forloop":
        r["steps"] = 7
    alone = name in ("muon", "galore_adamw", "apollo_adamw")
    halves = [("pure_fp16", 3)]
    if sm >= 80 and not alone and not o.get("embeddings_32bit") and "lora" not in r:
        halves.append(("bf16_master", 3))
    if d.chance(0.4):
        r["precision"] = d.weighted(halves)
    if name == "muon" and r["precision"] == "amp_fp16":
        r["precision"] = "fp32"
    if not alone and r["precision"] not in ("amp_fp16", "bf16_master") and d.chance(0.3):
        o["in_backward"] = True
        r.pop("grad_accum", None)
        r.pop("zero_grad", None)
    elif d.chance(0.2):
        r["clip_grad"] = 1.0
    if d.chance(0.2):
        r["ema"] = d.of(["same", "float32", "bfloat16"])
    return r | {"optimizer": o}


# The input embedding's module and the list of layers, where they have other names than Llama's.
MODULES = {"gpt2": ("transformer.wte", "transformer.h"), "gpt_neox": ("gpt_neox.embed_in", "gpt_neox.layers"),
           "opt": ("model.decoder.embed_tokens", "model.decoder.layers"),
           "bert": ("bert.embeddings", "bert.encoder.layer"), "roberta": ("roberta.embeddings", "roberta.encoder.layer"),
           "distilbert": ("distilbert.embeddings", "distilbert.transformer.layer"), "vit": ("vit.embeddings", "vit.layers"),
           "falcon": ("transformer.word_embeddings", "transformer.h"),
           "bloom": ("transformer.word_embeddings", "transformer.h"), "t5": ("shared", "encoder.block"),
           "whisper": ("model.encoder", "model.decoder.layers")}
ENCODERS = {"bert", "roberta", "distilbert", "vit"}


def frozen(d, family, sm):
    """A recipe as the plain ones, with parts that are not trained."""
    r = recipe(d, family, sm)
    r.pop("lora", None)
    embedding, stack = MODULES.get(family, ("model.embed_tokens", "model.layers"))
    first = [f"{stack}.0"]
    r["freeze"] = d.of([[embedding], first, [embedding] + first, [f"{stack}.0.{part}" for part in PARTS[family]]])
    return r


# Modules of a layer: all of one kind, or a part of it.
LLAMA_PARTS = ["self_attn", "input_layernorm"]
PARTS = dict.fromkeys(FURTHER_CLASSES, LLAMA_PARTS) | {
    "gpt_neox": ["attention", "mlp.dense_4h_to_h"], "opt": ["self_attn.k_proj", "fc2"],
    "falcon": ["self_attention"], "bloom": ["self_attention.dense", "post_attention_layernorm"], "phi": ["mlp", "self_attn.q_proj"],
    "phi3": ["self_attn.qkv_proj"], "olmo2": ["self_attn.q_norm", "mlp.gate_proj"], "starcoder2": ["mlp.c_fc.bias", "self_attn"],
    "t5": ["layer.0.SelfAttention.q", "layer.1"], "gpt_oss": ["self_attn.sinks", "mlp.experts"], "deepseek_v3": ["self_attn"],
    "whisper": ["encoder_attn", "fc1"]}


def activated(d):
    """A case of which other things are kept, computed in pieces, frozen or evaluated."""
    drawn = case(d)
    activations(d, drawn["model"], drawn["recipe"])
    return drawn


def activations(d, m, r):
    """What is kept, computed in pieces, frozen or evaluated."""
    family = m["model_type"]
    layers = m.get("num_hidden_layers") or m.get("n_layer") or m.get("n_layers")
    r["checkpointing"] = d.weighted([("none", 3), ("full", 2), ("reentrant", 4), ({"every": d.whole(2, 4)}, 4),
                                     ("offload", 3), ("full_offload", 3)])
    loss = d.weighted([("hf", 3), ({"chunked": d.whole(2, 20)}, 3), ({"logits_to_keep": d.whole(1, r["seq"])}, 2)])
    # Gemma 2 caps its logits, which a loss in pieces of one's own would have to do too.
    if loss != "hf" and family not in ENCODERS and not (family == "gemma2" and "chunked" in loss):
        r["loss"] = loss
    if d.chance(0.4):
        embedding, stack = MODULES.get(family, ("model.embed_tokens", "model.layers"))
        some = [f"{stack}.{i}" for i in range(d.whole(0, layers - 1))]
        r["freeze"] = [embedding] + some if d.chance(0.7) else some or [embedding]
    if d.chance(0.3):
        r["eval_after"] = True
    if r["checkpointing"] != "none":
        r.pop("sdpa_backend", None)


def linear_loss(d):
    """A case whose loss is PyTorch's `linear_cross_entropy`, with its options."""
    drawn = case(d, family=d.weighted([(f, w) for f, w in FAMILIES.items() if f not in ENCODERS and f != "gemma2"]))
    r = drawn["recipe"]
    tokens = r["batch"] * r["seq"]
    options = d.of([{}, {}, {"batch_chunk_size": d.whole(tokens // 40 + 1, tokens)}, {"aspect_ratio": d.whole(1, 6)}, {"reference": True}])
    if "reference" not in options:
        options |= d.of([{}, {}, {"acc_policy": d.of(["compact", "accurate"])}])
        if r["precision"] == "pure_bf16" and d.chance(0.3):
            options["acc_float32"] = True
    r["loss"] = {"linear_cross_entropy": options}
    if d.chance(0.2):
        r["eval_after"] = True
    if r["precision"] == "fp32" and d.chance(0.3):
        r["precision"] = "pure_fp16"
    return drawn


def float8(d, family, sm):
    """A recipe as the plain ones, in BF16, with as many tokens as FP8 products take."""
    r = recipe(d, family, sm)
    r.pop("lora", None)
    r["precision"] = d.of(["pure_bf16", "amp_bf16"])
    r["seq"] = max(16, r["seq"] // 16 * 16)
    return r | {"float8": True}


def float8_case(d):
    """On cards with FP8, with matrices whose sides FP8 products take."""
    family = d.of(["llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "phi3"])
    sm = d.of([89, 90, 100])
    m = model(d, family)
    m["intermediate_size"] = m["intermediate_size"] // 16 * 16
    return {"model": m, "recipe": float8(d, family, sm), "device": {"sm": sm, "total_mb": d.of(CARDS[sm])}}


def case(d, recipe=recipe, family=None):
    generations = [sm for sm in GENERATIONS if sm >= 80] if family else GENERATIONS
    family = family or d.weighted(list(FAMILIES.items()))
    sm = d.of(generations)
    device = {"sm": sm, "total_mb": d.of(CARDS[sm])}
    if d.chance(0.1):
        device["alloc_conf"] = "expandable_segments:True"
    if d.chance(0.1):
        device["workspace_kept"] = True
    return {"model": model(d, family), "recipe": recipe(d, family, sm), "device": device}


# Families whose adapters, quantisation and loading are drawn, with the linear layers that adapters may target.
ADAPTED = {"llama": 5, "mistral": 3, "qwen2": 4, "qwen3": 4, "gpt2": 3, "bert": 3, "roberta": 1, "distilbert": 1, "vit": 2}
TARGETS = LINEARS | {"gpt2": ["c_attn", "c_proj", "c_fc"], "bert": ["query", "key", "value", "dense"],
                     "roberta": ["query", "key", "value", "dense"], "distilbert": ["q_lin", "k_lin", "v_lin", "lin1", "lin2"],
                     "vit": ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"]}


def adapted(d):
    """A case with adapters."""
    family = d.weighted(list(ADAPTED.items()))
    sm = d.of(GENERATIONS)
    device = {"sm": sm, "total_mb": d.of(CARDS[sm])}
    m, r = model(d, family), recipe(d, family, sm)
    r.pop("lora", None)
    known = TARGETS[family]
    first = d.whole(0, len(known) - 1)
    lora = {"r": d.of([4, 8, 16, 16, 32, 64]),
            "targets": "all-linear" if d.chance(0.35) else known[first:first + d.whole(1, len(known))]}
    if d.chance(0.6):
        half = r["precision"] in ("amp_fp16",) or sm < 80
        dtype = "float16" if half else "bfloat16"
        if d.chance(0.25):
            r["quantization"] = {"kind": "int8"}
        else:
            r["quantization"] = {"kind": d.of(["nf4", "nf4", "fp4"]), "double_quant": d.chance(0.5), "compute_dtype": dtype}
        if d.chance(0.3):
            r["quantization"]["prepare"] = False
    elif d.chance(0.3):
        r["load"] = "pretrained"
    quantized = "quantization" in r
    if d.chance(0.35):
        lora["dropout"] = d.of([0.05, 0.1])
    if d.chance(0.3):
        lora["use_dora"] = True
    elif not quantized and d.chance(0.3):
        lora["bias"] = d.of(["all", "lora_only"])
    elif d.chance(0.25) and r["precision"] == "pure_bf16":
        lora["adapter_dtype"] = "bfloat16"
    if family in ("llama", "mistral", "qwen2", "qwen3") and d.chance(0.15):
        lora["modules_to_save"] = d.of([["lm_head"], ["embed_tokens", "lm_head"]])
    r["lora"] = lora
    return {"model": m, "recipe": r, "device": device}


# Mixtures of experts: the linear layers beside the experts, and what their experts' layers and router are called.
MIXTURES = {"mixtral": (["q_proj", "k_proj", "v_proj", "o_proj"], ["w1", "w3"], ["w2", "gate"]),
            "qwen3_moe": (["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj"], ["down_proj", "gate"]),
            "deepseek_v3": (["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"], ["gate_proj", "up_proj"], ["down_proj", "gate"]),
            "gpt_oss": (["q_proj", "k_proj", "v_proj", "o_proj"], [], [])}


def experts(d, family, sm):
    """Adapters on a mixture's experts."""
    r = recipe(d, family, sm)
    known, both, others = MIXTURES[family]
    lora = {"r": d.of([2, 4, 8, 16, 32]), "targets": known[:d.whole(0, len(known))]}
    if both and d.chance(0.3):
        lora["targets"] = "all-linear"
    elif both and d.chance(0.6):
        lora["targets"] = lora["targets"] + d.of([both, both + others, others[:1], both + others[:1], others])
    else:
        prefix = d.of(["", "experts.", "mlp.experts.", "layers.0.mlp.experts."])
        lora["target_parameters"] = [prefix + n for n in d.of([["gate_up_proj"], ["down_proj"], ["gate_up_proj", "down_proj"]])]
        if family == "deepseek_v3" or prefix.startswith("layers"):
            lora["targets"] = lora["targets"] or known[:1]
    if r["precision"] == "pure_bf16" and d.chance(0.4):
        lora["adapter_dtype"] = "bfloat16"
    if d.chance(0.2):
        lora["bias"] = d.of(["all", "lora_only"])
    return r | {"lora": lora}


def option(args, name):
    """The value after `name`, taken out of `args`; none where it is not there."""
    if name not in args:
        return None
    at = args.index(name)
    value = args[at + 1]
    del args[at:at + 2]
    return value


def main():
    args = [a for a in sys.argv[1:] if a not in ("--optimizers", "--defined", "--float8", "--adapters", "--experts", "--activations", "--frozen",
                                            "--linear-loss")]
    into, families = option(args, "--into"), option(args, "--families")
    families = families.split(",") if families else [None]
    draw = further if "--optimizers" in sys.argv else experts if "--experts" in sys.argv else frozen if "--frozen" in sys.argv else recipe
    if "--defined" in sys.argv:
        def draw(d, family, sm):
            return further(d, family, sm, DEFINED)
    if "--adapters" in sys.argv:
        def draw(d, family, sm):
            return recipe(d, family, sm, True)
    seed, count = int(args[0]), int(args[1]) if len(args) > 1 else 150
    d = Draw(seed)
    for i in range(count):
        if "--adapters" in sys.argv and families == [None]:
            drawn = adapted(d)
        elif "--activations" in sys.argv:
            drawn = activated(d)
        elif "--linear-loss" in sys.argv:
            drawn = linear_loss(d)
        elif "--float8" in sys.argv:
            drawn = float8_case(d)
        else:
            drawn = case(d, draw, families[i % len(families)])
        name = f"fresh{seed}_{i:03}_{drawn['model']['model_type']}"
        if into is None:
            print(json.dumps({"id": name, "case": drawn}, separators=(",", ":")))
        else:
            with open(os.path.join(into, name + ".json"), "w") as f:
                json.dump(drawn, f)


if __name__ == "__main__":
    main()

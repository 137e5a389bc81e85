"""What job it is, from the live objects: the plan that `vram-budget` predicts from.

`read` gives `plan` in the words of the plan document, as far as the objects tell, and in `why` everything that the plan
could not say: then it is no description of this job, and the document has none.
"""
import os
import sys

FLOATS = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
NAMES = {"torch.float32": "float32", "torch.bfloat16": "bfloat16", "torch.float16": "float16"}


def read(recorder):
    job = Job(recorder)
    job.plan["machine"] = job.machine()
    job.plan["framework"] = job.framework()
    model = job.unwrapped()
    job.plan["model"] = job.config(model)
    job.recipe["precision"] = job.precision(model)
    job.recipe["optimizer"] = job.optimizer(model)
    job.batch(model)
    job.checkpointing(model)
    job.adapters(model)
    job.frozen(model)
    job.rest(model)
    job.plan["recipe"] = job.recipe
    return dict(plan=job.plan, why=job.why)


def is_a(module, name):
    """Whether it is one of this class, whose module may not be loaded."""
    return any(c.__name__ == name for c in type(module).__mro__)


class Job:
    def __init__(self, recorder):
        self.r, self.torch = recorder, recorder.torch
        self.plan, self.recipe, self.why = dict(version=1), {}, []
        self.root = recorder.step["model"]()
        self.seen, self.step = recorder.seen, recorder.step

    def not_told(self, what):
        if what not in self.why:
            self.why.append(what)

    # ---------------------------------------------------------------- where it runs
    def machine(self):
        device = self.r.memory.device
        if device is None:
            return {}
        p = self.torch.cuda.get_device_properties(device)
        return dict(gpu=dict(custom=dict(name=p.name, memory_bytes=p.total_memory, compute_capability=f"{p.major}.{p.minor}")))

    def framework(self):
        found = dict(pytorch=self.torch.__version__)
        for name in ("transformers", "peft", "bitsandbytes"):
            if name in sys.modules:
                found[name] = sys.modules[name].__version__
        conf = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        if conf:
            found["alloc_conf"] = conf
        if os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") in ("0", "1"):
            found["cublas_workspace_kept"] = os.environ["TORCH_CUBLAS_WORKSPACE_CACHE"] == "1"
        return found

    # ---------------------------------------------------------------- wrappers
    def unwrapped(self):
        """The model below compilers' and parallel wrappers, which go into the plan as they come off."""
        model, world = self.root, 1
        dist = self.torch.distributed
        if dist.is_available() and dist.is_initialized():
            world = dist.get_world_size()
        data = None
        while True:
            name = type(model).__name__
            if name == "OptimizedModule":
                self.recipe["compile"], model = True, model._orig_mod
            elif name == "DistributedDataParallel":
                data, model = dict(ddp=self.ddp(model)), model.module
            elif name == "DeepSpeedEngine":
                data, model = dict(deepspeed=self.deepspeed(model)), model.module
            elif name == "FullyShardedDataParallel":
                data, model = dict(fsdp1=self.fsdp1(model)), model._fsdp_wrapped_module
            elif name == "DataParallel":
                self.not_told("torch.nn.DataParallel")
                model = model.module
            else:
                break
        if any(getattr(m, "_compiled_call_impl", None) is not None for m in model.modules()):
            self.recipe["compile"] = True
        if data is None and any(hasattr(m, "_get_fsdp_state") for m in model.modules()):
            data = dict(fsdp2=self.fsdp2(model))
        if data is not None or world > 1:
            if data is None:
                self.not_told("several ranks without a wrapper that is known")
            self.plan["parallel"] = dict(world_size=world, data=data or "none")
        return model

    def ddp(self, m):
        return dict(gradient_as_bucket_view=m.gradient_as_bucket_view, bucket_cap_mb=m.bucket_bytes_cap >> 20,
                    static_graph=m.static_graph, find_unused_parameters=m.find_unused_parameters)

    def dtypes(self, param, reduce, output):
        name = lambda t: NAMES.get(str(t)) if t is not None else None
        return {k: name(t) for k, t in (("param", param), ("reduce", reduce), ("output", output)) if t is not None}

    def fsdp2(self, model):
        groups = {}
        for name, m in model.named_modules():
            state = m._get_fsdp_state() if hasattr(m, "_get_fsdp_state") else None
            if state is not None and state._fsdp_param_group is not None:
                groups[name.replace("._checkpoint_wrapped_module", "")] = (state, state._fsdp_param_group)
        if not groups:
            self.not_told("fully_shard without parameters")
            return {}
        layers = [n for n in groups if n.rpartition(".")[2].isdigit()]
        others = [n for n in groups if n and n not in layers]
        if others and not (len(others) == 2 and any("embed" in n for n in others)):
            self.not_told("groups of parameters of fully_shard other than layers: " + ", ".join(others)[:200])
        state, group = groups[layers[0]] if layers else next(iter(groups.values()))
        mp, after = state._mp_policy, group.post_forward_mesh_info
        whole = sum(p.numel() * p.element_size() for p in model.parameters())
        before = self.r.first_peak
        found = dict(replicas=getattr(group.mesh_info, "replicate_mesh_size", None) or 1,
                     mixed_precision=self.dtypes(mp.param_dtype, mp.reduce_dtype, mp.output_dtype),
                     wrap="root" if not layers else "layers_and_ends" if others else "layers",
                     offload_cpu=type(group.offload_policy).__name__ == "CPUOffloadPolicy",
                     reshard_after_backward=group.reshard_after_backward,
                     # Whole on the device before it was sharded: then as much was allocated before the first step.
                     init="cuda" if before is not None and before >= whole else "meta",
                     reshard_after_forward="never" if after is None else "always" if after == group.mesh_info
                     else dict(to=after.shard_mesh_size))
        if "" in groups and groups[""][1].post_forward_mesh_info is not None:
            found["root_reshard_after_forward"] = True
        if any(is_a(m, "CheckpointWrapper") for m in model.modules()):
            found["checkpoint_wrapper"] = True
        return found

    def fsdp1(self, m):
        mp = m.mixed_precision
        return dict(strategy=m.sharding_strategy.name,
                    mixed_precision=self.dtypes(mp.param_dtype, mp.reduce_dtype, mp.buffer_dtype),
                    use_orig_params=m._use_orig_params, limit_all_gathers=m.limit_all_gathers,
                    forward_prefetch=m.forward_prefetch, init="cuda",
                    backward_prefetch=m.backward_prefetch.name if m.backward_prefetch is not None else "None",
                    offload_cpu=bool(m.cpu_offload.offload_params))

    def offload(self, section):
        return dict(device=section.device.value, pin_memory=section.pin_memory) if section is not None else {}

    def deepspeed(self, e):
        names = ("reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "contiguous_gradients", "sub_group_size")
        zero = e.zero_optimization_stage()
        found = dict(stage=zero, dtype="bfloat16" if e.bfloat16_enabled() else "float16" if e.fp16_enabled() else "float32")
        for name in names:
            ask = getattr(e, "zero_" + name, None)
            if ask is not None:
                found[name] = ask()
        found["offload_optimizer"] = self.offload(e.zero_offload_optimizer())
        if zero == 3:
            found.update(stage3_prefetch_bucket_size=e.zero_prefetch_bucket_size(),
                         stage3_param_persistence_threshold=e.zero_param_persistence_threshold(),
                         stage3_max_live_parameters=e.zero_max_live_parameters(),
                         stage3_max_reuse_distance=e.zero_max_reuse_distance(),
                         offload_param=self.offload(e.zero_offload_param()))
        if e.gradient_clipping():
            self.recipe["clip_grad"] = e.gradient_clipping()
        return found

    # ---------------------------------------------------------------- model and precision
    def config(self, model):
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        config = getattr(base, "config", None)
        if config is not None and hasattr(config, "to_dict"):
            found = config.to_dict()
            # Below the class that fully_shard makes, and the user's own.
            ours = next((c for c in type(base).__mro__ if c.__module__.startswith("transformers.")), type(base))
            found["architectures"] = [ours.__name__]
            for key in ("quantization_config", "torch_dtype", "dtype", "_name_or_path", "transformers_version", "id2label", "label2id"):
                found.pop(key, None)
            if "num_labels" not in found and getattr(config, "num_labels", 2) != 2:
                found["num_labels"] = config.num_labels
            attention = getattr(config, "_attn_implementation", None)
            if attention in ("sdpa", "eager", "flash_attention_2"):
                self.recipe["attention"] = attention
            elif attention is not None:
                self.not_told(f"attention {attention}")
            return dict(config=found)
        if type(base).__name__ == "ResNet" and type(base).__module__.startswith("torchvision"):
            blocks = [len(getattr(base, f"layer{i}")) for i in (1, 2, 3, 4)]
            name = {(3, 4, 6, 3, "Bottleneck"): "resnet50", (3, 4, 23, 3, "Bottleneck"): "resnet101",
                    (3, 8, 36, 3, "Bottleneck"): "resnet152", (2, 2, 2, 2, "BasicBlock"): "resnet18",
                    (3, 4, 6, 3, "BasicBlock"): "resnet34"}.get((*blocks, type(base.layer1[0]).__name__))
            if name:
                return dict(config=dict(architectures=[name]))
        self.not_told(f"the model {type(base).__module__}.{type(base).__name__}, which has no Hugging Face configuration")
        return None

    def precision(self, model):
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        counts = {}
        for name, p in base.named_parameters():
            if "lora_" not in name and p.is_floating_point():
                counts[str(p.dtype)] = counts.get(str(p.dtype), 0) + p.numel()
        autocast, several = self.seen.get("autocast"), len(counts) > 1
        quantized = getattr(base, "quantization_method", None) or getattr(base, "is_quantized", False)
        if not counts:
            return None
        weights = FLOATS.get(max(counts, key=counts.get))
        if several and not quantized and not hasattr(model, "get_base_model") and min(counts.values()) * 100 > sum(counts.values()):
            self.not_told("weights in " + " and ".join(sorted(FLOATS.get(c, c) for c in counts)))
        if autocast is not None:
            half = FLOATS.get(autocast)
            if weights == half == "bf16" and not quantized:
                return "bf16_autocast"
            if weights != "fp32" and not quantized:
                self.not_told(f"autocast to {half} over weights in {weights}")
            return f"amp_{half}"
        if quantized:
            compute = str(getattr(base.config.quantization_config, "bnb_4bit_compute_dtype", "torch.float16"))
            return f"pure_{FLOATS.get(compute, 'bf16')}"
        if "deepspeed" in self.plan.get("parallel", {}).get("data", {}):
            return f"pure_{weights}" if weights != "fp32" else "fp32"
        return "fp32" if weights == "fp32" else f"pure_{weights}"

    # ---------------------------------------------------------------- optimizer
    def optimizer(self, model):
        ours = {id(p) for p in model.parameters()}
        stepped = [o for o in list(self.r.optimizers) if id(o) in self.r.stepped or self.r.in_backward or self.r.engine_steps]
        stepped = stepped or list(self.r.optimizers)  # memory ran out before
        stepped = [o for o in stepped if any(g["params"] for g in o.param_groups)]
        if self.r.in_backward:
            found = self.one_optimizer(stepped[0])
            found["in_backward"] = True
            return found
        kinds = sorted(type(o).__name__ for o in stepped)
        if kinds == ["AdamW", "Muon"]:
            found = self.one_optimizer(next(o for o in stepped if type(o).__name__ == "AdamW"))
            return dict(found, name="muon")
        if len(stepped) > 1:
            others = [o for o in stepped if not any(id(p) in ours for g in o.param_groups for p in g["params"])]
            self.not_told(("several models, each with its optimizer: " if others else "several optimizers: ") + ", ".join(kinds))
        return self.one_optimizer(stepped[0]) if stepped else {}

    def one_optimizer(self, o):
        kind, module, group = type(o).__name__, type(o).__module__, o.param_groups[0]
        name = None
        if module.startswith("torch.optim"):
            name = kind.lower()
        elif module.startswith("bitsandbytes"):
            name = {"AdamW8bit": "adamw8bit", "AdamW32bit": "adamw32bit", "PagedAdamW8bit": "paged_adamw8bit",
                    "PagedAdamW32bit": "paged_adamw32bit", "Lion32bit": "lion", "Lion8bit": "lion8bit",
                    "PagedLion8bit": "paged_lion8bit", "AdEMAMix32bit": "ademamix", "AdEMAMix8bit": "ademamix8bit",
                    "PagedAdamW": "paged_adamw32bit", "AdamW": "adamw32bit", "Lion": "lion"}.get(kind)
            args = getattr(o, "args", None)
            if name is not None and args is not None and getattr(args, "optim_bits", None) in (8, 32):
                bits = args.optim_bits
                name = name.replace("32bit", "8bit") if bits == 8 else name.replace("8bit", "32bit")
        elif module.startswith("transformers") and kind == "Adafactor":
            name = "adafactor_hf"
        elif kind == "GaLoreAdamW":
            name = "galore_adamw"
        elif kind == "APOLLOAdamW":
            name = "apollo_adamw"
        elif kind == "AdamWScheduleFree":
            name = "schedulefree_adamw"
        elif module.startswith("deepspeed") and kind in ("FusedAdam", "DeepSpeedCPUAdam"):
            self.not_told(f"the optimizer {kind} of DeepSpeed")
        if name is None:
            self.not_told(f"the optimizer {module}.{kind}")
            name = "adamw"
        found = dict(name=name)
        if group.get("fused"):
            found["impl"] = "fused"
        elif group.get("foreach"):
            found["impl"] = "foreach"
        elif "foreach" in group and group["foreach"] is False:
            found["impl"] = "forloop"
        for key in ("momentum", "nesterov", "amsgrad", "centered"):
            if group.get(key) and (key != "momentum" or name in ("sgd", "rmsprop")):
                found[key] = group[key]
        for group in o.param_groups:
            if name in ("galore_adamw", "apollo_adamw") and group.get("rank"):
                found["rank"] = group["rank"]
                if name == "apollo_adamw":
                    found["scale_type"] = group.get("scale_type", "channel")
        sizes = sorted(sum(p.numel() for p in g["params"]) for g in o.param_groups)
        if module.startswith("torch.optim") and found.get("impl") in (None, "foreach") and sum(sizes[:-1]) * 100 > sum(sizes):
            # `step` runs the lists of one group after the other: its temporaries are those of the largest.
            self.not_told(f"{len(sizes)} groups of parameters, which the optimizer steps one after another")
        if group.get("capturable") or group.get("differentiable"):
            self.not_told("a capturable or differentiable optimizer")
        return found

    # ---------------------------------------------------------------- batch and loss
    def batch(self, model):
        micros = self.step["micro"]
        self.recipe["grad_accum"] = sum("backward" in m for m in micros) or 1
        if any("backward" not in m for m in micros[:-1]):
            self.not_told("several forwards for one backward")
        sizes = micros[0].get("shape") or {}
        labels = "labels" in sizes
        mask = sizes.get("attention_mask")
        if mask is not None and len(mask) != 2:
            self.not_told("an attention mask of the caller's own")
        elif mask is not None and "masked" not in micros[0]:
            if self.recipe.get("compile"):
                self.r.note("an attention mask was passed: whether some of it hides padding cannot be seen of a compiled model, and the plan has none")
            else:
                self.not_told("whether the attention mask hides padding: no attention was seen that takes it")
        ids, pixels = sizes.get("input_ids"), sizes.get("pixel_values")
        decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        first = sizes.get("0")
        if ids is None and pixels is None and first is not None:
            ids, pixels = (first, None) if len(first) == 2 else (None, first) if len(first) == 4 else (None, None)
        if ids is not None:
            self.recipe["micro_batch"], self.recipe["seq_len"] = ids
            if decoder and (sizes.get("labels") or sizes.get("decoder_input_ids")):
                self.recipe["dec_seq"] = (sizes.get("labels") or sizes["decoder_input_ids"])[1]
        elif pixels is not None:
            self.recipe["micro_batch"] = pixels[0]
            side = getattr(getattr(model, "config", None), "image_size", 224)
            if pixels[2:] != [side, side]:
                self.not_told(f"images of {pixels[2:]} pixels")
        else:
            self.not_told("inputs that are neither tokens nor pictures")
        if hasattr(model, "config") and not labels:
            self.not_told("a loss that the model does not compute: it got no labels")
        if "position_ids" in sizes:
            self.not_told("position_ids of the caller's")
        known = {"input_ids", "labels", "attention_mask", "pixel_values", "decoder_input_ids", "num_items_in_batch", "0", "position_ids"}
        if set(sizes) - known:
            self.not_told("further inputs: " + ", ".join(sorted(set(sizes) - known)))

    # ---------------------------------------------------------------- checkpoints, adapters, frozen parts
    def checkpointing(self, model):
        wrapped = sum(is_a(m, "CheckpointWrapper") for m in model.modules())
        layers = [m for m in model.modules() if is_a(m, "GradientCheckpointingLayer")]
        on = [getattr(m, "gradient_checkpointing", False) for m in layers]
        if wrapped or any(on):
            if all(on) or wrapped == len(layers):
                how = next((m._gradient_checkpointing_func for m in layers if hasattr(m, "_gradient_checkpointing_func")), None)
                reentrant = getattr(how, "keywords", {}).get("use_reentrant")
                self.recipe["checkpointing"] = "reentrant" if reentrant or (reentrant is None and not wrapped) else "full"
                return
            every = len(on) and next((k for k in range(2, len(on)) if on == [i % k == 0 for i in range(len(on))]), None)
            if every:
                self.recipe["checkpointing"] = dict(every=every)
            else:
                self.not_told("checkpoints of some layers")

    def adapters(self, model):
        if not hasattr(model, "peft_config"):
            return
        configs = model.peft_config
        active = getattr(model, "active_adapter", "default")
        c = configs[active if isinstance(active, str) else active[0]]
        if type(c).__name__ != "LoraConfig" or len(configs) > 1:
            self.not_told(f"adapters of peft's {type(c).__name__}" if len(configs) == 1 else "several adapters")
            return
        targets = c.target_modules
        if isinstance(targets, str):
            found = {n.rpartition(".")[2] for n, m in model.named_modules() if hasattr(m, "lora_A")}
            targets = found
        lora = dict(r=c.r, targets=sorted(targets), dropout=c.lora_dropout, bias=c.bias, use_dora=bool(c.use_dora))
        if c.modules_to_save:
            lora["modules_to_save"] = list(c.modules_to_save)
        pair = next((p for n, p in model.named_parameters() if "lora_" in n), None)
        if pair is not None and pair.dtype != self.torch.float32:
            lora["adapter_dtype"] = NAMES[str(pair.dtype)]
        if c.rank_pattern or c.alpha_pattern or getattr(c, "layers_to_transform", None) is not None:
            self.not_told("ranks or layers of adapters by pattern")
        self.recipe["lora"] = lora

    def frozen(self, model):
        """The names of what is not trained: of whole modules where all of one is."""
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        method = str(getattr(base, "quantization_method", "") or "")
        if "bitsandbytes" in method.lower():
            q = base.config.quantization_config
            norm = next((p for n, p in base.named_parameters() if "norm" in n), None)
            self.recipe["quantization"] = dict(
                kind="int8" if q.load_in_8bit else q.bnb_4bit_quant_type,
                double_quant=bool(q.load_in_4bit and q.bnb_4bit_use_double_quant),
                prepare=norm is not None and norm.dtype == self.torch.float32)
            if q.load_in_4bit:
                self.recipe["quantization"]["compute_dtype"] = NAMES.get(str(q.bnb_4bit_compute_dtype))
        elif method:
            self.not_told(f"weights quantised by {method}")
        if hasattr(base, "hf_device_map"):
            self.recipe["load"] = "pretrained"
        if "lora" in self.recipe:
            return
        frozen, below = [], set()
        for name, module in model.named_modules():
            ps = list(module.parameters())
            if name and ps and not any(name.startswith(p + ".") for p in below) and not any(p.requires_grad for p in ps):
                frozen.append(name)
                below.add(name)
        single = [n for n, p in model.named_parameters() if not p.requires_grad and not any(n.startswith(f + ".") for f in frozen)]
        if frozen or single:
            self.recipe["freeze"] = frozen + single

    # ---------------------------------------------------------------- the rest
    def rest(self, model):
        if "clip_grad" in self.seen and self.seen["clip_grad"] > 0:
            self.recipe["clip_grad"] = self.seen["clip_grad"]
        if self.seen.get("keeps_outputs"):
            self.recipe["keep_outputs"] = True
        if self.seen.get("detaches_loss"):
            self.recipe["detaches_loss"] = True
        if self.seen.get("outputs_live_on"):
            self.recipe["keep_outputs"] = self.recipe["keep_variables"] = True
        if self.seen.get("zeroed_after_forward") and self.seen.get("keeps_grads", True):
            self.recipe["zero_grad"] = "after_forward"
        elif self.seen.get("keeps_grads"):
            self.recipe["zero_grad"] = "zero"
        self.liger(model)
        if any("Float8" in type(m).__name__ for m in model.modules()):
            self.recipe["float8"] = True

    def liger(self, model):
        """Liger's kernels, by what runs in the place of transformers' own (`liger_kernel/transformers/monkey_patch.py`)."""
        is_liger = lambda of: (getattr(of, "__module__", None) or "").startswith("liger_kernel")
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        known = dict(LigerRMSNorm="rms_norm", LigerSwiGLUMLP="swiglu", LigerPhi3SwiGLUMLP="swiglu", LigerGEGLUMLP="swiglu")
        found = set()
        for m in model.modules():
            # accelerate wraps a model's forward.
            forward = getattr(m, "_original_forward", None) or m.__dict__.get("forward") or type(m).forward
            if is_liger(forward):
                owner = forward.__qualname__.partition(".")[0]
                if m is base:
                    found.add("fused_linear_cross_entropy")
                elif owner in known:
                    found.add(known[owner])
                else:
                    self.not_told(f"Liger's {owner}")
        ours = next((c.__module__ for c in type(base).__mro__ if c.__module__.startswith("transformers.models.")), None)
        if is_liger(getattr(sys.modules.get(ours), "apply_rotary_pos_emb", None)):
            found.add("rope")
        if is_liger(self.torch.nn.functional.cross_entropy):
            found.add("cross_entropy")
        if found:
            self.recipe["liger"] = sorted(found)

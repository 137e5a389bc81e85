"""As torchtitan: fully_shard of each layer, BF16 compute over FP32 shards, checkpoints around layers, clipping.

Start it with torchrun. BACKEND=fake walks one rank of WORLD_SIZE without the others.
"""
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from common import Readings, batch, llama

backend = os.environ.get("BACKEND", "nccl")
if backend == "fake":
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=0, world_size=int(os.environ.get("WORLD_SIZE", 1)), store=FakeStore())
else:
    dist.init_process_group(backend)
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
model, readings = llama(device="meta"), Readings()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
layers = model.model.layers
for i, layer in enumerate(layers):
    layers[i] = fully_shard(checkpoint_wrapper(layer, checkpoint_impl=CheckpointImpl.NO_REENTRANT), mp_policy=policy)
fully_shard(model, mp_policy=policy)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    readings.read("base")
    inputs = batch()
    loss = model(**inputs).loss
    readings.read("forward")
    loss.backward()
    readings.read("backward")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    readings.read("update")
    optimizer.zero_grad()
    del loss, inputs
    readings.read("zeroed")

"""DeepSpeed: ZeRO stage 2 in BF16."""
import os

import deepspeed
import torch

from common import Readings, batch, llama

if os.environ.get("BACKEND") == "fake":
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=0, world_size=int(os.environ.get("WORLD_SIZE", 1)), store=FakeStore())
    deepspeed.init_distributed(dist_backend="fake", dist_init_required=False)
readings = Readings()
model = llama(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
config = dict(train_micro_batch_size_per_gpu=2, bf16=dict(enabled=True), zero_optimization=dict(stage=2),
              gradient_clipping=1.0, zero_allow_untested_optimizer=True)
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for step in range(3):
    readings.read("base")
    inputs = batch()
    loss = engine(**inputs).loss
    readings.read("forward")
    engine.backward(loss)
    readings.read("backward")
    engine.step()
    readings.read("update")
    del loss, inputs

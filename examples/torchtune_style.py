"""As torchtune's single-device recipe: BF16 weights, every layer checkpointed, the optimizer stepped in backward."""
import torch

from common import Readings, batch, llama

model, readings = llama(torch.bfloat16), Readings()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
optimizers = {p: torch.optim.AdamW([p], lr=1e-4, fused=True) for p in model.parameters()}


def step_and_free(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_and_free)
for step in range(3):
    readings.read("base")
    inputs = batch()
    loss = model(**inputs).loss
    readings.read("forward")
    loss.backward()
    readings.read("backward")
    del loss, inputs

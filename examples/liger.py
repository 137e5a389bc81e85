"""Liger's kernels in the place of transformers' own, applied before the model is made."""
import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama

from common import Readings, batch, llama

apply_liger_kernel_to_llama()
model, readings = llama(torch.bfloat16), Readings()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    readings.read("base")
    inputs = batch()
    loss = model(**inputs).loss
    readings.read("forward")
    loss.backward()
    readings.read("backward")
    optimizer.step()
    readings.read("update")
    optimizer.zero_grad()
    del loss, inputs
    readings.read("zeroed")

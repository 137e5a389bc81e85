"""Gradient accumulation: four micro-batches a step, BF16 autocast, fused AdamW."""
import torch

from common import Readings, batch, llama

MICRO_BATCHES = 4
model, readings = llama(), Readings()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(3):
    readings.read("base")
    for _ in range(MICRO_BATCHES):
        inputs = batch(1)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**inputs).loss
        scaled = loss / MICRO_BATCHES
        readings.read("forward")
        scaled.backward()
        readings.read("backward")
        del loss, scaled, inputs
    optimizer.step()
    readings.read("update")
    optimizer.zero_grad()
    readings.read("zeroed")

"""A plain loop: BF16 weights, AdamW."""
import torch

from common import Readings, batch, llama

model, readings = llama(torch.bfloat16), Readings()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
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

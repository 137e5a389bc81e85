"""BF16 autocast over weights that are BF16 already, as a Trainer with bf16=True runs a model loaded in its checkpoint's dtype."""
import torch

from common import Readings, batch, llama

model, readings = llama(torch.bfloat16), Readings()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    readings.read("base")
    inputs = batch()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**inputs).loss
    readings.read("forward")
    loss.backward()
    readings.read("backward")
    optimizer.step()
    readings.read("update")
    optimizer.zero_grad()
    del loss, inputs
    readings.read("zeroed")

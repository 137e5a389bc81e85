"""FP16 autocast over FP32 weights, with a gradient scaler and clipping."""
import torch

from common import Readings, batch, llama

model, readings = llama(), Readings()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    readings.read("base")
    inputs = batch()
    with torch.autocast("cuda", torch.float16):
        loss = model(**inputs).loss
    scaled = scaler.scale(loss)
    readings.read("forward")
    scaled.backward()
    readings.read("backward")
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    readings.read("update")
    scaler.update()
    optimizer.zero_grad()
    del loss, scaled, inputs
    readings.read("zeroed")

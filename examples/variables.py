"""A loop in no function: outputs, loss and batch live on until the next step assigns them anew."""
import torch

from common import batch, llama

model = llama(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    inputs = batch()
    outputs = model(**inputs)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

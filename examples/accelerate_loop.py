"""accelerate's loop: prepare, accumulate, backward."""
import torch
from accelerate import Accelerator

from common import batch, llama

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = llama()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
for micro_batch in range(6):
    with accelerator.accumulate(model):
        loss = model(**batch()).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

"""Batches that grow until the card is full: of 2 GB in the fifth step, of a large one later."""
import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(12):
    batch = torch.randn(1024 * 4**step, 1024, device="cuda")
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

"""Forty short steps, which print nothing but that they ran."""
import torch
from torch import nn

model = nn.Linear(16, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.randn(2, 16, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")

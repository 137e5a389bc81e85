"""A model that the hook cannot read: from the fourth time on its parameters() raises. The training must not notice."""
import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.asked = nn.Linear(4, 4), 0

    def parameters(self, recurse=True):
        self.asked += 1
        if self.asked > 3:
            raise ValueError("odd")
        return super().parameters(recurse)

    def forward(self, x):
        return self.layer(x)


model = Odd().cuda()
optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.1)
for step in range(5):
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")

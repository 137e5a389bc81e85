"""Two models with an optimizer each, stepped in turn: a small GAN."""
import torch
from torch import nn

size = 1024
generator = nn.Sequential(nn.Linear(256, size), nn.ReLU(), nn.Linear(size, size)).cuda()
critic = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1)).cuda()
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
loss = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1, device="cuda"), torch.zeros(64, 1, device="cuda")
for step in range(3):
    real, noise = torch.randn(64, size, device="cuda"), torch.randn(64, 256, device="cuda")
    of_critic.zero_grad()
    (loss(critic(real), ones) + loss(critic(generator(noise).detach()), zeros)).backward()
    of_critic.step()
    of_generator.zero_grad()
    loss(critic(generator(noise)), ones).backward()
    of_generator.step()

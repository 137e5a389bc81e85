"""One optimizer over groups of parameters with learning rates of their own, which it steps one after another."""
import torch

from common import batch, llama

model = llama(torch.bfloat16)
groups = [dict(params=model.model.embed_tokens.parameters(), lr=1e-5), dict(params=model.model.layers.parameters(), lr=1e-4),
          dict(params=[*model.model.norm.parameters(), *model.lm_head.parameters()], lr=2e-4)]
optimizer = torch.optim.AdamW(groups)
for step in range(3):
    model(**batch()).loss.backward()
    optimizer.step()
    optimizer.zero_grad()

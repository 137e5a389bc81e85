"""Two optimizers over one model, as where the embeddings have another learning rate."""
import torch

from common import batch, llama

model = llama(torch.bfloat16)
words = set(model.get_input_embeddings().parameters())
optimizers = [torch.optim.SGD(words, lr=1e-2),
              torch.optim.AdamW([p for p in model.parameters() if p not in words], lr=1e-4)]
for step in range(3):
    model(**batch()).loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()

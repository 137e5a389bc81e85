"""Batches padded to their longest sequence, which comes late and is the shape that the job needs room for."""
import torch

from common import llama, padded


def main():
    model = llama(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for lengths in [(200, 310), (90, 96), (400, 123), (512, 700), (333, 300)]:
        model(**padded(*lengths)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()

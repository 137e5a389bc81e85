"""Padded batches of several lengths in one step: the longest is neither the first nor in the first step."""
import torch

from common import llama, padded


def main():
    model = llama(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in [[(128, 100), (256, 200)], [(200, 310), (600, 812)], [(96, 90), (400, 333)]]:
        for lengths in step:
            (model(**padded(*lengths)).loss / len(step)).backward()
        optimizer.step()
        optimizer.zero_grad()


main()

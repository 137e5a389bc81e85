"""transformers' Trainer: BF16 autocast, accumulation, its default optimizer and clipping."""
import tempfile

import torch
from transformers import Trainer, TrainingArguments

from common import VOCABULARY, llama


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, VOCABULARY, (512,))
        return dict(input_ids=ids, labels=ids.clone())


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, bf16=True,
    report_to=[], save_strategy="no", logging_strategy="no", dataloader_pin_memory=False, disable_tqdm=True)
Trainer(model=llama(), args=arguments, train_dataset=Tokens()).train()

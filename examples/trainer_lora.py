"""transformers' Trainer over adapters on BF16 weights, under autocast, each layer checkpointed: the usual fine-tuning."""
import tempfile

import peft
import torch
from transformers import Trainer, TrainingArguments

from common import VOCABULARY, llama


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, VOCABULARY, (512,))
        return dict(input_ids=ids, labels=ids.clone())


config = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
model = peft.get_peft_model(llama(torch.bfloat16), config)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False}, report_to=[], save_strategy="no", logging_strategy="no",
    dataloader_pin_memory=False, disable_tqdm=True)
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()

"""LoRA by peft over frozen BF16 weights, each layer checkpointed."""
import peft
import torch

from common import Readings, batch, llama

readings = Readings()
config = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = peft.get_peft_model(llama(torch.bfloat16), config)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.enable_input_require_grads()
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for step in range(3):
    readings.read("base")
    inputs = batch(4)
    loss = model(**inputs).loss
    readings.read("forward")
    loss.backward()
    readings.read("backward")
    optimizer.step()
    readings.read("update")
    optimizer.zero_grad()
    del loss, inputs
    readings.read("zeroed")

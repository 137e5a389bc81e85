"""PyTorch Lightning: BF16 autocast, its closure around forward and backward."""
import lightning
import torch

from common import VOCABULARY, llama


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, VOCABULARY, (512,))
        return dict(input_ids=ids, labels=ids.clone())


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = llama()

    def training_step(self, batch, index):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


trainer = lightning.Trainer(max_steps=3, precision="bf16-mixed", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, devices=1, accelerator="gpu")
trainer.fit(Module(), torch.utils.data.DataLoader(Tokens(), batch_size=2))

"""Classifies images with a convolutional network by Lightning's Trainer."""

from __future__ import annotations

import argparse

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="", help="Of torch.compile; eager without.")
args = parser.parse_args()


class LitClassifier(L.LightningModule):
    def __init__(self, channels=8, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(channels * 49, 10),
        )

    def configure_model(self):
        if args.backend:
            self.net.compile(backend=args.backend)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class PrintLosses(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        print(f"iter {trainer.global_step}: loss {outputs['loss'].item():.9f}")

    def on_validation_epoch_end(self, trainer, pl_module):
        values = trainer.callback_metrics
        print(f"epoch: val_loss {values['val_loss']:.9f}, val_acc {values['val_acc']:.4f}")


L.seed_everything(7)
images, labels = torch.randn(160, 1, 14, 14), torch.randint(0, 10, (160,))
images += labels.view(-1, 1, 1, 1) / 3
train, val = random_split(TensorDataset(images, labels), [120, 40])
model = LitClassifier()
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=2,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    num_sanity_val_steps=0,
    callbacks=[PrintLosses()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(train, batch_size=10, shuffle=True), DataLoader(val, batch_size=10))

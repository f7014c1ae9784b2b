"""Fine-tunes BERT for classification by the Trainer of transformers."""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--backend", default="", help="Of torch.compile; eager without.")
args = parser.parse_args()


class Sentences(Dataset):
    """Sentences of different lengths; the label is whether token 7 occurs."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.items = []
        for index in range(size):
            length = int(torch.randint(6, 20, (), generator=generator))
            ids = torch.randint(8, 100, (length,), generator=generator)
            if index % 2:
                ids[index % length] = 7
            self.items.append({"input_ids": ids.tolist(), "label": index % 2})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(features):
    """Pads to the longest sentence of a batch."""
    longest = max(len(item["input_ids"]) for item in features)
    ids = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in features]
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": (torch.tensor(ids) != 0).long(),
        "labels": torch.tensor([item["label"] for item in features]),
    }


class PrintingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training:
            print(f"iter {self.state.global_step}: loss {loss.item():.9f}")
        return (loss, outputs) if return_outputs else loss


set_seed(3)
config = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config)
if args.backend:
    model.compile(backend=args.backend)
training_args = TrainingArguments(
    output_dir=args.output_dir,
    use_cpu=True,
    num_train_epochs=2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    lr_scheduler_type="cosine",
    warmup_steps=4,
    max_grad_norm=1.0,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    seed=3,
)
trainer = PrintingTrainer(
    model=model,
    args=training_args,
    train_dataset=Sentences(80, 0),
    eval_dataset=Sentences(24, 1),
    data_collator=collate,
)
trainer.train()
print(f"eval: loss {trainer.evaluate()['eval_loss']:.9f}")
trainer.save_model()

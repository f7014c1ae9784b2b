"""Compares loss curves with those of transformers' Trainer and of TRL, on the same batches.

For example::

    python -m benchmarks.loss_curves sst2 --data sst2/train.tsv
    python -m benchmarks.loss_curves chat

`sst2` trains BERT to classify sentences, with `transformers.Trainer` as the other program. `chat`
trains a Llama on made conversations, with `trl.SFTTrainer`. Both train from the same random weights
with AdamW, clipping, a linear schedule and no dropout. Prints the largest difference of a loss; the
exit code is 1 if it exceeds 1e-3.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from cerebras_tf.api import fit

STEPS, BATCH, CLIP, DECAY = 200, 4, 1.0, 0.01
EPOCH = 20  # batches of SST-2, so that the loss falls within the steps
RATES = {"sst2": 2e-4, "chat": 1e-3}
TOLERANCE = 1e-3
SIZES = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
MARKED = (
    "{% for m in messages %}{{ '<turn>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<end>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<end>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}"
)


class Recorder(transformers.TrainerCallback):
    """Keeps the losses that a Trainer logs."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Called by the Trainer."""
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))


def training_arguments(folder: str, rate: float, **more: Any) -> dict[str, Any]:
    """What both Trainers are given."""
    return {
        "output_dir": folder,
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": rate,
        "weight_decay": DECAY,
        "max_grad_norm": CLIP,
        "lr_scheduler_type": "linear",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "seed": 1,
        "dataloader_drop_last": True,
        "disable_tqdm": True,
        **more,
    }


def ours(
    module: torch.nn.Module, batches: list[dict[str, torch.Tensor]], rate: float
) -> list[float]:
    """The losses of `cerebras_tf.torch.fit` on the batches of a Trainer."""
    plain = [n for n, _ in module.named_parameters() if "bias" in n or "norm" in n.lower()]
    named = dict(module.named_parameters())
    groups = [
        {"params": [p for n, p in named.items() if n not in plain], "weight_decay": DECAY},
        {"params": [p for n, p in named.items() if n in plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate)
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 0, STEPS)
    given = {"scheduler": scheduler, "clip": CLIP, "log_every": 1}
    found = fit(module, optimizer, batches, steps=STEPS, **given)
    return [found.losses[step] for step in sorted(found.losses)]


class InOrder(torch.utils.data.Dataset):
    """Rows as a Trainer takes them."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self._rows[number]


def sst2(args: argparse.Namespace, folder: str) -> tuple[list[float], list[float]]:
    """Losses of ours and of transformers' Trainer."""
    lines = Path(args.data).read_text(encoding="utf-8").splitlines()[1 : EPOCH * BATCH + 1]
    pairs = [line.rsplit("\t", 1) for line in lines]
    words = sorted({word for text, _ in pairs for word in text.lower().split()})
    number = {word: place for place, word in enumerate(words, start=3)}
    rows = []
    for text, label in pairs:
        ids = [1, *(number[word] for word in text.lower().split()[:62]), 2]
        rows.append({"input_ids": ids, "labels": int(label)})
    config = transformers.BertConfig(
        vocab_size=len(words) + 3,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
        **SIZES,
    )
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(transformers.BertForSequenceClassification(config))

    def collate(chosen: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in chosen)
        ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in chosen]
        tokens = torch.tensor(ids)
        labels = torch.tensor([row["labels"] for row in chosen])
        return {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": labels}

    recorder = Recorder()
    trainer = transformers.Trainer(
        modules[0],
        transformers.TrainingArguments(**training_arguments(folder, RATES["sst2"])),
        data_collator=collate,
        train_dataset=InOrder(rows),
        callbacks=[recorder],
    )
    starts = [n % EPOCH * BATCH for n in range(STEPS)]
    batches = [collate(rows[start : start + BATCH]) for start in starts]
    trainer.get_train_dataloader = lambda: torch.utils.data.DataLoader(batches, batch_size=None)
    trainer.train()
    return ours(modules[1], batches, RATES["sst2"]), recorder.losses


def chat(args: argparse.Namespace, folder: str) -> tuple[list[float], list[float]]:
    """Losses of ours, with the zoo's tokens and weights, and of TRL's SFTTrainer."""
    import datasets
    import trl

    from modelzoo.hugging_face.chat import ChatEncoder
    from modelzoo.hugging_face.model import causal_lm

    tokenizer = _tokenizer()
    rows = [{"messages": messages} for messages in _conversations(STEPS * BATCH)]
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        intermediate_size=344,
        num_key_value_heads=2,
        attention_dropout=0.0,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES,
    )
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(transformers.LlamaForCausalLM(config))
    recorder = Recorder()
    given = training_arguments(
        folder, RATES["chat"], assistant_only_loss=True, max_length=128, packing=False
    )
    trainer = trl.SFTTrainer(
        modules[0],
        trl.SFTConfig(**given, gradient_checkpointing=False, train_sampling_strategy="sequential"),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[recorder],
    )
    trainer.train()
    encoder, batches = ChatEncoder(tokenizer), []
    for start in range(0, STEPS * BATCH, BATCH):
        examples = [encoder.encode(row)[0] for row in rows[start : start + BATCH]]
        longest = max(len(example.ids) for example in examples)
        ids = torch.full((BATCH, longest), encoder.pad_id)
        labels = torch.full((BATCH, longest), -100)
        for place, example in enumerate(examples):
            ids[place, : len(example.ids)] = torch.from_numpy(example.ids)
            labels[place, : len(example.ids)] = torch.from_numpy(example.labels)
        batches.append({"input_ids": ids, "labels": labels})

    class Loss(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            batch = {"input_ids": input_ids, "labels": labels}
            found: torch.Tensor = causal_lm(self.module, batch, None)["loss"]
            return found

    return ours(Loss(modules[1]), batches, RATES["chat"]), recorder.losses


def _tokenizer() -> Any:
    """Bytes, and special tokens of a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({word: n for n, word in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(t, special=True) for t in ("<turn>", "<end>", "<pad>")])
    names = {"eos_token": "<end>", "pad_token": "<pad>"}
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names)
    found.chat_template = MARKED
    return found


def _conversations(count: int) -> list[list[dict[str, str]]]:
    chooser, found = random.Random(0), []
    names, things = ("Ophelia", "Hamlet", "Romeo", "Juliet"), ("rose", "ring", "book", "letter")
    colors = ("gold", "blue", "red", "green", "white")
    for _ in range(count):
        name, thing, color = (chooser.choice(each) for each in (names, things, colors))
        question = f"{name} has a {color} {thing}. Which color?"
        turns = [("user", question), ("assistant", f"It is {color}.")]
        if chooser.random() < 0.5:
            turns += [("user", "Whose is it?"), ("assistant", f"It is {name}'s {thing}.")]
        found.append([{"role": role, "content": text} for role, text in turns])
    return found


def main(argv: list[str]) -> int:
    """Runs one comparison; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.loss_curves", description=__doc__)
    parser.add_argument("what", choices=("sst2", "chat"))
    parser.add_argument("--data", help="train.tsv of SST-2")
    args = parser.parse_args(argv)
    if args.what == "sst2" and args.data is None:
        parser.error("--data: is required for sst2")
    with tempfile.TemporaryDirectory() as folder:
        pairs = list(zip(*{"sst2": sst2, "chat": chat}[args.what](args, folder), strict=True))
    largest = max(abs(one - other) for one, other in pairs)
    first, last = pairs[0], pairs[-1]
    facts = {"steps": len(pairs), "first": first, "last": last, "largest_difference": largest}
    print(json.dumps(facts))
    return int(largest > TOLERANCE or len(pairs) != STEPS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Trains a causal language model with a loop of accelerate."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="", help="Of torch.compile; eager without.")
args = parser.parse_args()

set_seed(5)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
config = GPT2Config(
    vocab_size=97,
    n_positions=32,
    n_embd=32,
    n_layer=1,
    n_head=2,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=0,
    eos_token_id=0,
)
model = GPT2LMHeadModel(config)
if args.backend:
    model = torch.compile(model, backend=args.backend)
generator = torch.Generator().manual_seed(0)
tokens = torch.randint(0, 97, (20 * 8, 24), generator=generator)
tokens[:, 1::2] = tokens[:, ::2]
loader = DataLoader(tokens, batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, 3, 20)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

model.train()
for step, batch in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    print(f"iter {step}: loss {loss.item():.9f}")

model.eval()
with torch.no_grad():
    outputs = model(input_ids=tokens[:8], labels=tokens[:8])
    gathered = accelerator.gather_for_metrics(outputs.loss)
print(f"eval: loss {gathered.mean().item():.9f}")

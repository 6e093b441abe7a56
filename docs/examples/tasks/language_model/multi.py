"""A language model: sentences of unequal length, two micro-batches a step, perplexity.

torchrun --standalone --nproc-per-node 2 docs/examples/tasks/language_model/multi.py
"""

import math
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler

VOCAB, CONTEXT, PAD = 32, 24, 0
EPOCHS, BATCH, ACCUMULATE = 3, 12, 2  # 24 sentences a step


def make_sentences(count, seed):
    """Stands for your tokens: 5 to 24 of them, each one to three after the one before."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, CONTEXT + 1, (count,), generator=generator)
    steps = [torch.randint(1, 4, (length,), generator=generator) for length in lengths]
    return [1 + step.cumsum(0) % (VOCAB - 1) for step in steps]


def collate(sentences):
    tokens = pad_sequence(sentences, batch_first=True, padding_value=PAD)
    return tokens[:, :-1], tokens[:, 1:]


class GPT(nn.Module):
    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.positions = nn.Embedding(CONTEXT, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.tokens(tokens) + self.positions(torch.arange(length))
        return self.head(self.blocks(x, causal, tokens == PAD, is_causal=True))


def sum_of_losses(model, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    return cross_entropy(logits, targets.flatten(), ignore_index=PAD, reduction="sum")


@torch.inference_mode()
def evaluate(model, loader):
    """The sum of losses, and the number of tokens."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    for inputs, targets in loader:
        totals[0] += sum_of_losses(model, inputs, targets)
        totals[1] += (targets != PAD).sum()
    return totals


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    train_set, val_set = make_sentences(255, seed=7), make_sentences(61, seed=2)
    options = {"batch_size": BATCH // world_size, "collate_fn": collate}
    sampler = DistributedSampler(train_set, drop_last=True)
    train_loader = DataLoader(train_set, sampler=sampler, drop_last=True, **options)
    share = range(rank, len(val_set), world_size)
    val_loader = DataLoader(val_set, sampler=share, **options)

    torch.manual_seed(0)
    model = GPT()
    ddp_model = DistributedDataParallel(model)
    torch.manual_seed(1 + rank)  # other dropout on each rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        batches = iter(train_loader)
        while group := list(islice(batches, ACCUMULATE)):
            # A mean over all tokens of the step, however many a micro-batch of a rank has.
            tokens = sum((targets != PAD).sum() for _, targets in group)
            dist.all_reduce(tokens)
            for number, (inputs, targets) in enumerate(group, start=1):
                with nullcontext() if number == len(group) else ddp_model.no_sync():
                    loss = sum_of_losses(ddp_model, inputs, targets) / tokens
                    (loss * world_size).backward()  # DDP divides by world_size
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        totals = evaluate(model, val_loader)
        dist.all_reduce(totals)
        loss, tokens = totals.tolist()
        if rank == 0:
            print(f"epoch {epoch}: perplexity {math.exp(loss / tokens):.4f} on {tokens:.0f} tokens")
            torch.save(model.state_dict(), "model.pt")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()

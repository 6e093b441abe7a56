"""A language model: sentences of unequal length, two micro-batches a step, perplexity.

python docs/examples/tasks/language_model/single.py
"""

import math
from itertools import islice

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

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
    train_set, val_set = make_sentences(255, seed=7), make_sentences(61, seed=2)
    options = {"batch_size": BATCH, "collate_fn": collate}
    train_loader = DataLoader(train_set, shuffle=True, drop_last=True, **options)
    val_loader = DataLoader(val_set, **options)

    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(EPOCHS):
        model.train()
        batches = iter(train_loader)
        while group := list(islice(batches, ACCUMULATE)):
            # A mean over all tokens of the step, however many a micro-batch has.
            tokens = sum((targets != PAD).sum() for _, targets in group)
            for inputs, targets in group:
                loss = sum_of_losses(model, inputs, targets) / tokens
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        loss, tokens = evaluate(model, val_loader).tolist()
        print(f"epoch {epoch}: perplexity {math.exp(loss / tokens):.4f} on {tokens:.0f} tokens")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()

"""A language model: sentences of unequal length, steps in place of epochs, and a
resume inside an epoch.

python docs/examples/tasks/language_model/single.py --resume
"""

import argparse
import math
import os
from itertools import islice

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

VOCAB, CONTEXT, PAD = 32, 24, 0
BATCH, ACCUMULATE = 12, 2  # 24 sentences a step
RATE, WARMUP = 1e-2, 4
EVERY = 7  # steps, from one evaluation and checkpoint to the next
CHECKPOINT = "checkpoint.pt"


def make_sentences(count, seed):
    """Stands for your tokens: 5 to 24 of them, each one to three after the one before."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, CONTEXT + 1, (count,), generator=generator)
    steps = [torch.randint(1, 4, (length,), generator=generator) for length in lengths]
    return [1 + step.cumsum(0) % (VOCAB - 1) for step in steps]


def collate(sentences):
    tokens = pad_sequence(sentences, batch_first=True, padding_value=PAD)
    return tokens[:, :-1], tokens[:, 1:]


def groups(loader, order, done, device):
    """The micro-batches of each step after so many that are done, epoch after epoch."""
    while True:
        # The last group of an epoch may be a smaller one.
        epoch, before = divmod(done, math.ceil(len(loader) / ACCUMULATE))
        order.manual_seed(epoch)
        # What was trained on is read once more, and dropped: that is cheap for tokens. Where
        # reading costs time, let the sampler leave it out.
        batches = islice(loader, before * ACCUMULATE, None)
        while group := list(islice(batches, ACCUMULATE)):
            yield [(inputs.to(device), targets.to(device)) for inputs, targets in group]
            done += 1


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # each: batch, heads, places, width of a head
        # No mask for PAD, which comes last: no token looks at what is behind it.
        y = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(y))
        return x + self.drop(self.down(gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parameter_groups(model):
    """Matrices decay; norms, biases and embeddings do not."""
    decaying, others = [], []
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            matrix = parameter.dim() > 1 and not isinstance(module, nn.Embedding)
            (decaying if matrix else others).append(parameter)
    return [{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def sum_of_losses(model, inputs, targets, bf16):
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bf16):
        logits = model(inputs).flatten(0, 1)
    # Outside of autocast: 16 bits cannot add up the losses of some hundred tokens.
    return cross_entropy(logits.float(), targets.flatten(), ignore_index=PAD, reduction="sum")


@torch.inference_mode()
def evaluate(model, loader, device, bf16):
    """The sum of losses, and the number of tokens."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        totals[0] += sum_of_losses(model, inputs, targets, bf16)
        totals[1] += (targets != PAD).sum()
    return totals


def random_state():
    """Dropout draws from the CPU's generator, or from that of the GPU."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_state(states):
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def save(model, optimizer, step):
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    checkpoint["random"] = random_state()
    torch.save(checkpoint, f"{CHECKPOINT}.tmp")
    with open(f"{CHECKPOINT}.tmp", "rb") as file:
        os.fsync(file.fileno())  # or a power cut leaves it empty
    os.replace(f"{CHECKPOINT}.tmp", CHECKPOINT)  # killed at any moment, it leaves a whole file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--bf16", action="store_true", help="autocast, which needs no scaler")
    parser.add_argument("--resume", action="store_true", help=f"from {CHECKPOINT}, once it exists")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set, val_set = make_sentences(255, seed=7), make_sentences(61, seed=2)
    # Loaders draw at the beginning of a pass. Were it from dropout's generator, a run that is
    # resumed inside an epoch, and begins one pass more, would have other dropout.
    order = torch.Generator()
    options = {"batch_size": BATCH, "collate_fn": collate, "generator": order}
    train_loader = DataLoader(train_set, shuffle=True, drop_last=True, **options)
    val_loader = DataLoader(val_set, **options)

    torch.manual_seed(0)
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model))
    done = 0
    if args.resume and os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        done = checkpoint["step"]
        set_random_state(checkpoint["random"])

    steps = range(done + 1, args.steps + 1)
    for step, group in zip(steps, groups(train_loader, order, done, device), strict=False):
        model.train()
        for part in optimizer.param_groups:  # the rate follows from the step: nothing to save
            cosine = 0.55 + 0.45 * math.cos(math.pi * step / args.steps)
            part["lr"] = RATE * min(step / WARMUP, cosine)

        # A mean over all tokens of the step, however many a micro-batch has.
        tokens = sum((targets != PAD).sum() for _, targets in group)
        for inputs, targets in group:
            loss = sum_of_losses(model, inputs, targets, args.bf16) / tokens
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

        if step % EVERY == 0 or step == args.steps:
            loss, tokens = evaluate(model, val_loader, device, args.bf16).tolist()
            perplexity = math.exp(loss / tokens)
            print(f"step {step}: perplexity {perplexity:.4f} on {tokens:.0f} tokens")
            save(model, optimizer, step)


if __name__ == "__main__":
    main()

"""The same for any number of GPUs.

torchrun --standalone --nproc-per-node 2 docs/examples/transformers/multi.py
"""

import math
import os
from contextlib import nullcontext
from itertools import chain, islice

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import T5Config, T5ForConditionalGeneration, get_scheduler

VOCAB, PAD, END = 32, 0, 1
BATCH, ACCUMULATE, EPOCHS = 12, 2, 2  # 24 pairs a step


def make_pairs(count, seed):
    """Stands for your tokenized texts: 3 to 9 tokens, and the same ones backwards."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 10, (count,), generator=generator).tolist()
    texts = [torch.randint(2, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    return [(text, text[::-1] + [END]) for text in texts]


def collate(pairs):
    """Padded, with a mask for the inputs and -100 where the loss is not to look."""

    def padded(rows, value):
        longest = max(map(len, rows))
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows])

    inputs, labels = zip(*pairs, strict=True)
    input_ids = padded(inputs, PAD)
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != PAD).long(),
        "labels": padded(labels, -100),
    }


def build_model():
    # In yours: AutoModelForSeq2SeqLM.from_pretrained(folder).
    config = T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    lora = LoraConfig(r=4, target_modules=["q", "k", "v", "o", "wi", "wo"])
    return get_peft_model(model, lora)


def score(rows):
    """The share of all wanted tokens that was answered: as BLEU, no mean of parts."""
    hits = sum(len(set(answer) & set(wanted)) for answer, wanted in rows)
    return hits / sum(len(wanted) for _, wanted in rows)


@torch.inference_mode()
def evaluate(model, loader, device):
    """The sum of the losses of all tokens, how many there are, and what the model answers."""
    model.eval()
    totals, rows = torch.zeros(2, dtype=torch.float64, device=device), []
    for batch in loader:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        count = (batch["labels"] != -100).sum()
        totals += torch.stack([model(**batch).loss.double() * count, count.double()])
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        answers = model.generate(**inputs, max_new_tokens=10, do_sample=False)
        for answer, wanted in zip(answers.tolist(), batch["labels"].tolist(), strict=True):
            answer = [token for token in answer[1:] if token != PAD]
            rows.append((answer, [token for token in wanted if token != -100]))
    return totals, rows


def main():
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batch = BATCH // world_size

    train_set, val_set = make_pairs(240, seed=1), make_pairs(21, seed=2)
    sampler = DistributedSampler(train_set, drop_last=True)
    train_loader = DataLoader(train_set, batch, sampler=sampler, drop_last=True, collate_fn=collate)
    share = range(rank, len(val_set), world_size)
    val_loader = DataLoader(val_set, batch, sampler=share, collate_fn=collate)

    torch.manual_seed(0)
    model = build_model().to(device)  # LoRA is in it before DDP, which averages what it finds
    ddp_model = DistributedDataParallel(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    steps = EPOCHS * len(train_loader) // ACCUMULATE
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=steps)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        batches = iter(train_loader)
        while window := list(islice(batches, ACCUMULATE)):
            tokens = sum((part["labels"] != -100).sum() for part in window).to(device)
            dist.all_reduce(tokens)  # of all ranks
            for n, part in enumerate(window, 1):
                part = {name: tensor.to(device) for name, tensor in part.items()}
                count = (part["labels"] != -100).sum()
                with nullcontext() if n == len(window) else ddp_model.no_sync():
                    loss = ddp_model(**part).loss * count / tokens  # .loss is a mean of this part
                    (loss * world_size).backward()  # DDP divides by world_size
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

        totals, rows = evaluate(model, val_loader, device)
        dist.all_reduce(totals)
        shares = [None] * world_size
        dist.all_gather_object(shares, rows)  # texts, too
        rows = list(chain(*shares))
        mean = totals[0] / totals[1]
        if rank == 0:
            print(
                f"epoch {epoch}: perplexity {math.exp(mean):.4f}, {score(rows):.4f} of {len(rows)}"
            )
    if rank == 0:
        model.save_pretrained("adapter")  # of model, not of ddp_model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

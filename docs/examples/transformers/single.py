"""LoRA on a model of transformers, for one GPU: pairs of unequal length, a mean over the tokens of
two micro-batches, generate() and a score.

python docs/examples/transformers/single.py
"""

import math
from itertools import islice

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
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
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = BATCH

    train_set, val_set = make_pairs(240, seed=1), make_pairs(21, seed=2)
    train_loader = DataLoader(train_set, batch, shuffle=True, drop_last=True, collate_fn=collate)
    val_loader = DataLoader(val_set, batch, collate_fn=collate)

    torch.manual_seed(0)
    model = build_model().to(device)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    steps = EPOCHS * len(train_loader) // ACCUMULATE
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=steps)

    for epoch in range(EPOCHS):
        model.train()
        batches = iter(train_loader)
        while window := list(islice(batches, ACCUMULATE)):
            tokens = sum((part["labels"] != -100).sum() for part in window).to(device)
            for part in window:
                part = {name: tensor.to(device) for name, tensor in part.items()}
                count = (part["labels"] != -100).sum()
                loss = model(**part).loss * count / tokens  # .loss is a mean of this part
                loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

        totals, rows = evaluate(model, val_loader, device)
        mean = totals[0] / totals[1]
        print(f"epoch {epoch}: perplexity {math.exp(mean):.4f}, {score(rows):.4f} of {len(rows)}")
    model.save_pretrained("adapter")


if __name__ == "__main__":
    main()

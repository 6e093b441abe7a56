"""Speech recognition with CTC: inputs and targets of unequal length, and the error rate.

python docs/examples/tasks/speech/single.py
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

EPOCHS, BATCH, PHONEMES, BLANK = 4, 24, 6, 0


def make_utterances(count, seed):
    """Stands for your speech: 2 to 7 phonemes, each 2 to 4 frames long, as (frames, 8)."""
    sounds = 2 * torch.randn(PHONEMES + 1, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    utterances = []
    for length in torch.randint(2, 8, (count,), generator=generator).tolist():
        phonemes = torch.randint(1, PHONEMES + 1, (length,), generator=generator)
        frames = torch.randint(2, 5, (length,), generator=generator)
        spoken = sounds[phonemes.repeat_interleave(frames)]
        noise = torch.randn(spoken.shape, generator=generator)
        utterances.append((spoken + 0.5 * noise, phonemes))
    return utterances


def collate(utterances):
    """Padded to the longest of the batch."""
    inputs, targets = zip(*utterances, strict=True)
    input_lengths, target_lengths = torch.tensor([(len(x), len(y)) for x, y in utterances]).T
    return pad_sequence(inputs, True), pad_sequence(targets, True), input_lengths, target_lengths


class Recognizer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.gru = nn.GRU(8, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, PHONEMES + 1)

    def forward(self, inputs, lengths):
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.head(states).log_softmax(-1)


def greedy_decode(log_probs, length):
    best = log_probs[:length].argmax(-1).unique_consecutive()
    return best[best != BLANK].tolist()


def edit_distance(one, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


@torch.inference_mode()
def evaluate(model, loader):
    """The number of errors, and that of phonemes."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    for inputs, targets, input_lengths, target_lengths in loader:
        log_probs = model(inputs, input_lengths)
        for n, length in enumerate(target_lengths):
            guess = greedy_decode(log_probs[n], input_lengths[n])
            totals[0] += edit_distance(guess, targets[n, :length].tolist())
            totals[1] += length
    return totals


def main():
    train_set, val_set = make_utterances(250, seed=1), make_utterances(61, seed=2)
    options = {"batch_size": BATCH, "collate_fn": collate}
    train_loader = DataLoader(train_set, shuffle=True, drop_last=True, **options)
    val_loader = DataLoader(val_set, **options)

    torch.manual_seed(0)
    model = Recognizer()
    # Its mean is over utterances, each divided by its own length: equal shares have equal weights.
    criterion = nn.CTCLoss(BLANK, reduction="mean", zero_infinity=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)

    for epoch in range(EPOCHS):
        model.train()
        for inputs, targets, input_lengths, target_lengths in train_loader:
            log_probs = model(inputs, input_lengths).transpose(0, 1)
            loss = criterion(log_probs, targets, input_lengths, target_lengths)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()

        errors, count = evaluate(model, val_loader).tolist()
        print(f"epoch {epoch}: phoneme error rate {errors / count:.4f} of {count:.0f}")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()

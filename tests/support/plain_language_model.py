"""The loop that 09 must train as, on a tiny model."""

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from crew import call_main
from harness import load_chapter

LM = "09_language_model"
SHAPE = ["--width", "32", "--layers", "2", "--heads", "4", "--context", "16", "--sample", "0"]
STEPS = 5
TRAIN = [*SHAPE, "--synthetic", "3000", "--batch-size", "8", "--steps", str(STEPS)]
TRAIN += ["--lr", "0.01", "--print-freq", "1", "--eval-steps", "100"]


def main_as(dtype: torch.dtype, argv: list[str], patches: dict | None = None) -> dict:
    """In a crew member: the chapter's main, computing in this type."""
    torch.set_default_dtype(dtype)
    try:
        return call_main(LM, argv, patches)
    finally:
        torch.set_default_dtype(torch.float32)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def plain_training(
    argv: list[str],
    chapter: ModuleType | None = None,
    change: Callable | None = None,
    after: Callable | None = None,
) -> tuple[dict[str, torch.Tensor], list[float], float]:
    """One process, no process group, no FSDP: each step is one batch of all its windows. Weights,
    losses, and the loss on the windows to evaluate.

    change: what is done to the model before it trains; after: and after each step.
    """
    chapter = chapter or load_chapter(LM)
    args = chapter.build_parser().parse_args(argv)
    torch.set_default_dtype(torch.float64)
    try:
        model = chapter.build_model(args, 256)
        for name, module in [
            ("tokens", model.tokens),
            ("norm", model.norm),
            ("head", model.head),
            *((f"blocks.{number}", block) for number, block in enumerate(model.blocks)),
        ]:
            chapter.initialize(args, name, module)
        if change:
            change(args, model)
        trained = [(n, w) for n, w in model.named_parameters() if w.requires_grad]
        decaying = [w for n, w in trained if w.dim() > 1 and n[:6] != "tokens"]
        others = [w for n, w in trained if w.dim() == 1 or n[:6] == "tokens"]
        groups = [{"params": decaying}, {"params": others, "weight_decay": 0}]
        optimizer = torch.optim.AdamW(groups, 0.01, (0.9, 0.95), weight_decay=0.1)

        text = torch.frombuffer(
            bytearray(chapter.synthetic_text(args.synthetic)), dtype=torch.uint8
        )
        context, places = args.context, torch.arange(args.context)
        count = (len(text) - 1) // context
        windows = torch.stack(
            [text[n * context : n * context + context + 1] for n in range(count)]
        ).long()
        windows, val = windows[: count - count // 20], windows[count - count // 20 :]
        steps, told = len(windows) // args.batch_size, []
        for step in range(args.steps):
            epoch, inside = divmod(step, steps)
            numbers = range(inside * args.batch_size, (inside + 1) * args.batch_size)
            order = [chapter.shuffled(n, len(windows), args.seed, epoch) for n in numbers]
            loss = loss_of(model, windows[order], places)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
            for group in optimizer.param_groups:
                group["lr"] = args.lr * chapter.lr_factor(args, step + 1)
            optimizer.step()
            if after:
                after(model)
            told.append(loss.item())
        with torch.no_grad():
            last = loss_of(model, val, places).item()
        return model.state_dict(), told, last
    finally:
        torch.set_default_dtype(torch.float32)


def loss_of(model: torch.nn.Module, windows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    logits = model(windows[:, :-1], places)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def furthest(ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference of any weight, relative to the norm of its tensor."""
    assert ours.keys() == expected.keys()
    return max(
        ((ours[name] - expected[name]).norm() / expected[name].norm()).item() for name in ours
    )

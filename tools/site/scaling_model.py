"""What a step of data parallel training costs, on paper: nothing is measured.

    python tools/site/scaling_model.py

writes what docs/en/performance.md shows of it, scaling.{zh,en}.md in docs/assets/results, and
from torchvision scaling-models.json. The formulas are those of the figure on that page,
docs/assets/javascripts/figures/overlap.js; the page says where the numbers come from and what the
model leaves out.
"""

import json
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/assets/results"
MIB = 2**20
LATENCY = 3.4e-6  # seconds of a hop
LEAST = 0.015  # a step takes that many seconds, however few its images are
RATE = 2500.0  # images/s of one GPU that waits for nobody, of ResNet-50
# Of each model: the operations of its forward pass, and in the order of backward the bytes of each
# fp32 gradient, with the share of backward's operations that is done when it is there.
MODELS = json.loads((RESULTS / "scaling-models.json").read_text(encoding="utf-8"))


def buckets_of(gradients: list, megabytes: float = 25) -> list[tuple[int, float]]:
    """Bytes and share of each bucket of DDP, in the order in which backward fills them. Those of
    ResNet-50 are as large as DDP itself reports (torch 2.15, rebuilt_bucket_sizes)."""
    buckets, size, limit = [], 0, min(1, megabytes) * MIB
    for gradient, share in gradients:
        size += gradient
        if size >= limit:
            buckets.append((size, share))
            size, limit = 0, megabytes * MIB
    return buckets + [(size, 1.0)] * (size > 0)


BUCKETS = buckets_of(MODELS["resnet50"]["gradients"])


def all_reduce(gpus: int, size: float, bandwidth: float) -> float:
    """Seconds. A ring sends the fewest bytes, a tree has the fewest hops; NCCL too takes the one
    that it expects to be faster."""
    if gpus == 1:
        return 0.0
    ring = 2 * (gpus - 1) * LATENCY + 2 * (gpus - 1) / gpus * size / bandwidth
    tree = 2 * math.ceil(math.log2(gpus)) * LATENCY + 2 * size / bandwidth
    return min(ring, tree)


def step(
    gpus: int, images: float, bandwidth: float, compress: int = 1, accumulate: int = 1,
    rate: float = RATE, buckets: list = BUCKETS,
) -> tuple[float, float]:  # fmt: skip
    """Seconds that a GPU computes, and seconds of the step, of so many micro-batches, of which the
    last one sends. compress is by how much the bytes are fewer than those of fp32."""
    micro = max(images / rate, LEAST)
    backward = micro * 2 / 3  # it has twice the operations of forward
    begin, sent = accumulate * micro - backward, 0.0
    for size, share in buckets:
        # A bucket is sent when backward has filled it and the one before is through.
        sent = max(sent, begin + backward * share) + all_reduce(gpus, size / compress, bandwidth)
    return accumulate * micro, max(accumulate * micro, sent)


def count(name: str) -> dict:
    """What MODELS has of a ResNet of torchvision, for images of 224 pixels."""
    import torch
    import torchvision
    from torch.utils.flop_counter import FlopCounterMode

    model = torchvision.models.get_model(name).eval()
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        model(torch.zeros(1, 3, 224, 224))
    done, gradients, total = 0, [], counter.get_total_flops()
    for parameter, value in reversed(list(model.named_parameters())):
        layer, _, kind = parameter.rpartition(".")
        if kind == "weight":
            done += sum(counter.flop_counts[f"ResNet.{layer}"].values())
        gradients.append([4 * value.numel(), round(done / total, 4)])
    return {"operations": total // 2, "gradients": gradients}  # a product and its sum are one


def table(language: str) -> str:
    """Efficiency of ResNet-50 by images of a GPU, on the links whose GB/s the page names."""
    head, comma, gpus, half = {
        "en": ("images a GPU", ", ", " GPUs", ", bf16 gradients"),
        "zh": ("每卡图片数", "，", " 卡", "，bf16 梯度"),
    }[language]
    columns = (
        ("NVLink", 8, 230e9, 1), ("InfiniBand", 64, 86e9, 1), ("10 GbE", 16, 1.1e9, 1),
        ("10 GbE", 1024, 1.1e9, 1), ("10 GbE", 16, 1.1e9, 2),
    )  # fmt: skip
    rows = [[head] + [f"{link}{comma}{n}{gpus}{half * (c == 2)}" for link, n, _, c in columns]]
    rows.append(["---:"] * len(rows[0]))
    for accumulate, images in ((1, 64), (1, 128), (1, 256), (1, 512), (1, 1024), (4, 256)):
        times = [step(n, images, beta, c, accumulate) for _, n, beta, c in columns]
        cells = [f"{100 * computes / takes:.1f}%" for computes, takes in times]
        rows.append([f"{accumulate} × {images}" if accumulate > 1 else str(images), *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    models = json.dumps({name: count(name) for name in MODELS}, separators=(",", ":"))
    (RESULTS / "scaling-models.json").write_text(models + "\n", encoding="utf-8")
    for language in ("zh", "en"):
        (RESULTS / f"scaling.{language}.md").write_text(table(language), encoding="utf-8")


if __name__ == "__main__":
    main()

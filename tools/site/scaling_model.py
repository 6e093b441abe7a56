"""What data parallel training of ResNet-50 costs on 1 to 1024 GPUs, on paper: nothing is measured.

    python tools/site/scaling_model.py                            # the tables of the site
    python tools/site/scaling_model.py --images-per-second 900    # tables for another GPU, printed

Without options it writes scaling.{zh,en}.md in docs/assets and scaling-models.json (by
torchvision); with any of them it prints the tables for these assumptions and writes nothing. The
page docs/en/scaling.md says where the numbers come from and what the model leaves out;
docs/assets/javascripts/figures/overlap.js has the same formulas. The page's two pictures,
docs/assets/images/scaling.*.svg, are plain files: draw them anew where the tables change.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPUS = [2**n for n in range(11)]
US, MS, GB = 1e-6, 1e-3, 1e9
MIB = 2**20
# Of each model: the operations of its forward pass, and in the order of backward the bytes of each
# fp32 gradient, with the share of backward's operations that is done when it is there.
MODELS = json.loads((ROOT / "docs/assets/results/scaling-models.json").read_text(encoding="utf-8"))


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


@dataclass(frozen=True)
class Network:
    """Machines of so many GPUs. Latency is that of a hop (s); bandwidth is what all-reduce gets of
    a GPU's links inside a machine, and of all links of a machine to the others (bytes/s)."""

    gpus: int
    latency: float
    bandwidth: float
    latency_out: float
    bandwidth_out: float

    def machines(self, n: int) -> int:
        return math.ceil(n / self.gpus)

    def slowest(self, n: int) -> float:
        """A ring enters and leaves each machine once, so its links to the others carry as many
        bytes as each GPU sends."""
        return self.bandwidth if self.machines(n) == 1 else min(self.bandwidth, self.bandwidth_out)


NVLINK = Network(1024, 3.4 * US, 230 * GB, 0.0, math.inf)  # one machine, as large as it must be
INFINIBAND = Network(8, 3.4 * US, 230 * GB, 14 * US, 86 * GB)
ETHERNET = Network(8, 3.4 * US, 230 * GB, 40 * US, 1.1 * GB)
NETWORKS = {"NVLink": NVLINK, "InfiniBand": INFINIBAND, "10 GbE": ETHERNET}


@dataclass(frozen=True)
class Assumptions:
    images_per_second: float = 2500.0  # of one GPU that waits for nobody
    least_step_ms: float = 15.0  # a step takes that long however few its images are
    local_batch: int = 256  # weak scaling: images of a GPU in each step
    global_batch: int = 8192  # strong scaling: images of all GPUs in each step


def ring(n: int, size: float, net: Network) -> float:
    """Seconds of a ring all-reduce: 2 (n - 1) hops, each GPU sends 2 (n - 1) / n of the bytes."""
    if n == 1:
        return 0.0
    between = 2 * (net.machines(n) - 1)
    hops = (2 * (n - 1) - between) * net.latency + between * net.latency_out
    return hops + 2 * (n - 1) / n * size / net.slowest(n)


def tree(n: int, size: float, net: Network) -> float:
    """Seconds of a pair of binary trees over the machines, a chain within each: all bytes go up
    and come down again, and the hops grow with the logarithm of the machines."""
    if n == 1:
        return 0.0
    machines = net.machines(n)
    inside = math.ceil(n / machines) - 1 if machines > 1 else math.ceil(math.log2(n))
    hops = 2 * (inside * net.latency + math.ceil(math.log2(machines)) * net.latency_out)
    return hops + 2 * size / net.slowest(n)


def all_reduce(n: int, size: float, net: Network) -> float:
    """NCCL too takes the one that it expects to be faster."""
    return min(ring(n, size, net), tree(n, size, net))


def compute(images: float, assume: Assumptions) -> float:
    """Seconds of forward and backward of one GPU."""
    return max(images / assume.images_per_second, assume.least_step_ms * MS)


def step(
    n: int, images: float, net: Network, assume: Assumptions, compress: int = 1,
    buckets: list = BUCKETS, accumulate: int = 1,
) -> float:  # fmt: skip
    """Seconds of a step of so many micro-batches, of which the last one sends. A bucket is sent
    when backward has filled it and the one before is through; compress is by how much its bytes are
    fewer than those of fp32."""
    seconds = compute(images, assume)
    backward = seconds * 2 / 3  # it has twice the operations of forward
    begin, sent = accumulate * seconds - backward, 0.0
    for size, share in buckets:
        sent = max(sent, begin + backward * share) + all_reduce(n, size / compress, net)
    return max(accumulate * seconds, sent)


def efficiency(n: int, images: float, net: Network, assume: Assumptions, compress: int = 1):
    """Images/s of n GPUs in shares of n times what one does alone with as many images a step."""
    return compute(images, assume) / step(n, images, net, assume, compress)


def speedup(n: int, net: Network, assume: Assumptions, compress: int = 1) -> float:
    """How many times faster than one GPU is the same global batch. One GPU accumulates."""
    alone = assume.global_batch / assume.images_per_second
    return alone / step(n, assume.global_batch / n, net, assume, compress)


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


# ------------------------------------------------------------------------------------------ tables

WORDS = {
    "gpus": {"en": "GPUs", "zh": "显卡数"},
    "ring": {"en": "ring", "zh": "环"},
    "tree": {"en": "tree", "zh": "树"},
    "half": {"en": ", bf16 gradients", "zh": "，bf16 梯度"},
    "local": {"en": "images a GPU", "zh": "每卡图片"},
}
CURVES = (("NVLink", 1), ("InfiniBand", 1), ("10 GbE", 1), ("10 GbE", 2))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---:"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def tables(language: str, assume: Assumptions) -> str:
    """Three tables, each behind its name, by which a page takes it."""
    words = {key: text[language] for key, text in WORDS.items()}
    head = [words["gpus"]]
    head += [f"{name} {words[way]}" for name in NETWORKS for way in ("ring", "tree")]
    size = sum(size for size, _ in BUCKETS)
    rows = []
    for n in (2, 8, 16, 64, 256, 1024):
        times = [way(n, size, net) / MS for net in NETWORKS.values() for way in (ring, tree)]
        rows.append([str(n), *(f"{time:.3g} ms" for time in times)])
    parts = {"allreduce": table(head, rows)}
    head = [words["gpus"]] + [name + words["half"] * (c == 2) for name, c in CURVES]
    rows = []
    for n in (1, 2, 8, 16, 64, 256, 1024):
        found = [efficiency(n, assume.local_batch, NETWORKS[name], assume, c) for name, c in CURVES]
        rows.append([str(n), *(f"{100 * share:.1f}%" for share in found)])
    parts["weak"] = table(head, rows)
    rows = []
    for n in GPUS:
        times = [f"{speedup(n, NETWORKS[name], assume, c):.3g}" for name, c in CURVES]
        rows.append([str(n), f"{assume.global_batch / n:g}", *times])
    parts["strong"] = table([head[0], words["local"], *head[1:]], rows)
    return "\n".join(f"<!-- {name} -->\n\n{text}" for name, text in parts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(Assumptions):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=field.type, metavar="N", default=field.default)
    assume = Assumptions(**vars(parser.parse_args()))
    if len(sys.argv) > 1:
        print(tables("en", assume))
        return
    models = {name: count(name) for name in MODELS}
    path = ROOT / "docs/assets/results/scaling-models.json"
    path.write_text(json.dumps(models, separators=(",", ":")) + "\n", encoding="utf-8")
    for language in ("zh", "en"):
        text = tables(language, assume)
        (ROOT / f"docs/assets/results/scaling.{language}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

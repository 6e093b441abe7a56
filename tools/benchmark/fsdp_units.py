"""What chapter 08 gathers at a time of torchvision's nets, and what --recompute leaves of the
activations.

    python tools/benchmark/fsdp_units.py    # minutes; into docs/assets/results/fsdp-units.*

Counted in a forward pass of one image: nothing is trained or divided.
"""

import importlib.util
import math
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torchvision import models

ROOT = Path(__file__).resolve().parents[2]
NETS = """
vit_b_16 vit_l_16 vit_h_14 swin_t swin_b swin_v2_b convnext_tiny convnext_large regnet_y_16gf
regnet_y_128gf efficientnet_v2_l resnet50 resnet152 maxvit_t densenet161
vgg16 googlenet inception_v3
""".split()
TEXTS = {
    "en": (
        "`--arch` | weights | largest of the outermost row | units | largest unit "
        "| activations | with `--recompute`",
        "refused",
        "Shares are of all weights, activations in MB, for an image in float32 on a CPU. Where "
        "a model has BatchNorm, `--recompute` is refused. torch {torch}, torchvision {vision}; "
        "{day}.",
    ),
    "zh": (
        "`--arch` | 参数量 | 最外层一排中最大的 | 单元数 | 最大的单元 | 激活值 | 加 `--recompute`",
        "不支持",
        "占比都是对全部参数而言；激活值是 CPU 上一张图片、float32 时的 MB 数。有 BatchNorm 的"
        "模型不能用 `--recompute`。torch {torch}，torchvision {vision}；{day}。",
    ),
}


def load_chapter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chapter_08", ROOT / "08_fsdp2/main.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(name: str) -> nn.Module:
    """With weights as they begin."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of googlenet and inception_v3, on how they begin
        return models.get_model(name)


def largest_share(chapter: ModuleType, model: nn.Module, units: list[nn.Module]) -> float:
    """Of all weights, those of the largest unit; what is in none of them is one, too."""
    sizes = [chapter.count(unit) for unit in units]
    whole = chapter.count(model)
    return max([*sizes, whole - sum(sizes)]) / whole


def prepare(chapter: ModuleType, model: nn.Module, **flags: bool) -> None:
    """What the chapter's `shard` does to the model with these flags, but for dividing it."""
    args = Namespace(**{"recompute": False, "bf16": False, "compile": False} | flags)
    alone = mock.Mock(**{"get_rank.return_value": 0})
    gone = {"fully_shard": mock.Mock(), "set_model_state_dict": mock.Mock(), "dist": alone}
    with mock.patch.multiple(chapter, **gone):
        chapter.shard(args, model, None, next(model.parameters()).device)


@contextmanager
def saved(model: nn.Module) -> Iterator[dict[int, Tensor]]:
    """The memory that autograd keeps for backward in here, by its address; not the weights."""
    known = {memory(weight) for weight in [*model.parameters(), *model.buffers()]}
    found = {}

    def pack(tensor: Tensor) -> Tensor:
        if memory(tensor) not in known:
            found[memory(tensor)] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def memory(tensor: Tensor) -> int:
    """The same for all views of it."""
    return tensor.untyped_storage()._cdata


def kept_for_backward(chapter: ModuleType, model: nn.Module, image: Tensor, recompute: bool) -> int:
    """Bytes of activations at their peak. With recompute: what is kept until backward, and what
    the one unit with the most computes once more beside it."""
    inside: dict[nn.Module, set[int]] = {}

    def before(unit: nn.Module, inputs: tuple) -> None:
        inside[unit] = {*found, *map(memory, filter(torch.is_tensor, inputs))}

    def after(unit: nn.Module, *_: object) -> None:
        inside[unit] = found.keys() - inside[unit]

    hooks = []
    if recompute:
        for unit in chapter.blocks(model):
            hooks.append(unit.register_forward_pre_hook(before))
            hooks.append(unit.register_forward_hook(after))
    with saved(model) as found:
        model(image)
    sizes = {number: tensor.untyped_storage().nbytes() for number, tensor in found.items()}
    if not recompute:
        return sum(sizes.values())
    again = max(sum(sizes[number] for number in numbers) for numbers in inside.values())
    for hook in hooks:
        hook.remove()
    prepare(chapter, model, recompute=True)
    with saved(model) as found:
        model(image)
    return again + sum(tensor.untyped_storage().nbytes() for tensor in found.values())


def main() -> None:
    chapter = load_chapter()
    rows = []
    for name in NETS:
        model = build(name)
        image = torch.rand(1, 3, 224, 224)
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        outermost, units = (chapter.blocks(model, limit) for limit in (math.inf, None))
        shares = [largest_share(chapter, model, found) for found in (outermost, units)]
        model.train(not norms)  # it refuses one image
        plain = kept_for_backward(chapter, model, image, False)
        again = None if norms else kept_for_backward(chapter, model, image, True)
        weights = chapter.count(model)
        rows.append((name, weights, shares[0], len(units), shares[1], plain, again))
        print(*rows[-1], flush=True)
    words = {"torch": version("torch"), "vision": version("torchvision"), "day": date.today()}
    for language, (head, refused, caption) in TEXTS.items():
        lines = [f"| {head} |", "| --- " + "| ---: " * 6 + "|"]
        for name, weights, stage, count, unit, plain, again in rows:
            left = refused if again is None else f"{again / 1e6:.0f} ({again / plain:.0%})"
            size = f"{weights / 1e6:.1f} M"
            cells = [f"`{name}`", size, f"{stage:.1%}", count, f"{unit:.1%}", f"{plain / 1e6:.0f}"]
            lines.append(f"| {' | '.join(map(str, [*cells, left]))} |")
        path = ROOT / f"docs/assets/results/fsdp-units.{language}.md"
        path.write_text("\n".join([*lines, "", caption.format(**words)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

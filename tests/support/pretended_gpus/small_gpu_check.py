"""tools/gpu_check.py in the sizes of a CPU, as pretended GPUs are one, and without the check of
torch.compile, which compiles nothing there.

    python tests/support/pretended_gpus/small_gpu_check.py --out FOLDER --minutes 60
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import gpu_check

own_run, own_benchmark = gpu_check.Box.run, gpu_check.benchmark
SIZES = {"--image-size": 32, "--arch": "shufflenet_v2_x0_5", "--steps": 2}
OF_BENCHMARK = ["--image-size", 32, "--batch-size-per-rank", 8, "--arch", "resnet18"]


def run(box: gpu_check.Box, words: list, *args: object, **kwargs: object) -> str:
    before = [None, *words[:-1]]
    words = [SIZES.get(option, word) for option, word in zip(before, words, strict=True)]
    return own_run(box, words, *args, **kwargs)


def benchmark(box: gpu_check.Box, part: str, ranks: int, *words: object) -> list[dict]:
    return own_benchmark(box, part, ranks, *words, *OF_BENCHMARK)


if __name__ == "__main__":
    gpu_check.QUIET = 600
    gpu_check.Box.run, gpu_check.benchmark = run, benchmark
    gpu_check.CHECKS[:] = [row for row in gpu_check.CHECKS if row[1] != "compiled once"]
    gpu_check.end_on_signals()
    gpu_check.main()

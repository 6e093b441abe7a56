"""Is what `doctor --speed` computes of more ranks what they do? Predicted of one process and of
two, measured on three and four, on links of 12.5 MB a second: network namespaces and gloo.

    sudo nice -n -15 .venv/bin/python tools/benchmark/more_ranks.py    # 25 minutes

Ranks and loaders sleep in place of computing, so they fit on few cores; nice lets them wake up in
time beside other work. Writes more-ranks.* of docs/assets/results/doctor.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/assets/results/doctor"
BANDWIDTH = 12.5e6  # bytes a second that leave a rank, with TCP's own
LINK = (0.92 * BANDWIDTH / 1e9, 0.96 * BANDWIDTH / 1e9, 1e-4)  # what of them gradients can have
RANKS = (1, 2, 3, 4)
# Seconds of a layer's forward pass, of which backward takes two; of a batch in the loader's worker.
PROGRAMS = {
    "hidden": (0.04, 0.0),
    "slow": (0.012, 0.0),
    "input": (0.03, 0.4),
}
TEXTS = {
    "en": {
        "head": "Program | measured of | for | times as fast, computed | measured | inside",
        "hidden": "most of the sending hides behind backward",
        "slow": "most of it does not",
        "input": "one loader worker is the limit",
        1: "1 process, and a link of 11.5 to 12 MB a second",
        2: "2 processes, their own link",
        "yes": "yes",
        "no": "**no**",
        "note": "{cpu}, {cores} CPU cores, torch {torch}, gloo; load average {load}; {day}.",
    },
    "zh": {
        "head": "程序 | 测了什么 | rank 数 | 推算的倍数 | 实测的倍数 | 在区间内",
        "hidden": "传输大多被反向掩盖",
        "slow": "传输大多没有被掩盖",
        "input": "受限于一个 worker",
        1: "1 个进程，链路每秒 11.5 到 12 MB",
        2: "2 个进程，它们自己的链路",
        "yes": "是",
        "no": "**否**",
        "note": "{cpu}，{cores} 个 CPU 核，torch {torch}，gloo；平均负载 {load}；{day}。",
    },
}


def train(name: str) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    work, batch = PROGRAMS[name]

    class Works(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, made: torch.Tensor) -> torch.Tensor:
            time.sleep(work)
            return made.view_as(made)

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(2 * work)
            return gradient

    class Layer(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return Works.apply(super().forward(inputs))

    class Points(Dataset):
        def __len__(self) -> int:
            return 80_000

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            time.sleep(batch / 8)
            return torch.randn(16), i % 4

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(Layer(16, 520), Layer(520, 520), Layer(520, 520), Layer(520, 4))
    ddp_model = model
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
        ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in DataLoader(Points(), 8, num_workers=1 if batch else 0):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp_model(inputs), targets).backward()
        optimizer.step()


@contextmanager
def network() -> Iterator[None]:
    """A namespace for each rank, whose link is as slow as that."""

    def run(text: str, check: bool = True) -> None:
        for line in text.strip().splitlines():
            subprocess.run(line.split(), check=check, stderr=None if check else subprocess.DEVNULL)

    limit = f"rate {8 * BANDWIDTH:.0f} burst 32kb latency 400ms"
    try:
        run("ip link add more type bridge\nip link set more up")
        for rank in range(max(RANKS)):
            inside = f"ip netns exec more{rank}"
            run(f"""
                ip netns add more{rank}
                ip link add more-{rank} type veth peer name inside{rank}
                ip link set inside{rank} netns more{rank}
                ip link set more-{rank} master more up
                {inside} ip addr add 10.77.0.{rank + 1}/24 dev inside{rank}
                {inside} ip link set inside{rank} up
                {inside} ip link set lo up
                {inside} tc qdisc add dev inside{rank} root tbf {limit}
            """)
        yield
    finally:
        for rank in range(max(RANKS)):
            run(f"ip netns del more{rank}\nip link del more-{rank}", check=False)
        run("ip link del more", check=False)


def measure(name: str, ranks: int) -> object:
    from ddp_doctor.command import Around
    from ddp_doctor.command import measure as measured
    from ddp_doctor.report import Report

    script = f"{sys.executable} {Path(__file__).resolve()} --train {name}"
    env = f"WORLD_SIZE={ranks} MASTER_ADDR=10.77.0.1 MASTER_PORT=29777"
    lines = [
        f"{env} RANK={rank} GLOO_SOCKET_IFNAME=inside{rank} ip netns exec more{rank} {script} &"
        for rank in range(ranks)
    ]
    command = ["bash", "-c", "\n".join([*lines, "wait"])]
    args = argparse.Namespace(
        command=command, against=None, without=None, speed=True, steps=0, seconds=300, still=0
    )
    return measured(args, Around(args), command, Report("en"))


def main() -> None:
    import torch

    from ddp_doctor.speed.rent import Rent

    rows, load = [], []
    with network():
        for name in PROGRAMS:
            speeds = {ranks: measure(name, ranks) for ranks in RANKS}
            load.append(os.getloadavg()[0])
            pace = {ranks: median(speed.all("plain")) for ranks, speed in speeds.items()}
            for few, link in ((1, "known"), (2, "own")):
                rent = Rent(speeds[few])
                rent.links["known"] = LINK
                for many in (3, 4):
                    least, most = rent.times(many, link)
                    rows.append([name, few, many, least, most, pace[many] / pace[few]])
                    print(rows[-1], flush=True)
    facts = {"cores": os.cpu_count(), "torch": torch.__version__.partition("+")[0], "cpu": cpu()}
    facts["day"] = date.today().isoformat()
    facts["load"] = ", ".join(f"{value:.1f}" for value in load)
    kept = {"rows": rows} | facts
    (RESULTS / "more-ranks.json").write_text(json.dumps(kept, indent=1) + "\n")
    for language, texts in TEXTS.items():
        lines = [f"| {texts['head']} |", "| --- | --- | ---: | ---: | ---: | --- |"]
        for name, few, many, least, most, found in rows:
            cells = [texts[name], texts[few], many, f"{least:.2f}–{most:.2f}", f"{found:.2f}"]
            cells.append(texts["yes" if least <= found <= most else "no"])
            lines.append(f"| {' | '.join(map(str, cells))} |")
        text = "\n".join([*lines, "", texts["note"].format(**facts)])
        (RESULTS / f"more-ranks.{language}.md").write_text(text + "\n", encoding="utf-8")


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train")
    name = parser.parse_args().train
    if name:
        train(name)
    else:
        sys.path.insert(0, str(ROOT / "doctor"))
        main()

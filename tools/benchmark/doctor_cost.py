"""What the doctor costs: training with and without it, in turns.

    python tools/benchmark/doctor_cost.py --rounds 5 --write

Two CPU processes: chapter 02 (resnet18, 64 pixels, 32 images per rank, JPEGs), and a loop of tiny
steps (docs/examples/doctor/right.py). Speed is that of the later steps, memory that of the largest
process. Of each round's pair the ratio, with the doctor to without, is taken; then their median.
--write: into docs/assets/results/doctor/cost.json, for the page.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from statistics import median

from cases import DOCTOR, TORCHRUN
from processes import ROOT, end_on_signals, run_timed

RESULT = ROOT / "docs/assets/results/doctor/cost.json"
FLAGS = ["--arch", "resnet18", "--image-size", "64", "--batch-size", "32", "--epochs", "2"]
FLAGS += ["--workers", "1", "--print-freq", "1000"]
LOOP = "for epoch in range(3):"
CLOCK = "import time\nbegun = time.time()\nfor epoch in range(100):"
MEMORY = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print("memory", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, "MiB")
sys.exit(status)
"""


def measured(words: list, unit: str, watched: bool, folder: Path) -> dict[str, float]:
    """Speed in units per second, and MiB of the largest process."""
    log = folder / "log.txt"
    launch = [*(DOCTOR if watched else []), *TORCHRUN, *words]
    command = ["env", "-C", folder, sys.executable, "-c", MEMORY, *launch]
    failed = run_timed([command], {"OMP_NUM_THREADS": "1"}, 900, log)["failed"]
    if failed:
        raise SystemExit(f"doctor_cost: {failed}")
    text = log.read_text()
    speeds = re.findall(rf"([\d.]+) {unit}/s", text)
    return {"speed": float(speeds[-1]), "memory": float(re.search(r"memory (\d+)", text)[1])}


def chapter(data: Path, watched: bool, folder: Path) -> dict[str, float]:
    words = [ROOT / "02_distributed/main.py", "--data", data, *FLAGS, "--output-dir", folder]
    return measured(words, "images", watched, folder)


def tiny_steps(data: Path, watched: bool, folder: Path) -> dict[str, float]:
    text = (ROOT / "docs/examples/doctor/right.py").read_text().replace(LOOP, CLOCK)
    script = folder / "script.py"
    script.write_text(text + "print(f'{500 / (time.time() - begun):.1f} steps/s')\n")
    return measured([script], "steps", watched, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="into docs/assets/results/doctor")
    args = parser.parse_args()
    end_on_signals()

    result = {}
    with tempfile.TemporaryDirectory(prefix="doctor-cost-") as name:
        data = Path(name) / "data"
        tool = [sys.executable, ROOT / "tools/toy_imagenet.py", data, "--per-class", "120"]
        run_timed([tool], {}, 300, Path(name) / "data.txt")
        for what in (chapter, tiny_steps):
            pairs = []
            for number in range(args.rounds):
                pair = {}
                for watched in (number % 2 == 0, number % 2 == 1):
                    folder = Path(name) / f"{what.__name__}-{number}-{watched}"
                    folder.mkdir()
                    pair["with" if watched else "without"] = what(data, watched, folder)
                pairs.append(pair)
                print(what.__name__, pair, flush=True)

            row = {"rounds": pairs}
            for key in ("speed", "memory"):
                ratios = [pair["with"][key] / pair["without"][key] for pair in pairs]
                row[key] = round(median(ratios), 3)
            result[what.__name__] = row
            print(what.__name__, "with / without: speed", row["speed"], "memory", row["memory"])
    if args.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

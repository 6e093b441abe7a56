"""Draw a toy ImageNet: an ImageFolder of shapes that every chapter learns within minutes.

    python tools/toy_imagenet.py toy                                  # 8 classes, 1600 + 400 JPEGs
    python tools/toy_imagenet.py toy --classes 4 --per-class 20 --size 160
    python 02_distributed/main.py --data toy --arch resnet18 --image-size 64 ...

The pictures are as large as ImageNet's (500x375, a quarter of them portrait), so decoding and
cropping cost what they cost there. The class is the shape and nothing else.

The same seed gives the same bytes with any number of workers (and the same Pillow, NumPy and kind
of CPU), and a larger --per-class or --classes only adds files. OUT appears when it is complete.
"""

import argparse
import io
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, ImageDraw
from tqdm import tqdm
from workers import end_with_parent

SPLITS = ("train", "val")
PORTRAIT_SHARE = 0.25
# Masks are drawn without antialiasing on a canvas this many times larger, then averaged down.
SUPERSAMPLE = 3
# Ctrl-C waits for those that are under way: few enough for that, enough to hide the messaging.
PICTURES_AT_ONCE = 8

Task = tuple[Path, str, list[int]]


# ---- shapes ----


def arc(
    start: float, stop: float, points: int = 90, radius: float = 1.0, x: float = 0.0
) -> np.ndarray:
    """Points (n, 2) on a circle around (x, 0), between two angles in degrees: -90 is the top."""
    angle = np.radians(np.linspace(start, stop, points))
    return np.stack([x + radius * np.cos(angle), radius * np.sin(angle)], axis=1)


CROSS = (
    [(-0.34, -1), (0.34, -1), (0.34, -0.34), (1, -0.34), (1, 0.34), (0.34, 0.34)]
    + [(0.34, 1), (-0.34, 1), (-0.34, 0.34), (-1, 0.34), (-1, -0.34), (-0.34, -0.34)]
)  # fmt: skip
ARROW = [(-1, -0.28), (0.1, -0.28), (0.1, -0.8), (1, 0), (0.1, 0.8), (0.1, 0.28), (-1, 0.28)]
STAR_RADII = np.array([1.0, 0.4] * 5)[:, None]

# label -> outline (n, 2) in any unit. --classes N takes the first N, so their order must not
# change: a picture's random stream holds the place of its label in this table.
SHAPES = {
    "circle": arc(0, 360),
    "square": arc(45, 315, points=4),
    "triangle": arc(-90, 150, points=3),
    "star": arc(-90, 234, points=10) * STAR_RADII,
    "cross": np.array(CROSS),
    # The way back runs inside: what is enclosed twice stays empty.
    "ring": np.concatenate([arc(0, 360), arc(360, 0, radius=0.56)]),
    "crescent": np.concatenate([arc(60, 300), arc(270, 90, radius=0.866, x=0.5)]),
    "heart": np.concatenate(
        [arc(140, 360, radius=0.55, x=-0.55), arc(180, 400, radius=0.55, x=0.55), [(0, 1.25)]]
    ),
    "arrow": np.array(ARROW),
    "drop": np.concatenate([arc(-30, 210), [(0, -2)]]),
}


def place(label: str, rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Outline (n, 2) of the shape in pixels: turned, mirrored, wholly inside the picture."""
    turn = rng.uniform(-0.4, 0.4)
    mirror = rng.choice([-1.0, 1.0])
    stretch = rng.uniform(0.88, 1.0)
    extent = rng.uniform(0.55, 0.85) * min(width, height)
    # The mean of two draws keeps most shapes near the middle, where a central crop shows them.
    offset = rng.uniform(-0.8, 0.8, (2, 2)).mean(axis=0)

    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    outline = SHAPES[label] * (mirror, stretch) @ rotation
    outline *= extent / np.ptp(outline, axis=0).max()
    low, high = outline.min(axis=0), outline.max(axis=0)
    size = np.array([width, height])
    centre = size / 2 + offset * 0.95 * (size - (high - low)) / 2
    return outline - (low + high) / 2 + centre


def shape_mask(outline: np.ndarray, width: int, height: int) -> Image.Image:
    """Antialiased cover of the shape: 8-bit picture, 255 inside."""
    mask = Image.new("L", (SUPERSAMPLE * width, SUPERSAMPLE * height))
    ImageDraw.Draw(mask).polygon((SUPERSAMPLE * outline).ravel().tolist(), fill=255)
    return mask.reduce(SUPERSAMPLE)


# ---- pictures ----


def surface(
    rng: np.random.Generator, brightness: float, spread: float, size: tuple[int, int]
) -> Image.Image:
    """RGB picture of two colours around a brightness (0 to 255), apart from it by up to `spread`,
    mixed by smooth noise: slow gradients, clouds, streaks, fine grain."""
    off = rng.uniform(-spread, spread, (2, 3))
    colours = np.clip(brightness + off, 0, 255).astype(int).tolist()
    bumps = np.exp(rng.uniform(np.log(2), np.log(30), 2)).astype(int)
    noise = Image.fromarray(rng.integers(0, 256, bumps, dtype=np.uint8))
    one, other = (Image.new("RGB", size, tuple(colour)) for colour in colours)
    return Image.composite(one, other, noise.resize(size, Image.Resampling.BICUBIC))


def draw(
    label: str, rng: np.random.Generator, spread: float, width: int, height: int
) -> Image.Image:
    """RGB picture of `width` x `height` pixels that shows the shape `label`, a key of SHAPES."""
    # By the toss of a coin the shape is light or dark: there is contrast enough to see it, and
    # the mean colour does not follow from how much the shape covers.
    brightness = [rng.uniform(165, 215), rng.uniform(45, 95)]
    rng.shuffle(brightness)
    ground, figure = (surface(rng, value, spread, (width, height)) for value in brightness)
    grain = rng.uniform(3, 12) * rng.standard_normal((height, width, 1), dtype=np.float32)

    mask = shape_mask(place(label, rng, width, height), width, height)
    clean = np.asarray(Image.composite(figure, ground, mask), dtype=np.float32)
    return Image.fromarray(np.clip(clean + grain, 0, 255).astype(np.uint8))


def write_picture(task: Task, size: int, spread: float) -> None:
    """Draw and write the JPEG of a task: its path, its label, the entropy of its stream."""
    path, label, entropy = task
    rng = np.random.default_rng(entropy)
    sides = (size, round(0.75 * size))
    if rng.random() < PORTRAIT_SHARE:
        sides = sides[::-1]
    # Through memory: on a full disk, Pillow 13.0 cuts a file short without an error.
    encoded = io.BytesIO()
    draw(label, rng, spread, *sides).save(encoded, format="JPEG", quality=90)
    path.write_bytes(encoded.getbuffer())


# ---- the folder ----


def run_tasks(tasks: list[Task], size: int, spread: float, workers: int) -> None:
    """Write the pictures in `workers` processes, with a bar where there is a terminal."""
    # spawn, not fork: a caller that has started threads (torch does) could hang a forked worker.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), end_with_parent)
    try:
        # A terminal sends Ctrl-C to all processes: the workers inherit that it is blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        write = partial(write_picture, size=size, spread=spread)
        written = pool.map(write, tasks, chunksize=PICTURES_AT_ONCE)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for _ in tqdm(written, total=len(tasks), unit=" pictures", disable=None):
            pass
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C: what is left is not drawn first


def write_toy_imagenet(
    out: Path,
    classes: int = 8,
    per_class: int = 200,
    val_per_class: int | None = None,
    size: int = 500,
    spread: int = 45,
    seed: int = 0,
    workers: int = 1,
) -> None:
    """Write out/train/<class>/*.jpg and out/val/<class>/*.jpg; see the command's help. Nothing
    half-written is left behind where that fails (BrokenProcessPool: a worker was killed)."""
    if out.exists():
        raise FileExistsError(f"{out} exists: name a new folder, or remove it first")
    counts = (per_class, val_per_class or max(1, per_class // 4))
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{out.name}.partial-", dir=out.parent) as partial:
        # A folder in the temporary one, which only its owner may read.
        complete = Path(partial, out.name)
        tasks = []
        for s, (split, count) in enumerate(zip(SPLITS, counts, strict=True)):
            for k, label in enumerate(list(SHAPES)[:classes]):
                folder = complete / split / label
                folder.mkdir(parents=True)
                tasks += [
                    (folder / f"{label}_{i:05d}.jpg", label, [seed, s, k, i]) for i in range(count)
                ]
        run_tasks(tasks, size, spread, workers)
        # Fails if somebody has filled `out` meanwhile.
        complete.rename(out)


# ---- command ----


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Draw a toy ImageNet: JPEGs of shapes, as OUT/train/CLASS and OUT/val/CLASS.",
        epilog=f"The classes, in the order in which --classes takes them: {', '.join(SHAPES)}.",
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to make; it must not exist")
    numbers = {
        "per-class": (200, "training pictures of each class (200)"),
        "val-per-class": (None, "validation pictures of each (a quarter of the above)"),
        "size": (500, "long side in pixels; the short one is three quarters of it (500)"),
        "spread": (45, "how far colours may lie from their mean, of 255: fewer are easier (45)"),
        "seed": (0, "another seed draws other pictures (0)"),
        "workers": (len(os.sched_getaffinity(0)), "processes that draw (one for each CPU)"),
    }
    shapes = range(2, len(SHAPES) + 1)
    parser.add_argument("--classes", type=int, default=8, choices=shapes, help="how many (8)")
    for flag, (default, text) in numbers.items():
        parser.add_argument(f"--{flag}", metavar="N", type=int, default=default, help=text)
    args = parser.parse_args(argv)
    least_of = {"per_class": 1, "val_per_class": 1, "size": 2, "spread": 0, "seed": 0, "workers": 1}
    for flag, least in least_of.items():
        if (number := getattr(args, flag)) is not None and number < least:
            parser.error(f"--{flag.replace('_', '-')} {number} is too small: use {least} or more")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    # `kill`, and a scheduler's warning, end the run as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        write_toy_imagenet(**vars(args))
    except (OSError, BrokenProcessPool) as error:
        raise SystemExit(f"toy_imagenet: {args.out} was not made: {error}") from None
    except KeyboardInterrupt:
        print(f"\ntoy_imagenet: interrupted, {args.out} was not made", file=sys.stderr)
        raise SystemExit(130) from None
    train, val = (len(list(args.out.glob(f"{split}/*/*.jpg"))) for split in SPLITS)
    print(f"{args.out}: {train} train and {val} val pictures of {args.classes} classes")


if __name__ == "__main__":
    main()

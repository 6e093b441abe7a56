"""Draw a toy ImageNet: an ImageFolder of shapes that every chapter trains on within minutes.

    python tools/toy_imagenet.py toy                                  # 8 classes, 1600 + 400 JPEGs
    python tools/toy_imagenet.py toy --classes 4 --per-class 20 --size 160
    python 02_distributed/main.py --data toy --arch resnet18 --image-size 64 ...

The pictures are as large as ImageNet's (500x375, a quarter of them portrait), so decoding and
cropping cost what they cost there. The class is the shape and nothing else: shape and background
take their colours, textures, light and noise from one distribution, whatever the class.

Every picture has a random stream of its own, made from (seed, split, class, index): the same seed
gives the same bytes with any number of workers (and the same Pillow, NumPy and kind of CPU), and a
larger --per-class or --classes only adds files. OUT appears when it is complete: until then the
pictures are in OUT.partial beside it, which is removed when the run fails or is interrupted.
"""

import argparse
import io
import math
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from tqdm import tqdm

SPLITS = ("train", "val")
PORTRAIT_SHARE = 0.25
# Share of the short side that the longer side of the shape's bounding box takes.
SHAPE_EXTENT = (0.55, 0.85)
# Masks are drawn without antialiasing on a canvas this many times larger, then averaged down.
SUPERSAMPLE = 3
# Ctrl-C waits for the tasks that are under way: few enough for that, enough to hide the messaging.
PICTURES_PER_TASK = 8


# ---------------------------------------------------------------------------------------- shapes


def polar(radius: np.ndarray | float, points: int, start: float = 0.0) -> np.ndarray:
    """Closed curve (points, 2) at `radius` (one number, or one per point) around the origin."""
    angle = start + np.linspace(0, 2 * math.pi, points, endpoint=False)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def star(tips: int, inner: float) -> np.ndarray:
    """Outline (2 * tips, 2): tips at radius 1 and valleys at radius `inner`, first tip on top."""
    return polar(np.tile([1.0, inner], tips), 2 * tips, start=-math.pi / 2)


def crescent() -> np.ndarray:
    """Outline (n, 2): the unit disc less a smaller disc that is moved to the right."""
    radius, shift = 0.78, 0.42
    x = (1 - radius**2 + shift**2) / (2 * shift)
    outer, inner = math.acos(x), math.acos((x - shift) / radius)
    away = np.linspace(outer, 2 * math.pi - outer, 90)
    back = np.linspace(2 * math.pi - inner, inner, 90)
    return np.concatenate(
        [
            np.stack([np.cos(away), np.sin(away)], axis=1),
            np.stack([shift + radius * np.cos(back), radius * np.sin(back)], axis=1),
        ]
    )


def heart() -> np.ndarray:
    """Outline (n, 2), tip at the bottom."""
    t = np.linspace(0, 2 * math.pi, 180, endpoint=False)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([16 * np.sin(t) ** 3, -y], axis=1)


def drop() -> np.ndarray:
    """Outline (n, 2), tip on top."""
    t = np.linspace(0, 2 * math.pi, 180, endpoint=False)
    return np.stack([0.75 * np.sin(t) * np.sin(t / 2) ** 1.6, -np.cos(t)], axis=1)


def flower() -> np.ndarray:
    """Outline (n, 2) with five round petals."""
    angle = np.linspace(0, 2 * math.pi, 300, endpoint=False)
    return polar(0.45 + 0.55 * np.sqrt(np.abs(np.cos(2.5 * angle))), 300)


def leaf() -> np.ndarray:
    """Outline (n, 2): what two discs have in common, tips left and right."""
    x = np.linspace(-1, 1, 90)
    y = np.sqrt(1.25**2 - x**2) - 0.75
    return np.stack([np.r_[x, x[-2:0:-1]], np.r_[y, -y[-2:0:-1]]], axis=1)


def corners(*points: tuple[float, float]) -> np.ndarray:
    return np.array(points, dtype=np.float64)


DISC = polar(1.0, 180)
# label -> rings, drawn in turn: the first fills, the second cuts a hole. The y axis points down,
# the unit is free (draw scales the bounding box). --classes N takes the first N, so their order
# must not change: a picture's random stream holds the place of its label in this table.
SHAPES: dict[str, list[np.ndarray]] = {
    "circle": [DISC],
    "square": [corners((-1, -1), (1, -1), (1, 1), (-1, 1))],
    "triangle": [polar(1.0, 3, start=-math.pi / 2)],
    "star": [star(5, 0.4)],
    "cross": [
        corners(
            *[(-0.34, -1), (0.34, -1), (0.34, -0.34), (1, -0.34), (1, 0.34), (0.34, 0.34)],
            *[(0.34, 1), (-0.34, 1), (-0.34, 0.34), (-1, 0.34), (-1, -0.34), (-0.34, -0.34)],
        )
    ],
    "ring": [DISC, 0.56 * DISC],
    "crescent": [crescent()],
    "heart": [heart()],
    "arrow": [
        corners(
            *[(-1, -0.28), (0.1, -0.28), (0.1, -0.8), (1, 0)],
            *[(0.1, 0.8), (0.1, 0.28), (-1, 0.28)],
        )
    ],
    "drop": [drop()],
    "hourglass": [corners((-0.8, -1), (0.8, -1), (0.18, 0), (0.8, 1), (-0.8, 1), (-0.18, 0))],
    "flower": [flower()],
    "bolt": [
        corners((0.3, -1), (-0.65, 0.2), (-0.08, 0.2), (-0.3, 1), (0.65, -0.25), (0.1, -0.25))
    ],
    "leaf": [leaf()],
}


# --------------------------------------------------------------------------------------- colours


def oklch(lightness: float, chroma: float, hue: float) -> np.ndarray:
    """sRGB colour (3,) in 0..255 from OKLCH: equal steps in lightness look equal in every hue."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = np.clip(
        [
            4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
        ],
        0.0,
        1.0,
    )
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return (255 * srgb).astype(np.float32)


def pick_colours(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Colours of the background (2, 3), the shape (2, 3) and the specks (2, 3), sRGB 0..255.

    One of background and shape is light and the other dark, by the toss of a coin: enough contrast
    to see the shape, and a mean colour that does not follow from how much the shape covers.
    """
    light, dark = rng.uniform(0.78, 0.93), rng.uniform(0.34, 0.50)
    ground, figure = (light, dark) if rng.random() < 0.5 else (dark, light)
    ground_hue = rng.uniform(0, 2 * math.pi)
    figure_hue = ground_hue + rng.uniform(0.25, 1.75) * math.pi

    def pair(lightness: float, hue: float) -> np.ndarray:
        chroma, step = rng.uniform(0.03, 0.13), rng.uniform(0.03, 0.07)
        turn = rng.uniform(-0.6, 0.6)
        return np.stack(
            [oklch(lightness + step, chroma, hue), oklch(lightness - step, chroma, hue + turn)]
        )

    speck_lightness = ground + rng.choice([-0.16, 0.16])
    specks = [oklch(speck_lightness, 0.11, rng.uniform(0, 2 * math.pi)) for _ in range(2)]
    return pair(ground, ground_hue), pair(figure, figure_hue), np.stack(specks)


# -------------------------------------------------------------------------------------- surfaces


def soft_noise(rng: np.random.Generator, cells: float, width: int, height: int) -> np.ndarray:
    """Smooth random field (height, width), about 0..1, with `cells` bumps along the short side."""
    per_pixel = cells / min(width, height)
    grid = (2 + round(per_pixel * height), 2 + round(per_pixel * width))
    coarse = Image.fromarray(rng.random(grid, dtype=np.float32))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))


def texture(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Random field (height, width), about 0..1: where a surface shows which of its two colours."""
    kind = rng.choice(["gradient", "glow", "stripes", "checks", "dots", "blobs", "clouds"])
    angle, waves = rng.uniform(0, math.pi), rng.uniform(4, 11)
    short = min(width, height)
    x = (np.arange(width, dtype=np.float32) - width / 2) / short
    y = ((np.arange(height, dtype=np.float32) - height / 2) / short)[:, None]
    u = math.cos(angle) * x + math.sin(angle) * y
    v = math.cos(angle) * y - math.sin(angle) * x
    # Edges of stripes and checks are as steep as about two pixels allow: no jagged lines.
    steep = short / (6 * waves)
    if kind == "gradient":
        return 0.5 + 0.7 * u
    if kind == "glow":
        x0, y0 = rng.uniform(-0.5, 0.5, 2).tolist()
        return np.exp(-3 * ((x - x0) ** 2 + (y - y0) ** 2))
    if kind == "stripes":
        return 0.5 + 0.5 * np.tanh(steep * np.sin(2 * math.pi * waves * u))
    if kind == "checks":
        across = np.sin(math.pi * waves * u) * np.sin(math.pi * waves * v)
        return 0.5 + 0.5 * np.tanh(2 * steep * across)
    if kind == "dots":
        bumps = np.cos(2 * math.pi * waves * u) + np.cos(2 * math.pi * waves * v)
        return 0.5 + 0.5 * np.tanh(steep * (bumps - 0.9))
    if kind == "blobs":
        return 0.5 + 0.5 * np.tanh(8 * (soft_noise(rng, waves / 2, width, height) - 0.5))
    octaves = [soft_noise(rng, waves / 3 * 2**k, width, height) / 2**k for k in range(3)]
    return 0.5 + 1.2 * (sum(octaves) / 1.75 - 0.5)


def surface(
    rng: np.random.Generator, colours: np.ndarray, light: np.ndarray, width: int, height: int
) -> np.ndarray:
    """Textured, softly lit surface (3, height, width), sRGB 0..255, of the two `colours` (2, 3)."""
    field = texture(rng, width, height)
    short = min(width, height)
    x = (np.arange(width, dtype=np.float32) - width / 2) / short
    y = ((np.arange(height, dtype=np.float32) - height / 2) / short)[:, None]
    lit = 1 + rng.uniform(0.05, 0.2) * (light[0] * x + light[1] * y)
    first, second = colours[..., None, None]
    # In place: fresh memory for every step would cost as much as the arithmetic.
    planes = field * (second - first)
    planes += first
    planes *= lit
    return planes


# -------------------------------------------------------------------------------------- pictures


def place(
    label: str, rng: np.random.Generator, width: int, height: int
) -> tuple[list[np.ndarray], float]:
    """Rings of the shape in pixels, turned and wholly inside the picture, and its extent in px."""
    turn, mirror = rng.uniform(-0.4, 0.4), rng.choice([-1.0, 1.0])
    stretch = rng.uniform(0.88, 1.0)
    extent = rng.uniform(*SHAPE_EXTENT) * min(width, height)
    # The mean of two draws keeps most shapes near the middle, where a central crop shows them.
    offset = rng.uniform(-0.8, 0.8, (2, 2)).mean(axis=0)
    rotation = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    matrix = np.diag([mirror, 1.0]) @ np.diag([1.0, stretch]) @ rotation
    rings = [ring @ matrix for ring in SHAPES[label]]
    low, high = rings[0].min(axis=0), rings[0].max(axis=0)
    scale = extent / (high - low).max()
    size = np.array([width, height])
    slack = (size - scale * (high - low)) / 2 - 0.02 * min(width, height)
    centre = size / 2 + offset * slack
    return [(ring - (low + high) / 2) * scale + centre for ring in rings], extent


def shape_mask(rings: list[np.ndarray], width: int, height: int) -> Image.Image:
    """Antialiased cover of the shape: 8-bit picture, 255 inside."""
    mask = Image.new("L", (SUPERSAMPLE * width, SUPERSAMPLE * height))
    pen = ImageDraw.Draw(mask)
    for ring, fill in zip(rings, (255, 0), strict=False):
        pen.polygon((SUPERSAMPLE * ring).ravel().tolist(), fill=fill)
    return mask.reduce(SUPERSAMPLE)


def speck_mask(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Antialiased cover of a few small discs and sticks strewn over the picture."""
    mask = Image.new("L", (SUPERSAMPLE * width, SUPERSAMPLE * height))
    pen = ImageDraw.Draw(mask)
    unit = SUPERSAMPLE * min(width, height)
    for _ in range(rng.integers(3, 9)):
        x, y = rng.uniform(0, 1, 2) * mask.size
        radius, angle = rng.uniform(0.008, 0.022) * unit, rng.uniform(0, math.pi)
        dx, dy = 2 * radius * math.cos(angle), 2 * radius * math.sin(angle)
        if rng.random() < 0.5:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
        else:
            pen.line((x - dx, y - dy, x + dx, y + dy), fill=255, width=max(1, round(radius)))
    return mask.reduce(SUPERSAMPLE)


def relief(mask: Image.Image, light: np.ndarray, extent: float) -> tuple[np.ndarray, np.ndarray]:
    """Soft shadow beside the shape (0..1) and its lit and dark edges (-1..1), (height, width)."""
    # Both are blurred: worked out on a picture of about 100 pixels, they cost almost nothing.
    factor = max(1, min(mask.size) // 100)
    small = mask.reduce(factor)
    drop_by = -0.05 * extent / factor * light
    moved = Image.new("L", small.size)
    moved.paste(small, (round(drop_by[0]), round(drop_by[1])))
    shadow = moved.filter(ImageFilter.GaussianBlur(0.035 * extent / factor))
    height_map = small.filter(ImageFilter.GaussianBlur(0.025 * extent / factor))
    dy, dx = np.gradient(np.asarray(height_map, dtype=np.float32))
    slope = -(light[0] * dx + light[1] * dy) * (0.05 * extent / factor / 255)
    edges = Image.fromarray(slope.astype(np.float32)).resize(mask.size, Image.Resampling.BICUBIC)
    shadow = shadow.resize(mask.size, Image.Resampling.BICUBIC)
    return np.asarray(shadow, dtype=np.float32) / 255, np.asarray(edges)


def draw(label: str, rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """RGB picture of `width` x `height` pixels that shows the shape `label`, a key of SHAPES."""
    ground_colours, shape_colours, speck_colours = pick_colours(rng)
    # Unit vector towards the light, somewhere above: the shadow falls below the shape.
    angle = rng.uniform(-0.85, -0.15) * math.pi
    light = np.array([math.cos(angle), math.sin(angle)], dtype=np.float32)

    # Planes (3, height, width): NumPy mixes them several times faster than (height, width, 3).
    canvas = surface(rng, ground_colours, light, width, height)
    for colour in speck_colours:
        cover = np.asarray(speck_mask(rng, width, height), dtype=np.float32) / 255
        canvas += cover * (colour[:, None, None] - canvas)

    rings, extent = place(label, rng, width, height)
    mask = shape_mask(rings, width, height)
    shadow, edges = relief(mask, light, extent)
    canvas *= 1 - rng.uniform(0.2, 0.45) * shadow
    figure = surface(rng, shape_colours, light, width, height)
    figure += rng.uniform(20, 70) * edges
    cover = np.asarray(mask, dtype=np.float32) / 255
    figure -= canvas
    figure *= cover
    canvas += figure

    canvas += rng.uniform(1.0, 6.0) * rng.standard_normal((height, width), dtype=np.float32)
    planes = np.clip(canvas, 0, 255, out=canvas).astype(np.uint8)
    return Image.merge("RGB", [Image.fromarray(plane) for plane in planes])


# ------------------------------------------------------------------------------------ the folder


def class_counts(classes: int, base: int, uneven: bool) -> list[int]:
    """Pictures of each class: `base` of every one or, if uneven, more with every class."""
    step = max(1, base // (2 * classes)) if uneven else 0
    return [base + step * k for k in range(classes)]


def picture_size(size: int, rng: np.random.Generator) -> tuple[int, int]:
    """Width and height in pixels: sides as 4 to 3, the long one `size`, some of them portrait."""
    short = round(0.75 * size)
    return (short, size) if rng.random() < PORTRAIT_SHARE else (size, short)


def write_pictures(tasks: list[tuple[Path, str, list[int]]], size: int, quality: int) -> int:
    """Draw and write one JPEG for every (path, label, entropy of its stream): how many it wrote."""
    for path, label, entropy in tasks:
        rng = np.random.default_rng(entropy)
        picture = draw(label, rng, *picture_size(size, rng))
        # Through memory: on a full disk, Pillow 13.0 cuts a file short without an error.
        encoded = io.BytesIO()
        picture.save(encoded, format="JPEG", quality=quality)
        path.write_bytes(encoded.getbuffer())
    return len(tasks)


@contextmanager
def signals_noted() -> Iterator[list[int]]:
    """Ctrl-C and `kill` add their number to the list that this yields, and do nothing else.

    As an exception, in the middle of the pool's own code, they could leave it waiting for ever.
    """
    noted: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Processes started in this block never see Ctrl-C; this one sees it when the block ends.

    A terminal sends it to all of them, and each would print a traceback of its own.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_tasks(
    tasks: list[tuple[Path, str, list[int]]],
    size: int,
    quality: int,
    workers: int,
    advance: Callable[[int], None],
) -> None:
    """Write the pictures in `workers` processes (1: in this one).

    `advance` is told how many pictures each step has written; what it raises ends the run.
    """
    steps = [tasks[i : i + PICTURES_PER_TASK] for i in range(0, len(tasks), PICTURES_PER_TASK)]
    if workers == 1:
        for step in steps:
            advance(write_pictures(step, size, quality))
        return
    # spawn, not fork: a caller that has started threads (torch does) could hang a forked worker.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(steps)), context) as pool:
        try:
            with interrupt_held_back():
                futures = [pool.submit(write_pictures, step, size, quality) for step in steps]
            for future in futures:
                advance(future.result())
        except BaseException:
            # Without this, leaving the pool would first draw all the pictures that are left.
            pool.shutdown(cancel_futures=True)
            raise


def check_target(out: Path, partial: Path) -> None:
    """Raise FileExistsError, with what to do, unless `out` is free to be written as a whole."""
    if out.is_dir():
        if any(out.iterdir()):
            raise FileExistsError(f"{out} is not empty: name a new folder, or remove it first")
        if out.is_mount() or out.resolve() == Path.cwd():
            raise FileExistsError(f"{out} cannot be replaced: name a new folder inside it")
    elif out.exists() or out.is_symlink():
        raise FileExistsError(f"{out} is not a folder: name a new folder")
    if partial.exists():
        raise FileExistsError(
            f"{partial} exists: another run is writing it, or one was killed; "
            f"if none is running, remove it (rm -r {shlex.quote(str(partial))}) and start again"
        )


def write_toy_imagenet(
    out: str | Path,
    classes: int = 8,
    per_class: int = 200,
    val_per_class: int | None = None,
    size: int = 500,
    uneven: bool = False,
    quality: int = 90,
    seed: int = 0,
    workers: int = 1,
) -> dict[str, dict[str, int]]:
    """Write out/train/<class>/*.jpg and out/val/<class>/*.jpg; returns {split: {class: count}}.

    `size` is the long side in pixels; `val_per_class` None means a quarter of `per_class`. More
    than one worker needs a caller that can be imported (a file with a __main__ guard). On any
    failure `out` stays as it was and what was half-written is removed.
    """
    out = Path(out)
    if val_per_class is None:
        val_per_class = max(1, per_class // 4)
    if not 2 <= classes <= len(SHAPES) or per_class < 1 or val_per_class < 1:
        raise ValueError(f"need 2 to {len(SHAPES)} classes and at least one picture of each")
    labels = list(SHAPES)[:classes]
    counts = {
        split: dict(zip(labels, class_counts(classes, base, uneven), strict=True))
        for split, base in zip(SPLITS, (per_class, val_per_class), strict=True)
    }
    # A link to an empty folder keeps pointing at the folder; "toy/." and "toy" are one place.
    target = out.resolve()
    partial = target.with_name(target.name + ".partial")
    check_target(out, partial)

    tasks = []
    for s, split in enumerate(SPLITS):
        for k, (label, count) in enumerate(counts[split].items()):
            folder = partial / split / label
            tasks += [
                (folder / f"{label}_{i:05d}.jpg", label, [seed, s, k, i]) for i in range(count)
            ]
    with signals_noted() as stop:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        try:
            for folder in {path.parent for path, _, _ in tasks}:
                folder.mkdir(parents=True)
            # disable=None: a bar on a terminal, nothing in a log file.
            with tqdm(total=len(tasks), unit=" pictures", disable=None) as bar:

                def advance(written: int) -> None:
                    bar.update(written)
                    if stop:
                        raise KeyboardInterrupt

                run_tasks(tasks, size, quality, workers, advance)
            if target.exists():
                target.rmdir()
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return counts


# -------------------------------------------------------------------------------------- command


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """argparse type: a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return number

    return parse


def usable_cpus() -> int:
    """CPUs this process may run on: fewer than the machine has under taskset, Slurm or Docker."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Draw a toy ImageNet: JPEGs of shapes, as OUT/train/CLASS and OUT/val/CLASS.",
        epilog=f"The classes, in the order in which --classes takes them: {', '.join(SHAPES)}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    # fmt: off
    add = parser.add_argument
    add("out", metavar="OUT", type=Path, help="folder to make; it must be missing or empty")
    add("--classes", metavar="N", type=whole_number(2, len(SHAPES)), default=8,
        help=f"how many shapes, 2 to {len(SHAPES)}")
    add("--per-class", metavar="N", type=whole_number(1, 99_999), default=200,
        help="training pictures of each class")
    add("--val-per-class", metavar="N", type=whole_number(1, 99_999), default=argparse.SUPPRESS,
        help="validation pictures of each class (default: a quarter of --per-class)")
    add("--size", metavar="PX", type=whole_number(32, 4000), default=500,
        help="long side in pixels; the short side is three quarters of it")
    add("--uneven", action="store_true",
        help="other counts for every class: the numbers above are those of the smallest")
    add("--quality", metavar="Q", type=whole_number(1, 100), default=90, help="JPEG quality")
    add("--seed", metavar="N", type=whole_number(0, 2**32 - 1), default=0,
        help="another seed draws other pictures")
    add("--workers", metavar="N", type=whole_number(1, 512), default=usable_cpus(),
        help="processes that draw; the pictures do not depend on it")
    # fmt: on
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        counts = write_toy_imagenet(**vars(args))
    except FileExistsError as error:
        raise SystemExit(f"toy_imagenet: {error}") from None
    except (OSError, BrokenProcessPool) as error:
        why = str(error) or type(error).__name__
        raise SystemExit(f"toy_imagenet: {args.out} was not made: {why}") from None
    except KeyboardInterrupt:
        print(f"\ntoy_imagenet: interrupted, {args.out} was not made", file=sys.stderr)
        raise SystemExit(130) from None
    totals = " and ".join(f"{sum(counts[split].values())} {split}" for split in SPLITS)
    print(f"{args.out}: {totals} pictures of {args.classes} classes ({', '.join(counts['val'])})")


if __name__ == "__main__":
    main()

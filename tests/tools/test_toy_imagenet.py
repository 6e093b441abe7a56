"""The toy ImageNet: same seed, same bytes; exact counts; no colour to learn from; no ruins."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

TOOL = Path(__file__).resolve().parents[2] / "tools" / "toy_imagenet.py"
sys.path.insert(0, str(TOOL.parent))

import toy_imagenet  # noqa: E402


def launch(
    *arguments: object, preexec_fn: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the tool as a reader does."""
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, preexec_fn=preexec_fn
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under `folder`: its path inside it, and its bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def assert_one_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """The tool refused with a single line on stderr that holds all of `words`."""
    assert result.returncode not in (0, None), result
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]


# ------------------------------------------------------------------------------------- the bytes


def test_same_seed_gives_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    """40 pictures are several tasks, so both workers get some; the second run is a real launch."""
    wanted = {"classes": 4, "per_class": 8, "size": 64, "seed": 3}
    toy_imagenet.write_toy_imagenet(tmp_path / "one", workers=1, **wanted)
    flags = ["--classes", 4, "--per-class", 8, "--size", 64, "--seed", 3, "--workers", 2]
    result = launch(tmp_path / "two", *flags)
    assert result.returncode == 0, result.stderr
    assert "32 train and 8 val" in result.stdout
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert len(one) == 40 > 2 * toy_imagenet.PICTURES_PER_TASK
    assert one == two


def test_no_two_pictures_are_alike_and_another_seed_draws_others(tmp_path: Path) -> None:
    for seed in (0, 1):
        toy_imagenet.write_toy_imagenet(tmp_path / str(seed), 3, 6, 6, size=48, seed=seed)
    first, second = contents(tmp_path / "0"), contents(tmp_path / "1")
    assert first.keys() == second.keys()
    assert len(first) == 36
    assert len({*first.values(), *second.values()}) == 72


def test_a_larger_set_only_adds_files(tmp_path: Path) -> None:
    toy_imagenet.write_toy_imagenet(tmp_path / "small", classes=2, per_class=3, size=48)
    toy_imagenet.write_toy_imagenet(tmp_path / "large", classes=3, per_class=5, size=48)
    small, large = contents(tmp_path / "small"), contents(tmp_path / "large")
    assert len(large) > len(small) > 0
    assert small.items() <= large.items()


# ------------------------------------------------------------------------------------ the folder


def test_counts_are_exact(tmp_path: Path) -> None:
    said = toy_imagenet.write_toy_imagenet(tmp_path / "toy", 3, 5, 2, size=32)
    labels = list(toy_imagenet.SHAPES)[:3]
    assert said == {"train": dict.fromkeys(labels, 5), "val": dict.fromkeys(labels, 2)}
    assert counted(tmp_path / "toy") == said


def test_validation_has_a_quarter_by_default_and_never_nothing(tmp_path: Path) -> None:
    for per_class, expected in ((8, 2), (1, 1)):
        out = tmp_path / str(per_class)
        toy_imagenet.main([str(out), "--classes=2", f"--per-class={per_class}", "--size=32"])
        assert counted(out)["val"] == {"circle": expected, "square": expected}


@pytest.mark.parametrize("per_class", [1, 2, 11])
def test_uneven_counts_differ_and_are_never_zero(tmp_path: Path, per_class: int) -> None:
    out = tmp_path / "toy"
    said = toy_imagenet.write_toy_imagenet(out, 4, per_class, size=32, uneven=True)
    assert counted(out) == said
    for split in toy_imagenet.SPLITS:
        sizes = list(said[split].values())
        assert len(set(sizes)) == len(sizes) == 4
        assert min(sizes) >= 1
    assert min(said["train"].values()) == per_class


def counted(folder: Path) -> dict[str, dict[str, int]]:
    """{split: {class: files}} as they lie on the disk."""
    return {
        split.name: {label.name: len(list(label.glob("*.jpg"))) for label in split.iterdir()}
        for split in folder.iterdir()
    }


def test_every_shape_decodes_as_rgb_at_the_size_asked_for(tmp_path: Path) -> None:
    classes = len(toy_imagenet.SHAPES)
    assert classes >= 10
    toy_imagenet.write_toy_imagenet(tmp_path / "toy", classes, per_class=6, size=100)
    sizes = []
    for path in (tmp_path / "toy").rglob("*.jpg"):
        with Image.open(path) as picture:
            picture.load()
            assert (picture.format, picture.mode) == ("JPEG", "RGB")
            sizes.append(picture.size)
    assert len(sizes) == classes * 7
    assert set(sizes) == {(100, 75), (75, 100)}
    assert sizes.count((100, 75)) > sizes.count((75, 100))


def test_quality_changes_the_size_of_the_files(tmp_path: Path) -> None:
    for quality in (30, 95):
        toy_imagenet.write_toy_imagenet(tmp_path / str(quality), 2, 2, size=128, quality=quality)
    low, high = (sum(map(len, contents(tmp_path / q).values())) for q in ("30", "95"))
    assert high > 2 * low


# ---------------------------------------------------------------------------------- the pictures


@pytest.mark.parametrize("label", toy_imagenet.SHAPES)
def test_shape_is_wholly_inside_and_large(label: str) -> None:
    for seed in range(40):
        width, height = (96, 72) if seed % 2 else (72, 96)
        rings, extent = toy_imagenet.place(label, np.random.default_rng(seed), width, height)
        assert 0.45 * 72 <= extent <= 0.85 * 72 + 1e-6
        assert np.isclose(np.ptp(rings[0], axis=0).max(), extent)
        assert (rings[0] > 0).all() and (rings[0] < (width, height)).all()
        cover = np.asarray(toy_imagenet.shape_mask(rings, width, height)) / 255
        assert 0.1 < cover.sum() / extent**2 <= 1.0


def test_shapes_differ() -> None:
    """Drawn at one place and size, no two labels cover the same pixels."""
    covers = {}
    for label in toy_imagenet.SHAPES:
        rings, _ = toy_imagenet.place(label, np.random.default_rng(0), 96, 96)
        covers[label] = np.asarray(toy_imagenet.shape_mask(rings, 96, 96)) > 127
    for one in covers:
        for other in covers:
            if one < other:
                union = (covers[one] | covers[other]).sum()
                assert (covers[one] ^ covers[other]).sum() > 0.15 * union, (one, other)


def test_shape_stands_out_from_its_background() -> None:
    luma = np.array([0.299, 0.587, 0.114])
    for seed in range(1000):
        ground, figure, _ = toy_imagenet.pick_colours(np.random.default_rng(seed))
        gap = np.abs((ground @ luma)[:, None] - (figure @ luma)[None, :])
        assert gap.min() > 15, seed


# How far the worst class's mean colour may lie from the mean of all, in standard errors. With 8
# classes x 3 channels x 2 regions the largest of 48 such numbers is about 2.5 by chance alone.
COLOUR_BOUND = 4.0


def colour_gap(per_class: int = 60) -> float:
    """Largest deviation of a class's mean colour, all over or in the middle, in standard errors."""
    labels = list(toy_imagenet.SHAPES)[:8]
    means = np.empty((len(labels), per_class, 2, 3))
    for k, label in enumerate(labels):
        for i in range(per_class):
            picture = toy_imagenet.draw(label, np.random.default_rng([k, i]), 64, 48)
            pixels = np.asarray(picture, dtype=np.float64)
            means[k, i, 0] = pixels.mean(axis=(0, 1))
            means[k, i, 1] = pixels[12:36, 16:48].mean(axis=(0, 1))
    error = means.reshape(-1, 2, 3).std(axis=0) / per_class**0.5
    return float((np.abs(means.mean(axis=1) - means.mean(axis=(0, 1))) / error).max())


def test_classes_do_not_differ_by_colour() -> None:
    assert colour_gap() < COLOUR_BOUND


@pytest.mark.parametrize("part", [0, 1], ids=["background", "shape"])
def test_the_colour_test_catches_a_coloured_class(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """The bound means something: one class that leans to red, a little, is over it."""
    pick, draw = toy_imagenet.pick_colours, toy_imagenet.draw

    def draw_with_red_hearts(
        label: str, rng: np.random.Generator, width: int, height: int
    ) -> Image.Image:
        def pick_reddish(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
            colours = pick(rng)
            if label == "heart":
                colours[part][:] += np.float32([60, -40, -40])
            return colours

        monkeypatch.setattr(toy_imagenet, "pick_colours", pick_reddish)
        return draw(label, rng, width, height)

    monkeypatch.setattr(toy_imagenet, "draw", draw_with_red_hearts)
    assert colour_gap() > COLOUR_BOUND


def test_only_the_shape_follows_from_the_label() -> None:
    """From one random stream, pictures of two labels are alike wherever neither shape reaches."""
    corners = []
    for label in toy_imagenet.SHAPES:
        picture = toy_imagenet.draw(label, np.random.default_rng(5), 160, 120)
        pixels = np.asarray(picture, dtype=np.int16)
        corners.append(pixels[[0, 0, -1, -1], [0, -1, 0, -1]])
    assert np.ptp(corners, axis=0).max() == 0


# -------------------------------------------------------------------------- refusals and failures


def test_refuses_a_folder_that_is_not_empty_and_leaves_it_alone(tmp_path: Path) -> None:
    out = tmp_path / "toy"
    out.mkdir()
    (out / "mine.txt").write_text("keep me")
    result = launch(out, "--classes", 2, "--per-class", 1, "--size", 32)
    assert_one_line(result, str(out), "not empty", "new folder")
    assert contents(tmp_path) == {"toy/mine.txt": b"keep me"}


def test_refuses_what_another_run_left(tmp_path: Path) -> None:
    (tmp_path / "toy.partial").mkdir()
    with pytest.raises(SystemExit, match=r"toy\.partial exists.*rm -r"):
        toy_imagenet.main([str(tmp_path / "toy"), "--classes=2", "--per-class=1", "--size=32"])
    assert [path.name for path in tmp_path.iterdir()] == ["toy.partial"]


def test_refuses_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "toy").write_text("keep me")
    with pytest.raises(SystemExit, match="not a folder"):
        toy_imagenet.main([str(tmp_path / "toy")])
    assert contents(tmp_path) == {"toy": b"keep me"}


def test_fills_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    toy_imagenet.main([str(tmp_path / "toy"), "--classes=2", "--per-class=1", "--size=32"])
    assert len(contents(tmp_path / "toy")) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


@pytest.mark.parametrize(
    "flag",
    [
        "--classes=1",
        f"--classes={len(toy_imagenet.SHAPES) + 1}",
        "--per-class=0",
        "--val-per-class=0",
        "--size=31",
        "--quality=0",
        "--quality=101",
        "--seed=-1",
        "--workers=0",
        "--per-class=few",
    ],
)
def test_bad_numbers_are_argparse_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        toy_imagenet.main([str(tmp_path / "toy"), flag])
    assert stop.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"argument {flag.split('=')[0]}: " in last and "whole number from" in last
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("existed", [False, True], ids=["new folder", "empty folder"])
def test_a_broken_write_leaves_no_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    """The disk fills up at the tenth picture."""
    out, seen = tmp_path / "toy", []
    if existed:
        out.mkdir()

    def write_bytes(path: Path, data: bytes) -> int:
        seen.append((path, (tmp_path / "toy.partial").is_dir(), any(out.glob("*"))))
        if len(seen) == 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        with path.open("wb") as file:
            return file.write(data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(SystemExit, match=r"toy was not made: .*No space left"):
        toy_imagenet.main([str(out), "--classes=2", "--per-class=20", "--size=32", "--workers=1"])
    assert len(seen) == 10
    assert all(partial and not early for _, partial, early in seen)
    assert [path.name for path in tmp_path.rglob("*")] == (["toy"] if existed else [])


@pytest.mark.skipif(os.name != "posix", reason="needs resource limits")
def test_a_worker_that_cannot_write_ends_the_run_in_one_line(tmp_path: Path) -> None:
    """A real launch with two workers, in which no file may grow beyond 1000 bytes."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    flags = ["--classes", 2, "--per-class", 40, "--size", 200, "--workers", 2]
    result = launch(tmp_path / "toy", *flags, preexec_fn=limit)
    assert_one_line(result, str(tmp_path / "toy"), "was not made", "File too large")
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="needs process groups")
@pytest.mark.parametrize(
    ("number", "phase"),
    [(signal.SIGINT, "*"), (signal.SIGINT, "*.jpg"), (signal.SIGTERM, "*.jpg")],
    ids=["Ctrl-C while workers start", "Ctrl-C while they draw", "kill"],
)
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, number: signal.Signals, phase: str
) -> None:
    out, partial = tmp_path / "toy", tmp_path / "toy.partial"
    command = [sys.executable, str(TOOL), str(out), "--per-class=1500", "--size=300", "--workers=2"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not any(partial.rglob(phase)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        if phase == "*":
            time.sleep(0.2)
        # Ctrl-C reaches the whole group; `kill` and a scheduler's warning only the parent.
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130
    assert stderr.strip() == f"toy_imagenet: interrupted, {out} was not made"
    assert not any(tmp_path.iterdir())

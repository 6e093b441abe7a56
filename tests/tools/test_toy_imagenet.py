"""The toy ImageNet: same seed, same bytes; no folder of a user is filled."""

import io
import sys
from pathlib import Path

import pytest
import toy_imagenet
from harness import TOOLS, kill_with_workers, run, start
from PIL import Image
from refusals import snapshot

COMMAND = [sys.executable, TOOLS / "toy_imagenet.py"]


def test_same_seed_gives_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    """40 pictures are several tasks, so both workers get some. A set of fewer classes and pictures
    is a part of them; another seed draws others."""
    toy = [*COMMAND, tmp_path / "two", "--workers", 2, "--seed", 3]
    result = run([*toy, "--classes", 4, "--per-class", 8, "--size", 64], tmp_path)
    assert result.returncode == 0, result.output
    assert "32 train and 8 val pictures of 4 classes" in result.stdout
    toy_imagenet.write_toy_imagenet(tmp_path / "one", 3, 6, 2, size=64, seed=3, workers=1)
    toy_imagenet.write_toy_imagenet(tmp_path / "other", 3, 6, 2, size=64, seed=4, workers=1)

    two, one, other = (snapshot(tmp_path / name) for name in ("two", "one", "other"))
    assert len(two) == 40 > 2 * toy_imagenet.PICTURES_AT_ONCE
    assert len(one) == 24 and one.items() <= two.items()
    assert len({*two.values(), *other.values()}) == 40 + 24, "no two pictures are alike"
    pictures = [Image.open(io.BytesIO(picture)) for picture in two.values()]
    assert {(p.format, p.mode) for p in pictures} == {("JPEG", "RGB")}
    assert {p.size for p in pictures} == {(64, 48), (48, 64)}


def test_spread(tmp_path: Path) -> None:
    """At 0 a ground has one colour, but for the grain: of the same pictures less is stored."""
    for spread in (0, 45):
        toy_imagenet.write_toy_imagenet(tmp_path / str(spread), 2, 4, size=64, spread=spread)
    plain, cloudy = (snapshot(tmp_path / str(spread)) for spread in (0, 45))
    assert plain.keys() == cloudy.keys() and len(plain) == 10
    assert sum(map(len, plain.values())) < sum(map(len, cloudy.values()))


def test_too_few(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A number below the least is refused, and nothing is made."""
    for words in (["--per-class", "-1"], ["--val-per-class", "0"], ["--spread", "-1"]):
        with pytest.raises(SystemExit, match="2"):
            toy_imagenet.main([str(tmp_path / "new"), *words])
        assert f"{words[0]} {words[1]} is too small: use " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_killed(tmp_path: Path) -> None:
    """A real launch, and the kill that no program can answer: its worker ends, too."""
    work = start([*COMMAND, tmp_path / "toy", "--workers", 1, "--per-class", 2000], tmp_path)
    kill_with_workers(work, lambda: any(tmp_path.glob("toy.partial-*/toy/train/*/*.jpg")))


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/note.txt").write_text("keep me")
    with pytest.raises(SystemExit, match="mine exists: name a new folder"):
        toy_imagenet.main([str(tmp_path / "mine")])
    assert snapshot(tmp_path) == {"mine/note.txt": b"keep me"}

"""What pages say of machines that are not ours: 02 without float64 and channels_last, as Ascend's
NPUs need it, and pretrained weights where there is no network."""

import re
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import torchvision
from crew import Crew, call_main
from harness import CHAPTERS, ROOT, TINY, command_for, load_chapter, rows, run

from tools.site.check_twins import read_page

HUB = "02_distributed"
PAGE = read_page((ROOT / "docs/en/accelerators.md").read_text(encoding="utf-8"))
(CHANGE,) = ["\n".join(fence.lines) for fence in PAGE.fences if "sed" in "".join(fence.lines)]
SAME_LINES = [HUB, "03_multiprocessing", "04_apex", "06_slurm", "07_dist_eval"]


def changed(chapter: str, folder: Path) -> Path:
    """A chapter after the commands of the page, typed in the repository's root."""
    (folder / chapter).symlink_to(ROOT / chapter)
    subprocess.run(["bash", "-euc", CHANGE.replace(HUB, chapter)], cwd=folder, check=True)
    return folder / "my_project/main.py"


@pytest.mark.parametrize("chapter", SAME_LINES)
def test_the_change_is_whole(chapter: str, tmp_path: Path) -> None:
    """It leaves no float64 and no other memory format, and changes nothing but these lines."""
    assert chapter in CHAPTERS
    old = (ROOT / chapter / "main.py").read_text()
    new = changed(chapter, tmp_path).read_text()
    assert not re.search(r"torch\.(float64|double|channels_last)|\.double\(|float64\(", new)
    assert "torch.float32, device=device)" in new and "model(images).float()" in new
    pairs = list(zip(old.splitlines(), new.splitlines(), strict=True))
    assert 4 <= sum(a != b for a, b in pairs) <= 10


@pytest.mark.proof
def test_the_change_trains(crew: Crew, tmp_path: Path) -> None:
    """On two CPU processes as 02 does, to rounding, which another memory format changes too."""
    argv = ["--synthetic", "40", *TINY, "--epochs", "1", "--output-dir"]
    script = changed(HUB, tmp_path)
    env = {"CUDA_VISIBLE_DEVICES": ""}
    done = run(command_for(HUB, [*argv, "new"], 2, script), tmp_path, env=env)
    assert done.returncode == 0, done.output
    for answer in crew.run(call_main, HUB, [*argv, str(tmp_path / "old")], world_size=2):
        assert answer["exit"] is None, answer
    (new,), (old,) = (rows(tmp_path / name, "eval") for name in ("new", "old"))
    assert (new["images"], new["acc1"]) == (old["images"], pytest.approx(old["acc1"]))
    assert new["loss"] == pytest.approx(old["loss"], rel=1e-3)


def test_weights_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--pretrained takes them from the folder that getting-started.md names, under the last part of
    the address; without them it would call for them."""
    name = "shufflenet_v2_x0_5"
    address = torchvision.models.get_model_weights(name).DEFAULT.url
    folder = tmp_path / "hub/checkpoints"
    folder.mkdir(parents=True)
    weights = torchvision.models.get_model(name).state_dict()
    torch.save(weights, folder / address.rsplit("/", 1)[1])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def call(url: str, *_: object, **__: object) -> None:
        raise ConnectionError(url)

    monkeypatch.setattr(torch.hub, "download_url_to_file", call)
    build_model = load_chapter(HUB).build_model
    args = Namespace(arch=name, pretrained=True)
    model = build_model(args, 1000)
    for key, own in model.state_dict().items():
        assert torch.equal(own, weights[key]), key
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    with pytest.raises(ConnectionError, match=address):
        build_model(args, 1000)
    with pytest.raises(ValueError, match="num_classes"):  # torchvision's: no other head fits
        build_model(args, 10)

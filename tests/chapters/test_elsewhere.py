"""What pages say of machines that are not ours: 02 without float64 and channels_last, as Ascend's
NPUs need it, and pretrained weights where there is no network."""

import re
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import torchvision
from check_twins import read_page
from crew import Crew, call_main
from harness import ROOT, TINY, load_chapter, rows
from warm import run_warm

HUB = "02_distributed"
PAGE = read_page((ROOT / "docs/en/accelerators.md").read_text(encoding="utf-8"))
(CHANGE,) = ["\n".join(fence.lines) for fence in PAGE.fences if "sed" in "".join(fence.lines)]


def test_the_change_trains(crew: Crew, tmp_path: Path) -> None:
    """The commands of the page, typed in the repository's root, leave no float64 and no other
    memory format. On two CPU processes the result trains as 02 does, to rounding, which another
    memory format changes too."""
    (tmp_path / HUB).symlink_to(ROOT / HUB)
    subprocess.run(["bash", "-euc", CHANGE], cwd=tmp_path, check=True)
    script = tmp_path / "my_project/main.py"
    left = r"torch\.(float64|double|channels_last)|\.double\(|float64\("
    assert not re.search(left, script.read_text())
    argv = ["--synthetic", "40", *TINY, "--epochs", "1", "--output-dir"]
    codes, *said = run_warm([script, *argv, tmp_path / "new"], tmp_path, 2)
    assert codes == [0, 0], said
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
    with pytest.raises(SystemExit, match="1000 classes, not 10"):  # no other head fits
        build_model(args, 10)

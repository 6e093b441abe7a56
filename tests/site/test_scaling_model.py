"""The cost model behind the page on scaling: its formulas, and that the site shows its numbers."""

import pytest
from harness import ROOT

from tools.site import scaling_model as model

ASSUME = model.Assumptions()


def test_a_ring_sends_2_n_minus_1_over_n_of_the_bytes():
    net = model.Network(gpus=8, latency=0, bandwidth=1e9, latency_out=0, bandwidth_out=1e9)
    for n in (2, 3, 8, 100):
        assert model.ring(n, 1e9, net) == pytest.approx(2 * (n - 1) / n)


def test_hops_of_ring_and_tree():
    net = model.Network(gpus=8, latency=1, bandwidth=1e9, latency_out=100, bandwidth_out=1e9)
    assert model.ring(8, 0, net) == 14  # one machine: 2 (8 - 1)
    assert model.ring(32, 0, net) == 56 + 600  # 62 hops, of which 6 lie between 4 machines
    assert model.tree(8, 0, net) == 6  # 2 log2 8
    assert model.tree(32, 0, net) == 14 + 400  # 2 (8 - 1) within, 2 log2 4 between


@pytest.mark.parametrize("net", model.NETWORKS.values(), ids=model.NETWORKS)
def test_efficiency(net):
    """One GPU costs nothing, more are never more efficient, and fewer bytes or larger batches
    never hurt."""
    assert model.ring(1, 1e9, net) == model.tree(1, 1e9, net) == 0
    assert model.step(1, 256, net, ASSUME) == model.compute(256, ASSUME) == 256 / 2500
    for images in (8, 64, 256):
        found = [model.efficiency(n, images, net, ASSUME) for n in model.GPUS]
        assert found[0] == 1 and found == sorted(found, reverse=True) and found[-1] > 0
    assert all(model.speedup(n, net, ASSUME) <= n * (1 + 1e-9) for n in model.GPUS)
    for n in model.GPUS:
        fp32, bf16 = (model.efficiency(n, 256, net, ASSUME, c) for c in (1, 2))
        assert bf16 >= fp32 >= model.efficiency(n, 64, net, ASSUME) - 1e-12


def test_a_step_is_at_least_compute_and_at_least_communication():
    total = sum(size for size, _ in model.BUCKETS)
    assert total == 4 * 25_557_032  # ResNet-50's parameters in fp32
    assert [share for _, share in model.BUCKETS] == sorted(share for _, share in model.BUCKETS)
    seconds = model.step(64, 256, model.ETHERNET, ASSUME)
    assert seconds >= model.compute(256, ASSUME)
    assert seconds >= sum(model.all_reduce(64, s, model.ETHERNET) for s, _ in model.BUCKETS)


def test_the_site_shows_what_the_model_says():
    for language in ("zh", "en"):
        path = ROOT / f"docs/assets/results/scaling.{language}.md"
        assert path.read_text(encoding="utf-8") == model.tables(language, ASSUME)


def test_other_assumptions_are_printed_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(model, "ROOT", tmp_path)
    model.main(["--least-step-ms", "0"])
    assert capsys.readouterr().out == model.tables("en", model.Assumptions(least_step_ms=0)) + "\n"
    assert list(tmp_path.iterdir()) == []


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    model.plot("zh", ASSUME, tmp_path / "plot.svg")
    assert "扩展效率" in (tmp_path / "plot.svg").read_text(encoding="utf-8")

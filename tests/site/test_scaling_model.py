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
    """One GPU costs nothing, and more are never more efficient."""
    assert model.ring(1, 1e9, net) == model.tree(1, 1e9, net) == 0
    assert model.step(1, 256, net, ASSUME) == model.compute(256, ASSUME) == 256 / 2500
    for images in (8, 64, 256):
        found = [model.efficiency(n, images, net, ASSUME) for n in model.GPUS]
        assert found[0] == 1 and found == sorted(found, reverse=True) and found[-1] > 0


def test_the_site_shows_what_the_model_says():
    for language in ("zh", "en"):
        path = ROOT / f"docs/assets/results/scaling.{language}.md"
        assert path.read_text(encoding="utf-8") == model.tables(language, ASSUME)

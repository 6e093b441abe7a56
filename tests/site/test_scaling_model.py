"""The cost model behind scaling on paper: its formulas, and that the page has its numbers."""

import itertools
import math
import re

import pytest
from harness import ROOT

from ddp_doctor.speed.rent import LINKS
from tools.site import scaling_model as model

PAGES = {lang: (ROOT / f"docs/{lang}/performance.md").read_text("utf-8") for lang in ("en", "zh")}


@pytest.mark.parametrize("gpus", [2, 3, 8, 100])
def test_all_reduce(gpus: int) -> None:
    """Many bytes go round the ring, which sends 2 (n - 1) / n of them; few through the tree."""
    assert model.all_reduce(gpus, 1e15, 1e9) == pytest.approx(2 * (gpus - 1) / gpus * 1e6)
    hops = 2 * math.ceil(math.log2(gpus))
    assert model.all_reduce(gpus, 0, 1e9) == pytest.approx(hops * model.LATENCY)


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_table_is_the_models(language: str) -> None:
    shown = (model.RESULTS / f"scaling.{language}.md").read_text("utf-8")
    assert shown == model.table(language), "run tools/site/scaling_model.py"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_text_has_the_numbers_of_the_model(language: str) -> None:
    page = PAGES[language]
    sums = re.findall(r"3 · ([\d.]+) MB · ([\d.]+) / ([\d.]+) GB/s +=\s+(\d+)", page)
    assert len(sums) == 3
    for megabytes, rate, bandwidth, images in sums:
        needed = 3 * float(megabytes) * float(rate) / float(bandwidth) / 1000
        assert int(images) == round(needed)
    sizes, shares = zip(*model.BUCKETS, strict=True)
    assert {f"{sum(sizes) / 1e6 / part:.1f}" for part in (1, 2)} == {m for m, *_ in sums}
    assert f" {model.RATE:.0f} · {model.LEAST} = {model.RATE * model.LEAST} " in page
    # "two thirds of the bytes when backward has done a sixth"; "the last bucket, 10 %"
    sent = [size / sum(sizes) for size in itertools.accumulate(sizes)]
    assert (sent[2], shares[2]) == pytest.approx((2 / 3, 1 / 6), abs=0.03)
    assert f"{100 * (1 - sent[3]):.0f}%" == "10%"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_doctor_has_the_links_of_the_page(language: str) -> None:
    shown = re.findall(r"^\|[^|]+\|[^|]+\| ([\d.]+)–([\d.]+) \|", PAGES[language], re.MULTILINE)
    assert [tuple(map(float, one)) for one in shown] == [link[:2] for link in LINKS.values()]

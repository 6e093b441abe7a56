"""The figures that answer: what they compute, against Python and torch; that the still pictures are
what their scripts draw; and in Chromium how they answer to pointer, keyboard and address."""

import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from harness import ROOT

pytest.importorskip("playwright", reason="needs requirements-dev.txt")
from playwright.sync_api import Browser, Page
from torch.utils.data import DataLoader, DistributedSampler

from tools.site import draw, scaling_model

pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def scripts(chromium: Browser) -> Iterator[Page]:
    """An empty page that has the figures' scripts."""
    opened = chromium.new_page()
    draw.load(opened)
    yield opened
    opened.close()


def computed(scripts: Page, name: str, states: list[dict]) -> list[dict]:
    """What a figure computes for each of these states."""
    return scripts.evaluate(f"states => states.map(cookbook.figures.{name}.compute)", states)


# --- what they compute ----------------------------------------------------------------------------


def batches_of_torch(state: dict, rank: int) -> list[list[int]]:
    """The batches of a rank, from torch's own sampler and loader."""
    images, ranks, drop = range(state["images"]), state["ranks"], state["drop"]
    sampler: Any = images[rank::ranks]  # "exact"
    if state["way"] != "exact":
        shuffle = state["way"] == "sampler"
        sampler = DistributedSampler(images, ranks, rank, shuffle, drop_last=drop)
        if state["setEpoch"]:
            sampler.set_epoch(state["epoch"])
    return list(
        DataLoader(images, state["batch"], sampler=sampler, drop_last=drop, collate_fn=list)
    )


def test_shares_are_those_of_torch(scripts: Page) -> None:
    grid = {
        "images": (7, 12, 60), "ranks": (1, 2, 3, 8), "batch": (1, 3),
        "way": ("sampler", "unshuffled", "exact"), "drop": (False, True),
        "setEpoch": (False, True), "epoch": (0, 3),
    }  # fmt: skip
    states = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for state, found in zip(states, computed(scripts, "shares", states), strict=True):
        batches = [batches_of_torch(state, rank) for rank in range(state["ranks"])]
        assert found["batches"] == batches, state
        seen = [image for rank in batches for batch in rank for image in batch]
        images = range(state["images"])
        assert found["twice"] == sum(seen.count(image) > 1 for image in images)
        assert found["never"] == [image for image in images if image not in seen]
        if seen:
            assert found["reported"] == pytest.approx(100 - 100 * right(seen))
        assert found["right"] == pytest.approx(100 - 100 * right([*images]))


def right(images: list[int]) -> float:
    """The share of wrong guesses among them: every fourth image."""
    return sum(image % 4 == 0 for image in images) / len(images)


@pytest.mark.parametrize("ranks", range(2, 9))
def test_ring(scripts: Page, ranks: int) -> None:
    """Each step brings one chunk; in the end all are there, for 2 (n - 1) / n of the bytes."""
    start = {"ranks": ranks, "megabytes": 100, "bandwidth": 2}
    states = [start | {"step": step} for step in range(2 * ranks - 1)]
    found = computed(scripts, "ring", states)
    for before, now in itertools.pairwise(found):
        for rank, chunk in enumerate(now["arrived"]):
            sent = before["holds"][rank - 1][chunk]
            assert set(sent) <= set(now["holds"][rank][chunk])
    last = found[-1]
    for rank in range(ranks):
        for chunk in last["holds"][rank]:
            assert sorted(chunk) == [*range(ranks)]
    assert last["now"] == pytest.approx(200 * (ranks - 1) / ranks)
    assert last["seconds"]["ring"] == pytest.approx(last["now"] / 2000)


def test_timeline_is_that_of_the_model(scripts: Page) -> None:
    draw = random.Random(0)
    states = [
        {
            "model": draw.choice([*scaling_model.MODELS, "own"]), "images": draw.randint(1, 1024),
            "gpus": draw.choice([1, 2, 8, 100, 1024]), "bandwidth": draw.uniform(0.5, 200),
            "bf16": draw.random() < 0.5, "accumulate": draw.randint(1, 8),
            "bucket": draw.randint(1, 200), "rate": draw.uniform(100, 5000),
            "parameters": draw.uniform(1, 1000),
        }
        for _ in range(50)
    ]  # fmt: skip
    for state, found in zip(states, computed(scripts, "overlap", states), strict=True):
        rate = state["rate"]
        gradients = [(state["parameters"] * 4e4, (n + 1) / 100) for n in range(100)]
        if model := scaling_model.MODELS.get(state["model"]):
            rate *= scaling_model.MODELS["resnet50"]["operations"] / model["operations"]
            gradients = model["gradients"]
        buckets = scaling_model.buckets_of(gradients, state["bucket"])
        computes, takes = scaling_model.step(
            state["gpus"], state["images"], state["bandwidth"] * 1e9, 1 + state["bf16"],
            state["accumulate"], rate, buckets,
        )  # fmt: skip
        assert len(found["buckets"]) == len(buckets)
        assert found["step"] == pytest.approx(takes), state
        assert found["efficiency"] == pytest.approx(computes / takes), state


# --- in the page ----------------------------------------------------------------------------------


def test_stills_are_what_the_scripts_draw(scripts: Page) -> None:
    files = {path.name: path.read_text("utf-8") for path in draw.FIGURES.iterdir()}
    drawn = draw.stills(scripts)
    for pictures in (files, drawn):  # heights follow from the machine's font
        for name in pictures:
            pictures[name] = re.sub('height="\\d+" viewBox="0 0 520 .*?"', "", pictures[name])
    assert drawn == files, "run make figures"


def sentence(page: Page, name: str) -> str:
    return page.locator(f"#fig-{name} .fig-sentence").inner_text().replace("\xa0", " ")


def test_keyboard_pointer_and_address(page: Page, address: str) -> None:
    """A slider by the keyboard, a button by the pointer; the link below keeps what they made."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}concepts/")
    ring = page.locator("#fig-ring")
    ring.locator("[name=ranks]").press("ArrowRight")
    assert ring.locator("output").first.inner_text() == "5"
    for _ in range(3):
        ring.locator("button").nth(1).click()
    assert ring.locator("output").nth(1).inner_text() == "3"
    assert ring.locator("svg rect.fig-arrived").count() == 5
    after = sentence(page, "ring")
    assert "61.2 MB" in after
    link = ring.locator(".fig-foot a").get_attribute("href")
    assert link == "#fig-ring?ranks=5&step=3&megabytes=102&bandwidth=25"
    page.goto("about:blank")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{address}concepts/{link}")
    assert sentence(page, "ring") == after
    tabs = page.locator(".md-tabs").bounding_box()
    assert tabs["y"] + tabs["height"] <= ring.bounding_box()["y"] < 200

    page.goto(f"{address}concepts/#fig-shares?ranks=4")  # drop_last as on the page
    assert page.locator("#fig-shares [name=drop]").is_checked()
    page.locator("#fig-shares [name=drop]").uncheck()
    page.locator("#fig-shares [name=way]").select_option("none")
    assert "19" in sentence(page, "shares")


def test_a_reader_hears_where_it_has_come_to_rest(page: Page, address: str) -> None:
    """Half a second after the last step, and no step beyond the last."""
    page.clock.install(time="2026-01-01T08:00:00")
    page.goto(f"{address}en/concepts/#fig-ring?ranks=3&step=2")
    page.clock.pause_at("2026-01-01T10:00:00")
    ring = page.locator("#fig-ring")
    step, heard = ring.locator("[name=step]"), ring.locator(".fig-status")
    page.clock.run_for(600)
    ring.get_by_role("button", name="step +1").click()
    page.clock.run_for(400)
    ring.get_by_role("button", name="step +1").click()
    page.clock.run_for(400)
    assert heard.inner_text().startswith("Step 2 of 4")
    page.clock.run_for(100)
    assert heard.inner_text() == "After 4 steps every rank has every sum."
    ring.get_by_role("button", name="step +1").click()
    assert step.input_value() == "4"
    step.press("ArrowLeft")
    assert step.input_value() == "3"


def test_fields_without_effect_are_hidden(page: Page, address: str) -> None:
    page.goto(f"{address}performance/")
    page.locator("#fig-overlap summary").click()
    parameters = page.locator("#fig-overlap [name=parameters]")
    assert not parameters.is_visible()
    page.locator("#fig-overlap [name=model]").select_option("own")
    assert parameters.is_visible()


def test_with_and_without(page: Page, address: str) -> None:
    """Two buttons show the right way and the forgotten one, of which one is pressed."""
    page.goto(f"{address}en/convert/")
    figure = page.locator("#fig-shares")
    pressed = figure.locator("[aria-pressed=true]")
    assert pressed.inner_text() == "with a sampler" and "once (framed): 0;" in sentence(
        page, "shares"
    )
    assert figure.locator(".fig-twice, .fig-wrong").count() == 0
    figure.get_by_role("button", name="forgotten").click()
    assert pressed.inner_text() == "forgotten" and figure.locator(".fig-twice").count() == 24
    assert "accuracy" not in sentence(page, "shares")
    page.goto(f"{address}en/chapters/07_dist_eval/")
    assert "the accuracy is" in sentence(page, "shares") and figure.locator(".fig-wrong").count()


def test_what_is_not_possible(page: Page, address: str) -> None:
    """The nearest that is possible is drawn, and stands in the fields."""
    page.goto(f"{address}en/concepts/#fig-overlap?images=3.4&bandwidth=nan&gpus=9999&zoo=<b>x")
    figure = page.locator("#fig-overlap")
    names = ("images", "bandwidth", "gpus")
    assert [figure.locator(f"[name={n}]").input_value() for n in names] == ["3", "5", "1024"]
    assert "NaN" not in figure.inner_html()
    page.goto(f"{address}en/concepts/#fig-shares?way=<b>x")
    assert page.locator("#fig-shares [name=way]").input_value() == "sampler"


def test_models_are_those_of_torchvision() -> None:
    shown = json.loads((ROOT / "docs/assets/results/scaling-models.json").read_text("utf-8"))
    assert scaling_model.count("resnet18") == shown["resnet18"]

"""Forgetting a line, on the home page: as recorded, which a run today does again."""

import copy
import json
import re

import pytest
from harness import ROOT
from tiers import table

pytest.importorskip("playwright", reason="needs requirements-dev.txt")
from playwright.sync_api import Browser, Page

from tools.site import break_it
from tools.site.record_breaks import BREAKS, RECORDED, record
from tools.site.verdicts import COMPARISON

RUNS = json.loads(RECORDED.read_text())["runs"]


@pytest.mark.parametrize("name", table(["right", *BREAKS], []))
def test_recorded(name: str) -> None:
    """The weights but for rounding: another CPU adds up in another order."""
    recorded, again = copy.deepcopy(RUNS[name]), record(name)
    for before, now in zip(recorded["ranks"], again["ranks"], strict=True):
        assert now.pop("weights") == pytest.approx(before.pop("weights"), rel=1e-3)
    # Two ranks that print at once may print into one line.
    again["printed"] = re.findall(r"epoch \d+: \d+ of \d+ right", "\n".join(again["printed"]))
    assert again == recorded


def test_what_is_said_follows_from_the_numbers() -> None:
    said = {name: set(break_it.seen(run, RUNS["right"])) for name, run in RUNS.items()}
    assert said == {
        "right": {"right"},
        "world_size": {"larger"},
        "sampler": {"both"},
        "share": {"twice"},
        "wrap": {"apart"},
        "set_epoch": {"again"},
        "call": {"apart"},
        "all_reduce": {"part"},
        "print": {"lines"},
        "save": {"file"},
    }


def test_pages_are_fresh() -> None:
    """What is written of it where nothing can be clicked."""
    logs = [RUNS[name]["printed"] for name in ("right", break_it.STILL)]
    logs = [letter + "  " + "\n   ".join(log) for letter, log in zip("AB", logs, strict=True)]
    fence = "\n\n".join(logs)
    for language, readme in (("en", "README.md"), ("zh", "README.zh-CN.md")):
        page = (ROOT / f"docs/{language}/index.md").read_text()
        headline = f"\n## {break_it.WORDS[language]['headline']}"
        for text in (page, (ROOT / readme).read_text()):
            assert f"```text\n{fence}\n```" in text and headline in text


def counted() -> dict[str, int]:
    """A finding counts where the mended program does not have it, and a broken rule of traincheck
    where a second right run does not break it."""
    rows = json.loads(COMPARISON.read_text())["cases"].values()

    def new(row: dict) -> set[str]:
        faulty, mended = (
            {(one["id"], one["severity"]) for one in row["doctor"][which]}
            for which in ("faulty", "mended")
        )
        return {severity for _, severity in faulty - mended}

    found = [new(row) for row in rows]
    loud = sum(bool(severities & {"wrong result", "hang ahead"}) for severities in found)
    return {
        "all": len(rows),
        "detail": sum(bool(row["detail-faulty"] and not row["detail-mended"]) for row in rows),
        "traincheck": sum(bool(row.get("traincheck", {}).get("broken")) for row in rows),
        "doctor": sum(map(bool, found)),
        "loud": loud,
        "mild": sum(map(bool, found)) - loud,
    }


SENTENCES = {
    "en": (
        "torch's `DETAIL` notices {detail}, traincheck {traincheck}, the doctor {doctor}: {loud} "
        "as errors, {mild} as waste or notes.",
        "Of {exam} more that the doctor had not seen, it named {named}.",
    ),
    "zh": (
        "torch 的 `DETAIL` 发现 {detail} 个，traincheck {traincheck} 个，doctor {doctor} 个："
        "{loud} 个报错误，{mild} 个报浪费或提示。",
        "另外 {exam} 份 doctor 没见过的报告，它发现 {named} 个。",
    ),
}


@pytest.mark.parametrize("language", SENTENCES)
def test_mistakes_are_counted(language: str) -> None:
    """As comparison.json has them, and the table of reports that the doctor had not seen."""
    home, cases = (
        re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", (ROOT / f"docs/{language}/{name}.md").read_text())
        for name in ("index", "cases")
    )
    [exam] = re.findall(r'<a id="exam"></a>.*?\n\| --- .*?\n(.+?)\n\n', cases, re.S)
    named = sum(bool(re.fullmatch(r"\|.*\| `\w+` \|", row)) for row in exam.splitlines())
    numbers = counted() | {"exam": len(exam.splitlines()), "named": named}
    known, unseen = (sentence.format(**numbers) for sentence in SENTENCES[language])
    assert known in home and unseen in home and known in cases
    assert re.search(rf"^## {numbers['all']} ", home, re.M)


# --- in a browser ---------------------------------------------------------------------------------


def shown(page: Page) -> str:
    """The run whose log and verdict are in sight: that of the line which is struck."""
    places = [part for part in page.locator(".bk [data-of]").all() if part.is_visible()]
    log, panel = (part.get_attribute("data-of") for part in places)
    assert page.locator(".bk input:checked").get_attribute("value") == log == panel
    return log


SCROLLED = """() => new Promise(done => {
    addEventListener("scroll", done, {once: true});
    scrollBy(0, 50);
})"""


@pytest.mark.xdist_group("site")
def test_lines(page: Page, address: str) -> None:
    """By mouse and by keyboard; each has an address, and a second press puts it back. What a screen
    reader says of a button is what is undone, and the number of the line that the doctor names
    stands out."""
    page.clock.install()
    page.goto(f"{address}en/")
    assert shown(page) == "set_epoch"
    undone = "line 54: shuffle=True in place of sampler=sampler"
    assert page.get_by_role("radio", name=undone).get_attribute("value") == "sampler"
    page.locator("label:has([value=sampler])").click()
    assert shown(page) == "sampler"
    # What the theme does a quarter of a second after scrolling leaves the address alone.
    page.evaluate(SCROLLED)
    page.clock.run_for(2000)
    assert page.evaluate("location.hash") == "#break=sampler"
    assert page.locator("[data-of=sampler] .wrong").text_content() == "WRONG RESULT"
    named = page.locator("[data-n='54'] .bk-n").evaluate("e => getComputedStyle(e).fontWeight")
    assert named == "700"
    page.keyboard.press("ArrowDown")
    assert shown(page) == "share"
    page.locator("label:has([value=wrap])").click()
    assert shown(page) == "wrap"
    page.locator(".bk-can:has([value=wrap])").click()
    assert shown(page) == "right"
    legend = page.locator(".bk legend").inner_text()
    assert "all lines" in legend and "struck" not in legend

    # Putting it back on a low screen keeps the line where it is.
    page.set_viewport_size({"width": 1280, "height": 650})
    page.goto(f"{address}en/#break=1")
    page.reload()
    back = page.locator(".bk-back:visible")
    back.scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    back.click()
    assert shown(page) == "right" and page.evaluate("scrollY") == before

    page.goto(f"{address}#break=all_reduce")
    assert shown(page) == "all_reduce"
    page.evaluate("location.hash = '#break=save'")
    page.wait_for_function("document.querySelector('.bk [value=save]').checked")
    assert shown(page) == "save"


@pytest.mark.xdist_group("site")
def test_without_scripts(chromium: Browser, address: str) -> None:
    opened = chromium.new_page(java_script_enabled=False, viewport={"width": 390, "height": 844})
    opened.goto(f"{address}en/")
    assert shown(opened) == "set_epoch"
    opened.locator("label:has([value=wrap])").click()
    assert shown(opened) == "wrap"
    opened.close()

"""The still pictures of the figures, drawn by their own scripts: docs/assets/figures/.

    make figures

They are in the pages before any script has run, without scripts, and in print.
"""

import itertools
import json
from pathlib import Path

from playwright.sync_api import Page

from tools.site.shots import browser

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "docs/assets/javascripts/figures"
FOLDER = ROOT / "docs/assets/figures"
NAMES = ("shares", "ring", "overlap", "launch")


def load(page: Page) -> None:
    """The scripts, in an empty page; then `cookbook.figures` can be asked."""
    page.goto("about:blank")
    for name in ("shared", *NAMES):
        page.add_script_tag(path=SCRIPTS / f"{name}.js")
    models = json.loads((ROOT / "docs/assets/results/scaling-models.json").read_text("utf-8"))
    page.evaluate("models => { cookbook.figures.overlap.data = {models} }", models)


def stills(page: Page) -> dict[str, str]:
    """The HTML of each preset of each figure in both languages, by the name of its file."""
    presets = "Object.entries(cookbook.figures).map(([n, f]) => [n, Object.keys(f.presets)])"
    drawn = {}
    for name, wanted in page.evaluate(presets):
        for key in itertools.product(wanted, ("en", "zh")):
            html = page.evaluate("words => cookbook.html(...words)", [name, *key])
            drawn[f"{name}-{key[0]}.{key[1]}.html"] = f"{html}\n"
    return drawn


def main() -> None:
    with browser() as started:
        page = started.new_page()
        load(page)
        for name, html in stills(page).items():
            (FOLDER / name).write_text(html, encoding="utf-8")


if __name__ == "__main__":
    main()

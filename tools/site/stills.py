"""The still pictures of the figures, drawn by their own scripts: docs/assets/figures/.

    make figures

They are in the pages before any script has run, without scripts, and in print. GitHub, which drops
classes and styles, gets the picture as an SVG around the same HTML.
"""

import itertools
import json
import re
from pathlib import Path

from playwright.sync_api import Page

from tools.site.shots import browser

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "docs/assets/javascripts/figures"
FOLDER = ROOT / "docs/assets/figures"
CSS = ROOT / "docs/assets/stylesheets/site.css"
NAMES = ("shares", "ring", "overlap", "launch")
COLOURS = """:root { font: 20px system-ui, sans-serif; color: var(--md-default-fg-color);
--md-default-fg-color: #1c2733; --md-default-bg-color: #fff; --md-default-fg-color--light: #798591;
--md-default-fg-color--lighter: #8888 }
@media (prefers-color-scheme: dark) {
:root { --md-default-fg-color: #dde4ea; --md-default-bg-color: #0d1117 } }
.fig { padding: 3px }
"""
# Narrow, so that words are not too small where a phone shows the whole picture.
SVG = """([picture, style]) => {
  document.body.innerHTML = `<svg xmlns="http://www.w3.org/2000/svg" width="520" height="1">
<style>${style}</style><foreignObject width="100%" height="100%"><div class="fig md-typeset"
xmlns="http://www.w3.org/1999/xhtml">${picture}</div></foreignObject></svg>`;
  const svg = document.body.firstChild;
  const height = Math.ceil(svg.querySelector("div").getBoundingClientRect().height);
  svg.setAttribute("height", height);
  svg.setAttribute("viewBox", `0 0 520 ${height}`);
  return new XMLSerializer().serializeToString(svg);
}"""


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
    rules = re.findall(r"^[^\s@/}][^{}]*\{[^{}]*\}", CSS.read_text("utf-8"), re.M)
    drawn = {}
    for name, wanted in page.evaluate(presets):
        for key in itertools.product(wanted, ("en", "zh")):
            html = page.evaluate("words => cookbook.html(...words)", [name, *key])
            drawn[f"{name}-{key[0]}.{key[1]}.html"] = f"{html}\n"
            picture = re.search('<section class="fig-picture".*?>(.*?)</section>', html, re.S)[1]
            if "data-clipboard-text" not in picture:  # those are commands, to be copied
                used = re.compile("|".join({r"\.fig svg", *re.findall(r"fig-[a-z]+", picture)}))
                style = COLOURS + "\n".join(rule for rule in rules if used.search(rule))
                svg = page.evaluate(SVG, [picture, style])
                drawn[f"{name}-{key[0]}.{key[1]}.svg"] = f"{svg}\n"
    return drawn


def main() -> None:
    with browser() as started:
        page = started.new_page()
        load(page)
        for name, html in stills(page).items():
            (FOLDER / name).write_text(html, encoding="utf-8")


if __name__ == "__main__":
    main()

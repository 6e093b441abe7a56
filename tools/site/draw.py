"""Every picture that is drawn, most of them in Chromium; what a picture says is elsewhere.

    make figures

- docs/assets/diagrams/: mermaid diagrams. The text stays in the page, where GitHub draws it. The
  site shows the picture that is named after the text's hash, so no reader has to load mermaid,
  3.6 MB, and a changed text has no picture yet.
- docs/assets/figures/: stills of the figures that move, by their own scripts. They are in the pages
  before any script has run, without scripts, and in print. GitHub, which drops classes and styles,
  gets the picture as an SVG around the same HTML.
- docs/assets/images/: the cards, which a chat shows beside a link to the site, 500 pixels wide: so
  no letter is smaller than 28 of 1200.
"""

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from pymdownx.superfences import SuperFencesException

from . import break_it
from .source import ROOT, SiteError

if TYPE_CHECKING:  # the site is built without a browser
    from playwright.sync_api import Browser, Page

DIAGRAMS = ROOT / "docs/assets/diagrams"
FENCE = re.compile(r"^( *)```mermaid\n(.+?)^\1```$", re.M | re.S)
NAMED = re.compile(r"^ *accTitle: *\S", re.M)
# A wide one has a second picture for phones: a flow from top to bottom, a sequence in short lines.
WIDE = re.compile(r"\Aflowchart LR|\AsequenceDiagram")
SETTINGS = {
    "startOnLoad": False,
    "htmlLabels": False,  # text that is a little wider with the reader's font is not cut
    "fontFamily": "Noto Sans, Noto Sans CJK SC, sans-serif",
    "themeVariables": {"fontSize": "15px"},
    "flowchart": {"nodeSpacing": 28, "rankSpacing": 38, "padding": 12, "diagramPadding": 4},
    "sequence": {
        "mirrorActors": False,
        "wrap": True,
        "wrapPadding": 4,
        "width": 150,
        "height": 40,
        "actorMargin": 90,
        "boxMargin": 8,
        "diagramMarginX": 8,
        "diagramMarginY": 4,
        "messageMargin": 26,
        "messageFontSize": 15,
        "actorFontSize": 15,
        "noteFontSize": 15,
    },
}
NARROW = {"sequence": {**SETTINGS["sequence"], "width": 108, "actorMargin": 18}}
# The style sheet of the site has the colours, for a light ground and a dark one; what remains is
# shapes, words and the markers that lines end with.
DRAW = """async ([id, text, settings]) => {
  mermaid.initialize(settings);
  const box = document.createElement("div");
  box.innerHTML = (await mermaid.render(id, text)).svg;
  const svg = box.querySelector("svg");
  document.body.replaceChildren(box);
  const [, top, width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  for (const line of svg.querySelectorAll(".actor-line")) line.setAttribute("y2", top + height);
  for (const shape of svg.querySelectorAll("g.label-container")) {  // round, of hundreds of points
    const { x, y, width, height } = shape.getBBox();
    shape.innerHTML = `<rect x="${x}" y="${y}" width="${width}" height="${height}"
      rx="${height / 2}"></rect>`;
  }
  for (const label of svg.querySelectorAll(".edgeLabel")) if (!label.textContent) label.remove();
  for (const style of svg.querySelectorAll("style")) style.remove();
  const used = new Set(svg.outerHTML.match(/(?<=url\\(#|href="#|labelledby=")[^)" ]+/g));
  for (const part of svg.querySelectorAll("marker, symbol, filter")) {
    if (!used.has(part.id)) part.remove();
  }
  for (const part of svg.querySelectorAll("defs, g:empty, rect:not([width])")) {
    if (!part.childElementCount) part.remove();
  }
  for (const part of [svg, ...svg.querySelectorAll("*")]) {
    for (const { name } of [...part.attributes]) {
      const kept = name === "id" && (used.has(part.id) || part === svg);
      if (/^data-|^(name|style|id|stroke|fill|font-.*|aria-roledescription)$/.test(name) && !kept) {
        part.removeAttribute(name);
      }
    }
    if (part.matches(".flowchart-link")) part.setAttribute("class", "flowchart-link");
  }
  for (const text of svg.querySelectorAll("text, tspan")) {  // mermaid hyphenates Chinese
    if (text.childElementCount) continue;
    text.textContent = text.textContent.replace(/(?<=[^\\x00-\\x7f])-$/, "");
  }
  svg.setAttribute("role", "img");
  svg.setAttribute("style", `min-width: ${Math.round(0.62 * width)}px`);
  svg.setAttribute("width", Math.ceil(width));
  svg.setAttribute("height", Math.ceil(height));
  return box.innerHTML.replace(/\\d+\\.\\d{2,}/g, (number) => Number(number).toFixed(1));
}"""


def place(text: str, kind: str = "") -> Path:
    return DIAGRAMS / f"{hashlib.sha256(text.strip().encode()).hexdigest()[:12]}{kind}.svg"


def wanted(text: str) -> dict[Path, tuple[str, dict]]:
    """The pictures of a diagram, and what mermaid draws them from: a text, and settings."""
    # Mermaid begins a new line at a blank alone.
    spaced = re.sub("([：，、])(?=.)", r"\1 ", text) if text.startswith("sequence") else text
    pictures = {place(text): (spaced, SETTINGS)}
    if WIDE.match(text):
        turned = spaced.replace("flowchart LR", "flowchart TB", 1)
        pictures[place(text, "-narrow")] = (turned, SETTINGS | NARROW)
    return pictures


def fence(source: str, language: str, css: str, options: dict, md: Any, **more: Any) -> str:
    """What SuperFences shows for ```mermaid."""
    html = ""
    for path in wanted(source):
        if not path.is_file():
            first = source.strip().splitlines()[0]
            raise Missing(f"a diagram ({first} ...) is new or has changed: make figures")
        kind = " narrow" if path.stem.endswith("-narrow") else ""
        svg = path.read_text(encoding="utf-8").strip()
        html += f'<figure class="diagram{kind}" data-search-exclude>{svg}</figure>'
    return html


class Missing(SuperFencesException, SiteError):
    """SuperFences hides every exception but its own."""


def all_wanted() -> dict[Path, tuple[str, dict]]:
    """Of all pages."""
    pictures: dict[Path, tuple[str, dict]] = {}
    for page in sorted((ROOT / "docs").glob("??/**/*.md")):
        for indent, text in FENCE.findall(page.read_text(encoding="utf-8")):
            text = re.sub(rf"^{indent}", "", text, flags=re.M)
            if not NAMED.search(text):
                raise SiteError(f"{page}: a diagram without accTitle, its name for screen readers")
            pictures |= wanted(text)
    return pictures


# ---- stills of figures ----
SCRIPTS = ROOT / "docs/assets/javascripts/figures"
FIGURES = ROOT / "docs/assets/figures"
CSS = ROOT / "docs/assets/stylesheets/figures.css"
NAMES = ("shares", "ring", "overlap")
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


def load(page: "Page") -> None:
    """The scripts, in an empty page; then `cookbook.figures` can be asked."""
    page.goto("about:blank")
    for name in ("shared", *NAMES):
        page.add_script_tag(path=SCRIPTS / f"{name}.js")
    models = json.loads((ROOT / "docs/assets/results/scaling-models.json").read_text("utf-8"))
    page.evaluate("models => { cookbook.figures.overlap.data = {models} }", models)


def stills(page: "Page") -> dict[str, str]:
    """The HTML of each preset of each figure in both languages, by the name of its file."""
    presets = "Object.entries(cookbook.figures).map(([n, f]) => [n, Object.keys(f.presets)])"
    rules = re.findall(r"^[^\s@/}][^{}]*\{[^{}]*\}", CSS.read_text("utf-8"), re.M)
    drawn = {}
    for name, wanted in page.evaluate(presets):
        for key in itertools.product(wanted, ("en", "zh")):
            html = page.evaluate("words => cookbook.html(...words)", [name, *key])
            drawn[f"{name}-{key[0]}.{key[1]}.html"] = f"{html}\n"
            picture = re.search('<section class="fig-picture".*?>(.*?)</section>', html, re.S)[1]
            used = re.compile("|".join({r"\.fig svg", *re.findall(r"fig-[a-z]+", picture)}))
            style = COLOURS + "\n".join(rule for rule in rules if used.search(rule))
            svg = page.evaluate(SVG, [picture, style])
            drawn[f"{name}-{key[0]}.{key[1]}.svg"] = f"{svg}\n"
    return drawn


# ---- the cards ----
CARD = """<style>
body {{ display: grid; align-content: space-between; box-sizing: border-box; height: 630px;
margin: 0; padding: 44px 56px; color: #1c2733;
font: 34px/1.3 "Noto Sans", "Noto Sans CJK SC", sans-serif }}
h1 {{ margin: 0; font-size: 62px; line-height: 1.1; letter-spacing: -1px }}
div {{ display: grid; grid-template-columns: 1fr 1fr; gap: 20px }}
pre {{ margin: 0; padding: 22px 18px; border-radius: 12px; color: #dbe2e9; background: #17212b;
font: 33px/1.6 "DejaVu Sans Mono", monospace }}
code {{ font: 37px "DejaVu Sans Mono", monospace; color: #bb3030 }}
p {{ display: flex; justify-content: space-between; align-items: center; margin: 0 }}
b {{ padding: 6px 26px; border-radius: 12px; color: #fff; background: #bb3030; font-size: 40px }}
</style>{name}<h1>{asked}</h1><div><pre>{right}</pre><pre>{broken}</pre></div>
<p><code><s>{gone}</s></code> <b>{verdict}</b></p>{found}"""


def card(page: "Page", language: str) -> bytes:
    """A run of all lines, one without a line, and what the doctor says of it."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    names = re.findall("^ *site_name: (.+)", settings, re.M)
    runs = json.loads(break_it.RECORDED.read_text(encoding="utf-8"))["runs"]
    broken = runs[break_it.STILL]
    verdict, found, *_ = break_it.verdict(broken, language)
    page.set_viewport_size({"width": 1200, "height": 630})
    page.set_content(
        CARD.format(
            name=dict(zip(("zh", "en"), names, strict=True))[language],
            asked=break_it.WORDS[language]["headline"],
            right="\n".join(runs["right"]["printed"]),
            broken="\n".join(broken["printed"]),
            gone=break_it.BREAKS[break_it.STILL][1],
            verdict=verdict.partition("  ")[0],
            found=found.strip(),
        )
    )
    return page.screenshot()


def chromium() -> str | None:
    """The system's browser: the one that Playwright would download is not needed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(which, names)), None)


@contextmanager
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # No sandbox: tests run as root in containers, and only see pages that we made.
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


def main(mermaid: str) -> None:
    """Draws diagrams that have no picture yet, and all else anew."""
    pictures = all_wanted()
    for path in set(DIAGRAMS.iterdir()) - pictures.keys():
        path.unlink()
    drawn = {}
    with browser() as started:
        page = started.new_page()
        page.add_script_tag(path=mermaid)
        for path, drawn_from in pictures.items():
            if not path.is_file():
                drawn[path] = page.evaluate(DRAW, [f"d-{path.stem}", *drawn_from]) + "\n"
        load(page)
        drawn |= {FIGURES / name: text for name, text in stills(page).items()}
        for language in break_it.WORDS:
            (ROOT / f"docs/assets/images/card.{language}.png").write_bytes(card(page, language))
    for path, text in drawn.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

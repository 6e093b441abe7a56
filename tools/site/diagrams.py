"""Mermaid diagrams as pictures, drawn once: docs/assets/diagrams/.

    make figures

The text stays in the page, where GitHub draws it. The site shows the picture that is named after
the text's hash, so no reader has to load mermaid, 3.6 MB, and a changed text has no picture yet.
"""

import hashlib
import re
import sys
from pathlib import Path
from typing import Any

from pymdownx.superfences import SuperFencesException

from tools.site.source import ROOT, SiteError

FOLDER = ROOT / "docs/assets/diagrams"
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
    return FOLDER / f"{hashlib.sha256(text.strip().encode()).hexdigest()[:12]}{kind}.svg"


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


def main(mermaid: str) -> None:
    """Draws what has no picture yet, and removes pictures that no page shows."""
    from tools.site.shots import browser

    pictures = all_wanted()
    FOLDER.mkdir(exist_ok=True)
    for path in set(FOLDER.iterdir()) - pictures.keys():
        path.unlink()
    with browser() as started:
        page = started.new_page()
        page.add_script_tag(path=mermaid)
        for path, drawn_from in pictures.items():
            if not path.is_file():
                svg = page.evaluate(DRAW, [f"d-{path.stem}", *drawn_from])
                path.write_text(f"{svg}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

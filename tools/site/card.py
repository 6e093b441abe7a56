"""What a chat or a forum shows beside a link to the site: docs/assets/images/card.en.png, by

python -m tools.site.card    # make figures calls it

The first screen's still, below its sentence. It stands in the page itself, as an image would not
hear that motion is unwanted. 1200 x 630 is what those programs ask for.
"""

import re

from tools.site.shots import browser
from tools.site.source import ROOT

IMAGES = ROOT / "docs/assets/images"
PAGE = """<style>html {{ font-size: 20px }}</style>
<body style="margin: 0; background: #fff; font: 700 34px system-ui, 'Noto Sans CJK SC'">
<p style="margin: 14px 44px 6px; color: #1c2733">{}</p>
<div style="zoom: 1.146; margin: 0 44px; font-weight: 400">{}</div>"""


def main() -> None:
    with browser() as started:
        page = started.new_page(
            viewport={"width": 1200, "height": 630}, reduced_motion="reduce", color_scheme="light"
        )
        for language in ("en", "zh"):
            home = (ROOT / f"docs/{language}/index.md").read_text(encoding="utf-8")
            sentence = re.search(r"^# .+\n\n(.+)$", home, re.M)[1]
            svg = (IMAGES / f"break-it.{language}-light.svg").read_text(encoding="utf-8")
            page.set_content(PAGE.format(sentence, svg))
            page.screenshot(path=IMAGES / f"card.{language}.png")


if __name__ == "__main__":
    main()

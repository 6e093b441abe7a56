"""What Material does otherwise here: changes to its scripts, by text, in the built site.

A text that is not there once ends the build, so that no change is lost with a new version.
"""

from importlib.metadata import version
from pathlib import Path

import material

from .source import SiteError

SCRIPTS = Path(material.__file__).parent / "templates/assets/javascripts"
CHANGES = {
    "bundle.*.min.js": {
        # A page asks for the index of its own language: hooks.py makes one for each.
        '"search/search_index.json"': "`search/${document.documentElement.lang}.json`",
        # Text may come by paste, by dictation, from an input method: no key goes up.
        'h(e,"keyup"),o)': 'h(e,"input"),o)',
        # The index, two thirds of a page's weight, waits until somebody goes to the field, or has
        # followed a result, whose words are then marked.
        '$(location.protocol!=="file:"),Je("search")': '$(!1),Je("search")',
        'z([t,r.pipe(Q(we()),g(o=>!!o.searchParams.get("h")))])': (
            'r.pipe(Q(we()),g(o=>!!o.searchParams.get("h")),b(o=>z([t,$(o)])))'
        ),
        # It would look for a site map below each page that the head lists as a translation.
        '"link[rel=alternate]"': '"link[rel=none]"',
        # A landmark of its own, without a name, for each block of code.
        'x("nav",{class:"md-code__nav"})': 'x("div",{class:"md-code__nav"})',
    },
    "workers/search.*.min.js": {
        # Else no word of a Chinese query is looked up that ends with its last character.
        "for(let o=s+1;o<t.length;o++)": "for(let o=s+1;o<=t.length;o++)",
    },
}


def changed(text: str, changes: dict[str, str], name: str) -> str:
    for old, new in changes.items():
        if text.count(old) != 1:
            theme = f"mkdocs-material {version('mkdocs-material')}"
            raise SiteError(
                f"{theme}: {name} has {old!r} {text.count(old)} times instead of once: "
                "look at what became of it, then at CHANGES in tools/site/theme.py"
            )
        text = text.replace(old, new)
    return text


def change_scripts(site: Path, scripts: Path = SCRIPTS) -> None:
    """Writes the changed ones into the site, in place of the theme's."""
    for pattern, changes in CHANGES.items():
        [path] = scripts.glob(pattern)
        place = path.relative_to(scripts)
        text = changed(path.read_text(encoding="utf-8"), changes, str(place))
        (site / "assets/javascripts" / place).write_text(text, encoding="utf-8")

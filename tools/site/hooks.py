"""Hooks of MkDocs: files beside the pages, what the theme does otherwise here, and links of a site
that does not know its address."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from itertools import groupby
from pathlib import Path
from urllib.parse import urljoin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import CombinedEvent, event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from tools.site.approaches import switch
from tools.site.break_it import widget
from tools.site.codealong import COPIES, LEGEND, file_address, linked
from tools.site.forms import DESCRIPTION, repository_path
from tools.site.plain import plain
from tools.site.source import ROOT, SiteError, style
from tools.site.theme import change_scripts, searched_words

# What the site is told of pages; in a page GitHub would show it as a table. Wide ones need the room
# of the menu, or have their contents in the text: <!-- toc -->. Those of the course end with a link
# to the next step, and have no other one in a footer.
META = {
    "changelog.md": {"search": {"boost": 0.3}},
    "chapters/": {"hide": ["navigation", "toc"]},
    "chapters/02": {"hide": ["navigation", "toc", "footer"]},
    "concepts.md": {"hide": ["footer"], "search": {"boost": 1.5}},
    "convert.md": {"hide": ["navigation", "footer"], "search": {"boost": 2}},
    "getting-started.md": {"hide": ["footer"]},
    "handbook/api.md": {"hide": ["toc"]},
    "handbook/tensors.md": {"search": {"boost": 0.5}},
    "index.md": {"hide": ["navigation", "toc"]},
    "migration.md": {"hide": ["navigation", "toc"], "search": {"boost": 0.5}},
    "recipes.md": {"hide": ["navigation", "toc"], "search": {"boost": 1.5}},
    "troubleshooting.md": {"search": {"boost": 2}},
}

HOME = f"<script>{(ROOT / 'docs/assets/javascripts/home.js').read_text('utf-8')}</script>"

# For an assistant: what to read first for which job. UP leads to the root of the site.
FIRST = {
    "en": """
- To make a DDP script: [convert.md](convert.md), of which the whole files are
  [single.py](EXAMPLES/single.py) and [multi.py](EXAMPLES/multi.py); then the
  row of [recipes.md](recipes.md) for each thing that the script has; a whole training of its kind
  is in [tasks.md](tasks.md).
- To prove that it is the same training, or to find what is wrong: download
  [doctor.pyz](UPdoctor.pyz), one file for Python 3.10 or newer beside torch, and read
  [doctor.md](doctor.md#same). It runs the script on two CPU processes; no GPU is needed. The
  training is the same if it exits with 0 and prints `Nothing differs.`
- An error line, a hang, a wrong score, no speed-up: [troubleshooting.md](troubleshooting.md).
- A model that does not fit: [handbook/too-large.md](handbook/too-large.md).
- Which approach, and the lines that differ: [chapters/index.md](chapters/index.md); the `main.py`
  of a chapter is a whole program that needs no other file.
- As a skill: `make skill` in a clone makes a folder of these pages, the code and the doctor.
""",
    "zh": """
- 改成 DDP 脚本：先读 [convert.md](convert.md)，完整的文件是
  [single.py](EXAMPLES/single.py) 和 [multi.py](EXAMPLES/multi.py)；脚本里还有的
  东西查 [recipes.md](recipes.md) 开头的表；同类训练的完整脚本在 [tasks.md](tasks.md)。
- 证明训练没有变，或者找出错误：下载 [doctor.pyz](UPdoctor.pyz)（一个文件，Python 3.10 或更新，
  旁边有 torch 即可），读 [doctor.md](doctor.md#same)。它用两个 CPU 进程运行脚本，不需要显卡。
  退出码是 0，并且打印了 `没有差别。`（加 `--lang en` 则是 `Nothing differs.`），训练就相同。
- 报错、卡住、分数不对、不加速：[troubleshooting.md](troubleshooting.md)。
- 模型放不下：[handbook/too-large.md](handbook/too-large.md)。
- 选哪种方法、代码差在哪几行：[chapters/index.md](chapters/index.md)；每章的 `main.py`
  是完整的程序，不依赖别的文件。
- 作为 skill：在本仓库里 `make skill`，得到一个文件夹，里面有这些页面、代码和 doctor。
""",
}

# Of an address in a copy for the disk what is else a folder: chapters/index.html, convert.html.
DIRECTORY = re.compile(r"((^|/)index)?\.html")


def on_config(config: MkDocsConfig) -> None:
    if not config.use_directory_urls:
        config.extra["polyfills"] = ["assets/javascripts/from-disk.js"]


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Below the first code of a chapter's page: what its marks mean. On the home page, in place of
    its table and its two logs: what one can choose."""
    language, _, name = page.file.src_uri.partition("/")
    if name == "index.md":
        before, _, rest = html.partition('<div class="switch">')
        table, _, rest = rest.partition("</div>")
        between, _, rest = rest.partition('<div class="broken">')
        both = switch(table, language, page.url.count("/")), widget(language)
        rest = rest[rest.index('<div class="doors"') :]
        return f"{before}{both[0]}{between}{both[1]}{HOME}{rest}"
    at = html.find("</figure>", html.find(' dist"')) + len("</figure>")
    if not name.startswith("chapters/") or ' dist"' not in html:
        return html
    return f'{html[:at]}<p class="legend" data-search-exclude>{LEGEND[language]}</p>{html[at:]}'


@event_priority(-200)  # after i18n, which would look for it in docs/
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The doctor in one file, and what a class needs in another, to be downloaded."""
    with tempfile.TemporaryDirectory() as folder:
        doctor, kit = Path(folder, "doctor.pyz"), Path(folder, "class.zip")
        make = ["make", "-s", "-C", ROOT, kit.name, f"PYTHON={sys.executable}"]
        subprocess.run([*make, f"PYZ={doctor}", f"ZIP={kit}"], check=True)
        for made in (doctor, kit):
            files.append(File.generated(config, made.name, content=made.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    _, _, name = page.file.src_uri.partition("/")
    if about := DESCRIPTION.match(markdown):
        page.meta["description"] = about[1]
    for start, meta in META.items():
        if name.startswith(start):
            page.meta |= meta
    return DESCRIPTION.sub("", markdown, count=1)


@event_priority(-200)  # after i18n, which takes the other language out of it
def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """A list of the pages for assistants, in the form of llmstxt.org."""
    english = config.theme["language"] == "en"
    other = "[中文](../llms.txt)" if english else "[English](en/llms.txt)"
    text = f"# {config.site_name}\n\n> {config.site_description}\n\n{other}\n"
    first = FIRST["en" if english else "zh"].replace("UP", "../" * english)
    text += re.sub(r"EXAMPLES/(\w+\.py)", partial(example, english, config.repo_url or ""), first)
    for above, pages in groupby(nav.pages, lambda page: page.ancestors[-1:]):
        text += "".join(f"\n## {section.title}\n" for section in above) + "\n"
        for page in pages:
            if not (about := DESCRIPTION.match(page.file.content_string)):
                raise SiteError(
                    f"{page.file.src_uri}: no <!-- description: … --> in its first line"
                )
            text += f"- [{page.title}]({page.file.src_uri[3:]}): {about[1]}\n"
    files.append(File.generated(config, f"{'en/' * english}llms.txt", content=text))


def example(depth: int, repo: str, name: re.Match) -> str:
    return file_address(f"docs/examples/convert/{name[1]}", "", repo.rstrip("/"), depth)


# Code, and no heading. To read it and leave it out took the search a fifth of a build.
UNSEARCHED = re.compile(r"<figure[^>]* data-search-exclude.*?</figure>", re.S)


@event_priority(100)  # before the search
def searched(_: dict, page: Page, **__: object) -> None:
    page.whole = page.content
    page.content = UNSEARCHED.sub("", page.content)


@event_priority(-100)
def shown(_: dict, page: Page, **__: object) -> None:
    page.content = page.whole


on_page_context = CombinedEvent(searched, shown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    output = named(output, page.file.src_uri.partition("/")[0])
    output = with_markdown(output, page, config)
    if HOME in output:  # its address says what is chosen: scrolling would put a heading there
        output = output.replace('"navigation.tracking", ', "", 1)
    # On a phone they scroll to the side: by the keyboard, too.
    output = output.replace('class="tabbed-labels"', 'class="tabbed-labels" tabindex="0"')
    # Severities, and what else the doctor begins with; the colour of a mistake is for mistakes.
    output = re.sub(
        r"(?m)(^|<span></span><code>)((WRONG RESULT|HANG AHEAD|结果错误|会卡死)|[A-Z]{4,}|浪费|提示"
        r"|doctor)(?=  \w|: )",
        lambda word: f'{word[1]}<b class="said{" wrong" * bool(word[3])}">{word[2]}</b>',
        output,
    )
    # A flag is not torn at its hyphens where a command wraps.
    output = re.sub(
        r'(?s)<div class="language-bash.+?</pre>',
        lambda block: re.sub(r"(?<=[\s>])(-[\w-]+)", r'<span class="flag">\1</span>', block[0]),
        output,
    )
    # The other language of a home page is "/" or "/en/", which is wrong below a path.
    root = "../" * page.url.count("/") or "./"
    if "data-figure" not in output:  # a third of what a page without figures would load
        output = re.sub(r" *<(script|link)\b[^>]*/figures[/.][^>]*>(</script>)?\n?", "", output)
    output = re.sub(r'href="/((?:en/)?)" hreflang', rf'href="{root}\1" hreflang', output)
    return re.sub(
        r' *<link rel="alternate" href="(.+?)"( hreflang="\w+">\n)',
        lambda found: translation(found, page.canonical_url),
        output,
    )


def with_markdown(output: str, page: Page, config: MkDocsConfig) -> str:
    """Writes the page as Markdown, for assistants, in the tree of docs/, so that links among pages
    hold; its head names that, and the list. The space: see translation()."""
    beside = page.file.src_uri.removeprefix("zh/")
    target = Path(config.site_dir, beside)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(plain(page.markdown, partial(lead, page, config)), "utf-8")
    listed = "en/llms.txt" if beside.startswith("en/") else "llms.txt"
    for kind, place in (("alternate ", beside), ("describedby", listed)):
        link = (
            f'<link rel="{kind}" type="text/markdown" href="{"../" * page.url.count("/")}{place}">'
        )
        output = output.replace("</head>", f"{link}\n</head>", 1)
    return output


def lead(page: Page, config: MkDocsConfig, target: str) -> str:
    """Where a link of a page leads from its Markdown."""
    depth = page.file.src_uri.removeprefix("zh/").count("/")
    path, mark, place = repository_path(page.file.src_uri, target).partition("#")
    if path:
        return file_address(path, mark + place, (config.repo_url or "").rstrip("/"), depth)
    return "../" * depth * target.endswith((".pyz", ".zip")) + target


def named(output: str, language: str) -> str:
    """The search dialog with a name; headings with long names that may break at their humps."""
    name = {"zh": "搜索", "en": "Search"}[language]
    output = output.replace('role="dialog">', f'role="dialog" aria-label="{name}">', 1)
    return re.sub(
        r"(<h[1-4] id=.+?</h[1-4]>)",
        lambda heading: re.sub(r"([a-z]{4})(?=[A-Z][a-z]{3})(?![^<]*>)", r"\1<wbr>", heading[1]),
        output,
    )


def translation(found: re.Match, address: str | None) -> str:
    """A search engine wants whole addresses, or none. The space: below each page that rel=alternate
    names to the letter, Material would look for a site map."""
    if not address:
        return ""
    return f'<link rel="alternate " href="{urljoin(address, found[1])}"{found[2]}'


@event_priority(-200)  # after the plug-in of the languages, which makes one search index of both
def on_post_build(config: MkDocsConfig) -> None:
    """Copies of the files that pages show and link to, and the theme's scripts as they are here.
    Called once for each language: the last time all pages are known."""
    change_scripts(Path(config.site_dir))
    for path in (ROOT / "docs/assets/stylesheets").iterdir():
        Path(config.site_dir, "assets/stylesheets", path.name).write_text(style(path), "utf-8")
    search = Path(config.site_dir, "search")
    parts = split_index(search, searched_words())
    if not config.use_directory_urls:  # from disk a script can be read, and nothing else
        both = ",".join(f"{language}:{text}" for language, text in parts.items())
        script = f"var __index = {{{both}}}[document.documentElement.lang]"
        (search / "search_index.js").write_text(script, encoding="utf-8")
    for path in linked:
        target = Path(config.site_dir, COPIES, f"{path}.txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    linked.clear()  # not before a build: that of English begins inside of that of Chinese


def split_index(folder: Path, searched: dict[str, dict]) -> dict[str, str]:
    """An index for each language: half of the weight, and the number of matches is right. searched:
    tools/site/searched.yml. After the build of the first language there is nothing of the other."""
    index = json.loads((folder / "search_index.json").read_text(encoding="utf-8"))
    left_out = searched["left_out"]
    index["config"]["words"] = {  # for search.js
        "phrases": "|".join(sorted(left_out["zh"].split(), key=len, reverse=True)),
        "leftOut": [*left_out["en"].split(), *left_out["characters"]],
        "said": list(searched["said"].items()),
    }
    index["config"]["fields"]["tags"]["boost"] = 2 * index["config"]["fields"]["title"]["boost"]
    parts = {}
    for language, spoken in (("zh", ["zh", "en"]), ("en", ["en"])):
        prefix = "en/" if language == "en" else ""
        sections = {
            DIRECTORY.sub("/", doc["location"].removeprefix(prefix)).removeprefix("/"): doc
            for doc in index["docs"]
            if doc["location"].startswith("en/") == bool(prefix)
        }
        for place, words in searched["sections"].items() if sections else ():
            if place not in sections:
                raise SiteError(f"tools/site/searched.yml: {prefix}{place} is not there")
            sections[place]["tags"] = words.split()
        part = {"config": {**index["config"], "lang": spoken}, "docs": [*sections.values()]}
        text = parts[language] = json.dumps(part, ensure_ascii=False, separators=(",", ":"))
        (folder / f"{language}.json").write_text(text, encoding="utf-8")
    (folder / "search_index.json").unlink()
    return parts

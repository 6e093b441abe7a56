"""What the pages promise in their source: both languages match, and code comes by links."""

import re
import shlex
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from textwrap import dedent

from tools.site.forms import FENCE, HEADING_ID, by_hand, directive

LANGUAGES = ("zh", "en")
TRANSLATED = {"text", "mermaid", ""}  # fences whose content each language has of its own
HEADING = re.compile(r"^(#{1,6}) .+$")
LINK = re.compile(r"\]\(<?([^)>\s]+)>?[^)]*\)")
CHINESE = re.compile("[\u2e80-\u9fff\uf900-\uffef“”]")

# What a Chinese page does not say: what it says instead, as an engineer does. Once it may explain
# the English word: buffer（缓冲区）.
WORDS = {
    "缓冲区": "buffer",
    "屏障": "barrier",
    "钩子": "hook",
    "微批|micro-step": "micro-batch",
    "损失(?!函数|缩放)": "loss",
    "损失缩放": "loss scaling",
    "预热": "warmup",
    "(?<!同步)批归一化": "BatchNorm",
    "同步批归一化": "SyncBatchNorm",
    "(?<!梯度|激活)检查点": "checkpoint",
    "随机数发生器": "随机数生成器",
    "(?<!分)配方|训练配置": "超参数",
    r"\bcosine\b": "余弦",
    "医生": "doctor",
    "杀死": "杀掉",
    "显卡机器": "有 GPU 的机器",
    "(?<![隐收])藏": "掩盖",
    r"(?<![\w.])\d{1,3}( \d{3})+(?!\w)": "1,000",
    r"\d %": "1%",
}


@dataclass
class Fence:
    classes: list[str]  # ["bash", "run"] of ```bash run; the language is the first
    lines: list[str]
    number: int  # of the line that opens it

    @property
    def language(self) -> str:
        return next(iter(self.classes), "")

    def without_comments(self) -> list[str]:
        """What must be the same in both languages; a command may ask for Chinese."""
        lines = [re.sub(r"(^|\s+)#(?!SBATCH|!).*$| --lang zh", "", line) for line in self.lines]
        return [line.rstrip() for line in lines if line.strip()]


@dataclass
class Page:
    """What is compared. Each entry says what it is: it stands in the error."""

    headings: list[str] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)  # links to code, <div>, <details>...
    fences: list[Fence] = field(default_factory=list)
    links: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)


def without_language(path: str) -> str:
    """Where a name may say the language of a page: results.zh.md on one, results.en.md there."""
    return re.sub(r"\.(zh|en)(?=\.\w+($|[#?\s]))", ".LANGUAGE", path)


def read_page(text: str) -> Page:
    """A page, taken apart; what `make pages` has written is not looked at."""
    page = Page()
    lines = text.splitlines()
    texts: list[str] = []  # of links to code
    fence: Fence | None = None
    for number, line in by_hand(text).items():
        match = FENCE.fullmatch(line)
        if fence is not None:
            if match and not match[3]:
                page.fences.append(fence)
                if fence.language == "python" and "example" not in fence.classes:
                    said = "use a link, or mark it ```python example"
                    page.mistakes.append(f"line {fence.number}: {said}")
                fence = None
            else:
                fence.lines.append(line.strip() if fence.language == "bash" else line)
            continue
        if match:
            fence = Fence(match[3].split(), [], number)
            continue
        if heading := HEADING.match(line):
            found = HEADING_ID.search(line)
            if not found:
                page.mistakes.append(f'line {number}: no id: write {line} <a id="name"></a>')
            page.headings.append(f"{heading[1]} #{found[1] if found else ''}")
        elif link := directive(line):
            page.forms.append(link.title)
            texts.append(link.text)
        elif re.match(r"</?(div|details)\b|<!-- toc|> \[!", line):
            page.forms.append(line)
        if CHINESE.match(line.lstrip(" *")) and CHINESE.match(lines[number - 2].rstrip("*")[-1:]):
            page.mistakes.append(f"line {number}: the break above it would show as a gap")
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z]+:", target):
                page.links[without_language(target)] += 1
    if fence is not None:
        page.mistakes.append(f"line {fence.number}: the fence is never closed")
    twice = [name for name, count in Counter(page.headings + texts).items() if count > 1]
    page.mistakes += [f"{name} is there twice" for name in twice]
    return page


def wrong_words(text: str) -> list[str]:
    """In a Chinese page, its code aside: what stands there, and what should."""
    found = []
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        code ^= bool(FENCE.match(line))
        for wrong, right in WORDS.items() if not code else ():
            prose = re.sub(r"`[^`]*`", "``", line)
            for match in re.finditer(f"(?<!{right}（)(?:{wrong})", prose):
                found.append(f"line {number}: {match[0]}: write {right}")
    return found


def first_difference(zh: list, en: list) -> str:
    odd = [(a, b) for a, b in zip_longest(zh, en, fillvalue="ends") if a != b]
    return f"zh {odd[0][0]}, en {odd[0][1]}" if odd else ""


def compared(zh: Page, en: Page) -> list[str]:
    """Where two twins differ; of each kind the first place only, since the rest follows from it."""
    found = []
    for what, ours, theirs in (
        ("headings", zh.headings, en.headings),
        ("lines", zh.forms, en.forms),
        ("fences", [f.classes for f in zh.fences], [f.classes for f in en.fences]),
    ):
        if odd := first_difference(ours, theirs):
            found.append(f"{what} differ: {odd}")
    for a, b in zip(zh.fences, en.fences, strict=False):
        if a.language in TRANSLATED or a.classes != b.classes:
            continue
        if odd := first_difference(a.without_comments(), b.without_comments()):
            found.append(f"fences at line {a.number} and {b.number} differ: {odd}")
    if odd := (zh.links - en.links) + (en.links - zh.links):
        found.append(f"links are not the same: {', '.join(sorted(odd))}")
    return found


def problems(docs: Path) -> list[str]:
    """Everything that is wrong in the pages, one line each."""
    trees: dict[str, dict[str, Path]] = {}
    for language in LANGUAGES:
        files = (docs / language).rglob("*.md")
        trees[language] = {str(path.relative_to(docs / language)): path for path in files}
    found = []
    for name in sorted(set(trees["zh"]) ^ set(trees["en"])):
        found.append(f"{name}: only in {'zh' if name in trees['zh'] else 'en'}")
    for name in sorted(set(trees["zh"]) & set(trees["en"])):
        twins = [read_page(trees[n][name].read_text(encoding="utf-8")) for n in LANGUAGES]
        for language, page in zip(LANGUAGES, twins, strict=True):
            for mistake in page.mistakes:
                found.append(f"{language}/{name}: {mistake}")
        found += [f"{name}: {difference}" for difference in compared(*twins)]
        text = trees["zh"][name].read_text(encoding="utf-8")
        found += [f"zh/{name}: {mistake}" for mistake in wrong_words(text)]
    return found


def shell_words(line: str) -> list[list[str]]:
    """The words of each simple command in a line, without files that they read or write."""
    line = re.sub(r"\d?[<>]+(&\d| *[\w./-]+)", "", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if re.fullmatch("[|&;]+", word):
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


@dataclass
class Command:
    """A command that a reader may type."""

    words: list[str]
    line: str
    run: bool  # to be run by a test as well, not only parsed
    printed: str = ""  # what the page shows right below it, in a fence of text


def but_rounding(text: str) -> str:
    """Lines as a page and a terminal have both: how far right runs differ is another number on
    another CPU."""
    lines = [re.sub(r"\d+(\.\d+)?e-\d+", "…", line.strip()) for line in text.strip().splitlines()]
    return "\n".join(lines)


def commands(text: str) -> list[Command]:
    """All commands in the shell fences of a page. A variable that a line sets is put in; any other
    stands for a number."""
    found = []
    values: dict[str, str] = {}
    fences = read_page(text).fences
    printed = {f.number: dedent("\n".join(f.lines)) for f in fences if f.language == "text"}
    for fence in fences:
        if fence.language != "bash":
            continue
        own = []
        script = re.sub(r"\\\n\s*", " ", "\n".join(fence.lines))
        for line in script.splitlines():
            whole = re.sub(r"\$(\w+)", lambda match: values.get(match[1], "1"), line)
            for words in shell_words(whole):
                while words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.S)):
                    values[match[1]] = match[2]
                    words = words[1:]
                if words:
                    own.append(Command(words, line.strip(), "run" in fence.classes))
        for last in own[-1:]:
            last.printed = printed.get(fence.number + len(fence.lines) + 3, "")
        found += own
    return found

"""The pictures of the pages that are boxes, arrows and few words, as SVG into docs/assets/images.

    python tools/site/draw.py

Colours of middle brightness read well on light and on dark ground, wherever a picture is shown.
Names of functions need no translation; a picture of more words has a file for each language.
"""

from __future__ import annotations

from html import escape
from itertools import combinations, product
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "docs/assets/images"
CODE = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
BLUE, RUST, GREEN = "#3b6fb6", "#b5562b", "#2f8062"
PURPLE, GOLD, GREY = "#8a5aa8", "#9a7a0a", "#7b8494"
RANKS = (BLUE, RUST, GREEN, PURPLE)
WORD = {BLUE: "#4a80c8", RUST: "#c8602f", GREEN: "#3a8f6f"}  # bare words need lighter tones
# Its marker is the head of an arrow: refX leaves the tip a bit beyond the end of the line.
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" \
role="img" font-family="system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif" font-size="14" \
text-anchor="middle">
<title>{2}</title>
<marker id="head" viewBox="0 0 9 9" refX="7" refY="4.5" markerUnits="userSpaceOnUse" \
markerWidth="9" markerHeight="9" orient="auto"><path d="M0 0L9 4.5L0 9z" fill="#7b8494"/></marker>
"""


class Picture:
    """A drawing in units of about a pixel; y goes down."""

    def __init__(self, title: str) -> None:
        self.title, self.size, self.lines = title, (0, 0), []

    def __str__(self) -> str:
        return HEAD.format(*self.size, escape(self.title)) + "\n".join([*self.lines, "</svg>\n"])

    def add(self, tag: str, words: str | None = None, **attributes: object) -> None:
        """An element; those of its attributes that are None are left out."""
        given = {k.replace("_", "-"): v for k, v in attributes.items() if v is not None}
        start = " ".join([tag, *(f'{k}="{v}"' for k, v in given.items())])
        self.lines.append(f"<{start}/>" if words is None else f"<{start}>{escape(words)}</{tag}>")

    def text(self, x: float, y: float, words: str, fill: str = GREY, **more: object) -> None:
        """Words around x on the base line y."""
        self.add("text", words, x=x, y=y, fill=WORD.get(fill, fill), **more)

    def bold(self, x: float, y: float, words: str, fill: str = GREY, **more: object) -> None:
        self.text(x, y, words, fill, font_weight=600, **more)

    def label(self, y: float, words: str, x: float = 0, **more: object) -> None:
        """Words that begin at the left edge."""
        self.text(x, y, words, text_anchor="start", **more)

    def code(self, x: float, y: float, words: str) -> None:
        self.label(y, words, x, font_family=CODE)

    def box(self, x: float, y: float, w: float, h: float, words: str, fill: str, **more) -> None:
        """A filled box with white words in its middle."""
        self.add("rect", x=x, y=y, width=w, height=h, rx=3, fill=fill)
        self.bold(x + w / 2, y + h / 2 + 5, words, "#fff", **more)

    def frame(self, x: float, y: float, width: float, height: float, stroke: str = GREY) -> None:
        """What belongs together. A grey one is dashed: what is not there."""
        size = {"x": x, "y": y, "width": width, "height": height, "rx": 4, "fill": "none"}
        dash = "3 3" if stroke == GREY else None
        self.add("rect", **size, stroke=stroke, stroke_width=1.5, stroke_dasharray=dash)

    def line(self, x1: float, y1: float, x2: float, y2: float, **more: object) -> None:
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=GREY, stroke_width=1.5, **more)

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.line(x1, y1, x2, y2, marker_end="url(#head)")


def fsdp(p: Picture) -> None:
    """FSDP, line by line: what two ranks hold of two layers. w: parameters, g: gradients."""
    states = (  # what happens, the layer that is whole then, the layers with a gradient
        "| |", "all-gather 1|1|", "forward 1|1|", "free 1||",
        "all-gather 2|2|", "forward 2|2|", "free 2||",
        "all-gather 2|2|", "backward 2|2|2", "reduce-scatter 2||2",
        "all-gather 1|1|2", "backward 1|1|12", "reduce-scatter 1||12", "step||12",
    )  # fmt: skip
    p.size = 492, 476
    for rank in (0, 1):
        p.box(150 + 180 * rank, 0, 162, 22, f"rank {rank}", RANKS[rank])
        for layer in (1, 2):
            p.text(99 + 180 * rank + 88 * layer, 39, f"layer {layer}")
    for row, state in enumerate(states):
        event, whole, gradients = state.split("|")
        y = 48 + 28 * row + 8 * (row > 6)  # a gap before backward
        p.label(y + 17, event, font_weight=600 if "-" in event else None)  # communication
        for rank, layer, piece in product((0, 1), (1, 2), (0, 1)):
            x = 62 + 180 * rank + 88 * layer + 38 * piece
            if piece == rank or str(layer) == whole:
                p.box(x, y, 36, 24, "w g" if str(layer) in gradients else "w", RANKS[piece])
            else:
                p.frame(x + 1, y + 1, 34, 22)
    p.code(150, 470, "g = w.grad")


# For each stage, what it does in each unit of time.
GPIPE = """
F0 F1 F2 F3 .. .. .. .. .. .. B0 B1 B2 B3
.. F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3 ..
.. .. F0 F1 F2 F3 .. .. B0 B1 B2 B3 .. ..
.. .. .. F0 F1 F2 F3 B0 B1 B2 B3 .. .. .."""
ONE_F_ONE_B = """
F0 F1 F2 F3 .. .. .. B0 .. B1 .. B2 .. B3
.. F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3 ..
.. .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 .. ..
.. .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. .. .."""


def pipeline(p: Picture) -> None:
    """GPipe and 1F1B; on the right, of how many micro-batches a stage keeps activations."""
    p.size = 560, 332
    p.text(293, 16, "F forward, B backward")
    for top, name, stages in ((0, "GPipe", GPIPE), (168, "1F1B", ONE_F_ONE_B)):
        p.label(top + 16, name, font_weight=600)
        p.text(560, top + 16, "activations", text_anchor="end")
        for stage, events in enumerate(stages.split("\n")[1:]):
            y = top + 26 + 32 * stage
            p.label(y + 19, f"stage {stage}")
            for unit, event in enumerate(events.split()):
                x = 62 + 33 * unit
                if event == "..":
                    p.frame(x + 1, y + 1, 29, 26)
                else:
                    p.box(x, y, 31, 28, event, BLUE if event[0] == "F" else GREEN)
            p.bold(543, y + 19, str(4 if top == 0 else 4 - stage), RUST)
    p.arrow(62, 326, 524, 326)
    p.text(538, 330, "t")


def tensor_parallel(p: Picture) -> None:
    """relu(x A) B on two ranks, A cut by columns and B by rows."""
    p.size = 530, 234
    for rank in (0, 1):
        middle, colour, digit = 56 + 122 * rank, RANKS[rank], "₀₁"[rank]
        high = middle - 20
        p.label(middle + 5, f"rank {rank}")
        p.box(58, high, 40, 40, "x", PURPLE)
        p.box(116 + 42 * rank, high, 40, 40, f"A{digit}", colour)
        p.frame(117 + 42 * (1 - rank), high + 1, 38, 38)
        p.arrow(202, middle, 242, middle)
        p.text(219, middle - 9, "relu")
        p.box(248, high, 40, 40, f"h{digit}", colour)
        p.box(306, high - 21 + 42 * rank, 40, 40, f"B{digit}", colour)
        p.frame(307, high - 20 + 42 * (1 - rank), 38, 38)
        p.box(364, high, 40, 40, f"y{digit}", colour)
        for x, sign in ((107, "×"), (297, "×"), (355, "=")):
            p.text(x, middle + 5, sign)
        p.arrow(406, middle, 422, middle)
        p.arrow(458, middle, 474, middle)
        p.box(478, high, 52, 40, "y₀+y₁", GOLD)
    p.box(424, 10, 32, 214, "all-reduce", RUST, transform="rotate(-90 440 117)")


def mesh(p: Picture) -> None:
    """A device mesh: each row and each column of ranks is a group."""
    p.size = 480, 278
    p.code(0, 16, 'init_device_mesh("cuda", (2, 4),')
    p.code(136, 38, 'mesh_dim_names=("replicate", "shard"))')
    for column in range(4):
        p.frame(83 + 84 * column, 60, 58, 176, RUST)
    for row in (0, 1):
        y = 78 + 84 * row
        p.label(y + 29, f"node {row}")
        p.frame(62, y - 7, 352, 62, BLUE)
        p.bold(446, y + 29, "shard", BLUE)
        for column in range(4):
            p.box(91 + 84 * column, y, 42, 48, str(4 * row + column), GREEN)
    p.bold(238, 258, "replicate", RUST)


def store(p: Picture) -> None:
    """First all talk to the table in rank 0, then to each other."""
    p.size = 540, 236
    p.bold(128, 16, "1. set, get")
    p.frame(4, 36, 130, 168, BLUE)
    p.bold(69, 58, "rank 0", BLUE)
    p.arrow(69, 66, 69, 95)
    p.box(18, 98, 102, 44, "TCPStore", GOLD)
    p.code(4, 226, "MASTER_ADDR:MASTER_PORT")
    for rank in (1, 2, 3):
        y = 64 * rank - 28
        p.box(194, y, 66, 40, f"rank {rank}", RANKS[rank])
        p.arrow(192, y + 20, 123, 88 + 16 * rank)
    p.bold(430, 16, "2. all-reduce, send, …")
    places = [(330, 36), (464, 36), (330, 164), (464, 164)]
    for (x1, y1), (x2, y2) in combinations(places, 2):
        p.line(x1 + 33, y1 + 20, x2 + 33, y2 + 20)
    for rank, (x, y) in enumerate(places):
        p.box(x, y, 66, 40, f"rank {rank}", RANKS[rank])


def join(p: Picture) -> None:
    """Three batches on rank 0, five on rank 1, without Join and with it."""
    p.size = 520, 318
    for top, head, last in ((0, "for batch in loader:", 4), (160, "with Join([model]):", 5)):
        p.code(0, top + 16, head)
        for rank, batches in ((0, 3), (1, last)):
            y = top + 32 + 48 * rank
            p.label(y + 25, f"rank {rank}")
            for step in range(batches):
                p.box(60 + 92 * step, y, 42, 40, str(step + 1), BLUE)
        for step in range(5 if top else 3):
            p.box(104 + 92 * step, top + 32, 34, 88, "Σ/2", RUST)
    p.box(380, 80, 34, 40, "Σ", RUST)
    p.bold(454, 105, "timeout", RUST)
    p.label(308, "grad")
    for step, gradient in enumerate(("1.0", "1.0", "1.0", "0.5", "0.5")):
        p.bold(121 + 92 * step, 308, gradient, GREY if step < 3 else RUST)
        if step > 2:
            p.frame(61 + 92 * step, 193, 40, 38)
            p.text(81 + 92 * step, 217, "0")


def no_sync(p: Picture) -> None:
    """Four micro-batches and one step, without no_sync and with it."""
    p.size = 560, 256
    for top, quiet in ((0, False), (128, True)):
        p.label(top + 52, "GPU")
        p.label(top + 88, "all-reduce")
        x = 78
        for part in range(4):
            p.box(x, top + 32, 34, 30, f"F{part}", BLUE)
            p.box(x + 36, top + 32, 44, 30, f"B{part}", GREEN)
            if sends := part == 3 or not quiet:
                p.box(x + 52, top + 68, 50, 30, "ΣB" if quiet else f"B{part}", RUST)
            x += 104 if sends else 82
        p.box(x, top + 32, 44, 30, "step", PURPLE)
    p.code(78, 16, "loss.backward()")
    p.code(78, 144, "with model.no_sync():")
    p.line(78, 151, 322, 151)
    p.arrow(78, 248, 540, 248)
    p.text(550, 252, "t")


def buckets(p: Picture) -> None:
    """Gradients beside the buckets, or in them. The last layer is ready first."""
    p.size = 440, 312
    parts = ((76, 66, "4.bias"), (144, 96, "4.weight"), (264, 66, "2.bias"), (332, 96, "2.weight"))
    for view, top in ((False, 112), (True, 238)):
        for number, x in ((0, 70), (1, 258)):
            p.frame(x, top - 6, 176, 44, RUST)
            p.bold(x + 88, top + 58, f"bucket {number}: all-reduce", RUST)
        for x, width, name in parts:
            p.box(x, top, width, 32, name, GREEN if view else RUST)
    for x, width, name in parts:
        p.box(x, 32, width, 32, name, GREEN)
        p.arrow(x + width / 2 - 9, 68, x + width / 2 - 9, 102)
        p.arrow(x + width / 2 + 9, 102, x + width / 2 + 9, 68)
    for top, words in ((32, "p.grad"), (69, "copy"), (238, "p.grad =")):
        p.label(top + 21, words)
    p.code(0, 16, "gradient_as_bucket_view=False")
    p.code(0, 216, "gradient_as_bucket_view=True")


def strides(p: Picture) -> None:
    """One memory, two shapes."""
    p.size = 480, 340
    for x, name, right, down, height in ((54, "m", 1, 3, 76), (302, "m.t()", 3, 1, 114)):
        p.code(x, 16, name)
        p.code(x, 172, f"stride ({down}, {right})")
        p.arrow(x, 36, x + 74, 36)
        p.bold(x + 90, 40, f"+{right}")
        p.arrow(x - 10, 44, x - 10, 44 + height)
        p.bold(x - 30, 48 + height / 2, f"+{down}")
    for x1, x2 in ((130, 180), (340, 290)):
        p.arrow(x1, 184, x2, 216)
    p.code(0, 245, "storage")
    p.code(0, 321, "m.t().contiguous()")
    rows = ((54, 44, "012"), (54, 82, "345"), (302, 44, "03"), (302, 82, "14"), (302, 120, "25"))
    for x, y, row in (*rows, (124, 222, "012345"), (196, 298, "031425")):
        for column, number in enumerate(row):
            p.box(x + 38 * column, y, 36, 36, number, BLUE if number < "3" else RUST)


def shares(p: Picture) -> None:
    """The order of an epoch (12 images, seed 0), dealt to two ranks."""
    order = [8, 0, 5, 9, 7, 4, 2, 10, 3, 1, 11, 6]
    p.size = 520, 234
    for y, words in ((55, "epoch 0"), (151, "rank 0"), (207, "rank 1")):
        p.label(y, words)
    for n, image in enumerate(order):
        left, place, rank = 68 + 152 * (n // 4), n % 4, n % 2
        p.box(left + 36 * place, 34, 34, 32, str(image), RANKS[rank])
        p.box(left + 36 + 36 * (place // 2), 130 + 56 * rank, 34, 32, str(image), RANKS[rank])
    for step, left in enumerate((68, 220, 372)):
        p.bold(left + 71, 16, f"step {step}")
        p.frame(left - 3, 29, 148, 42, PURPLE)
        p.arrow(left + 71, 75, left + 71, 120)
        for rank in (0, 1):
            p.frame(left + 31, 125 + 56 * rank, 80, 42, RANKS[rank])
    p.code(156, 102, "order[rank::2]")


WORDS = {
    "en": ("batch, part {}", "process {}", "model copy", "gradients", "step",
           "all-reduce: the average of all gradients",
           "All take the same step, so the copies stay equal."),
    "zh": ("batch 的第 {} 份", "进程 {}", "模型副本", "梯度", "更新",
           "all-reduce：所有进程的梯度取平均",
           "每个进程做同样的更新，各个副本始终相同。"),
}  # fmt: skip


def ddp(p: Picture, language: str) -> None:
    """DDP: N processes, each with a copy of the model; gradients are averaged."""
    part, process, model, gradients, step, average, equal = WORDS[language]
    p.size = 520, 370
    p.code(112, 16, "torchrun --nproc-per-node N main.py")
    for number, left, colour in (("0", 0, BLUE), ("1", 168, RUST), ("N−1", 362, GREEN)):
        p.box(left, 30, 158, 32, part.format(number), colour)
        p.arrow(left + 60, 64, left + 60, 90)
        p.frame(left + 1, 92, 156, 170, colour)
        p.bold(left + 79, 114, process.format(number), colour)
        p.text(left + 79, 132, f"GPU {number}", colour)
        p.box(left + 10, 144, 100, 36, model, PURPLE)
        p.arrow(left + 60, 182, left + 60, 210)
        p.box(left + 10, 212, 100, 36, gradients, colour)
        p.arrow(left + 60, 250, left + 60, 288)
        p.line(left + 120, 290, left + 120, 162)
        p.arrow(left + 121, 162, left + 111, 162)
        p.text(left + 139, 201, step)
    for y in (51, 172):
        p.text(344, y, "…", font_size=20)
    p.box(0, 290, 520, 38, average, GOLD)
    p.text(260, 356, equal)


def pictures() -> dict[str, str]:
    """All files, by name."""
    alone = (fsdp, pipeline, tensor_parallel, mesh, store, join, no_sync, buckets, strides, shares)
    made = {}
    for draw, *more in [*((each,) for each in alone), (ddp, "en"), (ddp, "zh")]:
        picture = Picture(draw.__doc__.rstrip("."))
        draw(picture, *more)
        made[".".join([draw.__name__.replace("_", "-"), *more, "svg"])] = str(picture)
    return made


if __name__ == "__main__":
    for name, content in pictures().items():
        (IMAGES / name).write_text(content, encoding="utf-8")

"""09: the same training on any mesh of ranks, its text and its flags. Checkpoints and stops:
test_language_model_resume.py.
"""

import ast
import gzip
import json
import math
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy
import pytest
import torch
from crew import Crew, call_main
from harness import ROOT, default_processes, load_chapter, rows, run
from plain_language_model import LM, SHAPE, TRAIN, furthest, main_as, plain_training, weights_of
from refusals import one_line
from tiers import table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from warm import run_warm


def train(crew: Crew, ranks: int, argv: list, dtype: torch.dtype = torch.float64) -> list[dict]:
    words = [str(word) for word in argv]
    answers = crew.run(main_as, dtype, words, world_size=ranks)
    assert all(answer["exit"] is None for answer in answers), answers
    return answers


# Ranks and flags.
MESHES = {
    "1": (1, []),
    "shard": (2, ["--accumulate", 2]),
    "replicas": (2, ["--replicas", 2, "--accumulate", 2]),
    "sequence": (2, ["--sequence", 2]),
    "tensor": (2, ["--tensor", 2]),
    "replicas x shard": (4, ["--replicas", 2, "--accumulate", 2]),
    "replicas x sequence": (4, ["--replicas", 2, "--sequence", 2]),
    "replicas x tensor": (4, ["--replicas", 2, "--tensor", 2]),
    "shard x sequence": (4, ["--sequence", 2, "--accumulate", 2, "--recompute"]),
    "shard x tensor": (4, ["--tensor", 2]),
    "sequence x tensor": (4, ["--sequence", 2, "--tensor", 2]),
    "all": (8, ["--replicas", 2, "--shard", 1, "--sequence", 2, "--tensor", 2]),
    "all but replicas": (
        8,
        ["--sequence", 2, "--tensor", 2, "--accumulate", 2, "--recompute", "--clip-grad", 0.1],
    ),
}


@pytest.fixture(scope="module")
def large_crew() -> Iterator[Crew]:
    with Crew(8) as crew:
        yield crew


@pytest.mark.parametrize("case", table(MESHES, ["shard x sequence"]))
def test_trains_as_one_process_would(case: str, large_crew: Crew, tmp_path: Path) -> None:
    """After five steps of AdamW with clipping, in float64; losses and evaluation too, with half as
    many heads of keys where they divide. Clipping changes each of these steps."""
    ranks, flags = MESHES[case]
    argv = [*TRAIN, *map(str, flags)]
    argv += [] if case.startswith("all") else ["--key-heads", "2"]
    if "sequence x tensor" in case:
        argv[-1] = "4"
    train(large_crew, ranks, [*argv, "--output-dir", tmp_path])
    expected, losses, last = plain_training(argv)
    difference = furthest(weights_of(tmp_path), expected)
    print(f"{case}: {difference:.1e}")
    assert difference < 1e-10
    told = rows(tmp_path, "train")
    assert [row["loss"] for row in told] == pytest.approx(losses, rel=1e-10)
    assert all(row["grad_norm"] > 1 for row in told)
    flops = flops_counted(argv)[0] / 1e12  # those of the model: no rank's, and none twice
    for row in told:
        assert row["model_tflops_per_second"] == pytest.approx(flops * row["tokens_per_second"])
    (row,) = rows(tmp_path, "eval")
    assert row["loss"] == pytest.approx(last, rel=1e-10)


def flops_counted(argv: list[str], frozen: str = " ") -> tuple[int, int, int]:
    """Of a token, in a step of one process, whose weights of such names are frozen: what the
    chapter says, what torch counts in products of matrices, and the weights of norms."""
    chapter = load_chapter(LM)
    args = chapter.build_parser().parse_args(argv)
    model, places = chapter.build_model(args, 256), torch.arange(args.context)
    norms = 0
    for name, weight in model.named_parameters():
        weight.requires_grad_(frozen not in name)
        norms += weight.numel() * (weight.dim() == 1)
    windows = torch.arange(2 * args.context + 2).view(2, -1)
    # This attention computes what the formula has; a fused one computes a part again.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        chapter.losses(model, windows, places).mean().backward()
    counted = counter.get_total_flops() // (2 * args.context)
    return chapter.flops_of_token(args, model), counted, norms


def test_flops_of_a_token() -> None:
    """To the operation what torch counts, with 6 for each weight of a norm, which is no matrix and
    of which the formula knows nothing: 0.4 % here, less in wider models. Of frozen layers, through
    which gradients go, a third less."""
    argv = [*SHAPE, "--synthetic", "--key-heads", "2"]
    said, counted, norms = flops_counted(argv)
    assert (said - counted, norms) == (6 * norms, 5 * 32)
    frozen, fewer, _ = flops_counted(argv, ".gate.")
    assert said - frozen == counted - fewer == 2 * 2 * 32 * 128


def test_evaluation_is_exact(crew: Crew, tmp_path: Path) -> None:
    """On one, two and three ranks, of which some have no window left in the last call; and what
    each window counts is what it holds."""
    argv = [*TRAIN, "--steps", "1", "--batch-size", "12", "--eval-windows", "7"]
    found = []
    for ranks in (1, 2, 3):
        train(crew, ranks, [*argv, "--output-dir", tmp_path / str(ranks)])
        [row] = rows(tmp_path / str(ranks), "eval")
        found.append([row[name] for name in ("loss", "perplexity", "bits_per_byte", "tokens")])
    chapter = load_chapter(LM)
    data = chapter.synthetic_text(3000)
    first = (187 - 187 // 20) * 16 + 1  # the first target of the 9 windows to evaluate
    text = sum(byte != 0 for byte in data[first : first + 7 * 16])
    for loss, perplexity, bits, tokens in found:
        assert tokens == 7 * 16 and perplexity == pytest.approx(math.exp(loss))
        assert loss == pytest.approx(found[0][0], rel=1e-12)
        assert bits == pytest.approx(loss * tokens / math.log(2) / text)


def test_bfloat16(crew: Crew, tmp_path: Path) -> None:
    """It trains in other numbers, close to the first ones, and keeps its weights in 32 bits."""
    found = []
    for flags in ([], ["--bf16"]):
        folder = tmp_path / str(len(flags))
        train(crew, 2, [*TRAIN, *flags, "--output-dir", folder], torch.float32)
        found.append(rows(folder, "eval")[0]["loss"])
    assert found[0] != found[1] and math.isclose(*found, rel_tol=0.02), found
    assert {weight.dtype for weight in weights_of(folder).values()} == {torch.float32}


def test_rotary_positions() -> None:
    """What queries and keys have in common depends on how far apart they stand, and on nothing
    else of where; lengths stay."""
    chapter = load_chapter(LM)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=generator, dtype=torch.float64).expand(
        2, 1, 1, 9, 8
    )
    angles = torch.arange(9.0, dtype=torch.float64)[:, None] * 10_000 ** -(torch.arange(4.0) / 4)
    angles = torch.stack([angles.cos(), angles.sin()])
    q, k = chapter.rotate(q, angles)[0, 0], chapter.rotate(k, angles)[0, 0]
    common = q @ k.T
    for offset in range(-8, 9):
        diagonal = common.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert common[0].unique().numel() == 9
    torch.testing.assert_close(q.norm(dim=-1), q[:1].norm(dim=-1).expand(9))


def test_no_place_sees_what_is_behind_it() -> None:
    chapter = load_chapter(LM)
    args = chapter.build_parser().parse_args(TRAIN)
    model, places = chapter.build_model(args, 256), torch.arange(16)
    tokens = torch.arange(16)[None]
    other = tokens.clone()
    other[0, 9] = 77
    same = (model(tokens, places) == model(other, places)).all(-1)[0]
    assert same[:9].all() and not same[9:].any()


# ---- text ----
def test_order_is_a_permutation() -> None:
    """Of any number of windows; another one in each epoch and for each seed; neighbours part."""
    shuffled = load_chapter(LM).shuffled
    for count in (*range(1, 40), 257, 1000):
        order = [shuffled(number, count, 0, 0) for number in range(count)]
        assert sorted(order) == list(range(count))
    others = [[shuffled(n, 1000, *key) for n in range(1000)] for key in ((0, 1), (1, 0), (1, 1))]
    for other in others:
        assert sum(a == b for a, b in zip(order, other, strict=True)) < 10
    beside = sum(abs(a - b) == 1 for a, b in zip(order, order[1:], strict=False))
    assert beside < 10
    assert 0 <= shuffled(10**11, 2 * 10**11, 3, 4) < 2 * 10**11


TEXTS = ["Ada \0 and\nBen\n", "zwölf Füchse", "eins", "zwei", "drei", "vier", "fünf", "sechs"]


def text_folder(folder: Path) -> bytes:
    """Texts of each kind; and the bytes of all of them in the order of names, each with its end."""
    folder.mkdir()
    (folder / "a.txt").write_text(TEXTS[0])
    (folder / "below").mkdir()
    (folder / "below/b.md").write_text(TEXTS[1])
    lines = [json.dumps({"text": text}) for text in TEXTS[2:4]]
    with gzip.open(folder / "c.jsonl.gz", "wt") as file:
        file.write("\n".join([lines[0], "", lines[1]]))
    (folder / "d").write_text("no text by its name")
    inside = folder.parent / "inside"
    inside.mkdir()
    (inside / "1.txt").write_text(TEXTS[4])
    (inside / "2.jsonl").write_text(json.dumps({"text": TEXTS[5], "n": 1}) + "\n")
    (inside / "3.txt").write_text(TEXTS[6])
    (inside / "4.png").write_bytes(b"\x89PNG")
    with gzip.open(inside / "5.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": TEXTS[7]}))
    with tarfile.open(folder / "e.tar", "w") as archive:
        for path in sorted(inside.iterdir()):
            archive.add(path, path.name)
    return b"".join(text.replace("\0", " ").encode() + b"\0" for text in TEXTS)


def row_of(argv: list[str], part: int) -> bytes | torch.Tensor:
    """What --data is tokenized to, in parts of so many bytes of text: bytes, or a tensor."""
    chapter = load_chapter(LM)
    args = chapter.build_parser().parse_args(argv)
    coder = chapter.build_coder(args)
    with mock.patch.object(chapter, "PART", part):
        row = chapter.tokenized(args, args.data, coder, 0, 1)
    return bytes(row.read(0, len(row)).tolist()) if row.width == 1 else row.read(0, len(row))


def test_kinds_of_text(tmp_path: Path) -> None:
    """Text, jsonl and tars of both, also packed, become one row of bytes, in whatever parts; and a
    read over the ends of parts is that of the row."""
    expected = text_folder(tmp_path / "text")
    argv = ["--data", str(tmp_path / "text"), "--tokens", str(tmp_path / "tokens")]
    for part in (1, 30, 1 << 20):
        assert row_of(argv, part) == expected
    assert len(list((tmp_path / "tokens").glob("*/*.bin"))) == 4 + 2 + 1


def test_what_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """It is counted by endings, in tars too, and said: also when the tokens are there."""
    text_folder(tmp_path / "text")
    for name in ("f.json.gz", "below/g.JSON", "h.tar.zst", "i.v2.json.gz"):
        (tmp_path / "text" / name).touch()
    chapter = load_chapter(LM)
    argv = ["--data", str(tmp_path / "text"), "--tokens", str(tmp_path / "tokens")]
    args = chapter.build_parser().parse_args(argv)
    for _ in range(2):
        made_of = chapter.tokenized(args, args.data, chapter.Coder(), 0, 1).made_of
        assert (made_of["files"], made_of["texts"]) == (4, len(TEXTS))
        expected = {".json.gz": 2, ".JSON": 1, ".tar.zst": 1, ".png": 1, "no ending": 1}
        assert made_of["skipped"] == expected
        [line] = capsys.readouterr().out.splitlines()
        assert "text: not read are 2 .json.gz, 1 " in line and "1 .png" in line


def test_nothing_in_the_files(tmp_path: Path) -> None:
    """An empty text is one, which ends at once; what is empty of others has none."""
    (tmp_path / "text").mkdir()
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / "text" / name).touch()
    tarfile.open(tmp_path / "text/c.tar", "w").close()
    argv = ["--data", str(tmp_path / "text"), "--tokens", str(tmp_path / "tokens")]
    assert row_of(argv, 1) == b"\0"


def test_other_text_key(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.jsonl").write_text('{"content": "eins", "text": "zwei"}\n')
    argv = ["--data", str(tmp_path / "text"), "--tokens", str(tmp_path / "tokens")]
    assert row_of(argv, 1) == b"zwei\0"
    assert row_of([*argv, "--text-key", "content"], 1) == b"eins\0"


def test_tokenizer(tmp_path: Path) -> None:
    """Its numbers, two bytes each, each text with its end; bytes are counted as those of the
    text."""
    tokenizers = pytest.importorskip("tokenizers")
    text_folder(tmp_path / "text")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(["eins zwei drei vier"] * 9, trainer)
    tokenizer.enable_truncation(2)  # as those of models that read 512 tokens have it
    tokenizer.enable_padding()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    argv = ["--data", str(tmp_path / "text"), "--tokens", str(tmp_path / "tokens")]
    argv += ["--tokenizer", str(tmp_path / "tokenizer.json")]
    row = row_of(argv, 30)
    texts = [text.encode() for text in TEXTS]
    assert (row == 0).sum() == len(TEXTS) and len(row) < sum(map(len, texts))
    chapter = load_chapter(LM)
    coder = chapter.build_coder(chapter.build_parser().parse_args(argv))
    assert coder.decode(row.tolist()) == "".join(TEXTS)
    assert coder.count_bytes(row) == sum(map(len, texts))
    argv = ["--synthetic", "3000", "--context", "16", *argv[4:], "--batch-size", "1"]
    train, _, _ = chapter.build_data(chapter.build_parser().parse_args(argv), 0, 1)
    row = train.row.read(0, len(train.row))
    assert coder.decode(row.tolist()).encode() == chapter.synthetic_text(3000).replace(b"\0", b"")


def test_tokenizer_with_gaps(tmp_path: Path) -> None:
    """The model has a row for its largest number; a text that it cannot encode is one line."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"eins": 3, "<|endoftext|>": 99}, unk_token="none")
    tokenizers.Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    chapter = load_chapter(LM)
    argv = ["--data", "text", "--tokenizer", str(tmp_path / "tokenizer.json")]
    coder = chapter.build_coder(chapter.build_parser().parse_args(argv))
    assert coder.size == 100 and coder.padded == 128
    with pytest.raises(SystemExit, match="error: --tokenizer cannot encode a text"):
        coder.encode(["zwei"])
    for beside, hint in (
        ({}, "NAME, of the one that ends a text"),
        ({"eos_token": "<e>"}, "'<e>'"),
        ({"eos_token": {"content": "</s>"}}, "'</s>'"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(beside))
        with pytest.raises(SystemExit, match=f"no token '<end>': add --end-token {hint}$"):
            chapter.FileCoder(tmp_path / "tokenizer.json", "<end>")


def test_numbers_above_half() -> None:
    """Tokens of two bytes have no sign; those of four are read as they are."""
    row = load_chapter(LM).Row
    for width, kind in ((2, "<u2"), (4, "<u4")):
        numbers = numpy.array([1, 40_000, 65_535], kind)
        assert row([numbers.tobytes()], width).read(1, 2).tolist() == [40_000, 65_535]


def test_made_once(tmp_path: Path) -> None:
    """Files of tokens that are there stay; one that a kill has left out is made; a tokenizer, or
    texts of other sizes, have a folder of their own."""
    text_folder(tmp_path / "text")
    argv = ["--data", str(tmp_path / "text"), "--tokens", str(tmp_path / "tokens")]
    row_of(argv, 1)
    files = sorted((tmp_path / "tokens").glob("*/*.bin"))
    before = [path.stat().st_mtime_ns for path in files]
    files[1].with_suffix(".json").unlink()
    row_of(argv, 1)
    after = [path.stat().st_mtime_ns for path in files]
    assert [a != b for a, b in zip(before, after, strict=True)] == [False, True, False, False]
    (tmp_path / "text/a.txt").write_text("longer than it was before")
    row_of(argv, 1)
    assert len(list((tmp_path / "tokens").iterdir())) == 2


def test_ranks_make_parts_together(crew: Crew, tmp_path: Path) -> None:
    """Each some, and all wait for all: two ranks train on the same files as one."""
    text_folder(tmp_path / "text")
    (tmp_path / "text/long.txt").write_text("Ada counts to a hundred. " * 200)
    argv = [*SHAPE, "--data", str(tmp_path / "text"), "--batch-size", "8", "--steps", "2"]
    found = []
    for ranks in (2, 1):
        more = [
            "--tokens",
            str(tmp_path / f"of{ranks}"),
            "--output-dir",
            str(tmp_path / f"{ranks}"),
        ]
        answers = crew.run(main_as, torch.float64, [*argv, *more], {"PART": 1}, world_size=ranks)
        assert [answer["exit"] for answer in answers] == [None] * ranks, answers
        found.append(weights_of(tmp_path / f"{ranks}"))
        files = sorted((tmp_path / f"of{ranks}").glob("*/*"))
        assert len(files) == 2 * 5 and not [path for path in files if path.suffix == ".tmp"]
    assert furthest(*found) < 1e-10


def test_two_hundred_gigabytes(crew: Crew, tmp_path: Path) -> None:
    """Files with holes: a run begins, as nothing is read but the windows of its steps, and nothing
    is kept for each of 12 billion windows."""
    chapter = load_chapter(LM)
    (tmp_path / "text").mkdir()
    for number in range(4):
        with (tmp_path / f"text/{number}.txt").open("wb") as file:
            file.truncate(50 * 10**9)
    parts, _ = chapter.list_parts(tmp_path / "text")
    names = [(str(p.relative_to(tmp_path / "text")), size) for part in parts for p, size in part]
    folder = tmp_path / "tokens" / chapter.name_of(names, chapter.Coder(), "text")
    folder.mkdir(parents=True)
    for number in range(4):
        with (folder / f"{number:05}.bin").open("wb") as file:
            file.truncate(50 * 10**9)
        told = {"size": 50 * 10**9, "checksum": number}
        (folder / f"{number:05}.json").write_text(json.dumps(told))
    argv = [*SHAPE, "--data", tmp_path / "text", "--tokens", tmp_path / "tokens"]
    argv += ["--batch-size", 4, "--steps", 2, "--eval-windows", 4, "--output-dir", tmp_path / "run"]
    train(crew, 2, argv, torch.float32)
    [begun] = rows(tmp_path / "run", "start")
    assert begun["tokens"] > 189e9 and begun["steps_per_epoch"] > 2.9e9
    # Two ranks share out four sequences of 16 tokens, and each weight with its gradient and Adam's.
    assert (begun["tokens_per_step"], begun["tokens_per_rank"]) == (64, 32)
    sizes = begun["megabytes_per_rank"]
    assert sizes["optimizer"] == 2 * sizes["gradients"] == 2 * sizes["weights"]
    assert sizes["weights"] == pytest.approx(4 * begun["parameters"] / 2 / 1e6)


# ---- refusals ----
def refused(crew: Crew, argv: list, ranks: int, cwd: Path) -> list[str]:
    words = [str(word) for word in argv]
    return [one_line(one) for one in crew.run(in_folder, words, cwd, world_size=ranks)]


def in_folder(argv: list[str], cwd: Path) -> dict:
    os.chdir(cwd)
    return call_main(LM, argv)


# Ranks, flags that replace others, and what the line says.
MISTAKES = {
    "product": (2, ["--replicas", "2", "--sequence", "2"], "is 4 ranks: 2 were started"),
    "shard": (2, ["--shard", "1"], "is 1 ranks: 2 were started"),
    "batch": (
        2,
        ["--batch-size", "7"],
        "(2 groups of ranks x --accumulate 1): use 6 or 8",
    ),
    "micro": (2, ["--accumulate", "3"], "multiple of 6"),
    "heads": (1, ["--heads", "5"], "--width must be a multiple of twice the 5 heads"),
    "key heads": (1, ["--key-heads", "3"], "--heads must be a multiple of the 3 of --key-heads"),
    "fewer keys": (
        2,
        ["--key-heads", "1", "--sequence", "2"],
        "1 heads of keys do not divide",
    ),
    "context": (2, ["--context", "15", "--sequence", "2"], "--context must be a multiple"),
    "rate": (1, ["--lr", "nan"], "--lr nan is out of range"),
    "text": (1, ["--synthetic", "100"], "fewer than --batch-size 8"),
    "short": (1, ["--synthetic", "10"], "0 sequences of 16 tokens"),
    "val": (1, ["--val", "."], "--val goes with --data"),
    "nothing": (1, ["--synthetic", "0"], "--synthetic 0 is out of range"),
    "evaluate": (1, ["--evaluate"], "--evaluate needs weights: add --resume, --resume PATH or"),
    "weights": (1, ["--weights", "none.pt"], "cannot read --weights none.pt"),
    "overwritten": (
        1,
        ["--weights", "x/../run/model.pt", "--output-dir", "run"],
        "--weights x/../run/model.pt would be overwritten: use another --output-dir",
    ),
    "path": (1, ["--resume", "other"], "--resume: other/checkpoints.json names no checkpoint"),
    "tokenizer": (1, ["--tokenizer", "none.json"], "--tokenizer"),
    "flag": (1, ["--stepps", "3"], "unrecognized arguments: --stepps"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case: str, crew: Crew, tmp_path: Path) -> None:
    """One line on every rank, and no folder with anything in it."""
    ranks, flags, words = MISTAKES[case]
    for line in refused(crew, [*TRAIN, *flags], ranks, tmp_path):
        assert words in line
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_mistakes_in_data(crew: Crew, tmp_path: Path) -> None:
    """Each is one line that names the file."""
    argv = [*TRAIN, "--data", "text"]
    argv[argv.index("--synthetic") : argv.index("--synthetic") + 2] = []

    def line() -> str:
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        return refused(crew, argv, 1, tmp_path)[0]

    assert "there is no folder text" in line()
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.csv").write_text("a,b")
    assert "text has no text: not read are 1 .csv; read are .txt, .md, .jsonl, .tar" in line()
    (tmp_path / "text/c4.json.gz").touch()
    assert "not read are 1 .csv, 1 .json.gz (to .jsonl rename what has JSON in each" in line()
    with tarfile.open(tmp_path / "text/b.tar", "w") as archive:
        archive.add(tmp_path / "text/a.csv", "a.csv")
    (tmp_path / "text/a.txt").write_text("text " * 999)  # which would be enough
    assert "text/b.tar: b.tar has no text: not read are 1 .csv; read are .txt" in line()
    (tmp_path / "text/b.tar").unlink()
    (tmp_path / "text/a.txt").write_bytes(b"\xff\xfe\x00")
    assert "cannot read text of text/a.txt: a.txt is not UTF-8: 'utf-8' codec" in line()
    (tmp_path / "text/a.txt").unlink()
    for content in (
        '{"text": "a"}\n{"te',
        '{"text": "a"}\n{"text": "\\ud83d"}',
        "\n" + "[" * 99999,
    ):
        (tmp_path / "text/a.jsonl").write_text(content)
        assert "cannot read text of text/a.jsonl: line 2 of a.jsonl has no text 'text'" in line()
    (tmp_path / "text/a.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
    assert "line 2 of a.jsonl has no text 'text'" in line()
    (tmp_path / "text/a.jsonl").unlink()
    for content in (b"no tar at all" * 99, b""):
        (tmp_path / "text/a.tar").write_bytes(content)
        assert "cannot read text of text/a.tar" in line()
    (tmp_path / "text/a.tar").unlink()
    data = bytearray(gzip.compress(b"Ada has no apples. " * 99))
    for cut in (data[:-20], data[:20] + b"\xff" * 40, b"no gzip"):
        (tmp_path / "text/a.txt.gz").write_bytes(cut)
        assert "cannot read text of text/a.txt.gz" in line()
    assert not list(tmp_path.rglob("*.tmp"))
    for flags, words in (
        (["--output-dir", "text/run"], "--output-dir text/run lies in --data"),
        (["--val", "text/part"], "--val text/part lies in --data"),
        (["--val", "."], "--data text lies in --val"),
    ):
        assert words in refused(crew, [*argv, *flags], 1, tmp_path)[0]


def test_damaged_tokens(crew: Crew, tmp_path: Path) -> None:
    """A file of tokens that was cut, or is older than its text, is not trained on."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("Ada counts to a hundred. " * 200)
    argv = [*SHAPE, "--data", "text", "--batch-size", "8", "--steps", "1", "--tokens", "tokens"]
    for answer in crew.run(in_folder, [*argv, "--output-dir", "1"], tmp_path):
        assert answer["exit"] is None, answer
    [path] = (tmp_path / "tokens").glob("*/*.bin")
    os.utime(tmp_path / "text/a.txt", (path.stat().st_mtime + 9, path.stat().st_mtime + 9))
    assert "is older than its text: remove" in refused(crew, argv, 1, tmp_path)[0]
    os.utime(path, (path.stat().st_mtime + 99, path.stat().st_mtime + 99))
    os.truncate(path, 999)
    assert "is not whole: remove" in refused(crew, argv, 1, tmp_path)[0]


def other_seed(argv: list[str], cwd: Path) -> dict:
    return in_folder([*argv, "--seed", os.environ["CREW_RANK"]], cwd)


def test_ranks_agree(crew: Crew, tmp_path: Path) -> None:
    for answer in crew.run(other_seed, TRAIN, tmp_path, world_size=2):
        assert "ranks differ in --seed: 0 and 1" in one_line(answer)


# ---- as a reader takes it ----
def by_torchrun(words: list, folder: Path) -> tuple[int, str]:
    """Status and output of a real launch: on a GPU box, a rank on each GPU."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = run([*torchrun, "--nproc-per-node", str(default_processes()), *words], folder)
    return done.returncode, done.output


def in_warm_processes(words: list, folder: Path) -> tuple[int, str]:
    codes, said, wrong = run_warm(words, folder, 2, cwd=folder)
    return max(map(abs, codes)), "\n".join([*said, *wrong])


# torchrun starts 02 in `make test`, and 09 no otherwise.
STARTS = [
    pytest.param(by_torchrun, marks=[pytest.mark.smoke, pytest.mark.proof]),
    in_warm_processes,
]


@pytest.mark.parametrize("start", STARTS)
def test_alone_in_a_folder(start: Callable, crew: Crew, tmp_path: Path) -> None:
    """Copied into an empty folder: it learns, writes a sample, and leaves a file that a plain model
    reads; then it goes on."""
    shutil.copy(ROOT / LM / "main.py", tmp_path)
    command = ["main.py", "--synthetic", "20000"]
    command += ["--width", "32", "--layers", "1", "--heads", "2", "--context", "32", "--lr", "0.01"]
    command += ["--batch-size", 8 * default_processes(), "--eval-steps", 20, "--sample", 20]
    command = [str(word) for word in (*command, "--output-dir", "run")]
    status, said = start([*command, "--steps", "40"], tmp_path)
    assert status == 0 and "[...]" in said, said
    first, last = (row["perplexity"] for row in rows(tmp_path / "run", "eval"))
    assert last < first < 64
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files >= {"metrics.jsonl", "checkpoints.json", "step20", "step40"}
    assert files & {"model.safetensors", "model.pt"}

    status, said = start([*command, "--steps", "60", "--resume"], tmp_path)
    assert status == 0, said
    begun = rows(tmp_path / "run", "start")[1]
    assert begun["epoch"] * begun["steps_per_epoch"] + begun["step"] == 40
    # One rank: of two that are warm, and have no launcher, the other would wait for this one.
    [line] = refused(crew, [*command[1:], "--steps", "60"], 1, tmp_path)
    assert "run holds a run: use --resume" in line


def test_minimal(tmp_path: Path) -> None:
    """It learns, and saves whole weights."""
    codes, said, wrong = run_warm([ROOT / LM / "minimal.py"], tmp_path, 2, cwd=tmp_path)
    assert codes == [0, 0], wrong
    told = [float(line.split()[-1]) for line in said[0].splitlines()]
    assert len(told) == 3 and told[-1] < told[0] < math.log(256)
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    assert weights["0.weight"].shape == (256, 64)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_two_nodes_on_the_page(language: str) -> None:
    """What is typed for 16 GPUs goes together, and is a model of the size that the page says."""
    page = (ROOT / f"docs/{language}/chapters/{LM}.md").read_text()
    [block] = re.findall(r"^MAIN=.*?\.sbatch (.*?)^```", page, re.M | re.S)
    chapter = load_chapter(LM)
    args = chapter.build_parser().parse_args(block.replace("\\\n", " ").split())
    assert chapter.check_flags(args, 16) == (2, 8, 1, 1)
    with torch.device("meta"):
        model = chapter.build_model(args, 50_304)
    count = sum(weight.numel() for weight in model.parameters())
    assert round(count / 1e9, 1) == 3.1 and round(16 * count / 8 / 1e9, 1) == 6.3


# ---- what can be read off it ----
def source() -> str:
    return (ROOT / LM / "main.py").read_text()


SAME = ["fail", "HelpFormatter", "check_launcher", "check_gpus", "seed_of"]
SAME += ["Meetings", "catch_signals", "describe_gpu", "wait_for_gloo"]


@pytest.mark.text
def test_functions_of_02() -> None:
    """What it shares with 02 is the same, to the letter."""
    from test_static import HUB, definitions

    for name in SAME:
        assert definitions(LM)[name] == definitions(HUB)[name], name


@pytest.mark.text
def test_sections_and_imports() -> None:
    """The sections of 02, in their order; torch alone, and two libraries where they are used; a
    docstring for all but main and what a class of torch asks for."""
    text = source()
    marks = re.findall("^# ---- .+$", text, re.M)
    hub = re.findall("^# ---- .+$", (ROOT / "02_distributed/main.py").read_text(), re.M)
    assert [mark for mark in marks if mark in hub] == hub
    tree = ast.parse(text)
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert names <= sys.stdlib_module_names | {"torch"}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name != "main":
            assert ast.get_docstring(node), node.name


@pytest.mark.text
def test_tags() -> None:
    """Each use of the process group has one on its line, which is code."""
    lines = source().splitlines()
    asks = ("get_rank", "get_world_size", "get_default_backend_for_device")
    uses = [line for line in lines if re.search(r"\bdist\.\w+\(|fully_shard\(", line)]
    assert len(uses) > 15
    missing = [u for u in uses if "# [dist]" not in u and not any(word in u for word in asks)]
    assert not missing
    assert not [line for line in lines if line.lstrip().startswith("#") and "[dist]" in line]


@pytest.mark.text
def test_every_flag_is_read() -> None:
    flags = re.findall(r'(?:add|text)\("--([\w-]+)"', source())
    text = re.sub(r'\("--[\w-]+", args\.\w+, [^)]+\)', "", source())  # their ranges
    read = re.findall(r"\bargs\.(\w+)", text)
    assert len(flags) == 35 and {flag.replace("-", "_") for flag in flags} <= set(read)

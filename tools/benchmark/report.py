"""From the runs of benchmark.py to medians, ratios, tables in two languages and charts."""

import json
import os
import re
from pathlib import Path
from statistics import median
from xml.sax.saxutils import escape

# key -> language -> text with {places}
WORDS = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
JSON_NAME = "benchmark.json"
MADE = ("RESULT.en.md", "RESULT.zh.md", "SUMMARY.en.md", "SUMMARY.zh.md", "chart.en.svg",
        "chart.zh.svg")  # fmt: skip
LOADED = 0.35  # CPUs that others kept busy: above it a run's wall figures are not used
# What a run measures, and whether the load of the machine enters into it.
WALL, CPU = ("train", "val", "first_step", "data_wait", "wall"), ("memory", "host_memory", "cpu")
# name, variant or part, against, measure, at least (or at most, negative), all in SETTING
REACH = (
    ("train_fp32", "02", "reference", "train", 1.15),
    ("train_bf16", "02 bf16", "reference", "train", 2.0),
    ("val_fp32", "02", "reference", "val", 1.35),
    ("val_bf16", "02 bf16", "reference", "val", 2.3),
    ("input_small", "input", "500x375", "ratio", 1.5),
    ("input_large", "input", "1600x1200", "ratio", 1.8),
    ("input_levels", "input", "500x375", "largest_difference", -1),
    ("spawn_cpu", "03", "03 spawned", "cpu", -0.65),
    ("spawn_start", "03", "03 spawned", "first_step", -0.6),
    ("loop", "loop", "fp32", "cpu", 0.98),
    ("ddp", "02", "2 x 01", "train", 0.95),
    ("smoke", "smoke", "", "wall", -120),
)
SETTING = {"arch": "resnet18", "image_size": 224, "batch_size_per_rank": 16, "processes": 2}
SETTING |= {"device": "cpu"}


# --------------------------------------------------------------------------------------- numbers


def spread(values: list[float]) -> dict[str, float] | None:
    """Median, smallest and largest, None of nothing."""
    if not values:
        return None
    return {"median": median(values), "min": min(values), "max": max(values), "n": len(values)}


def is_loaded(run: dict) -> bool:
    return run["foreign"] > LOADED


def pick(rounds: list[tuple[dict, ...]], measure: str) -> list[tuple[dict, ...]]:
    """The rounds that may speak for a measure: for wall time those without load, if any."""
    rounds = [runs for runs in rounds if all(measure in run for run in runs)]
    quiet = [runs for runs in rounds if not any(map(is_loaded, runs))]
    return quiet if measure in WALL and quiet else rounds


def ratio(runs: list[dict], variant: str, against: str, measure: str) -> dict | None:
    """The median of the ratios of each round: both its runs met the machine in one state."""
    by_round = {(run["round"], run["variant"]): run for run in runs if not run["failed"]}
    pairs = [(run, by_round.get((number, against))) for (number, name), run in by_round.items()
             if name == variant]  # fmt: skip
    pairs = pick([pair for pair in pairs if pair[1]], measure)
    found = spread([mine[measure] / other[measure] for mine, other in pairs if other[measure]])
    return found and found | {"loaded": measure in WALL and any(map(is_loaded, sum(pairs, ())))}


def loop_ratio(rounds: list[dict], kind: str) -> dict | None:
    """Our loop's speed in times of the bare one's, from wall or cpu seconds."""
    pairs = pick([(row["ours"], row["bare"]) for row in rounds], kind)
    return spread([bare[kind] / ours[kind] for ours, bare in pairs])


def option_figures(row: dict, device: str) -> dict:
    """Of each measure of a group: how many times as fast as the plain step of the same round,
    milliseconds a step, seconds of the first. One process on CPUs: CPU time, else wall time."""
    kind = "cpu" if row["world_size"] == 1 and device == "cpu" else "wall"
    figures = {}
    for name, first in row["first_step"].items():
        pairs = [(one["turns"][name], one["turns"]["plain"]) for one in row["rounds"]]
        pairs = pick(pairs, kind)
        milliseconds = [1000 * mine[kind] / row["steps"] for mine, _ in pairs]
        figures[name] = {"ratio": spread([plain[kind] / mine[kind] for mine, plain in pairs])}
        figures[name] |= {"milliseconds": spread(milliseconds), "first_step": first}
    return figures


def summarise(result: dict) -> dict:
    """All figures that the tables and charts show."""
    runs, variants = result["runs"], {}
    for name in dict.fromkeys(run["variant"] for run in runs):
        mine = [run for run in runs if run["variant"] == name and not run["failed"]]
        figures: dict = {"runs": len(mine), "loaded": sum(map(is_loaded, mine))}
        for measure in (*WALL, *CPU, "foreign"):
            picked = pick([(run,) for run in mine], measure)
            figures[measure] = spread([run[measure] for (run,) in picked])
        measures = ("train", "val", "first_step", "cpu")
        figures["ratio"] = {m: ratio(runs, name, "reference", m) for m in measures}
        variants[name] = figures
    parts: dict = {"input": {}, "loop": {}}
    for row in result["input"]:
        seconds = [one["seconds"] for one in row["rounds"]]
        figures = {"ratio": spread([one["reference"] / one["ours"] for one in seconds])}
        for way in row["rounds"][0]["seconds"]:
            figures[way] = spread([one["images"] / one["seconds"][way] for one in row["rounds"]])
        names = ("largest_difference", "mean_difference", "file_kb")
        parts["input"][row["size"]] = figures | {name: row[name] for name in names}
    for row in (result["loop"] or {"modes": []})["modes"]:
        figures = {kind: loop_ratio(row["rounds"], kind) for kind in ("cpu", "wall")}
        picked = pick([(one["ours"],) for one in row["rounds"]], "wall")
        rates = [row["images"] / ours["wall"] for (ours,) in picked]
        figures["images_per_second"] = spread(rates)
        for name in ("flop", "bytes"):
            if f"{name}_per_image" in row:
                used = median(rates) * row[f"{name}_per_image"]
                figures[f"{name}_share"] = used / row["limits"][name]
        parts["loop"][row["mode"]] = figures
    parts["options"] = {row["group"]: option_figures(row, result["settings"]["device"])
                        for row in result.get("options", []) if not row["failed"]}  # fmt: skip
    summary = {"variants": variants, **parts}
    return summary | {"reach": [reach(result, summary, *row) for row in REACH]}


def reach(result: dict, summary: dict, name: str, what: str, against: str, measure: str,
          target: float) -> dict:  # fmt: skip
    """One row of the table of targets: what was measured, and whether it holds, if it can be
    said: only SETTING can hold or fail."""
    settings = result["settings"]
    as_set = all(settings.get(key) == value for key, value in SETTING.items())
    if what == "input":
        found = summary["input"].get(against, {}).get(measure)
        as_set = settings["image_size"] == 224
    elif what == "loop":
        gpu = settings["device"] == "cuda"
        target = 0.97 if gpu else target
        found = summary["loop"].get(against, {}).get("wall" if gpu else measure)
        as_set |= gpu
    elif what == "smoke":
        smoke = result["smoke"]
        found, as_set = smoke and not smoke["failed"] and smoke["wall"] or None, True
    else:
        found = ratio(result["runs"], what, against, measure)
        as_set &= settings["images"] != "synthetic"
    found = spread([found]) if isinstance(found, int | float) else found
    holds = None
    if found and as_set:
        holds = found["median"] >= target if target > 0 else found["median"] <= -target
    part = what if what in ("input", "loop", "smoke") else "train"
    row = {"name": name, "part": part, "target": target, "measured": found}
    return row | {"as_set": as_set, "holds": holds}


def row_as_line(run: dict) -> str:
    """A run on one line of the terminal."""
    if run["failed"]:
        return f"{run['variant']}: FAILED, {run['failed']}"
    names = ("train", "val", "first_step", "cpu", "foreign")
    line = "  ".join(f"{name} {run[name]:.4g}" for name in names)
    return f"{run['variant']:12}  {line}{'  (loaded)' * is_loaded(run)}"


# ---------------------------------------------------------------------------------------- tables


def words_in(language: str) -> dict[str, str]:
    return {key: texts[language] for key, texts in WORDS.items()}


def show(value: dict | None, digits: int = 3, brackets: bool = True) -> str:
    """A median with its range, in so many significant digits."""
    if value is None:
        return "-"

    def number(x: float) -> str:
        return f"{x:.0f}" if abs(x) >= 10 ** (digits - 1) else f"{x:.{digits}g}"

    text = number(value["median"])
    if brackets and value["n"] > 1:
        text += f" ({number(value['min'])}–{number(value['max'])})"
    return text


def table(head: str, rows: list[list[str]]) -> list[str]:
    """The lines of a Markdown table with a blank one after it; nothing without rows."""
    if not rows:
        return []
    columns = head.count("|") - 1
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "| --- " + "| ---: " * (columns - 1) + "|", *lines, ""]


def fragment(result: dict, language: str) -> str:
    """The tables of a result as Markdown."""
    words, summary, settings = words_in(language), result["summary"], result["settings"]
    machine, variants = result["machine"], summary["variants"]
    gpu, times = settings["device"] == "cuda", "x" if language == "en" else " 倍"
    comma = ", " if language == "en" else "，"
    versions = comma.join(f"{name} {version}" for name, version in result["versions"].items())
    facts = {"cpu": machine["cpu"], "cores": machine["cores"], "memory": machine["memory_gib"]}
    facts["gpus"] = "".join(f"{comma}{name}" for name in machine["gpus"])
    facts |= {"commit": (result["commit"] or "?")[:9], "date": result["date"][:10]}
    lines = [words["machine"].format(**facts, versions=versions,
                                     dirty=words["dirty"] * result["dirty"])]  # fmt: skip
    lines += [words["setting"].format(
        **{k: settings[k] for k in ("processes", "arch", "steps", "rounds")},
        size=settings["image_size"], batch=settings["batch_size_per_rank"],
        images=words[settings["images"]], command=result["command"])]  # fmt: skip
    runs = [run for run in result["runs"] if not run["failed"]]
    if loaded := sum(map(is_loaded, runs)):
        lines.append(words["loaded"].format(limit=LOADED, n=loaded, all=len(runs)))
    rows = []
    for name, f in variants.items():
        r = {k: show(v, brackets=False) for k, v in f["ratio"].items()}
        cells = [show(f["train"]), r["train"], show(f["val"]), r["val"], show(f["first_step"])]
        wait = f["data_wait"] and f"{100 * f['data_wait']['median']:.1f} %"
        star = " *" * (f["runs"] == f["loaded"] > 0)
        rows.append([name + star, *cells, wait or "-", show(f["memory"], 4, brackets=False)])
        rows[-1] += [show(f["cpu"]), r["cpu"]]
    memory = words["gpu_memory" if gpu else "memory"]
    lines += ["", *table(words["variants"].format(memory=memory), rows)]
    rows = []
    for row in (row for row in summary["reach"] if row["part"] in settings["parts"]):
        target = f"{row['target']:g}" if row["target"] > 0 else words["most"].format(-row["target"])
        holds = {True: "yes", False: "no", None: "unset" if row["measured"] else "none"}
        key = "loop_row" if row["name"] == "loop" else row["name"]
        star = " *" * bool(row["measured"] and row["measured"].get("loaded"))
        measured = show(row["measured"]) + star
        rows.append([words[key], target, measured, words[holds[row["holds"]]]])
    lines += table(words["reach"], rows)
    rows = []
    for size, f in summary["input"].items():
        levels = f"{f['largest_difference']} / {f['mean_difference']:.3f}"
        decoders = (f["PIL decode"], f["torchvision decode"])
        alone = " / ".join(show(rate, brackets=False) for rate in decoders)
        cells = [show(f["reference"]), show(f["ours"]), show(f["ratio"]) + times, levels, alone]
        rows.append([f"{size}, {f['file_kb']} KB", *cells])
    lines += table(words["input"], rows)
    rows = []
    for mode, f in summary["loop"].items():
        shares = [f.get(f"{name}_share") for name in ("flop", "bytes")]
        shares = ["-" if share is None else f"{100 * share:.0f} %" for share in shares]
        cells = [show(f["images_per_second"]), show(f["wall"]), show(f["cpu"]), *shares]
        rows.append([mode, *cells])
    lines += table(words["loop"], rows)
    for row in (row for row in result.get("options", []) if not row["failed"]):
        group, used = row["group"], words["options_used"]
        rows = [[f"`{name}`", show(f["ratio"]), show(f["milliseconds"], brackets=False),
                 f"{f['first_step']:.2g}", used.get(name, "-")]
                for name, f in summary["options"][group].items()]  # fmt: skip
        facts = {"n": row["world_size"], "batch": row["batch_size"], "size": row["image_size"]}
        head = words[f"options_{group}"].format(**facts, steps=row["steps"])
        lines += table(f"| {head} | {words['options']} |", rows)
    for part in result["collectives"]:
        rows = []
        for row in part.get("rows", []):
            rate = f"{row['bus_bytes_per_second'] / 1e9:.3g}"
            rows.append([f"{row['bytes']:,} B", f"{1e3 * row['seconds']:.3g}", rate])
        head = words["collectives"].format(backend=part["backend"], n=part.get("world_size"))
        lines += table(head, rows)
    return "\n".join(lines).rstrip() + "\n"


def summary_parts(result: dict, language: str) -> str:
    """A narrow table of rates as Markdown, in parts that a page takes one of by its name: `all`,
    and for each chapter, by its number, its rows and the reference's."""
    words, variants = words_in(language), result["summary"]["variants"]
    settings, machine = result["settings"], result["machine"]
    rows = {}
    for name, f in variants.items():
        r = {k: show(v, brackets=False) for k, v in f["ratio"].items()}
        rows[name] = [name, show(f["train"], brackets=False), r["train"]]
        rows[name] += [show(f["val"], brackets=False), r["val"]]
    caption = words["summary"].format(
        **{k: settings[k] for k in ("processes", "arch", "rounds")},
        size=settings["image_size"], batch=settings["batch_size_per_rank"],
        device=(*dict.fromkeys(machine["gpus"]), machine["cpu"])[0], cores=machine["cores"],
        torch=result["versions"]["torch"], date=result["date"][:10])  # fmt: skip
    numbers = sorted(set(re.findall(r"\b0\d\b", " ".join(rows))))
    text = ""
    for part in ("all", *numbers):
        own = [row for name, row in rows.items() if part in ("all", *name.split())
               or name == "reference"]  # fmt: skip
        text += "\n".join([f"<!-- {part} -->", *table(words["narrow"], own), caption, "", ""])
    return text


# ----------------------------------------------------------------------------------------- chart


def chart(result: dict, language: str) -> str:
    """Bars of images/s, training and validation, as SVG: no background, grey text, two colours
    that stand out from white and from black."""
    words, variants = words_in(language), result["summary"]["variants"]
    rows, y = [], 0
    for measure, colour in (("train", "#3f8fd2"), ("val", "#2f9e6e")):
        values = {name: f[measure] for name, f in variants.items() if f[measure]}
        y += 30
        rows.append(f'<text x="0" y="{y}" font-weight="bold">{escape(words[measure])}</text>')
        largest = max([value["max"] for value in values.values()], default=1)
        for name, value in values.items():
            y += 26
            width, low, high = (360 * value[k] / largest for k in ("median", "min", "max"))
            times = variants[name]["ratio"][measure]
            label = show(value, brackets=False) + (f"  ×{times['median']:.2f}" if times else "")
            line = f'<path d="M{130 + low:.1f} {y - 5}H{130 + high:.1f}" stroke="#808080"/>'
            rows.append(f'<text x="122" y="{y}" text-anchor="end">{escape(name)}</text>')
            rows.append(f'<rect x="130" y="{y - 14}" width="{width:.1f}" height="18" '
                        f'fill="{colour}"/>{line}')  # fmt: skip
            rows.append(f'<text x="{138 + max(width, high):.1f}" y="{y}">{label}</text>')
    title = f"<title>{escape(words['train'])}; {escape(words['val'])}</title>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 {y + 14}" role="img"'
    return "\n".join([f'{head} font-family="sans-serif" font-size="14" fill="#808080">', title,
                      *rows, "</svg>", ""])  # fmt: skip


# ----------------------------------------------------------------------------------------- files


class NotAResultError(Exception):
    """A file that cannot be rendered; the message is one line, meant for the user."""


def made_of(result: dict) -> dict[str, str]:
    """The files that are made from a result: name -> text."""
    makers = (fragment, summary_parts, chart)
    texts = [make(result, language) for make in makers for language in ("en", "zh")]
    return dict(zip(MADE, texts, strict=True))


def load(path: Path) -> dict:
    """A result that everything can be made from."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["format"] != 1:
            raise ValueError("another format")
        result["summary"] = summarise(result)
        made_of(result)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        message = f"{path} is no {JSON_NAME} of this tool: {error!r:.100}"
        raise NotAResultError(message) from None
    return result


def replace(path: Path, text: str) -> None:
    """Write a file so that it is the old one or the new one, whole."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # of a full disk


def save(result: dict, out: Path) -> None:
    """Write benchmark.json, with the summary of what is there."""
    result["summary"] = summarise(result)
    replace(out / JSON_NAME, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def write(result: dict, out: Path) -> str:
    """Write tables and charts; returns the English tables and where all is."""
    texts = made_of(result)
    for name, text in texts.items():
        replace(out / name, text)
    return f"\n{texts[MADE[0]]}\n{', '.join(MADE)} are in {out}/"

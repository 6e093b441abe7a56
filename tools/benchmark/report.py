"""From the runs of benchmark.py to medians, ratios and tables in two languages."""

import json
import re
from pathlib import Path
from statistics import median

# key -> language -> text with {places}
WORDS = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
JSON_NAME = "benchmark.json"
LOADED = 0.35  # CPUs that others kept busy: above it a run's wall figures are not used
# What a run measures, and whether the load of the machine enters into it.
WALL, CPU = ("train", "val", "first_step", "wall"), ("memory", "cpu")


# --------------------------------------------------------------------------------------- numbers


def spread(values: list[float]) -> dict[str, float] | None:
    """Median, smallest and largest, None of nothing."""
    if not values:
        return None
    return {"median": median(values), "min": min(values), "max": max(values), "n": len(values)}


def middle(values: dict | None) -> float | None:
    return values and values["median"]


def is_loaded(run: dict) -> bool:
    return run["foreign"] > LOADED


def pick(rounds: list[tuple[dict, ...]], measure: str) -> list[tuple[dict, ...]]:
    """The rounds that may speak for a measure: for wall time those without load, if any."""
    quiet = [runs for runs in rounds if not any(map(is_loaded, runs))]
    return quiet if measure in WALL and quiet else rounds


def ratio(runs: list[dict], variant: str, against: str, measure: str) -> dict | None:
    """The median of the ratios of each round: both its runs met the machine in one state."""
    found = {(run["round"], run["variant"]): run for run in runs if not run["failed"]}
    rounds = [number for number, name in found if name == variant and (number, against) in found]
    pairs = [(found[number, variant], found[number, against]) for number in rounds]
    return spread([mine[measure] / other[measure] for mine, other in pick(pairs, measure)])


def of_variant(name: str, runs: list[dict]) -> dict:
    mine = [(run,) for run in runs if run["variant"] == name and not run["failed"]]
    figures: dict = {"runs": len(mine), "loaded": sum(is_loaded(run) for (run,) in mine)}
    for measure in WALL + CPU:
        figures[measure] = spread([run[measure] for (run,) in pick(mine, measure)])
    for measure in ("train", "val", "cpu"):
        figures[f"{measure}_ratio"] = middle(ratio(runs, name, "reference", measure))
    return figures


def of_input(row: dict) -> dict:
    """Images a second through each way, and how many times as fast as PIL's ours is."""
    figures = {name: row[name] for name in ("largest_difference", "mean_difference", "file_kb")}
    seconds = [one["seconds"] for one in row["rounds"]]
    figures["ratio"] = spread([one["reference"] / one["ours"] for one in seconds])
    for way in seconds[0]:
        figures[way] = spread([one["images"] / one["seconds"][way] for one in row["rounds"]])
    return figures


def of_loop(row: dict) -> dict:
    """Our loop's images a second, and its speed in times of the bare one's."""
    rounds = row["rounds"]
    figures = {"images_per_second": spread([row["images"] / x["ours"]["wall"] for x in rounds])}
    for kind in ("wall", "cpu"):
        figures[kind] = spread([one["bare"][kind] / one["ours"][kind] for one in rounds])
    return figures


def summarise(result: dict) -> dict:
    """All figures that the tables show."""
    runs = result["runs"]
    modes = result["loop"]["modes"] if result["loop"] else []
    return {
        "variants": {run["variant"]: of_variant(run["variant"], runs) for run in runs},
        "input": {row["size"]: of_input(row) for row in result["input"]},
        "loop": {row["mode"]: of_loop(row) for row in modes},
    }


# ---------------------------------------------------------------------------------------- tables


def words_in(language: str) -> dict:
    return {key: texts[language] for key, texts in WORDS.items()}


def show(value: str | float | dict | None, digits: int = 3) -> str:
    """A cell: a text, a number in so many significant digits, or a median with its range."""
    if isinstance(value, dict):
        low, mid, high = (show(value[name], digits) for name in ("min", "median", "max"))
        return f"{mid} ({low}–{high})" if value["n"] > 1 else mid
    if isinstance(value, str) or value is None:
        return value or "-"
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def table(head: str, rows: list[list]) -> list[str]:
    """The lines of a Markdown table with a blank one after it; nothing without rows."""
    if not rows:
        return []
    dashes = "| --- " + "| ---: " * (len(rows[0]) - 1) + "|"
    return [head, dashes, *(f"| {' | '.join(map(show, row))} |" for row in rows), ""]


def facts(result: dict, words: dict) -> dict:
    """What the lines above and below the tables name."""
    gpus, comma = result["machine"]["gpus"], words["comma"]
    known = result["machine"].get("instructions")  # not in results before 2026-11-24
    instructions = f" ({', '.join(known)})" if known else ""
    runs = [run for run in result["runs"] if not run["failed"]]
    return result | {
        "gpus": "".join(comma + name for name in gpus),
        "device": gpus[0] if gpus else result["machine"]["cpu"] + instructions,
        "instructions": instructions,
        "versions_line": comma.join(f"{name} {text}" for name, text in result["versions"].items()),
        "changes": words["dirty"] * result["dirty"],
        "limit": LOADED,
        "loaded_runs": sum(map(is_loaded, runs)),
        "all_runs": len(runs),
    }


def tables(result: dict, language: str) -> str:
    """All tables of a result as Markdown."""
    words, summary = words_in(language), result["summary"]
    places, gpus = facts(result, words), result["machine"]["gpus"]
    lines = [words["machine"].format(**places), words["setting"].format(**places)]
    lines += [words["emulated"]] if result["machine"].get("bf16") is False else []
    lines += [words["loaded"].format(**places)] if places["loaded_runs"] else []
    rows = []
    for name, f in summary["variants"].items():
        star = " *" * (f["runs"] == f["loaded"] > 0)
        row = [name + star, f["train"], f["train_ratio"], f["val"], f["val_ratio"]]
        memory = [show(middle(f["memory"]), 4)] if gpus else []
        row += [f["first_step"], *memory, f["cpu"], f["cpu_ratio"]]
        rows.append(row)
    memory = words["gpu_memory"] if gpus else ""
    lines += ["", *table(words["variants"].format(memory=memory), rows)]
    rows = []
    for size, f in summary["input"].items():
        levels = f"{f['largest_difference']} / {f['mean_difference']:.3f}"
        decoders = [show(middle(f[name])) for name in ("PIL decode", "torchvision decode")]
        row = [f"{size}, {f['file_kb']} KB", f["reference"], f["ours"]]
        rows.append([*row, show(f["ratio"]) + words["times"], levels, " / ".join(decoders)])
    lines += table(words["input"], rows)
    rows = [[mode, *figures.values()] for mode, figures in summary["loop"].items()]
    lines += table(words["loop"], rows)
    for group in (row for row in result["collectives"] if not row["failed"]):
        rows = [
            [f"{row['bytes']:,} B", 1e3 * row["seconds"], row["bus_bytes_per_second"] / 1e9]
            for row in group["rows"]
        ]
        lines += table(words["collectives"].format(**group), rows)
    return "\n".join(lines).rstrip() + "\n"


def summary_parts(result: dict, language: str) -> str:
    """A narrow table of rates as Markdown, in parts that a page takes one of by its name: `all`,
    and for each chapter, by its number, its rows and the reference's."""
    words, rows = words_in(language), {}
    for name, f in result["summary"]["variants"].items():
        rates = [middle(f["train"]), f["train_ratio"], middle(f["val"]), f["val_ratio"]]
        rows[name] = [name, *rates]
    caption = words["summary"].format(**facts(result, words))
    text = ""
    for part in ("all", *sorted(set(re.findall(r"\b0\d\b", " ".join(rows))))):
        wanted = {part, "reference"}
        own = [row for name, row in rows.items() if part == "all" or wanted & set(name.split())]
        text += "\n".join([f"<!-- {part} -->", *table(words["narrow"], own), caption, "", ""])
    return text


# ----------------------------------------------------------------------------------------- files


def save(result: dict, out: Path) -> None:
    """Write benchmark.json, with the summary of what is there."""
    result["summary"] = summarise(result)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    (out / JSON_NAME).write_text(text + "\n", encoding="utf-8")


def render(result: dict, out: Path) -> str:
    """Write the tables; returns the English ones."""
    result["summary"] = summarise(result)
    makers = {"RESULT.{}.md": tables, "SUMMARY.{}.md": summary_parts}
    for name, make in makers.items():
        for language in ("en", "zh"):
            text = make(result, language)
            (out / name.format(language)).write_text(text, encoding="utf-8")
    return tables(result, "en")

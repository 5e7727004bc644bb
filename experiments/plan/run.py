"""What the two 7B and 8B presets need on TPUs, compiled for slices that nobody has rented."""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

import tyro

from grpo_jax.__main__ import main as grpo_jax

HERE = Path(__file__).parent
LEFT_OUT = ("config", "chip")
"""Parts of a plan that say again what presets and tables say."""


ONLY_UPDATES = ("--gradient-share-every", "0", "--evaluation.every", "0")
"""What is done now and then is left out."""


class Tee(io.StringIO):
    """Keeps what is printed, and prints it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)
        sys.__stdout__.flush()
        return super().write(text)


def main(
    presets: tuple[str, ...] = ("qwen2.5-7b-math", "llama3.1-8b-math"),
    topologies: tuple[str, ...] = ("v5e:16x16",),
    search: bool = False,
    smoke: bool = False,
    out: Path = HERE,
) -> None:
    """Plans every preset on every topology that results.jsonl has no line of yet.

    Args:
        presets: by name.
        topologies: slices, such as v5e:16x16.
        search: look for meshes and micro-batches that fit, for the most prompts and for the smallest slice, which
            compiles ten times as much.
        smoke: a tiny run on two virtual devices, which leaves nothing behind.
        out: folder for results.jsonl and what was printed.
    """
    if smoke:
        with tempfile.TemporaryDirectory() as folder:
            planned("smoke", "cpu:2", Path(folder), search=False)
        return
    results = out / "results.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    known = {(row["preset"], row["topology"], row["searched"]) for row in done}
    for preset in presets:
        for topology in topologies:
            if (preset, topology, search) not in known:
                row = planned(preset, topology, out, search=search)
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


def planned(preset: str, topology: str, out: Path, *, search: bool) -> dict:
    """Runs the command; returns its plan, and leaves what it printed in a file."""
    more = ["--search" if search else "--no-search", *ONLY_UPDATES]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(Tee()) as printed:
        path = Path(folder, "plan.json")
        status = grpo_jax(["plan", "--preset", preset, "--topology", topology, "--json", str(path), *more])
        if status == 2:
            raise SystemExit(2)
        found = json.loads(path.read_text(encoding="utf-8"))
    name = f"{preset}_{topology.replace(':', '_')}{'_search' if search else ''}.txt"
    (out / name).write_text(printed.getvalue(), encoding="utf-8")
    if "plan" in found:
        found["plan"] = {key: value for key, value in found["plan"].items() if key not in LEFT_OUT}
    return {"preset": preset, "searched": search, **found}


if __name__ == "__main__":
    tyro.cli(main)

"""Executes the notebooks' sources and writes what they show beside them, without what changes from run to run.

``python -m notebooks.render`` renders all, ``python -m notebooks.render notebooks/01*.py`` some; ``--check`` executes
and writes nothing.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

HERE = Path(__file__).parent
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}


def sources() -> list[Path]:
    """The percent scripts, in reading order."""
    return sorted(HERE.glob("[0-9][0-9]_*.py"))


def read(source: Path) -> nbformat.NotebookNode:
    """Returns a script as a notebook without outputs; the same script gives the same notebook."""
    notebook = jupytext.read(source, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    return notebook


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Runs a notebook with the running interpreter in a folder; raises CellExecutionError where a cell does."""
    with tempfile.TemporaryDirectory() as private:
        # The startup files of the user's IPython have no say, and the sockets lie where nobody else looks.
        os.environ |= {**ENVIRONMENT, "IPYTHONDIR": private, "JUPYTER_RUNTIME_DIR": private}
        kernel = AsyncKernelManager(kernel_name=KERNEL["name"], transport="ipc", ip=f"{private}/kernel")
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, km=kernel, timeout=600, record_timing=False, resources=resources)
        client.execute(cleanup_kc=True)  # a kernel manager that is given would be left running
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})


def main() -> None:
    """Renders or checks the scripts that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", type=Path, help="scripts; none: all")
    parser.add_argument("--check", action="store_true", help="execute and write nothing")
    chosen = parser.parse_args()
    for source in chosen.sources or sources():
        notebook = read(source)
        execute(notebook, source.parent)
        if not chosen.check:
            nbformat.write(notebook, source.with_suffix(".ipynb"))
        print(f"{source.name} ran", file=sys.stderr)


if __name__ == "__main__":
    main()

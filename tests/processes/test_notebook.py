"""docs/notebook.ipynb runs from its first cell to its last, shows what it says, and leaves nothing behind."""

from __future__ import annotations

import ast
import base64
import importlib.util
from pathlib import Path

import pytest

from tests.support.embedded import assert_none_lives
from tests.support.needs import need
from tests.support.waiting import LONG_SECONDS

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"
_NEEDED = ("ipykernel", "matplotlib", "nbclient")


def test_the_notebook_runs_and_plots_what_the_state_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    need("notebook", f"there is no {', '.join(lacking)}: uv sync --group notebook" if lacking else "")
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, 4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("SECONDS = 20", "SECONDS = 3")
    NotebookClient(
        notebook, timeout=10 * LONG_SECONDS, startup_timeout=5 * LONG_SECONDS, kernel_name="python3"
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [output["data"] for output in outputs if "data" in output]
    # An answer as a table, and the plot as it was last.
    assert any("sensor" in one.get("text/html", "") or "celsius" in one.get("text/html", "") for one in data)
    (picture,) = [one["image/png"] for one in data if "image/png" in one]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    # Axes without a point are a picture, too.
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    (counted,) = (line for line in printed.splitlines() if line.startswith("{"))
    counts = ast.literal_eval(counted)
    assert counts.keys() == {"sensor-0", "sensor-1", "sensor-2"}
    assert min(counts.values()) > 0, counts
    assert_none_lives(tmp_path)
    assert not list(tmp_path.glob("keyhole-notebook*"))

"""Writes charts/keyhole/dashboards/*.json: `uv run python -m charts.dashboards`. tests/meta checks that it was run."""

from charts.dashboards.files import DIRECTORY, files

if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in files().items():
        (DIRECTORY / name).write_text(text)

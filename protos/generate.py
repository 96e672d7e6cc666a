"""Regenerates src/keyhole/v1 from the .proto files: `uv run python protos/generate.py`.

The generated code is committed, so that an install needs no compiler; tests/meta checks that it is current.
"""

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent


def generate(out: Path) -> None:
    """Writes the Python code of all protos below `out`, which stands for the `src` folder."""
    out.mkdir(parents=True, exist_ok=True)
    protos = [str(path) for path in sorted(ROOT.glob("keyhole/v1/*.proto"))]
    outputs = [f"--{plugin}_out={out}" for plugin in ("python", "grpc_python", "mypy", "mypy_grpc")]
    if protoc.main(["protoc", f"-I{ROOT}", *outputs, *protos]) != 0:
        raise SystemExit("protoc failed: see above")
    (out / "keyhole" / "v1" / "__init__.py").touch()


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "src")

"""Makes keyholev1/ from protos/: `uv run python tests/e2e/go/generate.py [DIRECTORY]`.

Needs Go; go.mod pins the plugins.
"""

import subprocess
import sys
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PROTOS = HERE.parents[2] / "protos"
# What a reader needs.
FILES = ("error", "state", "predicate", "query")
PACKAGE = "keyhole.dev/e2e/keyholev1"


def generate(out: Path) -> None:
    """Writes keyholev1/*.go below `out`."""
    # grpc_tools brings Google's own types along.
    own = Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{PROTOS}", f"-I{own}"]
    for plugin in ("go", "go-grpc"):
        arguments += [f"--plugin=protoc-gen-{plugin}={_plugin(f'protoc-gen-{plugin}')}", f"--{plugin}_out={out}"]
        arguments += [f"--{plugin}_opt=module=keyhole.dev/e2e"]
        arguments += [f"--{plugin}_opt=Mkeyhole/v1/{name}.proto={PACKAGE}" for name in FILES]
    if protoc.main([*arguments, *(f"keyhole/v1/{name}.proto" for name in FILES)]) != 0:
        raise SystemExit("protoc failed: see above")


def _plugin(name: str) -> str:
    command = ["go", "tool", "-n", name]
    return subprocess.run(command, cwd=HERE, check=True, capture_output=True, text=True, timeout=600).stdout.strip()


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)

"""`keyhole new DIR`: makes a project, and says what to type next."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from keyhole.cli.project.installed_from import installed_from
from keyhole.cli.project.making import UNKNOWN, make_project, project_name
from keyhole.terminal.commands import keyhole_command


def run(folder: Path, given: str | None) -> None:
    """Makes the project in the folder, and prints what it has.

    Args:
        given: The application's name; None: the folder's.

    Raises:
        InvalidConfiguration: The name can't be, or the folder is not empty.
        MachineError: It can't be written.
    """
    name = project_name(folder, given)
    requirement = installed_from()
    files = make_project(folder, name, requirement)
    keyhole = keyhole_command(os.environ)
    print(f"made {folder}, the application {name}: {', '.join(map(str, files))}")
    if not requirement.url:
        print(f"Its pyproject.toml can't tell an installer where this Keyhole is. {UNKNOWN}")
    enter = f"  cd {shlex.quote(str(folder))}\n" if folder.resolve() != Path.cwd() else ""
    print(f"\nNext:\n{enter}  {keyhole} dev job.py")
    print("      starts all that it needs on this machine, and the job; README.md says more")

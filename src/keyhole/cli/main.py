"""The command `keyhole`. Each command imports what it needs when it runs: reading needs neither Spark nor Kafka."""

from __future__ import annotations

import argparse
import io
import os
import socket
import sys
from collections.abc import Callable, Sequence

from keyhole.addresses import parted
from keyhole.cli.arguments import parser_of_all
from keyhole.cli.exit_codes import ExitCode
from keyhole.cli.wrong_usage import WrongUsage
from keyhole.errors import DeadlineExceeded, InvalidConfiguration, KeyholeError, ServerLost
from keyhole.terminal.written_out import written_out

_CONNECT_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code, an ExitCode; the message of an error is on standard error.

    Raises:
        SystemExit: The parser refuses the arguments; with the code of other wrong usage.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As standard error does: what its encoding has not must not end a command that was done.
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = parser_of_all()
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        parser.print_help(sys.stderr)
        raise SystemExit(ExitCode.WRONG_USAGE)
    options = parser.parse_args(given)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except WrongUsage as wrong:
        print("keyhole:", written_out(str(wrong)), file=sys.stderr)
        return ExitCode.WRONG_USAGE
    except KeyholeError as error:
        # Lines and tabs are those of a log that is quoted.
        print("keyhole:", written_out(error.message + _hint(options, error), but="\n\t"), file=sys.stderr)
        return ExitCode.NOT_DONE
    except KeyboardInterrupt:
        return ExitCode.BROKEN_OFF
    except BrokenPipeError:
        # Whoever read our output has had enough. What is left must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.NOT_DONE


def _hint(options: argparse.Namespace, error: KeyholeError) -> str:
    """What may be done where the proxy that was to be asked isn't there."""
    asked = getattr(options, "proxy", None)
    if asked is None or getattr(options, "servers", None):
        return ""
    # Where the time is short, its end comes before why nobody has answered.
    late = isinstance(error, DeadlineExceeded) and _nobody_listens(asked)
    if not late and not isinstance(error, ServerLost):
        return ""
    from keyhole.up.exports import hint
    from keyhole.up.home import DEFAULT_DIRECTORY, Home

    return hint(Home(DEFAULT_DIRECTORY), asked)


def _nobody_listens(address: str) -> bool:
    try:
        with socket.create_connection(parted(address, "--proxy"), _CONNECT_SECONDS):
            return False
    except OSError:
        return True
    except InvalidConfiguration:  # several, or a name: whether they are away is not for one look to say
        return False


if __name__ == "__main__":
    sys.exit(main())

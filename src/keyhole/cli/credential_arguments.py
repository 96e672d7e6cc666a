"""The options of TLS and tokens, alike for every command that calls servers."""

from __future__ import annotations

import argparse


def add_credentials(command: argparse.ArgumentParser, beginning: str = "KEYHOLE_CLI") -> None:
    """Adds them. `beginning`: of the settings that count where an option is not given."""
    of = command.add_argument_group(f"who asks (or {beginning}_TLS, {beginning}_TOKEN_FILE and so on)")
    of.add_argument("--tls", action="store_const", const="on", help="speak TLS")
    of.add_argument("--tls-ca", metavar="FILE", help="whose certificates count; default: the operating system's")
    of.add_argument("--tls-certificate", metavar="FILE", help="to show to servers that ask for one")
    of.add_argument("--tls-key", metavar="FILE", help="that certificate's key")
    of.add_argument("--tls-server-name", metavar="NAME", help="the name in the servers' certificates")
    of.add_argument("--token-file", metavar="FILE", help="with a bearer token; never give the token itself")
    of.add_argument("--plaintext", choices=("allow",), help="send the token without TLS, beyond this machine")

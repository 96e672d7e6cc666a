"""What the machine lacks on which something of Keyhole's is to start."""

from __future__ import annotations

from keyhole.errors.root import KeyholeError


class MachineError(KeyholeError):
    """The machine lacks something that is needed: a port, a file, a program, room."""

    code = "FAILED_PRECONDITION"


class PortTaken(MachineError):
    """Another process listens on the port."""

    reason = "PORT_TAKEN"


class JavaMissing(MachineError):
    """No Java, or one that is too old or lacks a module that Spark needs."""

    reason = "JAVA_MISSING"


class JarsUnavailable(MachineError):
    """The JVM jars can't be fetched and are not in the cache."""

    reason = "JARS_UNAVAILABLE"

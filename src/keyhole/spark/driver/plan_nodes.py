"""The nodes of Spark's plans and expressions, which Python gets as the JVM's."""

from __future__ import annotations

from collections.abc import Iterator

from py4j.java_gateway import JavaObject


def nodes(root: JavaObject) -> Iterator[JavaObject]:
    """All of a plan, or of an expression: each before those below it, and these from left to right."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed([*each(node.children())]))


def each(sequence: JavaObject) -> Iterator[JavaObject]:
    """The elements of a Scala Seq."""
    return (sequence.apply(index) for index in range(sequence.size()))


def kind_of(node: JavaObject) -> str:
    """The name of its class, without packages."""
    return str(node.getClass().getSimpleName())

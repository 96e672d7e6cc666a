"""Classes of Spark's JVM, without asking it for the same one again and again.

PySpark names a class of the JVM for nearly everything that it does with columns, functions and sessions. Py4J asks the
JVM for it each time, and the JVM looks for it in all packages that are imported there: 280 jars for each that has no
such class. That was a sixth of the time that the driver's thread took for a small batch.
"""

from __future__ import annotations

from py4j.java_gateway import JavaClass, JVMView
from pyspark.sql import SparkSession


class _RememberingView(JVMView):  # type: ignore[misc]  # py4j has no types
    """Asks once for each class. What is no class, a package that may have more tomorrow, it asks for each time."""

    def __getattr__(self, name: str) -> object:
        found = super().__getattr__(name)
        if isinstance(found, JavaClass):
            self.__dict__[name] = found
        return found


def remember_classes(session: SparkSession) -> None:
    """For all that is done with this JVM from now on, by Keyhole and by PySpark itself. Driver only. Idempotent."""
    jvm = session._jvm
    if type(jvm) is JVMView:
        jvm.__class__ = _RememberingView


def java_class(session: SparkSession, name: str) -> JavaClass:
    """A class by its full name, which the JVM isn't asked for: who makes one of it, or calls it, finds out."""
    jvm = session._jvm
    assert jvm is not None
    return JavaClass(name, jvm._gateway_client)

"""Makes jars.json anew: `python -m keyhole.local.lock_jars`. For maintainers, after a version below was changed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pyspark
from jgo.maven import MavenContext

from keyhole.local.jars import Jar, JarSet, maven, sha256

KAFKA = "org.apache.kafka:kafka_2.13:4.3.1"
# Kafka logs through slf4j 1.7 and brings log4j 2, but not what joins them.
KAFKA_LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
SPARK_KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
# 4.2.0 of it can't be had from every repository; the connector needs it only to compile, and 4.0.0 has the same API.
SPARK_TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0"  # noqa: S105 (not a password)


def main() -> None:
    """Resolves both sets, fetches every artifact and writes jars.json beside this file."""
    with tempfile.TemporaryDirectory() as cache:
        context = maven(Path(cache))
        kafka = [*closure(context, KAFKA), KAFKA_LOGGING]
        connector = closure(context, SPARK_KAFKA, exclude=SPARK_TOKEN_PROVIDER)
        spark = [SPARK_TOKEN_PROVIDER, *(found for found in connector if not in_pyspark(found))]
        sets = {JarSet.KAFKA: kafka, JarSet.SPARK_KAFKA: spark}
        jars = {kind: [lock(context, coordinate) for coordinate in sorted(found)] for kind, found in sets.items()}
    target = Path(__file__).with_name("jars.json")
    target.write_bytes(msgspec.json.format(msgspec.json.encode(jars), indent=2) + b"\n")


def closure(context: MavenContext, coordinate: str, exclude: str = "") -> list[str]:
    """The artifact and all that it needs at run time, as group:artifact:version."""
    excluded = [context.project(*exclude.split(":")[:2])] if exclude else []
    inputs, others = context.resolver.resolve([context.create_dependency(coordinate, excluded)])
    return [f"{found.groupId}:{found.artifactId}:{found.version}" for found in [*inputs, *others]]


def in_pyspark(coordinate: str) -> bool:
    """Whether PySpark ships the artifact, in whatever version it prefers."""
    artifact = coordinate.split(":")[1]
    jars = Path(pyspark.__file__).parent / "jars"
    return any(path.stem.removeprefix(f"{artifact}-")[:1].isdigit() for path in jars.glob(f"{artifact}-*.jar"))


def lock(context: MavenContext, coordinate: str) -> Jar:
    """Fetches one artifact and notes its size and checksum."""
    path = context.create_dependency(coordinate).artifact.resolve()
    return Jar(coordinate, path.stat().st_size, sha256(path))


if __name__ == "__main__":
    main()

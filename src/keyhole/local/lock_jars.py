"""Makes jars.json anew: `python -m keyhole.local.lock_jars`. For maintainers, after a version below was changed."""

from __future__ import annotations

import itertools
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
# How Spark writes a checkpoint's files in an object store without renaming them. The same holds of its 4.2.0; 4.1.1
# works in Spark 4.2.0.
SPARK_CLOUD = "org.apache.spark:spark-hadoop-cloud_2.13:4.1.1"
HADOOP_S3 = "org.apache.hadoop:hadoop-aws"
AWS = "software.amazon.awssdk"
# All of Amazon's SDK in one jar, 686 MB, which hadoop-aws asks for.
AWS_BUNDLE = f"{AWS}:bundle"
# Of which it uses these, 9 MB with what they need. `sts` is for roles, as a service account of Kubernetes has them.
# Of HTTP clients there must be one of each kind, as the SDK takes whichever it finds: `apache-client` comes with `s3`.
AWS_MODULES = ("s3", "sts")
# What it needs is what `s3` needs; its POM is not one that jgo can read.
AWS_TRANSFER = "s3-transfer-manager"
# Spark has them under another name: jcl-over-slf4j.
IN_PYSPARK = frozenset({"commons-logging:commons-logging"})


def main() -> None:
    """Resolves all sets, fetches every artifact and writes jars.json beside this file."""
    with tempfile.TemporaryDirectory() as cache:
        context = maven(Path(cache))
        kafka = [*closure(context, KAFKA), KAFKA_LOGGING]
        connector = closure(context, SPARK_KAFKA, exclude=SPARK_TOKEN_PROVIDER)
        spark = [SPARK_TOKEN_PROVIDER, *(found for found in connector if not in_pyspark(found))]
        sets = {JarSet.KAFKA: kafka, JarSet.SPARK_KAFKA: spark, JarSet.SPARK_S3: s3_connector(context)}
        jars = {kind: [lock(context, coordinate) for coordinate in sorted(found)] for kind, found in sets.items()}
    target = Path(__file__).with_name("jars.json")
    target.write_bytes(msgspec.json.format(msgspec.json.encode(jars), indent=2) + b"\n")


def closure(context: MavenContext, coordinate: str, exclude: str = "") -> list[str]:
    """The artifact and all that it needs at run time, as group:artifact:version."""
    excluded = [context.project(*exclude.split(":")[:2])] if exclude else []
    inputs, others = context.resolver.resolve([context.create_dependency(coordinate, excluded)])
    return [f"{found.groupId}:{found.artifactId}:{found.version}" for found in [*inputs, *others]]


def s3_connector(context: MavenContext) -> list[str]:
    """Hadoop's file system on S3, of the version of PySpark's Hadoop, and what it needs beside PySpark's jars."""
    found = closure(context, f"{HADOOP_S3}:{version_in_pyspark('hadoop-client-api')}")
    (sdk,) = (coordinate.split(":")[2] for coordinate in found if coordinate.startswith(f"{AWS_BUNDLE}:"))
    modules = [closure(context, f"{AWS}:{module}:{sdk}") for module in AWS_MODULES]
    needed = {
        SPARK_CLOUD,
        f"{AWS}:{AWS_TRANSFER}:{sdk}",
        *(coordinate for coordinate in found if not coordinate.startswith(f"{AWS_BUNDLE}:")),
        *itertools.chain.from_iterable(modules),
    }
    return [coordinate for coordinate in needed if not in_pyspark(coordinate)]


def in_pyspark(coordinate: str) -> bool:
    """Whether PySpark ships the artifact, in whatever version it prefers."""
    group, artifact, _ = coordinate.split(":")
    return f"{group}:{artifact}" in IN_PYSPARK or bool(_versions_in_pyspark(artifact))


def version_in_pyspark(artifact: str) -> str:
    """The version of an artifact that PySpark ships."""
    (version,) = _versions_in_pyspark(artifact)
    return version


def _versions_in_pyspark(artifact: str) -> list[str]:
    jars = Path(pyspark.__file__).parent / "jars"
    found = (path.stem.removeprefix(f"{artifact}-") for path in jars.glob(f"{artifact}-*.jar"))
    return [version for version in found if version[:1].isdigit()]


def lock(context: MavenContext, coordinate: str) -> Jar:
    """Fetches one artifact and notes its size and checksum."""
    path = context.create_dependency(coordinate).artifact.resolve()
    return Jar(coordinate, path.stat().st_size, sha256(path))


if __name__ == "__main__":
    main()

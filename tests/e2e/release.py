"""A release of the chart with the main job, and a reader in the cluster that never stops."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e import reads
from tests.e2e.kube import Namespace, await_, run, script
from tests.e2e.reads import Gaps

RELEASE = "keyhole"
APPLICATION = "temperature-monitor"
CHART = Path(__file__).resolve().parents[2] / "charts" / "keyhole"
STORE_CLASS = "keyhole-e2e"
VALUES = Path(__file__).with_name("values.yaml")
# Seconds. Two executors, a broker and a control plane share as little as two cores.
PATIENCE = 420

_STORAGE = "1Gi"
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 185,
    "runAsGroup": 185,
    "fsGroup": 185,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
# In a pod of the job's image, without a source that goes on.
_PAUSE = "import signal; signal.pause()"


@dataclass
class Platform:
    """What the tests share. `install` first; `remove` at the end.

    Args:
        tag: Of all images.
        storage_class: Of claims; empty: folders of this machine, which then must be the cluster's only node.
        store_claims: For so many executors' stores there are folders, of the class STORE_CLASS.
        prepare: Makes what the release needs in its namespace.
        reader_secret: A Secret with ca.crt and token, for reader and tools; empty: they speak plaintext.
        values: Files of the chart's values; the first ones hold where a later one says nothing.
        observed: There is a reader, which reads the main job's probe, and a pod of tools.
    """

    space: Namespace
    tag: str
    storage_class: str = ""
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="keyhole-e2e-")))
    store_claims: int = 0
    volumes: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[Namespace], object] = lambda _: None
    reader_secret: str = ""
    values: Sequence[Path] = (VALUES,)
    observed: bool = True

    @property
    def proxy(self) -> str:
        """host:port in the cluster."""
        return f"{RELEASE}-client-proxy.{self.space.name}.svc:7400"

    @property
    def kafka(self) -> str:
        """host:port in the cluster."""
        return f"{RELEASE}-kafka.{self.space.name}.svc:9092"

    def install(self) -> None:
        """The namespace, its claims, the release, and the pods of reader and tools."""
        self.space.create()
        self._claim("checkpoint")
        if not self.storage_class:
            self._volume("kafka")
        if not self.storage_class:
            for number in range(self.store_claims):
                self._volume(f"store-{number}", STORE_CLASS)
        self.prepare(self.space)
        self._helm("install")
        if self.observed:
            self._observe()

    def _observe(self) -> None:
        secret = {"name": "secrets", "secret": {"secretName": self.reader_secret, "defaultMode": 0o440}}
        secrets = {_SECRETS: secret} if self.reader_secret else {}
        checkpoint = {"name": "checkpoint", "persistentVolumeClaim": {"claimName": "checkpoint"}}
        self.space.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "reader"},
                "data": {"reader.py": script("reader.py")},
            },
            self._pod(
                "reader",
                self.image("client-proxy"),
                ["python", "-P", "/reader/reader.py", self.proxy, *([_SECRETS] if self.reader_secret else [])],
                {"/reader": _READER, **secrets},
                _READERS_CPU,
            ),
            self._pod(
                "tools",
                self.image("spark-job"),
                ["python", "-c", _PAUSE],
                {"/var/lib/keyhole/checkpoint": checkpoint, **secrets},
            ),
        )
        await_(lambda: self.phase("reader") == self.phase("tools") == "Running", PATIENCE, "reader and tools")

    def upgrade(self, **settings: str) -> None:
        """helm upgrade, with these settings beside those of upgrades before; dots are __ here."""
        self.settings |= {name.replace("__", "."): value for name, value in settings.items()}
        self._helm("upgrade")

    def uninstall(self) -> None:
        """helm uninstall, and nothing else."""
        self.space.helm("uninstall", RELEASE, "--wait", "--timeout", "240s")

    def remove(self) -> None:
        """All of it."""
        self.space.delete()
        for volume in self.volumes:
            run("kubectl", "delete", "pv", volume, "--ignore-not-found", "--wait=false")

    def _helm(self, verb: str) -> None:
        chosen = [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]
        files = [word for file in self.values for word in ("--values", str(file))]
        tag = ["--set", f"image.tag={self.tag}"]
        if self.storage_class:
            tag += ["--set", f"kafka.persistence.storageClassName={self.storage_class}"]
        self.space.helm(verb, RELEASE, str(CHART), *files, *tag, *chosen)

    def _claim(self, name: str) -> None:
        volume = "" if self.storage_class else self._volume(name)
        spec: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": _STORAGE}}}
        spec |= {"storageClassName": self.storage_class} if self.storage_class else {"volumeName": volume}
        spec.setdefault("storageClassName", "")
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
        self.space.apply(claim)

    def _volume(self, name: str, of_class: str = "") -> str:
        """A folder that everyone may write to: fsGroup says nothing of folders of a node."""
        folder = self.folder / name
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        self.folder.chmod(0o755)
        volume = f"{self.space.name}-{name}"
        spec = {
            "capacity": {"storage": _STORAGE},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "hostPath": {"path": str(folder), "type": "Directory"},
            "storageClassName": of_class,
        }
        text = json.dumps({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec})
        run("kubectl", "apply", "-f", "-", text=text)
        self.volumes.append(volume)
        return volume

    def _pod(
        self, name: str, image: str, command: list[str], mounts: Mapping[str, dict[str, Any]], cpu: str = "50m"
    ) -> dict[str, Any]:
        mounts = {"/tmp": {"name": "tmp", "emptyDir": {}}, **mounts}
        container = {
            "name": name,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "securityContext": _CONTAINER_SECURITY,
            "workingDir": "/tmp",
            "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}},
            "volumeMounts": [{"name": volume["name"], "mountPath": path} for path, volume in mounts.items()],
        }
        spec = {
            "securityContext": _POD_SECURITY,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": list(mounts.values()),
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def image(self, target: str) -> str:
        """Its name, as the cluster knows it."""
        return f"keyhole/{target}:{self.tag}"

    def phase(self, pod: str) -> str:
        """Of a pod by name."""
        return self.space.kubectl("get", "pod", pod, "-o", "jsonpath={.status.phase}")

    def lines(self) -> list[dict[str, Any]]:
        """All that the reader has said."""
        return reads.parsed(self.space.kubectl("logs", "reader"))

    def newest(self) -> dict[str, Any]:
        """The last answer; empty: there was none yet."""
        lines = reads.parsed(self.space.kubectl("logs", "reader", "--tail=200"))
        return next((line for line in reversed(lines) if line.get("found")), {})

    def gaps(self, begin: float, end: float | None = None) -> Gaps:
        """Of all reads between the times."""
        return reads.gaps(self.lines(), begin, end or time.time())

    def await_epochs(self, more: int = 2) -> dict[str, Any]:
        """Until the job has committed so many more epochs, and readers see them."""
        least = int(self.newest().get("epoch", 0)) + more
        newest: dict[str, Any] = await_(
            lambda: (found := self.newest()).get("epoch", 0) >= least and found, PATIENCE, f"epoch {least}"
        )
        return newest

    def run_once(self, name: str, image: str, command: list[str]) -> str:
        """What a pod prints that runs a command of an image to its end."""
        pod = self._pod(name, image, command, {})
        pod["spec"]["restartPolicy"] = "Never"
        del pod["spec"]["containers"][0]["workingDir"]
        self.space.apply(pod)
        await_(lambda: self.phase(name) in ("Succeeded", "Failed"), PATIENCE, f"the end of {name}")
        said = self.space.kubectl("logs", name)
        assert self.phase(name) == "Succeeded", said
        self.space.kubectl("delete", "pod", name, "--wait=false")
        return said

    def helm_test(self) -> str:
        """Runs the chart's own test; returns what Helm says of it."""
        return self.space.helm("test", RELEASE, "--timeout", f"{PATIENCE}s", seconds=PATIENCE + 60)

    def in_tools(self, *command: str, text: str = "", seconds: float = 300) -> str:
        """Runs it in a pod of the job's image that has the checkpoint."""
        return self.space.execute("tools", *command, text=text, seconds=seconds)


_READER = {"name": "reader", "configMap": {"name": "reader"}}
_SECRETS = "/secrets"
_READERS_CPU = "300m"
"""More than what is measured has: on full cores readers would wait themselves, which would look like a gap in reads."""


def storage_class() -> str:
    """What the caller of the tests wants claims to be of."""
    return os.environ.get("KEYHOLE_E2E_STORAGE_CLASS", "")

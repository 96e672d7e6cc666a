"""Where blobs' files are: a folder that is mounted, or one in an object store. Each file is whole or not there.

    files_at("/var/lib/keyhole/checkpoint/vital-signs-files")
    files_at("s3://signals/closed")     # s3a:// is the same

Amazon's variables say how the store is reached: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or
AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, and what else Amazon's SDK knows of
credentials. Arrow does it rather than fsspec: it is in the job's image already.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from pyarrow import fs

from keyhole.errors import InvalidConfiguration

_SCHEMES = ("s3", "s3a")
# Of a Path made of one, a slash is left.
_URL = re.compile(r"\w{2,}:/")
# Arrow's own are 1 and 3, too few for a store that is busy: a task that fails costs more.
_CONNECT_SECONDS, _SILENT_SECONDS = 10, 60
# What Arrow says before it are names of files, and so of patients.
_OF_THE_STORE = re.compile(r"AWS Error .*|In order to initialize .*", re.DOTALL)


class Files(Protocol):
    """Names are relative, with slashes. None is ever deleted. Thread-safe."""

    def check_there(self) -> None:
        """Raises InvalidConfiguration where no file could ever be."""

    def read(self, name: str) -> bytes | None:
        """The file's bytes; None where there is none."""

    def write(self, name: str, data: bytes) -> None:
        """A new file, or one in place of another: readers see the one or the other, and whole."""

    def names(self, name: str) -> list[str]:
        """Of what is directly in a folder; none where it is missing."""


def files_at(place: str | Path, environ: Mapping[str, str] = os.environ) -> Files:
    """The files at a path, or at a URL of an object store. Asks nobody.

    Raises:
        InvalidConfiguration: The URL is none of an object store that is known, or a part of its credentials is missing.
    """
    if not _URL.match(str(place)):
        return Folder(Path(place))
    url = urlsplit(str(place))
    if url.scheme not in _SCHEMES or not url.netloc or "@" in url.netloc or url.query or url.fragment:
        raise InvalidConfiguration(
            "files can't be at that URL; they can be in a folder (/mnt/signals), or in an object store "
            "(s3://bucket/path, as a string, without credentials in it: those are in the environment)"
        )
    return Bucket(f"s3://{url.netloc}{url.path.rstrip('/')}", environ)


class Folder:
    """On a disk, or a volume that is mounted. What was written is there after the power was lost.

    Each method raises InvalidConfiguration where the disk is full, or fails.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def check_there(self) -> None:
        """It is made with its first file."""

    def read(self, name: str) -> bytes | None:
        with self._failures_named("read"):
            try:
                return (self._path / name).read_bytes()
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path / name
        with self._failures_named("written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Beside the others, so that renaming it is atomic; two attempts of a task must not write the same one.
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
                try:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    file.close()
                    Path(file.name).replace(path)
                except BaseException:
                    with contextlib.suppress(FileNotFoundError):
                        Path(file.name).unlink()
                    raise
            self._keep_names(path.parent)

    def _keep_names(self, folder: Path) -> None:
        """On the disk: that of the file, and of all folders in which it is, whoever has made them."""
        while True:
            try:
                _sync_folder(folder)
            except PermissionError:
                # One above ours, which we may pass through and not list: it was there before us.
                if folder == self._path or self._path in folder.parents:
                    raise
            if folder in (self._path.parent, folder.parent):
                return
            folder = folder.parent

    def names(self, name: str) -> list[str]:
        with self._failures_named("listed"):
            try:
                return sorted(path.name for path in (self._path / name).iterdir())
            except FileNotFoundError:
                return []

    @contextmanager
    def _failures_named(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Not as the cause: it names the file, and so the patient.
            raise InvalidConfiguration(
                f"{self._path} can't be {done} ({error.strerror or type(error).__name__}): whoever writes or reads the "
                "files must have rights there, and the disk room for them",
                path=str(self._path),
            ) from None


def _sync_folder(folder: Path) -> None:
    of = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(of)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no such thing for folders
            raise
    finally:
        os.close(of)


class Bucket:
    """In an object store. An object is there once its upload is completed: what is broken off before leaves none."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        self._url = url
        self._bucket, _, path = url.removeprefix("s3://").partition("/")
        self._root = f"{self._bucket}/{path}".rstrip("/")
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
        with self._failures_named("reached"):
            # A file that isn't large is put there by one request, when it is closed.
            self._fs = fs.S3FileSystem(
                # Where there is none, Amazon's SDK looks for credentials: a role's, those of a profile.
                access_key=environ.get("AWS_ACCESS_KEY_ID") or None,
                secret_key=environ.get("AWS_SECRET_ACCESS_KEY") or None,
                session_token=environ.get("AWS_SESSION_TOKEN") or None,
                endpoint_override=endpoint or None,
                region=region or None,
                allow_delayed_open=True,
                connect_timeout=_CONNECT_SECONDS,
                request_timeout=_SILENT_SECONDS,
            )

    def check_there(self) -> None:
        """Raises InvalidConfiguration where the bucket doesn't exist, nobody answers, or it isn't ours to list."""
        self.names("-")  # which is no patient
        try:
            found = self._fs.get_file_info(self._bucket)
        except OSError:  # a caller who may list a part of the bucket needn't be allowed to ask for all of it
            return
        if found.type is fs.FileType.NotFound:
            raise self._failed("reached", "AWS Error NO_SUCH_BUCKET")

    def read(self, name: str) -> bytes | None:
        with self._failures_named("read"):
            try:
                with self._fs.open_input_file(f"{self._root}/{name}") as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        with self._failures_named("written"), self._fs.open_output_stream(f"{self._root}/{name}") as file:
            file.write(data)  # all at once: closing completes the upload of what was written until then

    def names(self, name: str) -> list[str]:
        with self._failures_named("listed"):
            found = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{name}", allow_not_found=True))
        return sorted(of.base_name for of in found)

    @contextmanager
    def _failures_named(self, done: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # the latter where a part of the credentials is missing
            why = _OF_THE_STORE.search(str(error))
            # Not as the cause: it names the file, and so the patient.
            raise self._failed(done, why[0] if why else type(error).__name__) from None

    def _failed(self, done: str, why: str) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"{self._url} can't be {done} ({why}): there must be such a bucket, and whoever writes or reads the files "
            "must have its endpoint, region and credentials (docs/kubernetes.md, AWS_*)",
            url=self._url,
        )

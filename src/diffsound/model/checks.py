"""A bundle looked at from outside: what it is, a copy, its checksums, and who signed it.

A signature is that of the config, which has the checksum of every other file. OpenSSH signs and
verifies (`ssh-keygen -Y`, since 8.1): a key that people already have, on a disk, in an agent or on
a security token, is enough, and nothing of it is ever read here.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from diffsound.errors import BundleError, DiffsoundError, InputError
from diffsound.files import atomic_write, member, open_regular, sha256
from diffsound.judges import describe_judge, load_judge
from diffsound.model.bundle import (
    CONFIG_FILE,
    RANKERS,
    Bundle,
    read_config,
    reason,
    resolve,
)

SIGNATURE_FILE = f"{CONFIG_FILE}.sig"
PURPOSE = "diffsound-bundle"  # a signature made for something else does not count
MAX_SIGNATURE_BYTES = 2**16


def describe(folder: str | Path | None) -> dict[str, Any]:
    """What `diffsound bundle inspect` shows."""
    bundle = Bundle.from_pretrained(folder)
    config = bundle.config
    return {
        "name": config.name,
        "format_version": config.format_version,
        "text_encoder": config.text_encoder.model_dump(mode="json"),
        "mel": config.codec.mel.model_dump(mode="json"),
        "codec": {
            "rows": bundle.codec.rows,
            "codebook_size": bundle.codec.codebook_size,
            "time_stride": bundle.codec.time_stride,
            "fingerprint": bundle.codec_fingerprint,
        },
        "decoder": config.decoder.model.model_dump(mode="json"),
        "vocoder": config.vocoder.model.model_dump(mode="json"),
        "defaults": config.defaults.model_dump(mode="json"),
        "parameters": bundle.parameters(),
        "known_captions": 0 if bundle.coverage is None else len(bundle.coverage.captions),
        "bytes": sum(info.bytes for info in config.files.values()),
    } | {kind: describe_judge(kind, judge) for kind, judge in bundle.judges.items()}


def copy_bundle(source: Path, target: Path) -> None:
    """Copy the files a bundle's config lists, the config last, as a save would.

    Only regular files of the source are read, and nothing outside the target is written: both may
    come from a stranger.
    """
    config = read_config(source)
    try:
        for name in config.files:
            open_regular(member(source, name)).close()
        target.mkdir(parents=True, exist_ok=True)
        for name in (*config.files, CONFIG_FILE):
            place = target.resolve() / name
            if place.parent.resolve() != place.parent:
                raise OSError(errno.ELOOP, f"'{name}' goes through a link there")
            place.parent.mkdir(parents=True, exist_ok=True)
            with (
                open_regular(member(source, name)) as stream,
                atomic_write(place) as temporary,
                temporary.open("wb") as copy,
            ):
                shutil.copyfileobj(stream, copy)
    except OSError as error:
        raise BundleError(f"cannot copy {source} to {target}: {error.strerror}") from error


def check_ranks(source: str | Path | None) -> None:
    """Refuse a bundle that has no judge to choose among candidates with."""
    folder = resolve(source)
    if not any((folder / kind).is_dir() for kind in RANKERS):
        raise InputError(
            "this bundle has no matcher and no captioner to choose among candidates with; "
            "keep them all, or use a bundle that has one"
        )


def verify(folder: str | Path) -> list[str]:
    """Check every file's checksum and that the bundle loads; return the problems found."""
    folder = resolve(folder)
    config = read_config(folder)
    problems = []
    for name, info in config.files.items():
        try:
            if sha256(member(folder, name)) != info.sha256:
                problems.append(f"{name} is not the file that was saved (checksum differs)")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except OSError as error:
            problems.append(f"{name} cannot be read: {reason(error)}")
    if not config.files:
        problems.append(f"{CONFIG_FILE} lists no files")
    if not problems:
        try:
            for kind, judge in Bundle.from_pretrained(folder).judges.items():
                load_judge(kind, judge)
        except DiffsoundError as error:
            problems.append(str(error))
    return problems


def sign(folder: str | Path, key: str | Path) -> Path:
    """Write the bundle's signature beside its config; asks for the key's passphrase if it has one.

    key: a private key, or the public key of one in the SSH agent.
    """
    read_config(folder)
    if not Path(key).is_file():
        raise InputError(f"there is no key at {key}; ssh-keygen -t ed25519 makes one")
    done = _ssh_keygen("sign", "-f", str(key), "-n", PURPOSE, text=_read(folder, CONFIG_FILE))
    if done.returncode != 0:
        raise InputError(f"cannot sign with {key}: {_last_line(done.stderr)}")
    path = Path(folder) / SIGNATURE_FILE
    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(done.stdout)
    except OSError as error:
        raise BundleError(f"cannot write {path}: {reason(error)}") from error
    return path


def check_signature(folder: str | Path, signers: str | Path) -> str:
    """The name of the one who signed the bundle, by a file of allowed signers; or a BundleError.

    signers: lines of a name and a public key, as `man ssh-keygen` describes them.
    """
    if not Path(signers).is_file():
        raise InputError(f"there is no file of allowed signers at {signers}")
    read_config(folder)
    text, signature = _read(folder, CONFIG_FILE), _read(folder, SIGNATURE_FILE, MAX_SIGNATURE_BYTES)
    with tempfile.NamedTemporaryFile(suffix=".sig") as copy:
        copy.write(signature)
        copy.flush()
        known = ["-f", str(signers), "-s", copy.name]
        found = _ssh_keygen("find-principals", *known)
        name = found.stdout.decode(errors="replace").strip().partition("\n")[0]
        if found.returncode != 0 or not name:
            raise BundleError(f"{folder} is signed by nobody in {signers}")
        done = _ssh_keygen("verify", *known, "-n", PURPOSE, "-I", name, text=text)
    if done.returncode != 0:
        raise BundleError(f"{folder}: {CONFIG_FILE} is not what {name} signed")
    return name


def _read(folder: str | Path, name: str, limit: int = 64 * 2**20) -> bytes:
    try:
        with open_regular(member(folder, name)) as stream:
            data = stream.read(limit + 1)
    except FileNotFoundError:
        raise BundleError(f"{folder} is not signed: it has no {name}") from None
    except OSError as error:
        raise BundleError(f"{Path(folder) / name} cannot be read: {reason(error)}") from error
    if len(data) > limit:
        raise BundleError(f"{Path(folder) / name} is too large")
    return data


def _ssh_keygen(
    operation: str, *arguments: str, text: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    command = ["ssh-keygen", "-Y", operation, *arguments]
    try:
        return subprocess.run(command, input=text, capture_output=True, check=False)
    except FileNotFoundError:
        raise InputError("signatures need ssh-keygen; install OpenSSH 8.1 or newer") from None


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "ssh-keygen gave no reason"

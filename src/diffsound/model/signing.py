"""Who made a bundle: a signature of its config, which has the checksum of every other file.

OpenSSH signs and verifies (`ssh-keygen -Y`, since 8.1): a key that people already have, on a disk,
in an agent or on a security token, is enough, and nothing of it is ever read here.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from diffsound.errors import BundleError, InputError
from diffsound.files import atomic_write, member, open_regular
from diffsound.model.config import CONFIG_FILE, read_config, reason

SIGNATURE_FILE = f"{CONFIG_FILE}.sig"
PURPOSE = "diffsound-bundle"  # a signature made for something else does not count
MAX_SIGNATURE_BYTES = 2**16


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

"""Signatures of bundles, with throw-away keys and the real ssh-keygen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import cli_support
from diffsound.errors import BundleError, InputError
from diffsound.model.checks import SIGNATURE_FILE, check_signature, copy_bundle, sign


def make_key(path: Path) -> str:
    """A key pair without a passphrase; the line of its public key."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True, timeout=60)
    return path.with_name(f"{path.name}.pub").read_text(encoding="utf-8").strip()


@pytest.fixture
def signed(tiny_folder: Path, tmp_path: Path) -> Path:
    """A signed bundle, with the key and the allowed signers beside it."""
    public = make_key(tmp_path / "key")
    (tmp_path / "signers").write_text(f"maker@example.org {public}\n", encoding="utf-8")
    copy_bundle(tiny_folder, tmp_path / "bundle")
    sign(tmp_path / "bundle", tmp_path / "key")
    return tmp_path / "bundle"


def test_the_command_line_signs_and_names_the_signer(signed: Path) -> None:
    (signed / SIGNATURE_FILE).unlink()
    here = signed.parent
    done = cli_support.diffsound("bundle", "sign", "bundle", "--key", "key", cwd=here)
    assert done.returncode == 0, done.stderr
    verify = ("bundle", "verify", "bundle", "--signers", "signers")
    done = cli_support.diffsound(*verify, cwd=here)
    assert done.stdout == "bundle: good, signed by maker@example.org\n"
    (signed / "codec.safetensors").write_bytes(b"x")
    done = cli_support.diffsound(*verify, cwd=here)
    assert done.returncode == 2
    assert "codec.safetensors" in done.stderr


def test_a_changed_config_is_refused(signed: Path) -> None:
    config = signed / "config.json"
    config.write_bytes(config.read_bytes() + b"\n")
    with pytest.raises(BundleError, match=r"is not what maker@example\.org signed"):
        check_signature(signed, signed.parent / "signers")


def test_a_stranger_is_not_trusted(signed: Path) -> None:
    make_key(signed.parent / "other")
    sign(signed, signed.parent / "other")
    with pytest.raises(BundleError, match="signed by nobody in"):
        check_signature(signed, signed.parent / "signers")


def test_a_signature_for_another_purpose_does_not_count(signed: Path) -> None:
    done = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-f", str(signed.parent / "key"), "-n", "git"],
        input=(signed / "config.json").read_bytes(), capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    (signed / SIGNATURE_FILE).write_bytes(done.stdout)
    with pytest.raises(BundleError, match="is not what"):
        check_signature(signed, signed.parent / "signers")


@pytest.mark.parametrize("content", [None, b"", b"noise", b"x" * 2**17])
def test_a_missing_or_broken_signature_is_one_line(signed: Path, content: bytes | None) -> None:
    (signed / SIGNATURE_FILE).unlink()
    if content is not None:
        (signed / SIGNATURE_FILE).write_bytes(content)
    with pytest.raises(BundleError) as caught:
        check_signature(signed, signed.parent / "signers")
    assert "\n" not in str(caught.value)


def test_a_missing_key_and_missing_signers_are_one_line(signed: Path) -> None:
    with pytest.raises(InputError, match="there is no key at"):
        sign(signed, signed.parent / "none")
    with pytest.raises(InputError, match="cannot sign with"):
        sign(signed, signed / "config.json")
    with pytest.raises(InputError, match="no file of allowed signers"):
        check_signature(signed, signed.parent / "none")

"""SPICE, where the user has the Stanford CoreNLP 3.6.0 jars that it needs.

pycocoevalcap's wheel holds SPICE itself but not CoreNLP; its own wrapper downloads CoreNLP into the
installation on first use. Nothing is downloaded here: the user names a folder with

    stanford-corenlp-3.6.0.jar           the parser
    stanford-corenlp-3.6.0-models.jar    its models

which come in https://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip, or from Maven
Central as edu.stanford.nlp:stanford-corenlp:3.6.0, without and with the classifier "models". The
folder may be that zip unpacked, one that holds it, or SPICE's own distribution (`spice-1.0.jar` and
`lib/`), whose SPICE is then used. `checksums` tells which files were used.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from diffsound.errors import DiffsoundError, InputError
from diffsound.evaluation.ptb import coco_folder, java
from diffsound.files import parse_json, sha256

FOLDER_VARIABLE = "DIFFSOUND_CORENLP"
JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
SPICE_JAR = "spice-1.0.jar"
MAIN_CLASS = "edu.anu.spice.SpiceScorer"
_PLACES = ("", "lib", "stanford-corenlp-full-2015-12-09")
# CoreNLP and SPICE's serializer look into the JDK's own classes, which Java 9 closed.
_OPENED = ("java.base/java.lang", "java.base/java.util", "java.base/java.math")


def corenlp_folder(given: str | Path | None = None) -> Path | None:
    """The folder with the jars: the given one, else that of DIFFSOUND_CORENLP, else None.

    A folder that is named but lacks a jar is refused.
    """
    named = given or os.environ.get(FOLDER_VARIABLE)
    if not named:
        return None
    folder = Path(named)
    for jar in JARS:
        if _find(folder, jar) is None:
            raise InputError(
                f"{folder} has no {jar}; SPICE needs the jars of Stanford CoreNLP 3.6.0 "
                "(stanford-corenlp-full-2015-12-09.zip)"
            )
    return folder


def _find(folder: Path, jar: str) -> Path | None:
    return next((p for place in _PLACES if (p := folder / place / jar).is_file()), None)


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of each jar the user gave, by name, for the record of a result."""
    found = {jar: _find(folder, jar) for jar in (SPICE_JAR, *JARS)}
    return {jar: sha256(path) for jar, path in found.items() if path is not None}


def missing_reason(folder: Path | None) -> str | None:
    """Why SPICE cannot run, or None if it can."""
    if folder is None:
        return (
            f"needs the Stanford CoreNLP 3.6.0 jars; name their folder in {FOLDER_VARIABLE} or "
            "with --corenlp"
        )
    return None if java() else "needs Java"


def spice_command(program: str, folder: Path, questions: Path, answers: Path) -> list[str]:
    """The command that scores the JSON file `questions` into the JSON file `answers`."""
    shipped = coco_folder() / "spice"
    own = _find(folder, SPICE_JAR)
    places = [shipped / SPICE_JAR] if own is None else [own, own.parent / "lib" / "*"]
    places += [shipped / "lib" / "*", *(path for jar in JARS if (path := _find(folder, jar)))]
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    classpath = os.pathsep.join(str(place.absolute()) for place in places)
    options = ["-out", str(answers), "-subset", "-silent"]
    return [program, "-Xmx8G", *opened, "-cp", classpath, MAIN_CLASS, str(questions), *options]


def spice_scores(
    candidates: Sequence[str], references: Sequence[Sequence[str]], folder: Path
) -> list[float]:
    """SPICE's F-score of every candidate; both as plain captions."""
    program = java()
    if program is None:
        raise InputError("SPICE needs Java; install a Java runtime")
    with tempfile.TemporaryDirectory(prefix="diffsound-spice-") as scratch:
        questions, answers = Path(scratch, "questions.json"), Path(scratch, "answers.json")
        items = [
            {"image_id": number, "test": said, "refs": list(truth)}
            for number, (said, truth) in enumerate(zip(candidates, references, strict=True))
        ]
        questions.write_text(json.dumps(items), encoding="utf-8")
        command = spice_command(program, folder, questions, answers)
        done = subprocess.run(command, capture_output=True, cwd=scratch, check=False)
        if done.returncode or not answers.is_file():
            problem = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
            raise DiffsoundError(f"SPICE failed: {problem or 'it gave no answer'}")
        return read_answers(answers.read_text(encoding="utf-8"), len(items))


def read_answers(text: str, count: int) -> list[float]:
    """F-scores in the order of the questions; a caption without any tuple has 0, as published."""
    found = {int(item["image_id"]): item["scores"]["All"]["f"] for item in parse_json(text)}
    missing = [number for number in range(count) if number not in found]
    if missing:
        raise DiffsoundError(f"SPICE gave no score for {len(missing)} of {count} captions")
    return [float(found[number] or 0.0) for number in range(count)]

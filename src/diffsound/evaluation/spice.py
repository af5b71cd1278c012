"""SPICE, where the user has the jars it needs, and our own scene-graph score where not.

pycocoevalcap's wheel holds SPICE itself but not Stanford CoreNLP 3.6.0, which its own wrapper
downloads into the installation on first use. Nothing is downloaded here: the user names a folder
with

    stanford-corenlp-3.6.0.jar           the parser
    stanford-corenlp-3.6.0-models.jar    its models

which come in https://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip, or from Maven
Central as edu.stanford.nlp:stanford-corenlp:3.6.0, without and with the classifier "models". The
folder may be that zip unpacked, one that holds it, or SPICE's own distribution (`spice-1.0.jar` and
`lib/`), whose SPICE is then used. `checksums` tells which files were used.

The scene-graph score is an F-score over small graphs read from captions:

    "a small dog barks at a car" -> dog, bark, car, (dog, bark), (dog, small), (dog, at, car)

It is in the spirit of SPICE but not SPICE. Parsers that could replace SPICE's need a spaCy language
model, which no package index carries, or a T5 of a gigabyte; captions of sounds are short and plain
enough for a list of verbs and rules of position. What sounds and what it does are both nodes, so
"the bark of a dog", "a barking dog" and "a dog barks" mean the same, as they do to the ear.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from diffsound.errors import DiffsoundError, InputError, MissingExtraError
from diffsound.files import parse_json, sha256
from diffsound.text import english
from diffsound.text.ptb import ptb_words


def java() -> str | None:
    """The Java program, if this machine has one."""
    return shutil.which("java")


def coco_folder() -> Path:
    """Where pycocoevalcap and its jars are installed."""
    try:
        import pycocoevalcap
    except ModuleNotFoundError:
        raise MissingExtraError("pycocoevalcap", "eval") from None
    return Path(next(iter(pycocoevalcap.__path__)))


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


Fact = tuple[str, ...]


def scene_graph_score(candidate: str, references: Sequence[str]) -> float:
    """F-score of the candidate's facts against those of all references together, 0 to 1."""
    mine = scene_graph(candidate)
    truth = frozenset[Fact]().union(*(scene_graph(reference) for reference in references))
    if not mine or not truth:
        return float(mine == truth)
    shared = len(mine & truth)
    return 2.0 * shared / (len(mine) + len(truth))


@lru_cache(maxsize=65536)
def scene_graph(caption: str) -> frozenset[Fact]:
    """The facts of a caption: nodes (thing,), pairs (thing, action or quality), relations
    (thing, preposition, thing); words in their base form, synonyms as one."""
    facts: set[Fact] = set()
    for clause in _clauses(caption):
        facts |= _Reader(clause).facts()
    return frozenset(facts)


@cache
def _lists() -> dict[str, Any]:
    text = files("diffsound.evaluation").joinpath("scene_graph.yaml").read_text(encoding="utf-8")
    lists: dict[str, Any] = yaml.safe_load(text)
    verbs = sorted(english.VERBS | set(lists["verbs"]))
    lists["third"] = {english.third_person(verb): verb for verb in verbs}
    lists["doing"] = {english.participle(verb): verb for verb in verbs}
    lists["done"] = {_past(verb): verb for verb in verbs} | lists["irregular"]
    lists["base"] = {verb: verb for verb in verbs}
    lists["same"] = {word: group[0] for group in lists["synonyms"] for word in group}
    lists["quality"] = english.ADJECTIVES | set(lists["adjectives"])
    phrases = sorted(lists["phrases"], key=len, reverse=True)
    lists["phrase"] = re.compile(rf"\b({'|'.join(map(re.escape, phrases))})\b")
    ends = sorted(lists["splitting"], key=len, reverse=True)
    lists["split"] = re.compile(rf"[.,;:!?()]+|\b(?:{'|'.join(map(re.escape, ends))})\b")
    return lists


def _past(verb: str) -> str:
    """bark -> barked, rattle -> rattled, drip -> dripped, cry -> cried."""
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ied"
    return re.sub(r"e?ing$", "", english.participle(verb)) + "ed"


def _clauses(caption: str) -> Iterable[list[str]]:
    """The caption's statements as words, without those that say nothing."""
    lists = _lists()
    text = " ".join(caption.lower().split())
    text = lists["phrase"].sub(lambda found: str(lists["phrases"][found[0]]), text)
    for part in lists["split"].split(text):
        words = ptb_words(part)
        kept: list[str] = []
        for place, word in enumerate(words):
            # "the sound of rain" is rain; so is "a series of knocks" knocks.
            weightless = {*lists["empty"], *lists["collective"]}
            after = place > 0 and word == "of" and words[place - 1] in weightless
            alone = len(words) == 1 and word in lists["collective"]
            named = word in lists["collective"] and words[place + 1 : place + 2] != ["of"]
            if not after and (word not in weightless or alone or named):
                kept.append(word)
        yield kept


def _lemma(word: str) -> str:
    """The base form of a noun or verb, and of words that mean the same the one that stands."""
    lists = _lists()
    for table in ("nouns", "doing", "third", "base"):
        if word in lists[table]:
            word = lists[table][word]
            break
    else:
        if re.search(r"[^aeiou]ies$", word):
            word = word[:-3] + "y"
        elif re.search(r"(ch|sh|ss|x|zz)es$", word):
            word = word[:-2]
        elif re.search(r"[^suwi]s$", word) or re.search(r"ws$", word):
            word = word[:-1]
        elif re.search(r"\w{3}ing$", word):
            word = word[:-3]
    return str(lists["same"].get(word, word))


def _manner(word: str) -> str | None:
    """The quality an adverb names: loudly -> loud; None for other words."""
    lists = _lists()
    if word in lists["adverbs"]:
        return str(lists["same"].get(word, word))
    if not re.search(r"\w{3}ly$", word):
        return None
    stem = re.sub(r"ical$", "ic", re.sub(r"i$", "y", word[:-2]))
    stem = lists["done"].get(stem, stem)
    return str(lists["same"].get(stem, stem))


@dataclass
class _Reader:
    """Reads one clause from left to right.

    agents: who acts, if an action comes. action: the last one. prep: the preposition whose thing
    is still to come, anchor: what it belongs to. qualities: said before the thing they are of.
    """

    words: list[str]
    found: set[Fact] = field(default_factory=set)
    agents: list[str] = field(default_factory=list)
    last: str | None = None
    action: str | None = None
    prep: str | None = None
    anchor: str | None = None
    qualities: list[str] = field(default_factory=list)
    joined: bool = False
    open: bool = False  # an article or quality was read: a noun must come

    def facts(self) -> set[Fact]:
        """All facts of the clause."""
        lists = _lists()
        at = 0
        while at < len(self.words):
            word = self.words[at]
            manner = _manner(word)
            if word in ("and", "or"):
                self.joined = True
            elif word in english.ARTICLES:
                self.open = True
            elif word in english.PREPOSITIONS and not self.open:
                self.prep, self.anchor = word, self.last
            elif word in lists["helping"] and not self.open:
                pass
            elif self._is_action(at):
                self._act(_lemma(lists["done"].get(word, word)))
            elif manner is not None and not self.open:
                self._describe(manner)
            elif word in lists["quality"]:
                self.qualities.append(str(lists["same"].get(word, word)))
                self.open = True
            else:
                at = self._thing(at)
            at += 1
        target = self.action or self.last
        self.found |= {(target, word) if target else (word,) for word in self.qualities}
        return self.found

    def _is_action(self, at: int) -> bool:
        """Whether the word is a verb here and not the name of what it does."""
        lists, word = _lists(), self.words[at]
        after = self.words[at + 1] if at + 1 < len(self.words) else ""
        if word in lists["nouns"]:
            return False
        if word in lists["doing"] or re.search(r"\w{3}ing$", word):
            # "a barking dog" is read as dog and bark all the same.
            return word not in lists["quality"] or not self._is_noun(after)
        if self.open:
            return False
        if word in lists["third"]:
            return bool(self.agents) and after not in lists["doing"] and after != "of"
        if word in lists["done"] and word not in lists["base"]:
            return True
        if word not in lists["base"] or not self.agents:
            return False
        before = self.words[at - 1]
        again = self.joined and self.action is not None
        plural = len(self.agents) > 1 or english.is_plural([before])
        return (plural and before not in lists["third"]) or again

    def _is_noun(self, word: str) -> bool:
        lists = _lists()
        others = english.ARTICLES | english.PREPOSITIONS | {"", "and", "or"}
        return word not in others and word not in lists["helping"] and _manner(word) is None

    def _act(self, lemma: str) -> None:
        # "with a dog barking", "rain on a roof dripping": after an action the nearest acts.
        if self.action is not None and not self.joined and self.last not in (None, self.action):
            self.agents = [str(self.last)]
        self.found.add((lemma,))
        self.found |= {(agent, lemma) for agent in self.agents if agent != lemma}
        self.action = self.last = lemma
        self.prep, self.joined = None, False
        self.found |= {(lemma, quality) for quality in self.qualities}
        self.qualities, self.open = [], False

    def _thing(self, at: int) -> int:
        """Read a row of nouns from `at`; its last word is the thing. Returns where it ends."""
        lists = _lists()
        end = at
        while end + 1 < len(self.words) and self._goes_on(end + 1):
            end += 1
        *before, head = [_lemma(word) for word in self.words[at : end + 1]]
        if before and head in lists["base"] and head not in lists["nouns"]:
            # "dog bark": the bark is what the dog does.
            self.found |= {(head,), (before[-1], head)}
            head, before = before[-1], before[:-1]
        self.found.add((head,))
        self.found |= {(head, quality) for quality in (*before, *self.qualities) if quality != head}
        self.qualities, self.open = [], False
        self._place(head, self._is_next_action(end + 1))
        return end

    def _goes_on(self, at: int) -> bool:
        """Whether the word at `at` belongs to the row of nouns before it."""
        word = self.words[at]
        if not self._is_noun(word) or word in _lists()["quality"]:
            return False
        return not self._is_action_after_noun(at)

    def _is_action_after_noun(self, at: int) -> bool:
        """Whether the word at `at` is a verb, given that the one before it names who acts."""
        others = self.agents if self.joined else []
        held = self.agents, self.open
        self.agents, self.open = [*others, self.words[at - 1]], False
        verb = self._is_action(at)
        self.agents, self.open = held
        return verb

    def _is_next_action(self, at: int) -> bool:
        """Whether the words from `at` on begin with a verb of the thing just read."""
        helping = _lists()["helping"]
        while at < len(self.words) and (self.words[at] in helping or _manner(self.words[at])):
            at += 1
        return at < len(self.words) and self._is_action_after_noun(at)

    def _place(self, head: str, acts: bool) -> None:
        """Give the thing its part: of a preposition, of an action, or who acts next."""
        lists = _lists()
        if self.prep is not None and self.anchor is not None:
            if self.prep == "of" and self.anchor in lists["base"]:
                self.found.add((head, self.anchor))  # "the bark of a dog"
            elif self.anchor == self.action and self.agents:
                self.found.add((self.agents[-1], self.prep, head))
            else:
                self.found.add((self.anchor, self.prep, head))
            if self.prep == "of" and self.action is None:
                self.agents = [head]
        elif self.action is not None and not (self.joined and acts):
            self.found.add((head, self.action))  # what is done is done to something
        elif self.joined and self.action is None:
            self.agents.append(head)
        else:
            self.agents, self.action = [head], None
        self.prep, self.last, self.joined = None, head, False

    def _describe(self, quality: str) -> None:
        if target := self.action or self.last:
            self.found.add((target, quality))
        else:
            self.qualities.append(quality)

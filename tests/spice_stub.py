"""A SPICE that needs no CoreNLP: the published program's arguments and files, another score.

It counts words, so a test can say what comes out, and it runs on the real Java by the real command.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

from diffsound.evaluation import spice
from diffsound.evaluation.spice import coco_folder

JAVAC = shutil.which("javac")

SOURCE = """
package edu.anu.spice;

import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.json.simple.*;
import org.json.simple.parser.JSONParser;

public class SpiceScorer {
    public static void main(String[] words) throws Exception {
        List<String> options = Arrays.asList(words);
        if (!options.contains("-subset") || !options.contains("-silent")) {
            System.err.println("expected -subset and -silent");
            System.exit(3);
        }
        JSONArray answers = new JSONArray();
        try (Reader in = new InputStreamReader(
                new FileInputStream(words[0]), StandardCharsets.UTF_8)) {
            for (Object item : (JSONArray) new JSONParser().parse(in)) {
                JSONObject question = (JSONObject) item;
                JSONObject all = new JSONObject();
                JSONArray references = (JSONArray) question.get("refs");
                all.put("f", score((String) question.get("test"), references));
                JSONObject scores = new JSONObject();
                scores.put("All", all);
                JSONObject answer = new JSONObject();
                answer.put("image_id", question.get("image_id"));
                answer.put("scores", scores);
                answers.add(answer);
            }
        }
        Collections.reverse(answers);
        try (Writer out = new OutputStreamWriter(
                new FileOutputStream(options.get(options.indexOf("-out") + 1)),
                StandardCharsets.UTF_8)) {
            answers.writeJSONString(out);
        }
    }

    /** The F-score of the words said against all references; null where nothing is said. */
    static Double score(String said, JSONArray references) {
        Set<String> mine = split(said);
        Set<String> theirs = new HashSet<>();
        for (Object reference : references) theirs.addAll(split((String) reference));
        if (mine.isEmpty()) return null;
        Set<String> both = new HashSet<>(mine);
        both.retainAll(theirs);
        return 2.0 * both.size() / (mine.size() + theirs.size());
    }

    static Set<String> split(String text) {
        Set<String> words = new HashSet<>(Arrays.asList(text.toLowerCase().split("[^\\\\p{L}]+")));
        words.remove("");
        return words;
    }
}
"""


def build(folder: Path) -> Path:
    """A folder like SPICE's own distribution: spice-1.0.jar, and (empty) CoreNLP jars in lib."""
    assert JAVAC is not None
    source = folder / "SpiceScorer.java"
    (folder / "lib").mkdir(parents=True)
    source.write_text(SOURCE, encoding="utf-8")
    json_simple = coco_folder() / "spice" / "lib" / "json-simple-1.1.1.jar"
    command = [JAVAC, "-nowarn", "-Xlint:none", "-encoding", "utf-8", "-cp", str(json_simple)]
    subprocess.run([*command, "-d", str(folder), str(source)], check=True, capture_output=True)
    with zipfile.ZipFile(folder / spice.SPICE_JAR, "w") as jar:
        for compiled in folder.rglob("*.class"):
            jar.write(compiled, compiled.relative_to(folder))
    for name in spice.JARS:
        with zipfile.ZipFile(folder / "lib" / name, "w"):
            pass
    return folder


def score(said: str, references: list[str]) -> float:
    """What the stub answers, in Python."""
    mine = set(said.lower().split())
    theirs = {word for reference in references for word in reference.lower().split()}
    return 2 * len(mine & theirs) / (len(mine) + len(theirs)) if mine else 0.0

// Figures in words: how well a take fits its text, and how well the model knows such texts.

// Cosines of the model's matcher. Takes of prompts it does well lie between .4 and .8.
const FITS = [
  [0.6, "Strong fit", "The model’s listener hears your words clearly in this take."],
  [0.4, "Good fit", "The model’s listener hears most of your words in this take."],
  [0.25, "Fair fit", "Only part of your words is heard in this take. Another take may be closer."],
  [-1, "Loose fit", "Hardly any of your words are heard in this take. Try other words or more takes."],
];

export function fitWords(score) {
  if (score == null) return null;
  const [, word, meaning] = FITS.find(([from]) => score >= from) ?? FITS.at(-1);
  return {
    word,
    text: `${meaning} Score ${score.toFixed(2)} of 1; compare it between takes of one prompt, not between prompts.`,
  };
}

const COVERAGE = {
  known: ["Familiar", "The model was trained on sounds like this one."],
  similar: ["Related", "The model knows something close to this."],
  far: ["Unfamiliar", "The model has heard nothing like this and falls back on the nearest it knows."],
};

export function coverageWords(coverage) {
  if (!coverage) return null;
  const [word, meaning] = COVERAGE[coverage.verdict] ?? ["Coverage", ""];
  const nearest = [].concat(coverage.nearest ?? []).slice(0, 3).map((one) => `“${one.caption ?? one}”`);
  const list = nearest.length ? ` Nearest in its training: ${nearest.join(", ")}.` : "";
  return { word, text: meaning + list, verdict: coverage.verdict };
}

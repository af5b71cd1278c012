// The prompt with length, takes and loop beside it, and the drawer with every other setting.

import { byId, isPressed, press, seconds } from "./dom.js";
import { FILE_SETTINGS, fileSettings, keepFiles, restoreFiles, setFiles } from "./files.js";

const NUMBERS = ["duration", "num_candidates", "keep", "seed", "guidance_scale", "num_inference_steps",
  "temperature", "top_k", "truncation", "best_of"];
const OF_EDITS = ["num_candidates", "seed", "negative_prompt", "guidance_scale", "num_inference_steps",
  "sampler", "temperature", "top_k", "truncation", "bundle"];

export class Composer extends EventTarget {
  constructor() {
    super();
    this.form = byId("composer");
    this.drawer = byId("settings");
    this.fields = byId("settings-form");
    this.prompt = byId("prompt");
    this.defaults = {};
    this.#wire();
  }

  // Everything that was set, by the names of the API.
  settings() {
    const values = {};
    for (const [name, value] of [...new FormData(this.form), ...new FormData(this.fields)]) {
      if (value === "" || value instanceof File || FILE_SETTINGS.includes(name)) continue;
      values[name] = NUMBERS.includes(name) ? Number(value) : value;
    }
    for (const name of ["layered", "fast"]) {
      if (name in values) values[name] = values[name] === "true";
    }
    if (isPressed(byId("auto"))) values.duration = "auto";
    if (isPressed(byId("loop"))) values.loop = true;
    const { variations, num_candidates: takes, ...rest } = values;
    if (!variations) return values;
    return takes > 1 ? { ...rest, variations: takes } : rest; // one sound has no variations
  }

  editSettings() {
    const values = this.settings();
    values.num_candidates ??= values.variations ?? 1; // an edit has no variations, but takes
    return Object.fromEntries(Object.entries(values).filter(([name]) => OF_EDITS.includes(name)));
  }

  // Put settings into the form; those not given go back to the model's own. Files stay as they are.
  fill({ variations, ...values }) {
    const files = fileSettings();
    this.reset();
    setFiles(files);
    if (variations) values = { ...values, num_candidates: variations };
    this.fields.elements.namedItem("variations").value = variations ? "true" : "";
    for (const [name, value] of Object.entries(values)) {
      const own = this.form.elements.namedItem(name);
      const field = own ?? this.fields.elements.namedItem(name);
      // A setting that is the model's own stays unset: it is no change.
      if (field && (own || this.defaults[name] !== value)) field.value = value;
    }
    press(byId("auto"), values.duration === "auto");
    press(byId("loop"), values.loop === true);
    this.#show();
  }

  // A prompt to try, with the length that suits it.
  suggest({ prompt, duration }) {
    this.prompt.value = prompt;
    if (duration) {
      byId("duration").value = duration;
      press(byId("auto"), false);
    }
    this.complain("");
    this.#show();
    this.prompt.focus();
  }

  reset() {
    this.fields.reset();
    keepFiles();
    this.#show();
  }

  openFiles() {
    this.#openDrawer();
    byId("files-title").scrollIntoView({ block: "start" });
    this.fields.elements.namedItem("rate").focus({ preventScroll: true });
  }

  complain(message) {
    byId("problem").textContent = message;
    byId("problem").hidden = !message;
  }

  busy(on) {
    byId("go").hidden = on;
    byId("stop").hidden = !on;
  }

  offer(bundles, limits) {
    const [chosen] = bundles;
    const { defaults } = chosen;
    this.defaults = defaults;
    byId("duration").max = limits.duration;
    byId("duration").value = defaults.duration;
    byId("takes").max = limits.candidates;
    this.prompt.maxLength = limits.prompt_chars;
    const field = (name) => this.fields.elements.namedItem(name);
    for (const name of ["guidance_scale", "num_inference_steps", "temperature", "truncation", "best_of"]) {
      field(name).placeholder = defaults[name] ?? "";
    }
    field("top_k").placeholder = defaults.top_k ?? "all";
    field("rate").options[0].text = `as made, ${chosen.sample_rate / 1000} kHz`;
    field("num_inference_steps").max = Math.min(limits.steps, chosen.timesteps ?? limits.steps);
    byId("keep-setting").hidden = !bundles.some((bundle) => bundle.ranks);
    restoreFiles();
    if (bundles.length > 1) {
      field("bundle").replaceChildren(...bundles.map(({ name }) => new Option(name, name)));
      byId("bundle-setting").hidden = false;
    }
    byId("go").disabled = false;
    this.#show();
  }

  #wire() {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.fields.checkValidity()) this.dispatchEvent(new Event("submit"));
      else this.#openDrawer();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!byId("go").disabled) this.form.requestSubmit();
    });
    for (const form of [this.form, this.fields]) {
      form.addEventListener("input", () => {
        this.complain(""); // what was wrong may be right now
        this.#show();
      });
    }
    for (const button of this.form.querySelectorAll("[data-step]")) {
      button.addEventListener("click", () => {
        const takes = byId("takes");
        if (button.dataset.step > 0) takes.stepUp();
        else takes.stepDown();
        this.#show();
      });
    }
    this.fields.addEventListener("change", keepFiles);
    for (const toggle of [byId("auto"), byId("loop")]) {
      toggle.addEventListener("click", () => {
        press(toggle, !isPressed(toggle));
        this.#show();
      });
    }
    byId("duration").addEventListener("input", () => press(byId("auto"), false));
    byId("open-settings").addEventListener("click", () => this.#openDrawer());
    byId("reset-settings").addEventListener("click", () => this.reset());
    this.drawer.addEventListener("click", (event) => {
      if (event.target === this.drawer) this.drawer.close();
    });
  }

  #openDrawer() {
    this.drawer.showModal();
    this.fields.reportValidity();
  }

  #show() {
    const auto = isPressed(byId("auto"));
    byId("duration-shown").textContent = auto ? "auto" : seconds(Number(byId("duration").value)).replace(".0 s", " s");
    this.form.classList.toggle("auto-length", auto);
    byId("keep").max = byId("takes").value || 1; // no more can be kept than are made
    // Variations are all kept, and an edit of a loop would open it.
    const varied = this.fields.elements.namedItem("variations").value !== "";
    byId("keep").disabled = varied || byId("keep-setting").hidden;
    byId("loop").disabled = varied;
    if (varied) press(byId("loop"), false);
    const several = byId("bundle-setting").hidden ? [] : ["bundle"];
    const changed = [...new FormData(this.fields)].filter(([name, value]) => value !== "" && !several.includes(name)).length;
    byId("changed").textContent = changed;
    byId("changed").hidden = !changed;
    byId("open-settings").setAttribute("aria-label", changed ? `Settings, ${changed} changed` : "Settings");
  }
}

// A card's edits: regenerate the selection, extend, vary.

const FIELDS = { inpaint: ["start", "end", "low", "high"], extend: ["seconds"], vary: ["strength"] };

export class EditPanel extends EventTarget {
  constructor(form, opener, scope) {
    super();
    this.form = form;
    this.opener = opener;
    this.scope = scope;
    form.addEventListener("submit", (event) => event.preventDefault());
    opener.addEventListener("click", () => this.open(form.hidden));
    scope.addEventListener("select", (event) => this.#showSelection(event.detail));
    for (const name of FIELDS.inpaint) this.#field(name).addEventListener("change", () => this.#selectTyped());
    for (const button of form.querySelectorAll("[data-edit]")) {
      button.addEventListener("click", () => this.#edit(button.dataset.edit));
    }
  }

  show(sound) {
    this.#field("prompt").value = sound.prompt;
    this.#field("start").max = sound.seconds;
    this.#field("end").max = sound.seconds;
  }

  open(on) {
    this.form.hidden = !on;
    this.opener.setAttribute("aria-expanded", String(on));
  }

  #field(name) {
    return this.form.elements.namedItem(name);
  }

  #showSelection(selection) {
    const { start, end, low, high } = selection ?? {};
    this.#field("start").value = start?.toFixed(2) ?? "";
    this.#field("end").value = end?.toFixed(2) ?? "";
    this.#field("low").value = low == null ? "" : Math.round(low);
    this.#field("high").value = high == null ? "" : Math.round(high);
    this.form.querySelector("[data-edit=inpaint]").disabled = !selection;
    if (selection) this.open(true);
  }

  #selectTyped() {
    const [start, end, low, high] = FIELDS.inpaint.map((name) => {
      const { value } = this.#field(name);
      return value === "" ? null : Number(value);
    });
    if (start !== null && end !== null) this.scope.select(start, end, low, high);
  }

  #edit(operation) {
    const prompt = this.#field("prompt");
    if (!prompt.value.trim()) {
      prompt.value = "";
      prompt.focus();
      prompt.reportValidity();
      return;
    }
    const fields = { prompt: prompt.value };
    for (const name of FIELDS[operation]) {
      if (!this.#field(name).reportValidity()) return;
      if (this.#field(name).value !== "") fields[name] = this.#field(name).value;
    }
    this.dispatchEvent(new CustomEvent("edit", { detail: { operation, fields } }));
  }
}

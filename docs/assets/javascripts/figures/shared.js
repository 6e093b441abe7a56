// What the figures share: fields, their state in the address, and how a still picture comes to life.
//
// A figure is {fields, presets, words, compute, draw}. compute(state) needs no page; draw(result,
// state, words) gives {picture, sentence} as HTML. The page is built with what html() returned for
// a preset (tools/site/stills.py wrote it down), so nothing moves when a figure starts.
(() => {
  const figures = {};

  const range = (count) => Array.from({ length: count }, (_, index) => index);
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const rounded = (number, digits = 3) =>
    number.toLocaleString("en", { maximumSignificantDigits: digits });

  const WORDS = {
    en: {
      link: "Link to this setting",
      changed: "{name}: {given} is not possible, {used} is shown ({allowed}).",
      unknown: "There is no {name} here.",
    },
    zh: {
      link: "当前设置的链接",
      changed: "{name} 不能是 {given}，这里按 {used} 显示（{allowed}）。",
      unknown: "这里没有 {name} 这一项。",
    },
  };

  // The state that is nearest to what was given (texts by name), and what had to be changed for it.
  function fit(fields, given) {
    const state = {};
    const changes = [];
    for (const field of fields) {
      const { name, value, options, min, max } = field;
      const text = given[name];
      state[name] = value;
      if (text === undefined) continue;
      if (options) {
        if (options.includes(text)) state[name] = text;
      } else if (typeof value === "boolean") {
        state[name] = text === "true";
      } else if (text.trim() !== "" && Number.isFinite(Number(text))) {
        const near = Math.min(max, Math.max(min, Number(text)));
        state[name] = field.any ? near : Math.round(near);
      }
      const known = typeof value === "boolean" ? ["true", "false"] : [String(state[name])];
      const same = options || !Number.isFinite(Number(text)) ? text : String(Number(text));
      if (!known.includes(same)) changes.push({ field, given: text });
    }
    return { state, changes };
  }

  function control(field, value, words) {
    const { name, options, min, max, any } = field;
    const label = words.fields[name];
    if (options) {
      const choices = options.map(
        (option) =>
          `<option value="${option}"${option === value ? " selected" : ""}>${words.options[option]}</option>`,
      );
      return `<label>${label} <select name="${name}">${choices.join("")}</select></label>`;
    }
    if (typeof value === "boolean") {
      const checked = value ? " checked" : "";
      return `<label><input type="checkbox" name="${name}"${checked}> ${label}</label>`;
    }
    const limits = `name="${name}" min="${min}" max="${max}" value="${value}"`;
    if (field.typed) {
      const step = any ? "any" : 1;
      return `<label>${label} <input type="number" inputmode="decimal" step="${step}" ${limits}></label>`;
    }
    const slider = `${label} <output>${value}</output><input type="range" ${limits}>`;
    if (!field.buttons) return `<label>${slider}</label>`;
    const button = (step, sign) =>
      `<button type="button" data-field="${name}" data-by="${step}" aria-label="${label} ${sign}1">${sign}</button>`;
    return `<span class="fig-steps">${button(-1, "−")}<label>${slider}</label>${button(1, "+")}</span>`;
  }

  const address = (name, state) => `#fig-${name}?${new URLSearchParams(state)}`;
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

  // What a change may change; the controls stay, and with them the focus.
  function parts(name, state, language) {
    const figure = figures[name];
    const words = figure.words[language];
    return figure.draw(figure.compute(state), state, words);
  }

  function html(name, preset, language) {
    const { fields, presets, words } = figures[name];
    const { state } = fit(fields, presets[preset]);
    const { picture, sentence } = parts(name, state, language);
    const controls = fields.map((field) => control(field, state[field.name], words[language]));
    return [
      `<form class="fig-controls" data-search-exclude aria-label="${words[language].title}">`,
      ...controls,
      "</form>",
      `<section class="fig-picture" data-search-exclude>${picture}</section>`,
      `<p class="fig-sentence" role="status">${sentence}</p>`,
      `<p class="fig-foot" data-search-exclude><a href="${escaped(address(name, state))}">${WORDS[language].link}</a></p>`,
    ].join("\n");
  }

  function start(element) {
    const name = element.dataset.figure;
    const language = document.documentElement.lang.slice(0, 2);
    const figure = figures[name];
    const words = figure.words[language];
    const form = element.querySelector("form");
    const data = element.querySelector("script");
    if (data) figure.data = { models: JSON.parse(data.textContent) };

    function show(given) {
      const { state, changes } = fit(figure.fields, given);
      figure.limit?.(state);
      const { picture, sentence } = parts(name, state, language);
      const notes = changes.map(({ field, given: text }) => {
        const { name: key, min, max, options = ["true", "false"] } = field;
        const allowed = max === undefined ? options.join(", ") : `${min}–${max}`;
        const values = { name: words.fields[key], given: escaped(text), used: state[key], allowed };
        return fill(WORDS[language].changed, values);
      });
      for (const key of Object.keys(given)) {
        if (key in state) continue;
        notes.push(fill(WORDS[language].unknown, { name: escaped(key) }));
      }
      element.querySelector(".fig-picture").innerHTML = picture;
      element.querySelector(".fig-sentence").innerHTML = [...notes, sentence].join(" ");
      element.querySelector(".fig-foot a").href = address(name, state);
      return state;
    }

    const read = () =>
      Object.fromEntries(
        figure.fields.map(({ name, value }) => {
          const input = form.elements[name];
          return [name, typeof value === "boolean" ? String(input.checked) : input.value];
        }),
      );

    function write(state, typing) {
      for (const { name, value } of figure.fields) {
        const input = form.elements[name];
        if (typeof value === "boolean") input.checked = state[name];
        else if (input !== typing) input.value = state[name];
        const output = input.parentElement.querySelector("output");
        if (output) output.textContent = state[name];
      }
    }

    function change(event) {
      write(show(read()), event.type === "input" ? event.target : null); // typing is not corrected
    }

    function go() {
      const [, wanted, query] = /^#fig-(\w+)\?(.*)$/.exec(location.hash) ?? [];
      if (wanted !== name) return;
      form.reset(); // what the address leaves out is as in the still picture
      write(show({ ...read(), ...Object.fromEntries(new URLSearchParams(query)) }), null);
      element.scrollIntoView();
    }

    form.addEventListener("input", change);
    form.addEventListener("change", change);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("click", (event) => {
      const { field, by } = event.target.dataset;
      if (!field) return;
      form.elements[field].value = Number(form.elements[field].value) + Number(by);
      change(event);
    });
    globalThis.addEventListener("hashchange", go);
    write(show(read()), null); // as the browser has kept the fields
    go();
  }

  globalThis.cookbook = { figures, fit, html, range, fill, rounded };
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-figure]").forEach(start);
  });
})();

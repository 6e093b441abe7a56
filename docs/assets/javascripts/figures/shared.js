// What the figures share: fields, their state in the address, and how a still picture comes to life.
//
// A figure is {fields, presets, words, compute, draw}. compute(state) needs no page; draw(result,
// state, words) gives as HTML the picture, the sentence below it, and in `short` what a screen reader
// says. The page is built with what html() returned for a preset (tools/site/draw.py wrote it
// down), so nothing moves when a figure starts.
(() => {
  const figures = {};

  const range = (count) => Array.from({ length: count }, (_, index) => index);
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const rounded = (number, digits = 3) =>
    number.toLocaleString("en", { maximumSignificantDigits: digits });

  const WORDS = {
    en: { link: "Link to this setting", more: "more" },
    zh: { link: "当前设置的链接", more: "更多设置" },
  };

  // The state that is nearest to what was given, texts by name.
  function fit(fields, given) {
    const state = {};
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
    }
    for (const { name, limit } of fields)
      if (limit) state[name] = Math.min(state[name], limit(state));
    return state;
  }

  const plain = (html) => html.replace(/<[^>]*>/g, "");
  const isIdle = ({ when }, state) => when !== undefined && !when(state);

  function control(field, state, words) {
    const { name, options, max, any } = field;
    const value = state[name];
    const hidden = isIdle(field, state) ? " hidden" : "";
    const label = (input) => `<label${hidden}><span>${words.fields[name]}</span>${input}</label>`;
    if (options) {
      const choices = options.map(
        (option) =>
          `<option value="${option}"${option === value ? " selected" : ""}>${words.options[option]}</option>`,
      );
      return label(`<select name="${name}">${choices.join("")}</select>`);
    }
    if (typeof value === "boolean")
      return label(`<input type="checkbox" name="${name}"${value ? " checked" : ""}>`);
    const limits = `name="${name}" min="${field.min}" max="${field.limit?.(state) ?? max}" value="${value}"`;
    if (field.typed)
      return label(`<input type="number" inputmode="decimal" step="${any ? "any" : 1}" ${limits}>`);
    const slider = label(`<output>${value}</output><input type="range" ${limits}>`);
    if (!field.buttons) return slider;
    const button = (by, sign) =>
      `<button type="button" data-by="${by}" aria-label="${words.fields[name]} ${sign}1">${sign}</button>`;
    return `<div class="fig-steps">${slider}${button(-1, "−")}${button(1, "+")}</div>`;
  }

  const isSet = (query, state) =>
    [...new URLSearchParams(query)].every(([name, text]) => String(state[name]) === text);
  const address = (name, state) => `#fig-${name}?${new URLSearchParams(state)}`;
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

  // What a change may change; the controls stay, and with them the focus.
  function parts(name, state, language) {
    const figure = figures[name];
    const drawn = figure.draw(figure.compute(state), state, figure.words[language]);
    drawn.sentence = drawn.sentence
      .replaceAll("。 ", "。")
      .replace(/(\d) (%|[mM]?s\b|[MG]B|毫秒|步|张)/g, "$1\u00a0$2"); // stay in one line
    return drawn;
  }

  function html(name, preset, language) {
    const { fields, presets, words, choices = {}, shown } = figures[name];
    const state = fit(fields, presets[preset]);
    const { picture, sentence } = parts(name, state, language);
    const own = words[language];
    const buttons = Object.entries(choices[preset] ?? {}).map(
      ([key, set]) =>
        `<button type="button" data-set="${set}" aria-pressed="${isSet(set, state)}">${own.choices[key]}</button>`,
    );
    const controls = (some) => some.map((field) => control(field, state, own)).join("\n");
    const more = fields.filter((field) => buttons.length || !(shown?.includes(field.name) ?? true));
    const form = [
      `<form class="fig-controls" data-search-exclude aria-label="${own.title}">`,
      ...buttons,
      controls(fields.filter((field) => !more.includes(field))),
      more.length
        ? `<details><summary>${WORDS[language].more}</summary><div class="fig-controls">${controls(more)}</div></details>`
        : "",
      "</form>",
    ].join("\n");
    const drawn = `<section class="fig-picture" data-search-exclude>${picture}</section>\n<p class="fig-sentence">${sentence}</p>`;
    return [
      `<figcaption>${own.title}</figcaption>`,
      '<div class="fig-body">',
      drawn,
      form,
      `<p class="fig-foot" data-search-exclude><a href="${escaped(address(name, state))}">${WORDS[language].link}</a></p>`,
      "</div>",
      '<p class="fig-status" role="status"></p>',
    ].join("\n");
  }

  function start(element) {
    const name = element.dataset.figure;
    const language = document.documentElement.lang.slice(0, 2);
    const figure = figures[name];
    const form = element.querySelector("form");
    const data = element.querySelector("script");
    if (data) figure.data = { models: JSON.parse(data.textContent) };

    // Draws what is nearest to the given texts, which the fields then show (but not while one types),
    // and gives the short sentence.
    function show(given, typing) {
      const state = fit(figure.fields, given);
      const { picture, sentence, short } = parts(name, state, language);
      element.querySelector(".fig-picture").innerHTML = picture;
      element.querySelector(".fig-sentence").innerHTML = sentence;
      element.querySelector(".fig-foot a").href = address(name, state);
      for (const button of form.querySelectorAll("[data-set]"))
        button.setAttribute("aria-pressed", isSet(button.dataset.set, state));
      for (const field of figure.fields) {
        const input = form.elements[field.name];
        const value = state[field.name];
        const label = input.closest("label");
        label.hidden = isIdle(field, state);
        if (field.limit) input.max = field.limit(state);
        if (typeof value === "boolean") input.checked = value;
        else if (input !== typing) input.value = value;
        const output = label.querySelector("output");
        if (output) output.textContent = value;
      }
      return plain(short);
    }

    const read = () =>
      Object.fromEntries(
        figure.fields.map(({ name: key, value }) => {
          const input = form.elements[key];
          return [key, typeof value === "boolean" ? String(input.checked) : input.value];
        }),
      );

    // A screen reader hears where a slider has come to rest, and not each of its steps.
    let saying;
    function say(short) {
      clearTimeout(saying);
      saying = setTimeout(() => {
        element.querySelector(".fig-status").textContent = short;
      }, 500);
    }

    function change(event) {
      say(show(read(), event.type === "input" ? event.target : null));
    }

    function press({ target }) {
      if (target.dataset.set) {
        const set = Object.fromEntries(new URLSearchParams(target.dataset.set));
        say(show({ ...read(), ...set }, null));
      } else if (target.dataset.by) {
        const counter = target.parentElement.querySelector("input");
        counter.value = Number(counter.value) + Number(target.dataset.by);
        say(show(read(), null));
      }
    }

    function go() {
      const [, wanted, query] = /^#fig-(\w+)\?(.*)$/.exec(location.hash) ?? [];
      if (wanted !== name) return;
      form.reset(); // what the address leaves out is as in the still picture
      say(show({ ...read(), ...Object.fromEntries(new URLSearchParams(query)) }, null));
      element.scrollIntoView();
    }

    form.addEventListener("input", change);
    form.addEventListener("change", change);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("click", press);
    globalThis.addEventListener("hashchange", go);
    show(read(), null); // as the browser has kept the fields
    go();
  }

  globalThis.cookbook = { figures, fit, html, range, fill, rounded, plain };
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-figure]").forEach(start);
  });
})();

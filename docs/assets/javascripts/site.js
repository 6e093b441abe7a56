// Small things that Material's own script leaves out.
(() => {
  // The language switch keeps the place in the page, and what a link has set there.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.(".md-select__link");
    if (link) link.href = link.href.replace(/[?#].*/, "") + location.search + location.hash;
  });

  // Text may come by paste, by dictation, from an input method: no key goes up.
  const field = document.querySelector(".md-search__input");
  field.addEventListener("input", () => field.dispatchEvent(new Event("keyup")));

  // How deep a line of code begins: on a phone what goes on below it is deeper still.
  for (const line of document.querySelectorAll(".ln, .cd-hunk > [data-l]"))
    line.style.setProperty("--indent", Math.max(0, line.textContent.search(/\S/)));

  // A difference is copied as the new code: without removed lines and signs.
  function newCode(text) {
    const lines = text.trimEnd().split("\n");
    return lines.flatMap((line) => (line.startsWith("-") ? [] : line.slice(1))).join("\n");
  }

  for (const figure of document.querySelectorAll("figure.cd")) {
    const button = document.createElement("button");
    button.className = "md-code__button cd-copy";
    button.type = "button";
    button.dataset.mdType = "copy";
    button.title = document.documentElement.lang === "zh" ? "复制新代码" : "Copy the new code";
    figure.querySelector("figcaption").append(button);
  }

  // Material copies data-clipboard-text if a button has it; this listener is the first to know.
  document.addEventListener(
    "click",
    (event) => {
      const button = event.target.closest?.("[data-md-type=copy]");
      const code = button?.closest(".language-diff")?.querySelector("code");
      const rows = button?.closest("figure.cd")?.querySelectorAll(".cd-new, .cd-add");
      if (code) button.dataset.clipboardText = newCode(code.textContent);
      if (rows)
        button.dataset.clipboardText = Array.from(rows, (row) => row.textContent).join("\n");
    },
    true,
  );

  // Contents at the top of a long page: mark the part that is being read.
  const pills = [...document.querySelectorAll(".toc ul ul a")];
  const parts = pills.map((pill) =>
    document.getElementById(decodeURIComponent(pill.hash.slice(1))),
  );
  let current = null;
  function mark() {
    const number = parts.findLastIndex(
      (part, n) => pills[n].offsetParent && part.getBoundingClientRect().top < 200,
    );
    if (pills[number] === current) return;
    current?.removeAttribute("aria-current");
    current = pills[number];
    if (!current) return;
    current.setAttribute("aria-current", "true");
    const row = current.closest(".toc > ul > li > ul");
    row.scrollLeft = current.offsetLeft - row.offsetLeft - row.clientWidth / 3;
  }
  if (pills.length > 0) {
    addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
    mark();
  }
})();

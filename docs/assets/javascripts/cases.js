// Case files: a symptom of the table shows its cases alone, a second click all of them again.
(() => {
  const heading = document.getElementById("by-symptom");
  if (!heading) return;
  const english = document.documentElement.lang === "en";
  const parts = []; // what may be hidden, and the cases that it belongs to
  const buttons = [];
  let table;
  let intro;
  let own;
  for (const element of heading.parentElement.children) {
    table ??= element.matches("table") ? element : element.querySelector("table");
    if (element.tagName === "H2") {
      intro = [];
      own = undefined;
    } else if (element.tagName === "H3") {
      own = [element.id];
      intro.push(element.id);
    }
    if (intro) parts.push([element, own ?? intro]);
  }

  function show(button) {
    for (const other of buttons) other.setAttribute("aria-pressed", other === button);
    const links = button?.closest("tr").querySelectorAll("a") ?? [];
    const wanted = [...links].map((link) => link.hash.slice(1));
    for (const [element, names] of parts) {
      const hidden = button && names.length && !names.some((name) => wanted.includes(name));
      element.classList.toggle("cs-hidden", Boolean(hidden));
    }
  }

  for (const { cells } of table.tBodies[0].rows) {
    const button = document.createElement("button");
    button.append(...cells[0].childNodes);
    button.addEventListener("click", () => {
      show(button.getAttribute("aria-pressed") === "true" ? undefined : button);
    });
    buttons.push(button);
    cells[0].append(button);
    cells[0].classList.add("cs-symptom");
  }
  show();
  const hint = document.createElement("p");
  hint.textContent = english
    ? "Click a symptom to see its cases alone, once more to see all."
    : "点一个现象，只看这一类案例；再点一次，恢复全部。";
  heading.after(hint);

  // A link to a case that is hidden
  window.addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target?.matches(".cs-hidden")) return;
    show();
    target.scrollIntoView();
  });
})();

// The difference of any two chapters, from the rows that tools/site/diffs.py worked out.
(() => {
  const box = document.querySelector(".cd-compare");
  if (!box) return;
  const { paths, lines, pairs } = JSON.parse(box.querySelector("script").textContent);
  const [from, to] = box.querySelectorAll("select");
  const result = box.querySelector(".cd-result");

  function line(kind, number, row, html) {
    const element = document.createElement("div");
    element.className = `cd-${kind}${html.includes("[dist]") ? " dist" : ""}`;
    element.dataset.l = number;
    element.style.setProperty("--r", row);
    element.innerHTML = html;
    element.style.setProperty("--indent", Math.max(0, element.textContent.search(/\S/)));
    if (kind === "old") element.setAttribute("aria-hidden", "true");
    return element;
  }

  // Backwards, what was added is removed. Each change shows what it removes first.
  function turned(rows) {
    const swapped = rows.map(([kind, old, now, text, row]) => [
      { "-": "+", "+": "-" }[kind] ?? kind,
      now,
      old,
      text,
      row,
    ]);
    const sorted = [];
    let change = [];
    for (const row of [...swapped, ["="]]) {
      if (row[0] === "=") {
        sorted.push(
          ...change.filter((r) => r[0] === "-"),
          ...change.filter((r) => r[0] === "+"),
          row,
        );
        change = [];
      } else {
        change.push(row);
      }
    }
    return sorted.slice(0, -1);
  }

  function show() {
    const [a, b] = [Number(from.value), Number(to.value)];
    const hunks = pairs[a < b ? `${a}-${b}` : `${b}-${a}`] ?? [];
    const body = document.createElement("div");
    body.className = "cd-body highlight";
    const count = { "+": 0, "-": 0, "=": 0 };
    for (const [name, stored] of hunks) {
      const hunk = document.createElement("div");
      hunk.className = "cd-hunk";
      const title = document.createElement("div");
      title.className = "cd-name";
      title.textContent = name;
      hunk.append(title);
      for (const [kind, old, now, text, row] of a < b ? stored : turned(stored)) {
        count[kind] += 1;
        if (kind === "-") hunk.append(line("del", old, row, lines[text]));
        else if (kind === "+") hunk.append(line("add", now, row, lines[text]));
        else hunk.append(line("old", old, row, lines[text]), line("new", now, row, lines[text]));
      }
      body.append(hunk);
    }
    const figure = document.createElement("figure");
    figure.className = "cd";
    const links = JSON.parse(result.dataset.links);
    figure.innerHTML = `<figcaption><span><a href="${links[a]}">${paths[a]}</a>
      <span class="cd-to">→</span> <a href="${links[b]}">${paths[b]}</a></span>
      <span class="cd-count"><b class="cd-plus">+${count["+"]}</b>
      <b class="cd-minus">−${count["-"]}</b></span></figcaption>`;
    figure.append(body);
    result.replaceChildren(figure);
  }

  function choose() {
    show();
    const query = `?from=${paths[from.value].slice(0, 2)}&to=${paths[to.value].slice(0, 2)}`;
    history.replaceState(history.state, "", query + location.hash);
  }

  const wanted = new URLSearchParams(location.search);
  for (const select of [from, to]) {
    const number = paths.findIndex((path) => path.startsWith(wanted.get(select.name) ?? "-"));
    if (number >= 0) select.value = number;
    select.addEventListener("change", choose);
  }
  box.querySelector(".cd-swap").addEventListener("click", () => {
    [from.value, to.value] = [to.value, from.value];
    choose();
  });
  show();
})();

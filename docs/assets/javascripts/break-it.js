// "Break it" on the home page has an address, #break=set_epoch, and a box that is pressed again is
// ticked. The boxes are radio buttons: which run is shown is a matter of its style sheet.
(() => {
  const boxes = [...document.querySelectorAll(".bk input")];
  let chosen = boxes.find((box) => box.checked);

  function choose(box) {
    if (!box) return;
    chosen = box;
    box.checked = true;
  }

  function go() {
    const [, name] = /^#break=(\w+)$/.exec(location.hash) ?? [];
    const box = boxes.find(({ value }) => value === name);
    choose(box);
    box?.closest("form").scrollIntoView({ block: "nearest" });
  }

  for (const box of boxes)
    box.addEventListener("click", () => {
      choose(box === chosen ? boxes.find(({ value }) => value === "right") : box);
      history.replaceState(null, "", `#break=${chosen.value}`);
    });
  addEventListener("hashchange", go);
  go();
})();

// "Break it" on the home page has an address, #break=set_epoch. Which run is shown is a matter of its
// style sheet.
(() => {
  const form = document.querySelector(".bk");

  function go() {
    const [, name] = /^#break=(\w+)$/.exec(location.hash) ?? [];
    const button = form.querySelector(`[value="${name}"]`);
    if (!button) return;
    button.checked = true;
    form.scrollIntoView({ block: "nearest" });
  }

  form.addEventListener("change", ({ target }) => {
    history.replaceState(null, "", `#break=${target.value}`);
  });
  addEventListener("hashchange", go);
  go();
})();

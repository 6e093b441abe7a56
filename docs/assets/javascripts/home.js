// What is chosen on the home page has an address: #take=horovod, #break=set_epoch. What is then shown
// is a matter of style sheets.
(() => {
  function go() {
    const [, form, name] = /^#(take|break)=(\w+)$/.exec(location.hash) ?? [];
    const button = form && document.querySelector(`[name="${form}"][value="${name}"]`);
    if (!button) return;
    button.checked = true;
    const { top } = button.form.getBoundingClientRect();
    if (top < 0 || top > innerHeight / 2) button.form.scrollIntoView();
  }

  for (const form of document.querySelectorAll(".ap, .bk"))
    form.addEventListener("change", ({ target }) => {
      history.replaceState(null, "", `#${target.name}=${target.value}`);
    });
  addEventListener("hashchange", go);
  go();
})();

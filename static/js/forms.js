// A form that changes something is sent once: its buttons are greyed until the answer comes.
// A page that comes back from the history has them alive again. [data-submit-on-change] forms send themselves.
export function watchForms() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post") return;
    if (form.dataset.sent) {
      event.preventDefault();
      return;
    }
    form.dataset.sent = "1";
    // After this turn: a disabled submitter would not be part of what is sent.
    setTimeout(() => setBusy(form, true));
  });
  document.addEventListener("change", (event) => {
    const form = event.target.form;
    if (form?.hasAttribute("data-submit-on-change") && !event.target.hasAttribute("data-stays")) form.requestSubmit();
  });
  document.addEventListener("change", (event) => {
    if (!event.target.hasAttribute("data-select-all")) return;
    for (const box of document.querySelectorAll(event.target.dataset.selectAll)) box.checked = event.target.checked;
  });
  window.addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    for (const form of document.querySelectorAll("form[data-sent]")) setBusy(form, false);
  });
}

function setBusy(form, busy) {
  if (!busy) delete form.dataset.sent;
  form.setAttribute("aria-busy", String(busy));
  const buttons = [...form.elements].filter((e) => e.type === "submit");
  for (const button of buttons) button.disabled = busy;
}

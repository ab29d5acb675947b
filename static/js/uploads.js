// Uploads with progress: form[data-upload] is sent by XMLHttpRequest; the answer is this page with what is wrong, or
// 201 with the address of the next one.
export function watchUploads() {
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-upload]");
    if (!form || event.defaultPrevented) return;
    event.preventDefault();
    send(form);
  });
}

function send(form) {
  const box = form.querySelector("[data-progress]");
  const bar = box.querySelector("progress");
  const text = box.querySelector("[data-progress-text]");
  const stop = box.querySelector("[data-progress-stop]");
  const request = new XMLHttpRequest();
  const started = performance.now();
  box.hidden = false;
  request.upload.addEventListener("progress", (event) => {
    if (!event.lengthComputable) return;
    bar.max = event.total;
    bar.value = event.loaded;
    text.textContent = event.loaded < event.total ? sentence(event, started) : "Sent. The server reads every line now.";
  });
  request.addEventListener("load", () => {
    if (request.status === 201) location.assign(request.getResponseHeader("Location"));
    else show(request.responseText);
  });
  request.addEventListener("error", () => fail(form, text, "The connection broke. Nothing was stored; send the file again."));
  request.addEventListener("abort", () => fail(form, text, "Stopped. Nothing was stored."));
  stop?.addEventListener("click", () => request.abort(), { once: true });
  request.open("POST", form.action);
  request.setRequestHeader("X-Requested-With", "XMLHttpRequest"); // the server then names the next page instead of redirecting
  request.send(new FormData(form));
}

function sentence(event, started) {
  const seconds = (performance.now() - started) / 1000;
  const rate = event.loaded / Math.max(seconds, 0.001);
  const left = Math.ceil((event.total - event.loaded) / Math.max(rate, 1));
  const mib = (n) => (n / 2 ** 20).toFixed(1);
  return `${mib(event.loaded)} of ${mib(event.total)} MiB sent, about ${left} s left`;
}

function show(html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  document.querySelector("main").replaceWith(page.querySelector("main"));
  document.querySelector("[data-focus]")?.focus();
  window.htmx?.process(document.querySelector("main"));
}

function fail(form, text, sentenceOfFault) {
  text.textContent = sentenceOfFault;
  delete form.dataset.sent;
  for (const button of form.querySelectorAll("button[type=submit], button:not([type])")) button.disabled = false;
}

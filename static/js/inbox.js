// Keys of the decisions inbox: j and k move, a approves, e edits, r rejects. Not while somebody types or a dialog is open.
export function watchInbox() {
  document.addEventListener("keydown", (event) => {
    const inbox = document.querySelector("[data-inbox]");
    if (!inbox || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "j" || event.key === "k") move(inbox, event.key === "j" ? 1 : -1);
    else if ("aer".includes(event.key)) document.querySelector(`[data-key="${event.key}"]:not(:disabled)`)?.click();
    else return;
    event.preventDefault();
  });
}

function isTyping(target) {
  return target.matches("input:not([type=checkbox], [type=radio]), select, textarea, [contenteditable]");
}

function move(inbox, by) {
  const links = [...inbox.querySelectorAll("a[data-pick]")];
  const at = links.findIndex((link) => link.hasAttribute("aria-current"));
  const next = links[Math.min(links.length - 1, Math.max(0, at + by))];
  if (next && next !== links[at]) location.assign(next.href);
}

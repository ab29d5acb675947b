// <button data-opens="id"> opens <dialog id>; focus starts on the element with autofocus, which is the safe one.
export function watchDialogs() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-opens]");
    if (opener) {
      event.preventDefault();
      document.getElementById(opener.dataset.opens)?.showModal();
      return;
    }
    const closer = event.target.closest("[data-closes]");
    if (closer) {
      event.preventDefault();
      closer.closest("dialog").close();
    }
  });
}

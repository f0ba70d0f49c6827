// key.js: the dialog that asks for an API key.

import { $ } from "./dom.js";

/** Resolves to the entered key, or null. problem: why the previous key was refused, or null. */
export function askForKey(problem) {
  const dialog = $("key-dialog");
  $("key-message").textContent = problem ?? "Ask the operator of this service for a key.";
  $("key").value = "";
  return new Promise((done) => {
    let entered = null;
    $("key-form").onsubmit = () => (entered = $("key").value.trim() || null);
    $("key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => done(entered);
    if (!dialog.open) dialog.showModal();
    $("key").focus();
  });
}

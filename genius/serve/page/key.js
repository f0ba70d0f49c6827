// key.js: asks for an API key when the service wants one. Knows a dialog; keeping the key is the business of `api`.

import { $ } from "./dom.js";

/** The key that was given, or null. */
export function askForKey(message) {
  const dialog = $("key-dialog");
  $("key-message").textContent = message;
  $("key").value = "";
  return new Promise((done) => {
    let given = null;
    $("key-form").onsubmit = () => (given = $("key").value.trim() || null);
    $("key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => done(given);
    if (!dialog.open) dialog.showModal();
    $("key").focus();
  });
}

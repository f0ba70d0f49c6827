// key.js: asks for an API key when the service wants one. Knows a dialog; keeping the key is the business of `api`.

import { $ } from "./dom.js";

/** The key that was given, or null. problem: what is wrong with the one given before, if there was one. */
export function askForKey(problem) {
  const dialog = $("key-dialog");
  $("key-message").textContent = problem ?? "Ask whoever runs this service for one.";
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

// list.js: some items by their ids, as after they were added. Knows the view and the service's items.

import { item as askItem } from "./api.js";
import { card, fillGrid, skeletons } from "./cards.js";
import { $, el } from "./dom.js";
import { leaveView } from "./state.js";
import { plural } from "./wording.js";

const MOST = 60;

let shown = [];
let control = null;

export const listItems = () => shown;

export function startList() {
  $("items-close").addEventListener("click", leaveView);
}

export async function showList({ ids }) {
  control?.abort();
  control = new AbortController();
  const { signal } = control;
  const wanted = ids.slice(0, MOST);
  $("items-title").textContent = plural(ids.length, "item");
  $("items-list").replaceChildren(...skeletons(wanted.length));
  const answers = await Promise.allSettled(wanted.map((id) => askItem(id, signal)));
  if (signal.aborted) return;
  shown = answers.filter((answer) => answer.status === "fulfilled").map((answer) => answer.value);
  const cards = answers.map((answer, i) =>
    answer.status === "fulfilled"
      ? card(answer.value)
      : el("li", { class: "card lost" }, el("p", {}, wanted[i]), el("p", {}, answer.reason.message)),
  );
  fillGrid($("items-list"), shown, cards);
}

// list.js: the view of items by their ids, shown after items were added.

import { item as fetchItem } from "./api.js";
import { card, fillGrid, skeletons } from "./cards.js";
import { $, el } from "./dom.js";
import { leaveView } from "./state.js";
import { plural } from "./wording.js";

const MAX_ITEMS = 60;

let shown = [];
let request = null; // AbortController of the running requests

export const listItems = () => shown;

export function startList() {
  $("items-close").addEventListener("click", leaveView);
}

export async function showList({ ids }) {
  request?.abort();
  request = new AbortController();
  const { signal } = request;
  const first = ids.slice(0, MAX_ITEMS);
  $("items-title").textContent = plural(ids.length, "item");
  $("items-list").replaceChildren(...skeletons(first.length));
  const answers = await Promise.allSettled(first.map((id) => fetchItem(id, signal)));
  if (signal.aborted) return;
  shown = answers.filter((answer) => answer.status === "fulfilled").map((answer) => answer.value);
  const cards = answers.map((answer, i) =>
    answer.status === "fulfilled"
      ? card(answer.value)
      : el("li", { class: "card missing" }, el("p", {}, first[i]), el("p", {}, answer.reason.message)),
  );
  fillGrid($("items-list"), shown, cards);
}

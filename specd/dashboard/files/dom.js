// The page is changed in place: what has the focus keeps it, and what is open stays open.

export const byId = (id) => document.getElementById(id);

/** A new element with attributes and children. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Make an element say this text, or hold this node, if it does not already. */
export function put(target, value) {
  if (value instanceof Node) {
    if (target.firstChild !== value) target.replaceChildren(value);
  } else if (target.textContent !== String(value)) target.textContent = value;
}

/** Put a text into the element of this id. */
export function say(id, text) {
  put(byId(id), text);
}

export function show(id, visible) {
  byId(id).hidden = !visible;
}

/** How it stands, for the style: "good", "warn", "bad" or "". */
export function mood(target, value) {
  target.dataset.mood = value;
}

/** Make the children those of `items`. `make` gives a new child, `update` makes it say its item. */
export function children(parent, items, { key, make, update }) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    const child = before.get(name) ?? make(item);
    before.delete(name);
    child.dataset.key = name;
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const gone of before.values()) gone.remove();
}

/**
 * Make the body of a table these items, and hide the table, for the note beside it, while there are none.
 * columns: functions of an item to a text or node; the first heads its row. `numbers` are the columns to the right.
 */
export function rows(id, items, key, columns, numbers = []) {
  const table = byId(id);
  table.closest(".scroll").hidden = items.length === 0;
  show(`no-${id}`, items.length === 0);
  const make = () => element("tr", {}, ...columns.map((_, place) => cell(place, numbers)));
  const update = (row, item) => columns.forEach((column, place) => put(row.children[place], column(item)));
  children(table.tBodies[0], items, { key, make, update });
}

function cell(place, numbers) {
  const made = place === 0 ? element("th", { scope: "row" }) : element("td");
  if (numbers.includes(place)) made.className = "number";
  return made;
}

// All nodes at the broker, by what they tell of themselves there. Nothing of it is trusted: it is text and no more.

import { byId, children, element, mood, put, rows, say, show } from "./dom.js";
import { count, NONE, share, time } from "./format.js";

export function fleet({ fleet: told }) {
  show("fleet-part", told !== null);
  if (told === null) return;
  const there = told.nodes.filter((node) => node.online).length;
  say("fleet-place", `${told.prefix} at ${told.broker}: ${count(told.nodes.length, "node")}, ${there} online`);
  show("fleet-lost", !told.connected || told.crowded);
  say("fleet-lost", told.connected ? "There are more nodes than are shown." : `Not connected, so this may be old: ${told.trouble ?? "connecting"}`);
  updates(told);
  rows("fleet", told.nodes, (node) => node.node, [
    (node) => (node.faults.length ? text(node.node, "bad", node.faults) : node.node),
    standing,
    target,
    (node) => node.draft_revision ?? NONE,
    (node) => (node.k === null ? NONE : node.k.toFixed(1)),
    acceptance,
    load,
    alerts,
    (node) => (node.told_at === null ? NONE : time(node.told_at)),
  ], [4]);
}

function updates({ updates: known, revisions }) {
  const items = known.map(update);
  const models = revisions.map((one) => one.model);
  if (!items.length) {
    for (const one of revisions.filter((each) => models.indexOf(each.model) !== models.lastIndexOf(each.model))) {
      items.push([`${one.model} ${one.revision}: on ${count(one.nodes, "node")}; no update is known`, "warn"]);
    }
  }
  children(byId("fleet-updates"), items, {
    key: ([said]) => said,
    make: () => element("li"),
    update: (item, [said, how]) => {
      put(item, said);
      mood(item, how);
    },
  });
}

function update({ model, revision, node, online, taken }) {
  return [`${model} ${revision}, which ${node} took last: on ${taken} of ${count(online, "online node")}`, taken === online ? "good" : "bad"];
}

function standing(node) {
  const said = node.doing && node.online ? `${node.standing}, ${node.doing}` : node.standing;
  const how = node.standing === "serving" ? "" : node.standing === "not ready" ? "warn" : "bad";
  const more = [node.standing === "not ready" && node.unready_because, node.stale && "has told nothing for long"];
  return text(said, how, more);
}

function target(node) {
  const { refused, changed } = node;
  const back = changed?.by === "rollback" && "rolled back";
  const why = node.taken === false && !node.doing && refused && `refused: ${refused.text}`;
  return text(node.target_revision ?? NONE, node.taken === false ? "bad" : "", [node.taken === false && "not updated", back, why]);
}

function acceptance(node) {
  const known = Object.entries(node.acceptance ?? {}).filter(([, value]) => value !== null);
  return known.map(([each, value]) => `${each} ${share(value)}`).join(", ") || NONE;
}

function load(node) {
  return node.load ? `${node.load}, ${node.running} running` : NONE;
}

function alerts(node) {
  const firing = node.firing ?? [];
  if (!firing.length) return node.alerts?.pending ? `${node.alerts.pending} pending` : NONE;
  return text(firing.map((alert) => alert.name).join(", "), "bad", [firing[0].summary]);
}

/** A word that stands out, if something is to be said of it, and what that is. */
function text(said, how, more = []) {
  const notes = more.filter(Boolean).join("; ");
  if (!how && !notes) return said;
  return element("span", {}, element("b", { "data-mood": how }, said), notes && `: ${notes}`);
}

// Alerts, who is told of them, and what else happened: everything with words.

import { byId, children, element, mood, put, rows, say, show } from "./dom.js";
import { share, time, words } from "./format.js";

const OPEN = ["firing", "pending"];
const SHOWN_APART = ["alertname", "severity"];

export function alerts({ alerts: told }) {
  const open = told.alerts.filter((alert) => OPEN.includes(alert.state));
  const ended = told.alerts.filter((alert) => !OPEN.includes(alert.state)).reverse();
  open.sort((a, b) => OPEN.indexOf(a.state) - OPEN.indexOf(b.state));
  show("no-alerts", open.length === 0);
  list("alerts", open);
  list("alerts-ended", ended);
  show("ended-alerts", ended.length > 0);
  put(byId("ended-alerts").firstElementChild, `Ended lately: ${ended.length}`);
}

function list(id, items) {
  children(byId(id), items, {
    key: (alert) => `${alert.fingerprint} ${alert.startsAt}`,
    make: () => element("li", {}, element("p"), element("p", { class: "about" }), details()),
    update: alertOf,
  });
}

function details() {
  return element("details", {}, element("summary", {}, "Evidence and labels"), element("dl", { class: "pairs" }));
}

function alertOf(item, alert) {
  const [headline, times, more] = item.children;
  mood(item, alert.state === "firing" && !alert.muted ? "bad" : alert.state === "resolved" ? "" : "warn");
  const { summary, runbook_url: runbook, ...texts } = alert.annotations;
  headline.replaceChildren(element("b", { class: "badge" }, alert.state), " ", element("b", {}, alert.name), ` ${summary ?? ""}`);
  times.replaceChildren("since ", time(alert.startsAt));
  if (alert.endsAt) times.append(" until ", time(alert.endsAt));
  if (alert.muted) times.append(`; ${alert.muted}`);
  const labels = Object.entries(alert.labels).filter(([name]) => !SHOWN_APART.includes(name));
  const found = [...Object.entries(texts), ...labels, ...(runbook ? [["runbook", runbook]] : [])];
  children(more.lastElementChild, found, {
    key: ([name]) => name,
    make: ([name]) => element("div", {}, element("dt", {}, words(name)), element("dd")),
    update: (pair, [name, value]) => put(pair.lastElementChild, name === "runbook" ? link(pair, value) : value),
  });
}

/** The same link as long as it leads to the same place; a place that is no web page stays text. */
function link(pair, url) {
  const before = pair.querySelector("a");
  if (before?.getAttribute("href") === url) return before;
  return /^https?:/.test(url) ? element("a", { href: url, rel: "noreferrer" }, url) : url;
}

let heard = null; // states by fingerprint, as they were told last

/** A sentence for who cannot see the list, of each alert that fires or has ended since the last look. */
export function announce({ alerts: { alerts: told } }) {
  const now = new Map(told.map((alert) => [alert.fingerprint, alert]));
  const news = [];
  for (const [fingerprint, alert] of heard ? now : []) {
    const before = heard.get(fingerprint);
    if (alert.state !== before && alert.state !== "pending") {
      news.push(`Alert ${alert.state}: ${alert.annotations.summary ?? alert.name}`);
    }
  }
  heard = new Map([...now].map(([fingerprint, alert]) => [fingerprint, alert.state]));
  if (news.length) say("announcement", news.join(". "));
}

export function receivers({ alerts: told }) {
  show("store-fault", told.store.fault !== null);
  say("store-fault", `Notifications that wait would not outlive the daemon: ${told.store.fault}`);
  rows("receivers", told.receivers, (one) => one.name, [
    (one) => one.name,
    (one) => one.kind,
    (one) => (one.failing ? element("b", { "data-mood": "bad" }, `failing: ${one.error ?? "see the log"}`) : "fine"),
    (one) => one.pending,
    (one) => (one.last_success === null ? "never" : time(one.last_success)),
  ], [3]);
  const silences = told.silences.filter((one) => one.state === "active");
  show("no-silences", silences.length === 0);
  children(byId("silences"), silences, {
    key: (one) => one.id,
    make: () => element("li"),
    update: (item, one) => {
      const who = [one.comment, one.createdBy && `by ${one.createdBy}`].filter(Boolean).join(", ");
      item.replaceChildren(element("b", {}, one.matchers.join(", ")), " until ", time(one.endsAt), who && ` (${who})`);
    },
  });
}

const TARGETS = { yes: "the known target", no: "another target answers", unknown: "not asked yet whether it is the known target" };

export function observed({ status: { observed: told } }) {
  show("observed-section", told.length > 0);
  rows("observed", told, (one) => one.name, [
    (one) => one.name,
    (one) => one.kind ?? "-",
    (one) => one.target_revision,
    (one) => share(one.acceptance),
    (one) => (one.fault || one.same_target === "no" ? element("b", { "data-mood": "bad" }, one.fault ?? TARGETS.no) : TARGETS[one.same_target]),
  ], [3]);
}

export function target({ target: told }) {
  const { current, previous, last } = told;
  show("doing", told.doing !== null);
  say("doing", `Under way: ${told.doing}`);
  say("target-current", [current.path, ...current.doubts].join("; "));
  say("target-proposers", current.proposers.join(", ") || "nobody");
  say("target-previous", previous ? `${previous.path} ${previous.kept ? "at once" : "once it has loaded"}` : "none: there was no update");
  sentence("target-last", last && !last.ok, last ? [last.text, ", ", time(last.unix_time)] : ["none"]);
  sentence("healing", told.healing.last?.ok === false, healing(told.healing));
  const bad = told.canary.some((one) => one.verdict === "bad");
  sentence("target-canary", bad, [told.canary.map(canary).join("; ") || "not asked yet"]);
}

function healing({ doing, last }) {
  if (doing) return [`a head for ${doing.proposer}, since `, time(doing.since)];
  return last ? [last.text, ", ", time(last.unix_time)] : ["none"];
}

const VERDICTS = { fine: "has not fallen", bad: "has fallen", no_evidence: "shows too little" };

function canary({ proposer, verdict, before, after }) {
  return `${proposer} ${VERDICTS[verdict] ?? verdict}: ${share(before)} before, ${share(after)} after`;
}

export function config({ status: { config: now, mqtt } }) {
  const waiting = now.pending_restart;
  say("config-hash", waiting.length ? `${now.hash}; a restart is awaited by ${waiting.join(", ")}` : now.hash);
  const { trigger, result, error, unix_time: at } = now.last_reload;
  const how = result === "ok" ? `taken over (${trigger})` : `refused (${trigger}): ${error}`;
  sentence("config-reload", result !== "ok", [how, ", ", time(at)]);
  const trouble = mqtt.trouble ?? mqtt.denied_topics.map((topic) => `${topic} is denied`).join(", ");
  const healthy = mqtt.connected && !trouble;
  sentence("mqtt", mqtt.broker !== null && !healthy, [
    mqtt.broker === null ? "not configured" : healthy ? `${mqtt.node} at ${mqtt.broker}` : `${mqtt.broker}: ${trouble || "not connected"}`,
  ]);
}

function sentence(id, bad, parts) {
  mood(byId(id), bad ? "bad" : "");
  byId(id).replaceChildren(...parts);
}

export function happened({ happened: events }) {
  show("no-happened", events.length === 0);
  byId("happened").closest(".scroll").hidden = events.length === 0;
  children(byId("happened"), [...events].reverse(), {
    key: (event) => `${event.unix_time} ${event.kind}`,
    make: (event) =>
      element("li", {}, time(event.unix_time), " ", element("b", {}, words(event.kind)), ` ${event.text}`),
    update: () => {},
  });
}

export function crashes({ crashes: reports }) {
  rows("crashes", reports, (one) => one.id, [
    (one) => time(one.time),
    (one) => words(one.reason),
    (one) => one.text,
    (one) => element("code", {}, one.id),
  ]);
}

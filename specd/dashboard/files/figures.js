// What the status says: the glance, acceptance, throughput, load, draft lengths.

import { bounds, figure, lines } from "./charts.js";
import { byId, children, element, mood, put, rows, say, show } from "./dom.js";
import { added, count, duration, mean, NONE, percent, rate, share, words } from "./format.js";

export function head({ status }) {
  const { model, engine } = status;
  say("model", model.name);
  const [state, how] = status.ready ? ["Serving", "good"] : engine.state === "starting" ? ["Loading", "warn"] : ["Not serving", "bad"];
  say("state", state);
  mood(byId("state"), how);
  say("why", status.unready_because ?? "");
  say("target-revision", model.target_revision ?? NONE);
  say("draft-revision", model.draft_revision ?? NONE);
  say("quantization", model.quantization === "none" ? (engine.info?.dtype ?? NONE) : (model.quantization ?? NONE));
  say("uptime", duration(status.uptime_seconds));
  say("version", status.version);
}

export function glance({ status, alerts: told }) {
  const { drafts, load, alerts } = status;
  glanceAcceptance(status);
  const k = mean(added(Object.values(drafts.k)));
  say("k-now", k === null ? NONE : k.toFixed(1));
  say("k-note", reasonShares(drafts.reasons).slice(0, 2).join(", ") || "no rounds yet");
  say("tokens-now", rate(drafts.tokens_per_second));
  say("tokens-note", gainNow(drafts.goodput, load.running));
  say("load-now", `${load.running} running`);
  say("load-note", `${load.waiting} waiting, drafting ${load.state}`);
  say("alerts-now", alerts.firing ? `${alerts.firing} firing` : "none");
  say("alerts-note", alertsNote(alerts.pending, told));
  mood(byId("alerts-now"), alerts.firing ? "bad" : alerts.pending ? "warn" : "good");
}

function alertsNote(pending, { silences, receivers }) {
  const silent = silences.filter((one) => one.state === "active").length;
  const failing = receivers.filter((one) => one.failing).map((one) => one.name);
  const notes = [pending && `${pending} pending`, silent && count(silent, "silence"), failing.length && `${failing.join(", ")} not reached`];
  return notes.filter(Boolean).join(", ");
}

/** The stratum that has fallen furthest; where there is too little evidence, the class that has the least. */
function glanceAcceptance({ drift, acceptance }) {
  const compared = drift.filter((one) => one.score !== null || one.wrong.length);
  const worst = compared.sort((a, b) => a.now - a.baseline - (b.now - b.baseline))[0];
  const fallen = drift.some((one) => one.wrong.length);
  const [least] = Object.entries(acceptance).filter(([, value]) => value !== null).sort(([, a], [, b]) => a - b);
  mood(byId("acceptance-now"), fallen ? "bad" : worst ? "good" : "");
  if (worst) {
    say("acceptance-now", share(worst.now));
    say("acceptance-note", `baseline ${share(worst.baseline)}, ${worst.traffic_class} by ${worst.proposer}`);
  } else {
    say("acceptance-now", least ? share(least[1]) : NONE);
    say("acceptance-note", least ? `${least[0]}; too little for a baseline` : "nothing drafted yet");
  }
}

function reasonShares(reasons) {
  const total = Object.values(reasons).reduce((sum, times) => sum + times, 0);
  const sorted = Object.entries(reasons).sort(([, a], [, b]) => b - a);
  return sorted.map(([reason, times]) => `${words(reason)} ${percent(times, total)}`);
}

function gainNow(goodput, running) {
  const both = goodput.filter((arm) => arm.drafting !== null && arm.plain !== null);
  const arm = both.find((one) => covers(one.running, running)) ?? both[0];
  return arm ? `drafts give ${gain(arm)} at ${arm.running} together` : "";
}

/** Whether "3 to 4" or "65 and more" speaks of so many. */
function covers(name, running) {
  const [low, high] = name.match(/\d+/g).map(Number);
  return low <= running && running <= (high ?? (name.endsWith("more") ? Infinity : low));
}

const gain = ({ drafting, plain }) => (drafting && plain ? `×${(drafting / plain).toFixed(2)}` : NONE);

const trends = new Map(); // by stratum: { history, happened, svg }

export function acceptance({ status, history, happened }) {
  const strata = [...status.drift].sort((a, b) => b.wrong.length - a.wrong.length || b.requests - a.requests);
  rows("acceptance", strata, stratumName, [
    (one) => one.traffic_class,
    (one) => one.proposer,
    (one) => share(one.now),
    (one) => share(one.baseline),
    evidence,
    (one) => (one.by_chance ? `${one.temperature}, by chances` : one.temperature),
    (one) => one.requests,
    (one) => (history && happened ? trend(one, history, happened) : NONE),
  ], [2, 3, 6]);
}

const stratumName = (one) => [one.traffic_class, one.temperature, one.proposer, one.by_chance].join("/");

function evidence(one) {
  if (one.wrong.length) return element("b", { "data-mood": "bad" }, one.wrong.join(", "));
  if (one.score === null) return "too little to say";
  return `${Math.round(100 * Math.min(1, Math.max(0, one.score)))}% of an alarm`;
}

function trend(one, history, happened) {
  const name = stratumName(one);
  const kept = trends.get(name);
  if (kept?.history === history && kept.happened === happened) return kept.svg;
  const found = history.acceptance.find((each) => stratumName(each) === name);
  if (!found) return NONE;
  const series = ["baseline", "now"].map((each) => ({ name: each, values: found[each] }));
  const svg = lines(history, happened, series, bounds([...found.now, ...found.baseline]));
  trends.set(name, { history, happened, svg });
  return svg;
}

export function throughput({ status }) {
  const arms = status.drafts.goodput;
  const best = Math.max(1, ...arms.flatMap(({ drafting, plain }) => [drafting ?? 0, plain ?? 0]));
  rows("goodput", arms, (arm) => arm.running, [
    (arm) => arm.running,
    (arm) => rate(arm.drafting),
    (arm) => rate(arm.plain),
    gain,
    (arm) => bars(arm, best),
  ], [1, 2, 3]);
}

function bars({ drafting, plain }, best) {
  const made = element("span", { class: "pair", "aria-hidden": "true" });
  for (const [name, value] of [["drafting", drafting], ["plain", plain]]) {
    const bar = element("i", { class: name });
    bar.style.inlineSize = `${(100 * (value ?? 0)) / best}%`;
    made.append(bar);
  }
  return made;
}

export function hour({ history, happened }) {
  const { tokens_per_second: tokens, running, waiting } = history;
  figure(byId("throughput-chart"), history, happened, [{ name: "tokens", values: tokens }], "tokens per second");
  const load = [{ name: "running", values: running }, { name: "waiting", values: waiting }];
  figure(byId("load-chart"), history, happened, load, "");
}

export function load({ status }) {
  const { load: now, kv, engine } = status;
  say("load-state", now.state);
  say("load-running", now.running);
  say("load-waiting", now.waiting);
  say("load-admitted", now.admitted);
  const blocks = kv ? Object.values(kv).reduce((sum, one) => sum + one, 0) : 0;
  say("load-kv", kv ? `${kv.used} of ${blocks}, ${percent(kv.used, blocks)}` : NONE);
  say("restarts", engine.last_death ? `${engine.restarts}; last: ${engine.last_death}` : engine.restarts);
}

export function lengths({ status }) {
  const { k_by_class: byClass, reasons } = status.drafts;
  const ks = Object.keys(added(Object.values(byClass))).map(Number).sort((a, b) => a - b);
  const head = byId("lengths").tHead.rows[0];
  const columns = [["", "Class"], ...ks.map((k) => [k, `k = ${k}`])];
  children(head, columns, {
    key: ([k]) => k,
    make: ([k]) => element("th", { scope: "col", ...(k !== "" && { class: "number" }) }),
    update: (cell, [, text]) => put(cell, text),
  });
  const items = Object.entries(byClass);
  show("no-lengths", items.length === 0);
  byId("lengths").closest(".scroll").hidden = items.length === 0;
  children(byId("lengths").tBodies[0], items, {
    key: ([name]) => name,
    make: () => element("tr"),
    update: (row, item) => lengthsOf(row, item, ks),
  });
  children(byId("reasons"), reasonShares(reasons), {
    key: (text) => text,
    make: () => element("li"),
    update: put,
  });
}

function lengthsOf(row, [name, counts], ks) {
  const total = Object.values(counts).reduce((sum, times) => sum + times, 0);
  children(row, ["", ...ks], {
    key: (k) => k,
    make: (k) => (k === "" ? element("th", { scope: "row" }) : element("td", { class: "number" })),
    update: (cell, k) => {
      put(cell, k === "" ? name : counts[k] ? percent(counts[k], total) : "");
      if (k !== "") cell.style.setProperty("--share", `${(40 * (counts[k] ?? 0)) / total}%`);
    },
  });
}

export function decisions({ decisions: found }) {
  const seen = {};
  const items = found.map((one) => {
    const name = `${one.step}/${one.request}`;
    seen[name] = (seen[name] ?? 0) + 1;
    return { ...one, key: `${name}/${seen[name]}` };
  });
  rows("decisions", items, (one) => one.key, [
    (one) => one.request,
    (one) => one.class,
    (one) => one.k,
    (one) => (one.proposer === "none" ? NONE : one.proposer),
    (one) => (one.drafted ? `${one.accepted} of ${one.drafted}` : NONE),
    (one) => one.text || count(one.k, "token"),
  ], [2, 4]);
}

// Lines of the last hour. A chart's words stand beside it, so that nobody needs to see it.

import { element } from "./dom.js";
import { duration, moment, words } from "./format.js";

const [WIDTH, HEIGHT] = [300, 60];
const LEAST_SECONDS = 600;

/** An svg of lines over the same points in time. series: [{ name, values }]; null in values leaves a gap. */
export function lines(history, happened, series, [low, high]) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const across = scale(history);
  for (const event of marks(history, happened)) {
    const x = across(event.unix_time - history.ends_at);
    const mark = shape("path", { class: `mark ${event.kind}`, d: `M${x} 0V${HEIGHT}` });
    const title = shape("title", {});
    title.textContent = said(event);
    mark.append(title);
    svg.append(mark);
  }
  const up = (value) => fixed(HEIGHT - 2 - ((HEIGHT - 4) * (value - low)) / (high - low || 1));
  for (const { name, values } of series) {
    const first = (1 - values.length) * history.every_seconds;
    svg.append(shape("path", { class: `line ${name}`, d: path(values, (at) => across(first + at * history.every_seconds), up) }));
  }
  return svg;
}

/** A figure of lines with their greatest value and a sentence. */
export function figure(target, history, happened, series, unit) {
  const all = series.flatMap(({ values }) => values);
  const high = Math.max(1, ...all);
  const key = element("p", { class: "key", "aria-hidden": "true" }, `max ${rounded(high)} ${unit}`);
  for (const { name } of series.length > 1 ? series : []) key.append(" ", element("span", { class: name }, name));
  const text = series.map(({ name, values }) => sentence(name, values)).join(" ");
  const seen = marks(history, happened).map(said);
  target.replaceChildren(
    key,
    lines(history, happened, series, [0, high]),
    element("figcaption", {}, `Last ${duration(shown(history))}. ${text}`, seen.length ? ` Marks: ${seen.join("; ")}.` : ""),
  );
}

/** Least and greatest of rates, with room around a line that hardly moves. */
export function bounds(values) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return [0, 1];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const room = Math.max(0, 0.2 - (high - low)) / 2;
  return [Math.max(0, low - room), Math.min(1, high + room)];
}

/** What happened within the points, the newest twelve. */
function marks(history, happened) {
  return happened.filter((event) => event.unix_time >= history.ends_at - shown(history)).slice(-12);
}

function said(event) {
  return `${words(event.kind)} at ${moment(event.unix_time)}`;
}

function shown(history) {
  return Math.max(0, history.running.length - 1) * history.every_seconds;
}

/** From seconds before the last point, which are negative, to places. */
function scale(history) {
  const seconds = Math.max(LEAST_SECONDS, shown(history));
  return (before) => fixed(WIDTH * (1 + Math.min(0, before) / seconds));
}

function path(values, across, up) {
  let pen = "M";
  let found = "";
  values.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    found += `${pen}${across(at)} ${up(value)}`;
    pen = "L";
  });
  return found;
}

function sentence(name, values) {
  if (!values.length) return "";
  const [now, high, low] = [values.at(-1), Math.max(...values), Math.min(...values)].map(rounded);
  return `${name[0].toUpperCase()}${name.slice(1)}: now ${now}, highest ${high}, lowest ${low}.`;
}

function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const fixed = (value) => Math.round(value * 10) / 10;

const rounded = (value) => (Number.isInteger(value) ? value : value.toFixed(1));

// Numbers and times, as people read them.

export const NONE = "-";

export const share = (value) => (value === null || value === undefined ? NONE : value.toFixed(2));

export const rate = (value) => (value === null || value === undefined ? NONE : value.toFixed(1));

export const percent = (part, whole) => `${whole ? Math.round((100 * part) / whole) : 0}%`;

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

/** A name for programs, as people say it. */
export const words = (name) => name.replaceAll("_", " ");

/** "3 d 4 h", "4 h 12 min", "12 min", "40 s". */
export function duration(seconds) {
  const whole = Math.floor(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${whole} s`;
}

/** Of Unix seconds or RFC 3339: the time of day, with the date unless it is today. */
export function moment(when) {
  const at = typeof when === "number" ? new Date(when * 1000) : new Date(when);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

/** `moment` as an element, with the exact time for programs. */
export function time(when) {
  const made = document.createElement("time");
  made.dateTime = new Date(typeof when === "number" ? when * 1000 : when).toISOString();
  made.textContent = moment(when);
  return made;
}

/** The mean of counts by number, as `{"0": 3, "2": 10}` has them; null without counts. */
export function mean(counts) {
  const all = Object.entries(counts);
  const total = all.reduce((sum, [, times]) => sum + times, 0);
  return total ? all.reduce((sum, [number, times]) => sum + number * times, 0) / total : null;
}

/** Counts by number of several, added up. */
export function added(many) {
  const sum = {};
  for (const counts of many) for (const [number, times] of Object.entries(counts)) sum[number] = (sum[number] ?? 0) + times;
  return sum;
}

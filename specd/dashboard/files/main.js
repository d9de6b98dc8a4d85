// Listen, keep what was told, and let each panel say it.

import * as alarm from "./alarm.js";
import { byId, say, show } from "./dom.js";
import * as figures from "./figures.js";
import { fleet } from "./fleet.js";
import { moment } from "./format.js";
import { listen, TokenWanted } from "./stream.js";

const STORED = "specd.token"; // for this tab alone, until it is closed
const [FIRST_PAUSE, LONGEST_PAUSE] = [1, 5];

/** By the part that has changed: who speaks of it. */
const PANELS = {
  status: [figures.head, figures.glance, figures.acceptance, figures.throughput, figures.load, figures.lengths, alarm.config, alarm.observed, title],
  alerts: [alarm.alerts, alarm.receivers, alarm.announce],
  target: [alarm.target],
  decisions: [figures.decisions],
  happened: [alarm.happened],
  crashes: [alarm.crashes],
  history: [figures.hour, figures.acceptance],
  fleet: [fleet],
};

const known = {};
const last = { id: null };
let pause = FIRST_PAUSE;
let heardAt = null;
let asked = false; // for the token: then the focus was in the form

function told(name, document) {
  known[name] = document;
  heardAt = Date.now() / 1000;
  pause = FIRST_PAUSE;
  if (!(name in PANELS) || Object.keys(PANELS).some((each) => !(each in known))) return;
  const first = byId("main").hidden;
  for (const panel of new Set(first ? Object.values(PANELS).flat() : PANELS[name])) panel(known);
  show("main", true);
  show("notice", false);
  if (first && asked) byId("main").focus();
}

function title({ status }) {
  const { firing } = status.alerts;
  const how = firing ? `${firing} firing` : status.ready ? "serving" : "not serving";
  document.title = `${how} - ${status.model.name} - specd`;
}

function lost(why) {
  document.title = "not connected - specd";
  say("notice", `Not connected: ${why}. ${heardAt ? `What is shown was so at ${moment(heardAt)}. ` : ""}Trying again.`);
  show("notice", true);
}

async function token(refusal) {
  sessionStorage.removeItem(STORED);
  say("refusal", refusal);
  show("main", false);
  show("notice", false);
  show("login", true);
  say("state", "A token is needed");
  asked = true;
  byId("token").focus();
  await new Promise((resolve) => {
    byId("login").onsubmit = (event) => {
      event.preventDefault();
      resolve();
    };
  });
  sessionStorage.setItem(STORED, byId("token").value.trim());
  byId("token").value = "";
  show("login", false);
}

async function follow() {
  for (;;) {
    const had = sessionStorage.getItem(STORED);
    try {
      await listen("admin/v1/events", { token: had, last, told }); // ends after a while, to ask for the token again
    } catch (error) {
      if (error instanceof TokenWanted) {
        await token(had ? error.message : "");
        continue;
      }
      lost(error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
    pause = Math.min(LONGEST_PAUSE, pause * 2);
  }
}

follow();

// The page: what is asked, what is shown, and the address that tells both to somebody else.
import { card, clear, isShown, showLinks } from "./card.js";
import { begin, knowledge, open } from "./knowledge.js";
import { decide, listed, marked, same } from "./marks.js";
import { ask, byId, count, el, said } from "./parts.js";

const SAMPLE = "Marie Curie was born in Warsaw and worked in Paris. She named polonium after her country, and won the Nobel Prize twice.";
const state = { text: "", asked: "", threshold: null, model: "auto", other: "", nil: false, off: new Set(), answers: new Map(), nils: new Map() };
const EMPTY = "Nothing is linked here. A lower threshold shows more, and so may another layer.";
let health = null, running = null, failed = "";

// asking

const models = () => [...new Set(health.kbs.flatMap((kb) => kb.models))];
const about = (kb) => health.kbs.find((one) => one.name === kb);
const modelOf = (kb, model) => (model === "auto" ? kb.models[0] : model);

const tell = (words, className = "") => { byId("status").className = className; byId("status").textContent = words; };
const wrong = (words) => { tell(words, "wrong"); return ""; };

const looks = (words, className = "") => { byId("looking").className = className; byId("looking").textContent = words; };

async function link() {
  running?.abort();
  const mine = running = new AbortController();
  state.text = byId("text").value;
  state.text = state.text.toWellFormed?.() ?? state.text;  // half a letter of two, as cut texts have, is none in JSON
  if (!state.text.trim()) { byId("text").focus(); return wrong("Type or paste a text first."); }
  tell("Reading…");
  byId("result").setAttribute("aria-busy", "true");
  try {
    const wanted = [state.model, ...(state.other ? [state.other] : [])];
    const post = (model, more) => ask("/link", { method: "POST", body: { text: state.text, model, ...more }, signal: mine.signal });
    const every = { threshold: 0, overlaps: "keep" };
    const usual = { nil: true, top_k: 0, ...(state.threshold === null ? {} : { threshold: state.threshold }) };
    const [told, nils] = await Promise.all([every, ...(state.nil ? [usual] : [])].map((more) => Promise.all(wanted.map((model) => post(model, more)))));
    state.asked = state.text;
    remember();  // now: an address has no use for a text that is refused, which may be of any length
    state.answers = new Map(wanted.map((model, at) => [model, told[at]]));
    state.nils = new Map(wanted.map((model, at) => [model, nils?.[at].documents[0].links.filter((one) => one.entity === null) ?? []]));
    clear();
    return draw();
  } catch (error) {
    return error.name === "AbortError" ? "" : wrong(error.message);
  } finally {
    if (running === mine) byId("result").removeAttribute("aria-busy");
  }
}

// showing

function linksOf(model) {
  const { links } = state.answers.get(model).documents[0];
  const linked = health.kbs.filter((kb) => !state.off.has(kb.name)).flatMap((kb) => {
    const name = modelOf(kb, model);
    if (!kb.models.includes(name)) return [];
    const threshold = state.threshold ?? kb.thresholds[name];
    return decide(links.filter((one) => one.kb === kb.name), kb.overlaps[name], threshold);
  });
  // NIL depends on the threshold: the server decides it anew, and what has a link meanwhile is not NIL
  const nils = state.nil ? state.nils.get(model).filter((nil) => !linked.some((one) => one.start < nil.end && nil.start < one.end)) : [];
  return [...linked, ...nils].sort((one, other) => one.start - other.start || other.end - one.end);
}

function draw() {
  if (!state.answers.size) return "";
  const shown = [...state.answers.keys()].map((model) => ({ model, links: linksOf(model) }));
  const sets = shown.map(({ links }) => new Set(links.map(same)));
  const panes = shown.map(({ model, links }, at) => {
    const others = sets[1 - at], only = others && new Set(links.map(same).filter((one) => !others.has(one)));
    const options = { colours: card.colours, only, pick: showLinks, isShown };
    const told = only ? `${count(links.length, "link")}, ${only.size} only here` : count(links.length, "link");
    return el("article", { className: "pane", "aria-label": `Links by ${title(model)}` },
      el("h2", {}, said(title(model)), el("small", {}, ` ${told}`)), marked(state.asked, links, options),
      links.length ? listed(links, options) : el("p", { className: "soft" }, EMPTY));
  });
  byId("result").className = shown.length > 1 ? "two" : "";
  byId("result").replaceChildren(...panes);
  const says = shown.map(({ model, links }) => `${title(model)}: ${count(links.length, "link")}`).join(" · ");
  tell(says, "hidden");  // it stands above each text too
  return says;
}

const title = (model) => (model === "auto" ? [...new Set(health.kbs.map((kb) => kb.models[0]))].join(" + ") : model);

function tellThreshold() {
  const usual = health.kbs[0].thresholds[modelOf(health.kbs[0], state.model)] ?? 0;
  byId("threshold").value = state.threshold ?? usual;
  const told = state.threshold === null ? "as usual" : state.threshold.toFixed(2);
  byId("threshold-says").textContent = told;
  byId("threshold").setAttribute("aria-valuetext", told);
  byId("usual").style.visibility = state.threshold === null ? "hidden" : "";
}

function fillTools() {
  const option = (value, name) => el("option", { value }, name);
  const named = models();
  byId("model").replaceChildren(option("auto", `usual (${title("auto")})`), ...named.map((name) => option(name, name)));
  byId("other").replaceChildren(option("", "nothing"), ...named.map((name) => option(name, name)));
  byId("model").value = state.model;
  byId("other").value = state.other;
  health.kbs.forEach((kb, at) => card.colours.set(kb.name, at % 6));
  const box = (name, className, checked, set) => el("label", { className }, el("input", {
    type: "checkbox", checked, onchange: (event) => { set(event.target.checked); remember(); },
  }), el("i"), said(name));
  const layer = (kb, at) => box(kb.name, `k${at % 6}`, !state.off.has(kb.name), (on) => { state.off[on ? "delete" : "add"](kb.name); draw(); });
  byId("layers").replaceChildren(el("legend", {}, "layers"), ...health.kbs.map(layer),
    box("not in any", "nil", state.nil, (on) => { state.nil = on; if (on && state.answers.size) link(); else draw(); }));
  tellThreshold();
}

function fillEncoders() {
  const choice = byId("by"), known = new Map(health.encoders.map((one) => [one.name, one]));
  choice.replaceChildren(...health.encoders.map((one) => el("option", { value: one.name }, one.name)));
  // one that has learned its maps is shown with those
  const tell = () => { byId("lend").hidden = byId("weigh").hidden = !known.get(choice.value)?.plain; };
  choice.addEventListener("change", tell);
  tell();
}

// the address of what is shown: after #, which browsers keep to themselves

function remember() {
  const told = new URLSearchParams();
  if (state.text) told.set("text", state.text);
  if (state.threshold !== null) told.set("threshold", state.threshold);
  if (state.model !== "auto") told.set("model", state.model);
  if (state.other) told.set("beside", state.other);
  if (state.nil) told.set("nil", "1");
  state.off.forEach((kb) => told.append("off", kb));
  history.replaceState(null, "", told.size ? `#${told}` : location.pathname);
}

function recall() {
  const told = new URLSearchParams(location.hash.slice(1)), number = Number.parseFloat(told.get("threshold"));
  state.text = told.get("text") ?? "";
  state.threshold = number >= 0 && number <= 1 ? number : null;
  const known = (name) => models().includes(name);
  state.model = known(told.get("model")) ? told.get("model") : "auto";
  state.other = known(told.get("beside")) ? told.get("beside") : "";
  state.nil = told.get("nil") === "1";
  state.off = new Set(told.getAll("off").filter(about));
}

async function share() {
  state.text = byId("text").value;
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    tell("The link is copied: it has the text and all that you have chosen.");
  } catch {
    tell("Copy the address of this page: it has the text and all that you have chosen.");
  }
}

function download() {
  if (!state.answers.size) { wrong("Link a text first."); return; }
  const documents = [...state.answers].map(([model, told]) => ({
    text: state.asked, links: linksOf(model), id: null, meta: { ...told.documents[0].meta, threshold: state.threshold, revisions: told.revisions },
  }));
  const url = URL.createObjectURL(new Blob([JSON.stringify(documents.length > 1 ? documents : documents[0], null, 1)], { type: "application/json" }));
  el("a", { href: url, download: "links.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// views

// An address after # is what is shown here: the link that skips to the result must not be taken for one.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); view("links"); byId("result").focus(); });

const tabs = [...document.querySelectorAll("[role=tab]")];
function view(name) {
  for (const tab of tabs) {
    const here = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", here);
    tab.tabIndex = here ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !here;
  }
  if (name === "attention" && !byId("explained").value) {
    byId("explained").value = (byId("text").value.match(/^.*?[.?!](?=\s|$)/s)?.[0] ?? byId("text").value).slice(0, 400).trim();
  }
}
tabs.forEach((tab, at) => {
  tab.addEventListener("click", () => view(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    const next = tabs.at(to % tabs.length);
    view(next.getAttribute("aria-controls")); next.focus(); event.preventDefault();
  });
});

card.edit = (known) => { view("knowledge"); open(known); };
knowledge.changed = async () => {
  health = await ask("/health");
  tellAbout();
  const says = byId("text").value.trim() ? await link() : "";
  return says ? `The text was linked anew: ${says}.` : "";
};

byId("ask").addEventListener("submit", (event) => { event.preventDefault(); link(); });
byId("text").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); link(); } });
byId("threshold").addEventListener("input", (event) => { state.threshold = Number(event.target.value); tellThreshold(); draw(); });
const settled = () => { remember(); if (state.nil && state.answers.size) link(); };
byId("threshold").addEventListener("change", settled);
byId("usual").addEventListener("click", () => { state.threshold = null; tellThreshold(); byId("threshold").focus(); draw(); settled(); });
for (const [id, key] of [["model", "model"], ["other", "other"]]) {
  byId(id).addEventListener("change", (event) => { state[key] = event.target.value; tellThreshold(); if (byId("text").value.trim()) link(); });
}
byId("share").addEventListener("click", share);
byId("download").addEventListener("click", download);
byId("explain").addEventListener("submit", () => { failed = ""; looks("Looking… the first time takes some seconds."); byId("view").hidden = false; });
byId("view").addEventListener("load", async () => {
  if (!byId("looking").textContent) return;
  looks(failed || "The view is below.", "hidden");
  // a frame that nobody answered loads too, and does not say so
  await ask("/health").catch((error) => { byId("view").hidden = true; looks(error.message, "wrong"); });
});
addEventListener("message", (event) => { if (event.source === byId("view").contentWindow) { failed = String(event.data); looks(failed, "hidden"); } });
addEventListener("hashchange", () => { recall(); fillTools(); byId("text").value = state.text; if (state.text) link(); });

function tellAbout() {
  byId("about").replaceChildren(...health.kbs.flatMap((kb, at) => [at ? " · " : "", said(kb.name), ` ${count(kb.entities, "entity").replace(/ys$/, "ies")}`]));
}

try {
  health = await ask("/health");
  recall();
  fillTools();
  tellAbout();
  begin(health.kbs, health.editable);
  knowledge.editable = health.editable;
  fillEncoders();
  clear();
  byId("result").replaceChildren(el("p", { className: "soft" }, "Press Link, or Ctrl and Enter in the text, to see what it speaks of."));
  byId("text").value = state.text || SAMPLE;
  if (state.text) await link();
  document.documentElement.dataset.ready = "yes";
} catch (error) { wrong(error.message); }

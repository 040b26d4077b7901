// Search and edit knowledge bases.
import { ask, byId, count, el, said, session, short } from "./parts.js";

const field = (name) => byId(`e-${name}`);
let editing = { kb: null, popularity: 0 };
export const knowledge = { changed: async () => [] };

export function begin(kbs, editable) {
  session.editable = editable;
  byId("where").replaceChildren(...kbs.map((kb) => el("option", { value: kb.name }, kb.name)));
  byId("locked").hidden = editable;
  for (const id of ["save", "remove"]) byId(id).disabled = !editable;
  blank();
  find();
}

function blank() {
  editing = { kb: byId("where").value, popularity: 0 };
  for (const name of ["id", "title", "description", "kind", "aliases", "facts"]) field(name).value = "";
  field("id").readOnly = false;
  byId("edit-title").replaceChildren("A new entity of ", said(editing.kb));
  byId("remove").hidden = true;
  doubt();
}

function fill(known) {
  editing = { kb: known.kb, popularity: known.popularity };
  field("id").value = known.id;
  field("id").readOnly = true;
  field("title").value = known.title;
  field("description").value = known.description;
  field("kind").value = known.kind;
  field("aliases").value = Object.entries(known.aliases).map(([name, many]) => `${name} | ${many}`).join("\n");
  field("facts").value = known.facts.map((fact) => fact.join(" | ")).join("\n");
  byId("edit-title").replaceChildren(said(known.title), " in ", said(known.kb));
  byId("remove").hidden = false;
  doubt();
  tell([]);
}

// Fill the form and lead there: it may lie below all that was found.
export function open(known) {
  fill(known);
  byId("edit").scrollIntoView({ block: "nearest" });
  field("title").focus({ preventScroll: true });
}

// "a | b" is parted at its last bar: names may have bars in them.
const parted = (line) => {
  const at = line.lastIndexOf("|");
  return at < 0 ? [line.trim(), ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
};
const lines = (name) => field(name).value.split("\n").map((line) => line.trim()).filter(Boolean);

function body() {
  const aliases = Object.fromEntries(lines("aliases").map((line) => {  // which keeps __proto__, as an assignment would not
    const [name, many] = parted(line), number = Number(many);
    return many && Number.isFinite(number) ? [name, number] : [line, 1];
  }));
  const facts = lines("facts").map((line) => {
    const at = line.indexOf("|");
    if (at < 0) throw new Error(`“${line}” is no fact: write relation | id`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
  return { title: field("title").value, description: field("description").value, kind: field("kind").value, popularity: editing.popularity, aliases, facts };
}

// What is removed is gone: it takes a second press, and anything else in between takes the first one back.
let sure = false;
const doubt = () => { sure = false; byId("remove").textContent = "Remove"; };

const tell = (words, right = true) => { byId("edit-says").className = right ? "" : "wrong"; byId("edit-says").replaceChildren(...words); };

async function change(method) {
  const isNew = !field("id").readOnly;
  if (isNew) field("id").value = field("id").value.trim();
  const id = field("id").value;
  if (!byId("token").value) { tell(["Give the token that the server was started with."], false); byId("token").focus(); return; }
  if (method === "DELETE" && !sure) {
    sure = true;
    byId("remove").textContent = "Remove for good";
    tell(["Press again to remove ", said(id), " with its names and facts."]);
    return;
  }
  doubt();
  tell(["…"]);
  try {
    const path = `/entities/${encodeURIComponent(id)}?kb=${encodeURIComponent(editing.kb)}`;
    const done = await ask(path, { method, token: byId("token").value, body: method === "PUT" ? body() : undefined, isNew });
    const title = field("title").value;
    if (method === "DELETE") blank();
    else {
      field("id").readOnly = true;
      byId("remove").hidden = false;
      byId("edit-title").replaceChildren(said(title), " in ", said(editing.kb));
    }
    const linked = await knowledge.changed(done.kb, id, [title, ...lines("aliases").map((line) => parted(line)[0])]);
    tell([said(id), ` was ${done.what}; ${done.kb} is at revision ${done.revision}. `, ...linked]);
  } catch (error) { tell([explain(error, id)], false); }
}

// Some messages name HTTP headers, which the page sends itself.
const explain = (error, id) => ({
  401: "This is not the server's token. It is in the file given to wellread serve --token-file.",
  412: `There is an entity '${id}' already. Choose another id, or search for it and edit it.`,
})[error.status] ?? error.message;

const HINT = "Type the beginning of a name, and pick an entity to see and edit it.";
const NOTHING = "Nothing found. Try another way to search, such as with typing errors, or add it as a new entity.";
const MOST = 20, PAUSE = 200;
let typing = 0;
let searched = 0;

async function find() {
  const mine = ++searched, query = byId("query").value.trim(), says = (words, className = "") => { byId("found-says").className = className; byId("found-says").textContent = words; };
  if (!query) { byId("found").replaceChildren(); says(HINT); return; }
  says("Searching…");
  try {
    const given = new URLSearchParams({ search: query, how: byId("how").value, kb: byId("where").value, limit: MOST });
    const { entities } = await ask(`/entities?${given}`);
    if (mine !== searched) return;  // another was asked for since
    const many = count(entities.length, "entity").replace(/ys$/, "ies");
    says(!entities.length ? NOTHING : entities.length < MOST ? many : `The first ${many}; say more to find others.`);
    byId("found").replaceChildren(...entities.map((one) => el("li", {}, el("button", { type: "button", className: "entry", onclick: () => open(one) },
      el("b", {}, said(one.title)), " ", el("code", {}, said(one.id)),
      el("span", { className: "soft", dir: "auto" }, said(short(one.description)))))));
  } catch (error) { if (mine === searched) says(error.message, "wrong"); }
}

byId("find").addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(typing); find(); });
byId("query").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(find, PAUSE); });
byId("how").addEventListener("change", find);
byId("where").addEventListener("change", () => { if (!field("id").readOnly) blank(); find(); });
byId("edit").addEventListener("input", doubt);
byId("edit").addEventListener("submit", (event) => { event.preventDefault(); change("PUT"); });
byId("remove").addEventListener("click", () => change("DELETE"));
byId("blank").addEventListener("click", () => { blank(); tell([]); field("id").focus(); });

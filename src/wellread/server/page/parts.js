// Shared parts of the page: elements made of texts (never of markup), requests to the server, numbers, the token.
export const byId = (id) => document.getElementById(id);

// The server's token, which is typed once and kept as long as the page is open.
export const session = {
  editable: false,
  get token() { return byId("token").value; },
  set token(value) { byId("token").value = value; },
};

// el("b", { className: "x", onclick }, "text", other): an element; strings become text and nothing else.
export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const said = (text, given = {}) => el("bdi", given, text);

// The server's answer; an error has its message and status.
export async function ask(path, { method = "GET", body, token, signal, isNew, plain } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (token) headers.Authorization = `Bearer ${token}`;
  if (isNew) headers["If-None-Match"] = "*";  // else one with that id would be written over
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running?");
  }
  if (plain && answer.ok) return answer.text();
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(told.error ?? `The server answers ${answer.status}.`), { status: answer.status });
  return told;
}

export const count = (many, word) => `${many.toLocaleString("en")} ${word}${many === 1 ? "" : "s"}`;
export const short = (text, most = 160) => (text.length > most ? `${text.slice(0, most).replace(/\s+\S*$/, "")} …` : text);
export const score = (value) => value.toFixed(2);

// Offsets of the server count characters (code points), those of strings here count 16 bits.
export function offsets(text) {
  const places = [];
  for (let at = 0; at < text.length; at++) {
    places.push(at);
    const unit = text.charCodeAt(at), next = text.charCodeAt(at + 1);
    if (unit >= 0xd800 && unit < 0xdc00 && next >= 0xdc00 && next < 0xe000) at++;
  }
  places.push(text.length);
  return places;
}

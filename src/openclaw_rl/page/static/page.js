// The page's own script: acts, the login, what is kept up to date, the theme. Acts go to /do with a header that no
// other site can send; what they need is in the data attributes of their buttons:
//   data-act      the address      data-body     what is sent, as JSON
//   data-confirm  is asked first   data-confirm2 is asked after that
//   data-ask      the name of a text that the question wants     data-answer   shows the reply below
import { show, upgrade } from "./prose.js";
import { beginTalk } from "./talk.js";

const EVERY = 2500;
const kept = new Map();
let refreshing = false;

export async function send(address, body, options = {}) {
  const response = await fetch(address, {
    method: "POST",
    headers: { "content-type": "application/json", "x-openclaw-page": "1" },
    body: JSON.stringify(body),
    ...options,
  });
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Error(told.error ?? `the page's server answered ${response.status}`);
}

export function toast(words, kind = "") {
  const made = document.createElement("p");
  made.className = `toast ${kind}`;
  made.setAttribute("role", kind === "bad" ? "alert" : "status");
  made.textContent = words;
  messages().append(made);
  setTimeout(() => made.remove(), kind === "bad" || words.length > 60 ? 9000 : 4000);
}

function messages() {
  let found = document.querySelector(".toasts");
  if (!found) {
    found = document.createElement("div");
    found.className = "toasts";
    document.body.append(found);
  }
  return found;
}

// --- acts ---

async function act(button) {
  const { act: address, body, confirm, confirm2, ask, example, answer } = button.dataset;
  const given = body ? JSON.parse(body) : {};
  if (confirm) {
    const said = await question(confirm, { ask, example, label: button.textContent.trim() });
    if (said === null) return;
    if (ask && said) given[ask] = said;
  }
  if (confirm2 && (await question(confirm2, { label: button.textContent.trim() })) === null) return;
  button.disabled = true;
  button.classList.add("working");
  try {
    const told = await (await send(address, given)).json();
    if (told.go) return leave(told);
    if (answer) shown(button, told);
    else toast(told.said ?? "Done.");
    await refresh();
  } catch (error) {
    toast(error.message, "bad");
  } finally {
    button.disabled = false;
    button.classList.remove("working");
  }
}

/** Go where the answer leads; what it says is said there. */
function leave(told) {
  try {
    sessionStorage.setItem("said", told.said ?? "Done.");
  } catch {
    toast(told.said ?? "Done.");
  }
  location.assign(told.go);
}

function greet() {
  try {
    const said = sessionStorage.getItem("said");
    sessionStorage.removeItem("said");
    if (said) toast(said);
  } catch {
    // nothing was kept
  }
}

function shown(button, told) {
  const place = button.parentElement;
  place.querySelector(".answered")?.remove();
  const made = document.createElement("div");
  made.className = "answered";
  const origin = made.appendChild(document.createElement("p"));
  origin.className = "faint";
  origin.textContent = told.version == null ? "now" : `now, version ${told.version}`;
  show(made.appendChild(document.createElement("div")), told.text);
  made.lastChild.className = "prose";
  place.append(made);
  place.closest("[data-live]")?.setAttribute("data-held", "");
}

/** Ask before something is done: the text given, "" where none is wanted, null for no. */
function question(words, { ask, example, label }) {
  const dialog = document.body.appendChild(document.createElement("dialog"));
  const form = dialog.appendChild(document.createElement("form"));
  form.method = "dialog";
  const told = form.appendChild(document.createElement("p"));
  told.textContent = words;
  told.id = "asked";
  dialog.setAttribute("aria-labelledby", "asked");
  let field = null;
  if (ask) {
    field = form.appendChild(document.createElement("textarea"));
    field.rows = 3;
    field.required = ask === "comment";
    field.placeholder = example ?? "";
    field.setAttribute("aria-label", words);
  }
  const row = form.appendChild(document.createElement("div"));
  row.className = "row";
  for (const [value, text, kind] of [["yes", ask ? "Send" : label || "Yes", "primary"], ["no", "Cancel", "quiet"]]) {
    const button = row.appendChild(document.createElement("button"));
    button.value = value;
    button.textContent = text;
    button.className = kind;
    if (value === "no") button.formNoValidate = true;
  }
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? (field?.value.trim() ?? "") : null);
    });
    dialog.showModal();
  });
}

async function submitted(form) {
  const given = Object.fromEntries(new FormData(form));
  try {
    const told = await (await send(form.dataset.form, given)).json();
    form.reset();
    toast(told.said ?? "Done.");
    document.activeElement?.blur();
    await refresh();
  } catch (error) {
    toast(error.message, "bad");
  }
}

/** Two versions on the same prompts, side by side. */
async function compare(form) {
  const button = form.querySelector("button");
  const place = form.parentElement.querySelector(".compared");
  button.disabled = true;
  place.replaceChildren(Object.assign(document.createElement("p"), { className: "faint", textContent: "Asking both…" }));
  try {
    const given = Object.fromEntries(new FormData(form));
    const told = await (await send(form.dataset.compare, given)).json();
    place.replaceChildren(...told.rows.map((row) => side(row, told.versions)));
  } catch (error) {
    place.replaceChildren();
    toast(error.message, "bad");
  } finally {
    button.disabled = false;
  }
}

function side(row, versions) {
  const made = document.createElement("div");
  made.append(Object.assign(document.createElement("strong"), { textContent: row.prompt }));
  for (const [at, name] of ["first", "second"].entries()) {
    const box = made.appendChild(document.createElement("div"));
    box.className = "side";
    box.append(Object.assign(document.createElement("p"), { className: "faint", textContent: `version ${versions[at]}` }));
    const prose = box.appendChild(Object.assign(document.createElement("div"), { className: "prose" }));
    show(prose, row[name]);
  }
  return made;
}

/** The very tokens of a reply; the less likely one was, the stronger its colour. */
async function tokens(place) {
  try {
    const told = await (await send("/do/tokens", { turn: place.dataset.tokens })).json();
    if (!told.tokens.length) return;
    place.replaceChildren(
      ...told.tokens.map(([text, logprob]) => {
        const made = document.createElement("span");
        made.className = `t t${[0.1, 0.5, 1.2, 2.5, 4.5].filter((least) => -logprob > least).length}`;
        made.textContent = text;
        made.title = `${JSON.stringify(text)} · log-prob ${logprob} · ${(100 * Math.exp(logprob)).toFixed(1)} %`;
        return made;
      }),
    );
  } catch (error) {
    const told = place.parentElement.querySelector(".faint");
    told.textContent = `The tokens cannot be shown now: ${error.message}`;
  }
}

async function logIn(form) {
  const failed = form.querySelector(".error");
  try {
    await send("/do/login", { key: form.elements.key.value });
    location.reload();
  } catch (error) {
    failed.textContent = error.message;
    failed.hidden = false;
    form.elements.key.select();
  }
}

// --- what is kept up to date ---

/** Fetch this page again and put in what has changed, leaving alone what somebody is at. */
export async function refresh() {
  if (refreshing || !document.querySelector("[data-live]")) return;
  refreshing = true;
  try {
    const response = await fetch(location.href, { cache: "no-store" });
    if (response.status === 401) return location.reload();
    if (!response.ok) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const region of document.querySelectorAll("[data-live]")) renew(region, fresh);
    document.body.classList.remove("away");
  } catch {
    document.body.classList.add("away");
  } finally {
    refreshing = false;
  }
}

function renew(region, fresh) {
  const name = region.dataset.live;
  const newer = fresh.querySelector(`[data-live="${name}"]`);
  if (!newer || newer.innerHTML === kept.get(name)) return;
  // a button that is replaced while it is pressed is never clicked
  if (region.hasAttribute("data-held") || region.matches(":active") || writing(region)) return;
  kept.set(name, newer.innerHTML);
  const open = new Set([...region.querySelectorAll("details[open]")].map((one) => keyOf(region, one)));
  region.replaceChildren(...newer.childNodes);
  for (const one of region.querySelectorAll("details")) one.open = open.has(keyOf(region, one)) || one.open;
  polish(region);
}

function keyOf(region, details) {
  const holder = details.closest("[id]");
  return `${holder && region.contains(holder) ? holder.id : ""}/${details.className}`;
}

function writing(region) {
  const at = document.activeElement;
  return at && region.contains(at) && "value" in at && at.value !== "";
}

function polish(root) {
  upgrade(root);
  for (const time of root.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    time.textContent = ago(at);
    time.title = at.toLocaleString();
  }
}

function ago(at) {
  const seconds = (Date.now() - at) / 1000;
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    const count = Math.floor(seconds / size);
    if (count >= 1) return count < 40 || unit !== "day" ? `${count} ${unit}${count > 1 ? "s" : ""} ago` : at.toLocaleDateString();
  }
  return "just now";
}

// --- the theme ---

function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // it holds for this page alone then
  }
}

// --- begin ---

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.act) act(button);
  else if ("theme" in button.dataset) turnTheme();
  else if ("logout" in button.dataset) send("/do/logout", {}).finally(() => location.assign("/"));
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.form) {
    event.preventDefault();
    submitted(form);
  } else if (form.dataset.compare) {
    event.preventDefault();
    compare(form);
  } else if ("login" in form.dataset) {
    event.preventDefault();
    logIn(form);
  }
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    const field = document.querySelector("#say, [type=search]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});

for (const region of document.querySelectorAll("[data-live]")) kept.set(region.dataset.live, region.innerHTML);
polish(document);
greet();
for (const place of document.querySelectorAll("[data-tokens]")) tokens(place);
const talk = document.querySelector("[data-talk]");
if (talk) beginTalk(talk, { send, toast, refresh });
setInterval(() => document.visibilityState === "visible" && refresh(), EVERY);

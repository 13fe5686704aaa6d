// What a model or a person wrote, laid out from its text. Nodes are made one by one and text is set as text: no string
// is ever read as markup, so nothing in it can run. Plain where it is too long to lay out at once.

const LONGEST = 20_000;
const INLINE =
  /`([^`\n]{1,2000})`|\*\*([^*\n]{1,2000})\*\*|\*([^*\s][^*\n]{0,2000})\*|\[([^\]\n]{1,300})\]\(([^)\s]{1,2000})\)|(https?:\/\/[^\s<>"')\]]{1,2000})/g;

const sources = new WeakMap();

/** The very text of an element that `show` or `upgrade` laid out. */
export function sourceOf(node) {
  return sources.get(node) ?? node.textContent;
}

/** Lay out every element below `root` that holds text as it came from the server. */
export function upgrade(root) {
  for (const node of root.querySelectorAll("[data-prose]")) show(node, node.textContent);
}

/** Lay out `text` in an element. */
export function show(node, text) {
  sources.set(node, text);
  node.removeAttribute("data-prose");
  if (text.length > LONGEST) beginning(node, text);
  else node.replaceChildren(...blocks(text));
}

/** The beginning of a long text, as it is, and how much more there is: a browser must not stand still over a reply. */
function beginning(node, text) {
  if (!node.querySelector(":scope > .plain")) {
    const more = element("button", "quiet");
    more.type = "button";
    more.addEventListener("click", () => {
      node.querySelector(".plain").textContent = sources.get(node);
      more.remove();
    });
    node.replaceChildren(element("p", "plain", text.slice(0, LONGEST)), more);
  }
  const left = node.querySelector(":scope > button");
  if (left) left.textContent = `Show ${(text.length - LONGEST).toLocaleString()} characters more`;
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const reader = READERS.find(([begins]) => begins(lines[at], lines[at + 1]));
    const [made, next] = (reader ? reader[1] : paragraph)(lines, at);
    if (made) found.push(made);
    at = next;
  }
  return found;
}

const READERS = [
  [(line) => !line.trim(), (_, at) => [null, at + 1]],
  [(line) => /^\s{0,3}(```|~~~)/.test(line), fence],
  [(line) => /^#{1,4}\s/.test(line), heading],
  [(line) => /^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line), (_, at) => [element("hr"), at + 1]],
  [(line) => /^\s*([-*+]|\d{1,4}[.)])\s/.test(line), list],
  [(line) => /^>/.test(line), quote],
  [(line, next) => line.includes("|") && /^[\s|:-]+$/.test(next ?? "") && next.includes("-"), table],
];

function fence(lines, at) {
  const mark = lines[at].trim().slice(0, 3);
  const name = lines[at].trim().slice(3).trim().slice(0, 40);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end += 1;
  const block = element("pre", "code");
  if (name) block.dataset.language = name;
  block.tabIndex = 0;
  block.append(element("code", "", lines.slice(at + 1, end).join("\n")));
  return [block, end + 1];
}

function heading(lines, at) {
  const level = lines[at].match(/^#+/)[0].length;
  const made = element(`h${Math.min(level + 2, 6)}`);
  inline(made, lines[at].slice(level).trim());
  return [made, at + 1];
}

function list(lines, at) {
  const numbered = /^\s*\d/.test(lines[at]);
  const made = element(numbered ? "ol" : "ul");
  if (numbered) made.start = parseInt(lines[at], 10) || 1;
  let end = at;
  for (; end < lines.length; end += 1) {
    const item = lines[end].match(/^\s*(?:[-*+]|\d{1,4}[.)])\s+(.*)$/);
    if (item && /^\s*\d/.test(lines[end]) === numbered) {
      inline(made.appendChild(element("li")), item[1]);
    } else if (lines[end].trim() && /^\s+/.test(lines[end]) && made.lastChild) {
      made.lastChild.append(" ");
      inline(made.lastChild, lines[end].trim());
    } else break;
  }
  return end > at ? [made, end] : paragraph(lines, at);
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && lines[end].startsWith(">")) end += 1;
  const made = element("blockquote");
  inline(made, lines.slice(at, end).map((line) => line.replace(/^>\s?/, "")).join("\n"));
  return [made, end];
}

function table(lines, at) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").slice(0, 40);
  const made = element("table");
  const row = (line, tag) => {
    const drawn = made.appendChild(element("tr"));
    for (const cell of cells(line)) inline(drawn.appendChild(element(tag)), cell.trim());
  };
  row(lines[at], "th");
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); end += 1) row(lines[end], "td");
  return [made, end];
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !READERS.some(([begins]) => begins(lines[end], lines[end + 1]))) end += 1;
  const made = element("p");
  inline(made, lines.slice(at, end).join("\n"));
  return [made, end];
}

function inline(parent, text) {
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    parent.append(text.slice(last, match.index));
    const [whole, code, bold, italic, label, target, bare] = match;
    if (code !== undefined) parent.append(element("code", "", code));
    else if (bold !== undefined) parent.append(element("strong", "", bold));
    else if (italic !== undefined) parent.append(element("em", "", italic));
    else parent.append(link(label ?? bare, target ?? bare) ?? whole);
    last = match.index + whole.length;
  }
  parent.append(text.slice(last));
}

/** A link to the web or a mailbox; null for any other scheme, which then stays the text it is. */
function link(label, target) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  const made = element("a", "", label);
  made.href = url.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}

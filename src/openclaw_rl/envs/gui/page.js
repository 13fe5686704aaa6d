// Runs in an isolated world of each document: it sees the page's nodes, the page's scripts see nothing of it.
// Roles and names are the browser's own (computedRole, computedName).
(() => {
  if (globalThis.gui) return;

  const ACTS = new Set(["button", "checkbox", "combobox", "link", "listbox", "menuitem", "menuitemcheckbox",
    "menuitemradio", "option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem"]);
  const HOLDS = new Set(["combobox", "listbox", "menuitem", "treeitem"]);
  const FORMATS = new Set(["B", "BR", "CODE", "EM", "FONT", "I", "MARK", "S", "SMALL", "STRONG", "SUB", "SUP", "U", "WBR"]);
  const SHAPES = new Set(["circle", "ellipse", "line", "path", "polygon", "polyline", "rect"]);
  const BY_VALUE = new Set(["color", "date", "datetime-local", "month", "range", "time", "week"]);
  const COLORS = { black: [0, 0, 0], white: [255, 255, 255], gray: [128, 128, 128], silver: [192, 192, 192],
    red: [255, 0, 0], maroon: [128, 0, 0], lime: [0, 255, 0], green: [0, 128, 0], blue: [0, 0, 255], navy: [0, 0, 128],
    yellow: [255, 255, 0], olive: [128, 128, 0], aqua: [0, 255, 255], teal: [0, 128, 128], magenta: [255, 0, 255],
    purple: [128, 0, 128], orange: [255, 165, 0], pink: [255, 192, 203], brown: [165, 42, 42] };

  const numbers = new WeakMap();
  const nodes = new Map();
  let next = 1;
  let changed = performance.now();
  new MutationObserver(() => { changed = performance.now(); }).observe(
    document, { attributes: true, characterData: true, childList: true, subtree: true });

  const plain = text => (text || "").replace(/\s+/g, " ").trim();

  function numberOf(node) {
    if (!numbers.has(node)) {
      numbers.set(node, next);
      nodes.set(next, new WeakRef(node));
      next += 1;
    }
    return numbers.get(node);
  }

  function nodeOf(number) {
    const node = nodes.get(number)?.deref();
    return node?.isConnected ? node : null;
  }

  function rectsOf(node) {
    if (node.nodeType !== Node.TEXT_NODE) return [...node.getClientRects()];
    const range = document.createRange();
    range.selectNodeContents(node);
    return [...range.getClientRects()];
  }

  const boxOf = node => rectsOf(node).find(box => box.width > 0 && box.height > 0) || null;

  function colorOf(value) {
    const parts = (value || "").match(/[\d.]+/g)?.map(Number);
    if (!parts || parts.length < 3 || parts[3] === 0) return "";
    const far = ([red, green, blue]) => (red - parts[0]) ** 2 + (green - parts[1]) ** 2 + (blue - parts[2]) ** 2;
    return Object.entries(COLORS).reduce((best, each) => (far(each[1]) < far(best[1]) ? each : best))[0];
  }

  function statesOf(element) {
    const states = [];
    const aria = (name, word) => element.getAttribute(`aria-${name}`) === "true" && states.push(word);
    if (element.checked === true) states.push("checked");
    else aria("checked", "checked");
    if (element.disabled === true) states.push("disabled");
    else aria("disabled", "disabled");
    if (element.selected === true) states.push("selected");
    else aria("selected", "selected");
    aria("expanded", "expanded");
    if (element.getAttribute("aria-expanded") === "false") states.push("collapsed");
    if (element instanceof HTMLTextAreaElement) states.push("multiline");
    if (element === document.activeElement) states.push("focused");
    return states;
  }

  function valueOf(element) {
    if (element instanceof HTMLSelectElement) return plain(element.selectedOptions[0]?.text);
    if (element instanceof HTMLInputElement) {
      if (["button", "checkbox", "image", "radio", "reset", "submit"].includes(element.type)) return "";
      return element.type === "password" ? "*".repeat(element.value.length) : element.value;
    }
    if (element instanceof HTMLTextAreaElement) return element.value;
    return element.getAttribute("aria-valuenow") || "";
  }

  // the words of a label are the name of what it labels
  const labels = (node, name) => (node.parentElement ?? node).closest("label")?.control?.computedName === plain(name);

  function item(node, role, name, more) {
    if (role === "text" && labels(node.nodeType === Node.TEXT_NODE ? node : node.firstChild, name)) return [];
    const box = boxOf(node);
    if (!box) return [];
    const inside = box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth;
    const place = [box.x + box.width / 2, box.y + box.height / 2, box.width, box.height].map(Math.round);
    return [{ number: numberOf(node), role, name: plain(name), value: "", states: [], options: [], place,
      inside, acts: false, ...more }];
  }

  const labelOf = element => [element.getAttribute("title"), element.placeholder, element.name, element.id,
    element.getAttribute("class")].map(one => (typeof one === "string" ? plain(one) : "")).find(Boolean) || "";

  function drawn(element) {
    const style = getComputedStyle(element);
    const corners = element.getAttribute("points")?.trim().split(/[\s,]+/).length / 2;
    const role = element.localName === "text" ? "letters" : corners === 3 ? "triangle" : element.localName;
    const name = element.localName === "text" ? element.textContent : labelOf(element);
    const color = colorOf(style.fill) || colorOf(style.stroke);
    return item(element, role, `${color} ${name}`, { acts: clickable(element) });
  }

  function pictured(element) {
    const style = getComputedStyle(element);
    const color = colorOf(style.backgroundColor);
    const lined = style.borderTopStyle !== "none" && parseFloat(style.borderTopWidth) > 0;
    const shown = style.backgroundImage !== "none" || style.content.startsWith("url(");
    const kept = color || lined || shown || element.localName === "canvas";
    const role = element.localName === "canvas" ? "canvas" : "box";
    return kept ? item(element, role, `${color} ${labelOf(element)}`, { acts: clickable(element) }) : [];
  }

  function clickable(element) {
    const style = getComputedStyle(element);
    const pointed = style.cursor === "pointer" && getComputedStyle(element.parentElement || element).cursor !== "pointer";
    return pointed || element.isContentEditable || element.hasAttribute("onclick") || element.draggable
      || (element.tabIndex >= 0 && element.hasAttribute("tabindex"));
  }

  function acting(element, role) {
    const options = element instanceof HTMLSelectElement ? [...element.options].map(one => plain(one.text)) : [];
    const words = HOLDS.has(role) || element instanceof HTMLTextAreaElement ? "" : plain(element.textContent);
    const name = plain(element.computedName) || words || labelOf(element);
    const found = item(element, role, name, { value: valueOf(element), states: statesOf(element), options, acts: true });
    if (!HOLDS.has(role) || options.length) return found;
    return [...found, ...below(element).filter(one => one.role !== "text" || one.name !== name)];
  }

  const worded = element => [...element.childNodes].some(one => one.nodeType === Node.TEXT_NODE && plain(one.data));
  const formatted = element => [...element.querySelectorAll("*")].every(one => FORMATS.has(one.tagName));

  function below(element) {
    const inner = element.shadowRoot ? [...element.shadowRoot.childNodes] : [...element.childNodes];
    return inner.flatMap(one => {
      if (one.nodeType === Node.ELEMENT_NODE) return seen(one);
      return one.nodeType === Node.TEXT_NODE && plain(one.data) ? item(one, "text", one.data) : [];
    });
  }

  let ignored = "";

  function seen(element) {
    if (ignored && element.matches(ignored)) return [];
    const role = element.computedRole;
    if (element.localName === "option" || ["script", "style", "noscript", "head"].includes(element.localName)) return [];
    if (!element.checkVisibility({ visibilityProperty: true })) {
      return getComputedStyle(element).display === "none" ? [] : below(element);
    }
    if (ACTS.has(role)) return acting(element, role);
    if (element instanceof HTMLInputElement && element.type !== "hidden") return acting(element, element.type);
    if (element instanceof SVGElement && (SHAPES.has(element.localName) || element.localName === "text")) {
      return drawn(element);
    }
    if (element.localName === "img") return item(element, "image", element.computedName, { acts: clickable(element) });
    if (clickable(element) && formatted(element)) {
      const words = element.computedName || plain(element.textContent);
      return item(element, "clickable", words || labelOf(element), { states: statesOf(element), acts: true });
    }
    if (worded(element) && formatted(element)) {
      return item(element, role === "heading" ? "heading" : "text", element.innerText ?? element.textContent);
    }
    const inner = below(element);
    return inner.length ? inner : pictured(element);
  }

  function pointsOf(box) {
    const middle = [box.x + box.width / 2, box.y + box.height / 2];
    const spread = [[0.5, 0.25], [0.5, 0.75], [0.25, 0.5], [0.75, 0.5], [0.1, 0.5], [0.9, 0.5]];
    return [middle, ...spread.map(([right, down]) => [box.x + box.width * right, box.y + box.height * down])];
  }

  function scrolled(node) {
    for (let one = node; one && one !== document.body; one = one.parentElement) {
      const flows = getComputedStyle(one).overflowY;
      if (one.scrollHeight > one.clientHeight && ["auto", "scroll"].includes(flows)) return one;
      if (one instanceof HTMLTextAreaElement || one instanceof HTMLSelectElement) return one;
    }
    return document.scrollingElement;
  }

  function told(element, ...kinds) {
    for (const kind of kinds) element.dispatchEvent(new Event(kind, { bubbles: true }));
  }

  globalThis.gui = {
    screen(ignore) {
      ignored = ignore;
      return { title: document.title, items: document.body ? seen(document.body) : [] };
    },
    async rests(quiet, most) {
      const end = performance.now() + most;
      const rested = () => document.readyState === "complete" && performance.now() - changed >= quiet;
      while (!rested() && performance.now() < end) await new Promise(done => setTimeout(done, 20));
      return rested();
    },
    locate(number) {
      const node = nodeOf(number);
      if (!node) return { fault: "is gone" };
      const element = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
      if (!boxOf(node)) return { fault: "cannot be seen" };
      element.scrollIntoViewIfNeeded?.();
      const hits = ([x, y]) => {
        const hit = document.elementFromPoint(x, y);
        return hit && (element.contains(hit) || hit.contains(element) || !!hit.shadowRoot);
      };
      const points = rectsOf(node).filter(box => box.width > 0 && box.height > 0).flatMap(pointsOf);
      const free = points.find(hits);
      return { point: free || points[0], covered: !free };
    },
    mark(number) {
      const element = nodeOf(number);
      if (!element) return { fault: "is gone" };
      if (element.disabled) return { fault: "is disabled" };
      if (element.readOnly) return { fault: "cannot be written to" };
      if (BY_VALUE.has(element.type)) return { by: "value" };
      if (element.select) element.select();
      else if (element.isContentEditable) getSelection().selectAllChildren(element);
      else return { fault: "takes no text" };
      return { by: "keys" };
    },
    fill(number, text) {
      const element = nodeOf(number);
      element.value = text;
      told(element, "input", "change");
      return element.value === text ? {} : { fault: `takes no ${JSON.stringify(text)}, but a ${element.type}` };
    },
    select(number, wanted) {
      const element = nodeOf(number);
      if (!element) return { fault: "is gone" };
      if (!(element instanceof HTMLSelectElement)) return { fault: "is no list: click it" };
      const folded = plain(wanted).toLowerCase();
      const option = [...element.options].find(one => plain(one.text).toLowerCase() === folded || one.value === wanted);
      if (!option) return { fault: `has no ${JSON.stringify(wanted)}` };
      option.selected = true;
      told(element, "input", "change");
      return {};
    },
    scroll(number, right, down) {
      const node = number === null ? document.scrollingElement : nodeOf(number);
      if (!node) return { fault: "is gone" };
      const element = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
      const moved = scrolled(element);
      const before = [moved.scrollLeft, moved.scrollTop];
      moved.scrollBy({ left: right * moved.clientWidth * 0.8, top: down * moved.clientHeight * 0.8, behavior: "instant" });
      return before[0] === moved.scrollLeft && before[1] === moved.scrollTop ? { fault: "does not move further" } : {};
    },
    dragged(from, to) {
      const source = document.elementFromPoint(...from)?.closest("[draggable=true]");
      const target = document.elementFromPoint(...to);
      if (!source || !target) return false;
      const dataTransfer = new DataTransfer();
      const tell = (element, kind) => element.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer }));
      tell(source, "dragstart");
      tell(target, "dragenter");
      tell(target, "dragover");
      tell(target, "drop");
      tell(source, "dragend");
      return true;
    },
  };
})();

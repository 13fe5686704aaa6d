// Talk: sends messages, shows replies as they come, stops them, asks again, rates them and puts them right.
import { show, sourceOf } from "./prose.js";

const PAINT = 60;

export function beginTalk(root, tools) {
  new Talk(root, tools).begin();
}

class Talk {
  constructor(root, { send, toast, refresh }) {
    Object.assign(this, { root, send, toast, refresh });
    this.session = root.dataset.talk;
    this.messages = root.querySelector("#messages");
    this.form = root.querySelector("[data-composer]");
    this.field = root.querySelector("#say");
    this.stopping = null;
  }

  begin() {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.say();
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.say();
      }
    });
    this.field.addEventListener("input", () => this.grow());
    this.root.querySelector("[data-stop]").addEventListener("click", () => this.stopping?.abort());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.stopping?.abort());
    this.root.addEventListener("click", (event) => this.clicked(event.target.closest("button")));
    this.field.disabled = false;
    this.field.focus({ preventScroll: true });
    this.end(false);
  }

  clicked(button) {
    if (!button) return;
    if ("sample" in button.dataset) {
      this.field.value = button.textContent;
      this.say();
      return;
    }
    const article = button.closest("article");
    const does = { up: "rate", down: "rate", edit: "edit", again: "again", copy: "copy" }[button.dataset.do];
    if (article && does) this[does](article, button);
  }

  /** The conversation as it is sent: each message with its very text. */
  history() {
    return [...this.messages.querySelectorAll("article")].map((article) => ({
      role: article.dataset.role,
      content: sourceOf(article.querySelector(".prose")),
    }));
  }

  add(kind, text) {
    const made = document.getElementById(`template-${kind}`).content.firstElementChild.cloneNode(true);
    this.messages.append(made);
    show(made.querySelector(".prose"), text);
    return made;
  }

  async say() {
    const words = this.field.value.trim();
    if (!words || this.stopping) return;
    document.getElementById("welcome")?.remove();
    this.field.value = "";
    this.grow();
    this.add("said", words);
    await this.ask();
  }

  async ask() {
    const history = this.history();
    const article = this.add("reply", "");
    article.classList.add("coming");
    this.stopping = new AbortController();
    this.busy(true);
    this.end(true);
    const reply = new Reply(article);
    try {
      const response = await this.send(
        "/do/talk",
        { session: this.session, messages: history },
        { signal: this.stopping.signal },
      );
      await reply.read(response.body, (told) => (told.end ? this.answeredBy(article, told.version) : this.begun(article, told)));
    } catch (error) {
      if (error.name === "AbortError") reply.note("stopped");
      else this.toast(error.message, "bad");
    } finally {
      reply.finish();
      this.stopping = null;
      this.busy(false);
      this.end(true);
      if (!reply.text) article.remove();
    }
    if (history.length > 1) for (const wait of [700, 2000]) setTimeout(() => this.refresh(), wait);
  }

  begun(article, told) {
    if (this.session !== told.session) {
      this.session = told.session;
      history.replaceState(null, "", `/talk?session=${encodeURIComponent(told.session)}`);
    }
    article.dataset.turn = told.turn;
    this.notes = told.notes.length ? ` · with note ${told.notes.join(", ")}` : "";
    this.answeredBy(article, told.version);
  }

  /** Which version answers: known before its first words, or with them where the server was slow. */
  answeredBy(article, version) {
    if (version == null) return;
    const before = this.version;
    this.version = version;
    const fresh = before !== undefined && before !== version ? " (new)" : "";
    const origin = article.querySelector("[data-origin]");
    if (!origin.textContent) origin.textContent = `version ${version}${fresh}${this.notes}`;
  }

  async again(article) {
    if (this.stopping) return;
    while (article.nextElementSibling) article.nextElementSibling.remove();
    article.remove();
    await this.ask();
  }

  async rate(article, button) {
    await this.feedback(article, { thumb: button.dataset.do }, () => {
      for (const one of article.querySelectorAll("[data-do=up], [data-do=down]")) {
        one.setAttribute("aria-pressed", one === button ? "true" : "false");
      }
    });
  }

  edit(article) {
    if (article.querySelector("form")) return;
    const form = document.getElementById("template-edit").content.firstElementChild.cloneNode(true);
    const field = form.querySelector("textarea");
    field.value = sourceOf(article.querySelector(".prose"));
    form.querySelector("[data-do=cancel]").addEventListener("click", () => form.remove());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.feedback(article, { edit: field.value }, () => form.remove());
    });
    article.append(form);
    field.focus();
  }

  copy(article) {
    navigator.clipboard?.writeText(sourceOf(article.querySelector(".prose"))).then(() => this.toast("Copied."));
  }

  async feedback(article, fields, done) {
    if (!article.dataset.turn) return;
    try {
      const told = await (await this.send("/do/feedback", { turn: article.dataset.turn, ...fields })).json();
      done();
      this.toast(told.said);
      setTimeout(() => this.refresh(), 900);
    } catch (error) {
      this.toast(error.message, "bad");
    }
  }

  busy(on) {
    this.root.querySelector("[data-stop]").hidden = !on;
    this.root.querySelector("[data-send]").hidden = on;
    this.messages.setAttribute("aria-busy", on);
    if (!on) this.field.focus();
  }

  grow() {
    this.field.rows = Math.min(8, this.field.value.split("\n").length + Math.floor(this.field.value.length / 90));
  }

  end(smooth) {
    this.form.scrollIntoView({ block: "end", behavior: smooth ? "smooth" : "instant" });
  }
}

/** A reply as it comes: lines of JSON, painted a few times a second. */
class Reply {
  constructor(article) {
    this.article = article;
    this.place = article.querySelector(".prose");
    this.text = "";
    this.painted = 0;
  }

  /** Put the text in as it comes; ``heard`` gets what is said before it and after it. */
  async read(stream, heard) {
    let rest = "";
    for await (const part of chunks(stream)) {
      const lines = (rest + part).split("\n");
      rest = lines.pop();
      for (const line of lines) this.take(JSON.parse(line), heard);
    }
  }

  take(told, heard) {
    if (told.error) throw new Error(told.error);
    if (told.turn !== undefined || told.end) heard(told);
    if (told.text) {
      this.text += told.text;
      if (performance.now() - this.painted > PAINT) this.paint();
    }
  }

  paint() {
    const low = document.documentElement.scrollHeight - window.scrollY - window.innerHeight < 160;
    show(this.place, this.text);
    this.painted = performance.now();
    if (low) window.scrollTo({ top: document.documentElement.scrollHeight });
  }

  note(words) {
    this.article.querySelector("[data-origin]").append(` · ${words}`);
  }

  finish() {
    show(this.place, this.text);
    this.article.classList.remove("coming");
  }
}

async function* chunks(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield decoder.decode(value, { stream: true });
  }
}

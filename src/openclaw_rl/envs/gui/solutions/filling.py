"""Scripted solutions of the pages with fields to fill. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from openclaw_rl.envs.gui.screen import Element
from openclaw_rl.envs.gui.solutions.view import POSITIONS, Solution, View
from openclaw_rl.envs.gui.tasks import Move

FIELDS = ("textbox", "searchbox", "spinbutton", "combobox", "date", "time")


def field(view: View, place: int = 0) -> Element | None:
    """The field at this place."""
    fields = view.all(*FIELDS)
    return fields[place] if place < len(fields) else None


def quoted(view: View) -> Move | None:
    return view.fill((field(view), view.found(r'"([^"]+)"')))


def in_case(view: View) -> Move | None:
    text = view.found(r'"([^"]+)"')
    return view.fill((field(view), text.upper() if "upper" in view.asked else text.lower()))


def password(view: View) -> Move | None:
    word = view.found(r'password "([^"]+)"')
    return view.fill((field(view), word), (field(view, 1), word))


def login(view: View) -> Move | None:
    """Name and password; a dialog that comes between is sent away, and what it emptied is filled again."""
    cancel = view.named("Cancel", "button")
    if cancel is not None:
        return view.click(cancel)
    name, word = view.found(r'username "([^"]+)"'), view.found(r'password "([^"]+)"')
    first, second = view.named("username"), view.named("password")
    if first is not None and first.value != name:
        return view.act("type", first, text=name)
    if second is not None and len(second.value) != len(word):
        return view.act("type", second, text=word)
    return view.submit("Login") or view.submit("OK")


def date(view: View) -> Move | None:
    month, day, year = view.found(r"Enter ([\d/]+) as").split("/")
    return view.fill((field(view), f"{year}-{int(month):02}-{int(day):02}"))


def clock(view: View) -> Move | None:
    hour, minute = view.found(r"Enter (\d+:\d+)").split(":")
    late = 12 if "PM" in view.asked else 0
    return view.fill((field(view), f"{int(hour) % 12 + late:02}:{minute}"))


def focus(view: View) -> Move | None:
    return view.click(field(view, view.nth(r"the (\w+) input")))


def word_at(view: View) -> Move | None:
    words = re.findall(r"[\w]+", view.all("text")[0].name)
    return view.fill((field(view), words[view.nth(r"Find the (\w+) word")]))


def last_word(view: View) -> Move | None:
    words = re.findall(r"\w+", view.all("textbox")[0].value)
    return view.fill((field(view, 1), words[-1]))


def copied(view: View) -> Move | None:
    from_, to = view.named("to-copy"), view.named("answer-input")
    return view.fill((to, from_.value if from_ else ""))


def copied_nth(view: View) -> Move | None:
    areas = [each for each in view.all("textbox") if "multiline" in each.states]
    return view.fill((view.named("answer-input"), areas[view.nth(r"from the (\w+) text area")].value))


def chosen(view: View) -> Move | None:
    """Choose from a list, one after the other, then submit."""
    listed = view.all("combobox", "listbox")[0]
    words = view.found(r"Select (.+) from the")
    wanted = [each for each in listed.options if each and each in words]
    wanted = [each for each in wanted if not any(each != other and each in other for other in wanted)]
    return view.act("select", listed, option=wanted[view.made]) if view.made < len(wanted) else view.submit()


def dropdown(view: View) -> Move | None:
    if view.made == 0:
        return view.act("select", view.all("combobox")[0], option=view.found(r"Choose (.+) from"))
    return view.click(view.named(view.found(r'labeled "(.+)"'), "button"))


def radio_and_number(view: View) -> Move | None:
    if view.made == 0:
        return view.click(view.all("radio")[view.nth(r"the (\w+) radio")])
    if view.made == 1:
        return view.act("type", field(view, view.nth(r"the (\w+) textbox")), text=view.found(r'number "(.+?)"'))
    return view.submit()


def arithmetic(view: View) -> Move | None:
    left, sign, right = re.findall(r"(\d{1,9}) ([-+x*]) (\d{1,9})", view.all("text")[0].name)[0]
    worth = {"+": int(left) + int(right), "-": int(left) - int(right)}.get(sign, int(left) * int(right))
    return view.fill((field(view), str(worth)))


def algebra(view: View) -> Move | None:
    """x on either side of the sign: ``x + 7 = 5``, ``7 - x = 5``."""
    text = view.all("text")[0].name
    left, sign, right, result = re.findall(r"(\w{1,9}) ([-+]) (\w{1,9}) = (-?\d{1,9})", text)[0]
    if left == "x":
        worth = int(result) - int(right) if sign == "+" else int(result) + int(right)
    else:
        worth = int(result) - int(left) if sign == "+" else int(left) - int(result)
    return view.fill((field(view), str(worth)))


def letters(view: View) -> Move | None:
    return view.fill((field(view), "".join(each.name for each in view.all("text"))))


def blocks(view: View) -> Move | None:
    count = sum("addition-block" in each.name for each in view.all("box"))
    return view.fill((field(view), str(count)))


def table(view: View) -> Move | None:
    return view.fill((field(view), _cell(view, view.found(r"value of (.+) into"))))


def tables(view: View) -> Move | None:
    """Each label of the form has its value in the table."""
    labels = [each.name.removesuffix(":") for each in view.all("text") if each.name.endswith(":")]
    return view.fill(*((field(view, place), _cell(view, label)) for place, label in enumerate(labels)))


def _cell(view: View, label: str) -> str:
    found = view.after(label, "text")
    return found.name if found else ""


def movies(view: View) -> Move | None:
    """Each field goes by the words beside it: those before it, or, where the first field has none, those after."""
    genre, name, year = re.findall(
        r"Search for (.{1,80}) movies directed by (.{1,80}) from year (\d{1,4})", view.asked
    )[0]
    wanted = {"genre": genre, "director": name, "year": year, "date": year}
    known = [each for each in view.screen.elements if each.role == "textbox" or _told(each, wanted)]
    label = ""
    for each in reversed(known) if known[0].role == "textbox" else known:
        label = each.name.lower() if each.role == "text" else label
        text = next((text for word, text in wanted.items() if word in label), "")
        if each.role == "textbox" and text and not each.value:
            return view.act("type", each, text=text)
    return view.click([each for each in view.screen.elements if each.acts and each.role != "textbox"][-1])


def _told(element: Element, words: Iterable[str]) -> bool:
    return element.role == "text" and any(word in element.name.lower() for word in words)


def spinner(view: View) -> Move | None:
    """Step by step, by its buttons: it takes no keys."""
    left = int(view.found(r"Select (-?\d+) with")) - int(view.all("spinbutton")[0].value)
    side = "spinner-up" if left > 0 else "spinner-down"
    return view.click(next(each for each in view.all("button") if side in each.name)) if left else view.submit()


def guess(view: View) -> Move | None:
    """One up or down from the last guess, as the page says."""
    box = view.all("spinbutton")[0]
    if view.made % 2:
        return view.submit()
    said = " ".join(each.name for each in view.all("text"))
    step = 1 if "higher" in said or "greater" in said else -1
    return view.act("type", box, text=str(int(box.value) + step) if box.value and view.made else "5")


def generated(view: View) -> Move | None:
    """Generate until the number is one that is asked for."""
    number = next((each.name for each in view.all("text") if re.fullmatch(r"-?\d+", each.name)), None)
    return view.submit() if number and _fits(int(number), view.asked) else view.click(view.named("Generate"))


def _fits(number: int, asked: str) -> bool:
    bound = re.search(r"(greater|less|smaller|larger) than (-?\d+)", asked)
    if bound:
        return number > int(bound[2]) if bound[1] in ("greater", "larger") else number < int(bound[2])
    return number % 2 == (0 if "even" in asked else 1)


def searched(view: View) -> Move | None:
    """Search, then turn the pages up to the one with the result."""
    if view.made == 0:
        return view.act("type", field(view), text=view.found(r'enter "(.+?)"'))
    if view.made == 1:
        return view.click(view.named("Search", "button"))
    place = POSITIONS.index(view.found(r"the (\w+) search result"))
    results = [each for each in view.all("link", "clickable") if not re.fullmatch(r"[<>\d]+", each.name)]
    pages = place // _RESULTS
    if view.made - 2 < pages:
        return view.click(view.named(">"))
    return view.click(results[place % _RESULTS])


_RESULTS = 3
"""results on one page"""


def completed(view: View) -> Move | None:
    """Type the beginning, wait for what it brings, and take what ends as it should."""
    start, end = view.found(r'starts with "(.+?)"'), view.found(r'ends with "(.+?)"')
    box = field(view)
    if box is None or view.made == 0:
        return view.act("type", box, text=start)
    if box.value != start:
        return view.submit()
    fits = (each for each in view.screen.elements if each.name.startswith(start) and each.name.endswith(end))
    return view.click(next(fits, None)) or Move(tool="wait")


def scrolled(view: View) -> Move | None:
    """Scroll until it moves no further, however long the text is."""
    if view.made < _SCROLLS:
        direction = "up" if "top" in view.asked else "down"
        return Move(tool="scroll", arguments={"direction": direction, "element": view.all("textbox")[0].number})
    return view.submit()


_SCROLLS = 12


def terminal(view: View) -> Move | None:
    """List the files, then delete one that fits."""
    target = view.named("terminal-target")
    if view.made == 0:
        return view.act("type", target, text="ls\n")
    names = [word for each in view.all("text") for word in each.name.split() if re.fullmatch(r"[\w-]+(\.\w+)?", word)]
    end = view.found(r"extension (\.\w+)")
    fits = [each for each in names if (each.endswith(end) if end else "." not in each)]
    return view.act("type", target, text=f"rm {fits[-1]}\n") if fits and view.made == 1 else None


FILLING: Mapping[str, Solution] = {
    "enter-text": quoted,
    "enter-text-dynamic": quoted,
    "enter-text-2": in_case,
    "enter-password": password,
    "enter-date": date,
    "enter-time": clock,
    "focus-text": focus,
    "focus-text-2": focus,
    "login-user": login,
    "login-user-popup": login,
    "find-word": word_at,
    "scroll-text": last_word,
    "scroll-text-2": scrolled,
    "copy-paste": copied,
    "copy-paste-2": copied_nth,
    "choose-list": chosen,
    "click-scroll-list": chosen,
    "form-sequence-2": radio_and_number,
    "form-sequence-3": dropdown,
    "simple-arithmetic": arithmetic,
    "simple-algebra": algebra,
    "text-transform": letters,
    "visual-addition": blocks,
    "read-table": table,
    "read-table-2": tables,
    "multi-layouts": movies,
    "multi-orderings": movies,
    "use-spinner": spinner,
    "guess-number": guess,
    "generate-number": generated,
    "search-engine": searched,
    "use-autocomplete": completed,
    "use-autocomplete-nodelay": completed,
    "terminal": terminal,
}
"""a solution for each page"""

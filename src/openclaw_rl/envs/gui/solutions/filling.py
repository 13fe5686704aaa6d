"""Scripted solutions for pages with fields to fill. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from openclaw_rl.envs.gui.screen import Element
from openclaw_rl.envs.gui.solutions.view import POSITIONS, Solution, View
from openclaw_rl.envs.gui.tasks import Move

FIELDS = ("textbox", "searchbox", "spinbutton", "combobox", "date", "time")


def field(view: View, place: int = 0) -> Element | None:
    """Return the field at this position."""
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
    """Fill in name and password; cancel a dialog that interrupts, and refill the fields that it cleared."""
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
    areas = [element for element in view.all("textbox") if "multiline" in element.states]
    return view.fill((view.named("answer-input"), areas[view.nth(r"from the (\w+) text area")].value))


def chosen(view: View) -> Move | None:
    """Choose from a list, one after another, then submit."""
    listed = view.all("combobox", "listbox")[0]
    words = view.found(r"Select (.+) from the")
    options = [option for option in listed.options if option and option in words]
    options = [option for option in options if not any(option != longer and option in longer for longer in options)]
    return view.act("select", listed, option=options[view.made]) if view.made < len(options) else view.submit()


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
    first, sign, second = re.findall(r"(\d{1,9}) ([-+x*]) (\d{1,9})", view.all("text")[0].name)[0]
    worth = {"+": int(first) + int(second), "-": int(first) - int(second)}.get(sign, int(first) * int(second))
    return view.fill((field(view), str(worth)))


def algebra(view: View) -> Move | None:
    """Solve for x on either side of the sign: ``x + 7 = 5``, ``7 - x = 5``."""
    text = view.all("text")[0].name
    first, sign, second, result = re.findall(r"(\w{1,9}) ([-+]) (\w{1,9}) = (-?\d{1,9})", text)[0]
    if first == "x":
        worth = int(result) - int(second) if sign == "+" else int(result) + int(second)
    else:
        worth = int(result) - int(first) if sign == "+" else int(first) - int(result)
    return view.fill((field(view), str(worth)))


def letters(view: View) -> Move | None:
    return view.fill((field(view), "".join(element.name for element in view.all("text"))))


def blocks(view: View) -> Move | None:
    count = sum("addition-block" in element.name for element in view.all("box"))
    return view.fill((field(view), str(count)))


def table(view: View) -> Move | None:
    return view.fill((field(view), _cell(view, view.found(r"value of (.+) into"))))


def tables(view: View) -> Move | None:
    """Fill each labelled field with its value from the table."""
    labels = [element.name.removesuffix(":") for element in view.all("text") if element.name.endswith(":")]
    return view.fill(*((field(view, place), _cell(view, label)) for place, label in enumerate(labels)))


def _cell(view: View, label: str) -> str:
    cell = view.after(label, "text")
    return cell.name if cell else ""


def movies(view: View) -> Move | None:
    """Match each field to the text beside it: before it, or, if the first field has none before it, after it."""
    genre, name, year = re.findall(
        r"Search for (.{1,80}) movies directed by (.{1,80}) from year (\d{1,4})", view.asked
    )[0]
    values = {"genre": genre, "director": name, "year": year, "date": year}
    elements = [element for element in view.screen.elements if element.role == "textbox" or _told(element, values)]
    label = ""
    for element in reversed(elements) if elements[0].role == "textbox" else elements:
        label = element.name.lower() if element.role == "text" else label
        text = next((text for word, text in values.items() if word in label), "")
        if element.role == "textbox" and text and not element.value:
            return view.act("type", element, text=text)
    return view.click([element for element in view.screen.elements if element.acts and element.role != "textbox"][-1])


def _told(element: Element, words: Iterable[str]) -> bool:
    return element.role == "text" and any(word in element.name.lower() for word in words)


def spinner(view: View) -> Move | None:
    """Step to the number with the buttons: the field accepts no keys."""
    difference = int(view.found(r"Select (-?\d+) with")) - int(view.all("spinbutton")[0].value)
    side = "spinner-up" if difference > 0 else "spinner-down"
    return (
        view.click(next(element for element in view.all("button") if side in element.name))
        if difference
        else view.submit()
    )


def guess(view: View) -> Move | None:
    """Guess one higher or lower than before, following the page's hint."""
    box = view.all("spinbutton")[0]
    if view.made % 2:
        return view.submit()
    hint = " ".join(element.name for element in view.all("text"))
    step = 1 if "higher" in hint or "greater" in hint else -1
    return view.act("type", box, text=str(int(box.value) + step) if box.value and view.made else "5")


def generated(view: View) -> Move | None:
    """Generate until the number fits."""
    number = next((element.name for element in view.all("text") if re.fullmatch(r"-?\d+", element.name)), None)
    return view.submit() if number and _fits(int(number), view.asked) else view.click(view.named("Generate"))


def _fits(number: int, asked: str) -> bool:
    bound = re.search(r"(greater|less|smaller|larger) than (-?\d+)", asked)
    if bound:
        return number > int(bound[2]) if bound[1] in ("greater", "larger") else number < int(bound[2])
    return number % 2 == (0 if "even" in asked else 1)


def searched(view: View) -> Move | None:
    """Search, then turn the pages to the result."""
    if view.made == 0:
        return view.act("type", field(view), text=view.found(r'enter "(.+?)"'))
    if view.made == 1:
        return view.click(view.named("Search", "button"))
    place = POSITIONS.index(view.found(r"the (\w+) search result"))
    results = [element for element in view.all("link", "clickable") if not re.fullmatch(r"[<>\d]+", element.name)]
    pages = place // _RESULTS
    if view.made - 2 < pages:
        return view.click(view.named(">"))
    return view.click(results[place % _RESULTS])


_RESULTS = 3
"""results per page"""


def completed(view: View) -> Move | None:
    """Type the beginning, wait for the suggestions, and choose the one with the right ending."""
    start, end = view.found(r'starts with "(.+?)"'), view.found(r'ends with "(.+?)"')
    box = field(view)
    if box is None or view.made == 0:
        return view.act("type", box, text=start)
    if box.value != start:
        return view.submit()
    fits = (
        element for element in view.screen.elements if element.name.startswith(start) and element.name.endswith(end)
    )
    return view.click(next(fits, None)) or Move(tool="wait")


def scrolled(view: View) -> Move | None:
    """Scroll to the named end in `_SCROLLS` steps, then submit."""
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
    names = [word for item in view.all("text") for word in item.name.split() if re.fullmatch(r"[\w-]+(\.\w+)?", word)]
    end = view.found(r"extension (\.\w+)")
    fits = [item for item in names if (item.endswith(end) if end else "." not in item)]
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
"""page names and their solutions"""

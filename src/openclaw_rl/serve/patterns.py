"""Patterns for the default redaction: e-mail, cards, IBANs, telephone numbers, logins, keys, passwords. Pure.

A pattern's time grows at most linearly with the text: a repeat is bounded, or it is possessive and begins only where a
run of its characters begins. A long text is read in windows, so that other threads can run.
Not detected, and so kept: names of people, postal addresses, birthdays, passwords that are plain words, secrets without
a name or a known prefix, numbers in an uncommon notation, and the content of images.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

Check = Callable[[re.Match[str], str], str | None]

_WINDOW: Final = 2**15
_SHORTEST: Final = 6
_SIGN: Final = re.compile(r"[0-9@:=<_-]|pass|pwd")
"""every match contains one of these signs; few of the many short texts in a tool's description do"""
_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One kind of sensitive text. ``check`` maps a match and the text to the replacement, None to leave the match.

    Every match contains one of ``hints``, in lower case. ``folds``: the search uses the text in lower case.
    ``reach`` is the longest match that is certain to be read as a whole.
    """

    name: str
    regex: re.Pattern[str]
    check: Check
    hints: tuple[str, ...] = ()
    folds: bool = False
    reach: int = 2**11

    def replace(self, text: str, folded: str) -> str:
        """Return the text with its matches replaced; ``folded`` is the text in lower case, letter for letter."""
        if self.hints and not any(hint in folded for hint in self.hints):
            return text
        pieces: list[str] = []
        at = 0
        for match in self._found(folded if self.folds else text):
            new = self.check(match, text)
            if new is not None:
                pieces += (text[at : match.start()], new)
                at = match.end()
        return "".join((*pieces, text[at:])) if pieces else text

    def _found(self, text: str) -> Iterator[re.Match[str]]:
        start = 0
        while start < len(text):
            stop = start + _WINDOW
            for match in self.regex.finditer(text, start, min(stop + self.reach, len(text))):
                if match.start() >= stop:
                    break
                yield match
                stop = max(stop, match.end())
            start = stop


def patterns(text: str) -> str:
    """The default redaction: replace each match by a word in brackets."""
    if len(text) < _SHORTEST:
        return text
    folded = fold(text)
    if not _SIGN.search(folded):
        return text
    for pattern in PATTERNS:
        redacted = pattern.replace(text, folded)
        if redacted is not text:
            text, folded = redacted, fold(redacted)
    return text


def fold(text: str) -> str:
    """Return the text in lower case at equal length: ASCII letters alone if some lower-case letter is longer."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_LOWER)


def _as(word: str) -> Check:
    return lambda *_: word


# --- keys with a form of their own ---

_PEM = re.compile(
    r"----[- ]BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,8}----[- ]?"
    r"(?>(?:[^-]|-(?!----? ?END)){0,20000})(?:----[- ]END [A-Z0-9 ]{0,60}-----?)?"
    r"|Private-Lines: \d{1,4}\s{1,2}(?:[A-Za-z0-9+/=]{1,80}\s{1,2}){1,200}"
)
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:sk|pk|rk)[-_](?:(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_-]{16,}+|[A-Za-z0-9]{20,}+)"
    r"|(?:tml-|gsk_|whsec_|glpat-|gldt-|glrt-|npm_|hf_|r8_|lin_api_|do[op]_v1_|rubygems_|dckr_pat_|shp(?:at|ss|ca|pa)_"
    r"|xai-|pplx-|sbp_|sq0(?:atp|csp)-|nvapi-|phc_|figd_|PMAK-|rpa_)(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_=-]{16,}+"
    r"|gh[pousr]_[A-Za-z0-9]{20,}+|github_pat_[A-Za-z0-9_]{20,}+|ATATT3x[A-Za-z0-9_=-]{30,}+"
    r"|(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])"
    r"|AIza[0-9A-Za-z_-]{30,}+|ya29\.[0-9A-Za-z_-]{20,}+|GOCSPX-[0-9A-Za-z_-]{20,}+|1//0[0-9A-Za-z_-]{30,}+"
    r"|xox[abdeoprs]-[0-9A-Za-z-]{10,}+|xapp-[0-9]-[0-9A-Za-z-]{10,}+|xwfp-[0-9A-Za-z-]{10,}+"
    r"|pypi-AgE[0-9A-Za-z_-]{20,}+|hv[sb]\.[0-9A-Za-z_-]{20,}+|dapi[0-9a-f]{32}|AGE-SECRET-KEY-1[0-9A-Z]{20,}+"
    r"|SG\.[0-9A-Za-z_-]{16,32}\.[0-9A-Za-z_-]{16,64}|key-[0-9a-f]{32}|[0-9]{8,10}:AA[0-9A-Za-z_-]{32,40})"
)
_KEY_HINTS = (
    *("sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "tml-", "whsec_", "glpat-", "gldt-", "glrt-", "npm_", "hf_", "r8_"),
    *("lin_api_", "do_v1_", "doo_v1_", "dop_v1_", "rubygems_", "dckr_pat_", "shpat_", "shpss_", "shpca_", "shppa_"),
    *("xai-", "pplx-", "sbp_", "sq0atp-", "sq0csp-", "nvapi-", "phc_", "figd_", "pmak-", "rpa_", "atatt3x"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "akia", "asia", "abia", "acca", "aiza", "ya29.", "gocspx"),
    *("1//0", "xox", "xapp-", "xwfp-", "pypi-", "hvs.", "hvb.", "dapi", "age-secret-key", "sg.", "key-", ":aa"),
)
_JWT = re.compile(
    r"(?<![A-Za-z0-9_-])([A-Za-z0-9_-]{0,48}?)"
    r"eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+"
)
_HOOK = re.compile(
    r"https://(?:hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]{16,200}"
    r"|discord(?:app)?\.com/api/webhooks/[0-9]{10,24}/[A-Za-z0-9_-]{20,100}"
    r"|[a-z0-9-]{1,63}\.webhook\.office\.com/[A-Za-z0-9@/_-]{20,300})"
)

# --- logins ---

_LOGIN = re.compile(r"://(?:[^\s/?#@:\"'<>]{0,128}+:[^\s/?#\"'<>]{1,256}|[A-Za-z0-9_-]{20,256}+)@(?=[A-Za-z0-9\[])")
_HEADER = re.compile(
    r"(?:bearer[ \t]{1,4}[\"']?|authorization[\"']?[ \t]{0,2}[:=][ \t]{0,2}[\"']?(?:basic|token|apikey)[ \t]{1,4})"
    r"([a-z0-9._~+/=-]{8,}+)"
)
_MIXED = re.compile(r"[0-9=]|[a-z][A-Z]")


def _header(found: re.Match[str], text: str) -> str | None:
    value = text[found.start(1) : found.end(1)]
    long_enough = len(value) >= (16 if found[0][0] == "b" else 8)
    return f"{text[found.start() : found.start(1)]}[key]" if long_enough and _MIXED.search(value) else None


_ASSIGNED = re.compile(
    r"(?:passw(?:or)?d|passphrase|passcode|pwd|secret|key|token|credentials?|authorization)"
    r"(?:\\?[\"'`]?[ \t]{0,4}(?::=|=>|[:=]|is[ \t])[ \t]{0,4}|([ ]))(\\?[\"'`]?)(?![=:])"
    r"([^\s\"'`,;&<>(){}\[\]$|\\]{6,1024}+)(?=[\"'`\s,;&<)}\]|\\]|\Z)"
)
_ELEMENT = re.compile(r"(?:password|passphrase|secret|token|api_?key)>([^<\s]{6,256}+)(?=</)")
_OPTION = re.compile(r"--[a-z-]{0,24}\Z")
_KEY_OF = re.compile(
    r"(?:api|access|auth|account|private|signing|encryption|client|app|master|secret|service|deploy)[ _-]?\Z"
)
_NO_TOKEN = re.compile(r"(?:page|next|continuation|pad|eos|bos|unk|sep|cls|mask|image|audio|sync|cursor)[_-]?\Z")
_NO_SECRET = re.compile(
    r"\A(?:[A-Za-z_]\w*(?:\??\.[A-Za-z_]\w*)+|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|~?\.{0,2}/(?!.{39}\Z).*"
    r"|(?i:sha-?\d+|md5|base64|argon2\w*|u?int\d+|bytes\d+|utf-?8|oauth2?|pbkdf2|x509|scrypt\d*))\Z",
    re.ASCII | re.DOTALL,
)
_EXAMPLE = re.compile(r"://|your|example|placeholder|xxxx|\*\*\*|\.\.\.|dummy|\[key\]", re.IGNORECASE)


def _assigned(found: re.Match[str], text: str) -> str | None:
    """Redact a value that resembles a secret, not a type, a variable, a path or an example."""
    value, quoted = text[found.start(3) : found.end(3)], bool(found[2])
    before = found.string[max(0, found.start() - 28) : found.start()]
    named = _NO_TOKEN.search(before) is None and (not found[0].startswith("key") or _KEY_OF.search(before))
    if not named or (found[1] and not _OPTION.search(before)) or _NO_SECRET.match(value) or _EXAMPLE.search(value):
        return None
    digits = sum(sign.isdigit() for sign in value)
    letters = any(sign.isalpha() for sign in value)
    if found[0].startswith("p"):
        secret = letters and (digits > 0 or any(sign in "!@#%^*?~" for sign in value))
    else:
        secret = letters and digits > 0 and len(value) >= (8 if quoted else 16 if digits > 1 else 32)
    return f"{text[found.start() : found.start(3)]}[key]" if secret else None


# --- people ---

_EMAIL = re.compile(
    r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,128}+@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9(-])"
)
# a no-reply address identifies no person, and agents write one into every prompt (a commit's author)
_NOBODY = re.compile(r"(?:(?:no|do-?not)[._-]?reply|git)@|[^@]{1,128}@\dx\.(?:png|jpe?g|gif|webp|svg)\Z", re.I)


def _email(found: re.Match[str], _: str) -> str | None:
    return None if _NOBODY.match(found[0]) else "[e-mail]"


_CARD = re.compile(
    r"[2-6](?<![\w.,+/-].)(?:\d{13,18}+|\d{3}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{3}([ -])\d{6}\2\d{4,5})(?![\w-]|[.,]\d)"
)
_BRAND = re.compile(
    r"4\d{15}(?:\d{3})?|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[68]\d)\d{11}|35\d{14}|6\d{15,18}|5[06-8]\d{14,17}"
)


def _card(found: re.Match[str], _: str) -> str | None:
    digits = re.sub(r"\D", "", found[0])
    return "[card]" if _BRAND.fullmatch(digits) and _luhn(digits) else None


def _luhn(digits: str) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


_IBAN = re.compile(r"[A-Z](?<![A-Za-z0-9].)[A-Z]\d\d(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])")


def _iban(found: re.Match[str], _: str) -> str | None:
    bare = found[0].replace(" ", "")
    number = "".join(str(int(sign, 36)) for sign in bare[4:] + bare[:4])
    return "[iban]" if 15 <= len(bare) <= 34 and int(number) % 97 == 1 else None


# National numbers as written: # is a digit, N a digit from 1, a space stands for one space, dot or hyphen.
_SHAPES = (
    *("0N ## ## ## ##", "0N# ### ## ##", "0N### ######", "0N### ### ###", "0N## ### ####", "0N# #### ####"),
    *("0N #### ####", "0N## ### ###", "0N# #######", "0N# ########", "0N## #######", "0N## ########", "0N ########"),
    *("0N# ### ####", "0N# ######", "0N## ######", "(0N#) #######", "(0N#) ########", "(0N#) ######", "(0N##) ######"),
    *("(0N##) #######", "(0N) #### ####", "(N#) #### ####", "(N#) ##### ####", "(N##) ### ####", "1 N## ### ####"),
    *("8 N## ### ## ##", "8 (N##) ### ## ##", "1N# #### ####", "### ### ####"),
)
_DIGITS = {"#": r"\d", "N": "[1-9]", "(": r"\(", ")": r"\)"}


def _shape(written: str) -> str:
    """Convert a shape to a pattern; its gaps are equal, but the first may be a slash, or nothing after a bracket."""
    first, *groups = ("".join(_DIGITS.get(sign, sign) for sign in part) for part in written.split(" "))
    opened = written.startswith("(")
    if opened or len(groups) == 1:
        return first + ("[ .-]?" if opened else "[ ./-]") + "[ .-]".join(groups)
    dialled = "[.-]" if written == "### ### ####" else "[ .-]"  # three bare groups with spaces may be any numbers
    return first + dialled + dialled.join(groups)


_PHONE = re.compile(
    r"(?=[+(\d])(?<![\w.,+/:=#-])(?<!\d[ ])(?:"
    r"\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){2,4}"
    r"|00[1-9]\d{0,2}[ .-]\d{1,4}(?:[ .-]?\d{2,4}){2,4}"
    rf"|{'|'.join(map(_shape, _SHAPES))}|0[67]\d{{8,9}})(?![\w-]|[.,/:]\d|[ ]\d)"
)
_CALLED = re.compile(
    r"(?:tel(?:efono?|ephone|éfono)?|phone|mobile?|móvil|celular|fax|whatsapp|t[ée]l[ée]phone|handy|电话|手机|電話"
    r"|call[ ]me[ ](?:at|on)|reach[ ]me[ ](?:at|on)|text[ ]me[ ](?:at|on))"
    r"(?:[ ](?:number|no\b|nr\b))?(?:[ ]is)?[ .:#=：]{0,4}(\+?\(?\d(?:[ ().-]{0,2}\d){6,14})(?![\w-]|[.,/:]\d)"
)
_CALLED_HINTS = ("tel", "phone", "mobil", "móvil", "celular", "fax", "whatsapp", "tél", "handy", " me ", "电话")
_DATE = re.compile(r"(?:19|20)\d\d[.-][01]\d[.-][0-3]\d")
_MOBILE = re.compile(r"1(?<![A-Za-z0-9_.,+/:=#-].)[3-9]\d{9}(?![A-Za-z0-9_-]|[.,]\d)")
_HAN = re.compile(r"[\u4e00-\u9fff]")


def _called(found: re.Match[str], text: str) -> str | None:
    return None if _DATE.match(found[1]) else f"{text[found.start() : found.start(1)]}[phone]"


def _mobile(found: re.Match[str], text: str) -> str | None:
    """Redact eleven separate digits as a mobile number near Chinese text, or without any text around them."""
    near = text[max(0, found.start() - 200) : found.end() + 200]
    return "[phone]" if _HAN.search(near) or found[0] == near.strip() else None


_ASSIGNED_HINTS = ("passw", "passp", "passc", "pwd", "secret", "key", "token", "credential", "authorization")


def _after_name(found: re.Match[str], text: str) -> str:
    return f"{text[found.start() : found.start(1)]}[key]"


PATTERNS: Final = (
    Pattern(name="pem", regex=_PEM, check=_as("[key]"), hints=("private key", "private-lines"), reach=2**15),
    Pattern(name="jwt", regex=_JWT, check=lambda match, _: f"{match[1]}[key]", hints=("eyj",), reach=2**14),
    Pattern(name="key", regex=_KEY, check=_as("[key]"), hints=_KEY_HINTS),
    Pattern(name="hook", regex=_HOOK, check=_as("[key]"), hints=("hooks.slack", "/api/webhooks", "webhook.office")),
    Pattern(name="login", regex=_LOGIN, check=_as("://[login]@"), hints=("://",)),
    Pattern(name="header", regex=_HEADER, check=_header, hints=("bearer", "authorization"), folds=True, reach=2**13),
    Pattern(name="assigned", regex=_ASSIGNED, check=_assigned, hints=_ASSIGNED_HINTS, folds=True),
    Pattern(name="element", regex=_ELEMENT, check=_after_name, hints=("</",), folds=True),
    Pattern(name="email", regex=_EMAIL, check=_email, hints=("@",)),
    Pattern(name="card", regex=_CARD, check=_card),
    Pattern(name="iban", regex=_IBAN, check=_iban),
    Pattern(name="phone", regex=_PHONE, check=_as("[phone]")),
    Pattern(name="called", regex=_CALLED, check=_called, hints=_CALLED_HINTS, folds=True),
    Pattern(name="mobile", regex=_MOBILE, check=_mobile),
)

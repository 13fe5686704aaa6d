"""What is taken out of a turn before it is kept, what must stay, and that looking for it never takes long."""

from __future__ import annotations

import json
import time

import pytest

from openclaw_rl.serve.patterns import PATTERNS, Pattern, patterns
from openclaw_rl.serve.redact import redact_feedback, redact_turn
from openclaw_rl.testing import ScriptedPolicy, serving
from openclaw_rl.types import Completion, Feedback, Message, Prompt, Sampling, Tool, ToolCall, Turn

B64 = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"


def pem(label: str, *, dash: str = "-----", end: bool = True, body: str = f"{B64}\n{B64}\n") -> str:
    return f"{dash}BEGIN {label}{dash}\n{body}" + (f"{dash}END {label}{dash}" if end else "")


# A bar keeps scanners of sources quiet and is taken out; what is between the braces must go, the rest must stay.
FOUND = [
    # keys in PEM
    "{" + pem("PRIVATE KEY") + "} ok",
    "{" + pem("RSA PRIVATE KEY") + "}",
    "{" + pem("EC PRIVATE KEY") + "}",
    "{" + pem("DSA PRIVATE KEY") + "}",
    "{" + pem("ENCRYPTED PRIVATE KEY") + "}",
    "{" + pem("OPENSSH PRIVATE KEY", body="b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ\n") + "}",
    "{" + pem("RSA PRIVATE KEY", body=f"Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,3F17\n\n{B64}\n") + "}",
    "{" + pem("PGP PRIVATE KEY BLOCK", body=f"Version: GnuPG v2 - x\n\n{B64}\n=abcd\n") + "}",
    "{"
    + pem("SSH2 ENCRYPTED PRIVATE KEY", dash="---- ", body=f"Comment: k\n{B64}\n").replace("KEY---- ", "KEY ----")
    + "}",
    '"key": "{' + pem("PRIVATE KEY").replace("\n", "\\n") + '}\\n"',
    "{Private-Lines: 2\n" + f"{B64}\n{B64}\n" + "}Private-MAC: x",
    # logins
    "git clone https{://bob:s3cret@}github.com/x/y.git",
    "postgres{://app:p%40ss@}db.internal:5432/app",
    "redis{://:hunter2@}cache:6379/0",
    "amqp{://guest:guest@}[::1]:5672",
    "https{://abcdefghij0123456789@}example.org/repo.git",
    # headers
    "Authorization: Bearer {abcDEF123|4567890xyz}",
    "curl -H 'authorization: bearer {0123456789abcdef0123}' x",
    "Authorization: Basic {dXNlcjpwYXNz|d29yZA==}",
    '{{"Authorization": "Basic {dXNlcjpw|YXNz}"}}',
    # keys by their prefix
    "{AKIA|IOSFODNN7EXAMPLE} is public, aws_secret_access_key = {wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzKEYz}",
    "{ASIA|IOSFODNN7EXAMPL3}",
    "AWS_SESSION_TOKEN={FwoGZXIvYXdzEBYaDKJh67890|QWERTY}",
    "{AIza|SyA1234567890abcdefghijklmnopqrstuv}",
    "{ya29.|a0AfH6SMBx1234567890abcdef}",
    "{GOCSPX-|1234567890abcdefghij}",
    "{xoxb-|123456789012-abcdefGHIJKL}",
    "{xoxp-|123456789012-123456789012-abc}",
    "{xapp-|1-A0123456789-0123456789}",
    "post to {https://hooks.slack.com/|services/T00000000/B00000000/abcdefghijklmnop} please",
    "{https://discord.com/api/|webhooks/123456789012345678/abcdefghijklmnopqrstuvwxyz}",
    "{ghp_|abcdefghijklmnopqrst0123456789}",
    "{gho_|abcdefghijklmnopqrst0123456789}",
    "{github_pat_|11ABCDEFG0abcdefghijkl_mnop}",
    "{glpat-|abcdefghij0123456789}",
    "{sk-|proj-abcdefghijklmnop0123456789}",
    "{sk-|ant-api03-abcdefghijklmnop-0123}",
    "{sk-|abcdefghijklmnopqrstuvwx}",
    "{sk_|live_abcdefghij0123456789}",
    "{rk_|test_abcdefghij0123456789}",
    "{whsec_|abcdefghij0123456789}",
    "{hf_|abcdefghijklmnop0123456789}",
    "{npm_|abcdefghijklmnop0123456789}",
    "{pypi-|AgEIcHlwaS5vcmcCJDEyMzQ1Njc4}",
    "{SG.|abcdefghij0123456789.abcdefghij0123456789}",
    "{dop_v1_|0123456789abcdef0123456789abcdef}",
    "{hvs.|abcdefghij0123456789abcd}",
    "{AGE-SECRET-KEY-|1QQPQQQQQQQQQQQQQQQQQQQQQ}",
    "{123456789:|AAabcdefghijklmnopqrstuvwxyz01234567}",
    "{eyJ|hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijklmnop}",
    "x-{eyJ|hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijklmnop}",
    # assignments
    "password={hunter2}",
    'password: "{correct!horse}"',
    "DB_PASSWORD={s3cr3tpw} ./run",
    "spring.datasource.password={Tr0ub4dor}",
    "my password is {hunter22}, ok?",
    "mysql --password {hunter22} -u root",
    'api_key: "{0123456789abcdef}"',
    "OPENWEATHER_API_KEY={0123456789abcdef0123}",
    '{{"client_secret": "{abcd1234efgh}"}}',
    '{{\\"password\\": \\"{hunter22}\\"}}',
    "apiKey = '{abcd1234efgh}'",
    "AccountKey={abcdEFGH0123|4567abcdEFGH01234567==};EndpointSuffix=x",
    "<password>{hunter22}</password>",
    # people
    "write to {bob.smith+x@mail.example.org}.",
    "邮箱{bob@mail.example.cn}谢谢",
    "card {4111 1111 1111 1111}, {5500-0000-0000-0004}, {378282246310005}",
    "{3782 822463 10005} and {6011000990139424}",
    "IBAN {DE89 3704 0044 0532 0130 00}, {GB29NWBK60161331926819}",
    "call {+41 44 123 45 67} or {+4915112345678} or {0049 30 1234567}",
    "{(415) 555-0123}, {415-555-0123}, {1-800-555-0123}",
    "{020 7946 0958} or {07700 900123} or {07700900123}",
    "{030/1234567}, {0151 12345678}, {(030) 1234567}",
    "{01 23 45 67 89}, {06.12.34.56.78}, {0612345678}",
    "{03-1234-5678} and {090-1234-5678}",
    "{(11) 91234-5678}; {(02) 9876 5432}; {0412 345 678}",
    "{8 (495) 123-45-67} and {138-1234-5678}",
    "手机号{13812345678}。",
    "{13812345678}",
    "Tel: {98765 43210}",
    "call me at {612 345 678}",
]
"""{{ and }} are braces of the text itself"""

KEPT = [
    # dates, times, versions, numbers, addresses of machines
    "2026-11-15T10:30:00Z and 15.11.2026 10:30, 01/02/2024, 02-03-2024",
    "1.2.3-4567, v2024.01.15.1234, 10.0.0.1, 192.168.100.200:30000",
    "1794722798054 ms since 1970, 1763200000 s, 15032385536 bytes, 13000000000 parameters",
    "1,234,567,890 and 1 234 567 890 and 12 345 678 and 3.14159265358979",
    "00 01 02 03 04 05 06 07 08 09 0a 0b",
    "01 02 03 04 05 06 07 08 09 10",
    "100 200 300 400 500 600 700",
    "order 4006381333931, EAN 5901234123457, ISBN 978-3-16-148410-0",
    "4111 1111 1111 1112 does not check; 1234 5678 9012 3456",
    "4.1111111111111111 and 0.5500000000000004",
    "port 30000, exit code 130, 404 Not Found, HTTP/1.1 200",
    "+100 -20 lines, +0200, UTC+02:00, +1, +12 345",
    "chapter 01, section 02.03, page 0123",
    "commit 3f2a9c1b7d, sha256:" + "a1b2c3d4" * 8,
    "id 550e8400-e29b-41d4-a716-446655440000",
    "turn 01jcq3x8z5k7m9n2p4r6s8t0vw",
    "call_01HABCDEFGHJKMNPQRSTVWXYZ0, toolu_01A09q90qw90lq917835lq9",
    "$1,234.56 and 12.50 EUR and 4 x 4 = 16",
    "lat 47.3769, lon 8.5417",
    "matrix 640x480, 1920x1080, 16:9",
    # addresses that lead to nobody
    "Co-Authored-By: X <noreply@anthropic.com>",
    "do-not-reply@x.example",
    "git@github.com:org/repo.git",
    "react@18.2.0 @types/node@20.1.0 pkg@latest",
    "icon@2x.png and a@b and q@k.transpose(-2, -1)",
    "@app.route('/x') and @pytest.mark.anyio",
    # addresses of the web without a login
    "http://localhost:8080/a@b and https://example.org/x?y=1:2",
    "ssh://git@github.com/x/y and https://user@localhost/",
    "see http://127.0.0.1:30000/v1/models and file:///etc/hosts",
    # public halves of keys
    pem("CERTIFICATE"),
    pem("PUBLIC KEY"),
    pem("PGP PUBLIC KEY BLOCK"),
    "the file begins with -----BEGIN and ends with -----END",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ4 bob",
    "data:application/json;base64,eyJ2ZXJzaW9uIjozLCJzb3VyY2VzIjpbXX0=",
    # words that look like prefixes
    "task-management-system-for-teams and risk-assessment-framework",
    "class sk-estimator-doc-link-fitted and sk-toggleable__label-arrow",
    "sk-learn, disk-usage-monitoring-service, pk_constraint_name_of_table",
    "a bearer token is sent as a bearer of authentication",
    "Bearer authentication uses the Authorization: Bearer header",
    "Authorization: Basic authentication is simple",
    "npm_config_registry hf_hub_download hf_model_card_template_text",
    # names without a secret
    "password: str, token: string; secret: bool = False",
    "def login(user: str, password: str) -> Token:",
    'api_key=os.environ["OPENAI_API_KEY"]',
    "token = request.headers.get('x')",
    "password = getpass.getpass()",
    "api_key = settings.api_key2",
    "PASSWORD=$PASSWORD and token=${TOKEN} and key=<your-key>",
    'api_key: "YOUR_API_KEY_123" and token: "xxxx1234xxxx"',
    "password: ******** and secret: ...",
    '"max_tokens": 4096, "eos_token": "<|im_end|>", "pad_token_id": 151643',
    "next_token: CAUQAA1234567890abcdef and page_token='abc123def456'",
    "sort_key: created_at_2024_01_15_desc, primary key: user_id_12345678",
    "private_key: /home/bob/.ssh/id_ed25519 and credentials: ./creds2.json",
    "token_url=https://auth.example.org/oauth2/token",
    "password: sha256, secret: base64, password: argon2id",
    "if password == old_password2: raise ValueError",
    "the key is under the mat and the password is required",
    "passwords must have 8 characters, 1 digit and 1 symbol!",
    "secret: null, token: true, password: none",
    # IBAN-like
    "DE89 3704 0044 0532 0130 01 is wrong, AB12 CDEF GHIJ KLMN OPQR",
    "MODEL-A123-4567-8901-2345",
    # phones that are none
    "cell 12345678, row 98765432",
    "phone: 2024-01-15 is a date",
    "call 1000000 times, text 12345 lines",
    "9876543210 items, 0123 is octal, 007",
    "the 415-555 range and 555-0123",
    "in 2024 2025 2026 2027",
    "step 13812345678 of 20000000000",
]


def unmark(sample: str) -> tuple[str, list[str]]:
    """The text of a sample and the parts that must go."""
    plain = sample.replace("{{", "\x01").replace("}}", "\x02").replace("|", "")
    gone = [part.partition("}")[0] for part in plain.split("{")[1:]]
    text = plain.replace("{", "").replace("}", "").replace("\x01", "{").replace("\x02", "}")
    return text, gone


@pytest.mark.parametrize("sample", FOUND, ids=range(len(FOUND)))
def test_what_should_not_be_kept_is_taken_out_and_nothing_around_it(sample: str) -> None:
    text, gone = unmark(sample)
    kept = patterns(text)
    assert [part for part in gone if part in kept] == []
    around = text
    for part in gone:
        around = around.replace(part, "\0", 1)
    for piece in around.split("\0"):
        assert piece in kept, (piece, kept)


@pytest.mark.parametrize("text", KEPT, ids=range(len(KEPT)))
def test_what_gives_nobody_away_stays(text: str) -> None:
    assert patterns(text) == text


def test_the_tables_are_as_large_as_promised() -> None:
    assert (len(FOUND) >= 60, len(KEPT) >= 60) == (True, True)


def test_a_secret_is_found_wherever_a_window_of_a_long_text_ends() -> None:
    key, mail = "gh" + "p_abcdefghijklmnopqrst0123456789", "bob@mail.example.org"
    for gap in (32_740, 32_760, 32_767, 32_768, 65_530):
        text = f"{'word ' * (gap // 5)}{'x' * (gap % 5)} {key} and {mail} {pem('PRIVATE KEY')} end"
        assert patterns(text).endswith("[key] and [e-mail] [key] end"), gap


NASTY = {
    "pem": ["-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----\nA", "Private-Lines: 1\nA\n", "-"],
    "jwt": ["-eyJ", "eyJ", "eyJaaaaaaaaaaaa.", "eyJaaaaaaaaaaaa.eyJaaaaaaaaaaaa. ", "_-"],
    "key": ["sk-", "-sk_", "npm_a", "ghp_aaaaaaaaaaa", "xox", "SG.aaaaaaaaaaaaaaaaaaaa.", "1//0", "123456789:AA"],
    "hook": ["https://hooks.slack.com/services/", "https://", "https://a.webhook.office.com/"],
    "login": ["://", "://a:", "://a:b", "://aaaaaaaaaaaaaaaaaaaaaaaa", ":"],
    "header": ["bearer ", "bearer aaaaaaa", "authorization: basic "],
    "assigned": ["token=", "password", "key: ", "secret is ", "password:'", "token=a1"],
    "element": ["<password>", "token>aaaaaaaaaa", "<token>a</"],
    "email": ["a", "a@", "a.", "a@a.", "a@a.a.a.a.a."],
    "card": ["4", "4 ", "4111 ", "4111-1111 ", "3782 822463 "],
    "iban": ["DE89", "DE89 3704 ", "A", "AA11AAAA"],
    "phone": ["0", "01 ", "+1 ", "+49-", "(0", "(030) ", "00 1 ", "0123 456 "],
    "called": ["tel", "phone: ", "tel 1", "phone 1 2 3 4 ", "call me at "],
    "mobile": ["1", "13", "138 ", "电话"],
}


def seconds(pattern: Pattern, text: str) -> float:
    """The least of three, of this thread alone."""
    found = []
    for _ in range(3):
        began = time.thread_time()
        pattern.replace(text, text.lower())
        list(pattern._found(text))
        found.append(time.thread_time() - began)
    return min(found)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_eight_times_the_text_takes_no_more_than_twenty_times_as_long(pattern: Pattern) -> None:
    for unit in (*NASTY[pattern.name], "word 12 ", "a"):
        text = unit * (32_000 // len(unit))
        short, long = seconds(pattern, text[: len(text) // 8]), seconds(pattern, text)
        assert long <= 20 * max(short, 0.001), (pattern.name, unit, short, long)


def test_the_comment_that_held_the_server_up_takes_a_moment() -> None:
    began = time.thread_time()
    assert patterns("-eyJ" * 50_000) == "-eyJ" * 50_000
    assert time.thread_time() - began < 5.0  # it was 54


KEY = "gh" + "p_abcdefghijklmnopqrst0123456789"
MAIL = "bob@mail.example.org"


def turn_with() -> Turn:
    call = ToolCall(id=KEY, name="send", arguments=json.dumps({"password": "hunter22", "to": MAIL}))
    prompt = Prompt(
        messages=(
            Message(role="user", content="hi", name=MAIL),
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content="ok", tool_call_id=KEY),
        ),
        tools=(Tool(name=f"mail-{KEY}", description=MAIL, parameters={"default": {MAIL: 4111111111111111}}),),
        tool_choice=f"name:mail-{KEY}",
        template={"documents": [{"title": MAIL}], "api_key": "abcd1234efgh"},
        opening=f'{{"name": "mail-{KEY}"',
    )
    done = Completion(
        reply=Message(role="assistant", content="ok"),
        prompt_tokens=(1,),
        reply_tokens=(2,),
        logprobs=(-1.0,),
        sampling=Sampling(stop=(MAIL,), json_schema={"title": MAIL}),
        finish="stop",
        version=1,
    )
    return Turn(prompt=prompt, completion=done, user="u", session="s", client=f"cli/{KEY}", group=MAIL)


def test_nothing_of_a_turn_that_is_kept_is_left_unread() -> None:
    kept = redact_turn(turn_with(), patterns)
    assert (KEY in repr(kept), MAIL in repr(kept), "hunter22" in repr(kept), "abcd1234efgh" in repr(kept)) == (
        False,
        False,
        False,
        False,
    )
    assert (kept.trainable, kept.completion.reply_tokens) == (False, ())


def test_a_call_and_its_result_still_belong_together_and_two_calls_stay_two() -> None:
    kept = redact_turn(turn_with(), patterns).prompt.messages
    assert kept[1].tool_calls[0].id == kept[2].tool_call_id
    assert str(kept[2].tool_call_id).startswith("redacted-")


def test_a_secret_in_the_name_of_the_client_alone_does_not_keep_a_turn_from_training() -> None:
    with serving(redact=patterns) as server:
        server.chat(headers={"user-agent": f"cli/1 {KEY}"})
    turn = server.ledger.last
    assert (turn.client, turn.trainable, len(turn.completion.reply_tokens)) == ("cli/1 [key]", True, 13)


def test_half_a_character_in_what_the_model_writes_does_not_lose_the_turn() -> None:
    reply = '<tool_call>{"name": "f", "arguments": {"to": "' + MAIL + '", "x": "\\ud83d"}}</tool_call>'
    with serving(ScriptedPolicy(reply), redact=patterns) as server:
        assert server.chat(tools=[{"type": "function", "function": {"name": "f"}}]).status_code == 200
    call = server.ledger.last.completion.reply.tool_calls[0]
    call.arguments.encode("utf-8")
    assert MAIL not in call.arguments


def test_feedback_is_redacted_in_all_its_words() -> None:
    said = Feedback(turn="t", hint=f"mail {MAIL}", edit=f"use {KEY}")
    kept = redact_feedback(said, patterns)
    assert (kept.hint, kept.edit) == ("mail [e-mail]", "use [key]")

"""English: whole clauses that praise, complain or instruct. A clause counts only if all of it is recognised."""
# ruff: noqa: E501  (each pattern stays on one line)

from __future__ import annotations

import re


def _any(*words: str) -> str:
    return "(?:" + "|".join(words) + ")"


def _clause(*shapes: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{shape})" for shape in shapes))


_LEAD = r"(?:(?:ok|well|hmm+|um|uh|so|and|also|hey|lol|haha|ahh?|oh|yes|yeah|yep|bro|dude|i think|honestly|sorry|but|however|though) )*"
_TAIL = r"(?: (?:lol|haha|again|at all|here|now|though|tho|please|mate|man|bro|dude|sorry|xd|:\)|:d|today|for me|either|btw))*"
_VERY = r"(?:(?:so|really|just|very|pretty|totally|completely|absolutely|utterly|way|quite|kind of|kinda|a bit|a little|super|truly|simply|clearly|plainly|actually|plain|still|also|always|such|a|an|the|much|far|all|most|definitely) )*"
_THING = _any(
    "answer",
    "reply",
    "response",
    "summary",
    "translation",
    "explanation",
    "advice",
    "idea",
    "code",
    "email",
    "text",
    "plan",
    "list",
    "tips?",
    "result",
    "job",
    "work",
    "stuff",
    "one",
    "command",
    "solution",
    "article",
    "language",
    "file",
    "thing",
    "tone",
    "wording",
    "format",
    "style",
    "output",
    "version",
    "suggestions?",
    "recommendations?",
    "draft",
    "poem",
    "story",
    "script",
)
_IT = rf"(?:it|this|that|these|those|they|(?:the|your|this|that|these|all of this|all of these) (?:whole )?{_THING}|all of (?:this|that|it)|what you (?:said|wrote|did))"
_IS = r"(?: is| was| are| were|'s|'re| looks?| sounds?| seems?| feels?| reads?)"
_IT_IS = rf"(?:(?:{_IT}){_IS} |you(?: are|'re) |what |such |how )?"

_BAD = _any(
    "wrong",
    "incorrect",
    "false",
    "bad",
    "terrible",
    "awful",
    "horrible",
    "useless",
    "worthless",
    "nonsense",
    "garbage",
    "rubbish",
    "crap",
    "trash",
    "bullshit",
    "bs",
    "ridiculous",
    "stupid",
    "pathetic",
    "unhelpful",
    "unacceptable",
    "disappointing",
    "confusing",
    "misleading",
    "inaccurate",
    "worse",
    "unreadable",
    "broken",
    "untrue",
    "off",
    "frustrating",
    "annoying",
    "lame",
    "waste of time",
    "joke",
    "hallucinations?",
    "lazy",
    "boring",
    "buggy",
    "irrelevant",
    "incomplete",
    "outdated",
    "unusable",
)
_GOOD = _any(
    "good",
    "great",
    "perfect",
    "perfectly",
    "excellent",
    "awesome",
    "amazing",
    "fantastic",
    "wonderful",
    "brilliant",
    "beautiful",
    "beautifully explained",
    "superb",
    "nice",
    "lovely",
    "cool",
    "correct",
    "helpful",
    "useful",
    "clear",
    "exactly right",
    "spot on",
    "bang on",
    "on point",
    "accurate",
    "concise and accurate",
    "neat",
    "impressive",
    "incredible",
    "outstanding",
    "gold",
    "ideal",
    "sweet",
    "fab",
    "stellar",
    "well done",
    "well written",
    "well said",
    "well put",
    "better",
    "great help",
    "big help",
    "(?:exactly |just |precisely )what i (?:needed|wanted|was looking for|asked for|meant)",
)
_BROKE = _any(
    "doesn't work",
    "does not work",
    "didn't work",
    "did not work",
    "isn't working",
    "is not working",
    "won't work",
    "doesn't (?:compile|help|run|build|help me|parse)",
    "does not (?:compile|help|run|build)",
    "didn't help",
    "fails?",
    "failed",
    "crashe[sd]",
    "broke",
    "breaks",
    "is broken",
    "gives? (?:me )?(?:an?|the same) error",
)

_SOLO = _any(
    "wrong",
    "incorrect",
    "nonsense",
    "garbage",
    "rubbish",
    "terrible",
    "awful",
    "horrible",
    "useless",
    "worthless",
    "confusing",
    "hallucinations?",
    "bullshit",
    "unhelpful",
    "disappointing",
    "ridiculous",
    "crap",
    "inaccurate",
)
_NEWS = _any(
    "bad", "terrible", "awful", "horrible", "ridiculous", "frustrating", "annoying", "stupid", "disappointing", "worse"
)

COMPLAINTS = _clause(
    rf"{_LEAD}{_VERY}{_SOLO}(?: {_THING})?{_TAIL}",
    rf"{_LEAD}{_VERY}{_BAD} {_THING}{_TAIL}",
    rf"{_LEAD}(?:{_IT}{_IS} |you(?: are|'re) |what |such |how ){_VERY}{_BAD} {_THING}{_TAIL}",
    rf"{_LEAD}(?!(?:that|it)(?:'s| is| was) {_VERY}{_NEWS})(?:{_IT}{_IS} |you(?: are|'re) |what ){_VERY}{_BAD}{_TAIL}",
    rf"{_LEAD}(?:{_IT} )?(?:is |was |are |were |'s |isn't |that's |this |it's )?(?:still )?not (?:even )?(?:{_VERY})?(?:what i (?:asked|wanted|meant|needed|said|had in mind)|right|correct|true|helpful|useful|good|good enough|close|accurate|an answer|a summary|it|working)(?: for)?{_TAIL}",
    rf"{_LEAD}{_IT} (?:isn't|wasn't|aren't|ain't) (?:even )?{_VERY}(?:what i (?:asked|wanted|meant|needed|said)|right|correct|true|helpful|useful|good|good enough|close|accurate|working|{_THING})(?: for)?{_TAIL}",
    rf"{_LEAD}(?:now )?(?:{_IT} )(?:now |just |still |also )?{_BROKE}(?: (?:on|for|in|with) [\w' .-]{{1,40}})?{_TAIL}",
    rf"{_LEAD}(?:still )?{_any(*_BROKE[3:-1].split('|')[:6])}(?: on my (?:\w+ )?(?:box|machine|computer|end|system|phone|laptop|server|mac))?{_TAIL}",
    rf"{_LEAD}{_IT} (?:broke|ruined|deleted|messed up) .{{1,50}}",
    rf"{_LEAD}{_IT} (?:made it|makes it|is even|got) worse",
    rf"{_LEAD}(?:(?:no|nope|nah) )?(?:it'?s? )?(?:is )?still (?:broken|wrong|failing|crashing|crashes|fails|not working|not right|not fixed|doesn't work|don't understand|the same(?: error)?|confused)(?: with .{{1,40}})?{_TAIL}",
    rf"{_LEAD}(?:i get |i'm getting |i still get |it's |still )?the same (?:error|problem|issue|bug|mistake){_TAIL}",
    rf"{_LEAD}same (?:error|problem|issue|bug|mistake|thing){_TAIL}",
    rf"{_LEAD}(?:no|nope|nah|lol no|no no)(?: (?:no|nope|lol|man|bro))*",
    rf"{_LEAD}(?:you|you've|you have|did you|you just|you even|you also|you clearly|you completely) (?:even |just |again |already |completely |totally |clearly )*(?:misunderstood|misread|forgot|missed|ignored|skipped|omitted|messed|screwed|broke|ruined|failed|lied|made (?:that|this|it|things|something) up|hallucinated|got (?:it|this|that) wrong|lost me|contradicted)\b.{{0,60}}",
    rf"{_LEAD}you (?:edited|changed|used|picked|turned|opened|deleted|chose|did|sent|fixed|gave me|read)(?: \w+)? the wrong .{{1,40}}",
    rf"{_LEAD}you (?:didn't|did not|haven't|don't|never) (?:even |really |actually )?(?:answer|read|listen|understand|change|do|follow|include|mention|check|fix|address|use|give|add|get)\b.{{0,60}}",
    rf"{_LEAD}you (?:used|wrote|gave|said|added|started|ended|put|did)\b.{{1,40}} again",
    rf"{_LEAD}you already (?:said|told me|gave me) (?:that|this|it).{{0,20}}",
    rf"{_LEAD}you got (?:the|my|that|this|it|his|her) .{{1,30}} wrong",
    rf"{_LEAD}you should have .{{1,50}}",
    rf"{_LEAD}did you even (?:read|look|try|check|listen).{{0,40}}",
    rf"{_LEAD}did you (?:read|look at) (?:it|this|that|the (?:code|article|file|text|question)|my (?:question|message|request))",
    rf"{_LEAD}why did you (?:change|delete|remove|ignore|edit|touch)\b.{{1,40}}",
    rf"{_LEAD}i (?:never|didn't) (?:ask|asked) (?:for|you to|you)\b.{{1,40}}",
    rf"{_LEAD}i (?:already |just |clearly |specifically |explicitly )*(?:told you|asked (?:you|for|how|what|which|why|whether|about)|asked a|said (?!yes|no\b|thank|that i|to (?:him|her|them|my))|wanted (?:an?|the|just|only|one|two|three|\d+|it)\b)(?!.*\b(?:my|him|her|them|got|and then)\b).{{0,80}}",
    rf"{_LEAD}(?:as i|i already) (?:mentioned|said|told you).{{0,60}}",
    rf"{_LEAD}no (?:it|that|this|they|he|she) ?(?:'s|is|isn't|doesn't|does not|was|wasn't|are|aren't|means?|did not|didn't)\b.{{0,60}}",
    rf"{_LEAD}how (?:can|could|did) you (?:get|be|mess) (?:this|that|it|so) (?:so )?(?:wrong|up|bad)",
    rf"{_LEAD}i've (?:already )?(?:told you|said|asked)\b.{{0,80}}",
    rf"{_LEAD}(?:i )?(?:still |really |just )*(?:don't|do not|didn't|can't|cannot) (?:understand|get|follow)(?: (?:it|this|that|you|a word|anything|any of (?:it|this)))?(?: yet)?{_TAIL}",
    rf"{_LEAD}i (?:really )?(?:don't|do not) (?:like|love|want) (?:{_IT}){_TAIL}",
    rf"{_LEAD}i (?:really )?(?:hate|dislike) (?:{_IT}){_TAIL}",
    rf"{_LEAD}(?:i'm|i am) (?:{_VERY})(?:disappointed|frustrated|annoyed|confused|lost){_TAIL}",
    rf"{_LEAD}i expected (?:more|better)(?: from you)?{_TAIL}",
    rf"{_LEAD}(?:{_IT} )?(?:makes?|made) (?:absolutely )?no sense{_TAIL}",
    rf"{_LEAD}{_IT} (?:doesn't|does not) (?:make (?:any )?sense|answer (?:my|the) question|help|follow).{{0,20}}",
    rf"{_LEAD}(?:{_IT} )?(?:completely |totally |kind of )?miss(?:es|ed) (?:the|my) (?:main )?(?:point|question)(?: entirely)?{_TAIL}",
    rf"{_LEAD}{_IT} (?:went|is|goes) over my head",
    rf"{_LEAD}(?:please )?(?:try|do (?:it|this|that)|go) (?:it )?(?:again|over|once more|one more time)(?: please| properly)?{_TAIL}",
    rf"{_LEAD}(?:please )?(?:redo|rewrite|undo|revert|fix)(?: (?:it|this|that))?(?: please)?",
    rf"{_LEAD}(?:please )?(?:start|do it|begin) (?:over|all over|from scratch)(?: please)?",
    rf"{_LEAD}(?:what a |a )?(?:complete |total |huge |such a )?waste of (?:my )?time",
    rf"{_LEAD}thanks for (?:nothing|wasting my time)",
    rf"{_LEAD}(?:are you (?:kidding|joking)(?: me)?|you(?:'re| are| must be) (?:kidding|joking)(?: me)?)",
    rf"{_LEAD}(?:stop|quit) (?:making (?:things|stuff|this|it) up|lying|hallucinating|inventing things)",
    rf"{_LEAD}there(?:'s| is) no such .{{1,30}}",
    rf"{_LEAD}(?:that's|that is|it's|it is|this is) not in the .{{1,30}}",
    rf"{_LEAD}(?:the )?(?:article|text|file|docs?|document|book|code|question|page) (?:says|said|states) the opposite",
    rf"{_LEAD}(?:check|recheck|double check|double-check) your (?:math|maths|calculation|calculations|facts|work|answer|spelling|sources){_TAIL}",
    rf"{_LEAD}(?:ugh+|smh|ffs|wtf|bro what|oh come on|come on|jesus|argh+|sigh|facepalm|yikes)",
    r"again with the \w+",
    r"(?:0|1|2|3)(?:\.\d)?/10",
    r"auto ?complete would do better",
)

_THANK = r"(?:thank you|thanks|cheers|gracias|merci|danke|many thanks|big thanks|thank you thank you|much appreciated|appreciated|i appreciate (?:it|this|that|your help|the \w+)|bless you)"
_SO = r"(?: (?:so|very) much| a lot| a bunch| beaucoup| bye| goodbye| a ton| a million| again| mate| man| bro| buddy| friend| dear| everyone| really| indeed| guys| for (?:the|your|all the|all your|this|that|all this|explaining|clarifying|not adding)(?: [\w]+){0,3}| this| that| it| good night| guys)*"
_ACK = r"(?:ok|great|good|perfect|cool|nice|awesome|got it|alright|right|correct|yes|yep|yeah|understood|ahh?|excellent|super|lovely|sweet|brilliant|amazing|wow|haha|oh|many|fine|wonderful)"

PRAISE = _clause(
    rf"(?:{_ACK} )*{_THANK}{_SO}(?: now)?",
    rf"(?:(?:ok|yes|yeah|yep|wow|oh wow|haha|ahh?|and|hey|omg|this time|now) )*(?:(?:{_IT}){_IS} )?{_VERY}(?:{_GOOD}|(?<=\S )right)(?: {_THING})?(?: (?:now|so far|indeed|to me|this time|man|mate|thing|start again|then|!|to know|of you|for me))*",
    r"(?:(?:ok|yes|yeah|yep|wow|ahh?) )*(?:you (?:rock|nailed it|got it|did it|did great|are (?:right|correct|amazing|the best|great|awesome)|'re (?:right|correct|amazing|the best|great|awesome|a lifesaver|a star|a legend|a genius|a hero))|you're (?:right|correct|amazing|the best|great|awesome|a lifesaver|a star|a legend|a hero)|nailed it|well done|good job|great job|nice job|great work|good work|nice work|nice one|good one|kudos|bravo|lifesaver|legend)(?: (?:mate|man|buddy|everyone|again|!))*",
    rf"(?:(?:ok|yes|yeah|yep|great|wow|cool|and|perfect) )*(?:{_IT}|everything|yep that|yes that|all)? ?(?:works?|worked|is working|are working)(?: (?:now|great|fine|well|perfectly|beautifully|like a charm|for me|flawlessly|a treat|again|nicely|as expected))*",
    rf"(?:(?:ok|yes|yeah|yep|great|wow|cool|and) )*{_IT} (?:really |totally |finally |just )*(?:did it|did the trick|fixed it|solved it|helped|helps|helped me|helped a lot|helps a lot|makes sense|made sense|worked|was it|answers my question|is what i (?:needed|wanted)|does the job|hits the spot|saved me|saved my (?:day|life))(?: (?:now|a lot|a ton|so much|to me|me a lot|perfectly))*",
    r"(?:ok |yes |yeah |ahh? |oh )*(?:(?:problem )?(?:solved|fixed)|all (?:the )?tests (?:pass|are passing|are green|passed)(?: now)?|all good|all set|lgtm|looks good|looks great|sounds good|sounds great|looking good|makes sense|makes sense now|very helpful|that's it|that's the one|exactly|precisely|exactly right|exactly this|exactly like that|that's exactly it|good bot|yes exactly|couldn't be better|no complaints|not bad at all)(?: (?:to me|now|this time))*",
    r"(?:ok |yes |ahh? |oh |now )*(?:now )?i (?:really |absolutely |just |finally |totally )*(?:love|like|adore|get|understand|appreciate) (?:it|this|that|these|your (?:answer|help|style)|how (?!.*\b(?:ignor|forg[eo]t|miss|never|not\b|\w+n't|wrong|broke|just)).{1,30})(?: (?:now|so much|a lot|very much))*",
    r"(?:ok |yes |great |perfect )*(?:sent it|sending it(?: now)?|merging|merged|shipped|shipping it|book it|i'll take it|we'll take it|we'll go with (?:it|this|that)|i'll use (?:it|this|that))",
    r"(?:ok |great |good |alright |cool )*(?:moving on|on to the next(?: one)?|next (?:one|question|topic|up)(?: please)?)",
    r"(?:9|10)(?:\.\d)?/10|100 ?%|a\+(?: answer)?|five stars|5/5",
    r"(?:this is |that's |that is |it's )?so much better(?: than .{1,40})?",
    r"(?:wow |oh wow )?(?:the )?best (?:answer|explanation|summary|advice)(?: i've (?:seen|read|heard|had|got))?(?: so far| yet| ever)?",
)

DANGER = re.compile(
    r"\b(?:not|no|never|\w+n't|but|however|though|although|except|still|wrong|incorrect|bad|fail\w*|broke\w*|crash\w*|errors?|worse"
    r"|instead|you should|should (?:have|be)|could have|would have|another|again|too|nothing|obvious|sarcas\w*|rather|almost|nearly|shorter|longer|simpler|less|fewer"
    r"|miss\w*|forgot\w*|ignored|deleted|delete|worst|annoying|hate|remove|change|fix|redo|rewrite|unfortunately|sadly|wish|yeah right|sure thing"
    r"|/s|captain|genius|oh great|googled?|original|advance|if you could|would be|only problem|one thing|one more thing|i'm (?:fine|good|ok|well)|issue|problem|confus\w*"
    r"|next time|from now on|in future|you (?:also )?\w+ed|anyways?|guess|whatever)\b|🙄|😒|😠|😡|🤦|👎|💩|\.\.\.|…"
)
"""Words outside the praise itself that rule out praise."""

IRONY = re.compile(
    r"\b(?:useless|nothing|terrible|wrong|wasting|lack|broken|mess|error|delay|trouble|confus\w*|incorrect|bad)\b"
)
"""Words that turn thanks into their opposite."""

TASK = re.compile(
    r"(?:let's|i need|i want|i'd like|i would like|how about|what about) (?:an?|some|to|the|my|you to) .*|(?:(?:please|pls|now|then|next|and|also|can you|could you|would you|i need you to|i want you to|help me) )*"
    r"(?:write|draft|compose|create|generate|build|make|give me|tell me|show me|translate|summari[sz]e|explain|list|find|compute|calculate"
    r"|describe|name|suggest|recommend|plan|design|implement|compare|search|look up|book|send|open|set|remind me|play|read|count|convert|tell)"
    r" (?!it\b|this\b|that\b|them\b|your\b|why\b|concrete\b|in\b|like\b|with\b|as\b|results\b|before\b)\S.*"
)
"""A new errand: an instruction beside it belongs to the errand, not to the reply."""

QUESTION = re.compile(
    r"(?:(?:ok|so|and|but|hmm|hey|then|also|now|well) )*(?:what|who|whom|whose|where|when|why|how|which|is|are|was|were|does|do|did|has|have|will|should|shall|may|might|can i|could i|am i)\b.*"
)
"""A question that is not a polite order."""

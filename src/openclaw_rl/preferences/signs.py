"""Signs in several languages that a wish applies to all replies, and that a sentence is about a reply.

One `Signs` per language, all patterns searched without regard to case:

durable   "from now on", "in future", "each reply": in an order, anywhere
adverbs   "always", "never": at their position in an order
habits    order beginnings about a repeated action ("stop using", "keep adding")
replies   nouns and verbs about replies
reviews   sentence beginnings that rate a reply
subjects  statement beginnings, which are no orders
wishes    statements that are orders nevertheless ("I want", "you should")
asks      beginnings for polite orders with a question mark
remember  signs that a fact should be kept
filler    other words that a message may contain
"""
# ruff: noqa: E501  (each word list stays on one line)

from __future__ import annotations

import re
from dataclasses import dataclass

_NEVER_MATCHES = r"(?!)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """One language's compiled signs. ``spaced`` is False if words are written without blanks."""

    name: str
    durable: re.Pattern[str]
    adverbs: re.Pattern[str]
    habits: re.Pattern[str]
    replies: re.Pattern[str]
    reviews: re.Pattern[str]
    subjects: re.Pattern[str]
    wishes: re.Pattern[str]
    asks: re.Pattern[str]
    remember: re.Pattern[str]
    filler: frozenset[str]
    spaced: bool = True


def _signs(
    name: str,
    *,
    durable: str,
    adverbs: str,
    habits: str = _NEVER_MATCHES,
    replies: str,
    reviews: str,
    subjects: str,
    wishes: str,
    asks: str = _NEVER_MATCHES,
    remember: str,
    filler: str,
    spaced: bool = True,
) -> Signs:
    def words(pattern: str) -> re.Pattern[str]:
        return re.compile(rf"(?<!\w)(?:{pattern})(?!\w)" if spaced else pattern, re.IGNORECASE)

    def head(pattern: str) -> re.Pattern[str]:
        return re.compile(rf"\W*(?:{pattern})" + (r"(?!\w)" if spaced else ""), re.IGNORECASE)

    return Signs(
        name=name,
        durable=words(durable),
        adverbs=head(adverbs) if spaced else words(adverbs),
        habits=head(habits),
        replies=words(replies),
        reviews=head(reviews),
        subjects=head(subjects),
        wishes=words(wishes),
        asks=head(asks),
        remember=words(remember),
        filler=frozenset(filler.split()),
        spaced=spaced,
    )


_UP_TO_THREE = r"(?:[^\s,.;:!?]+\s+){0,3}?"
"""words before an adverb in an order, for languages that put the verb first"""

ENGLISH = _signs(
    "en",
    durable=r"from (?:now|here|today|this (?:point|moment)|here on out)(?: on(?:wards?)?| forward| out)?|going forward|moving forward"
    r"|in (?:the )?future|for (?:all )?future \w+|henceforth|hereafter|next time|(?:each|every)(?: single)? (?:time|answer|reply|response|message|turn|explanation)"
    r"|(?:all|any)(?: of)? (?:your |my |the |future |further |later |subsequent )*(?:answers|replies|responses|messages|explanations)"
    r"|(?:when|any ?time)ever you|any ?more|any longer|ever again|at all times|by default|as a rule|(?:until|unless) i (?:say|tell|ask)\b.*",
    adverbs=r"(?:(?:please|and|but|also|so|ok|okay|no|just|kindly|you (?:should|must|need to|have to)|i (?:want|need|would like|'d like|expect) you to|make sure (?:to|you|that you)|remember to|try to|don't forget to)[\s,]+)*(?:always|never|do(?:n't| not) ever)"
    r"|(?:please\s+)?(?!i\b|i'|he\b|she\b|it\b|they\b|we\b|the\b|my\b|his\b|a\b|there\b)[\w'].{2,80}?\s(?:always|every time|each time)\W*\Z",
    habits=r"(?:keep|stop|quit) (?!going|trying|writing|working|generating|moving|reading|listing|counting|looking|digging|playing|talking|coming|running|it\b|nothing|something|everything|anything)\w+ing",
    replies=r"(?:your |the |my )?(?:answers?|replies|reply|replied|responses?|respond(?:ed|s)?|answered|answering|explanations?|explain(?:ed|s)?|explaining|output|outputs|formatting|wording|tone|you (?:wrote|said|gave|used|sent|made|keep|kept|forgot|ignored|missed)|i asked|told you|asked (?:you|for)|my question|paragraphs?|bullets?|emojis?|sentences|words)",
    reviews=r"(?:(?:no|nope|nah|ok|okay|hmm+|ugh|hey|thanks|thank you|sorry|please|well|but|again|yes|still|also)[\s,]+)*"
    r"(?:(?:way |far |still |much |a bit |a little |again )*too (?:long|short|wordy|verbose|much|many|formal|casual|vague|detailed|complicated|technical|brief|dry|chatty|slow|complex|hard|simple)\b.{0,60}"
    r"|(?:that|this|it|the (?:answer|reply|response|last (?:one|answer|reply)))(?:'s| is| was|'re| are| were| looks| looked| reads| sounds| sounded| took| helped)? ?(?:way |far |still |really |much |so |very |a bit |not |n't |quite |just |exactly |again |also |more |almost |all )*(?:too|wrong|incorrect|right|good|great|nice|perfect|better|worse|bad|awful|terrible|fine|ok|okay|helpful|useful|confusing|unclear|clear|hard|long|short|wordy|what i|unreadable|useless|annoying|lovely|cool|correct|enough|boring)\b.{0,60}"
    r"|(?:not )?what i (?:asked|wanted|meant|needed).{0,50}|(?:not|much|way|a lot|far) (?:helpful|better|good|great|right|useful)\b.{0,40}|(?:wrong|incorrect|bad|good|great|nice) \w+|(?:wrong|incorrect|bad|good|great|nice|perfect|better|excellent|awesome|brilliant|lovely|cool|awful|terrible|thanks|thank you|cheers|sorry|well done|good job|nice work|great job|love it|i love it|i like it|i hate (?:it|this|that))(?:,? (?:but|though|again|answer|reply|one|job|work|and|so much|a lot|very much|for that|for the \w+)\b.{0,60})?"
    r"|i (?:said|asked|told you|did(?:n't| not) ask|can(?:'t|not) (?:read|follow|use)|do(?:n't| not) (?:like|want|need|care|understand)|hate|dislike|already (?:said|asked|told)).{0,80})\W*\Z",
    subjects=r"(?:i|i'm|i've|i'll|i'd|he|she|it|it's|they|we|we're|who|this|that|there|these|those|the|a|an|my|his|her|their|our|its|some|most|people|everyone|everybody|nobody|someone|what|why|how|when|where|if)(?!\w)(?! (?:want|need|prefer|would like|expect|'d like|like|answer|answers|reply|replies|response|responses))",
    wishes=r"i (?:want|need|prefer|expect|would like|'d like|would prefer|'d prefer)|i'd (?:like|prefer|rather)|you (?:should|must|need to|have to|can|are to|may)|your (?:answers?|replies|reply|responses?)|(?:the )?(?:answers|replies|responses) (?:should|must|need)",
    asks=r"(?:please[\s,]+|and |but |so |ok[\s,]+)*(?:can|could|would|will|may|might) (?:you|i ask you)",
    remember=r"remember(?: that)?|keep in mind|for (?:future )?reference|don't forget|note that|bear in mind|for the record|fyi|as a reminder",
    filler="a again also and anyway bye cheers but fine great good hello hey hi hmm im just lol no nope now ok okay oh please pls right so sorry sure thank thanks then thx too ugh um very well yeah yep yes you much lot",
)
GERMAN = _signs(
    "de",
    durable=r"ab (?:jetzt|sofort|heute|nun)|von (?:jetzt|nun) an|künftig|in zukunft|zukünftig|fortan|nächstes mal|beim nächsten mal|das nächste mal|(?:jede[rsnm]?|alle[nr]?) (?:deine[rn]? |ihre[rn]? |künftigen )*(?:mal|antwort\w*|nachricht\w*)|immer wenn du|nie wieder|nicht mehr|kein\w* .{0,30}mehr|grundsätzlich|jedes mal|in jeder antwort",
    adverbs=rf"(?!(?:ich|er|sie sind|es|wir|der|die|das|man|mein)\b){_UP_TO_THREE}(?:immer|stets|nie|niemals)",
    habits=r"hör (?:bitte )?(?:damit )?auf",
    replies=r"antwort\w*|erklär\w*|deine \w+|du (?:hast|schreibst|sollst|benutzt|verwendest)|sätze?n?|wörter\w*|stichpunkte?n?|emojis?|absätze?",
    reviews=r"(?:(?:nein|ok|okay|hm+|danke|sorry|bitte|naja|aber|schon wieder|wieder|also|ja)[\s,]+)*(?:(?:viel |immer noch |noch |wieder |etwas |ein bisschen |deutlich )*zu (?:lang\w*|kurz\w*|viel|kompliziert\w*|förmlich\w*|technisch\w*|ausführlich\w*|ungenau\w*|wortreich\w*|umständlich\w*|vage|knapp)\b.{0,50}"
    r"|(?:das|dies|es|die antwort|deine antwort) (?:ist|war|sind|waren|hilft|half|stimmt) (?:\w+ ){0,3}(?:zu \w+|falsch|richtig|gut|super|schlecht|perfekt|besser|nicht|lang|kurz|toll|okay|prima|klasse|unlesbar|verwirrend|hilfreich)\b.{0,50}|(?:falsch|gut|super|schlecht|perfekt|danke|prima|toll|klasse|besser|quatsch|unsinn|entschuldigung|schön)\b.{0,30}"
    r"|(?:nicht )?(?:das,? )?was ich (?:wollte|meinte|gefragt|brauche).{0,40}|ich (?:wollte|habe (?:dich )?(?:nach|nicht|doch|schon)|hatte|mag|kann|brauche|will) .{0,70})\W*\Z",
    subjects=r"(?:ich|er|es|wir|man|der|die|das|ein|eine|mein\w*|sein\w*|unser\w*|jemand|niemand|alle|viele|wer|was|wie|warum|wenn|wo)(?!\w)(?! (?:will|möchte|hätte|brauche|bevorzuge|wünsche|antwort))",
    wishes=r"ich (?:will|möchte|hätte gern\w*|brauche|bevorzuge|wünsche)|du (?:sollst|solltest|musst|darfst)|deine antwort\w*|sie (?:sollen|sollten|müssen)|bitte",
    asks=r"(?:bitte[\s,]+|und |aber |ok[\s,]+)*(?:kannst|könntest|würdest|magst) du|(?:können|könnten|würden) sie",
    remember=r"merk(?:e)? (?:dir|es dir)|denk daran|vergiss nicht|behalte im kopf|zur erinnerung|beachte",
    filler="aber also bitte danke hallo hi hm ja jetzt nein na naja ok okay schön sehr so sorry und tja vielen dank doch mal gut",
)
FRENCH = _signs(
    "fr",
    durable=r"désormais|dorénavant|à (?:partir de maintenant|l'avenir|partir d'aujourd'hui|partir de là)|la prochaine fois|les prochaines fois|(?:chaque|chacune de tes|chacune de vos|toutes (?:tes|vos|les)) (?:fois|réponses?|messages?)|à chaque (?:fois|réponse|message)|dans (?:chaque réponse|toutes (?:tes|vos|les) réponses)|plus jamais|par défaut|(?:ne|n')\s?.{2,30} plus\b(?! (?:de \d|que|tard|tôt|loin))",
    adverbs=rf"(?!(?:je|j'|il|elle|on|nous|ils|elles|le|la|les|un|une|mon|ma|son|sa)\b){_UP_TO_THREE}(?:toujours|jamais|systématiquement)",
    habits=r"arrête(?:z)? (?:de|d'|avec|les|ces)",
    replies=r"répon\w+|explication\w*|expliqu\w*|tu (?:as|utilises|écris|fais|dois)|vous (?:avez|utilisez|écrivez)|(?:tes|vos|votre|ta) \w+|phrases?|mots|puces|émojis?|emojis?|paragraphes?",
    reviews=r"(?:(?:non|ok|merci|bon|mais|oui|désolé\w*|s'il te plaît|encore|hmm+|euh|bien)[\s,]+)*(?:(?:beaucoup |bien |encore |un peu |toujours )*trop (?:long\w*|court\w*|de \w+|compliqué\w*|formel\w*|technique\w*|vague\w*|bavard\w*|verbeux|détaillé\w*)\b.{0,50}"
    r"|(?:c'est|c'était|ce n'est pas|ce n'était pas|la réponse (?:est|était)|ta réponse (?:est|était)|votre réponse (?:est|était)) (?:\w+ ){0,3}(?:trop|faux|bien|bon|mal|mieux|parfait\w*|long\w*|court\w*|ce que|super|correct|incorrect|illisible|clair|utile|nul|génial|beaucoup)\b.{0,50}|(?:faux|parfait|super|merci|génial|bien|mieux|nul|dommage|désolé\w*|pardon)\b.{0,30}"
    r"|(?:pas|ce n'est pas) ce que (?:je|j').{0,50}|(?:je n'ai pas|je ne|je t'ai|j'ai|je voulais|je n'aime|je déteste) .{0,70})\W*\Z",
    subjects=r"(?:je|j'|il|elle|on|nous|ils|elles|le|la|les|l'|un|une|mon|ma|mes|son|sa|ses|notre|leur|ce|cette|ces|qui|que|quand|comment|pourquoi|où|si)(?!\w)(?! (?:veux|voudrais|préfère|souhaite|aimerais|réponses?|prochaines? fois))",
    wishes=r"je (?:veux|voudrais|préfère|souhaite|préférerais)|j'aimerais|tu (?:dois|devrais|peux)|vous (?:devez|devriez|pouvez)|(?:tes|vos) réponses|s'il (?:te|vous) plaît",
    asks=r"(?:s'il te plaît[\s,]+|et |mais )*(?:peux|pourrais|veux|voudrais)[- ]tu|(?:pouvez|pourriez|voulez)[- ]vous|(?:tu|vous) (?:peux|pourrais|pouvez|pourriez)",
    remember=r"souviens-toi|rappelle-toi|n'oublie pas|garde(?:z)? (?:ça |cela )?(?:en tête|à l'esprit)|note(?:z)? (?:bien )?que|retiens|pour info",
    filler="alors bien bon bonjour d'accord et euh hein merci mais non ok oui salut beaucoup s'il te vous plaît stp svp très voilà allez",
)
SPANISH = _signs(
    "es",
    durable=r"(?:de|a partir de|desde) ahora(?: en adelante)?|a partir de (?:hoy|aquí)|en adelante|en (?:el )?futuro|la próxima vez|las próximas veces|(?:cada|en cada|todas (?:tus|las|sus)|en todas (?:tus|las|sus)) (?:vez|respuestas?|mensajes?)|cada vez|nunca más|ya no|no .{2,40} (?:nunca más|más)\b|por defecto|en lo sucesivo",
    adverbs=rf"(?!(?:yo|él|ella|nosotros|ellos|el|la|los|las|un|una|mi|su)\b){_UP_TO_THREE}(?:siempre|nunca|jamás)",
    habits=r"deja de|deje de|para de",
    replies=r"respuestas?|respond\w+|contest\w+|explica\w*|(?:tus|sus|tu) \w+|frases?|palabras|viñetas|emojis?|párrafos?|listas?",
    reviews=r"(?:(?:no|ok|vale|gracias|bueno|pero|sí|perdón|por favor|otra vez|hmm+|bien)[\s,]+)*(?:(?:mucho |muy |todavía |sigue siendo |un poco |otra vez )*demasiad[oa]s? \w+.{0,50}|(?:muy|super) (?:larg|cort|complicad|formal|técnic|vag|detallad)\w*.{0,50}"
    r"|(?:eso|esto|la respuesta|tu respuesta)? ?(?:es|era|fue|está|estuvo|estaba|no es|no era) (?:\w+ ){0,3}(?:demasiado|mal|bien|mejor|correcto|incorrecto|perfect\w*|larg\w+|cort\w+|lo que|buen\w*|útil|confus\w*|ilegible|genial|falso|muy)\b.{0,50}|(?:mal|perfecto|genial|gracias|mejor|bien|excelente|perdón|incorrecto|estupendo)\b.{0,30}"
    r"|no (?:es )?lo que (?:pedí|quería|pregunté).{0,40}|(?:te dije|te pedí|yo pedí|pedí|no pedí|no me gusta\w*|odio|no entiendo|no quiero|no necesito) .{0,70})\W*\Z",
    subjects=r"(?:yo|él|ella|nosotros|ellos|ellas|el|la|los|las|un|una|mi|mis|su|sus|nuestro|este|esta|ese|esa|quien|qué|cómo|cuándo|por qué|dónde|si|cuando)(?!\w)(?! (?:quiero|prefiero|respuestas?|próximas? ve))",
    wishes=r"(?:quiero|prefiero|quisiera|me gustaría|necesito)|(?:debes|deberías|tienes que|puedes)|tus respuestas|por favor",
    asks=r"(?:por favor[\s,]+|y |pero |¿)*(?:puedes|podrías|puede|podría|quieres|te importaría)",
    remember=r"recuerda|ten en cuenta|no olvides|acuérdate|toma nota|ten presente|para que conste",
    filler="ah bien bueno claro gracias hola hmm mil muchas muy no ok oye pero por favor porfa perdón pues sí vale y ya",
)
ITALIAN = _signs(
    "it",
    durable=r"d'ora in (?:poi|avanti)|da (?:ora|adesso|oggi|questo momento) in (?:poi|avanti)|in futuro|per il futuro|la prossima volta|le prossime volte|(?:ogni|in ogni|a ogni|ad ogni|tutte le (?:tue )?|in tutte le (?:tue )?) ?(?:volta|rispost[ae]|messaggi[oi]?)|mai più|non .{2,40} più\b|di default",
    adverbs=rf"(?!(?:io|lui|lei|noi|loro|il|lo|la|i|gli|le|un|una|mio|suo)\b){_UP_TO_THREE}(?:sempre|mai)",
    habits=r"smetti(?:la)? di|basta (?:con|usare)",
    replies=r"rispost[ae]|rispond\w+|spiega\w*|(?:le )?tue \w+|frasi|frase|parole|elenchi|elenco|emoji|paragraf\w+",
    reviews=r"(?:(?:no|ok|grazie|bene|ma|sì|scusa|per favore|ancora|hmm+|beh|allora)[\s,]+)*(?:(?:molto |ancora |un po' |davvero )*tropp[oaie] \w+.{0,50}"
    r"|(?:è|era|non è|non era|questo è|questo era|la risposta (?:è|era)|questa (?:è|era)) (?:\w+ ){0,3}(?:tropp\w|sbagliat\w|giust\w|bene|male|meglio|perfett\w|lung\w|cort\w|brev\w|quello che|buon\w|utile|confus\w|illeggibile|corrett\w|ottim\w)\b.{0,50}|(?:sbagliato|perfetto|grazie|ottimo|bene|male|meglio|scusa|bravo|fantastico|errato)\b.{0,30}"
    r"|non (?:è )?(?:quello|ciò) che (?:ho chiesto|volevo|intendevo).{0,40}|(?:ti ho (?:chiesto|detto)|ho chiesto|non ho chiesto|non mi (?:piac\w+|serv\w+)|odio|non capisco|non voglio) .{0,70})\W*\Z",
    subjects=r"(?:io|lui|lei|noi|loro|il|lo|la|i|gli|le|l'|un|una|uno|mio|mia|suo|sua|nostro|questo|questa|quel\w*|chi|che|come|quando|perché|dove|se)(?!\w)(?! (?:voglio|vorrei|preferisco|rispost\w|tue|prossim\w))",
    wishes=r"(?:voglio|vorrei|preferisco|preferirei|mi piacerebbe|ho bisogno)|(?:devi|dovresti|puoi)|le tue risposte|per favore|per piacere",
    asks=r"(?:per favore[\s,]+|e |ma )*(?:puoi|potresti|vuoi|vorresti|può|potrebbe)",
    remember=r"ricorda(?:ti)?|tieni (?:a mente|presente)|non dimenticare|prendi nota|per tua informazione",
    filler="ah allora beh bene ciao e ecco grazie hmm ma mille molte no ok per favore piacere però prego scusa sì va",
)
PORTUGUESE = _signs(
    "pt",
    durable=r"(?:de|a partir de|desde) agora(?: em diante)?|daqui (?:em|para|pra) (?:diante|frente)|a partir de hoje|doravante|no futuro|futuramente|(?:d?a |na )?próxima vez|(?:nas |das )?próximas vezes|(?:cada|em cada|todas as (?:suas |tuas )?|em todas as (?:suas |tuas )?|toda) ?(?:vez|respostas?|mensage\w+)|nunca mais|não .{2,40} mais\b|por padrão",
    adverbs=rf"(?!(?:eu|ele|ela|nós|eles|o|a|os|as|um|uma|meu|seu)\b){_UP_TO_THREE}(?:sempre|nunca|jamais)",
    habits=r"par[ea] (?:de|com)|deixe? de",
    replies=r"respostas?|respond\w+|expli\w+|(?:suas|tuas|sua|tua) \w+|frases?|palavras|tópicos|emojis?|parágrafos?|listas?",
    reviews=r"(?:(?:não|ok|obrigad[oa]|bom|mas|sim|desculpe?|por favor|de novo|hmm+|bem|tá)[\s,]+)*(?:(?:muito|longo demais|comprido demais|demasiado|ainda muito|um pouco) ?(?:long|curt|complicad|formal|técnic|vag|compri|detalhad|grande|confus|extens)\w*.{0,50}|\w+ demais\b.{0,40}"
    r"|(?:isso|isto|a resposta|sua resposta|tua resposta)? ?(?:é|era|foi|está|estava|ficou|não é|não era|não foi) (?:\w+ ){0,3}(?:muito|errad\w|cert\w|bem|mal|melhor|perfeit\w|long\w|curt\w|o que|bom|boa|útil|confus\w|ilegível|ótim\w|demais)\b.{0,50}|(?:errado|perfeito|obrigad[oa]|ótimo|bom|melhor|desculpe?|excelente|valeu|incorreto)\b.{0,30}"
    r"|não (?:é |foi )?(?:isso|o) (?:que )?(?:eu )?(?:pedi|queria|perguntei).{0,40}|(?:eu (?:pedi|disse|já|não|odeio)|já (?:disse|pedi)|não (?:gosto|gostei|entendi|quero|preciso|pedi)) .{0,70})\W*\Z",
    subjects=r"(?:eu|ele|ela|nós|eles|elas|o|a|os|as|um|uma|meu|minha|seu|sua|nosso|este|esta|esse|essa|quem|que|como|quando|por que|onde|se)(?!\w)(?! (?:quero|prefiro|gostaria|respostas?|próximas? ve))",
    wishes=r"(?:quero|prefiro|gostaria|queria|preciso)|(?:você|tu) (?:deve|deveria|tem que|pode|deves)|(?:suas|tuas) respostas|por favor|por gentileza",
    asks=r"(?:por favor[\s,]+|e |mas )*(?:(?:você )?(?:pode|poderia|consegue)|podes|podias|poderias|dá pra)",
    remember=r"lembre-se|lembra-te|lembre|tenha em mente|não (?:se )?esqueça|anote|guarda que|para referência",
    filler="ah bem bom e então hmm mas muito não obrigada obrigado oi ok olá por favor pois sim tá valeu desculpa desculpe certo",
)
DUTCH = _signs(
    "nl",
    durable=r"vanaf (?:nu|vandaag|hier)|voortaan|in (?:de toekomst|het vervolg)|in het vervolg|(?:de )?volgende keer|(?:elke?|ieder[e]?|alle) (?:keer|antwoord\w*|bericht\w*|reactie\w*)|in (?:elk|ieder|al je|al jouw|al uw) antwoord\w*|al je antwoorden|nooit meer|niet meer|geen .{2,30} meer\b|standaard",
    adverbs=rf"(?!(?:ik|hij|zij|ze|het|wij|we|de|een|mijn|zijn|haar|men)\b){_UP_TO_THREE}(?:altijd|nooit|steeds)",
    habits=r"stop met|hou op met",
    replies=r"antwoord\w*|reactie\w*|uitleg\w*|(?:je|jouw|uw) \w+|zinnen|zin|woorden|opsomming\w*|emoji'?s?|alinea'?s?",
    reviews=r"(?:(?:nee|ok|oké|bedankt|dank je|maar|ja|sorry|graag|alweer|weer|hmm+|nou|goed)[\s,]+)*(?:(?:veel |nog steeds |weer |iets |een beetje |nog )*te (?:lang\w*|kort\w*|veel|ingewikkeld|formeel|technisch|vaag|uitgebreid|langdradig|wollig|moeilijk)\b.{0,50}"
    r"|(?:dat|dit|het|het antwoord|je antwoord|jouw antwoord) (?:is|was|klopt|zijn|helpt|hielp) (?:\w+ ){0,3}(?:te \w+|fout|goed|slecht|beter|perfect|niet|lang|kort|prima|onleesbaar|verwarrend|handig|juist|onjuist|top)\b.{0,50}|(?:fout|perfect|top|bedankt|prima|goed|beter|slecht|sorry|super|mooi|onzin|dank je wel)\b.{0,30}"
    r"|(?:niet )?wat ik (?:vroeg|wilde|bedoelde|nodig).{0,40}|(?:ik (?:vroeg|zei|wilde|had|heb|hoef|haat|kan|wil|vind|snap)) .{0,70})\W*\Z",
    subjects=r"(?:ik|hij|zij|ze|het|wij|we|de|een|mijn|zijn|haar|hun|ons|onze|deze|dit|die|dat|men|wie|wat|hoe|waarom|wanneer|waar|als|er)(?!\w)(?! (?:wil|zou|heb liever|antwoord\w*|volgende keer))",
    wishes=r"ik (?:wil|zou graag|heb liever|verwacht)|(?:je|jij|u) (?:moet|mag|zou|kunt|hoeft)|(?:je|jouw|uw) antwoorden|graag|alsjeblieft|alstublieft|a\.?u\.?b",
    asks=r"(?:alsjeblieft[\s,]+|en |maar )*(?:kun|kan|zou|wil|wilt|kunt) (?:je|jij|u)",
    remember=r"onthoud|vergeet niet|houd in gedachten|denk eraan|let op dat|ter info",
    filler="aub alsjeblieft bedankt dank dus en goed graag hallo hé hoi hmm ja je maar nee nou ok oké prima sorry tja u wel",
)
CHINESE = _signs(
    "zh",
    durable=r"从现在(?:起|开始)|从今(?:以后|往后|天起|天开始)|以后|今后|往后|将来|下次|下回|每次|每一次|每个(?:回答|回复)|每条(?:回答|回复|消息)|每(?:一)?(?:个|条|段)(?:回答|回复)|所有(?:的)?(?:回答|回复)|不要再|别再|不用再|不许再|再也(?:不要|别)|默认",
    adverbs=r"总是|始终|一直(?:用|要|以)|永远|务必都|一律|绝不|从不|都要",
    replies=r"回答|回复|解释|说明|你(?:说|写|给|用|的)|您(?:说|写|给|用|的)|句|字|列表|表情|段落|废话",
    reviews=r"(?:(?:不|嗯|好的?|谢谢|但是|不过|还是|又|抱歉|唉)[，,\s]*)*(?:(?:还是|有点|实在)?太(?:长|短|啰嗦|复杂|多|正式|笼统|难|简单|慢|乱).{0,12}|(?:这|那|你的回答|这个回答|上面的回答|回答)(?:个|次|样)?(?:是|不|太|很|有点|还|真|也).{0,20}|不(?:对|是|行|好|错).{0,12}|(?:错|很好|好|谢谢|完美|不错|可以|棒|太棒|多谢|挺好|对不起).{0,8}|我(?:问的|要的|想要|说的|不(?:要|喜欢|需要|想)|没(?:问|让|叫)|刚才|已经).{0,30})[了吧啊呢的！。!.\s]*\Z",
    subjects=r"(?:我(?!希望|想|要|喜欢|更喜欢|需要)|他|她|它|我们|他们|大家|人们|这|那|谁|什么|为什么|如果|老师|老板|船长|国王)",
    wishes=r"我(?:希望|想|要|更?喜欢|需要)|请|你(?:应该|必须|要|得|可以)|您",
    asks=r"(?:请问)?(?:你|您)?(?:能|可以|能否|可否|能不能)",
    remember=r"记住|请记得|记得|别忘|不要忘|备注|注意",
    filler="",
    spaced=False,
)
RUSSIAN = _signs(
    "ru",
    durable=r"отныне|впредь|в (?:дальнейшем|будущем)|с этого момента|начиная с этого момента|в следующий раз|кажд(?:ый раз|ом ответе|ый ответ)|во всех ответах|больше не|никогда больше|по умолчанию",
    adverbs=rf"(?!(?:я|он|она|они|мы|это)\b){_UP_TO_THREE}(?:всегда|никогда)",
    habits=r"перестань|прекрати",
    replies=r"ответ\w*|отвеча\w*|объясн\w*|тво\w+ \w+|предложени\w+|слов\w*|спис\w+|эмодзи",
    reviews=r"(?:(?:нет|да|ок|спасибо|но|опять|извини|хм+)[\s,]+)*(?:слишком \w+.{0,50}|(?:это|ответ) (?:\w+ ){0,3}(?:неправильно|неверно|верно|хорошо|плохо|длинно|не то)\b.{0,40}|(?:неправильно|неверно|спасибо|отлично|хорошо|плохо|супер|лучше|не то)\b.{0,40})\W*\Z",
    subjects=r"(?:я|он|она|оно|они|мы|это|эта|этот|кто|что|как|когда|почему|где|если)(?!\w)(?! (?:хочу|хотел|предпочитаю))",
    wishes=r"я (?:хочу|хотел\w* бы|предпочитаю)|пожалуйста|ты должен|твои ответы",
    asks=r"(?:пожалуйста[\s,]+)?(?:можешь|мог бы|можно)",
    remember=r"запомни(?:те)?|помни|не забудь|учти|имей в виду",
    filler="да нет но ок спасибо большое пожалуйста привет хм ну и так очень",
)
JAPANESE = _signs(
    "ja",
    durable=r"これから|今後|次から|次回|以降|毎回|すべての(?:回答|返答|返事)|全ての(?:回答|返答|返事)|もう.{1,20}(?:ないで|しないで)|二度と",
    adverbs=r"いつも|常に|必ず|絶対に|決して",
    replies=r"回答|返答|返事|答え|説明|文|絵文字|箇条書き",
    reviews=r"(?:(?:いいえ|はい|ありがとう(?:ございます)?|でも|すみません|うーん)[、,\s]*)*(?:.{0,10}(?:長|短|難し|多|詳し)(?:すぎ|過ぎ).{0,8}|(?:これ|それ|回答|答え|今の).{0,6}(?:違|間違|良|いい|だめ|ダメ|長|短).{0,12}|(?:違|間違|ありがとう|完璧|いいね|すみません).{0,12})[。！!.\s]*\Z",
    subjects=r"(?:私は|僕は|彼|彼女|彼ら|それは|これは|誰|何|なぜ|もし)",
    wishes=r"ください|下さい|ほしい|欲しい|お願い|して(?:ね|よ)|こと|ように",
    remember=r"覚えて|忘れないで|念のため",
    filler="",
    spaced=False,
)
STATERS = re.compile(
    r"\W*(?:i|he|she|they|we|ich|er|wir|il|elle|on|nous|ils|elles|yo|él|ella|nosotros|ellos|io|lui|lei|noi|loro|eu|ele|ela|nós|eles"
    r"|ik|hij|zij|ze|wij|я|он|она|они|мы)(?!\w)",
    re.IGNORECASE,
)
"""statement pronouns in any language: "never" beside one is no order"""
LANGUAGES: tuple[Signs, ...] = (
    ENGLISH,
    GERMAN,
    FRENCH,
    SPANISH,
    ITALIAN,
    PORTUGUESE,
    DUTCH,
    CHINESE,
    RUSSIAN,
    JAPANESE,
)
OTHERS = re.compile(
    r"(?<!\w)(?:he|she|they|him|her|his|hers|them|their|somebody|said|says|wrote|writes|dice|dijo|escribe|escribió|sagt|schreibt|schrieb|écrit|dit|scrive|dice|escreve|escreveu|diz|schrijft|zegt|пишет|написал|er|ihn|ihm|il|elle|ils|elles|lui|leur|él|ella|ellos|ellas"
    r"|lei|loro|ele|ela|eles|elas|hij|zij|hem|hun|он|она|они|его|её|им)(?!\w)|他|她|彼",
    re.IGNORECASE,
)
"""words for persons other than the user and the assistant, and for their speech"""
PLAYS = re.compile(
    r"\b(?:you are|you're|you will|act as|act like|pretend|imagine|assume|suppose|role-?play|du bist|stell dir|tu es|vous êtes|eres|imagina|sei|você é)\b|你是|假设",
    re.IGNORECASE,
)
"""words that assign a role or make a supposition, which is no order about replies"""

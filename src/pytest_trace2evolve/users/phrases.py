"""The words by which agents of support ask, refuse, announce and close, as patterns over one clause.

A clause is in lower case, with plain apostrophes and without Markdown's stars. Held against recorded τ² runs:
`tests/unit/test_hearing_recorded.py`.
"""

import re

from pytest_trace2evolve.records.task import Slot

SENTENCE = re.compile(r"(?<=[.!?])(?<!\n\d\.)(?<!\n\d\d\.)[\"')\]”]*\s+|\n+")
"""Between two sentences; the number of a list is none."""
LISTED = re.compile(r"^\s*(?:[-•*+]|\d+[.)])\s*")
_TELLING = r"provide|specify|tell|let me know|share|confirm|indicate|advise|choose|select|give"
CLAUSE = re.compile(
    rf"[,;]?\s+(?:and|also|or)\s+(?=(?:please |also |kindly )*(?:{_TELLING}|which|what|how)\b)"
    r"|,\s+(?=(?:please|which|what|how)\b)|;\s+"
)

LEAD = re.compile(r"^\W*(?:to|in order to|since|as|because|once|after|before|now)\b")
"""How a clause begins that only leads to the question after it."""

ASKING = re.compile(
    r"\?|\b(?:could|can|would|will) you\b|\b(?:may|can|could) i (?:please )?(?:have|ask|know|get)\b"
    rf"|\b(?:please|kindly|once you|also|could|^)\s*(?:also |first |just )*"
    rf"(?:{_TELLING}|provid|send|state|enter|supply|reply|respond|verify|type|say|answer|clarify"
    rf"|describe)\b"
    r"|\b(?:i|we)(?:'ll|'d| will| would| do)? (?:just |also |still |first )*(?:need"
    r"|require)\b(?! to (?:authenticate|verify|check|look|locate|find|identify))"
    r"|\blet me know\b|\btell me\b|\bprovide me\b|\b(?:is|are) (?:also )?(?:needed|required)\b|\bplease\W*$"
)
WANTS_TO_KNOW = re.compile(r"\b(?:which|what|what's|how|where|why|who|whose)\b")
THESE = re.compile(
    r"\b(?:these|those|that|this|the (?:following|above))(?: \w+)? (?:details|information|info)\b"
)
WHICH_OF_THESE = re.compile(r"\bwhich (?:one )?(?:of (?:these|those|them|the)|one)\b")

_ANY = r"(?:any|some|another|other|more|further|additional)"
MORE = re.compile(
    r"\b(?:anything|something|what|who|nothing) else\b|\belse (?:that )?(?:i|we|you)\b"
    r"|\banything (?:more|further)\b"
    rf"|(?<!the )(?<!your )\b{_ANY} (?:\w+ )?(?:questions?|concerns?|assistance|help|requests?|issues?"
    rf"|inquiries)\b"
    r"|\bfeel free to\b|\b(?:don't|do not) hesitate\b|\bfurther (?:help|assist)"
    r"|\bassist you (?:further|today)\b|\bhelp (?:you )?further\b|\bi'm here to (?:help|assist)\b"
)
OR_MORE = re.compile(
    r",?\s+or (?:is|are|do|would|if|let|please|have|need)\b.*\b(?:else|other|further|more|another)\b.*$"
)

SAY_YES = re.compile(
    r"\byes ?/ ?no\b|\(yes\b|[\"'“”‘(]yes\b|\byes or no\b|\bif (?:yes|so)\b"
    r"|\b(?:reply|respond|answer|say|type|write|send)\b.{0,30}\byes\b|\ba (?:clear |simple |quick )?yes\b"
)
CONSENT = re.compile(
    r"\bconfirm|\bproceed\b|\bgo ahead\b|\b(?:shall|should|may|can) (?:i|we)\b|\bready (?:to|for)\b"
    r"|\bwould you like (?:me |us )?to\b|\bwould you like that\b|\bdo (?:you|i) (?:want|wish|have your)\b"
    r"|\bdo you (?:agree|approve|consent|accept)\b|\b(?:i|we) have your (?:ok|okay|permission|approval"
    r"|consent)\b"
    r"|\byour (?:explicit )?(?:approval|consent|permission|go-ahead|ok|okay)\b"
    r"|\bare you (?:sure|ok|okay|happy|fine|good)\b|\bif you(?:'d| would) like (?:me |us )?to\b"
    r"|\b(?:is|are|was|does|do|did) (?:that|this|these|those|it|everything|all)\b.*"
    r"\b(?:correct|right|ok|okay|fine|good|accurate|acceptable|work|sound|look)\b"
    r"|\b(?:sounds?|looks?) (?:good|right|fine|ok|okay|correct)\b|\bokay\?|\bok\?|\bcorrect\?|\bright\?"
    r"|\bif you (?:want|wish) (?:me |us )?to\b"
)
_LOOK = (
    r"(?:look|check|search|find|list|show|see|pull|retrieve|tell|give|explain|calculate|help|assist"
    r"|verify|review"
    r"|provide)"
)
OFFER = re.compile(rf"\b(?:me|us|i|we) (?:to )?(?:please )?{_LOOK}\b|\bhelp (?:you )?(?:to )?{_LOOK}\b")
DO_THAT = re.compile(r"\bdo (?:that|so|this)\b")
CHOICE = re.compile(r"\bor\b(?! (?:no|not|decline|reject)\b)")
TO_PROCEED = re.compile(
    r"(?:^|[,;] )\W*(?:now,? |so,? |then,? )?(?:in order )?to (?:\w+ ){0,2}?proceed\b[^,:?]*"
    r"|\b(?:so that|so|before) (?:i|we) (?:can )?proceed\b|\b(?:in order|required|needed|need) to proceed\b"
)
ASKS_FOR = re.compile(
    r"\bneed (?:to know|(?:your|the) (?!confirm|approv|consent|ok\b|okay|permission|go))|"
    r"\b(?:provide|specify|share|enter|supply|indicate|choose|select|(?:send|give|tell) (?:me|us)"
    r"|let (?:me|us) know)\b"
    r"(?= \S)(?! (?:if|whether|that|when|once|you|by|so|and|how (?:i|we) can|what else|any ?(?:thing"
    r"|other)?)\b)"
)
CONFIRM_WHAT = re.compile(
    r"\b(?:confirm|verify)(?:ing)? (?:(?:to|with|for) (?:me|us) )?(?:(?:the|your|a|an|both|all|this)\s+)?"
    r"(?:\w+ ){0,2}?"
    r"(?:reasons?|identity|account|e-?mail|names?|zip|postal|order (?:ids?|numbers?)|user id|item ids?"
    r"|which|what|how|why|where|who|(?:payment|refund) methods?)\b"
    r"|\b(?:confirm|verify) (?:if|whether) (?:the order|you (?:have|know|remember|received)|it)\b"
)
_TO_HUMAN = r"(?:human|agent|representative|specialist|supervisor|colleague|team|someone)"
TRANSFERRED = re.compile(
    r"\b(?:being|been) (?:transferred|escalated|handed over)\b"
    rf"|\b(?:have|'ve|am|'m|will|'ll) (?:now |going to |also |successfully )*(?:transfer|escalat|connect"
    rf"|hand)\w*\b.*\b{_TO_HUMAN}\b"
)
TRANSFER_OFFER = re.compile(rf"\b(?:transfer|escalat|connect)\w*\b.*\b{_TO_HUMAN}\b")
UNREAL = re.compile(
    r"\b(?:if|would|could|can|cannot|can't|may|unable|not|unless|should|shall|after|once)\b|n't\b"
)

REFUSAL = re.compile(
    r"\b(?:cannot|can't|can not|couldn't|could not|won't be|will not be|unable to|not able to|impossible"
    r"|(?:not|isn't|aren't|never) (?:\w+ )?(?:possible|eligible|allowed|permitted|supported"
    r"|authori[sz]ed|available)"
    r"|(?:doesn't|does not|don't|do not|didn't|won't|will not) (?:\w+ )?(?:allow|permit|support|offer"
    r"|qualify|let)"
    r"|against (?:our|the|my)\b.{0,20}polic|(?:must|have to|need to|has to) (?:be )?(?:decline|refuse"
    r"|reject)"
    r"|(?:be|is|are|was) (?:declined|refused|rejected|prohibited|forbidden)|i (?:decline|refuse)"
    r"|unfortunately|ineligible|unavailable|no longer be|out of stock|sold out|outside (?:of )?(?:our"
    r"|the|my)"
    r"|sorry,? (?:but|no)|(?:i'm|i am|we're|we are) afraid|regret(?:fully| to)|not something (?:i|we)"
    r"|beyond (?:my|our|what)"
    r"|no way (?:to|for)|nothing (?:i|we) can do|(?:isn't|is not) an option|not in a position"
    r"|policy (?:prohibits|forbids|prevents)|prevents? (?:me|us))\b"
)
HARMLESS = re.compile(
    r"\b(?:inconvenience|trouble|delay|frustrat|confusion|hear that|hear about|undone|reversed"
    r"|(?:no|any) (?:further|more|other) (?:changes?|modif|items)|modified again|changed again"
    r"|change it again"
    r"|further (?:changes|modif)|(?:without|until|unless|before) (?:you|your|i|we|verif|confirm|that|this)"
    r"|wait|mistake on|misunderstand)"
)

_DONE = (
    r"(?:cancel|return|exchang|modif|chang|updat|process|complet|submitt|refund|done|set|request|initiat"
    r"|placed"
    r"|applied|credited|charged|switch|swap|replac|redirect|rerout|regist|arrang|finali[sz]|fulfil"
    r"|resolv|recorded"
    r"|moved|made|handled|taken care|sorted|started|ship)"
)
_LIGHT = r"(?:now |all |already |been |also |both |successfully |just |being |fully )*"
CLOSING = re.compile(
    rf"\b(?:has|have|is|are|was|were|i've|we've) {_LIGHT}{_DONE}"
    r"|\b(?:done|completed|all set|successfully|sorted)\b|\btaken care of\b|\byou will receive\b"
    r"|\byou'll receive\b"
    r"|\b(?:you're|you are) (?:very |most )?welcome\b|\bhave a (?:\w+ )?(?:day|evening|weekend|one|time)\b"
    r"|\bglad (?:i|we|to)\b|\bgoodbye\b|\bbye\b|\btake care\b|\bno further action\b"
)
NOT_CLOSING = re.compile(
    r"\b(?:verif|locat|found|identif|retriev|authenticat|pulled up|looked up|account is|logged|before"
    r"|once|if|after"
    r"|when|not|cannot|to be|currently|still)\b|n't\b|\b(?:verif|locat|identif|retriev|authenticat)\w*"
)
EVERYTHING = re.compile(
    r"\b(?:everything|all (?:of )?(?:your|the|these|those|three|two) (?:requests?|changes?|orders?"
    r"|things|items)"
    r"|both (?:of )?(?:your |the |these )?(?:requests?|changes?|orders?|things)|all set|all done"
    r"|that's all|that is all|that was all)\b"
)
ONGOING = re.compile(
    r"\b(?:one moment|a moment|one second|moment please|hold on|please hold|hang tight|bear with|stand by"
    r"|(?:let me|allow me to|i'll|i will|i'm going to|i am going to|we'll|we will|let's) (?:now |just "
    r"|quickly |then "
    r"|first |next |go ahead and |proceed to |start |begin )*"
    r"(?:check|look|find|pull|see|verify|review|process|proceed|handle|take care|work|get|do|retrieve"
    r"|search|cancel"
    r"|return|exchange|modify|change|update|initiate|submit|start|begin|go|turn|move|continue|arrange)\w*"
    r"|i(?:'m| am) (?:now |currently )?(?:checking|looking|processing|working|pulling|retrieving"
    r"|verifying|reviewing)"
    r"|next,|working on)\b"
)
REQUEST = re.compile(
    r"\b(?:how|what) (?:can|may|could|should|shall|do) (?:i|we|you) (?:\w+ )?(?:help|assist|do|need|want"
    r"|wish|like)\b"
    r"|\bwhat (?:would you like|do you (?:need|want|wish)|you(?:'d| would) like|you (?:need|want)"
    r"|exactly)\b"
    r"|\bhow (?:would you|you(?:'d| would)) like to\b|\bmore (?:details?|information|about)\b"
    r"|\b(?:clarify|rephrase|repeat|describe|elaborate|explain)\b.*\b(?:request|issue|need|want|that"
    r"|problem|what|you)\b"
    r"|\b(?:your|the) (?:request|issue|problem|question|concern)\b.*\?"
)

TO_COME = re.compile(r"\b(?:receive|follow-up|instructions|send you|sent to your|notif)\b")
WHOLE_ADDRESS = re.compile(
    r"\b(?:city|street|address line|address1|shipping|delivery|new (?:\w+ )?address)\b"
)
BOTH_REASONS = re.compile(r"no longer needed.*\bor\b.*mistake|mistake.*\bor\b.*no longer needed")

SLOTS: tuple[tuple[Slot, "re.Pattern[str]"], ...] = tuple(
    (slot, re.compile(words))
    for slot, words in (
        (Slot.EMAIL, r"\be-?mail\b"),
        (
            Slot.NAME,
            (
                r"\b(?:zip|postal)(?: ?code)?s?\b|\b(?:full|first|last|your|and|a) names?\b"
                r"|^\W*name\b"
            ),
        ),
        (
            Slot.ORDER,
            (
                r"\border'?s? (?:ids?|numbers?|no\b|#|confirmation|reference)|\b(?:which"
                r"|what)\b.{0,25}\borders?\b"
                r"|\bids? (?:of|for) (?:the|your|each) (?:\w+ )?orders?\b"
            ),
        ),
        (Slot.REASON, rf"\breasons?\b|\bwhy\b|{BOTH_REASONS.pattern}"),
        (
            Slot.PAYMENT,
            (
                r"\b(?:payment|refund) (?:method|option|preference)|\bwhich (?:card|method|account)\b"
                r"|\bmethod of payment\b|\b(?:how|where)\b.*\b(?:pay|paid|refund|money)"
                r"|\b(?:gift card|paypal|credit card|original payment)\b.*\bor\b"
                r"|\bor\b.*\b(?:gift card|paypal|credit card)\b"
            ),
        ),
        (
            Slot.OPTIONS,
            (
                r"\b(?:options?|variants?|versions?|colou?rs?|sizes?|replacements?|new items?"
                r"|specifications?|which one"
                r"|models?|preferences?|features?)\b|\bwhat\b.*\binstead\b"
            ),
        ),
        (Slot.ITEMS, r"\b(?:items?|products?)\b"),
        (Slot.ADDRESS, r"\b(?<!mail )address(?:es)?\b|\bwhere\b.*\b(?:ship|send|sent|deliver|go)"),
    )
)
